"""Selection and lease of messages: ready, alive, valid, intact, and allowed by the policy.

Selection sweeps expired messages, moves those that do not fit their schema to the dead letters, and stops at a limit of
bytes. The count that fitted last time is the count loaded next time, so that large payloads are not read needlessly.

Messages for a single consumer are ordered behind all other ready messages, by consumer (``Transaction.scan``).

Integrity: where a queue keeps the SHA-256 of payloads, each payload is verified before it is leased. A damaged message
goes to the dead letters or is parked, and is counted and logged. Committing thread only."""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from yirangmq.broker.changes import apply_changes, apply_leases
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.expiry_sweeper import sweep_if_due, sweep_once
from yirangmq.core import transitions
from yirangmq.core.errors import PayloadDamaged, QueueError
from yirangmq.core.message import RANK_LAST, Envelope, Message, MessageRun, sizes_of
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Change, Transaction, new_change
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageDelivery, new_message_delivery
from yirangmq.format.envelope import digest_problem

# -- messages for a single consumer ------------------------------------------------------------------------------------

BEHIND_ALL = f"{RANK_LAST}.{2**62}"
"""Cursor behind all ready messages of a line, in the form of ``Transaction.scan``."""


def targets(transaction: Transaction, queue: str) -> Iterator[int]:
    """Yield the consumer numbers that ready messages are addressed to, at one scan each."""
    cursor = BEHIND_ALL
    while found := transaction.scan(queue, State.READY, 1, cursor).messages:
        yield found[0].target
        cursor = f"{found[0].target}.{BEHIND_ALL}"


def addressed(transaction: Transaction, queue: str, target: int, limit: int) -> list[Message]:
    """Return the first ready messages addressed to one consumer."""
    found = transaction.scan(queue, State.READY, limit, f"{target - 1}.{BEHIND_ALL}").messages
    return [message for message in found if message.target == target]


def heads_of(
    transaction: Transaction, queue: str, target: int, limit: int, most_bytes: int, now: int
) -> list[tuple[Message, Envelope]]:
    """Return the first unexpired messages addressed to one consumer, with envelopes of at most ``most_bytes`` in all; a
    single larger message is still returned."""
    rows: list[Message] = []
    size = 0
    for row in addressed(transaction, queue, target, limit):
        size += row.size
        if rows and size > most_bytes:
            break
        if not 0 < row.expires_at <= now:
            rows.append(row)
    found = zip(rows, transaction.envelopes(rows), strict=True)
    return [(row, envelope) for row, envelope in found if envelope is not None]


# -- payload integrity -------------------------------------------------------------------------------------------------

log = logging.getLogger("yirangmq")


def damaged(envelopes: Iterable[Envelope]) -> bool:
    return any(map(digest_problem, envelopes))


def has_digests(context: TransactionContext, policy: QueuePolicy, queue: str) -> bool:
    """Return True if the queue keeps the SHA-256 of its payloads."""
    chain = context.defaults.chain_in(policy, queue)
    return chain is not None and chain.integrity


def quarantine(
    context: TransactionContext,
    transaction: Transaction,
    queue: str,
    found: Sequence[tuple[Message, Envelope]],
    now: int,
) -> bool:
    """Move messages with a damaged payload to the dead letters, or park them. Return True if there was one."""
    policy = transaction.policy(queue)
    if not has_digests(context, policy, queue):
        return False
    changes = []
    for message, envelope in found:
        text = digest_problem(envelope)
        if text:
            outcome = transitions.quarantine(message, policy, now, text)
            changes.append(Change(message, outcome.message, outcome.failure))
            about = {"queue": queue, "messageId": message.id, "state": outcome.message.state, "error": text}
            log.error("payload_damaged", extra={"values": about})
    apply_changes(context, transaction, changes, now, context.event_buffer.refused)
    return bool(changes)


def damage_error(
    context: TransactionContext, transaction: Transaction, message: Message, envelope: Envelope
) -> QueueError | None:
    """Return the error of a damaged message that was requested by id; None if it is intact."""
    policy = transaction.policy(message.queue)
    text = digest_problem(envelope) if has_digests(context, policy, message.queue) else ""
    return PayloadDamaged(f"message {message.id} is not delivered: {text}") if text else None


# -- selection ---------------------------------------------------------------------------------------------------------

Head = tuple[Message, Envelope]
MAX_SWEEPS = 20
"""Upper bound of sweeps per lease. Beyond it the lease returns nothing; the rest is swept at the next call."""


def select(
    context: TransactionContext,
    transaction: Transaction,
    queue: str,
    limit: int,
    target: int,
    most_bytes: int | None,
    now: int,
) -> list[Head]:
    """Return as many messages as the byte limit allows. At most as many are loaded as fitted last time, so that
    large payloads are not read repeatedly. A queue that may have more is added to ``wake_queues``."""
    asked = _asked(context, queue, limit, most_bytes)
    heads = leasable(context, transaction, queue, asked, target, now)
    kept = _kept(context, queue, limit, asked, [envelope.size for _, envelope in heads], most_bytes)
    return heads[:kept]


def select_runs(
    context: TransactionContext,
    transaction: Transaction,
    queue: str,
    policy: QueuePolicy,
    limit: int,
    target: int,
    most_bytes: int | None,
) -> list[tuple[MessageRun, list[Envelope]]] | None:
    """Like ``select``, but return whole runs. Return None if a message needs individual treatment: schema,
    strict order, damaged payload."""
    runs = transaction.run_operations()
    if runs is None:
        return None
    if policy.schemas or policy.is_ordered:
        return None
    asked = _asked(context, queue, limit, most_bytes)
    found = runs.head_runs(queue, asked, target)
    if not found:
        return found
    if has_digests(context, policy, queue) and any(damaged(envelopes) for _, envelopes in found):
        return None
    if asked == limit == 1:  # a single message is leased whatever its size
        return found
    sizes = [size for _, envelopes in found for size in sizes_of(envelopes)]
    left = _kept(context, queue, limit, asked, sizes, most_bytes)
    kept = []
    for run, envelopes in found:
        if left > 0:
            kept.append((run._replace(length=min(run.length, left)), envelopes[:left]))
        left -= run.length
    return kept


def _asked(context: TransactionContext, queue: str, limit: int, most_bytes: int | None) -> int:
    return limit if most_bytes is None else min(limit, context.fitting.get(queue, limit))


def _kept(
    context: TransactionContext, queue: str, limit: int, asked: int, sizes: Sequence[int], most_bytes: int | None
) -> int:
    """Return how many messages of these sizes fit the byte limit."""
    count = len(sizes)
    if most_bytes is None:
        return count
    kept = count if sum(sizes) <= most_bytes else max(1, bisect_right(list(accumulate(sizes)), most_bytes))
    if kept < count:
        context.fitting[queue] = kept
    elif asked < limit:
        context.fitting[queue] = asked * 2
    else:
        return kept
    if kept < count or count == asked:
        context.wake_queues.add(queue)
    return kept


def leasable(
    context: TransactionContext, transaction: Transaction, queue: str, limit: int, target: int, now: int
) -> list[Head]:
    """Return messages to lease. Expired ones are swept first, however many; invalid and damaged ones are moved."""
    for _ in range(MAX_SWEEPS):
        heads = _heads(context, transaction, queue, limit, target)
        if any(0 < message.expires_at <= now for message, _ in heads):
            sweep_once(context, transaction, now)
        elif not _bury_unfit(context, transaction, queue, heads, now) and not quarantine(
            context, transaction, queue, heads, now
        ):
            return heads
    return []


def only_intact(
    context: TransactionContext, transaction: Transaction, queue: str, heads: list[Head], now: int
) -> list[Head]:
    """Return the messages if all are valid and intact. Else move the bad ones away and return none; the others
    follow in the next commit."""
    if _bury_unfit(context, transaction, queue, heads, now) or quarantine(context, transaction, queue, heads, now):
        context.wake_queues.add(queue)
        return []
    return heads


def _heads(context: TransactionContext, transaction: Transaction, queue: str, limit: int, target: int) -> list[Head]:
    """Return the first ready messages; in strict order the message to retry alone."""
    policy = transaction.policy(queue)
    next_retry = context.dispatch.strict.next_retry(transaction, queue, policy, target) if policy.is_ordered else None
    return transaction.heads(queue, limit, target) if next_retry is None else [next_retry]


def _bury_unfit(
    context: TransactionContext, transaction: Transaction, queue: str, heads: Sequence[Head], now: int
) -> bool:
    """Dead-letter messages that do not fit their schema. Return True if there was one.

    Publishing has checked most messages. A file dropped into a folder, or a message older than the schema, is
    checked before its first lease."""
    policy = transaction.policy(queue)
    if not policy.schemas:
        return False
    changes = []
    for message, envelope in heads:
        complaint = "" if message.leases else context.schemas.complaint(envelope, policy)
        if complaint:
            outcome = transitions.refuse(message, policy, now, complaint)
            changes.append(Change(message, outcome.message, outcome.failure))
    apply_changes(context, transaction, changes, now, context.event_buffer.refused)
    return bool(changes)


# -- lease -------------------------------------------------------------------------------------------------------------


def allowance(
    context: TransactionContext, transaction: Transaction, queue: str, policy: QueuePolicy, wanted: int, now: int
) -> int:
    """Return how many of ``wanted`` messages the queue's policy allows to lease now. Due messages are swept before."""
    sweep_if_due(context, transaction, now)
    if policy.paused:
        return 0
    if policy.is_ordered:
        wanted = context.dispatch.strict.allowance(transaction, queue, policy, wanted)
    most = context.defaults.concurrency_in(policy)
    if most is None:
        return wanted
    counts = transaction.counts(queue)
    return max(0, min(wanted, most - counts.claimed - counts.leased))


def lease_heads(
    context: TransactionContext,
    transaction: Transaction,
    queue: str,
    heads: Sequence[Head],
    span: int | None,
    consumer_id: str,
    now: int,
) -> list[MessageDelivery]:
    """Lease exactly these messages, for ``span`` ms; if None, for the visibility timeout of the queue's policy."""
    if not heads:
        return []
    policy = transaction.policy(queue)
    until = now + (policy.visibility_ms if span is None else span)
    changes, deliveries = [], []
    for before, envelope in heads:
        after = transitions.lease(before, now, until, consumer_id)
        changes.append(new_change((before, after, None)))
        deliveries.append(new_message_delivery((after, envelope, policy)))
    apply_leases(context, transaction, changes, is_delivery=policy.dispatch is not None)
    context.event_buffer.leased(queue, heads, now)
    return deliveries
