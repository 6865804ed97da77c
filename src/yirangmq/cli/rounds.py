"""What a server looks at once a second: its clients, its disk, its numbers, and whether the store takes what it is
given. What has changed is logged.

Knows: what was seen the last time. Does not know: what follows from it."""

import asyncio
import contextlib

from yirangmq.cli.notify import notify
from yirangmq.cli.parts import ServerParts
from yirangmq.observe.logs import log, values

TICK_SECONDS = 1.0


class Rounds:
    """From ``begin`` until ``stopping`` is set. To be made on the loop's thread."""

    def __init__(self, parts: ServerParts, stopping: asyncio.Event) -> None:
        self._parts = parts
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._sent_away: dict[str, int] = {}
        self._trouble = ""
        self._ahead = parts.house.clock.ahead_ms()
        self._due: float | None = None

    def begin(self) -> None:
        if self._stopping.is_set():
            return
        now = self._loop.time()
        if self._due is not None:
            self._parts.watchdog.observe_delay(now - self._due)
        self._due = now + TICK_SECONDS
        self._loop.call_later(TICK_SECONDS, self.begin)
        notify("WATCHDOG=1")
        parts = self._parts
        parts.entrance.look_around(self._loop.time())
        self._look_at_disk()
        parts.observing.look(parts.desk)
        if parts.day_files is not None:
            parts.day_files.look()
        self._look_at_clients()
        self._look_at_store()
        self._look_at_clock()

    def _look_at_clock(self) -> None:
        """The wall clock was set: store time goes on as before, and its record is renewed."""
        clock = self._parts.house.clock
        clock.now_ms()  # compares the two
        ahead = clock.ahead_ms()
        if ahead != self._ahead:
            set_by, self._ahead = ahead - self._ahead, ahead
            self._parts.desk.verbs.store_time.renew()
            log.warning("clock_set", extra=values(set_by_seconds=set_by / 1000, ahead_seconds=ahead / 1000))

    def _look_at_clients(self) -> None:
        sent_away = self._parts.entrance.sent_away()
        if sent_away != self._sent_away:
            self._sent_away = sent_away
            log.warning("clients sent away", extra=values(since_start=sent_away))

    def _look_at_store(self) -> None:
        trouble = "" if self._parts.desk.trouble is None else str(self._parts.desk.trouble)
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble:
            log.error("the store refuses", extra=values(error=trouble))
        else:
            log.info("the store works again")

    def _look_at_disk(self) -> None:
        disk = self._parts.disk
        if disk is None:
            return
        was_full = disk.full is not None
        with contextlib.suppress(OSError):
            disk.look()
        if was_full != (disk.full is not None):
            state = "publishing goes on" if was_full else f"publishing is refused: {disk.full}"
            log.warning(state, extra=values(free_bytes=disk.free, used_bytes=disk.used))
