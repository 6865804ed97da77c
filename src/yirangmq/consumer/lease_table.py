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
from yirangmq.format.delivery import LeasedMessage

# -- queue interface ---------------------------------------------------------------------------------------------------

Results = list[QueueError | None]
"""Result of a batch operation: for each lease None on success, else the error."""


class ConsumerQueues(Protocol):
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
    ) -> Sequence[LeasedMessage]: ...

    def ack_many(self, leases: Sequence[str]) -> Results: ...

    def nack_many(
        self, leases: Sequence[str], reason: str = ..., text: str = "", *, delay: float | None = None
    ) -> Results: ...

    def extend_many(self, leases: Sequence[str], seconds: float | None = None) -> Results: ...

    def release_many(self, leases: Sequence[str]) -> Results: ...

    def consumer_beat(self, values: Mapping[str, Any]) -> str: ...

    def close(self) -> None: ...


# -- lease table -------------------------------------------------------------------------------------------------------

LEASE_PARTS = 3
"""Divisor of the lease: it is extended each time a third has passed, so that two extensions may fail."""
MIN_EXTEND_SECONDS = 0.005
"""Minimum interval between extensions of a lease, in seconds. A lease that needs a shorter one is too short to be
useful."""


class LeaseStage(Enum):
    """Stage of a lease in the consumer."""

    WAITING = "waiting"
    """Leased, not yet in a handler."""
    WORKING = "working"
    OVER = "over"
    """The outcome is decided and being sent to the broker. Later results of the handler are ignored."""


class HeldLease:
    """One lease of the consumer. Only ``LeaseTable`` changes it."""

    __slots__ = ("deadline", "extend_at", "lost", "span", "stage", "taken", "valid_until", "was_cut")

    def __init__(self, taken: LeasedMessage, span: float, asked_at: float) -> None:
        self.taken = taken
        self.span = span
        self.valid_until = asked_at + span
        self.extend_at = asked_at + max(span / LEASE_PARTS, MIN_EXTEND_SECONDS)
        self.deadline: float | None = None
        self.stage = LeaseStage.WAITING
        self.lost = False
        self.was_cut = False

    @property
    def lease(self) -> str:
        return self.taken.lease_id

    @property
    def is_abandoned(self) -> bool:
        """True if the handler's result is ignored."""
        return self.lost or self.was_cut


class LeaseTable:
    """Lease table of one run. Thread-safe.

    ``hurry`` is called when an entry needs attention before the time returned by ``next_check_at``; ``emptied`` when
    the last lease is removed."""

    def __init__(self, hurry: Callable[[], None], emptied: Callable[[], None]) -> None:
        self._hurry = hurry
        self._emptied = emptied
        self._guard = threading.Lock()
        self._held: dict[str, HeldLease] = {}
        self._planned = 0.0
        """Time of the heartbeat's next check."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, taken: Sequence[LeasedMessage], span: float, asked_at: float) -> list[HeldLease]:
        made = [HeldLease(one, span, asked_at) for one in taken]
        with self._guard:
            self._held.update((held.lease, held) for held in made)
            is_urgent = bool(made) and made[0].extend_at < self._planned
        if is_urgent:
            self._hurry()
        return made

    def start(self, held: HeldLease, deadline: float | None) -> bool:
        """Mark a lease as entering a handler. Return False if it was decided or lost meanwhile."""
        with self._guard:
            if held.stage is not LeaseStage.WAITING or held.lost:
                return False
            held.stage = LeaseStage.WORKING
            held.deadline = deadline
            is_urgent = deadline is not None and deadline < self._planned
        if is_urgent:
            self._hurry()
        return True

    def finish(self, held: HeldLease) -> bool:
        """Note that the handler has ended. Return False if its result no longer counts."""
        with self._guard:
            if held.stage is not LeaseStage.WORKING or held.lost:
                return False
            held.stage = LeaseStage.OVER
            return True

    def drop(self, leases: Iterable[HeldLease]) -> None:
        """Remove settled or lost leases."""
        with self._guard:
            for held in leases:
                self._held.pop(held.lease, None)
            is_empty = not self._held
        if is_empty:
            self._emptied()

    def withdraw(self, queue: str) -> list[HeldLease]:
        """Take back the leases of a queue that no handler has received, so that they can be released."""
        with self._guard:
            found = [one for one in self._held.values() if one.stage is LeaseStage.WAITING and one.taken.queue == queue]
            for held in found:
                held.stage = LeaseStage.OVER
            return found

    def cut_off(self, now: float | None = None) -> list[HeldLease]:
        """Cut off handlers that are overdue at ``now``, or all of them (None). Their results are ignored."""
        with self._guard:
            found = [one for one in self._held.values() if one.stage is LeaseStage.WORKING and _is_overdue(one, now)]
            for held in found:
                held.stage, held.was_cut = LeaseStage.OVER, True
            return found

    def count(self, stage: LeaseStage) -> int:
        with self._guard:
            return sum(held.stage is stage for held in self._held.values())

    # -- heartbeat ------------------------------------------------------------------------------------------------

    def due(self, now: float) -> list[HeldLease]:
        """Return the leases to extend. If one is due, those that are due soon are included, so that one call extends
        all."""
        with self._guard:
            live = [one for one in self._held.values() if one.stage is not LeaseStage.OVER]
        if not any(one.extend_at <= now for one in live):
            return []
        return [one for one in live if one.extend_at <= now + one.span / LEASE_PARTS / 2]

    def next_check_at(self, latest: float) -> float:
        """Return the time of the next extension or deadline, at most ``latest``."""
        with self._guard:
            live = [one for one in self._held.values() if one.stage is not LeaseStage.OVER]
            beats = [one.extend_at for one in live]
            deadlines = [one.deadline for one in live if one.deadline is not None]
            self._planned = min([latest, *beats, *deadlines])
            return self._planned

    def extended(self, leases: Iterable[HeldLease], asked_at: float) -> None:
        with self._guard:
            for held in leases:
                held.valid_until = asked_at + held.span
                held.extend_at = asked_at + max(held.span / LEASE_PARTS, MIN_EXTEND_SECONDS)

    def postpone(self, leases: Iterable[HeldLease], until: float) -> None:
        """Schedule a retry of a failed extension."""
        with self._guard:
            for held in leases:
                held.extend_at = until

    def mark_lost(self, held: HeldLease) -> bool:
        """Mark a lease as lost, as reported by the broker. Return False if the consumer itself has settled it
        meanwhile."""
        with self._guard:
            if held.stage is LeaseStage.OVER:
                return False
            held.lost = True
            is_ours = self._held.pop(held.lease, None) is not None
            is_empty = not self._held
        if is_ours and is_empty:
            self._emptied()
        return is_ours


def _is_overdue(held: HeldLease, now: float | None) -> bool:
    return now is None or (held.deadline is not None and held.deadline <= now)
