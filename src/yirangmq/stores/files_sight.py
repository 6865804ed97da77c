"""What a transaction sees: what the disk has, with what was changed since on top, in order.

Knows: cards, on disk and not yet there. Does not know: what is done with them."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain

from yirangmq.core.message import Message
from yirangmq.core.states import WAITING, State
from yirangmq.format.filenames import Card
from yirangmq.stores.files_pending import Pending
from yirangmq.stores.files_view import Order, View, order_of


class Sight:
    """One per transaction."""

    def __init__(self, view: View, pending: Pending) -> None:
        self._view = view
        self._pending = pending
        self._passed: dict[tuple[str, int], int] = {}
        """Of a group on disk, the last of those that were touched one after the other from the first on."""

    # -- one by one -----------------------------------------------------------------------------------------------

    def find(self, seqs: Sequence[int]) -> dict[int, Card]:
        pending = self._pending
        found = self._view.find(seq for seq in seqs if seq not in pending.after)
        cards = {seq: card for seq, card in found.items() if card.message.queue not in pending.deleted}
        for seq in seqs:
            card = pending.after.get(seq)
            if card is not None:
                cards[seq] = card
        return cards

    def find_ids(self, queue: str, ids: Sequence[str]) -> dict[str, Card]:
        pending = self._pending
        touched = {id: seq for id in ids if (seq := pending.by_id(queue, id)) is not None}
        found: dict[str, Card] = {}
        if queue not in pending.deleted:
            known = self._view.find_ids(queue, [id for id in ids if id not in touched])
            found = {id: card for id, card in known.items() if card.message.seq not in pending.after}
        for id, seq in touched.items():
            card = pending.after[seq]
            if card is not None:
                found[id] = card
        return found

    # -- in order -------------------------------------------------------------------------------------------------

    def in_state(self, queue: str, state: State, after: Order = ()) -> Iterator[Card]:
        """In order, what the disk has and was not touched, and what was touched."""
        if state is State.READY:
            return self._in_lines(queue, after)
        mine = [card for card in self._pending.cards(queue, state) if order_of(card.message) > after]
        stored = () if queue in self._pending.deleted else self._view.in_state(queue, state, after)
        return self._merged(stored, mine)

    def _in_lines(self, queue: str, after: Order) -> Iterator[Card]:
        """Those ready for anyone, then those ready for one consumer each."""
        behind = after[0] if after else 0
        stored = set() if queue in self._pending.deleted else set(self._view.targets(queue))
        lines = sorted(target for target in {0} | stored | self._pending.targets(queue) if target >= behind)
        return chain.from_iterable(
            self._in_line(queue, target, after[1:] if target == behind else ()) for target in lines
        )

    def _in_line(self, queue: str, target: int, after: Order = ()) -> Iterator[Card]:
        mine = [card for card in self._pending.ready(queue, target) if order_of(card.message) > (target, *after)]
        stored = () if queue in self._pending.deleted else self._view.line(queue, target, after)
        return self._merged(stored, mine)

    def _merged(self, stored: Iterable[Card], mine: list[Card]) -> Iterator[Card]:
        untouched = (card for card in stored if card.message.seq not in self._pending.after)
        return merge(untouched, sorted(mine, key=_card_order), key=_card_order) if mine else untouched

    def open_to(self, queue: str, target: int) -> Iterator[Card]:
        """What this consumer may have, in order."""
        anyones = self._in_line(queue, 0)
        return merge(anyones, self._in_line(queue, target), key=_turn) if target else anyones

    # -- of a group -----------------------------------------------------------------------------------------------

    def first_of(self, queue: str, group: int) -> Message | None:
        """The one of those not done with that came first."""
        touched = self._pending.first_of(queue, group)
        untouched = None if queue in self._pending.deleted else self._first_untouched(queue, group)
        cards = [card.message for card in (touched, untouched) if card is not None]
        return min(cards, key=lambda message: (message.place, message.seq), default=None)

    def _first_untouched(self, queue: str, group: int) -> Card | None:
        """What was touched stays touched, so that the next look begins where this one ends."""
        at = queue, group
        for seq in self._view.members(queue, group, self._passed.get(at, 0)):
            if seq not in self._pending.after:
                card = self._view.find([seq]).get(seq)
                if card is not None and card.message.group == group and card.message.state in WAITING:
                    return card
            self._passed[at] = seq
        return None


def _card_order(card: Card) -> Order:
    return order_of(card.message)


def _turn(card: Card) -> Order:
    return card.message.rank, card.message.place
