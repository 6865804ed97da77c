"""Alert life cycle: opened, worse, reminder, recovered; and the limit of notices per hour.

``look`` compares the present faults with the open alerts and returns the notices to send. Each fault, a rule and a
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
MOST_RETURNS = 3
"""Returns of a fault that double ``Pace.settle``: three, up to eight times as long."""
RESERVED = 5
"""Divisor of the notices per hour that are reserved for CRITICAL alerts: a fifth."""
MOST_OPEN = 1_000
KEPT = 200
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
    """Fault: a condition that a rule finds now. ``subject``: the queue concerned; "" is the server."""

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
class Pace:
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


class Told(StrEnum):
    """Kind of a notice."""

    OPENED = "opened"
    WORSE = "worse"
    REMINDER = "reminder"
    RECOVERED = "recovered"
    TEST = "test"


class Notice(NamedTuple):
    told: Told
    alert: Alert
    at: int


COUNTED = ("opened", "worse", "reminder", "recovered", "returned", "withheld", "unlisted", "acknowledged")


@dataclass(frozen=True, slots=True)
class Standing:
    """State of all alerts, as it is kept between two evaluations. ``told``: instants of the notices within the last
    hour that count towards the limit."""

    open: Mapping[str, Alert] = field(default_factory=dict)
    """Open alerts by key, in the order in which they were opened."""
    closed: tuple[Alert, ...] = ()
    told: tuple[int, ...] = ()
    last: int = 0
    """Number of the latest alert."""
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))


def look(standing: Standing, faults: Iterable[Fault], pace: Pace, now: int) -> tuple[Standing, list[Notice]]:
    """Return the state after these faults, and no others, were found, and the notices to send."""
    return _Look(standing, pace, now).over(faults)


def acknowledge(standing: Standing, id: str, by: str, note: str, now: int) -> Standing:
    """Acknowledge an alert: it gets no more reminders unless it gets worse. Idempotent. Raises ``WrongState`` if the
    alert is closed."""
    alert = find(standing, id)
    if alert.closed_at is not None:
        raise WrongState(f"alert {id} is over", field="id")
    if alert.acked_at is not None:
        return standing
    acked = replace(alert, acked_at=now, acked_by=by, note=note)
    counts = {**standing.counts, "acknowledged": standing.counts["acknowledged"] + 1}
    return replace(standing, open={**standing.open, alert.key: acked}, counts=counts)


def find(standing: Standing, id: str) -> Alert:
    for alert in (*standing.open.values(), *standing.closed):
        if alert.id == id:
            return alert
    raise NotFound(f"there is no alert {id!r}", field="id")


def shifted(standing: Standing, by: int, latest: int | None = None) -> Standing:
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
        standing,
        open={key: alert(one) for key, one in standing.open.items()},
        closed=tuple(map(alert, standing.closed)),
        told=tuple(at(moment) or 0 for moment in standing.told),
    )


def resumed(standing: Standing, now: int) -> Standing:
    """Return the state after a restart: faults that were present count as present until now, and no instant is in the
    future."""
    known = shifted(standing, 0, now)
    return replace(
        known,
        open={key: replace(one, seen_at=now) if one.is_there else one for key, one in known.open.items()},
    )


def is_news(before: Standing, after: Standing) -> bool:
    """Return True if the state file must be rewritten: anything but ``seen_at`` or ``text`` of open alerts changed."""
    if before.counts != after.counts or before.last != after.last or before.told != after.told:
        return True
    return list(map(_lasting, before.open.values())) != list(map(_lasting, after.open.values()))


def _lasting(alert: Alert) -> Alert:
    return replace(alert, seen_at=0, text="")


class _Look:
    """One evaluation of the faults. The state before it is not modified."""

    def __init__(self, standing: Standing, pace: Pace, now: int) -> None:
        self._pace = pace
        self._now = now
        self._before = standing
        self._open = dict(standing.open)
        self._closed = list(standing.closed)
        self._told = [moment for moment in standing.told if moment > now - HOUR_MS]
        self._last = standing.last
        self._counts = dict(standing.counts)
        self._notices: list[Notice] = []

    def over(self, faults: Iterable[Fault]) -> tuple[Standing, list[Notice]]:
        seen = _worst_of_each(faults)
        for fault in sorted(seen.values(), key=lambda one: -one.level.rank):
            self._is_there(fault)
        for key, alert in list(self._open.items()):
            if key not in seen and key != STORM:
                self._is_gone(alert)
        self._storm()
        after = Standing(self._open, tuple(self._closed[-KEPT:]), tuple(self._told), self._last, self._counts)
        return (self._before if after == self._before else after), self._notices

    # -- a fault that is present ----------------------------------------------------------------------------------

    def _is_there(self, fault: Fault) -> None:
        known = self._open.get(fault.key)
        if known is None:
            if len(self._open) >= MOST_OPEN and fault.rule != STORM:
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
        self._open[fault.key] = self._tell(alert)

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
        recent = self._now - (self._pace.settle << (MOST_RETURNS + 1))
        for alert in reversed(self._closed):
            if alert.key == key and (alert.closed_at or 0) >= recent:
                return alert.returns + 1
        return 0

    def _tell(self, alert: Alert) -> Alert:
        told = self._wanted(alert)
        if told is None:
            return replace(alert, is_withheld=False) if alert.is_withheld else alert
        if alert.rule != STORM:
            if not self._has_room(alert.level):
                self._counts["withheld"] += not alert.is_withheld
                return replace(alert, is_withheld=True)
            self._told.append(self._now)
        if told is not Told.OPENED:
            self._counts[told] += 1
        worst = max(alert.worst, alert.level, key=lambda level: level.rank)
        alert = replace(alert, told_at=self._now, notices=alert.notices + 1, is_withheld=False, worst=worst)
        if told is Told.WORSE:
            alert = replace(alert, acked_at=None, acked_by="", note="")
        self._notices.append(Notice(told, alert, self._now))
        return alert

    def _wanted(self, alert: Alert) -> Told | None:
        if alert.told_at is None:
            return Told.OPENED
        if alert.level.rank > alert.worst.rank:
            return Told.WORSE
        is_due = self._pace.remind and self._now - alert.told_at >= self._pace.remind
        return Told.REMINDER if is_due and alert.acked_at is None else None

    def _has_room(self, level: Level) -> bool:
        reserved = 0 if level is Level.CRITICAL else self._pace.most // RESERVED
        return len(self._told) < self._pace.most - reserved

    # -- a fault that is absent -----------------------------------------------------------------------------------

    def _is_gone(self, alert: Alert) -> None:
        patience = self._pace.settle << min(alert.returns, MOST_RETURNS)
        if self._now - alert.seen_at < patience:
            self._open[alert.key] = replace(alert, is_there=False, is_withheld=False)
            return
        del self._open[alert.key]
        over = replace(alert, is_there=False, is_withheld=False, closed_at=self._now)
        if alert.told_at is not None:  # no recovery notice for an alert without an opening notice
            over = replace(over, notices=over.notices + 1)
            self._notices.append(Notice(Told.RECOVERED, over, self._now))
        self._counts["recovered"] += 1
        self._closed.append(over)

    # -- storm ------------------------------------------------------------------------------------------------------

    def _storm(self) -> None:
        withheld = sum(alert.is_withheld for alert in self._open.values())
        if withheld:
            text = f"{withheld} alerts are withheld: more than {self._pace.most} notices in an hour"
            self._is_there(Fault(STORM, "", Level.WARNING, text))
        elif STORM in self._open:
            self._is_gone(self._open[STORM])


def _worst_of_each(faults: Iterable[Fault]) -> dict[str, Fault]:
    found: dict[str, Fault] = {}
    for fault in faults:
        known = found.get(fault.key)
        if known is None or fault.level.rank > known.level.rank:
            found[fault.key] = fault
    return found
