"""Recovery of a dispatcher: rebuilds its state from the keys of its queue.

All keys are read at one revision, after a transaction that proves this node leads. A new leader recovers in this way,
and so does a leader that lost an answer or a watch.

A message was delivered before if its number is not above ``assigned``. If no consumer has a copy of it, and no note
says that it waits, it was acked, and only its removal is missing. Without a readable state key the numbers are
counted from the line and the dead letters, and such messages are delivered again instead."""

import logging
from typing import Any, NamedTuple

from yirangmq.cluster.dispatch import messages
from yirangmq.cluster.dispatch.state import MAX_REMEMBERED, EtcdQueueState, InboxArrival, LineRemoval
from yirangmq.cluster.etcd.client import Etcd, create_revision_equals, get
from yirangmq.cluster.keys import DeliveryKey, InboxKey, Keys, NackKey, RegistrationKey, read_dispatched_policy
from yirangmq.core.errors import QueueError
from yirangmq.core.message import Message as Card
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Clock
from yirangmq.format.json_codec import loads

MOD, ASCEND, DESCEND = 3, 1, 2
log = logging.getLogger("yirangmq.cluster")


class LeadershipLost(Exception):
    """This node does not lead the queue or store: its leader's key is gone, or belongs to another node."""


class ConsumerKeys(NamedTuple):
    """Keys of the consumers: registrations as (home, key-value), deliveries as (home, name) by number, and nacks."""

    registrations: list[tuple[bytes, Any]]
    deliveries: dict[int, tuple[bytes, bytes]]
    refusals: list[tuple[NackKey, bytes]]


class DispatchRecovery:
    """Reads the state of one queue from etcd for a new leader term, or after a lost answer or watch."""

    def __init__(self, etcd: Etcd, queue: str, node: str, clock: Clock, window: int) -> None:
        self._etcd = etcd
        self._keys = Keys(queue)
        self._node = node
        self._clock = clock
        self._window = window

    async def read(self, fence: int, lease: int = 0) -> tuple[EtcdQueueState, int]:
        """Return the recovered state and its revision. Raise ``LeadershipLost`` if this node does not lead.

        ``lease`` is the lease on which the leader's key should be."""
        keys = self._keys
        head = await self._etcd.txn(
            [create_revision_equals(keys.leader, fence)],
            [get(keys.leader), get(keys.state), get(keys.policy), get(keys.long_leader)],
            repeat=True,
        )
        if not head.succeeded:
            raise LeadershipLost(keys.queue)
        revision = int(head.header.revision)
        leader, state, policy, long_leader = (answer.response_range.kvs for answer in head.responses)
        queue_state = EtcdQueueState(
            keys.queue, self._node, policy_of(keys.queue, policy[0].value if policy else b""), self._window
        )
        queue_state.check_leader_key(leader[0], lease)
        queue_state.long_keys = bool(long_leader)
        for kv in long_leader:
            queue_state.check_long_leader_key(kv)
        is_known = _read_state(queue_state, state[0].value if state else b"")
        if not is_known:
            await self._derive_numbers(queue_state, revision)
        await self._read_messages(queue_state, revision, is_known)
        await self._find_inbox(queue_state, revision)
        return queue_state, revision

    async def _derive_numbers(self, queue_state: EtcdQueueState, revision: int) -> None:
        """Derive the numbers from the line and the dead letters: the queue is new, or its state key was removed or
        cannot be read."""
        base = self._keys.base
        for first, end in ((base + b"0", self._keys.ordered_end), (base + b"why/", base + b"why0")):
            how: dict[str, Any] = {"limit": 1, "sort_order": DESCEND, "keys_only": True, "revision": revision}
            for kv in (await self._etcd.range(first, end, **how)).kvs:
                text = kv.key.removeprefix(first.removesuffix(b"0")).split(b"/")[0]
                queue_state.next = max(queue_state.next, int(text) + 1 if text.isdigit() else 1)
        queue_state.assigned = queue_state.next - 1

    async def _read_messages(self, queue_state: EtcdQueueState, revision: int, is_known: bool) -> None:
        now, keys = self._clock.now_ms(), self._keys
        found = await self._find_consumers(revision)
        notes = await self._find_notes(revision)
        for home, kv in found.registrations:
            queue_state.register(home, kv)
        async for page in self._etcd.pages(keys.base + b"0", keys.ordered_end, revision=revision, keys_only=True):
            for kv in page:
                if (stands := keys.in_line(kv.key)) is None:
                    continue
                index, name = stands
                queue_state.remember_found(name)
                if index <= queue_state.assigned:
                    self._classify(queue_state, index, name, found, notes, now, is_known)
            if (stands := keys.in_line(page[-1].key)) and stands[0] > queue_state.assigned + MAX_REMEMBERED:
                break
        queue_state.orphan_keys.extend(keys.retry(index) for index in notes)
        for refusal, key in found.refusals:
            kv = await self._etcd.get(key)
            queue_state.nack(refusal.home, refusal.number, key, kv.value if kv else b"", now, 0.5)

    def _classify(
        self,
        queue_state: EtcdQueueState,
        index: int,
        name: bytes,
        found: ConsumerKeys,
        notes: dict[int, tuple[Card, bool]],
        now: int,
        is_known: bool,
    ) -> None:
        """Classify one message that was delivered before: with a consumer, waiting for another delivery, or acked."""
        noted = notes.pop(index, None)
        message, is_out = noted or (messages.new_message(queue_state.keys.queue, index, name), True)
        message = message._replace(id=name.decode("latin-1"))
        home, copy = found.deliveries.get(index, (b"", b""))
        if home and copy == name:
            queue_state.resume(message, home, now)
        elif (noted and not is_out) or not is_known:
            queue_state.requeue(message)
        else:
            queue_state.removals.append(LineRemoval(index, name, noted is not None))

    async def _find_consumers(self, revision: int) -> ConsumerKeys:
        found = ConsumerKeys([], {}, [])
        for start, _ in self._keys.watched():
            async for page in self._etcd.pages(start, start[:-1] + b"d", revision=revision, keys_only=True):
                for kv in page:
                    match self._keys.parsed(kv.key):
                        case RegistrationKey(home, _):
                            whole = await self._etcd.range(kv.key, revision=revision)
                            found.registrations.extend((home, one) for one in whole.kvs)
                        case DeliveryKey(home, index, name):
                            found.deliveries[index] = (home, name)
                        case NackKey() as refusal:
                            found.refusals.append((refusal, kv.key))
        return found

    async def _find_notes(self, revision: int) -> dict[int, tuple[Card, bool]]:
        start = self._keys.base + b"r/"
        notes: dict[int, tuple[Card, bool]] = {}
        async for page in self._etcd.pages(start, self._keys.base + b"r0", revision=revision):
            for kv in page:
                text = kv.key.removeprefix(start)
                if text.isdigit():
                    notes[int(text)] = messages.read_note(self._keys.queue, int(text), kv.value)
        return notes

    async def _find_inbox(self, queue_state: EtcdQueueState, revision: int) -> None:
        """List the keys of the inbox in order of arrival; bodies are read when they are needed."""
        found: list[InboxArrival] = []
        for start, end in self._keys.watched():
            async for page in self._etcd.pages(start[:-1] + b"i", end, revision=revision, keys_only=True):
                for kv in page:
                    if isinstance(one := self._keys.parsed(kv.key), InboxKey):
                        found.append(InboxArrival(kv.key, one.sender, one.name, kv.mod_revision, None))
        for arrival in sorted(found, key=lambda one: one.revision):
            queue_state.inbox.add(arrival)


def policy_of(queue: str, text: bytes) -> QueuePolicy:
    """Parse a policy. One that cannot be read is logged, and the defaults apply: the queue keeps working."""
    try:
        return read_dispatched_policy(loads(text) if text else {})
    except QueueError as error:
        log.warning("policy_read_failed", extra={"values": {"queue": queue, "error": str(error)}})
        return read_dispatched_policy({})


def _read_state(queue_state: EtcdQueueState, text: bytes) -> bool:
    try:
        kept = loads(text)
        next, assigned = int(kept["next"]), int(kept["assigned"])
        if not 0 <= assigned < next:
            return False
        queue_state.next, queue_state.assigned = next, assigned
        for name in ("moved", "acked", "returned", "dead"):
            setattr(queue_state.counters, name, int(kept.get(name, 0)))
    except (QueueError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True
