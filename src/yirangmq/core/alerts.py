"""Alert life cycle: opened, worse, reminder, recovered; and the limit of notices per hour.

``evaluate`` compares the present faults with the open alerts and returns the notices to send. Each fault, a rule and a
subject, has one alert. The same values give the same notices.

An alert is over when its fault has been absent for ``settle`` ms. The time doubles with each return of the fault, up to
eight times ``settle``. A fifth of an hour's notices is reserved for CRITICAL alerts; while notices are withheld, one
``storm`` alert says how many.

``core.alert_rules`` finds the faults, the package ``alerts`` sends the notices. Pure: time is an argument."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from yirangmq.core.errors import NotFound, WrongState

HOUR_MS = 3_600_000
STORM = "storm"
"""Rule of the alert that reports withheld alerts. Its notices are sent even if the limit per hour is reached."""
MAX_RETURNS = 3
"""Returns of a fault that double ``NoticePacing.settle``: three, up to eight times as long."""
CRITICAL_SHARE_DIVISOR = 5
"""Divisor of the notices per hour that are reserved for CRITICAL alerts: a fifth."""
MAX_OPEN_ALERTS = 1_000
MAX_CLOSED_ALERTS = 200
"""Closed alerts that are still shown."""


class Level(StrEnum):
    INFO = "INFO"
    WARNING = "WARNING"
    CRITICAL = "CRITICAL"

    @property
    def rank(self) -> int:
        return RANKS[self]


RANKS = {level: number for number, level in enumerate(Level)}


class Fault(NamedTuple):
    """Fault: a condition that a rule finds now. ``subject``: the queue or the switch concerned; "" is the server."""

    rule: str
    subject: str
    level: Level
    text: str

    @property
    def key(self) -> str:
        return key_of(self.rule, self.subject)


def key_of(rule: str, subject: str) -> str:
    return f"{rule}/{subject}" if subject else rule


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticePacing:
    """Pacing of notices. ``settle``: time in ms for which a fault must be absent before its alert closes. ``remind``:
    interval in ms of reminders of an open alert that is not acknowledged; 0: none. ``most``: notices per hour."""

    settle: int = 60_000
    remind: int = HOUR_MS
    most: int = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    id: str
    rule: str
    subject: str
    level: Level
    text: str
    opened_at: int
    seen_at: int
    """Instant at which the fault was last present."""
    is_there: bool = True
    returns: int = 0
    """Number of times that the fault disappeared and came back."""
    worst: Level = Level.INFO
    """Highest level for which a notice was sent."""
    told_at: int | None = None
    """Instant of the latest notice; None: none yet."""
    notices: int = 0
    is_withheld: bool = False
    """A notice is due, but the limit per hour is reached."""
    acked_at: int | None = None
    acked_by: str = ""
    note: str = ""
    closed_at: int | None = None

    @property
    def key(self) -> str:
        return key_of(self.rule, self.subject)


class NoticeKind(StrEnum):
    """Kind of a notice."""

    OPENED = "opened"
    WORSE = "worse"
    REMINDER = "reminder"
    RECOVERED = "recovered"
    TEST = "test"


class Notice(NamedTuple):
    notified: NoticeKind
    alert: Alert
    at: int


COUNTER_NAMES = ("opened", "worse", "reminder", "recovered", "returned", "withheld", "unlisted", "acknowledged")


@dataclass(frozen=True, slots=True)
class AlertState:
    """State of all alerts, as it is kept between two evaluations. ``notified``: instants of the notices within the last
    hour that count towards the limit."""

    open: Mapping[str, Alert] = field(default_factory=dict)
    """Open alerts by key, in the order in which they were opened."""
    closed: tuple[Alert, ...] = ()
    notified: tuple[int, ...] = ()
    last: int = 0
    """Number of the latest alert."""
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTER_NAMES, 0))


def evaluate(
    alert_state: AlertState, faults: Iterable[Fault], pace: NoticePacing, now: int
) -> tuple[AlertState, list[Notice]]:
    """Return the state after these faults, and no others, were found, and the notices to send."""
    return _Evaluation(alert_state, pace, now).over(faults)


def acknowledge(alert_state: AlertState, id: str, by: str, note: str, now: int) -> AlertState:
    """Acknowledge an alert: it gets no more reminders unless it gets worse. Idempotent. Raises ``WrongState`` if the
    alert is closed."""
    alert = find(alert_state, id)
    if alert.closed_at is not None:
        raise WrongState(f"alert {id} is over", field="id")
    if alert.acked_at is not None:
        return alert_state
    acked = replace(alert, acked_at=now, acked_by=by, note=note)
    counts = {**alert_state.counts, "acknowledged": alert_state.counts["acknowledged"] + 1}
    return replace(alert_state, open={**alert_state.open, alert.key: acked}, counts=counts)


def find(alert_state: AlertState, id: str) -> Alert:
    for alert in (*alert_state.open.values(), *alert_state.closed):
        if alert.id == id:
            return alert
    raise NotFound(f"there is no alert {id!r}", field="id")


def shift_times(alert_state: AlertState, by: int, latest: int | None = None) -> AlertState:
    """Return the state with all instants moved by ``by`` ms, to a clock that is ahead by that; no instant is later than
    ``latest``."""

    def at(moment: int | None) -> int | None:
        if moment is None:
            return None
        return moment + by if latest is None else min(moment + by, latest)

    def alert(one: Alert) -> Alert:
        return replace(
            one,
            opened_at=at(one.opened_at) or 0,
            seen_at=at(one.seen_at) or 0,
            told_at=at(one.told_at),
            acked_at=at(one.acked_at),
            closed_at=at(one.closed_at),
        )

    return replace(
        alert_state,
        open={key: alert(one) for key, one in alert_state.open.items()},
        closed=tuple(map(alert, alert_state.closed)),
        notified=tuple(at(moment) or 0 for moment in alert_state.notified),
    )


def after_restart(alert_state: AlertState, now: int) -> AlertState:
    """Return the state after a restart: faults that were present count as present until now, and no instant is in the
    future."""
    known = shift_times(alert_state, 0, now)
    return replace(
        known,
        open={key: replace(one, seen_at=now) if one.is_there else one for key, one in known.open.items()},
    )


def needs_save(before: AlertState, after: AlertState) -> bool:
    """Return True if the state file must be rewritten: anything but ``seen_at`` or ``text`` of open alerts changed."""
    if before.counts != after.counts or before.last != after.last or before.notified != after.notified:
        return True
    return list(map(_without_volatile, before.open.values())) != list(map(_without_volatile, after.open.values()))


def _without_volatile(alert: Alert) -> Alert:
    return replace(alert, seen_at=0, text="")


class _Evaluation:
    """One evaluation of the faults. The state before it is not modified."""

    def __init__(self, alert_state: AlertState, pace: NoticePacing, now: int) -> None:
        self._pace = pace
        self._now = now
        self._before = alert_state
        self._open = dict(alert_state.open)
        self._closed = list(alert_state.closed)
        self._notified = [moment for moment in alert_state.notified if moment > now - HOUR_MS]
        self._last = alert_state.last
        self._counts = dict(alert_state.counts)
        self._notices: list[Notice] = []

    def over(self, faults: Iterable[Fault]) -> tuple[AlertState, list[Notice]]:
        seen = _worst_of_each(faults)
        for fault in sorted(seen.values(), key=lambda one: -one.level.rank):
            self._fault_present(fault)
        for key, alert in list(self._open.items()):
            if key not in seen and key != STORM:
                self._fault_absent(alert)
        self._storm()
        after = AlertState(
            self._open, tuple(self._closed[-MAX_CLOSED_ALERTS:]), tuple(self._notified), self._last, self._counts
        )
        return (self._before if after == self._before else after), self._notices

    # -- a fault that is present ----------------------------------------------------------------------------------

    def _fault_present(self, fault: Fault) -> None:
        known = self._open.get(fault.key)
        if known is None:
            if len(self._open) >= MAX_OPEN_ALERTS and fault.rule != STORM:
                self._counts["unlisted"] += 1
                return
            alert = self._new(fault)
        else:
            came_back = not known.is_there
            self._counts["returned"] += came_back
            alert = replace(
                known,
                level=fault.level,
                text=fault.text,
                seen_at=self._now,
                is_there=True,
                returns=known.returns + came_back,
            )
        self._open[fault.key] = self._notify(alert)

    def _new(self, fault: Fault) -> Alert:
        self._last += 1
        self._counts["opened"] += 1
        return Alert(
            id=str(self._last),
            rule=fault.rule,
            subject=fault.subject,
            level=fault.level,
            text=fault.text,
            opened_at=self._now,
            seen_at=self._now,
            returns=self._returns(fault.key),
        )

    def _returns(self, key: str) -> int:
        """Return the number of returns: one more than an alert of this key that closed recently, else 0."""
        recent = self._now - (self._pace.settle << (MAX_RETURNS + 1))
        for alert in reversed(self._closed):
            if alert.key == key and (alert.closed_at or 0) >= recent:
                return alert.returns + 1
        return 0

    def _notify(self, alert: Alert) -> Alert:
        notified = self._notice_due(alert)
        if notified is None:
            return replace(alert, is_withheld=False) if alert.is_withheld else alert
        if alert.rule != STORM:
            if not self._within_notice_limit(alert.level):
                self._counts["withheld"] += not alert.is_withheld
                return replace(alert, is_withheld=True)
            self._notified.append(self._now)
        if notified is not NoticeKind.OPENED:
            self._counts[notified] += 1
        worst = max(alert.worst, alert.level, key=lambda level: level.rank)
        alert = replace(alert, told_at=self._now, notices=alert.notices + 1, is_withheld=False, worst=worst)
        if notified is NoticeKind.WORSE:
            alert = replace(alert, acked_at=None, acked_by="", note="")
        self._notices.append(Notice(notified, alert, self._now))
        return alert

    def _notice_due(self, alert: Alert) -> NoticeKind | None:
        if alert.told_at is None:
            return NoticeKind.OPENED
        if alert.level.rank > alert.worst.rank:
            return NoticeKind.WORSE
        is_due = self._pace.remind and self._now - alert.told_at >= self._pace.remind
        return NoticeKind.REMINDER if is_due and alert.acked_at is None else None

    def _within_notice_limit(self, level: Level) -> bool:
        reserved = 0 if level is Level.CRITICAL else self._pace.most // CRITICAL_SHARE_DIVISOR
        return len(self._notified) < self._pace.most - reserved

    # -- a fault that is absent -----------------------------------------------------------------------------------

    def _fault_absent(self, alert: Alert) -> None:
        settle_ms = self._pace.settle << min(alert.returns, MAX_RETURNS)
        if self._now - alert.seen_at < settle_ms:
            self._open[alert.key] = replace(alert, is_there=False, is_withheld=False)
            return
        del self._open[alert.key]
        over = replace(alert, is_there=False, is_withheld=False, closed_at=self._now)
        if alert.told_at is not None:  # no recovery notice for an alert without an opening notice
            over = replace(over, notices=over.notices + 1)
            self._notices.append(Notice(NoticeKind.RECOVERED, over, self._now))
        self._counts["recovered"] += 1
        self._closed.append(over)

    # -- storm ------------------------------------------------------------------------------------------------------

    def _storm(self) -> None:
        withheld = sum(alert.is_withheld for alert in self._open.values())
        if withheld:
            text = f"{withheld} alerts are withheld: more than {self._pace.most} notices in an hour"
            self._fault_present(Fault(STORM, "", Level.WARNING, text))
        elif STORM in self._open:
            self._fault_absent(self._open[STORM])


def _worst_of_each(faults: Iterable[Fault]) -> dict[str, Fault]:
    found: dict[str, Fault] = {}
    for fault in faults:
        known = found.get(fault.key)
        if known is None or fault.level.rank > known.level.rank:
            found[fault.key] = fault
    return found
