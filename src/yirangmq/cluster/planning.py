"""The next transaction of a dispatcher, made from its ledger. Knows: the ledger, etcd's transactions and their
limits. Does not know: connections, waiting.

Every transaction is fenced: it does nothing unless the leader's key is still the one we made. All its moves out of
the inbox are done or none is, so that the numbers of the messages in line have no gaps: a producer that writes its
key anew between our look and our transaction makes us look again. What may be gone meanwhile (a copy that its
consumer has just acked) is asked in a transaction inside, which says what it found. The state is written on the outer
level, where etcd's quota counts it."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from yirangmq.cluster import cards, etcd
from yirangmq.cluster.ledger import AHEAD, AHEAD_BYTES, Arrival, Consumer, Ledger, Removal, Return, Waiting
from yirangmq.core.message import Message
from yirangmq.core.states import State
from yirangmq.format.jsontext import dumps

MOST_TOP = 100
MOST_INSIDE = 24
"""etcd takes 128 operations on a level, and counts those inside with those beside them."""
MOST_BYTES = 1_000_000
"""Of values in one request; etcd takes 1.5 MiB, keys and all."""
MOST_MOVES = 90
HEARTBEAT_MS = 2_000
"""How often the state is written while something lies in the inbox that cannot be moved, so that nobody thinks we
sleep."""


class Most(NamedTuple):
    """What one transaction may do: moves out of the inbox, and bytes that etcd has room for."""

    moves: int = MOST_MOVES
    bytes: float = float("inf")


ALL = Most()


@dataclass(slots=True)
class Batch:
    """A transaction, and what it is about."""

    compare: list[Any]
    success: list[Any]
    failure: list[Any]
    next: int
    assigned: int
    at: int = 0
    moves: list[Arrival] = field(default_factory=list)
    lined_up: list[Waiting] = field(default_factory=list)
    """Of the moved those that nobody was given."""
    repeats: list[Arrival] = field(default_factory=list)
    from_ahead: int = 0
    handed_out: list[Message] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    removed: int = 0
    loose: int = 0
    returns: list[tuple[int, int, Return]] = field(default_factory=list)
    """(place among the answers, index, what was to happen)."""
    rewrites: list[bytes] = field(default_factory=list)
    drops: list[bytes] = field(default_factory=list)
    bytes: int = 0
    most_bytes: float = float("inf")
    was_short: bool = False
    """There was more to do than etcd has room for."""

    @property
    def is_empty(self) -> bool:
        return not self.success

    def room(self, size: int) -> bool:
        """A single thing that is larger than all goes alone."""
        if self.bytes + size > self.most_bytes:
            self.was_short = True
            return False
        return len(self.success) < MOST_TOP and (self.bytes == 0 or self.bytes + size <= MOST_BYTES)


def plan(ledger: Ledger, fence: int, now: int, full: float, most: Most = ALL) -> Batch:
    """What can be done now, as one transaction; empty if nothing can."""
    batch = Batch([etcd.created_at(ledger.keys.leader, fence)], [], [], ledger.next, ledger.assigned, now)
    batch.most_bytes = most.bytes
    _remove(ledger, batch)
    _put_right(ledger, batch)
    _return(ledger, batch)
    if not ledger.policy.paused:
        _hand_out_again(ledger, batch, now)
        _hand_out_waiting(ledger, batch, now)
    _move(ledger, batch, now, most.moves)
    if batch.success:
        batch.success.append(etcd.put(ledger.keys.state, state_text(ledger, batch, now, full)))
        batch.failure = [etcd.get(ledger.keys.leader)]
        batch.failure += [etcd.get(one.key, keys_only=True) for one in batch.moves]
    return batch


def plan_removals(ledger: Ledger, fence: int) -> Batch:
    """What etcd still does when it is full: deletes alone."""
    batch = Batch([etcd.created_at(ledger.keys.leader, fence)], [], [], ledger.next, ledger.assigned)
    _remove(ledger, batch)
    batch.failure = [etcd.get(ledger.keys.leader)]
    return batch


def heartbeat(ledger: Ledger, fence: int, now: int, full: float) -> Batch:
    """The state alone."""
    batch = Batch([etcd.created_at(ledger.keys.leader, fence)], [], [], ledger.next, ledger.assigned)
    batch.success.append(etcd.put(ledger.keys.state, state_text(ledger, batch, now, full)))
    batch.failure = [etcd.get(ledger.keys.leader)]
    return batch


def state_text(ledger: Ledger, batch: Batch, now: int, full: float) -> bytes:
    tally = ledger.tally
    return dumps(
        {
            "next": batch.next,
            "assigned": batch.assigned,
            "moved": tally.moved + len(batch.moves),
            "acked": tally.acked + batch.removed,
            "returned": tally.returned,
            "dead": tally.dead,
            "node": ledger.node,
            "full": round(full, 3),
            "at": now,
        }
    )


def _remove(ledger: Ledger, batch: Batch) -> None:
    """Acked messages, many in one inner transaction; so are nacks that nobody waits for."""
    gone = [(etcd.delete(key),) for key in list(ledger.loose)[: MOST_INSIDE * 2]]
    batch.loose = len(gone)
    for one in list(ledger.removals)[: MOST_INSIDE * 10]:
        gone.append(_removal(ledger, one))
        batch.removed += 1
    pack: list[Any] = []
    for operations in gone:
        if len(pack) + len(operations) > MOST_INSIDE:
            batch.success.append(etcd.nested([], pack))
            pack = []
        pack += operations
    if pack:
        batch.success.append(etcd.nested([], pack))


def _removal(ledger: Ledger, one: Removal) -> tuple[Any, ...]:
    message = etcd.delete(ledger.keys.ordered(one.number, one.name))
    return (message, etcd.delete(ledger.keys.retry(one.number))) if one.noted else (message,)


def _put_right(ledger: Ledger, batch: Batch) -> None:
    for key, (revision, host) in list(ledger.rewrites.items())[:10]:
        batch.success.append(etcd.nested([etcd.changed_at(key, revision)], [etcd.rewrite(key, host)]))
        batch.rewrites.append(key)
    for key, created in list(ledger.drops.items())[:10]:
        batch.success.append(etcd.nested([etcd.created_at(key, created)], [etcd.delete(key)]))
        batch.drops.append(key)


def _return(ledger: Ledger, batch: Batch) -> None:
    for index, one in ledger.returning.items():
        size = len(ledger.bodies.get(index, b""))
        if not batch.room(size):
            return
        operations = _coming_back(ledger, index, one)
        if operations is None:
            continue  # its body is still to be read
        copy = cards.home_of(one.card) + b"%020d/" % index + cards.name_of(one.card)
        inside = [etcd.delete(copy), *operations]
        batch.returns.append((len(batch.success), index, one))
        otherwise = [etcd.delete(one.also)] if one.also else []
        batch.success.append(etcd.nested([etcd.exists(copy)], inside + otherwise, otherwise))
        batch.bytes += size


def _coming_back(ledger: Ledger, index: int, one: Return) -> list[Any] | None:
    keys, card, name = ledger.keys, one.outcome.message, cards.name_of(one.card)
    if card.state in (State.READY, State.DELAYED):
        return [etcd.put(keys.retry(index), cards.note(card, out=False))]
    gone = [etcd.delete(keys.ordered(index, name)), etcd.delete(keys.retry(index))]
    if card.state is State.DROPPED:
        return gone
    body = ledger.bodies.get(index)
    if body is None:
        return None
    return [
        *gone,
        etcd.put(keys.dead(index, name), body),
        etcd.put(keys.why(index), cards.why(card, one.outcome.failure)),
    ]


def _hand_out_again(ledger: Ledger, batch: Batch, now: int) -> None:
    if not ledger.back or not ledger.bodies:
        return
    for card in ledger.ready_again():
        body = ledger.bodies.get(card.seq)
        if body is None:
            continue
        consumer = ledger.choose()
        if consumer is None or len(batch.success) + 1 >= MOST_TOP or not batch.room(len(body)):
            return
        _copy(ledger, batch, ledger.hand_out(card, consumer, now), consumer, body)
        batch.success.append(etcd.put(ledger.keys.retry(card.seq), cards.note(card, out=True)))
        batch.again.append(card.seq)


def _hand_out_waiting(ledger: Ledger, batch: Batch, now: int) -> None:
    for one in ledger.ahead:
        if (consumer := ledger.choose()) is None or not batch.room(len(one.value)):
            return
        card = cards.fresh(ledger.keys.queue, one.number, one.name)
        _copy(ledger, batch, ledger.hand_out(card, consumer, now), consumer, one.value)
        batch.from_ahead += 1
        batch.assigned = one.number


def _copy(ledger: Ledger, batch: Batch, card: Message, consumer: Consumer, body: bytes) -> None:
    batch.success.append(etcd.put(copy_key(consumer.home, card), body))
    batch.handed_out.append(card)
    batch.bytes += len(body)


def copy_key(home: bytes, card: Message) -> bytes:
    return home + b"%020d/" % card.seq + cards.name_of(card)


def _move(ledger: Ledger, batch: Batch, now: int, most: int) -> None:
    """From the inbox into line, and to a consumer at once if nobody stands before it."""
    seen: dict[tuple[bytes, bytes], bytes] = {}
    for arrival in ledger.inbox.values():
        if arrival.value is None or len(batch.moves) + len(batch.repeats) >= most:
            return
        if arrival.key in ledger.stuck:
            continue
        size = len(arrival.value)
        if not batch.room(size):
            return
        if ledger.is_repeat(arrival, now) or seen.get((arrival.sender, arrival.name)) == arrival.value:
            gone = etcd.nested([etcd.changed_at(arrival.key, arrival.revision)], [etcd.delete(arrival.key)])
            batch.success.append(gone)
            batch.repeats.append(arrival)
            continue
        seen[arrival.sender, arrival.name] = arrival.value
        _move_one(ledger, batch, arrival, arrival.value, now)


def _move_one(ledger: Ledger, batch: Batch, arrival: Arrival, value: bytes, now: int) -> None:
    index = batch.next
    batch.compare.append(etcd.changed_at(arrival.key, arrival.revision))
    inside = [etcd.delete(arrival.key), etcd.put(ledger.keys.ordered(index, arrival.name), value)]
    batch.bytes += len(value)
    is_first = batch.assigned + 1 == index and not ledger.policy.paused
    fits = batch.bytes + len(value) <= min(MOST_BYTES, batch.most_bytes)
    consumer = ledger.choose() if is_first and fits else None
    if consumer is not None:
        card = ledger.hand_out(cards.fresh(ledger.keys.queue, index, arrival.name), consumer, now)
        inside.append(etcd.put(copy_key(consumer.home, card), value))
        batch.handed_out.append(card)
        batch.bytes += len(value)
        batch.assigned = index
    else:
        batch.lined_up.append(Waiting(index, arrival.name, value))
    batch.success.append(etcd.nested([], inside))
    batch.moves.append(arrival)
    batch.next = index + 1


def settle(ledger: Ledger, batch: Batch, responses: Any) -> None:
    """It was done: what it did away with leaves the ledger."""
    for arrival in (*batch.moves, *batch.repeats):
        if (known := ledger.inbox.get(arrival.key)) is not None and known.revision == arrival.revision:
            del ledger.inbox[arrival.key]
    for arrival in batch.moves:
        ledger.remember(arrival, batch.at)
    for _ in range(batch.from_ahead):
        ledger.ahead_bytes -= len(ledger.ahead.popleft().value)
    _line_up(ledger, batch)
    for _ in range(batch.removed):
        ledger.removals.popleft()
    for _ in range(batch.loose):
        ledger.loose.popleft()
    for index in batch.again:
        ledger.leave_again(index)
        ledger.bodies.pop(index, None)
    for place, index, one in batch.returns:
        _came_back(ledger, index, one, responses[place].response_txn.succeeded)
    for key in batch.rewrites:
        ledger.rewrites.pop(key, None)
    for key in batch.drops:
        ledger.drops.pop(key, None)
    ledger.next, ledger.assigned = batch.next, batch.assigned
    ledger.unsaid = bool(batch.returns)
    ledger.tally.moved += len(batch.moves)
    ledger.tally.acked += batch.removed


def _line_up(ledger: Ledger, batch: Batch) -> None:
    """Kept at hand while it follows what is at hand already, and little enough."""
    for one in batch.lined_up:
        follows = ledger.ahead[-1].number + 1 if ledger.ahead else batch.assigned + 1
        if one.number != follows or len(ledger.ahead) >= AHEAD or ledger.ahead_bytes + len(one.value) > AHEAD_BYTES:
            return
        ledger.ahead.append(one)
        ledger.ahead_bytes += len(one.value)


def _came_back(ledger: Ledger, index: int, one: Return, was_there: bool) -> None:
    ledger.returning.pop(index, None)
    if not was_there:  # acked at the last moment
        ledger.removals.append(Removal(index, cards.name_of(one.card), one.card.leases > 1))
        ledger.bodies.pop(index, None)
        return
    ledger.tally.returned += 1
    card = one.outcome.message
    if card.state in (State.READY, State.DELAYED):
        ledger.come_back(card)
    else:
        ledger.bodies.pop(index, None)
        ledger.tally.dead += card.state is not State.DROPPED


def undo(ledger: Ledger, batch: Batch) -> None:
    """Nothing of it was done."""
    for card in batch.handed_out:
        ledger.take_back(card)


def drop_changed(ledger: Ledger, batch: Batch, found: list[Any]) -> None:
    """Moves whose key is not as it was: it is gone, or the watch brings its new content."""
    for arrival, answer in zip(batch.moves, found, strict=True):
        kvs = answer.response_range.kvs
        known = ledger.inbox.get(arrival.key)
        is_old = not kvs or kvs[0].mod_revision != arrival.revision
        if is_old and known is not None and known.revision == arrival.revision:
            del ledger.inbox[arrival.key]
