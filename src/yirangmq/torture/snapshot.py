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


TOTALS = ("published", "acked", "failed", "dropped", "redriven")

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


def mistotals(found: Snapshot, before: Snapshot, after: Snapshot) -> list[str]:
    """Totals that are not those of the messages found: as before the call that was cut off, and one more for each
    message of that call that did move. Where only the store can know (a message failed twice in the call, or is
    forgotten) and half of the call is there, totals must lie between those before and after it."""
    wrong = []
    for queue, counts in found.counts.items():
        old = before.counts.get(queue, Counts())
        new = after.counts.get(queue, old)  # a deleted queue goes as a whole
        cards, had, would_have = (
            {key: card for key, card in one.cards.items() if key[0] == queue} for one in (found, before, after)
        )
        steps = [_steps(had.get(key), card) for key, card in cards.items() if card != had.get(key)]
        is_plain = had.keys() <= would_have.keys()
        for total in TOTALS:
            kept, least, most = getattr(counts, total), getattr(old, total), getattr(new, total)
            counted = least + sum(step[total] for step in steps)
            if cards == had:
                is_right = kept == least
            elif cards == would_have:
                is_right = kept == most
            else:
                is_right = kept == counted or ((total == "failed" or not is_plain) and least <= kept <= most)
            if not is_right:
                said = f"{least} before the call, {most} after it, {counted} by its messages"
                wrong.append(f"queue {queue} says {kept} {total}: {said}")
    return wrong


def _steps(old: Card | None, new: Card) -> dict[str, int]:
    """What one call adds to the totals when it brings a message from here to there."""
    was = old.state if old is not None else None
    is_failed = new.failure is not None and (old is None or new.failure != old.failure)
    return {
        "published": (was in (None, State.DRAFT) and new.state not in (State.DRAFT, State.DROPPED)) + 0,
        "acked": (new.state is State.DONE and was is not State.DONE) + 0,
        "failed": is_failed + 0,
        "dropped": (new.state is State.DROPPED and was is not State.DROPPED) + 0,
        "redriven": (new.state is State.READY and was in (State.DEAD, State.PARKED)) + 0,
    }
