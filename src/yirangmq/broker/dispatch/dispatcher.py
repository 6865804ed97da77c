"""Dispatcher: messages of a queue to its consumers by the policy's strategy; queue members; message keys.

It serves waiting consumers, as the committer lists them, and consumers that poll without waiting. ``core.dispatch``
decides which message goes to which consumer; ``broker.operations`` leases it. Committing thread only.

Members: the consumers of a queue with a strategy that assigns by consumer id. A store note keeps them across restarts.
The note is written when membership changes, not each time that a consumer is seen; after a failed commit it is written
again.

Key: an attribute of the message, or its group. Messages with the same key go to the same consumer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from yirangmq.broker.dispatch.fan_out import Broadcast
from yirangmq.broker.event_buffer import MAX_IN_FLIGHT, EventBuffer
from yirangmq.broker.selection import Head, MessageSelector, heads_of, targets
from yirangmq.core import dispatch as rules
from yirangmq.core import validation
from yirangmq.core.dispatch import (
    BY_NAME,
    JOINT_STRATEGIES,
    STRATEGIES,
    Candidate,
    Dispatch,
    GroupMembership,
    Memory,
    Strategy,
    next_change,
)
from yirangmq.core.errors import BadInput
from yirangmq.core.message import Envelope, Message
from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageDelivery
from yirangmq.format.json_codec import dumps, loads

# -- members of a queue ------------------------------------------------------------------------------------------------

FOLDER = "dispatch/"
"""Key prefix of the notes with the members, one note per queue."""


class MembershipCache:
    """Members of the queues, cached from the store notes. Committing thread only."""

    def __init__(self) -> None:
        self._known: dict[str, GroupMembership] = {}
        self._noted: dict[str, tuple[dict[str, int], list[str]]] = {}

    def of(self, transaction: Transaction, queue: str, now: int) -> GroupMembership:
        if queue not in self._known:
            found = self._known[queue] = _read(transaction.note(FOLDER + queue), now)
            self._noted[queue] = dict(found.registered), sorted(found.absent)
        return self._known[queue]

    def forget(self, queue: str) -> None:
        """Remove a deleted queue from the cache."""
        self._known.pop(queue, None)
        self._noted.pop(queue, None)

    def invalidate(self) -> None:
        """Invalidate the record of written notes after a failed commit, so that each note is written again."""
        self._noted.clear()

    def update(
        self,
        transaction: Transaction,
        queue: str,
        waiting: Mapping[str, bool],
        now: int,
        grace_ms: int,
        *,
        keeps_all: bool,
    ) -> GroupMembership:
        """Update the members from the consumers that wait now, and remove those away for longer than ``grace_ms``."""
        with_waiting = rules.with_waiting(self.of(transaction, queue, now), waiting, now, keeps_all=keeps_all)
        return self._keep(transaction, queue, rules.without_expired(with_waiting, now, grace_ms), keeps_all)

    def with_lease_request(
        self, transaction: Transaction, queue: str, consumer_id: str, now: int, *, keeps_all: bool
    ) -> GroupMembership:
        return self._keep(
            transaction, queue, rules.with_lease_request(self.of(transaction, queue, now), consumer_id, now), keeps_all
        )

    def register(self, transaction: Transaction, queue: str, consumer_id: str, now: int) -> bool:
        """Register a member. Return False if it was registered already."""
        return self._change(transaction, queue, now, lambda before: rules.registered(before, consumer_id, now))

    def deregister(self, transaction: Transaction, queue: str, consumer_id: str, now: int) -> bool:
        """Remove a registered member. Return False if it was not registered."""
        return self._change(transaction, queue, now, lambda before: rules.deregistered(before, consumer_id))

    def _change(
        self, transaction: Transaction, queue: str, now: int, turn: Callable[[GroupMembership], GroupMembership]
    ) -> bool:
        before = self.of(transaction, queue, now)
        after = self._keep(transaction, queue, turn(before), True)
        return after.registered != before.registered

    def _keep(self, transaction: Transaction, queue: str, after: GroupMembership, is_lasting: bool) -> GroupMembership:
        """Cache the members, and write the note if membership changed. A new time last seen alone is not written."""
        self._known[queue] = after
        passing = sorted({*after.waiting, *after.absent}) if is_lasting else []
        noted = dict(after.registered), passing
        if noted != self._noted.get(queue):
            text = dumps({"registered": noted[0], "seen": noted[1]}).decode() if any(noted) else None
            transaction.set_note(FOLDER + queue, text)
            self._noted[queue] = noted
        return after


def _read(text: str | None, now: int) -> GroupMembership:
    """Parse the note of a queue's members. A note that cannot be parsed (edited by hand) means no members."""
    try:
        given = loads(text.encode()) if text else {}
        registered = {
            validation.check_consumer(name): int(at) for name, at in dict(given.get("registered", {})).items()
        }
        absent = {validation.check_consumer(name): now for name in list(given.get("seen", []))}
    except (BadInput, ValueError, TypeError, AttributeError):
        return GroupMembership()
    return GroupMembership(registered, {}, absent)


# -- message keys ------------------------------------------------------------------------------------------------------


def key_of(envelope: Envelope, attribute: str) -> str:
    """Return the key of a message: the attribute's value, or the group if ``attribute`` is ""; "" if it has none."""
    if not attribute:
        return f"group {envelope.group}" if envelope.group else ""
    if not envelope.header:
        return ""
    attributes = loads(envelope.header.encode()).get("attributes")
    value = attributes.get(attribute) if isinstance(attributes, dict) else None
    return "" if value is None else f"{type(value).__name__} {value}"


# -- dispatcher --------------------------------------------------------------------------------------------------------

MAX_ASSIGNED_PER_WAITER = 256
"""Upper bound of messages per consumer and commit in a queue with a strategy. ``broker.waiting_consumers`` has a larger
one for the other queues: there the messages of one consumer are leased as whole runs."""
MAX_ASSIGNED = 256
"""Upper bound of messages assigned per queue and commit."""
MAX_SCANNED = 512
"""Number of ready messages scanned for those with a consumer that has capacity, if the strategy assigns by consumer
id."""
MAX_ASSIGNED_BYTES = 2 * 1024 * 1024
"""Upper bound of payload bytes loaded for assignment per queue and commit."""
MAX_ADDRESSED_BYTES = 512 * 1024
"""Upper bound of payload bytes of addressed messages per consumer and commit."""
PER_PAGE = 500


class DispatchWaiter(Protocol):
    """Port to a waiting consumer (``broker.waiting_consumers.DispatchWaiter``)."""

    queue: str
    consumer: str
    span_ms: int | None

    @property
    def serve(self) -> Any: ...

    def wants(self) -> int: ...


class DispatchOperations(Protocol):
    """Port to the queue operations that dispatch needs (``broker.operations.QueueOperations``)."""

    event_buffer: EventBuffer
    selector: MessageSelector
    touched: set[str]

    def allowance(self, transaction: Transaction, queue: str, wanted: int, now: int) -> int: ...

    def lease_heads(
        self, transaction: Transaction, queue: str, heads: Sequence[Head], span: int | None, consumer_id: str, now: int
    ) -> list[MessageDelivery]: ...

    def swap(self, transaction: Transaction, changes: Sequence[Change], now: int) -> None: ...


Served = list[tuple[Any, Sequence[Any]]]


class QueueDispatcher:
    """Dispatcher: assigns messages of a queue to its consumers by the policy's strategy. Committing thread only."""

    def __init__(self, operations: DispatchOperations) -> None:
        self._operations = operations
        self.membership = MembershipCache()
        self._broadcast = Broadcast(operations)
        self._memories: dict[str, Memory] = {}
        self._adopted: set[str] = set()
        self.watched: set[str] = set()
        """Queues with a strategy that must be informed when a consumer leaves."""
        self.to_serve_again: set[str] = set()
        """Queues with more messages to assign immediately. The caller of ``serve`` removes them."""
        self.wake_at: dict[str, int] = {}
        """End of the next grace time of a member, by queue. The caller of ``serve`` removes the entries."""

    def shares(self, transaction: Transaction, queue: str) -> Dispatch | None:
        """Return the dispatch settings if the queue's waiting consumers must be served by ``serve``, else None."""
        dispatch = transaction.policy(queue).dispatch
        if dispatch is None or not (dispatch.strategy in JOINT_STRATEGIES or dispatch.strategy is Strategy.BROADCAST):
            if queue in self.watched:
                self.watched.discard(queue)
            return None
        return dispatch

    def policy_changed(self, queue: str, dispatch: Dispatch | None) -> None:
        """Without a strategy the leases of a queue are not recorded: those in flight are counted again if it gets
        one."""
        if dispatch is None:
            self._adopted.discard(queue)

    def drop_queue(self, transaction: Transaction, queue: str, now: int) -> None:
        """Remove the members and the strategy's memory of a deleted queue, and end its deliveries."""
        self._operations.event_buffer.deliveries.queue_emptied(queue, now)
        if transaction.note(FOLDER + queue) is not None:
            transaction.set_note(FOLDER + queue, None)
        self.membership.forget(queue)
        self._memories.pop(queue, None)
        self._adopted.discard(queue)
        self.watched.discard(queue)

    # -- waiting consumers ----------------------------------------------------------------------------------------

    def serve(self, transaction: Transaction, queue: str, dispatch: Dispatch, line: Iterable[Any], now: int) -> Served:
        waiters = list(line)
        members = self._attendance(transaction, queue, dispatch, waiters, now).members(now, dispatch.grace_ms)
        if not self._operations.allowance(transaction, queue, 1, now):
            return []
        given: dict[Any, list[Any]] = {}
        if dispatch.strategy is Strategy.BROADCAST:
            if self._broadcast.fan_out(transaction, queue, members, now):
                self.to_serve_again.add(queue)
        else:
            self._serve_by_strategy(transaction, queue, dispatch, waiters, members, given, now)
        self._give_addressed(transaction, queue, [one for one in waiters if one.serve is None], given, now)
        return [(waiter, got) for waiter, got in given.items() if got]

    def _attendance(
        self, transaction: Transaction, queue: str, dispatch: Dispatch, waiters: Sequence[Any], now: int
    ) -> GroupMembership:
        if dispatch.strategy not in BY_NAME:
            return GroupMembership()
        self.watched.add(queue)
        waiting = {waiter.consumer: getattr(waiter, "is_poll", False) for waiter in waiters if waiter.serve is None}
        keeps_all = dispatch.strategy is Strategy.BROADCAST
        found = self.membership.update(transaction, queue, waiting, now, dispatch.grace_ms, keeps_all=keeps_all)
        at = next_change(found, dispatch.grace_ms)
        if at is not None:
            self.wake_at[queue] = at
        return found

    def _serve_by_strategy(
        self,
        transaction: Transaction,
        queue: str,
        dispatch: Dispatch,
        waiters: Sequence[Any],
        members: Sequence[str],
        given: dict[Any, list[Any]],
        now: int,
    ) -> None:
        by_name = dispatch.strategy in BY_NAME
        able = [one for one in waiters if not by_name or one.serve is None]
        self._adopt(transaction, queue)
        candidates = self._candidates(queue, dispatch, able)
        capacity = sum(one.capacity for one in candidates)
        limit = self._operations.allowance(transaction, queue, min(capacity, MAX_ASSIGNED), now) if capacity else 0
        if not limit:
            return
        candidates += [Candidate(name, 0, 0) for name in members if all(name != one.consumer for one in able)]
        heads = self._heads(transaction, queue, MAX_SCANNED if by_name else limit, now)
        shares = self._assigned(queue, dispatch, candidates, heads, limit)
        for number, waiter in enumerate(able):
            mine = [head for head, share in zip(heads, shares, strict=True) if share == number]
            if mine:
                given[waiter] = self._give(transaction, queue, waiter, mine, now)
        if any(share is not None for share in shares) and len(heads) >= limit:
            self.to_serve_again.add(queue)

    def _candidates(self, queue: str, dispatch: Dispatch, waiters: Sequence[Any]) -> list[Candidate]:
        log = self._operations.event_buffer.deliveries
        namesakes: dict[str, int] = {}
        found = []
        for waiter in waiters:
            name = waiter.consumer
            place = namesakes[name] = namesakes.get(name, -1) + 1
            capacity = max(0, min(waiter.wants(), MAX_ASSIGNED_PER_WAITER))
            found.append(Candidate(name, place, capacity, log.in_flight(queue, name), dispatch.weight(name)))
        return found

    def _assigned(
        self, queue: str, dispatch: Dispatch, candidates: Sequence[Candidate], heads: Sequence[Head], limit: int
    ) -> list[int | None]:
        memory = self._memories.get(queue) or Memory(random_state=validation.line_of(queue))
        is_keyed = dispatch.strategy is Strategy.KEY_HASH
        keys = [key_of(envelope, dispatch.key) if is_keyed else "" for _, envelope in heads]
        assign = STRATEGIES[dispatch.strategy]
        waiters, self._memories[queue] = assign(candidates, keys, memory)
        for place, waiter in enumerate(waiters):
            limit -= waiter is not None
            if limit < 0:
                waiters[place] = None
        return waiters

    def _heads(self, transaction: Transaction, queue: str, limit: int, now: int) -> list[Head]:
        """Return ready messages to assign, without marking the queue as touched.

        Possibly none of them is assigned; a touched queue would then be served again without end."""
        was_touched = queue in self._operations.touched
        heads = self._operations.selector.select(transaction, queue, limit, 0, MAX_ASSIGNED_BYTES, now)
        if not was_touched:
            self._operations.touched.discard(queue)
        return heads

    def _give(self, transaction: Transaction, queue: str, waiter: Any, heads: Sequence[Head], now: int) -> list[Any]:
        if waiter.serve is not None:  # a waiter without a consumer id: its own function takes the first messages
            found: list[Any] = waiter.serve(transaction, 1)
            return found
        return list(self._operations.lease_heads(transaction, queue, heads, waiter.span_ms, waiter.consumer, now))

    def _give_addressed(
        self, transaction: Transaction, queue: str, waiters: Sequence[Any], given: dict[Any, list[Any]], now: int
    ) -> None:
        lines: dict[int, list[Any]] = {}
        for waiter in waiters:
            lines.setdefault(validation.line_of(waiter.consumer), []).append(waiter)
        found = list(islice(targets(transaction, queue), len(lines)))
        wanted = list(lines) if len(found) == len(lines) else [line for line in found if line in lines]
        for line, waiter in [(number, one) for number in wanted for one in lines[number]]:
            capacity = min(waiter.wants(), MAX_ASSIGNED_PER_WAITER) - len(given.get(waiter, ()))
            capacity = self._operations.allowance(transaction, queue, capacity, now) if capacity > 0 else 0
            heads = self._addressed(transaction, queue, line, capacity, now) if capacity else []
            if heads:
                got = self._operations.lease_heads(transaction, queue, heads, waiter.span_ms, waiter.consumer, now)
                given[waiter] = [*given.get(waiter, []), *got]
                self.to_serve_again.add(queue)

    def _addressed(self, transaction: Transaction, queue: str, line: int, limit: int, now: int) -> list[Head]:
        heads = heads_of(transaction, queue, line, limit, MAX_ADDRESSED_BYTES, now)
        return self._operations.selector.only_intact(transaction, queue, heads, now)

    def _adopt(self, transaction: Transaction, queue: str) -> None:
        """Count the messages that consumers held before this process started, once per queue."""
        if queue in self._adopted:
            return
        self._adopted.add(queue)
        self._operations.event_buffer.deliveries.adopt(islice(_in_hand(transaction, queue), MAX_IN_FLIGHT))

    # -- polling consumers ----------------------------------------------------------------------------------------

    def lease_for_poll(
        self,
        transaction: Transaction,
        queue: str,
        dispatch: Dispatch,
        limit: int,
        span: int | None,
        consumer_id: str,
        now: int,
    ) -> list[MessageDelivery]:
        """Lease messages to a consumer that does not wait, if the strategy assigns by consumer id."""
        is_broadcast = dispatch.strategy is Strategy.BROADCAST
        attendance = self.membership.with_lease_request(transaction, queue, consumer_id, now, keeps_all=is_broadcast)
        members = attendance.members(now, dispatch.grace_ms)
        heads: list[Head] = []
        if is_broadcast:
            self._broadcast.fan_out(transaction, queue, members, now)
        else:
            found = self._heads(transaction, queue, MAX_SCANNED, now)
            candidates = [Candidate(name, 0, limit if name == consumer_id else 0) for name in {*members, consumer_id}]
            shares = self._assigned(queue, dispatch, candidates, found, limit)
            heads = [head for head, share in zip(found, shares, strict=True) if share is not None]
        left = limit - len(heads)
        if left > 0:
            heads += self._addressed(transaction, queue, validation.line_of(consumer_id), left, now)
        return self._operations.lease_heads(transaction, queue, heads, span, consumer_id, now)


def _in_hand(transaction: Transaction, queue: str) -> Iterable[Message]:
    for state in (State.LEASED, State.CLAIMED):
        cursor, is_first = "", True
        while cursor or is_first:
            page = transaction.scan(queue, state, PER_PAGE, cursor)
            yield from page.messages
            cursor, is_first = page.cursor, False
