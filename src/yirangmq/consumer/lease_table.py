"""Lease table of a consumer, and the queue interface that a consumer needs.

The table holds every lease from the moment it is taken until its end is durable at the broker. It determines when to
extend a lease, when a handler is overdue, and whether a handler's result still counts. Leases are extended each time
a third of them has passed, so that two extensions may fail. Times are seconds of a monotonic clock. Thread-safe.

The interface is a part of ``broker.queues``, embedded or over a connection."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from yirangmq.core.errors import QueueError
from yirangmq.core.message import Envelope

# -- queue interface ---------------------------------------------------------------------------------------------------

Results = list[QueueError | None]
"""Result of a batch operation: for each lease None on success, else the error."""


class Taken(Protocol):
    """One leased message, as returned by ``lease``."""

    @property
    def id(self) -> str: ...

    @property
    def queue(self) -> str: ...

    @property
    def lease_id(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def envelope(self) -> Envelope: ...

    @property
    def payload(self) -> bytes: ...

    @property
    def header(self) -> dict[str, Any]: ...

    @property
    def policy(self) -> dict[str, Any]: ...

    def value(self) -> Any: ...


class Queues(Protocol):
    """Queue operations that a consumer needs. Each may be called from any thread."""

    @property
    def consumer(self) -> str: ...

    def lease(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait: float = 0,
        lease_seconds: float | None = None,
        consumer: str | None = None,
    ) -> Sequence[Taken]: ...

    def ack_many(self, leases: Sequence[str]) -> Results: ...

    def nack_many(
        self, leases: Sequence[str], reason: str = ..., text: str = "", *, delay: float | None = None
    ) -> Results: ...

    def extend_many(self, leases: Sequence[str], seconds: float | None = None) -> Results: ...

    def release_many(self, leases: Sequence[str]) -> Results: ...

    def consumer_beat(self, values: Mapping[str, Any]) -> str: ...

    def close(self) -> None: ...


# -- lease table -------------------------------------------------------------------------------------------------------

PARTS = 3
"""Divisor of the lease: it is extended each time a third has passed, so that two extensions may fail."""
SHORTEST_BEAT = 0.005
"""Minimum interval between extensions of a lease, in seconds. A lease that needs a shorter one is too short to be
useful."""


class Stage(Enum):
    """Stage of a lease in the consumer."""

    WAITING = "waiting"
    """Leased, not yet in a handler."""
    WORKING = "working"
    OVER = "over"
    """The outcome is decided and being sent to the broker. Later results of the handler are ignored."""


class Holding:
    """One lease of the consumer. Only ``Holdings`` changes it."""

    __slots__ = ("beat_at", "deadline", "good_until", "lost", "span", "stage", "taken", "was_cut")

    def __init__(self, taken: Taken, span: float, asked_at: float) -> None:
        self.taken = taken
        self.span = span
        self.good_until = asked_at + span
        self.beat_at = asked_at + max(span / PARTS, SHORTEST_BEAT)
        self.deadline: float | None = None
        self.stage = Stage.WAITING
        self.lost = False
        self.was_cut = False

    @property
    def lease(self) -> str:
        return self.taken.lease_id

    @property
    def is_forsaken(self) -> bool:
        """True if the handler's result is ignored."""
        return self.lost or self.was_cut


class Holdings:
    """Lease table of one run. Thread-safe.

    ``hurry`` is called when an entry needs attention before the time returned by ``plan``; ``emptied`` when the last
    lease is removed."""

    def __init__(self, hurry: Callable[[], None], emptied: Callable[[], None]) -> None:
        self._hurry = hurry
        self._emptied = emptied
        self._guard = threading.Lock()
        self._held: dict[str, Holding] = {}
        self._planned = 0.0
        """Time of the heartbeat's next check."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, taken: Sequence[Taken], span: float, asked_at: float) -> list[Holding]:
        made = [Holding(one, span, asked_at) for one in taken]
        with self._guard:
            self._held.update((holding.lease, holding) for holding in made)
            is_urgent = bool(made) and made[0].beat_at < self._planned
        if is_urgent:
            self._hurry()
        return made

    def start(self, holding: Holding, deadline: float | None) -> bool:
        """Mark a lease as entering a handler. Return False if it was decided or lost meanwhile."""
        with self._guard:
            if holding.stage is not Stage.WAITING or holding.lost:
                return False
            holding.stage = Stage.WORKING
            holding.deadline = deadline
            is_urgent = deadline is not None and deadline < self._planned
        if is_urgent:
            self._hurry()
        return True

    def finish(self, holding: Holding) -> bool:
        """Note that the handler has ended. Return False if its result no longer counts."""
        with self._guard:
            if holding.stage is not Stage.WORKING or holding.lost:
                return False
            holding.stage = Stage.OVER
            return True

    def drop(self, holdings: Iterable[Holding]) -> None:
        """Remove settled or lost leases."""
        with self._guard:
            for holding in holdings:
                self._held.pop(holding.lease, None)
            is_empty = not self._held
        if is_empty:
            self._emptied()

    def withdraw(self, queue: str) -> list[Holding]:
        """Take back the leases of a queue that no handler has received, so that they can be released."""
        with self._guard:
            found = [one for one in self._held.values() if one.stage is Stage.WAITING and one.taken.queue == queue]
            for holding in found:
                holding.stage = Stage.OVER
            return found

    def cut(self, now: float | None = None) -> list[Holding]:
        """Cut off handlers that are overdue at ``now``, or all of them (None). Their results are ignored."""
        with self._guard:
            found = [one for one in self._held.values() if one.stage is Stage.WORKING and _is_overdue(one, now)]
            for holding in found:
                holding.stage, holding.was_cut = Stage.OVER, True
            return found

    def count(self, stage: Stage) -> int:
        with self._guard:
            return sum(holding.stage is stage for holding in self._held.values())

    # -- heartbeat ------------------------------------------------------------------------------------------------

    def due(self, now: float) -> list[Holding]:
        """Return the leases to extend. If one is due, those that are due soon are included, so that one call extends
        all."""
        with self._guard:
            live = [one for one in self._held.values() if one.stage is not Stage.OVER]
        if not any(one.beat_at <= now for one in live):
            return []
        return [one for one in live if one.beat_at <= now + one.span / PARTS / 2]

    def plan(self, latest: float) -> float:
        """Return the time of the next extension or deadline, at most ``latest``."""
        with self._guard:
            live = [one for one in self._held.values() if one.stage is not Stage.OVER]
            beats = [one.beat_at for one in live]
            deadlines = [one.deadline for one in live if one.deadline is not None]
            self._planned = min([latest, *beats, *deadlines])
            return self._planned

    def extended(self, holdings: Iterable[Holding], asked_at: float) -> None:
        with self._guard:
            for holding in holdings:
                holding.good_until = asked_at + holding.span
                holding.beat_at = asked_at + max(holding.span / PARTS, SHORTEST_BEAT)

    def put_off(self, holdings: Iterable[Holding], until: float) -> None:
        """Schedule a retry of a failed extension."""
        with self._guard:
            for holding in holdings:
                holding.beat_at = until

    def lose(self, holding: Holding) -> bool:
        """Mark a lease as lost, as reported by the broker. Return False if the consumer itself has settled it
        meanwhile."""
        with self._guard:
            if holding.stage is Stage.OVER:
                return False
            holding.lost = True
            is_ours = self._held.pop(holding.lease, None) is not None
            is_empty = not self._held
        if is_ours and is_empty:
            self._emptied()
        return is_ours


def _is_overdue(holding: Holding, now: float | None) -> bool:
    return now is None or (holding.deadline is not None and holding.deadline <= now)
