"""Strict order: one message of a queue at a time, and the next only when the one before is acked or dead. One that
waits to be tried again holds the others back, and comes first when its time has come.

Knows: cards that were begun and are not done with. They are found in the store at first, and followed from then on; a
change of the policy begins anew."""

from collections.abc import Iterator, Sequence

from yirangmq.core.dispatch import may_begin
from yirangmq.core.message import Envelope, Message
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import WAITING, State

PER_PAGE = 500
AGAIN = (State.READY, State.DELAYED, State.HELD)


class StrictOrder:
    def __init__(self) -> None:
        self._begun: dict[str, tuple[QueuePolicy, set[int]]] = {}

    def allowance(self, transaction: Transaction, queue: str, policy: QueuePolicy, wanted: int) -> int:
        """1 or 0, however many are wanted."""
        counts = transaction.counts(queue)
        waiting = [card for card in self._cards(transaction, queue, policy) if card.state is State.DELAYED]
        return min(wanted, 1) if may_begin(counts.claimed + counts.leased, len(waiting)) else 0

    def again(
        self, transaction: Transaction, queue: str, policy: QueuePolicy, target: int
    ) -> tuple[Message, Envelope] | None:
        """What was begun before and is ready to be tried again, if this consumer may have it."""
        ready = [card for card in self._cards(transaction, queue, policy) if card.state is State.READY]
        for card in sorted(ready, key=lambda card: (card.rank, card.place)):
            [envelope] = transaction.envelopes([card])
            if envelope is not None and card.target in (0, target):
                return card, envelope
        return None

    def follow(self, queue: str, policy: QueuePolicy, changes: Sequence[Change]) -> None:
        """Those that come back are begun."""
        known = self._begun.get(queue)
        if known is not None and known[0] is policy:
            known[1].update(after.seq for _, after, _ in changes if after.leases and after.state in AGAIN)

    def _cards(self, transaction: Transaction, queue: str, policy: QueuePolicy) -> list[Message]:
        known = self._begun.get(queue)
        if known is None or known[0] is not policy:
            known = self._begun[queue] = policy, {card.seq for card in _retried(transaction, queue)}
        if not known[1]:
            return []
        cards = [card for card in transaction.by_seq(list(known[1])) if card is not None and card.state in WAITING]
        known[1].intersection_update(card.seq for card in cards)
        return cards


def _retried(transaction: Transaction, queue: str) -> Iterator[Message]:
    cursor, is_first = "", True
    while cursor or is_first:
        page = transaction.scan(queue, State.DELAYED, PER_PAGE, cursor)
        yield from (card for card in page.messages if card.attempt)
        cursor, is_first = page.cursor, False
