"""The notices for one sink: sent in order, tried again while it does not take them, each within its time, and counted.

Knows: one channel, what is still to be sent. Does not know: what a notice says, the disk."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from yirangmq.core.alert_settings import Sink
from yirangmq.core.backoff import Backoff
from yirangmq.doors.alerts.channel import Channel, Document, Undelivered
from yirangmq.format.envelope import iso
from yirangmq.observe.logs import log, values

MOST_PENDING = 200
"""Past them the oldest are given up."""
BACKOFF = Backoff(first=1.0, limit=300.0)
"""Seconds between two attempts to deliver a notice."""


class Outcome(NamedTuple):
    """Of one try; ``trouble`` is "" if it arrived."""

    trouble: str
    seconds: float


class Outbox:
    """Used from the loop's thread. ``changed`` is called when there is less to be sent; ``now`` gives milliseconds of
    the wall clock."""

    def __init__(
        self, sink: Sink, channel: Channel, give_up: float, changed: Callable[[], None], now: Callable[[], int]
    ) -> None:
        self.sink = sink
        self._channel = channel
        self._give_up = give_up
        self._changed = changed
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[float, Document]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.sent = self.failed = self.lost = 0
        """Notices that arrived; tries that did not; notices given up."""
        self.last_error = ""
        self.last_at: str | None = None

    @property
    def pending(self) -> list[Document]:
        return [document for _, document in self._pending]

    def put(self, document: Document) -> None:
        """To be sent at the next ``wake``."""
        if len(self._pending) >= MOST_PENDING:
            del self._pending[1 if self._task is not None else 0]  # the first one is on its way
            self.lost += 1
        self._pending.append((self._loop.time(), document))

    def wake(self) -> None:
        if self._pending and self._task is None and not self._is_closed:
            self._task = self._loop.create_task(self._work())

    async def attempt(self, document: Document) -> Outcome:
        """One try, which ends in time."""
        begun = self._loop.time()
        self.last_at = iso(self._now())
        try:
            async with asyncio.timeout(self.sink.timeout):
                await self._channel.send(document)
            trouble = ""
        except TimeoutError:
            trouble = f"no answer within {self.sink.timeout:g} seconds"
        except Undelivered as error:
            trouble = str(error)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        self.last_error = trouble
        if trouble:
            self.failed += 1
        else:
            self.sent += 1
        return Outcome(trouble, self._loop.time() - begun)

    async def _work(self) -> None:
        failures = 0
        while self._pending:
            since, document = self._pending[0]
            outcome = await self.attempt(document)
            is_late = self._loop.time() - since >= self._give_up
            if outcome.trouble and not is_late:
                self._complain(document, outcome.trouble, "the alert's notice is tried again")
                failures += 1
                await asyncio.sleep(BACKOFF.delay(failures))
                continue
            if outcome.trouble:
                self.lost += 1
                self._complain(document, outcome.trouble, "the alert's notice is given up")
            self._pending.popleft()
            failures = 0
            self._changed()
        self._task = None

    def _complain(self, document: Document, trouble: str, event: str) -> None:
        log.warning(event, extra=values(sink=self.sink.name, alert=document["alert"]["id"], error=trouble))

    def describe(self) -> dict[str, Any]:
        return {
            "sink": self.sink.name,
            "kind": self.sink.kind,
            "level": self.sink.wanted.level.value,
            "rules": list(self.sink.wanted.rules),
            "pending": len(self._pending),
            "sent": self.sent,
            "failed": self.failed,
            "lost": self.lost,
            "lastError": self.last_error or None,
            "lastAt": self.last_at,
        }

    def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        self._channel.close()
