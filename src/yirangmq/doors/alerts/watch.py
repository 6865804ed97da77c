"""The alerts of one server as they go on: a look now and then, what follows kept on disk, then told.

Knows: the rules, the file, the outboxes. Does not know: where facts come from. The disk is written by a thread of its
own; nothing here waits for it, or for a sink."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from yirangmq.clock import SteadyClock
from yirangmq.core import alerts
from yirangmq.core.alert_rules import Facts, faults
from yirangmq.core.alert_settings import AlertSettings
from yirangmq.core.alerts import Alert, Fault, Level, Notice, Standing, Told
from yirangmq.core.errors import QueueError, StoreError
from yirangmq.doors.alerts.outbox import Outbox
from yirangmq.format import alerts as forms
from yirangmq.observe.alert_file import AlertFile
from yirangmq.observe.logs import log, values

LOGGED = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING, Level.CRITICAL: logging.ERROR}
Saved = Callable[[QueueError | None], None]


class AlertWatch:
    """Used from the loop's thread; from ``start`` to ``stop``. ``facts`` is asked at each look, with the time."""

    def __init__(
        self,
        settings: AlertSettings,
        file: AlertFile,
        node: str,
        facts: Callable[[int], Facts],
        clock: SteadyClock,
    ) -> None:
        self.settings = settings
        self.node = node
        self.clock = clock
        self.standing = Standing()
        self.outboxes: dict[str, Outbox] = {}
        self.logged = 0
        self._file = file
        self._facts = facts
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="alerts")
        self._alarm: asyncio.TimerHandle | None = None
        self._is_saving = self._is_dirty = False
        self._waiting: list[Saved] = []
        """Who wants to know when what is known now is on disk."""
        self._trouble = ""

    # -- its life ---------------------------------------------------------------------------------------------------

    def add(self, outbox: Outbox) -> None:
        self.outboxes[outbox.sink.name] = outbox

    def start(self) -> None:
        """What was open before is open still, and what was not sent yet is sent."""
        try:
            self._resume(self._file.load())
        except (OSError, QueueError) as error:
            where = ""
            with suppress(OSError):
                where = str(self._file.set_aside())
            log.error("the alerts cannot be read", extra=values(error=str(error), aside=where))
        self._plan()

    def _resume(self, document: Any) -> None:
        if document is None:
            return
        self.standing = alerts.resumed(forms.read(document), self.clock.now_ms())
        for name, told in document.get("pending", ()):
            if name in self.outboxes:
                self.outboxes[name].put(told)
                self.outboxes[name].wake()

    def stop(self) -> None:
        """What is known is on disk when this returns."""
        if self._alarm is not None:
            self._alarm.cancel()
        for outbox in self.outboxes.values():
            outbox.close()
        self._thread.shutdown(wait=True)
        if self._is_dirty or self._is_saving:
            with suppress(OSError):
                self._file.save(self._document())

    # -- looking ------------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        self._alarm = self._loop.call_later(self.settings.every, self._turn)

    def _turn(self) -> None:
        self._plan()
        try:
            self.look()
        except Exception:
            log.exception("a look for alerts failed")

    def look(self) -> None:
        now = self.clock.now_ms()
        found = faults(self._facts(now), self.settings.rules)
        before = self.standing
        self.standing, notices = alerts.look(before, found, self.settings.pace, now)
        for notice in notices:
            self._tell(notice)
        if notices or alerts.is_news(before, self.standing):
            self._save()

    def _tell(self, notice: Notice) -> None:
        alert, told = notice.alert, forms.notice_document(notice, self.node, self.clock.ahead_ms())
        if self.settings.log is not None and alert.level.rank >= self.settings.log.rank:
            self._log(told["notice"], alert)
        for outbox in self.outboxes.values():
            if outbox.sink.wanted.takes(max(alert.level, alert.worst, key=lambda level: level.rank), alert.rule):
                outbox.put(told)

    def _log(self, what: str, alert: Alert) -> None:
        self.logged += 1
        level = logging.INFO if what == Told.RECOVERED else LOGGED[alert.level]
        about = values(
            notice=what, alert=alert.id, rule=alert.rule, subject=alert.subject, severity=alert.level, text=alert.text
        )
        log.log(level, "alert", extra=about)

    # -- on disk ------------------------------------------------------------------------------------------------------

    def _document(self) -> dict[str, Any]:
        """In the time of the wall clock, which is what the next process begins with."""
        pending = [[name, told] for name, outbox in self.outboxes.items() for told in outbox.pending]
        return {**forms.written(alerts.shifted(self.standing, self.clock.ahead_ms())), "pending": pending}

    def _save(self, then: Saved | None = None) -> None:
        """Outboxes send when it is done: a notice that is sent is known after a crash. One that cannot be kept is sent
        all the same."""
        if then is not None:
            self._waiting.append(then)
        if self._is_saving:
            self._is_dirty = True
            return
        self._is_saving, self._is_dirty = True, False
        waiting, self._waiting = self._waiting, []
        document = self._document()
        with suppress(RuntimeError):  # it is over
            work = self._loop.run_in_executor(self._thread, self._file.save, document)
            work.add_done_callback(lambda done: self._saved(done, waiting))

    def _saved(self, done: "asyncio.Future[None]", waiting: list[Saved]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        trouble = "" if error is None else str(error)
        if trouble and trouble != self._trouble:
            log.error("the alerts cannot be kept", extra=values(error=trouble))
        self._trouble = trouble
        self._is_saving = False
        for then in waiting:
            then(StoreError(f"the alerts cannot be kept: {trouble}") if trouble else None)
        for outbox in self.outboxes.values():
            outbox.wake()
        if self._is_dirty or self._waiting:
            self._save()

    def sent(self) -> None:
        """An outbox has less to send."""
        self._save()

    # -- by hand ------------------------------------------------------------------------------------------------------

    def acknowledge(self, id: str, by: str, note: str, done: Callable[[Any, QueueError | None], None]) -> None:
        """``done`` when it is on disk."""
        self.standing = alerts.acknowledge(self.standing, id, by, note, self.clock.now_ms())
        alert = self.shown(alerts.find(self.standing, id))
        log.info("alert acknowledged", extra=values(alert=id, rule=alert["rule"], by=by))
        self._save(lambda error: done(None, error) if error else done(alert, None))

    def shown(self, alert: Alert) -> dict[str, Any]:
        return forms.shown(alert, self.clock.ahead_ms())

    def test_document(self, level: Level) -> dict[str, Any]:
        """A notice that means nothing."""
        now = self.clock.now_ms()
        fault = Fault("test", "", level, f"a test of the alerts of {self.node}: nothing is wrong")
        alert = Alert(
            id="test",
            rule=fault.rule,
            subject="",
            level=level,
            text=fault.text,
            opened_at=now,
            seen_at=now,
            worst=level,
        )
        if self.settings.log is not None:
            self._log(Told.TEST, alert)
        return forms.notice_document(Notice(Told.TEST, alert, now), self.node, self.clock.ahead_ms())

    @property
    def counts(self) -> Mapping[str, int]:
        return self.standing.counts
