"""A transaction with an eye on what it accepts and settles, for files by date.

Knows: which methods of a transaction do that, and what is told of each. Does not know: files, commits."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from yirangmq.core.journal import SETTLED, Delivery, Kind, Outcome, outcome_of
from yirangmq.core.message import Envelope, Message, Run
from yirangmq.core.ports import Change, InRuns, Stored, Transaction
from yirangmq.core.states import State
from yirangmq.format import journal_line


class Observed:
    """The inner transaction, with an eye on what it accepts and settles. (Lines are made when the commit comes: their
    moment is that of the commit.)"""

    def __init__(self, inner: Transaction) -> None:
        self.inner = inner
        self.works: list[Callable[[int], Iterator[bytes]]] = []
        self.seq = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def is_news(self) -> bool:
        return bool(self.works)

    def lines(self, now: int) -> list[bytes]:
        return [line for work in self.works for line in work(now)]

    # -- accepting ------------------------------------------------------------------------------------------------

    def add(
        self, envelopes: Sequence[Envelope], now: int, dedup_until: int, draft_until: int | None = None
    ) -> list[Stored]:
        stored = self.inner.add(envelopes, now, dedup_until, draft_until)
        fresh = [(one.seq, sent) for one, sent in zip(stored, envelopes, strict=True) if not one.duplicate]
        if fresh and draft_until is None:
            self._accept(fresh)
        return stored

    def rewrite(self, messages: Sequence[Message], envelopes: Sequence[Envelope]) -> None:
        """A draft is accepted when its content comes."""
        self.inner.rewrite(messages, envelopes)
        for is_draft, kind in ((True, Kind.ACCEPTED), (False, Kind.REWRITTEN)):
            found = [
                (card.seq, sent)
                for card, sent in zip(messages, envelopes, strict=True)
                if (card.state is State.DRAFT) is is_draft
            ]
            if found:
                self._accept(found, kind)

    def _accept(self, messages: Sequence[tuple[int, Envelope]], kind: Kind = Kind.ACCEPTED) -> None:
        self.seq = max(self.seq, *(seq for seq, _ in messages))
        self.works.append(lambda now: journal_line.accepted(now, messages, kind))

    # -- settling -------------------------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> None:
        self.inner.swap(changes)
        told = [outcome for outcome in map(outcome_of, changes) if outcome is not None]
        self.settle(told)

    def settle(self, told: Sequence[Outcome], *, completed: bool = False) -> None:
        if told:
            self.works.append(lambda now: (journal_line.outcome(now, one, completed=completed) for one in told))

    def forget(self, messages: Sequence[Message]) -> None:
        self.inner.forget(messages)
        going = [card for card in messages if card.state not in SETTLED and card.state is not State.DRAFT]
        self.settle([Outcome(card, State.DROPPED, None, card.attempt, "", 0, "cleared") for card in going])

    def delete_queue(self, queue: str) -> None:
        self.inner.delete_queue(queue)
        place = self.inner.places(1)
        self.works.append(lambda now: iter([journal_line.queue_deleted(now, queue, place)]))

    def in_runs(self) -> InRuns | None:
        runs = self.inner.in_runs()
        return None if runs is None else cast("InRuns", ObservedRuns(self, runs))

    # -- completing -----------------------------------------------------------------------------------------------

    def complete(self, cards: Sequence[Message]) -> None:
        """They stand in the store, and nothing tells of them."""
        sent = self.inner.envelopes(cards)
        found = [(card.seq, one) for card, one in zip(cards, sent, strict=True) if one is not None]
        if found:
            self.seq = max(self.seq, *(seq for seq, _ in found))
            self.works.append(lambda now: journal_line.accepted(now, found, completed=True))
        over = [card for card in cards if card.state in (State.DONE, State.DEAD, State.PARKED)]
        self.settle([_as_found(card) for card in over], completed=True)


class ObservedRuns:
    def __init__(self, observed: Observed, runs: InRuns) -> None:
        self._observed = observed
        self._runs = runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runs, name)

    def swap_run(self, run: Run, after: Message) -> None:
        if after.state is State.DONE:
            card = run.card
            cards = self._observed.inner.by_seq(range(card.seq, card.seq + run.length))
            self._observed.settle([_delivered(one) for one in cards if one is not None])
        self._runs.swap_run(run, after)


def _delivered(card: Message) -> Outcome:
    return Outcome(card, State.DONE, Delivery.DELIVERED, card.attempt, card.consumer, card.changed_at)


def _as_found(card: Message) -> Outcome:
    delivery = Delivery.DELIVERED if card.state is State.DONE else None
    return Outcome(card, card.state, delivery, card.attempt, card.consumer, 0, str(card.reason))
