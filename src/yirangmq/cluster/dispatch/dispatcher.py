"""Dispatcher of one queue in etcd: watches its keys, plans, and commits one fenced transaction at a time.

Leading ends with ``LeadershipLost``, or with ``Idle`` when there was nothing to do for long enough. After a lost answer
or a compacted watch the dispatcher does not guess: it proves that it still leads, and reads everything again
(``cluster.dispatch.recovery``). It runs in one event loop.

Most changes are the dispatcher's own writes, and their events carry the messages. So the inbox is watched for puts
only; a message that its producer withdrew is found missing when it is to be moved. The copies of each consumer are
watched for deletes only, for up to ``MAX_SEPARATE_WATCHES`` consumers. For that, the key range of the consumers is
split at each registration: one watch for that consumer's copies, and one for the keys in between. Events of one watch
come in order, events of different watches do not."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from yirangmq.cluster.dispatch import planner
from yirangmq.cluster.dispatch.long_keys import purge_long_line
from yirangmq.cluster.dispatch.messages import sweep_dead
from yirangmq.cluster.dispatch.planner import MAX_BYTES, MAX_MOVES, BatchLimits, PlannedTransaction
from yirangmq.cluster.dispatch.recovery import DispatchRecovery, LeadershipLost, policy_of
from yirangmq.cluster.dispatch.state import WINDOW, EtcdQueueState, InboxArrival, UnassignedMessage
from yirangmq.cluster.etcd.channel import RevisionCompacted
from yirangmq.cluster.etcd.client import Etcd, get
from yirangmq.cluster.etcd.quota import EtcdQuota
from yirangmq.cluster.keys import DeliveryKey, InboxKey, Keys, NackKey, PolicyKey, RegistrationKey
from yirangmq.core.errors import NotAllowed, StoreFull, TooLarge, Unavailable
from yirangmq.core.ports import Clock, Ids

# -- watches -----------------------------------------------------------------------------------------------------------

PUT, DELETE = 0, 1
MAX_SEPARATE_WATCHES = 32
"""Maximum number of consumers with a separate watch of their copies. Copies of further consumers are watched together
with the rest, for puts and deletes."""


class LongKeysChanged(Exception):
    """The key that asks for a second copy of the line was put or deleted: the dispatcher reads its state again."""


class QueueWatches:
    """Set of watches of one queue. ``on_event`` is called with each event, ``wake`` after each batch of events, and
    with the error that ended a watch.

    Events of one watch come in order. Registration and departure of a consumer come by one watch, its acks by
    another."""

    def __init__(
        self, etcd: Etcd, keys: Keys, on_event: Callable[[Any], None], wake: Callable[[Exception | None], None]
    ) -> None:
        self._etcd = etcd
        self._keys = keys
        self._on_event = on_event
        self._wake = wake
        self._apart: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, revision: int, homes: Iterable[bytes]) -> None:
        keys = self._keys
        self._watch(keys.leader, b"", revision)
        self._watch(keys.long_leader, b"", revision)
        self._watch(*keys.policy_and_rest(), revision)
        for start, end in keys.inboxes():
            self._watch(start, end, revision, deletes=False)
        known = sorted(homes)
        for start, end in keys.consumers():
            self._part(start, end, revision, [home for home in known if start <= home < end])

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _part(self, start: bytes, end: bytes, revision: int, homes: list[bytes]) -> None:
        """Watch the range from ``start`` to ``end``, and the copies of each consumer in it by a separate watch."""
        for home in homes[: MAX_SEPARATE_WATCHES - len(self._apart)]:
            first, after = home + b"0", home + b":"
            self._apart.add(home)
            self._watch(start, first, revision, parts=True)
            self._watch(first, after, revision, puts=False)
            start = after
        self._watch(start, end, revision, parts=True)

    def _watch(self, start: bytes, end: bytes, revision: int, *, parts: bool = False, **how: bool) -> None:
        task = asyncio.ensure_future(self._listen(start, end, revision, parts, how))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, start: bytes, end: bytes, revision: int, parts: bool, how: dict[str, bool]) -> None:
        watch = self._etcd.watch(start, end, revision=revision, **how)
        try:
            async with aclosing(aiter(watch)) as batches:
                async for events in batches:
                    for event in events:
                        self._on_event(event)
                    self._wake(None)
                    if parts and (homes := self._new(events)):
                        self._part(start, end, watch.revision, homes)
                        return
        except (RevisionCompacted, NotAllowed, LeadershipLost, LongKeysChanged) as error:
            self._wake(error)

    def _new(self, events: list[Any]) -> list[bytes]:
        """Return newly registered consumers that are to get a separate watch; none once the limit is reached."""
        if len(self._apart) >= MAX_SEPARATE_WATCHES:
            return []
        found = {self._keys.parsed(event.kv.key) for event in events if event.type == PUT}
        return sorted({one.home for one in found if isinstance(one, RegistrationKey)} - self._apart)


# -- dispatcher --------------------------------------------------------------------------------------------------------

PAUSE_SECONDS = 0.05
FULL_SECONDS = 0.5
MAX_WAIT_SECONDS = 1.0
READ_BATCH = 32
READ_BYTES = 1_000_000
"""Target size of one read of the inbox, in bytes. The number of keys follows from the mean size of the last batch."""
SWEEP_MS = 60_000
FULLNESS_STEP = 0.05
"""Change of etcd's fullness, as a fraction of the quota, that is written to the state key even without other work.
Producers stop and resume by that value."""
READ_AHEAD = 50
log = logging.getLogger("yirangmq.cluster")


class Idle(Exception):
    """The queue was idle for ``idle_ms``, so it needs no leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherOptions:
    """Options of a dispatcher.

    ``window`` is the number of unacked messages per consumer. ``idle_ms`` is the time without a message or a consumer
    after which the dispatcher steps down."""

    window: int = WINDOW
    idle_ms: int = 600_000


class Dispatcher:
    """Dispatcher of one queue while this node leads it. Owns the queue's in-memory state; runs in one event loop."""

    def __init__(
        self, etcd: Etcd, queue: str, node: str, clock: Clock, ids: Ids, quota: EtcdQuota, options: DispatcherOptions
    ) -> None:
        self._etcd = etcd
        self._keys = Keys(queue)
        self._clock = clock
        self._ids = ids
        self._quota = quota
        self._options = options
        self._recovery = DispatchRecovery(etcd, queue, node, clock, options.window)
        self._lease = 0
        self._wake = asyncio.Event()
        self._failure: Exception | None = None
        self._most = MAX_MOVES
        self._size = MAX_BYTES // READ_BATCH
        self._wrote_at = clock.now_ms()
        self._swept_at = 0
        self._written_fullness = 0.0
        self.queue_state: EtcdQueueState | None = None

    async def lead(self, fence: int, lease: int = 0) -> None:
        """Dispatch until ``LeadershipLost`` or ``Idle`` is raised. ``lease`` is the lease of the leader's key."""
        self._lease = lease
        while True:
            try:
                await self._lead(fence)
            except LongKeysChanged:
                continue
            except (Unavailable, RevisionCompacted) as error:
                log.info("dispatcher_restarted", extra={"values": {"queue": self._keys.queue, "error": str(error)}})
                await asyncio.sleep(PAUSE_SECONDS)

    async def _lead(self, fence: int) -> None:
        self._failure = None
        queue_state, revision = await self._recovery.read(fence, self._lease)
        await purge_long_line(self._etcd, self._keys, fence, keep=queue_state.long_keys)
        self.queue_state = queue_state
        watches = QueueWatches(self._etcd, self._keys, lambda event: self._on_event(event, fence), self._on_wake)
        watches.begin(revision + 1, queue_state.consumers)
        try:
            while True:
                if self._failure is not None:
                    raise self._failure
                self._wake.clear()
                await self._step(queue_state, fence)
        finally:
            await watches.end()

    async def _step(self, queue_state: EtcdQueueState, fence: int) -> None:
        queue_state.tick(self._clock.now_ms())
        await self._read_what_is_needed(queue_state)
        now = self._clock.now_ms()
        full = self._quota.full
        batch = planner.plan(queue_state, fence, now, full, BatchLimits(self._most, self._quota.left))
        is_late = bool(queue_state.inbox) and now - self._wrote_at >= planner.HEARTBEAT_MS
        has_news = queue_state.counters_changed or abs(full - self._written_fullness) >= FULLNESS_STEP
        if batch.is_empty and is_late:
            await self._forget_withdrawn(queue_state)
        if batch.is_empty and (is_late or has_news):
            batch = planner.heartbeat(queue_state, fence, now, full)
        if batch.lacked_quota:
            self._quota.request_measurement()
        if not batch.is_empty:
            self._quota.take(batch.bytes)
            await self._commit(queue_state, batch, fence, full)
        elif batch.lacked_quota:
            await self._quota.wait(FULL_SECONDS)
        elif queue_state.is_idle() and now - self._wrote_at >= self._options.idle_ms:
            raise Idle
        elif now - self._swept_at >= SWEEP_MS:
            self._swept_at = now
            await sweep_dead(self._etcd, self._keys, fence, now)
        else:
            await self._wait(queue_state, now)

    async def _wait(self, queue_state: EtcdQueueState, now: int) -> None:
        due = queue_state.next_due()
        seconds = MAX_WAIT_SECONDS if due is None else min(MAX_WAIT_SECONDS, max(0.001, (due - now) / 1000))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for loses a cancellation that comes together with the event
                await self._wake.wait()

    async def _commit(self, queue_state: EtcdQueueState, batch: PlannedTransaction, fence: int, full: float) -> None:
        try:
            answer = await self._etcd.send(batch.builder.request)
        except TooLarge:
            planner.undo(queue_state, batch)
            self._make_smaller(queue_state, batch)
            return
        except StoreFull:
            planner.undo(queue_state, batch)
            await self._remove_only(queue_state, fence)
            return
        self._wrote_at = self._clock.now_ms()
        if answer.succeeded:
            planner.apply(queue_state, batch, answer.responses, int(answer.header.revision))
            self._most, self._written_fullness = MAX_MOVES, full
            self._size = batch.bytes // max(1, len(batch.moves)) if batch.moves else self._size
            return
        planner.undo(queue_state, batch)
        leader = answer.responses[0].response_range.kvs
        if not leader or leader[0].create_revision != fence:
            raise LeadershipLost(self._keys.queue)
        reads = [get(one.key, keys_only=True) for one in batch.moves]
        found = await self._etcd.txn([], reads, repeat=True)
        planner.drop_changed(queue_state, batch, found.responses)

    def _make_smaller(self, queue_state: EtcdQueueState, batch: PlannedTransaction) -> None:
        """After ``TooLarge``: retry with one move per transaction. A single message that is still too large is marked
        as stuck, and the others are moved without it."""
        if len(batch.moves) > 1:
            self._most = 1
        elif batch.moves:
            queue_state.inbox.stuck.add(batch.moves[0].key)
            key = batch.moves[0].key.decode("utf-8", "backslashreplace")
            log.error("inbox_message_too_large", extra={"values": {"queue": self._keys.queue, "key": key}})

    async def _remove_only(self, queue_state: EtcdQueueState, fence: int) -> None:
        """Remove acked messages only: a full etcd still accepts deletes."""
        batch = planner.plan_removals(queue_state, fence)
        if batch.is_empty:
            log.warning("etcd_full", extra={"values": {"queue": self._keys.queue}})
            await asyncio.sleep(FULL_SECONDS)
            return
        answer = await self._etcd.send(batch.builder.request)
        if not answer.succeeded:
            raise LeadershipLost(self._keys.queue)
        planner.apply(queue_state, batch, answer.responses, int(answer.header.revision))

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def _read_what_is_needed(self, queue_state: EtcdQueueState) -> None:
        await self._read_inbox(queue_state)
        wanted = queue_state.wanted_bodies(READ_BATCH)
        if wanted:
            await self._read_bodies(queue_state, wanted)
        if not queue_state.read_ahead and queue_state.assigned + 1 < queue_state.next and queue_state.has_capacity():
            await self._read_ahead(queue_state)

    async def _read_inbox(self, queue_state: EtcdQueueState) -> None:
        wanted = queue_state.inbox.unread(self._most, max(1, min(MAX_MOVES, READ_BYTES // max(1, self._size))))
        if not wanted:
            return
        found = await self._etcd.txn([], [get(one.key) for one in wanted], repeat=True)
        for arrival, answer in zip(wanted, found.responses, strict=True):
            kvs = answer.response_range.kvs
            if kvs and kvs[0].mod_revision == arrival.revision:
                queue_state.inbox.fill(arrival, kvs[0].value)
            else:  # rewritten or deleted meanwhile; the watch delivers its new content
                queue_state.inbox.remove(arrival)

    async def _forget_withdrawn(self, queue_state: EtcdQueueState) -> None:
        """Forget stuck messages that their producer has withdrawn. The inbox is watched for puts only, so the watch
        does not report it."""
        if wanted := queue_state.inbox.stuck_messages(READ_BATCH):
            found = await self._etcd.txn([], [get(one.key, keys_only=True) for one in wanted], repeat=True)
            for arrival, answer in zip(wanted, found.responses, strict=True):
                if not answer.response_range.kvs:
                    queue_state.inbox.remove(arrival)

    async def _read_bodies(self, queue_state: EtcdQueueState, wanted: list[tuple[int, bytes]]) -> None:
        found = await self._etcd.txn([], [get(self._keys.ordered(*one)) for one in wanted], repeat=True)
        for (index, _), answer in zip(wanted, found.responses, strict=True):
            kvs = answer.response_range.kvs
            if kvs:
                queue_state.bodies[index] = kvs[0].value
            elif index in queue_state.returned_messages:  # removed from the line by hand
                queue_state.remove_returned(index)
                queue_state.orphan_keys.append(self._keys.retry(index))
            else:
                queue_state.bodies[index] = b""

    async def _read_ahead(self, queue_state: EtcdQueueState) -> None:
        start, end = self._keys.from_index(queue_state.assigned + 1), self._keys.from_index(queue_state.next)
        while not queue_state.read_ahead:
            found = await self._etcd.range(start, end, limit=READ_AHEAD)
            for kv in found.kvs:
                if (stands := self._keys.in_line(kv.key)) is not None:
                    queue_state.read_ahead.append(UnassignedMessage(*stands, kv.value))
                    queue_state.read_ahead_bytes += len(kv.value)
            if not found.more:
                break
            start = found.kvs[-1].key + b"\0"
        if not queue_state.read_ahead:  # all of them were removed from the line by hand
            queue_state.assigned = queue_state.next - 1

    # -- events --------------------------------------------------------------------------------------------------------

    def _on_wake(self, failure: Exception | None) -> None:
        self._failure = self._failure or failure
        self._wake.set()

    def _on_event(self, event: Any, fence: int) -> None:
        kv, queue_state, now = event.kv, self.queue_state, self._clock.now_ms()
        assert queue_state is not None
        if kv.key == self._keys.leader:
            if event.type == DELETE or kv.create_revision != fence:
                raise LeadershipLost(self._keys.queue)
            queue_state.check_leader_key(kv, self._lease)
            return
        if kv.key == self._keys.long_leader:
            if (event.type == PUT) != queue_state.long_keys:
                raise LongKeysChanged
            if event.type == PUT:
                queue_state.check_long_leader_key(kv)
            return
        match self._keys.parsed(kv.key):
            case InboxKey(sender, name) if event.type == PUT:
                queue_state.inbox.add(InboxArrival(kv.key, sender, name, kv.mod_revision, kv.value))
            case RegistrationKey(home, _) if event.type == PUT:
                queue_state.register(home, kv)
            case RegistrationKey(home, _):
                queue_state.unregister(home, kv.key, now)
            case DeliveryKey(home, index, _) if event.type == DELETE:
                queue_state.settle_delivery(home, index, kv.mod_revision, now)
            case NackKey(home, index) if event.type == PUT:
                queue_state.nack(home, index, kv.key, kv.value, now, self._ids.fraction())
            case PolicyKey():
                queue_state.policy = policy_of(self._keys.queue, kv.value if event.type == PUT else b"")
