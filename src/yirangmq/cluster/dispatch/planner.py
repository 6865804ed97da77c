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
from yirangmq.cluster.dispatch.state import AHEAD, AHEAD_BYTES, Arrival, Consumer, Ledger, Removal, Return, Waiting
from yirangmq.cluster.etcd import client
from yirangmq.cluster.etcd.client import Packing
from yirangmq.core.message import Message
from yirangmq.core.states import State
from yirangmq.format.json_codec import dumps

# -- planning ----------------------------------------------------------------------------------------------------------

MOST_BYTES = 1_000_000
"""Bytes of values in one request. etcd accepts 1.5 MiB, including keys."""
MOST_MOVES = 100
MOST_REMOVED = 400
LONE_REMOVALS = 200
"""Acked messages from which on short runs are removed even while there is other work. Below it, a run shorter than
``RUN`` waits for its neighbours in line, because one operation removes a whole run."""
RUN = 4
MOST_LOOSE = 48
HEARTBEAT_MS = 2_000
"""Period in ms of writing the state while the inbox holds a message that cannot be moved, so that standbys do not
depose this leader as hung."""


class Most(NamedTuple):
    """Limits of one transaction: moves out of the inbox, and bytes left in etcd's quota."""

    moves: int = MOST_MOVES
    bytes: float = float("inf")


ALL = Most()


@dataclass(slots=True)
class Batch:
    """One transaction, and the changes of the dispatcher's state that follow when it succeeds."""

    packing: Packing
    next: int
    assigned: int
    at: int = 0
    moves: list[Arrival] = field(default_factory=list)
    lined_up: list[Waiting] = field(default_factory=list)
    """Moved messages that were not delivered in the same transaction."""
    repeats: list[Arrival] = field(default_factory=list)
    from_ahead: int = 0
    handed_out: list[Message] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    loose: int = 0
    returns: list[tuple[int, int, Return]] = field(default_factory=list)
    """(position among the answers, index, return)."""
    rewrites: list[bytes] = field(default_factory=list)
    drops: list[bytes] = field(default_factory=list)
    bytes: int = 0
    most_bytes: float = float("inf")
    was_short: bool = False
    """Some work was left out because of etcd's quota."""

    @property
    def is_empty(self) -> bool:
        return self.packing.is_empty

    def room(self, size: int) -> bool:
        """Return whether a value of ``size`` bytes fits. A value larger than the limit is accepted into an empty
        batch."""
        if self.bytes + size > self.most_bytes:
            self.was_short = True
            return False
        return self.packing.has_room() and (self.bytes == 0 or self.bytes + size <= MOST_BYTES)


def plan(ledger: Ledger, fence: int, now: int, full: float, most: Most = ALL) -> Batch:
    """Build the next transaction; it is empty if there is no work."""
    batch = _begun(ledger, fence, now)
    batch.most_bytes = most.bytes
    _put_right(ledger, batch)
    _return(ledger, batch)
    if not ledger.policy.paused:
        _hand_out_again(ledger, batch, now)
        _hand_out_waiting(ledger, batch, now)
    _move(ledger, batch, now, most.moves)
    _remove(ledger, batch, is_busy=not batch.is_empty)
    if not batch.is_empty:
        batch.packing.put_outside(ledger.keys.state, state_text(ledger, batch, now, full))
    return batch


def plan_removals(ledger: Ledger, fence: int) -> Batch:
    """Build a transaction of deletes only, which a full etcd still accepts."""
    batch = _begun(ledger, fence, 0)
    _remove(ledger, batch, is_busy=False)
    return batch


def heartbeat(ledger: Ledger, fence: int, now: int, full: float) -> Batch:
    """Build a transaction that writes only the state."""
    batch = _begun(ledger, fence, now)
    batch.packing.put_outside(ledger.keys.state, state_text(ledger, batch, now, full))
    return batch


def _begun(ledger: Ledger, fence: int, now: int) -> Batch:
    packing = Packing(client.created_at(ledger.keys.leader, fence))
    packing.otherwise(client.get(ledger.keys.leader))
    return Batch(packing, ledger.next, ledger.assigned, now)


def state_text(ledger: Ledger, batch: Batch, now: int, full: float) -> bytes:
    tally = ledger.tally
    return dumps(
        {
            "next": batch.next,
            "assigned": batch.assigned,
            "moved": tally.moved + len(batch.moves),
            "acked": tally.acked + len(batch.removed),
            "returned": tally.returned,
            "dead": tally.dead,
            "node": ledger.node,
            "full": round(full, 3),
            "at": now,
        }
    )


def _remove(ledger: Ledger, batch: Batch, *, is_busy: bool) -> None:
    """Remove acked messages, each run by one operation, and loose keys: nacks and notes without a delivery."""
    for key in islice(ledger.loose, MOST_LOOSE):
        batch.packing.delete(key)
        batch.loose += 1
    for run in _runs(ledger):
        if is_busy and len(run) < RUN and len(ledger.removals) < LONE_REMOVALS:
            continue
        if not batch.packing.has_room(1 + len(run)):
            return
        first, last = run[0], run[-1]
        end = ledger.keys.ordered(last.number, last.name) + b"\0"
        batch.packing.delete(ledger.keys.ordered(first.number, first.name), end)
        for one in run:
            batch.removed.add(one.number)
            if one.noted:
                batch.packing.delete(ledger.keys.retry(one.number))


def _runs(ledger: Ledger) -> Iterator[list[Removal]]:
    """Yield runs of acked messages in order. A message in between that is still needed ends a run."""
    run: list[Removal] = []
    for one in sorted(islice(ledger.removals, MOST_REMOVED)):
        if run and not ledger.is_clear(run[-1].number + 1, one.number):
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _put_right(ledger: Ledger, batch: Batch) -> None:
    for key, (revision, host) in list(ledger.rewrites.items())[:10]:
        batch.packing.add(client.nested([client.changed_at(key, revision)], [client.rewrite(key, host)]))
        batch.rewrites.append(key)
    for key, created in list(ledger.drops.items())[:10]:
        batch.packing.add(client.nested([client.created_at(key, created)], [client.delete(key)]))
        batch.drops.append(key)


def _return(ledger: Ledger, batch: Batch) -> None:
    for index, one in ledger.returning.items():
        size = len(ledger.bodies.get(index, b""))
        if not batch.room(size):
            return
        operations = _coming_back(ledger, index, one)
        if operations is None:
            continue  # its body has not been read yet
        copy = messages.home_of(one.card) + b"%020d/" % index + messages.name_of(one.card)
        inside = [client.delete(copy), *operations]
        batch.returns.append((batch.packing.place, index, one))
        otherwise = [client.delete(one.also)] if one.also else []
        batch.packing.add(client.nested([client.exists(copy)], inside + otherwise, otherwise))
        batch.bytes += size


def _coming_back(ledger: Ledger, index: int, one: Return) -> list[Any] | None:
    keys, card, name = ledger.keys, one.outcome.message, messages.name_of(one.card)
    if card.state in (State.READY, State.DELAYED):
        return [client.put(keys.retry(index), messages.note(card, out=False))]
    gone = [client.delete(keys.ordered(index, name)), client.delete(keys.retry(index))]
    if card.state is State.DROPPED:
        return gone
    body = ledger.bodies.get(index)
    if body is None:
        return None
    return [
        *gone,
        client.put(keys.dead(index, name), body),
        client.put(keys.why(index), messages.why(card, one.outcome.failure)),
    ]


def _hand_out_again(ledger: Ledger, batch: Batch, now: int) -> None:
    if not ledger.back or not ledger.bodies:
        return
    for card in ledger.ready_again():
        body = ledger.bodies.get(card.seq)
        if body is None:
            continue
        consumer = ledger.choose()
        if consumer is None or not batch.room(len(body)):
            return
        _copy(batch, ledger.hand_out(card, consumer, now), consumer, body)
        batch.packing.put(ledger.keys.retry(card.seq), messages.note(card, out=True))
        batch.again.append(card.seq)


def _hand_out_waiting(ledger: Ledger, batch: Batch, now: int) -> None:
    for one in ledger.ahead:
        if (consumer := ledger.choose()) is None or not batch.room(len(one.value)):
            return
        card = messages.fresh(ledger.keys.queue, one.number, one.name)
        _copy(batch, ledger.hand_out(card, consumer, now), consumer, one.value)
        batch.from_ahead += 1
        batch.assigned = one.number


def _copy(batch: Batch, card: Message, consumer: Consumer, body: bytes) -> None:
    batch.packing.put(copy_key(consumer.home, card), body)
    batch.handed_out.append(card)
    batch.bytes += len(body)


def copy_key(home: bytes, card: Message) -> bytes:
    return home + b"%020d/" % card.seq + messages.name_of(card)


def _move(ledger: Ledger, batch: Batch, now: int, most: int) -> None:
    """Move messages from the inbox into line, and deliver them in the same transaction if no message is before
    them."""
    seen: dict[tuple[bytes, bytes], bytes] = {}
    for arrival in ledger.inbox:
        if arrival.value is None or len(batch.moves) + len(batch.repeats) >= most:
            return
        if arrival.key in ledger.inbox.stuck:
            continue
        size = len(arrival.value)
        if not batch.room(size):
            return
        if ledger.is_repeat(arrival, now) or seen.get((arrival.sender, arrival.name)) == arrival.value:
            gone = client.nested([client.changed_at(arrival.key, arrival.revision)], [client.delete(arrival.key)])
            batch.packing.add(gone)
            batch.repeats.append(arrival)
            continue
        seen[arrival.sender, arrival.name] = arrival.value
        _move_one(ledger, batch, arrival, arrival.value, now)


def _move_one(ledger: Ledger, batch: Batch, arrival: Arrival, value: bytes, now: int) -> None:
    index, packing = batch.next, batch.packing
    packing.only_if(arrival.key, arrival.revision)
    packing.delete(arrival.key)
    packing.put(ledger.keys.ordered(index, arrival.name), value)
    batch.bytes += len(value)
    is_first = batch.assigned + 1 == index and not ledger.policy.paused
    fits = batch.bytes + len(value) <= min(MOST_BYTES, batch.most_bytes)
    consumer = ledger.choose() if is_first and fits else None
    if consumer is not None:
        card = messages.fresh(ledger.keys.queue, index, arrival.name)
        _copy(batch, ledger.hand_out(card, consumer, now), consumer, value)
        batch.assigned = index
    else:
        batch.lined_up.append(Waiting(index, arrival.name, value))
    batch.moves.append(arrival)
    batch.next = index + 1


# -- applying or undoing the outcome -----------------------------------------------------------------------------------


def settle(ledger: Ledger, batch: Batch, responses: Any, revision: int) -> None:
    """Apply a batch that succeeded at this revision to the dispatcher's state."""
    for arrival in (*batch.moves, *batch.repeats):
        ledger.inbox.leave(arrival)
    for arrival in batch.moves:
        ledger.remember(arrival, batch.at)
    for _ in range(batch.from_ahead):
        ledger.ahead_bytes -= len(ledger.ahead.popleft().value)
    _line_up(ledger, batch)
    if batch.removed:
        ledger.removals = deque(one for one in ledger.removals if one.number not in batch.removed)
    for _ in range(batch.loose):
        ledger.loose.popleft()
    for index in batch.again:
        ledger.leave_again(index)
        ledger.bodies.pop(index, None)
    for place, index, one in batch.returns:
        _came_back(ledger, index, one, responses[place].response_txn.succeeded, revision)
    for key in batch.rewrites:
        ledger.rewrites.pop(key, None)
    for key in batch.drops:
        ledger.drops.pop(key, None)
    ledger.next, ledger.assigned = batch.next, batch.assigned
    ledger.unsaid = bool(batch.returns)
    ledger.tally.moved += len(batch.moves)
    ledger.tally.acked += len(batch.removed)


def _line_up(ledger: Ledger, batch: Batch) -> None:
    """Append moved messages to the read-ahead while they follow its last number and fit its limits."""
    for one in batch.lined_up:
        follows = ledger.ahead[-1].number + 1 if ledger.ahead else batch.assigned + 1
        if one.number != follows or len(ledger.ahead) >= AHEAD or ledger.ahead_bytes + len(one.value) > AHEAD_BYTES:
            return
        ledger.ahead.append(one)
        ledger.ahead_bytes += len(one.value)


def _came_back(ledger: Ledger, index: int, one: Return, was_there: bool, revision: int) -> None:
    ledger.returning.pop(index, None)
    ledger.taken_at.pop(index, None)
    if not was_there:  # its consumer acked it before the transaction
        ledger.removals.append(Removal(index, messages.name_of(one.card), one.card.leases > 1))
        ledger.bodies.pop(index, None)
        return
    ledger.tally.returned += 1
    card = one.outcome.message
    if card.state in (State.READY, State.DELAYED):
        ledger.come_back(card, revision)
    else:
        ledger.bodies.pop(index, None)
        ledger.tally.dead += card.state is not State.DROPPED


def undo(ledger: Ledger, batch: Batch) -> None:
    """Undo a batch that was not applied: its deliveries were recorded before it was sent."""
    for card in batch.handed_out:
        ledger.take_back(card)


def drop_changed(ledger: Ledger, batch: Batch, found: Any) -> None:
    """Forget moves with a changed key: the key is deleted, or the watch delivers its new content."""
    for arrival, answer in zip(batch.moves, found, strict=True):
        kvs = answer.response_range.kvs
        if not kvs or kvs[0].mod_revision != arrival.revision:
            ledger.inbox.leave(arrival)
