"""Quota of a queue: whether a batch fits, which messages are dropped for it, and the limit of queues.

The rule is ``core.policy``; this module supplies the counts and chooses the messages. Nothing is written here. Messages
known by their id do not count again, so a repeated publish succeeds.

With ``onFull`` = ``dropOldest``, ready messages of the lowest priority are dropped first, oldest first, then delayed
and held messages; claimed and leased messages never. The lowest priority is found by bisection, since priorities may be
any number."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from yirangmq.core import transitions
from yirangmq.core.errors import QuotaExceeded
from yirangmq.core.message import RANK_LAST, Envelope, Message
from yirangmq.core.policy import (
    DROP_OLDEST,
    RETRY_AFTER,
    MessageLoad,
    QueuePolicy,
    queues_refusal,
    refusal,
    surplus,
    unfinished,
)
from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import State

PER_PAGE = 500
LAST_PLACE = 2**62


def added_load(transaction: Transaction, policy: QueuePolicy, queue: str, envelopes: Sequence[Envelope]) -> MessageLoad:
    """Return the load that these envelopes add to the queue. Known ids are looked up only if the quota would refuse."""
    coming = _load(envelopes)
    if refusal(policy.quota, queue, _held(transaction, queue), coming) is None:
        return coming
    return _load(_unknown(transaction, queue, envelopes))  # a repeated publish that succeeded before succeeds again


def enforce_quota(
    transaction: Transaction, policy: QueuePolicy, queue: str, coming: MessageLoad, now: int
) -> list[Change]:
    """Return the drops that make the new messages fit; raise ``QuotaExceeded`` if they are refused. Write nothing."""
    quota, held = policy.quota, _held(transaction, queue)
    error = refusal(quota, queue, held, coming)
    if error is None:
        return []
    if quota.on_full != DROP_OLDEST or error.retry_after is None:
        raise error
    need = surplus(quota, held, coming)
    going = _enough(oldest(transaction, queue), need)
    if going is None:
        raise QuotaExceeded(f"queue {queue!r} is full of leased messages; try again in {RETRY_AFTER:g} s")
    return [Change(message, transitions.drop(message, policy, now)) for message in going]


def check_growth(transaction: Transaction, policy: QueuePolicy, queue: str, size: int) -> None:
    """Raise ``QuotaExceeded`` if a stored message may not grow by ``size`` bytes. No message is dropped for it."""
    error = refusal(replace(policy.quota, max_messages=0), queue, _held(transaction, queue), MessageLoad(0, size))
    if error is not None:
        raise error


def check_new_queues(transaction: Transaction, queues: Iterable[str], most: int) -> None:
    """Raise ``QuotaExceeded`` if the new ones among these queues exceed the limit ``most``; 0 means no limit.

    The store's queues are counted only if one is new; otherwise the cost is a dict lookup per queue."""
    coming = [queue for queue in queues if not transaction.has_queue(queue)] if most else []
    error = queues_refusal(most, transaction.queue_count(), coming) if coming else None
    if error is not None:
        raise error


def _held(transaction: Transaction, queue: str) -> MessageLoad:
    counts = transaction.counts(queue)
    return MessageLoad(unfinished(counts), counts.bytes)


def _enough(messages: Iterator[Message], need: MessageLoad) -> list[Message] | None:
    """Return as many messages as are needed; None if there are too few."""
    going: list[Message] = []
    size = 0
    while len(going) < need.messages or size < need.bytes:
        message = next(messages, None)
        if message is None:
            return None
        going.append(message)
        size += message.size
    return going


def oldest(transaction: Transaction, queue: str) -> Iterator[Message]:
    """Yield ready messages, the lowest priority first, each oldest first; then delayed and held messages.

    Claimed and leased messages are not included."""
    below = RANK_LAST + 1
    while (rank := _lowest_priority(transaction, queue, below)) is not None:
        yield from _of_rank(transaction, queue, rank)
        below = rank
    for state in (State.DELAYED, State.HELD):
        cursor, is_first = "", True
        while cursor or is_first:
            page = transaction.scan(queue, state, PER_PAGE, cursor)
            yield from page.messages
            cursor, is_first = page.cursor, False


def _of_rank(transaction: Transaction, queue: str, rank: int) -> Iterator[Message]:
    cursor = _behind(rank - 1)
    while cursor:
        page = transaction.scan(queue, State.READY, PER_PAGE, cursor)
        alike = [message for message in page.messages if message.rank == rank]
        yield from alike
        cursor = page.cursor if len(alike) == len(page.messages) else ""


def _lowest_priority(transaction: Transaction, queue: str, below: int) -> int | None:
    """Return the largest rank of a ready message below ``below``, by bisection: priorities may be any number."""
    first = transaction.scan(queue, State.READY, 1).messages
    if not first or first[0].rank >= below:
        return None
    low, high = first[0].rank, below
    middle = RANK_LAST  # most messages have no priority
    while low + 1 < high:
        if not low < middle < high:
            middle = (low + high) // 2
        found = transaction.scan(queue, State.READY, 1, _behind(middle - 1)).messages
        if found and middle <= found[0].rank < high:  # messages for one consumer are behind all others
            low = found[0].rank
        else:
            high = middle
        middle = (low + high) // 2
    return low


def _behind(rank: int) -> str:
    """Return the cursor behind all ready messages of a rank (see ``Transaction.scan``)."""
    return f"{rank}.{LAST_PLACE}"


def _unknown(transaction: Transaction, queue: str, envelopes: Sequence[Envelope]) -> list[Envelope]:
    known = transaction.by_id(queue, [envelope.id for envelope in envelopes])
    return [envelope for envelope, message in zip(envelopes, known, strict=True) if message is None]


def _load(envelopes: Sequence[Envelope]) -> MessageLoad:
    return MessageLoad(len(envelopes), sum(envelope.size for envelope in envelopes))
