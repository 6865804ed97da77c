"""Is the server well? ``ok``, ``degraded`` (it works, but somebody should look) or ``fail`` (it does not), each with
its reasons. Knows: what the store and its disk say. Does not know: who asks."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from yirangmq.broker.desk import Desk
from yirangmq.core.errors import NotActive, QueueError, StoreFull
from yirangmq.core.events import Event, Published
from yirangmq.core.health import DEGRADED, FAIL, REASONS, HealthReason, health_reason, status_of
from yirangmq.core.ports import Clock, Transaction
from yirangmq.core.quota import store_refusal

LATE_MS = 10_000
"""Work of time itself (delays that end, leases that lapse) may be this late before we worry."""
SHOWN_QUEUES = 5
REFUSED_MS = 60_000
"""A refusal for want of space is a failure for so long. Later it is only told: if nobody sends anything because the
server is said to fail, nobody would ever find out that there is room again."""


class Signs(NamedTuple):
    """What a look into the store showed."""

    late_ms: int
    backlogs: list[tuple[str, int]]


@dataclass(slots=True)
class Disk:
    """The disk under the store. ``look`` asks it; ``full`` is what a publisher is told when it is below its mark, or
    when the store has grown to ``most_bytes`` (0: no limit). ``measure`` says how large it is, where it can tell;
    ``refuse`` is asked of a store that itself knows when it is full."""

    folder: Path
    low_bytes: int
    most_bytes: int = 0
    measure: Callable[[], int] | None = None
    refuse: Callable[[], QueueError | None] | None = None
    free: int = 0
    size: int = 0
    used: int | None = None
    full: QueueError | None = None

    def look(self) -> int:
        found = os.statvfs(self.folder)
        self.free = found.f_bavail * found.f_frsize
        self.size = found.f_blocks * found.f_frsize
        self.used = self._measured()
        self.full = store_refusal(self.most_bytes, self.used) if self.refuse is None else self.refuse()
        if self.free < self.low_bytes:
            self.full = StoreFull(
                f"{self.free >> 20} MiB left on the disk, publishing needs {self.low_bytes >> 20}; free some space, "
                "or consume: that goes on"
            )
        return self.free

    def refusal(self) -> QueueError | None:
        """What a publisher is told at this moment: of what was last seen, unless the store itself knows better."""
        return self.full if self.refuse is None else self.refuse()

    def _measured(self) -> int | None:
        try:
            return None if self.measure is None else self.measure()
        except QueueError:  # the store is busy or in trouble, which health reports by itself
            return self.used


class Room:
    """Whether the store had room for what it was last given. Our own look writes a few bytes, for which there is room
    long after there is none for a message; so a refusal holds until something was published."""

    def __init__(self, desk: Desk, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock
        self._refused: StoreFull | None = None
        self._at = 0
        self.own: QueueError | None = None
        """Why our own look was refused, which tells itself."""
        desk.after_commit.append(self._look)
        desk.verbs.happened.listen(self._hear)

    def _look(self) -> None:
        trouble = self._desk.trouble
        if isinstance(trouble, StoreFull) and trouble is not self.own:
            self._refused, self._at = trouble, self._clock.now_ms()

    def _hear(self, events: Sequence[Event]) -> None:
        if self._refused is not None and any(isinstance(event, Published) for event in events):
            self._refused = None

    @property
    def refusal(self) -> StoreFull | None:
        """As long as it is a failure."""
        return self._refused if self._clock.now_ms() - self._at < REFUSED_MS else None

    def reasons(self) -> list[HealthReason]:
        if self._refused is None:
            return []
        ago = (self._clock.now_ms() - self._at) // 1000
        text = f"{ago} s ago a write was refused, and nothing was published since: {self._refused}"
        return [health_reason(self._refused.code, text, DEGRADED if self.refusal is None else FAIL)]


@dataclass(frozen=True, slots=True)
class Health:
    clock: Clock
    disk: Disk | None
    backlog_limit: int = 0
    """Waiting messages of one queue past which we worry; 0: never."""
    others: tuple[Callable[[], list[HealthReason]], ...] = ()
    """More that can be wrong, as other parts of the server see it."""
    about: Callable[[], dict[str, Any]] = dict
    """What else belongs to it: the pair, where there is one."""
    room: Room | None = None

    def signs(self, transaction: Transaction) -> Signs:
        """Inside a commit that really writes: a number given out and not used."""
        transaction.places(1)
        due = transaction.next_due()
        late = 0 if due is None else max(0, self.clock.now_ms() - due)
        backlogs: list[tuple[str, int]] = []
        if self.backlog_limit:
            for queue in transaction.queues():
                counts = transaction.counts(queue)
                if counts.ready + counts.delayed > self.backlog_limit:
                    backlogs.append((queue, counts.ready + counts.delayed))
        return Signs(late, backlogs)

    def judged(self, signs: Signs | None, error: QueueError | None) -> dict[str, Any]:
        reasons = [*self._of_store(signs, error), *self._of_disk(), *(one for other in self.others for one in other())]
        return {"status": status_of(reasons), "reasons": [reason._asdict() for reason in reasons], **self.about()}

    def _of_store(self, signs: Signs | None, error: QueueError | None) -> list[HealthReason]:
        if isinstance(error, NotActive):
            return []  # a standby writes nothing, and is well
        if self.room is not None:
            self.room.own = error
        if signs is None or error is not None:
            return [self._unwritable(error)]
        found: list[HealthReason] = []
        if signs.late_ms > LATE_MS:
            found.append(health_reason("overdue", f"delays and leases end {signs.late_ms / 1000:.0f} s late"))
        for queue, count in signs.backlogs[:SHOWN_QUEUES]:
            text = f"{count} messages wait in queue {queue}, more than {self.backlog_limit}"
            found.append(health_reason("backlog", text))
        return found if self.room is None else [*found, *self.room.reasons()]

    def _unwritable(self, error: QueueError | None) -> HealthReason:
        code = "store_error" if error is None else error.code
        return health_reason(code if code in REASONS else "store_error", f"the store cannot be written: {error}", FAIL)

    def _of_disk(self) -> list[HealthReason]:
        if self.disk is None:
            return []
        try:
            free = self.disk.look()
        except OSError as error:
            return [health_reason("disk", f"{self.disk.folder}: {error.strerror}")]
        if isinstance(self.disk.full, StoreFull):
            return [health_reason("disk_low", str(self.disk.full))]
        if self.disk.full is not None:
            return [health_reason("quota_exceeded", str(self.disk.full))]
        if free < 2 * self.disk.low_bytes:
            return [health_reason("disk_low", f"{free >> 20} MiB left on the disk of {self.disk.folder}", DEGRADED)]
        return []
