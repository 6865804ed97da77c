"""Health of the server: store, disk, full-store latch and backlogs, judged by ``core.health``.

A health check is cheap and never waits for the store: the store probe of ``broker.commit_jobs`` answers in time. Each
check counts the backlog of some queues in rotation, so its cost does not depend on the number of queues. After a write
is refused for lack of space, health reports a failure for ``REFUSED_MS`` and then a warning, until a message is
published."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from yirangmq.broker.commit_jobs import PROBE_SECONDS, Probed, write_probe
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.queries import QueueRotation
from yirangmq.core.errors import NotActive, QueueError, StoreBusy, StoreFull
from yirangmq.core.events import Event, Published
from yirangmq.core.health import DEGRADED, FAIL, REASONS, HealthReason, health_reason, status_of
from yirangmq.core.policy import store_refusal
from yirangmq.core.ports import Clock, Transaction

if TYPE_CHECKING:
    from yirangmq.broker.queues import Queues

LATE_MS = 10_000
"""Work of time itself (delays that end, leases that lapse) may be this late before we worry."""
SHOWN_QUEUES = 5
QUEUES_PER_LOOK = 500
"""Queues whose backlog one look counts, at about 3 µs each."""
MOST_OVER = 100
"""Queues over the limit that are counted again at each look."""
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
    reusable: Callable[[], int] | None = None
    """Bytes inside the store's file that hold nothing: publishing uses them before it needs the disk."""
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
        if self.free < self.low_bytes and self.free + self._inside() < self.low_bytes:
            self.full = StoreFull(
                f"{self.free >> 20} MiB left on the disk, publishing needs {self.low_bytes >> 20}; free some space, "
                "or consume: that goes on"
            )
        return self.free

    def refusal(self) -> QueueError | None:
        """What a publisher is told at this moment: of what was last seen, unless the store itself knows better."""
        return self.full if self.refuse is None else self.refuse()

    def _inside(self) -> int:
        try:
            return 0 if self.reusable is None else self.reusable()
        except QueueError:
            return 0

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
        desk.after_commit.append(self._look)
        desk.verbs.happened.listen(self._hear)

    def _look(self) -> None:
        trouble = self._desk.trouble
        if isinstance(trouble, StoreFull) and trouble is not self._desk.probe.error:
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


class Backlogs:
    """Queues with more than ``limit`` waiting messages. Each look counts some of all queues in turn, and those that
    were over the limit before: with many queues a new one is found after some looks."""

    def __init__(self) -> None:
        self._rotation = QueueRotation(QUEUES_PER_LOOK)
        self._over: list[str] = []

    def look(self, transaction: Transaction, limit: int) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for queue in dict.fromkeys([*self._over, *self._rotation.next(transaction)]):
            counts = transaction.counts(queue)
            if counts.ready + counts.delayed > limit:
                found.append((queue, counts.ready + counts.delayed))
        self._over = [queue for queue, _ in found[:MOST_OVER]]
        return sorted(found)


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
    backlogs: "Backlogs" = field(default_factory=lambda: Backlogs())

    def ask(self, desk: Desk, done: Callable[[dict[str, Any]], None]) -> None:
        """``done`` is called within ``PROBE_SECONDS``, also while the store does not answer."""
        desk.probe.ask(lambda probed: done(self._told(self._of_server(desk, probed))))

    def of_store(self, queues: "Queues") -> dict[str, Any]:
        """Of a store that no server has open."""

        def look(transaction: Transaction) -> Signs:
            write_probe(transaction, self.clock.now_ms())
            return self.signs(transaction)

        try:
            return self._told(self._of_signs(queues.run(look)))
        except QueueError as error:
            return self._told([_unwritable(error)])

    def signs(self, transaction: Transaction) -> Signs:
        """What a look into the store shows; it changes nothing."""
        now = self.clock.now_ms()
        due = transaction.next_due(before=now)
        backlogs = self.backlogs.look(transaction, self.backlog_limit) if self.backlog_limit else []
        return Signs(0 if due is None else now - due, backlogs)

    def _told(self, of_store: list[HealthReason]) -> dict[str, Any]:
        reasons = [*of_store, *self._of_disk(), *(one for other in self.others for one in other())]
        return {"status": status_of(reasons), "reasons": [reason._asdict() for reason in reasons], **self.about()}

    def _of_server(self, desk: Desk, probed: Probed) -> list[HealthReason]:
        if isinstance(probed.error, NotActive):
            return [] if probed.error.active else [health_reason("no_active_node", str(probed.error))]
        if probed.error is not None:
            return [_unwritable(probed.error)]
        found = [_late(desk)] if probed.is_late else []
        if probed.is_late and desk.trouble is not None and not isinstance(desk.trouble, StoreBusy):
            found.append(_unwritable(desk.trouble))
        try:
            found += self._of_signs(desk.read(self.signs))
        except StoreBusy:
            pass  # by a request of the moment; one that lasts is told above
        except QueueError as error:
            found.append(_unwritable(error))
        return found if self.room is None else [*found, *self.room.reasons()]

    def _of_signs(self, signs: Signs) -> list[HealthReason]:
        found: list[HealthReason] = []
        if signs.late_ms > LATE_MS:
            found.append(health_reason("overdue", f"delays and leases end {signs.late_ms / 1000:.0f} s late"))
        for queue, count in signs.backlogs[:SHOWN_QUEUES]:
            text = f"{count} messages wait in queue {queue}, more than {self.backlog_limit}"
            found.append(health_reason("backlog", text))
        return found

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


def _unwritable(error: Exception) -> HealthReason:
    code = error.code if isinstance(error, QueueError) else "internal_error"
    return health_reason(code if code in REASONS else "store_error", f"the store cannot be written: {error}", FAIL)


def _late(desk: Desk) -> HealthReason:
    """The store has not answered in time."""
    if desk.busy.since is None:
        return health_reason("store_slow", f"a write to the store takes longer than {PROBE_SECONDS:g} s")
    text = f"the store is locked since {desk.seconds_busy:.1f} s, by another process or a long commit"
    if not desk.busy.refused:
        return health_reason("store_busy", f"{text}; requests wait")
    return health_reason("store_busy", f"{text}; {desk.busy.refused} requests were refused", FAIL)
