"""Lease table of a consumer, and the queue interface that a consumer needs.

The table holds every lease from the moment it is taken until its end is durable at the broker. It says when to extend a
lease, when a handler is overdue, and whether a handler's result still counts. Leases are extended each time a third of
them has passed, so that two extensions may fail. Times are seconds of a monotonic clock. Thread-safe.

The interface is a part of ``broker.queues``, embedded or over a connection."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from yirangmq.core.errors import QueueError
from yirangmq.core.message import Envelope

# -- queue interface ---------------------------------------------------------------------------------------------------

Results = list[QueueError | None]
"""For each lease None, or why not."""


class Taken(Protocol):
    """One leased message, as ``lease`` returns it."""

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
    """Each method may be called from any thread."""

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
"""A lease is extended each time a third of it has passed, so that two extensions may fail."""
SHORTEST_BEAT = 0.005
"""Seconds; a lease so short that it wants more than that is not worth having."""


class Stage(Enum):
    WAITING = "waiting"
    """Leased, not yet in a handler."""
    WORKING = "working"
    OVER = "over"
    """Decided: its end is on the way to the broker. What its handler says from now on is not heard."""


class Holding:
    """One lease. Changed by ``Holdings`` only."""

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
        """What its handler says is not heard any more."""
        return self.lost or self.was_cut


class Holdings:
    """Safe to share between threads. ``hurry`` is called when something wants to be looked at before the time
    planned for it; ``emptied`` when the last lease has left."""

    def __init__(self, hurry: Callable[[], None], emptied: Callable[[], None]) -> None:
        self._hurry = hurry
        self._emptied = emptied
        self._guard = threading.Lock()
        self._held: dict[str, Holding] = {}
        self._planned = 0.0
        """When the heartbeat looks next."""

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
        """It goes into a handler now; False if it is not ours any more."""
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
        """Its handler has ended; False if what it says no longer counts."""
        with self._guard:
            if holding.stage is not Stage.WORKING or holding.lost:
                return False
            holding.stage = Stage.OVER
            return True

    def drop(self, holdings: Iterable[Holding]) -> None:
        """Settled or lost: nothing more is to be said about them."""
        with self._guard:
            for holding in holdings:
                self._held.pop(holding.lease, None)
            is_empty = not self._held
        if is_empty:
            self._emptied()

    def withdraw(self, queue: str) -> list[Holding]:
        """Those of a queue that no handler has seen; they can be released now."""
        with self._guard:
            found = [one for one in self._held.values() if one.stage is Stage.WAITING and one.taken.queue == queue]
            for holding in found:
                holding.stage = Stage.OVER
            return found

    def cut(self, now: float | None = None) -> list[Holding]:
        """Those in a handler for too long at ``now``, or all of them (None). Their handlers are not heard any more."""
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
        """Leases to extend: if one wants it now, also those that would want it soon, so that one call serves all."""
        with self._guard:
            live = [one for one in self._held.values() if one.stage is not Stage.OVER]
        if not any(one.beat_at <= now for one in live):
            return []
        return [one for one in live if one.beat_at <= now + one.span / PARTS / 2]

    def plan(self, latest: float) -> float:
        """When something here wants to be looked at next, at the latest then."""
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
        """They could not be extended; try again then."""
        with self._guard:
            for holding in holdings:
                holding.beat_at = until

    def lose(self, holding: Holding) -> bool:
        """The broker says that the lease is over. False if it was settled meanwhile, and that is why."""
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
