"""Broadcast fan-out: a copy of each message per member of the queue.

Each copy is addressed to a single consumer and has its own lease, retries and final state. The original is acked in the
commit that stores the copies. Without members the messages stay ready. Copies for a former member become dead letters.
Committing thread only."""

from collections.abc import Sequence
from functools import partial
from itertools import islice

from yirangmq.broker.changes import BROADCASTER, apply_changes, apply_leases, hold_new
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.selection import Head, addressed, select, targets
from yirangmq.core import transitions, validation
from yirangmq.core.dispatch import copy_id, is_copy
from yirangmq.core.message import Envelope
from yirangmq.core.ports import Change, Transaction
from yirangmq.format.envelope import MAX_TEXT
from yirangmq.format.json_codec import dumps, loads

MAX_COPIES = 1_000
"""Upper bound of copies per commit; the copies of a single message may exceed it."""
MAX_BROADCAST = 100
"""Upper bound of messages copied per commit."""
MAX_BROADCAST_BYTES = 512 * 1024
"""Upper bound of payload bytes of the messages copied per commit."""
SEARCH_INTERVAL_MS = 10_000
"""Interval of the search for copies addressed to former members, in ms. A change of membership starts one too."""
MAX_CONSUMERS_PER_SEARCH = 64
"""Upper bound of consumers examined per search."""
MAX_COPIES_PER_CONSUMER = 100
"""Upper bound of copies per former member that one search makes dead letters."""


def fan_out(
    context: TransactionContext, transaction: Transaction, queue: str, members: Sequence[str], now: int
) -> bool:
    """Copy the first ready messages for all members. Return True if there may be more.

    Without members the messages stay ready for later members."""
    _dead_letter_abandoned(context, transaction, queue, members, now)
    if not members:
        return False
    most = max(1, min(MAX_BROADCAST, MAX_COPIES // len(members)))
    heads = select(context, transaction, queue, most, 0, MAX_BROADCAST_BYTES, now)
    if heads:
        _copy(context, transaction, queue, heads, members, now)
        _finish(context, transaction, queue, heads, now)
    return len(heads) == most


def _copy(
    context: TransactionContext,
    transaction: Transaction,
    queue: str,
    heads: Sequence[Head],
    members: Sequence[str],
    now: int,
) -> None:
    copies = [copy_of(envelope, name, now) for _, envelope in heads for name in members]
    stored = transaction.add(copies, now, 0)
    context.event_buffer.published(queue, copies, [len(one.payload) for one in copies], stored, now)
    if any(copy.group for copy in copies):
        hold_new(transaction, copies, stored)


def _finish(context: TransactionContext, transaction: Transaction, queue: str, heads: Sequence[Head], now: int) -> None:
    policy = transaction.policy(queue)
    taken = [transitions.lease(message, now, now, BROADCASTER) for message, _ in heads]
    leased = [Change(message, after) for (message, _), after in zip(heads, taken, strict=True)]
    apply_leases(context, transaction, leased, is_delivery=False)
    done = [Change(row, transitions.ack(row, policy, now)) for row in taken]
    context.event_buffer.leased(queue, heads, now)
    apply_changes(context, transaction, done, now, partial(context.event_buffer.settled, "ack"))


def _dead_letter_abandoned(
    context: TransactionContext, transaction: Transaction, queue: str, members: Sequence[str], now: int
) -> None:
    examined_at, known = context.dispatch.searched.get(queue, (0, ()))
    if known == tuple(members) and 0 <= now - examined_at < SEARCH_INTERVAL_MS:
        return
    context.dispatch.searched[queue] = now, tuple(members)
    lines = {validation.line_of(name) for name in members}
    gone = [line for line in islice(targets(transaction, queue), MAX_CONSUMERS_PER_SEARCH) if line not in lines]
    policy = transaction.policy(queue)
    changes = []
    for line in gone:
        rows = [row for row in addressed(transaction, queue, line, MAX_COPIES_PER_CONSUMER) if is_copy(row.id, line)]
        if rows:
            context.dispatch.searched.pop(queue, None)  # search again: more may remain, or become ready in a group
        for row in rows:
            outcome = transitions.abandon(row, policy, now, "its consumer is no longer one of this queue")
            changes.append(Change(row, outcome.message, outcome.failure))
    apply_changes(context, transaction, changes, now, context.event_buffer.refused)


def copy_of(envelope: Envelope, name: str, now: int) -> Envelope:
    """Return a copy for one consumer, with the same payload and age. Its header names the original."""
    header = loads(envelope.header.encode()) if envelope.header else {}
    header.pop("deduplicationKey", None)
    header |= {"targetConsumerId": name, "copyOf": envelope.id}
    if header.get("groupId"):
        group = f"{header['groupId']}@{name}"
        header["groupId"] = group if len(group) <= MAX_TEXT else str(validation.line_of(group))
    target = validation.line_of(name)
    return envelope._replace(
        id=copy_id(envelope.id, target),
        available_at=now,
        dedup_key=None,
        header=dumps(header).decode(),
        group=validation.line_of(header.get("groupId") or ""),
        target=target,
    )
