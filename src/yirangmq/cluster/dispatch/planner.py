"""Planner of a dispatcher: builds the next transaction from its state, then applies or undoes the outcome.

- Every transaction is fenced: it does nothing unless the leader's key is still the one this leader made.
- Its moves out of the inbox are all or nothing, so the numbers of the messages in line have no gaps. If a producer
  rewrites a key between the read and the transaction, the transaction fails and the dispatcher reads again.
- A key that may be gone meanwhile, such as a copy that its consumer has just acked, is checked in a nested transaction.
  The answer says whether the key existed.
- The state key is written on the outer level, where etcd's quota counts it.

The functions are pure: they change only the dispatcher's state and the batch."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from yirangmq.cluster.dispatch import messages
from yirangmq.cluster.dispatch.state import (
    MAX_READ_AHEAD,
    MAX_READ_AHEAD_BYTES,
    EtcdQueueState,
    InboxArrival,
    KeyRewrite,
    LineRemoval,
    RegisteredConsumer,
    Revocation,
    UnassignedMessage,
)
from yirangmq.cluster.etcd import client
from yirangmq.cluster.etcd.client import TransactionBuilder
from yirangmq.core.message import Message
from yirangmq.core.states import State
from yirangmq.format.json_codec import dumps

# -- planning ----------------------------------------------------------------------------------------------------------

MAX_BYTES = 1_000_000
"""Bytes of values in one request. etcd accepts 1.5 MiB, including keys."""
MAX_MOVES = 100
MAX_REMOVED = 400
LONE_REMOVALS = 200
"""Acked messages from which on short runs are removed even while there is other work. Below it, a run shorter than
``MIN_RUN`` waits for its neighbours in line, because one operation removes a whole run."""
MIN_RUN = 4
MAX_ORPHAN_KEYS = 48
HEARTBEAT_MS = 2_000
"""Period in ms of writing the state while the inbox holds a message that cannot be moved, so that standbys do not
depose this leader as hung."""


class BatchLimits(NamedTuple):
    """Limits of one transaction: moves out of the inbox, and bytes left in etcd's quota."""

    moves: int = MAX_MOVES
    bytes: float = float("inf")


NO_LIMITS = BatchLimits()


@dataclass(slots=True)
class PlannedTransaction:
    """One transaction, and the changes of the dispatcher's state that follow when it succeeds."""

    builder: TransactionBuilder
    next: int
    assigned: int
    at: int = 0
    moves: list[InboxArrival] = field(default_factory=list)
    unassigned: list[UnassignedMessage] = field(default_factory=list)
    """Moved messages that were not delivered in the same transaction."""
    repeats: list[InboxArrival] = field(default_factory=list)
    from_read_ahead: int = 0
    deliveries: list[Message] = field(default_factory=list)
    redelivered: list[int] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    orphan_keys: int = 0
    returns: list[tuple[int, int, Revocation]] = field(default_factory=list)
    """(position among the answers, index, return)."""
    rewrites: list[tuple[bytes, KeyRewrite]] = field(default_factory=list)
    drops: list[bytes] = field(default_factory=list)
    bytes: int = 0
    max_bytes: float = float("inf")
    lacked_quota: bool = False
    """Some work was left out because of etcd's quota."""

    @property
    def is_empty(self) -> bool:
        return self.builder.is_empty

    def accepts(self, size: int) -> bool:
        """Return whether a value of ``size`` bytes fits. A value larger than the limit is accepted into an empty
        batch."""
        if self.bytes + size > self.max_bytes:
            self.lacked_quota = True
            return False
        return self.builder.has_capacity() and (self.bytes == 0 or self.bytes + size <= MAX_BYTES)


def plan(
    queue_state: EtcdQueueState, fence: int, now: int, full: float, most: BatchLimits = NO_LIMITS
) -> PlannedTransaction:
    """Build the next transaction; it is empty if there is no work."""
    batch = _new_batch(queue_state, fence, now)
    batch.max_bytes = most.bytes
    _restore_keys(queue_state, batch)
    _revoke(queue_state, batch)
    if not queue_state.policy.paused:
        _deliver_returned(queue_state, batch, now)
        _deliver_unassigned(queue_state, batch, now)
    _move(queue_state, batch, now, most.moves)
    _remove(queue_state, batch, is_busy=not batch.is_empty)
    if not batch.is_empty:
        batch.builder.put_top_level(queue_state.keys.state, state_text(queue_state, batch, now, full))
    return batch


def plan_removals(queue_state: EtcdQueueState, fence: int) -> PlannedTransaction:
    """Build a transaction of deletes only, which a full etcd still accepts."""
    batch = _new_batch(queue_state, fence, 0)
    _remove(queue_state, batch, is_busy=False)
    return batch


def heartbeat(queue_state: EtcdQueueState, fence: int, now: int, full: float) -> PlannedTransaction:
    """Build a transaction that writes only the state."""
    batch = _new_batch(queue_state, fence, now)
    batch.builder.put_top_level(queue_state.keys.state, state_text(queue_state, batch, now, full))
    return batch


def _new_batch(queue_state: EtcdQueueState, fence: int, now: int) -> PlannedTransaction:
    builder = TransactionBuilder(client.create_revision_equals(queue_state.keys.leader, fence))
    builder.on_failure(client.get(queue_state.keys.leader))
    return PlannedTransaction(builder, queue_state.next, queue_state.assigned, now)


def state_text(queue_state: EtcdQueueState, batch: PlannedTransaction, now: int, full: float) -> bytes:
    counters = queue_state.counters
    return dumps(
        {
            "next": batch.next,
            "assigned": batch.assigned,
            "moved": counters.moved + len(batch.moves),
            "acked": counters.acked + len(batch.removed),
            "returned": counters.returned,
            "dead": counters.dead,
            "node": queue_state.node,
            "full": round(full, 3),
            "at": now,
        }
    )


def _remove(queue_state: EtcdQueueState, batch: PlannedTransaction, *, is_busy: bool) -> None:
    """Remove acked messages, each run by one operation, and loose keys: nacks and notes without a delivery."""
    for key in islice(queue_state.orphan_keys, MAX_ORPHAN_KEYS):
        batch.builder.delete(key)
        batch.orphan_keys += 1
    for run in _runs(queue_state):
        if is_busy and len(run) < MIN_RUN and len(queue_state.removals) < LONE_REMOVALS:
            continue
        if not batch.builder.has_capacity(2 + len(run)):
            return
        first, last, keys = run[0], run[-1], queue_state.keys
        for key_of in (keys.ordered, keys.long_ordered) if queue_state.long_keys else (keys.ordered,):
            batch.builder.delete(key_of(first.number, first.name), key_of(last.number, last.name) + b"\0")
        for one in run:
            batch.removed.add(one.number)
            if one.noted:
                batch.builder.delete(queue_state.keys.retry(one.number))


def _runs(queue_state: EtcdQueueState) -> Iterator[list[LineRemoval]]:
    """Yield runs of acked messages in order. A message in between that is still needed ends a run."""
    run: list[LineRemoval] = []
    for one in sorted(islice(queue_state.removals, MAX_REMOVED)):
        if run and not queue_state.is_unused(run[-1].number + 1, one.number):
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _restore_keys(queue_state: EtcdQueueState, batch: PlannedTransaction) -> None:
    for key, wanted in islice(queue_state.rewrites.items(), 10):
        put = client.rewrite(key, wanted.value) if wanted.lease is None else client.put(key, wanted.value, wanted.lease)
        batch.builder.add(client.nested([client.mod_revision_equals(key, wanted.revision)], [put]))
        batch.rewrites.append((key, wanted))
    for key, created in islice(queue_state.drops.items(), 10):
        batch.builder.add(client.nested([client.create_revision_equals(key, created)], [client.delete(key)]))
        batch.drops.append(key)


def _revoke(queue_state: EtcdQueueState, batch: PlannedTransaction) -> None:
    for index, one in queue_state.returning.items():
        size = len(queue_state.bodies.get(index, b""))
        if not batch.accepts(size):
            return
        operations = _return_operations(queue_state, index, one)
        if operations is None:
            continue  # its body has not been read yet
        copy = messages.home_of(one.message) + b"%020d/" % index + messages.name_of(one.message)
        inside = [client.delete(copy), *operations]
        batch.returns.append((batch.builder.answer_index, index, one))
        on_failure = [client.delete(one.nack_key)] if one.nack_key else []
        key_bytes = 7 * len(copy) + 2 * len(one.nack_key)  # the longest key, in seven operations
        batch.builder.add(client.nested([client.exists(copy)], inside + on_failure, on_failure), key_bytes)
        batch.bytes += size


def _return_operations(queue_state: EtcdQueueState, index: int, one: Revocation) -> list[Any] | None:
    keys, message, name = queue_state.keys, one.outcome.message, messages.name_of(one.message)
    if message.state in (State.READY, State.DELAYED):
        return [client.put(keys.retry(index), messages.encode_note(message, out=False))]
    gone = [client.delete(keys.ordered(index, name)), client.delete(keys.retry(index))]
    gone += [client.delete(keys.long_ordered(index, name))] * queue_state.long_keys
    if message.state is State.DROPPED:
        return gone
    body = queue_state.bodies.get(index)
    if body is None:
        return None
    return [
        *gone,
        client.put(keys.dead(index, name), body),
        client.put(keys.why(index), messages.why(message, one.outcome.failure)),
    ]


def _deliver_returned(queue_state: EtcdQueueState, batch: PlannedTransaction, now: int) -> None:
    if not queue_state.returned_messages or not queue_state.bodies:
        return
    for message in queue_state.redeliverable():
        body = queue_state.bodies.get(message.seq)
        if body is None:
            continue
        consumer = queue_state.choose()
        if consumer is None or not batch.accepts(_copy_size(consumer, body)):
            return
        _copy(batch, queue_state.deliver(message, consumer, now), consumer, body)
        batch.builder.put(queue_state.keys.retry(message.seq), messages.encode_note(message, out=True))
        batch.redelivered.append(message.seq)


def _deliver_unassigned(queue_state: EtcdQueueState, batch: PlannedTransaction, now: int) -> None:
    for one in queue_state.read_ahead:
        if (consumer := queue_state.choose()) is None or not batch.accepts(_copy_size(consumer, one.value)):
            return
        message = messages.new_message(queue_state.keys.queue, one.number, one.name)
        _copy(batch, queue_state.deliver(message, consumer, now), consumer, one.value)
        batch.from_read_ahead += 1
        batch.assigned = one.number


def _copy(batch: PlannedTransaction, message: Message, consumer: RegisteredConsumer, body: bytes) -> None:
    batch.builder.put(copy_key(consumer.home, message), b"" if consumer.references else body)
    batch.deliveries.append(message)
    batch.bytes += _copy_size(consumer, body)


def _copy_size(consumer: RegisteredConsumer, body: bytes) -> int:
    return 0 if consumer.references else len(body)


def copy_key(home: bytes, message: Message) -> bytes:
    return home + b"%020d/" % message.seq + messages.name_of(message)


def _move(queue_state: EtcdQueueState, batch: PlannedTransaction, now: int, most: int) -> None:
    """Move messages from the inbox into line, and deliver them in the same transaction if no message is before
    them."""
    seen: dict[tuple[bytes, bytes], bytes] = {}
    for arrival in queue_state.inbox:
        if arrival.value is None or len(batch.moves) + len(batch.repeats) >= most:
            return
        if arrival.key in queue_state.inbox.stuck:
            continue
        if not batch.accepts(len(arrival.value) * (2 if queue_state.long_keys else 1)):
            return
        if queue_state.is_repeat(arrival, now) or seen.get((arrival.sender, arrival.name)) == arrival.value:
            gone = client.nested(
                [client.mod_revision_equals(arrival.key, arrival.revision)], [client.delete(arrival.key)]
            )
            batch.builder.add(gone, 2 * len(arrival.key))
            batch.repeats.append(arrival)
            continue
        seen[arrival.sender, arrival.name] = arrival.value
        _move_one(queue_state, batch, arrival, arrival.value, now)


def _move_one(
    queue_state: EtcdQueueState, batch: PlannedTransaction, arrival: InboxArrival, value: bytes, now: int
) -> None:
    index, builder = batch.next, batch.builder
    builder.require_revision(arrival.key, arrival.revision)
    builder.delete(arrival.key)
    builder.put(queue_state.keys.ordered(index, arrival.name), value)
    batch.bytes += len(value)
    if queue_state.long_keys:
        builder.put(queue_state.keys.long_ordered(index, arrival.name), value)
        batch.bytes += len(value)
    is_first = batch.assigned + 1 == index and not queue_state.policy.paused
    consumer = queue_state.choose() if is_first else None
    if consumer is not None and batch.bytes + _copy_size(consumer, value) <= min(MAX_BYTES, batch.max_bytes):
        message = messages.new_message(queue_state.keys.queue, index, arrival.name)
        _copy(batch, queue_state.deliver(message, consumer, now), consumer, value)
        batch.assigned = index
    else:
        batch.unassigned.append(UnassignedMessage(index, arrival.name, value))
    batch.moves.append(arrival)
    batch.next = index + 1


# -- applying or undoing the outcome -----------------------------------------------------------------------------------


def apply(queue_state: EtcdQueueState, batch: PlannedTransaction, responses: Any, revision: int) -> None:
    """Apply a batch that succeeded at this revision to the dispatcher's state."""
    for arrival in (*batch.moves, *batch.repeats):
        queue_state.inbox.remove(arrival)
    for arrival in batch.moves:
        queue_state.remember(arrival, batch.at)
    for _ in range(batch.from_read_ahead):
        queue_state.read_ahead_bytes -= len(queue_state.read_ahead.popleft().value)
    _extend_read_ahead(queue_state, batch)
    if batch.removed:
        queue_state.removals = deque(one for one in queue_state.removals if one.number not in batch.removed)
    for _ in range(batch.orphan_keys):
        queue_state.orphan_keys.popleft()
    for index in batch.redelivered:
        queue_state.remove_returned(index)
        queue_state.bodies.pop(index, None)
    for answer_index, index, one in batch.returns:
        _apply_return(queue_state, index, one, responses[answer_index].response_txn.succeeded, revision)
    for key, done in batch.rewrites:
        if queue_state.rewrites.get(key) == done:  # it was not overwritten again meanwhile
            del queue_state.rewrites[key]
    for key in batch.drops:
        queue_state.drops.pop(key, None)
    queue_state.next, queue_state.assigned = batch.next, batch.assigned
    queue_state.counters_changed = bool(batch.returns)
    queue_state.counters.moved += len(batch.moves)
    queue_state.counters.acked += len(batch.removed)


def _extend_read_ahead(queue_state: EtcdQueueState, batch: PlannedTransaction) -> None:
    """Append moved messages to the read-ahead while they follow its last number and fit its limits."""
    for one in batch.unassigned:
        follows = queue_state.read_ahead[-1].number + 1 if queue_state.read_ahead else batch.assigned + 1
        if (
            one.number != follows
            or len(queue_state.read_ahead) >= MAX_READ_AHEAD
            or queue_state.read_ahead_bytes + len(one.value) > MAX_READ_AHEAD_BYTES
        ):
            return
        queue_state.read_ahead.append(one)
        queue_state.read_ahead_bytes += len(one.value)


def _apply_return(queue_state: EtcdQueueState, index: int, one: Revocation, was_there: bool, revision: int) -> None:
    queue_state.returning.pop(index, None)
    queue_state.revoked_at.pop(index, None)
    if not was_there:  # its consumer acked it before the transaction
        queue_state.removals.append(LineRemoval(index, messages.name_of(one.message), one.message.leases > 1))
        queue_state.bodies.pop(index, None)
        return
    queue_state.counters.returned += 1
    message = one.outcome.message
    if message.state in (State.READY, State.DELAYED):
        queue_state.requeue(message, revision)
    else:
        queue_state.bodies.pop(index, None)
        queue_state.counters.dead += message.state is not State.DROPPED


def undo(queue_state: EtcdQueueState, batch: PlannedTransaction) -> None:
    """Undo a batch that was not applied: its deliveries were recorded before it was sent."""
    for message in batch.deliveries:
        queue_state.undo_delivery(message)


def drop_changed(queue_state: EtcdQueueState, batch: PlannedTransaction, found: Any) -> None:
    """Forget moves with a changed key: the key is deleted, or the watch delivers its new content."""
    for arrival, answer in zip(batch.moves, found, strict=True):
        kvs = answer.response_range.kvs
        if not kvs or kvs[0].mod_revision != arrival.revision:
            queue_state.inbox.remove(arrival)
