"""Dispatcher: messages of a queue to its consumers by the policy's strategy; message keys.

It serves waiting consumers, as the committer lists them, and consumers that poll without waiting. ``core.dispatch``
decides which message goes to which consumer; ``broker.selection`` leases it. The state between transactions is
``broker.dispatch.state``. Committing thread only.

Key: an attribute of the message, or its group. Messages with the same key go to the same consumer."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from yirangmq.broker.context import TransactionContext
from yirangmq.broker.dispatch.fan_out import fan_out
from yirangmq.broker.dispatch.state import FOLDER
from yirangmq.broker.event_buffer import MAX_IN_FLIGHT
from yirangmq.broker.selection import Head, allowance, heads_of, lease_heads, only_intact, select, targets
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
from yirangmq.core.message import Envelope, Message
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageDelivery
from yirangmq.format.json_codec import loads

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

Served = list[tuple[Any, Sequence[Any]]]


def joint_dispatch(context: TransactionContext, transaction: Transaction, queue: str) -> Dispatch | None:
    """Return the dispatch settings if the queue's waiting consumers must be served by ``serve``, else None."""
    dispatch = transaction.policy(queue).dispatch
    if dispatch is None or not (dispatch.strategy in JOINT_STRATEGIES or dispatch.strategy is Strategy.BROADCAST):
        if queue in context.dispatch.watched:
            context.dispatch.watched.discard(queue)
        return None
    return dispatch


def policy_changed(context: TransactionContext, queue: str, dispatch: Dispatch | None) -> None:
    """Without a strategy the leases of a queue are not recorded: those in flight are counted again if it gets
    one."""
    if dispatch is None:
        context.dispatch.adopted.discard(queue)


def drop_queue(context: TransactionContext, transaction: Transaction, queue: str, now: int) -> None:
    """Remove the members and the strategy's memory of a deleted queue, and end its deliveries."""
    context.event_buffer.deliveries.queue_emptied(queue, now)
    if transaction.note(FOLDER + queue) is not None:
        transaction.set_note(FOLDER + queue, None)
    context.dispatch.membership.forget(queue)
    context.dispatch.memories.pop(queue, None)
    context.dispatch.adopted.discard(queue)
    context.dispatch.watched.discard(queue)


# -- waiting consumers -------------------------------------------------------------------------------------------------


def serve(
    context: TransactionContext, transaction: Transaction, queue: str, dispatch: Dispatch, line: Iterable[Any], now: int
) -> Served:
    waiters = list(line)
    members = _attendance(context, transaction, queue, dispatch, waiters, now).members(now, dispatch.grace_ms)
    if not allowance(context, transaction, queue, transaction.policy(queue), 1, now):
        return []
    given: dict[Any, list[Any]] = {}
    if dispatch.strategy is Strategy.BROADCAST:
        if fan_out(context, transaction, queue, members, now):
            context.dispatch.to_serve_again.add(queue)
    else:
        _serve_by_strategy(context, transaction, queue, dispatch, waiters, members, given, now)
    _give_addressed(context, transaction, queue, [one for one in waiters if one.serve is None], given, now)
    return [(waiter, got) for waiter, got in given.items() if got]


def _attendance(
    context: TransactionContext,
    transaction: Transaction,
    queue: str,
    dispatch: Dispatch,
    waiters: Sequence[Any],
    now: int,
) -> GroupMembership:
    if dispatch.strategy not in BY_NAME:
        return GroupMembership()
    context.dispatch.watched.add(queue)
    waiting = {waiter.consumer: getattr(waiter, "is_poll", False) for waiter in waiters if waiter.serve is None}
    keeps_all = dispatch.strategy is Strategy.BROADCAST
    found = context.dispatch.membership.update(transaction, queue, waiting, now, dispatch.grace_ms, keeps_all=keeps_all)
    at = next_change(found, dispatch.grace_ms)
    if at is not None:
        context.dispatch.wake_at[queue] = at
    return found


def _serve_by_strategy(
    context: TransactionContext,
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
    _adopt(context, transaction, queue)
    candidates = _candidates(context, queue, dispatch, able)
    capacity = sum(one.capacity for one in candidates)
    limit = (
        allowance(context, transaction, queue, transaction.policy(queue), min(capacity, MAX_ASSIGNED), now)
        if capacity
        else 0
    )
    if not limit:
        return
    candidates += [Candidate(name, 0, 0) for name in members if all(name != one.consumer for one in able)]
    heads = _heads(context, transaction, queue, MAX_SCANNED if by_name else limit, now)
    shares = _assigned(context, queue, dispatch, candidates, heads, limit)
    for number, waiter in enumerate(able):
        mine = [head for head, share in zip(heads, shares, strict=True) if share == number]
        if mine:
            given[waiter] = _give(context, transaction, queue, waiter, mine, now)
    if any(share is not None for share in shares) and len(heads) >= limit:
        context.dispatch.to_serve_again.add(queue)


def _candidates(context: TransactionContext, queue: str, dispatch: Dispatch, waiters: Sequence[Any]) -> list[Candidate]:
    log = context.event_buffer.deliveries
    namesakes: dict[str, int] = {}
    found = []
    for waiter in waiters:
        name = waiter.consumer
        place = namesakes[name] = namesakes.get(name, -1) + 1
        capacity = max(0, min(waiter.wants(), MAX_ASSIGNED_PER_WAITER))
        found.append(Candidate(name, place, capacity, log.in_flight(queue, name), dispatch.weight(name)))
    return found


def _assigned(
    context: TransactionContext,
    queue: str,
    dispatch: Dispatch,
    candidates: Sequence[Candidate],
    heads: Sequence[Head],
    limit: int,
) -> list[int | None]:
    memory = context.dispatch.memories.get(queue) or Memory(random_state=validation.line_of(queue))
    is_keyed = dispatch.strategy is Strategy.KEY_HASH
    keys = [key_of(envelope, dispatch.key) if is_keyed else "" for _, envelope in heads]
    assign = STRATEGIES[dispatch.strategy]
    waiters, context.dispatch.memories[queue] = assign(candidates, keys, memory)
    for place, waiter in enumerate(waiters):
        limit -= waiter is not None
        if limit < 0:
            waiters[place] = None
    return waiters


def _heads(context: TransactionContext, transaction: Transaction, queue: str, limit: int, now: int) -> list[Head]:
    """Return ready messages to assign, without waking the queue for that.

    Possibly none of them is assigned; the queue would then be served again without end."""
    was_woken = queue in context.wake_queues
    heads = select(context, transaction, queue, limit, 0, MAX_ASSIGNED_BYTES, now)
    if not was_woken:
        context.wake_queues.discard(queue)
    return heads


def _give(
    context: TransactionContext, transaction: Transaction, queue: str, waiter: Any, heads: Sequence[Head], now: int
) -> list[Any]:
    if waiter.serve is not None:  # a waiter without a consumer id: its own function takes the first messages
        found: list[Any] = waiter.serve(transaction, 1)
        return found
    return list(lease_heads(context, transaction, queue, heads, waiter.span_ms, waiter.consumer, now))


def _give_addressed(
    context: TransactionContext,
    transaction: Transaction,
    queue: str,
    waiters: Sequence[Any],
    given: dict[Any, list[Any]],
    now: int,
) -> None:
    lines: dict[int, list[Any]] = {}
    for waiter in waiters:
        lines.setdefault(validation.line_of(waiter.consumer), []).append(waiter)
    found = list(islice(targets(transaction, queue), len(lines)))
    wanted = list(lines) if len(found) == len(lines) else [line for line in found if line in lines]
    for line, waiter in [(number, one) for number in wanted for one in lines[number]]:
        capacity = min(waiter.wants(), MAX_ASSIGNED_PER_WAITER) - len(given.get(waiter, ()))
        capacity = (
            allowance(context, transaction, queue, transaction.policy(queue), capacity, now) if capacity > 0 else 0
        )
        heads = _addressed(context, transaction, queue, line, capacity, now) if capacity else []
        if heads:
            got = lease_heads(context, transaction, queue, heads, waiter.span_ms, waiter.consumer, now)
            given[waiter] = [*given.get(waiter, []), *got]
            context.dispatch.to_serve_again.add(queue)


def _addressed(
    context: TransactionContext, transaction: Transaction, queue: str, line: int, limit: int, now: int
) -> list[Head]:
    heads = heads_of(transaction, queue, line, limit, MAX_ADDRESSED_BYTES, now)
    return only_intact(context, transaction, queue, heads, now)


def _adopt(context: TransactionContext, transaction: Transaction, queue: str) -> None:
    """Count the messages that consumers held before this process started, once per queue."""
    if queue in context.dispatch.adopted:
        return
    context.dispatch.adopted.add(queue)
    context.event_buffer.deliveries.adopt(islice(_in_hand(transaction, queue), MAX_IN_FLIGHT))


# -- polling consumers -------------------------------------------------------------------------------------------------


def lease_for_poll(
    context: TransactionContext,
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
    attendance = context.dispatch.membership.with_lease_request(
        transaction, queue, consumer_id, now, keeps_all=is_broadcast
    )
    members = attendance.members(now, dispatch.grace_ms)
    heads: list[Head] = []
    if is_broadcast:
        fan_out(context, transaction, queue, members, now)
    else:
        found = _heads(context, transaction, queue, MAX_SCANNED, now)
        candidates = [Candidate(name, 0, limit if name == consumer_id else 0) for name in {*members, consumer_id}]
        shares = _assigned(context, queue, dispatch, candidates, found, limit)
        heads = [head for head, share in zip(found, shares, strict=True) if share is not None]
    left = limit - len(heads)
    if left > 0:
        heads += _addressed(context, transaction, queue, validation.line_of(consumer_id), left, now)
    return lease_heads(context, transaction, queue, heads, span, consumer_id, now)


def _in_hand(transaction: Transaction, queue: str) -> Iterable[Message]:
    for state in (State.LEASED, State.CLAIMED):
        cursor, is_first = "", True
        while cursor or is_first:
            page = transaction.scan(queue, state, PER_PAGE, cursor)
            yield from page.messages
            cursor, is_first = page.cursor, False
