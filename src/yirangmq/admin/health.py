"""Health of the server: store, disk, full-store latch and backlogs, judged by ``core.health``.

A health check is cheap and never blocks on the store: the store probe of ``broker.commit_jobs`` answers within
``PROBE_SECONDS``. Each check counts the backlog of some queues in rotation, so its cost does not depend on the number
of queues. After a write is refused for lack of space, health reports a failure for ``REFUSED_MS`` and then a warning,
until a message is published."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from yirangmq.broker.commit_jobs import PROBE_SECONDS, Probed, write_probe
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.queries import QueueRotation
from yirangmq.core.errors import NotActive, QueueError, StoreBusy, StoreFull
from yirangmq.core.events import Event, MessagesPublished
from yirangmq.core.health import DEGRADED, FAIL, REASONS, HealthReason, health_reason, status_of
from yirangmq.core.policy import store_refusal
from yirangmq.core.ports import Clock, Transaction

if TYPE_CHECKING:
    from yirangmq.broker.queues import Queues

LATE_MS = 10_000
"""Delay of expiries (ends of delays, expired leases) past which health reports ``overdue``, in ms."""
SHOWN_QUEUES = 5
"""Upper bound of queues over the backlog limit that one report names."""
QUEUES_PER_CHECK = 500
"""Queues per check whose backlog is counted, at about 3 µs per queue."""
MAX_QUEUES_OVER = 100
"""Upper bound of queues over the limit that every check counts again."""
REFUSED_MS = 60_000
"""Time for which a refusal for lack of space is a failure, in ms; afterwards it is a warning. Clients may stop
publishing while the server reports a failure. Then no publish would succeed, and the failure would never end."""


class StoreFacts(NamedTuple):
    """Health facts read from the store: delay of expiries in ms, and (queue, messages) of backlogs over the limit."""

    late_ms: int
    backlogs: list[tuple[str, int]]


@dataclass(slots=True)
class StoreDisk:
    """Disk space of the store, with low-water mark and size limit.

    ``inspect`` reads the free space. ``full`` is the error for publishers: the free space is below ``low_bytes``, or
    the store has grown to ``most_bytes`` (0: no limit). ``measure`` returns the size of the store in bytes. ``refuse``
    returns the error of a store that detects itself that it is full; it replaces the check of the size."""

    folder: Path
    low_bytes: int
    most_bytes: int = 0
    measure: Callable[[], int] | None = None
    refuse: Callable[[], QueueError | None] | None = None
    reusable: Callable[[], int] | None = None
    """Return the free bytes inside the store's file: publishing uses them before it needs disk space."""
    free: int = 0
    size: int = 0
    used: int | None = None
    full: QueueError | None = None

    def inspect(self) -> int:
        found = os.statvfs(self.folder)
        self.free = found.f_bavail * found.f_frsize
        self.size = found.f_blocks * found.f_frsize
        self.used = self._measured()
        self.full = store_refusal(self.most_bytes, self.used) if self.refuse is None else self.refuse()
        if self.free < self.low_bytes and self.free + self._inside() < self.low_bytes:
            self.full = StoreFull(
                f"{self.free >> 20} MiB left on the disk, publishing needs {self.low_bytes >> 20}; free some space, "
                "or consume messages, which still works"
            )
        return self.free

    def refusal(self) -> QueueError | None:
        """Return the error for publishers now: that of the last ``inspect``, or of ``refuse`` if the store has it."""
        return self.full if self.refuse is None else self.refuse()

    def _inside(self) -> int:
        try:
            return 0 if self.reusable is None else self.reusable()
        except QueueError:
            return 0

    def _measured(self) -> int | None:
        try:
            return None if self.measure is None else self.measure()
        except QueueError:  # the store is busy or failing, which health reports separately
            return self.used


def publish_refusal(disk: StoreDisk | None) -> QueueError | None:
    """Return the error for a publisher while the disk is low or the store is full, or None."""
    return None if disk is None else disk.refusal()


class FullStoreLatch:
    """Full-store latch: set when the store refuses a commit for lack of space, cleared by the next published message.

    The store probe neither sets nor clears it: its few bytes still fit long after a message no longer does. Loop
    thread only."""

    def __init__(self, committer: GroupCommitter, clock: Clock) -> None:
        self._committer = committer
        self._clock = clock
        self._refused: StoreFull | None = None
        self._at = 0
        committer.after_commit.append(self._inspect)
        committer.operations.event_buffer.add_listener(self._on_events)

    def _inspect(self) -> None:
        last_error = self._committer.last_error
        if isinstance(last_error, StoreFull) and last_error is not self._committer.probe.error:
            self._refused, self._at = last_error, self._clock.now_ms()

    def _on_events(self, events: Sequence[Event]) -> None:
        if self._refused is not None and any(isinstance(event, MessagesPublished) for event in events):
            self._refused = None

    @property
    def refusal(self) -> StoreFull | None:
        """Return the refusal while it is a failure: for ``REFUSED_MS`` after it happened."""
        return self._refused if self._clock.now_ms() - self._at < REFUSED_MS else None

    def reasons(self) -> list[HealthReason]:
        if self._refused is None:
            return []
        ago = (self._clock.now_ms() - self._at) // 1000
        text = f"{ago} s ago a write was refused, and nothing was published since: {self._refused}"
        return [health_reason(self._refused.code, text, DEGRADED if self.refusal is None else FAIL)]


class BacklogFinder:
    """Finder of queues with more than ``limit`` delayed and ready messages.

    Each check counts the next queues in rotation, and up to ``MAX_QUEUES_OVER`` queues that were over the limit in the
    previous check. With many queues, a new one is therefore found after several checks."""

    def __init__(self) -> None:
        self._rotation = QueueRotation(QUEUES_PER_CHECK)
        self._over: list[str] = []

    def inspect(self, transaction: Transaction, limit: int) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for queue in dict.fromkeys([*self._over, *self._rotation.next(transaction)]):
            counts = transaction.counts(queue)
            if counts.ready + counts.delayed > limit:
                found.append((queue, counts.ready + counts.delayed))
        self._over = [queue for queue, _ in found[:MAX_QUEUES_OVER]]
        return sorted(found)


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """Health checks of a server, or of a store that no server has open. Loop thread only in a server."""

    clock: Clock
    disk: StoreDisk | None
    backlog_limit: int = 0
    """Backlog of one queue past which health reports it, in messages; 0: never."""
    extra_check: Callable[[], list[HealthReason]] = list
    """Further checks, of the other components of the server."""
    extra_members: Callable[[], dict[str, Any]] = dict
    """Return further members of the report, such as the failover pair."""
    full_latch: FullStoreLatch | None = None
    backlogs: "BacklogFinder" = field(default_factory=lambda: BacklogFinder())

    def request(self, committer: GroupCommitter, done: Callable[[dict[str, Any]], None]) -> None:
        """Check the health and call ``done`` within ``PROBE_SECONDS``, also while the store does not answer."""
        committer.probe.request(lambda probed: done(self._report(self._of_server(committer, probed))))

    def of_store(self, queues: "Queues") -> dict[str, Any]:
        """Return the health report of a store that no server has open."""

        def inspect(transaction: Transaction) -> StoreFacts:
            write_probe(transaction, self.clock.now_ms())
            return self.store_facts(transaction)

        try:
            return self._report(self._of_facts(queues.run(inspect)))
        except QueueError as error:
            return self._report([_unwritable(error)])

    def store_facts(self, transaction: Transaction) -> StoreFacts:
        """Read the health facts of the store. Changes nothing."""
        now = self.clock.now_ms()
        due = transaction.next_due(before=now)
        backlogs = self.backlogs.inspect(transaction, self.backlog_limit) if self.backlog_limit else []
        return StoreFacts(0 if due is None else now - due, backlogs)

    def _report(self, of_store: list[HealthReason]) -> dict[str, Any]:
        reasons = [*of_store, *self._of_disk(), *self.extra_check()]
        return {
            "status": status_of(reasons),
            "reasons": [reason._asdict() for reason in reasons],
            **self.extra_members(),
        }

    def _of_server(self, committer: GroupCommitter, probed: Probed) -> list[HealthReason]:
        if isinstance(probed.error, NotActive):
            return [] if probed.error.active else [health_reason("no_active_node", str(probed.error))]
        if probed.error is not None:
            return [_unwritable(probed.error)]
        found = [_late(committer)] if probed.is_late else []
        if probed.is_late and committer.last_error is not None and not isinstance(committer.last_error, StoreBusy):
            found.append(_unwritable(committer.last_error))
        try:
            found += self._of_facts(committer.read(self.store_facts))
        except StoreBusy:
            pass  # a short lock by another request; a long one is reported above
        except QueueError as error:
            found.append(_unwritable(error))
        return found if self.full_latch is None else [*found, *self.full_latch.reasons()]

    def _of_facts(self, store_facts: StoreFacts) -> list[HealthReason]:
        found: list[HealthReason] = []
        if store_facts.late_ms > LATE_MS:
            found.append(health_reason("overdue", f"delays and leases end {store_facts.late_ms / 1000:.0f} s late"))
        for queue, count in store_facts.backlogs[:SHOWN_QUEUES]:
            text = f"{count} messages wait in queue {queue}, more than {self.backlog_limit}"
            found.append(health_reason("backlog", text))
        return found

    def _of_disk(self) -> list[HealthReason]:
        if self.disk is None:
            return []
        try:
            free = self.disk.inspect()
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


def _late(committer: GroupCommitter) -> HealthReason:
    """Return the reason for a store that has not answered in time: slow, locked, or refusing requests."""
    if committer.busy.since is None:
        return health_reason("store_slow", f"a write to the store takes longer than {PROBE_SECONDS:g} s")
    text = f"the store is locked since {committer.seconds_busy:.1f} s, by another process or a long commit"
    if not committer.busy.refused:
        return health_reason("store_busy", f"{text}; requests wait")
    return health_reason("store_busy", f"{text}; {committer.busy.refused} requests were refused", FAIL)
