"""Node of a cluster without a server: finds queues in etcd, takes part in the leader election of each, and dispatches
the queues that it leads.

The key ``/q/QUEUE`` names the leader and is attached to the node's one lease. Its create revision is the fencing token
of everything its dispatcher writes. The lease only decides how soon another node may try: a leader that slept and wakes
does no harm. A standby deposes a leader that leaves its inbox untouched for ``watchdog`` seconds.

The lead of a queue moves to this node when all its consumers have been here for ``near`` seconds, and no message is
in the queue that a change would delay."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any

from yirangmq.cluster.discovery import IgnoredKeysMonitor, find_queues
from yirangmq.cluster.dispatch.dispatcher import Dispatcher, DispatcherOptions, Idle
from yirangmq.cluster.dispatch.recovery import LeadershipLost
from yirangmq.cluster.etcd.address import DEFAULT_NAME, EtcdAddress
from yirangmq.cluster.etcd.channel import RevisionCompacted
from yirangmq.cluster.etcd.client import Etcd, create_revision_equals, delete, get, put
from yirangmq.cluster.etcd.lease import EtcdLease
from yirangmq.cluster.etcd.quota import Upkeep
from yirangmq.cluster.keys import DeliveryKey, InboxKey, Keys, NackKey, RegistrationKey, read_registration
from yirangmq.cluster.leadership import find_leader
from yirangmq.core.errors import NotAllowed, QueueError, Unavailable, WrongState
from yirangmq.core.ports import Clock, Ids

# -- moving the lead to the consumers ----------------------------------------------------------------------------------

CHECKS_PER_INTERVAL = 3
"""Checks per ``near`` interval."""
MAX_CONSUMERS = 64
Consumers = tuple[tuple[bytes, int], ...]
"""Registration keys of consumers, each with its create revision."""


async def wait_until_local(etcd: Etcd, keys: Keys, node: str, seconds: float) -> None:
    """Wait until all consumers have been at this node, with an empty queue, for ``seconds`` without a change."""
    loop = asyncio.get_running_loop()
    known: Consumers = ()
    since = loop.time()
    while True:
        await asyncio.sleep(seconds / CHECKS_PER_INTERVAL)
        try:
            found = await _local_consumers(etcd, keys, node.encode())
        except Unavailable:
            found = ()
        if not found or found != known:
            known, since = found, loop.time()
        elif loop.time() - since >= seconds:
            return


async def _local_consumers(etcd: Etcd, keys: Keys, node: bytes) -> Consumers:
    """Return the consumers if all of them are at this node, and inbox, line and deliveries are empty; else ()."""
    ranges = [get(start, end, limit=MAX_CONSUMERS + 2, keys_only=True) for start, end in keys.watched()]
    line = get(keys.base + b"0", keys.ordered_end, limit=1, keys_only=True)
    answer = await etcd.txn([], [line, *ranges], repeat=True)
    waiting, *others = (one.response_range.kvs for one in answer.responses)
    found = [(kv.key, keys.parsed(kv.key)) for kvs in others for kv in kvs]
    homes = [key for key, parsed in found if isinstance(parsed, RegistrationKey)]
    is_idle = not waiting and not any(isinstance(parsed, InboxKey | DeliveryKey | NackKey) for _, parsed in found)
    if not is_idle or not 0 < len(homes) <= MAX_CONSUMERS:
        return ()
    answer = await etcd.txn([], [get(key) for key in homes], repeat=True)
    kvs = [kv for one in answer.responses for kv in one.response_range.kvs]
    are_local = all(read_registration(kv.value).host == node for kv in kvs)
    return tuple((kv.key, kv.create_revision) for kv in kvs) if are_local else ()


# -- the node ----------------------------------------------------------------------------------------------------------

PAUSE_SECONDS = 0.2
STEP_DOWN_SECONDS = 1.0
"""Pause of a deposed node before it stands again, so that the others try first."""
STAGGER_SECONDS = 0.02
"""Delay before standing, per queue that the node leads already: it spreads the leads over the nodes."""
PUT, DELETE = 0, 1
log = logging.getLogger("yirangmq.cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNodeSettings:
    """Settings of a node; durations in seconds.

    - ``watchdog``: time that a leader may leave its inbox unchanged before another node deposes it.
    - ``compact``: period of compaction; it drops history older than one period. A file nearly as large as the quota is
      also defragmented. 0 turns both off.
    - ``quota``: etcd's quota in bytes, used if the members do not report it.
    - ``near``: time after which the lead moves to the node of all consumers, if the queue was empty all that time."""

    name: str
    lease: int = 5
    poll: float = 1.0
    watchdog: float = 10.0
    compact: float = 30.0
    near: float = 30.0
    quota: int = 2 * 1024**3
    dispatcher_options: DispatcherOptions = field(default_factory=DispatcherOptions)


class ClusterNode:
    """Cluster node: one lease, one task per queue, and a dispatcher for each queue that it leads (``dispatchers``)."""

    def __init__(self, etcd: Etcd, address: EtcdAddress, clock: Clock, ids: Ids, settings: ClusterNodeSettings) -> None:
        self._etcd = etcd
        self._clock = clock
        self._ids = ids
        self._settings = settings
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.dispatchers: dict[str, Dispatcher] = {}
        self.ignored_keys = IgnoredKeysMonitor(etcd, served=False)
        self._upkeep = Upkeep(
            etcd, address, settings.quota, settings.poll * 5, settings.compact, lambda: bool(self.dispatchers)
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop``; then revoke the lease, so that other nodes lead within a moment."""
        chores = [asyncio.ensure_future(one.run()) for one in (self._upkeep, self.ignored_keys)]
        try:
            while not stop.is_set():
                try:
                    async with await EtcdLease.grant(self._etcd, self._settings.lease) as lease:
                        await self._serve(lease, stop)
                except QueueError as error:
                    log.warning("node_lease_grant_failed", extra={"values": {"error": str(error)}})
                    await _wait_or_stop(stop, PAUSE_SECONDS)
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)

    async def check_free(self) -> None:
        """Raise ``WrongState`` if a server serves the default store of this etcd.

        Queues are dispatched by these nodes or served by servers, never both, because both take from the same
        inboxes."""
        try:
            leader = await find_leader(self._etcd, DEFAULT_NAME)
        except NotAllowed:  # the role of this node is older than served stores
            return
        if leader is not None and leader.forward:
            text = f"node {leader.node} serves the queues of this etcd: yirangmq serve --store etcd://…"
            raise WrongState(f"{text}; give that store a name of its own, or stop it", field="store")

    async def _serve(self, lease: EtcdLease, stop: asyncio.Event) -> None:
        stopping = asyncio.ensure_future(stop.wait())
        losing = asyncio.ensure_future(lease.lost.wait())
        try:
            while not stop.is_set() and not lease.lost.is_set():
                with contextlib.suppress(Unavailable):
                    await self.check_free()
                    for queue in await find_queues(self._etcd):
                        if queue not in self._tasks or self._task_crashed(queue):
                            self._tasks[queue] = asyncio.ensure_future(self._serve_queue(queue, lease))
                await asyncio.wait((stopping, losing), timeout=self._settings.poll, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                log.warning("node_lease_lost", extra={"values": {"node": self._settings.name}})
        finally:
            for task in (stopping, losing, *self._tasks.values()):
                task.cancel()
            await asyncio.gather(stopping, losing, *self._tasks.values(), return_exceptions=True)
            self._tasks.clear()
            self.dispatchers.clear()

    def _task_crashed(self, queue: str) -> bool:
        """Log a crashed queue task, so that the caller restarts it: a bug must not leave the queue unserved."""
        task = self._tasks[queue]
        if not task.done():
            return False
        fault = None if task.cancelled() else task.exception()
        log.error("queue_task_crashed", exc_info=fault, extra={"values": {"queue": queue}})
        return True

    async def _serve_queue(self, queue: str, lease: EtcdLease) -> None:
        """Serve one queue, as leader or standby, until the task is cancelled at the end of the lease."""
        keys = Keys(queue)
        while True:
            try:
                await self._wait_until_needed(keys)
                await asyncio.sleep(STAGGER_SECONDS * len(self.dispatchers))
                fence, seen = await self._try_acquire(keys, lease)
                if fence:
                    await self._lead(keys, fence, lease.id)
                else:
                    await self._stand_by(keys, *seen)
            except (QueueError, RevisionCompacted) as error:
                if not isinstance(error, Unavailable | RevisionCompacted):
                    log.error("queue_task_failed", extra={"values": {"queue": queue, "error": str(error)}})
                await asyncio.sleep(PAUSE_SECONDS)

    async def _try_acquire(self, keys: Keys, lease: EtcdLease) -> tuple[int, tuple[int, int]]:
        """Try to create the leader's key. Return the fence if this node won.

        Otherwise return fence 0, and (revision to watch from, create revision of the leader's key)."""
        name = self._settings.name.encode()
        answer = await self._etcd.txn(
            [create_revision_equals(keys.leader, 0)], [put(keys.leader, name, lease.id)], [get(keys.leader)]
        )
        revision = int(answer.header.revision)
        if answer.succeeded:
            return revision, (0, 0)
        held = answer.responses[0].response_range.kvs[0]
        if held.lease == lease.id:  # won in an earlier attempt, and its answer was lost
            return int(held.create_revision), (0, 0)
        return 0, (revision + 1, int(held.create_revision))

    async def _lead(self, keys: Keys, fence: int, lease: int) -> None:
        queue, log_values = keys.queue, {"queue": keys.queue, "node": self._settings.name, "fence": fence}
        log.info("leadership_acquired", extra={"values": log_values})
        dispatcher = Dispatcher(
            self._etcd,
            queue,
            self._settings.name,
            self._clock,
            self._ids,
            self._upkeep.quota,
            self._settings.dispatcher_options,
        )
        self.dispatchers[queue] = dispatcher
        try:
            await dispatcher.lead(fence, lease)
        except LeadershipLost:
            log.info("leadership_lost", extra={"values": log_values})
            self.dispatchers.pop(queue, None)
            await asyncio.sleep(STEP_DOWN_SECONDS)
        except Idle:
            log.info("leadership_released_idle", extra={"values": log_values})
            await self._etcd.txn([create_revision_equals(keys.leader, fence)], [delete(keys.leader)], repeat=True)
        finally:
            self.dispatchers.pop(queue, None)

    async def _stand_by(self, keys: Keys, revision: int, created: int) -> None:
        """Wait until the leader's key is gone. Depose a leader that leaves its inbox untouched, or to move the lead to
        the node of all consumers; the fence makes that safe."""
        waiting = asyncio.ensure_future(self._wait_key_deleted(keys, revision))
        nearing = asyncio.ensure_future(wait_until_local(self._etcd, keys, self._settings.name, self._settings.near))
        seen: Any = None
        try:
            while not waiting.done():
                awaited = {waiting, nearing} if not nearing.done() else {waiting}
                await asyncio.wait(awaited, timeout=self._settings.watchdog, return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    break
                if nearing.done() and nearing in awaited:
                    nearing.result()
                    log.info("remote_leader_replaced", extra={"values": {"queue": keys.queue}})
                    await self._depose(keys, created)
                    continue
                poll = await self._poll(keys)
                if poll is not None and poll == seen:
                    log.warning("unresponsive_leader_replaced", extra={"values": {"queue": keys.queue}})
                    await self._depose(keys, created)
                seen = poll
            waiting.result()
        finally:
            for task in (waiting, nearing):
                task.cancel()
            await asyncio.gather(waiting, nearing, return_exceptions=True)

    async def _depose(self, keys: Keys, created: int) -> None:
        """Delete the leader's key if it is still the one created at this revision."""
        await self._etcd.txn([create_revision_equals(keys.leader, created)], [delete(keys.leader)], repeat=True)

    async def _wait_key_deleted(self, keys: Keys, revision: int) -> None:
        async for events in self._etcd.watch(keys.leader, revision=revision):
            if any(event.type == DELETE for event in events):
                return

    async def _poll(self, keys: Keys) -> tuple[bytes, int] | None:
        """Return the oldest key of the inbox and the revision of the state key; None if the inbox is empty.

        The same pair twice means that the leader did nothing in between."""
        oldest: dict[str, Any] = {"limit": 1, "keys_only": True, "sort_order": 1, "sort_target": 3}
        ranges = [get(start, end, **oldest) for start, end in keys.inbox_places()]
        answer = await self._etcd.txn([], [get(keys.state, keys_only=True), *ranges], repeat=True)
        state, *inboxes = (one.response_range.kvs for one in answer.responses)
        found = [kv for kvs in inboxes for kv in kvs]
        return (found[0].key, state[0].mod_revision if state else 0) if found else None

    async def _wait_until_needed(self, keys: Keys) -> None:
        """Wait until the queue needs a leader: it has one already, holds messages, or has consumers."""
        few: dict[str, Any] = {"limit": 1, "keys_only": True}
        ranges = [get(start, end, **few) for start, end in (*keys.inbox_places(), *keys.consumers())]
        ranges += [get(keys.leader, **few), get(keys.base + b"0", keys.ordered_end, **few)]
        while True:
            answer = await self._etcd.txn([], ranges, repeat=True)
            if any(one.response_range.kvs for one in answer.responses):
                return
            await asyncio.sleep(self._settings.poll)


async def _wait_or_stop(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
