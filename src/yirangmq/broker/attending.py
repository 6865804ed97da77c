"""Who the consumers of each queue are, kept beside its messages where the strategy goes by names: one that was there
before a restart is one of them after it.

Knows: notes, names. Does not know: connections, strategies."""

from collections.abc import Callable, Mapping

from yirangmq.core import dispatch as rules
from yirangmq.core import validation
from yirangmq.core.dispatch import Attendance
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Transaction
from yirangmq.format.json_codec import dumps, loads

FOLDER = "dispatch/"
"""Where the notes stand, one for each queue."""


class Attending:
    """Used by one thread at a time, the one that commits."""

    def __init__(self) -> None:
        self._known: dict[str, Attendance] = {}
        self._noted: dict[str, tuple[dict[str, int], list[str]]] = {}

    def of(self, transaction: Transaction, queue: str, now: int) -> Attendance:
        if queue not in self._known:
            found = self._known[queue] = _read(transaction.note(FOLDER + queue), now)
            self._noted[queue] = dict(found.registered), sorted(found.seen)
        return self._known[queue]

    def forget(self, queue: str) -> None:
        """The queue is gone."""
        self._known.pop(queue, None)
        self._noted.pop(queue, None)

    def doubt(self) -> None:
        """A commit failed: what was noted in it is noted again."""
        self._noted.clear()

    def look(
        self,
        transaction: Transaction,
        queue: str,
        here: Mapping[str, bool],
        now: int,
        grace_ms: int,
        *,
        keeps_all: bool,
    ) -> Attendance:
        """Who waits now; those away for too long are forgotten."""
        looked = rules.looked(self.of(transaction, queue, now), here, now, keeps_all=keeps_all)
        return self._keep(transaction, queue, rules.forgotten(looked, now, grace_ms), keeps_all)

    def asked(self, transaction: Transaction, queue: str, who: str, now: int, *, keeps_all: bool) -> Attendance:
        return self._keep(transaction, queue, rules.asked(self.of(transaction, queue, now), who, now), keeps_all)

    def register(self, transaction: Transaction, queue: str, who: str, now: int) -> bool:
        """False: it was registered already."""
        return self._change(transaction, queue, now, lambda before: rules.registered(before, who, now))

    def deregister(self, transaction: Transaction, queue: str, who: str, now: int) -> bool:
        """False: nobody of that name was."""
        return self._change(transaction, queue, now, lambda before: rules.deregistered(before, who))

    def _change(self, transaction: Transaction, queue: str, now: int, turn: Callable[[Attendance], Attendance]) -> bool:
        before = self.of(transaction, queue, now)
        after = self._keep(transaction, queue, turn(before), True)
        return after.registered != before.registered

    def _keep(self, transaction: Transaction, queue: str, after: Attendance, is_lasting: bool) -> Attendance:
        """A note is written when somebody came or went for good, not each time that somebody is seen."""
        self._known[queue] = after
        passing = sorted({*after.here, *after.seen}) if is_lasting else []
        noted = dict(after.registered), passing
        if noted != self._noted.get(queue):
            text = dumps({"registered": noted[0], "seen": noted[1]}).decode() if any(noted) else None
            transaction.set_note(FOLDER + queue, text)
            self._noted[queue] = noted
        return after


def _read(text: str | None, now: int) -> Attendance:
    """A note that cannot be read, edited by hand, is as none."""
    try:
        given = loads(text.encode()) if text else {}
        registered = {
            validation.check_consumer(name): int(at) for name, at in dict(given.get("registered", {})).items()
        }
        seen = {validation.check_consumer(name): now for name in list(given.get("seen", []))}
    except (BadInput, ValueError, TypeError, AttributeError):
        return Attendance()
    return Attendance(registered, {}, seen)
