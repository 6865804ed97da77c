"""Room in a queue that has a quota: whether a batch fits, and which messages go when the oldest must.

Knows: what the store says of the queue, the mean size of its messages. The rule itself is ``core.quota``."""

from collections.abc import Sequence

from yirangmq.core import decide
from yirangmq.core.errors import QuotaExceeded
from yirangmq.core.message import RANK_LAST, Envelope, Message
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Change, Transaction
from yirangmq.core.quota import DROP_OLDEST, RETRY_AFTER, Load, refusal, surplus, unfinished
from yirangmq.core.states import State

SAMPLE = 64
"""Messages looked at to learn how large they are, once for each queue."""
PER_PAGE = 500
LAST_PLACE = 2**62


class Room:
    """One per opener of a store. Mean sizes are kept up to date by what passes through here."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def make(
        self, transaction: Transaction, policy: QueuePolicy, queue: str, envelopes: Sequence[Envelope], now: int
    ) -> list[Change]:
        """What must be dropped so that these fit; ``QuotaExceeded`` if they are refused. Writes nothing."""
        quota = policy.quota
        held = self._held(transaction, queue, needs_bytes=quota.max_bytes > 0)
        coming = _load(envelopes)
        if refusal(quota, queue, held, coming) is not None:
            coming = _load(_unknown(transaction, queue, envelopes))
            if not coming.messages:
                return []  # repeating what succeeded succeeds
        error = refusal(quota, queue, held, coming)
        need = 0
        if error is not None:
            if quota.on_full != DROP_OLDEST or error.retry_after is None:
                raise error
            need = surplus(quota, held, coming)
        going = oldest(transaction, queue, need)
        if len(going) < need:
            raise QuotaExceeded(
                f"queue {queue!r} is full of messages that are being worked on; try again in {RETRY_AFTER:g} s"
            )
        self._learn(queue, held, coming)
        return [Change(message, decide.drop(message, policy, now)) for message in going]

    def _held(self, transaction: Transaction, queue: str, *, needs_bytes: bool) -> Load:
        count = unfinished(transaction.counts(queue))
        if not needs_bytes:
            return Load(count, 0)
        mean = self._means.get(queue)
        if mean is None:
            mean = self._means[queue] = _sampled_mean(transaction, queue)
        return Load(count, round(count * mean))

    def _learn(self, queue: str, held: Load, coming: Load) -> None:
        """The mean of what is there and what comes: exact as long as those that leave are of the mean size."""
        if queue in self._means and coming.messages:
            self._means[queue] = (held.bytes + coming.bytes) / (held.messages + coming.messages)


def oldest(transaction: Transaction, queue: str, count: int) -> list[Message]:
    """The first in line of the lowest priority, then of the next lowest; then those whose time has not come. None that
    a consumer holds."""
    found: list[Message] = []
    below = RANK_LAST + 1
    while len(found) < count and (rank := _lowest_priority(transaction, queue, below)) is not None:
        found += _of_rank(transaction, queue, rank, count - len(found))
        below = rank
    cursor, is_first = "", True
    while len(found) < count and (cursor or is_first):
        page = transaction.scan(queue, State.DELAYED, min(PER_PAGE, count - len(found)), cursor)
        found += page.messages
        cursor, is_first = page.cursor, False
    return found


def _of_rank(transaction: Transaction, queue: str, rank: int, count: int) -> list[Message]:
    found: list[Message] = []
    cursor = _behind(rank - 1)
    while cursor and len(found) < count:
        page = transaction.scan(queue, State.READY, min(PER_PAGE, count - len(found)), cursor)
        alike = [message for message in page.messages if message.rank == rank]
        found += alike
        cursor = page.cursor if len(alike) == len(page.messages) else ""
    return found


def _lowest_priority(transaction: Transaction, queue: str, below: int) -> int | None:
    """The largest rank in line that is smaller than ``below``, by halving: priorities may be any number."""
    first = transaction.scan(queue, State.READY, 1).messages
    if not first or first[0].rank >= below:
        return None
    low, high = first[0].rank, below
    middle = RANK_LAST  # most messages have no priority
    while low + 1 < high:
        if not low < middle < high:
            middle = (low + high) // 2
        found = transaction.scan(queue, State.READY, 1, _behind(middle - 1)).messages
        if found and found[0].rank < high:
            low = found[0].rank
        else:
            high = middle
        middle = (low + high) // 2
    return low


def _behind(rank: int) -> str:
    """The cursor behind every ready message of this rank (see ``Transaction.scan``)."""
    return f"{rank}.{LAST_PLACE}"


def _unknown(transaction: Transaction, queue: str, envelopes: Sequence[Envelope]) -> list[Envelope]:
    known = transaction.by_id(queue, [envelope.id for envelope in envelopes])
    return [envelope for envelope, message in zip(envelopes, known, strict=True) if message is None]


def _sampled_mean(transaction: Transaction, queue: str) -> float:
    for state in (State.READY, State.LEASED, State.DELAYED):
        messages = transaction.scan(queue, state, SAMPLE).messages
        found = [envelope for envelope in transaction.envelopes(messages) if envelope is not None]
        if found:
            return _load(found).bytes / len(found)
    return 0.0


def _load(envelopes: Sequence[Envelope]) -> Load:
    return Load(len(envelopes), sum(len(envelope.payload) + len(envelope.header) for envelope in envelopes))
