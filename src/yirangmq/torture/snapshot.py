"""Everything a store knows, as one value that can be compared. Knows: the port. Does not know: which store."""

from collections.abc import Iterator
from typing import NamedTuple

from yirangmq.core.message import Counts, Envelope, Failure, Message
from yirangmq.core.ports import Store, Transaction
from yirangmq.core.states import WAITING, State

PAGE = 500
LIVING = WAITING | {State.DRAFT, State.DEAD, State.PARKED}
"""States in which a message is still owed to somebody."""

Key = tuple[str, str]
"""Queue and id."""


class Card(NamedTuple):
    """One message: where it stands, what was sent, why it failed last."""

    message: Message
    envelope: Envelope | None
    failure: Failure | None

    @property
    def state(self) -> State:
        return self.message.state


class Snapshot(NamedTuple):
    cards: dict[Key, Card]
    counts: dict[str, Counts]
    policies: dict[str, str | None]
    twice: tuple[Key, ...] = ()
    """Messages found in more than one state."""

    def living(self) -> set[Key]:
        return {key for key, card in self.cards.items() if card.state in LIVING}


NOTHING = Snapshot({}, {}, {})


def take(store: Store) -> Snapshot:
    with store.transaction(write=False) as transaction:
        cards: dict[Key, Card] = {}
        twice: list[Key] = []
        queues = transaction.queues()
        for queue in queues:
            for card in _cards(transaction, queue):
                key = (queue, card.message.id)
                if key in cards:
                    twice.append(key)
                cards[key] = card
        counts = {queue: transaction.counts(queue) for queue in queues}
        policies = {queue: transaction.policy_text(queue) for queue in queues}
        return Snapshot(cards, counts, policies, tuple(twice))


def _cards(transaction: Transaction, queue: str) -> Iterator[Card]:
    for state in State:
        cursor = ""
        while True:
            page = transaction.scan(queue, state, PAGE, cursor)
            sent, failures = transaction.envelopes(page.messages), transaction.failures(page.messages)
            yield from (Card(*parts) for parts in zip(page.messages, sent, failures, strict=True))
            cursor = page.cursor
            if not cursor:
                break


def recount(snapshot: Snapshot, queue: str) -> dict[str, int]:
    """How many the queue has in each state, and bytes that wait, counted one by one; history without content is not
    counted."""
    found = dict.fromkeys([*(state.value for state in State if state is not State.DROPPED), "bytes"], 0)
    for (owner, _), card in snapshot.cards.items():
        if owner == queue and card.state in WAITING:
            found["bytes"] += card.message.size
        if owner == queue and card.state is not State.DROPPED and (card.state is not State.DONE or card.message.body):
            found[card.state.value] += 1
    return found


def miscounts(snapshot: Snapshot) -> list[str]:
    wrong = []
    for queue, counts in snapshot.counts.items():
        for state, found in recount(snapshot, queue).items():
            kept = getattr(counts, state)
            if kept != found:
                wrong.append(f"queue {queue} says {kept} {state}, there are {found}")
    return wrong
