"""Alert monitor: periodic evaluation of the rules, the file of open alerts, alert documents and methods.

Each evaluation reads the facts, applies the rules (``core.alert_rules``, ``core.alerts``) and saves changes. Outboxes
send after the save, so that a notice that was sent is known after a crash. If the save fails, notices are still sent.
A separate thread writes the file; nothing here waits for the disk or for a sink.

The file is replaced as a whole and durable when ``save`` returns. A file that cannot be read is renamed. Sinks,
protocols and the file share the documents of alerts and notices (docs/alerts.md)."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yirangmq.admin.registry import Done, Given, MethodArguments, MethodRegistry, read_arguments
from yirangmq.alerts.outbox import Outbox
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.clock import SteadyClock
from yirangmq.core import alerts
from yirangmq.core.alert_rules import RULES, RuleSetting, ServerFacts, faults
from yirangmq.core.alert_settings import LOG, AlertSettings
from yirangmq.core.alerts import COUNTER_NAMES, Alert, AlertState, Fault, Level, Notice, NoticeKind
from yirangmq.core.errors import NotFound, QueueError, StoreDamaged, StoreError
from yirangmq.core.validation import check_id
from yirangmq.format.envelope import iso
from yirangmq.format.json_codec import dumps, loads
from yirangmq.fsio.atomic_file import replace_file, sync_folder
from yirangmq.fsio.permissions import make_folders
from yirangmq.observe.logs import log, values

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import MetricValue

VERSION = 1
_PLAIN = (
    "id", "rule", "subject", "text", "opened_at", "seen_at", "is_there", "returns", "told_at", "notices",
    "is_withheld", "acked_at", "acked_by", "note", "closed_at",
)  # fmt: skip


# -- documents for sinks and protocols ---------------------------------------------------------------------------------


def alert_document(alert: Alert, ahead: int = 0) -> dict[str, Any]:
    """Return the document of an alert. ``ahead``: lead of the wall clock over the alert's clock, in ms."""

    def at(moment: int | None) -> str | None:
        return None if moment is None else iso(moment + ahead)

    return {
        "id": alert.id,
        "rule": alert.rule,
        "subject": alert.subject or None,
        "level": alert.level.value,
        "state": state_of(alert),
        "text": alert.text,
        "openedAt": at(alert.opened_at),
        "seenAt": at(alert.seen_at),
        "closedAt": at(alert.closed_at),
        "returns": alert.returns,
        "notices": alert.notices,
        "withheld": alert.is_withheld,
        "acknowledgedAt": at(alert.acked_at),
        "acknowledgedBy": alert.acked_by or None,
        "note": alert.note or None,
    }


def state_of(alert: Alert) -> str:
    """Return ``open``, ``settling`` (the fault is gone, but may return) or ``over``."""
    if alert.closed_at is not None:
        return "over"
    return "open" if alert.is_there else "settling"


def notice_document(notified: Notice, node: str, ahead: int = 0) -> dict[str, Any]:
    """Return the document of a notice, which every sink receives."""
    return {
        "notice": notified.notified.value,
        "at": iso(notified.at + ahead),
        "node": node,
        "alert": alert_document(notified.alert, ahead),
    }


# -- documents for the file --------------------------------------------------------------------------------------------


def state_document(alert_state: AlertState) -> dict[str, Any]:
    return {
        "version": VERSION,
        "last": alert_state.last,
        "told": list(alert_state.notified),
        "counts": dict(alert_state.counts),
        "open": [_alert_record(alert) for alert in alert_state.open.values()],
        "closed": [_alert_record(alert) for alert in alert_state.closed],
    }


def _alert_record(alert: Alert) -> dict[str, Any]:
    plain = {name: getattr(alert, name) for name in _PLAIN}
    return {**plain, "level": alert.level.value, "worst": alert.worst.value}


def read(given: Any) -> AlertState:
    """Parse the document that ``state_document`` builds. Raises ``StoreDamaged`` if it is invalid."""
    try:
        if given["version"] != VERSION:
            raise StoreDamaged(f"alerts of version {given['version']}; this server knows {VERSION}")
        opened = [_read(one) for one in given["open"]]
        return AlertState(
            {alert.key: alert for alert in opened},
            tuple(_read(one) for one in given["closed"]),
            tuple(int(moment) for moment in given["told"]),
            int(given["last"]),
            {name: int(given["counts"].get(name, 0)) for name in COUNTER_NAMES},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreDamaged(f"the alerts cannot be read: {type(error).__name__} {error}") from None


def _read(given: Mapping[str, Any]) -> Alert:
    plain = {name: given[name] for name in _PLAIN}
    return Alert(**plain, level=Level(given["level"]), worst=Level(given["worst"]))


# -- file of open alerts -----------------------------------------------------------------------------------------------

NAME = "alerts.json"
QUARANTINE_NAME = "alerts.broken.json"


class AlertFile:
    """File of the open alerts. Its folder is created by the first ``save``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def load(self) -> Any | None:
        """Return the document, or None if there is no file. Raises ``BadInput`` or ``OSError`` if it cannot be read."""
        try:
            return loads(self.path.read_bytes())
        except FileNotFoundError:
            return None

    def quarantine(self) -> Path:
        """Quarantine a damaged file: rename it for inspection, and return the new path."""
        quarantine = self.path.with_name(QUARANTINE_NAME)
        self.path.replace(quarantine)
        return quarantine

    def save(self, document: dict[str, Any]) -> None:
        """Replace the file, and make it durable. Blocks, so it runs in the writer thread."""
        folder = self.path.parent
        is_new = not folder.exists()
        make_folders(folder)
        replace_file(self.path, dumps(document) + b"\n")
        if is_new:
            sync_folder(folder.parent)


# -- monitor -----------------------------------------------------------------------------------------------------------

LOGGED = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING, Level.CRITICAL: logging.ERROR}
SaveCallback = Callable[[QueueError | None], None]


class AlertMonitor:
    """Alert monitor: evaluates the rules periodically, from ``start`` to ``stop``. Loop thread only.

    ``facts`` is called at each evaluation with the time in ms."""

    def __init__(
        self,
        settings: AlertSettings,
        file: AlertFile,
        node: str,
        facts: Callable[[int], ServerFacts],
        clock: SteadyClock,
    ) -> None:
        self.settings = settings
        self.node = node
        self.clock = clock
        self.alert_state = AlertState()
        self.outboxes: dict[str, Outbox] = {}
        self.logged = 0
        self._file = file
        self._facts = facts
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="alerts")
        self._alarm: asyncio.TimerHandle | None = None
        self._is_saving = self._is_dirty = False
        self._waiting: list[SaveCallback] = []
        """Callbacks to run when the current state is on disk."""
        self._trouble = ""

    # -- life cycle -------------------------------------------------------------------------------------------------

    def add(self, outbox: Outbox) -> None:
        self.outboxes[outbox.sink.name] = outbox

    def start(self) -> None:
        """Load the open alerts and the unsent notices of the previous process, and start evaluating."""
        try:
            self._resume(self._file.load())
        except (OSError, QueueError) as error:
            where = ""
            with suppress(OSError):
                where = str(self._file.quarantine())
            log.error("alerts_load_failed", extra=values(error=str(error), moved_to=where))
        self._schedule()

    def _resume(self, document: Any) -> None:
        if document is None:
            return
        self.alert_state = alerts.after_restart(read(document), self.clock.now_ms())
        for name, notified in document.get("pending", ()):
            if name in self.outboxes:
                self.outboxes[name].put(notified)
                self.outboxes[name].wake()

    def stop(self) -> None:
        """Stop evaluating. The state is on disk on return, unless the write fails."""
        if self._alarm is not None:
            self._alarm.cancel()
        for outbox in self.outboxes.values():
            outbox.close()
        self._thread.shutdown(wait=True)
        if self._is_dirty or self._is_saving:
            with suppress(OSError):
                self._file.save(self._document())

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        self._alarm = self._loop.call_later(self.settings.every, self._tick)

    def _tick(self) -> None:
        self._schedule()
        try:
            self.evaluate()
        except Exception:
            log.exception("alert_evaluation_failed")

    def evaluate(self) -> None:
        now = self.clock.now_ms()
        found = faults(self._facts(now), self.settings.rules)
        before = self.alert_state
        self.alert_state, notices = alerts.evaluate(before, found, self.settings.pace, now)
        for notice in notices:
            self._notify(notice)
        if notices or alerts.needs_save(before, self.alert_state):
            self._save()

    def _notify(self, notice: Notice) -> None:
        alert, notified = notice.alert, notice_document(notice, self.node, self.clock.ahead_ms())
        if self.settings.log is not None and alert.level.rank >= self.settings.log.rank:
            self._log(notified["notice"], alert)
        for outbox in self.outboxes.values():
            if outbox.sink.notice_filter.accepts(
                max(alert.level, alert.worst, key=lambda level: level.rank), alert.rule
            ):
                outbox.put(notified)

    def _log(self, what: str, alert: Alert) -> None:
        self.logged += 1
        level = logging.INFO if what == NoticeKind.RECOVERED else LOGGED[alert.level]
        about = values(
            notice=what, alert=alert.id, rule=alert.rule, subject=alert.subject, severity=alert.level, text=alert.text
        )
        log.log(level, "alert_notified", extra=about)

    # -- on disk ------------------------------------------------------------------------------------------------------

    def _document(self) -> dict[str, Any]:
        """Return the document of the file.

        Its times are wall-clock times, because the next process starts with them."""
        pending = [[name, notified] for name, outbox in self.outboxes.items() for notified in outbox.pending]
        return {**state_document(alerts.shift_times(self.alert_state, self.clock.ahead_ms())), "pending": pending}

    def _save(self, then: SaveCallback | None = None) -> None:
        """Save the state in the writer thread. Outboxes send afterwards, also if the save fails.

        So a notice that was sent is known after a crash."""
        if then is not None:
            self._waiting.append(then)
        if self._is_saving:
            self._is_dirty = True
            return
        self._is_saving, self._is_dirty = True, False
        waiting, self._waiting = self._waiting, []
        document = self._document()
        with suppress(RuntimeError):  # the executor is shut down
            work = self._loop.run_in_executor(self._thread, self._file.save, document)
            work.add_done_callback(lambda done: self._saved(done, waiting))

    def _saved(self, done: "asyncio.Future[None]", waiting: list[SaveCallback]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        trouble = "" if error is None else str(error)
        if trouble and trouble != self._trouble:
            log.error("alerts_save_failed", extra=values(error=trouble))
        self._trouble = trouble
        self._is_saving = False
        for then in waiting:
            then(StoreError(f"the alerts cannot be kept: {trouble}") if trouble else None)
        for outbox in self.outboxes.values():
            outbox.wake()
        if self._is_dirty or self._waiting:
            self._save()

    def sent(self) -> None:
        """Save the state: an outbox has removed a notice."""
        self._save()

    # -- operator actions ---------------------------------------------------------------------------------------------

    def acknowledge(self, id: str, by: str, note: str, done: Callable[[Any, QueueError | None], None]) -> None:
        """Acknowledge an alert. ``done`` is called when that is on disk, or the save failed."""
        self.alert_state = alerts.acknowledge(self.alert_state, id, by, note, self.clock.now_ms())
        alert = self.alert_document(alerts.find(self.alert_state, id))
        log.info("alert_acknowledged", extra=values(alert=id, rule=alert["rule"], by=by))
        self._save(lambda error: done(None, error) if error else done(alert, None))

    def alert_document(self, alert: Alert) -> dict[str, Any]:
        return alert_document(alert, self.clock.ahead_ms())

    def test_document(self, level: Level) -> dict[str, Any]:
        """Build a test notice, and log it if the log is a sink."""
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
            self._log(NoticeKind.TEST, alert)
        return notice_document(Notice(NoticeKind.TEST, alert, now), self.node, self.clock.ahead_ms())

    @property
    def counts(self) -> Mapping[str, int]:
        return self.alert_state.counts


# -- methods -----------------------------------------------------------------------------------------------------------

STATES = ("open", "over", "all")
MAX_NAME_CHARS, MAX_NOTE_CHARS = 100, 500


class AlertMethods:
    """Server methods of alerts, and their figures for status and metrics."""

    def __init__(self, monitor: AlertMonitor) -> None:
        self._monitor = monitor
        self._tests: set[asyncio.Task[None]] = set()

    def register(self, methods: MethodRegistry) -> None:
        """Register the methods."""
        methods.add_entry("alerts", self._list)
        methods.add_entry("alert_show", self._show)
        methods.add_entry("alert_ack", self._ack)
        methods.add_entry("alert_test", self._test)
        methods.add_entry("alert_rules", self._rules)

    def _list(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """List alerts: open ones first, then by level, highest first, then the latest first."""
        state = read_arguments(given, lambda values: values.choice("state", "open", STATES))
        alert_state = self._monitor.alert_state
        found = [
            *(alert_state.open.values() if state != "over" else ()),
            *(alert_state.closed if state != "open" else ()),
        ]
        found.sort(key=lambda one: (one.closed_at is not None, -one.level.rank, -one.opened_at))
        done(
            {
                "enabled": self._monitor.settings.is_on,
                "alerts": [self._monitor.alert_document(one) for one in found],
                "counts": dict(alert_state.counts),
                "sinks": self._sinks(),
            },
            None,
        )

    def _sinks(self) -> list[dict[str, Any]]:
        level = self._monitor.settings.log
        rows = [] if level is None else [_log_row(level, self._monitor.logged)]
        return rows + [outbox.describe() for outbox in self._monitor.outboxes.values()]

    def _show(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        id = read_arguments(given, _id)
        done(self._monitor.alert_document(alerts.find(self._monitor.alert_state, id)), None)

    def _ack(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        id, by, note = read_arguments(
            given,
            lambda values: (_id(values), _line(values, "by", MAX_NAME_CHARS), _line(values, "note", MAX_NOTE_CHARS)),
        )
        self._monitor.acknowledge(id, by, note, done)

    def _test(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Send a test notice to all sinks or to one, and return the results. Levels and rules of sinks are ignored."""
        level, name = read_arguments(
            given, lambda values: (values.choice("level", Level.INFO, tuple(Level)), values.text("sink", "", 100))
        )
        monitor = self._monitor
        if name and name != LOG and name not in monitor.outboxes:
            raise NotFound(f"there is no sink {name!r}; known: {', '.join([LOG, *monitor.outboxes])}", field="sink")
        document = monitor.test_document(Level(level))
        chosen = [outbox for outbox in monitor.outboxes.values() if name in ("", outbox.sink.name)]

        async def test() -> None:
            outcomes = await asyncio.gather(*(outbox.attempt(document) for outbox in chosen))
            rows = [_tested(LOG, "", 0.0)] if monitor.settings.log is not None and name in ("", LOG) else []
            rows += [_tested(box.sink.name, *outcome) for box, outcome in zip(chosen, outcomes, strict=True)]
            done({"sinks": rows}, None)

        task = asyncio.get_running_loop().create_task(test())
        self._tests.add(task)
        task.add_done_callback(self._tests.discard)

    def _rules(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        read_arguments(given, lambda values: None)
        settings, plain = self._monitor.settings, RuleSetting()
        rows = []
        for name, rule in RULES.items():
            chosen = settings.rules.get(name, plain)
            rows.append(
                {
                    "rule": name,
                    "enabled": settings.is_on and chosen.is_on,
                    "level": chosen.level.value if chosen.level is not None else rule.levels,
                    "limit": rule.limit if chosen.limit is None else chosen.limit,
                    "unit": rule.unit or None,
                    "queues": dict(chosen.queues),
                    "about": rule.about,
                }
            )
        done(rows, None)

    # -- for status and metrics -----------------------------------------------------------------------------------

    def facts(self) -> dict[str, int]:
        found = self._monitor.alert_state.open.values()
        return {
            "open": len(found),
            "critical": sum(one.level is Level.CRITICAL for one in found),
            "unacknowledged": sum(one.acked_at is None for one in found),
        }

    def samples(self) -> "dict[str, MetricValue]":
        opened = Counter(one.level for one in self._monitor.alert_state.open.values())
        boxes = self._monitor.outboxes.values()
        return {
            "yirangmq_alerts_open": [({"level": level.value}, opened[level]) for level in Level],
            "yirangmq_alerts_total": [({"event": name}, n) for name, n in self._monitor.alert_state.counts.items()],
            "yirangmq_alert_notices_total": [
                ({"sink": box.sink.name, "outcome": name}, count) for box in boxes for name, count in _counters(box)
            ],
            "yirangmq_alert_notices_pending": [({"sink": box.sink.name}, len(box.pending)) for box in boxes],
        }


def _counters(box: Outbox) -> tuple[tuple[str, int], ...]:
    return ("sent", box.sent), ("failed", box.failed), ("lost", box.lost)


def _log_row(level: Level, logged: int) -> dict[str, Any]:
    quiet = {"pending": 0, "sent": logged, "failed": 0, "lost": 0, "lastError": None, "lastAt": None}
    return {"sink": LOG, "kind": LOG, "level": level.value, "rules": [], **quiet}


def _tested(name: str, trouble: str, seconds: float) -> dict[str, Any]:
    return {"sink": name, "ok": not trouble, "seconds": round(seconds, 3), "error": trouble or None}


def _id(values: MethodArguments) -> str:
    return check_id(values.take("id", None), "id")


def _line(values: MethodArguments, name: str, most: int) -> str:
    """Read a text, and collapse white space so that it is one line."""
    return " ".join(values.text(name, "", most).split())
