"""Lines of messages that one consumer alone may have. Knows: how ``Transaction.scan`` has places."""

from collections.abc import Iterator

from yirangmq.core.message import RANK_LAST, Envelope, Message
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State

BEHIND_ALL = f"{RANK_LAST}.{2**62}"
"""The end of a line, as ``Transaction.scan`` has places."""


def targets(transaction: Transaction, queue: str) -> Iterator[int]:
    """Those who alone may have something that is ready, one look for each."""
    cursor = BEHIND_ALL
    while found := transaction.scan(queue, State.READY, 1, cursor).messages:
        yield found[0].target
        cursor = f"{found[0].target}.{BEHIND_ALL}"


def addressed(transaction: Transaction, queue: str, target: int, limit: int) -> list[Message]:
    """The first cards in the line of one consumer."""
    found = transaction.scan(queue, State.READY, limit, f"{target - 1}.{BEHIND_ALL}").messages
    return [message for message in found if message.target == target]


def heads_of(
    transaction: Transaction, queue: str, target: int, limit: int, most_bytes: int, now: int
) -> list[tuple[Message, Envelope]]:
    """The same with their content, alive, and no more of it than ``most_bytes``, but for a single one."""
    cards: list[Message] = []
    size = 0
    for card in addressed(transaction, queue, target, limit):
        size += card.size
        if cards and size > most_bytes:
            break
        if not 0 < card.expires_at <= now:
            cards.append(card)
    found = zip(cards, transaction.envelopes(cards), strict=True)
    return [(card, envelope) for card, envelope in found if envelope is not None]
