"""The consumer's verbs of the HTTP queue inside one transaction: claim (order), fetch (get), and those that settle
messages by their ids alone. Many at a time; the rules are ``core.transitions``, whole queues are ``broker.wholesale``.

A verb checks everything before it writes anything, so that one that is refused has changed nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from yirangmq.broker.drafts import cards_of
from yirangmq.broker.integrity import Damage
from yirangmq.broker.leases import Results
from yirangmq.broker.verbs import Verbs
from yirangmq.core import transitions
from yirangmq.core import transitions as rules
from yirangmq.core.dispatch import BY_NAME
from yirangmq.core.errors import NotFound, QueueError
from yirangmq.core.events import Steered
from yirangmq.core.message import Counts, Envelope, Message, Reason
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Change, Clock, Transaction, new_change
from yirangmq.core.states import State

Decided = Callable[[Message | None, QueuePolicy], Change | None]


class Fetched(NamedTuple):
    """A message, as it stands after it was fetched."""

    message: Message
    envelope: Envelope


class Orders:
    """Used with the verbs of one store, so by one thread at a time."""

    def __init__(self, verbs: Verbs, clock: Clock) -> None:
        self._verbs = verbs
        self._clock = clock
        self._damage = Damage(verbs)

    # -- taking ---------------------------------------------------------------------------------------------------

    def claim(self, transaction: Transaction, queue: str, limit: int) -> list[Message]:
        """Give out the ids of the first in line; their content is fetched by name."""
        now = self._clock.now_ms()
        limit = self._verbs.allowance(transaction, queue, limit, now)
        dispatch = transaction.policy(queue).dispatch
        if dispatch is not None and dispatch.strategy in BY_NAME:
            return []  # whoever orders has no name
        found = self._first(transaction, queue, limit, now) if limit else []
        if not found:
            return []
        until = now + self._verbs.defaults.claim_in(transaction.policy(queue))
        claimed = [transitions.claim(message, now, until, rules.ORDERER) for message in found]
        transaction.swap([new_change((before, after, None)) for before, after in zip(found, claimed, strict=True)])
        self._verbs.happened.claimed(queue, found, now)
        if dispatch is not None:
            self._verbs.happened.deliveries.begun(claimed)
        return claimed

    def _first(self, transaction: Transaction, queue: str, limit: int, now: int) -> list[Message]:
        """Without their content, unless it must be looked at. Those for one consumer stand behind all others."""
        policy = transaction.policy(queue)
        if not policy.schemas and not policy.is_ordered and not self._damage.is_looked_for(transaction, queue):
            found = transaction.scan(queue, State.READY, limit).messages
            if not any(message.target or 0 < message.expires_at <= now for message in found):
                return found
        return [message for message, _ in self._verbs.offers.live(transaction, queue, limit, 0, now)]

    def unclaim(self, transaction: Transaction, claimed: Message) -> None:
        """Whoever was to have it had left."""
        [card] = transaction.by_seq([claimed.seq])
        if card == claimed:
            now = self._clock.now_ms()
            self._verbs.swap(transaction, [Change(card, transitions.unclaim(card, now))], now)
            self._verbs.touched.add(card.queue)

    def fetch(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> list[Fetched | QueueError]:
        """Claimed messages are leased from now on; any other is shown as it is."""
        now = self._clock.now_ms()
        cards = cards_of(self._verbs, transaction, queue, ids, now)
        until = now + self._verbs.defaults.active_in(transaction.policy(queue))
        claimed = [card for card in cards.values() if card is not None and card.state is State.CLAIMED]
        if claimed and self._damage.is_looked_for(transaction, queue):
            envelopes = zip(claimed, transaction.envelopes(claimed), strict=True)
            heads = [(card, envelope) for card, envelope in envelopes if envelope is not None]
            if self._damage.set_aside(transaction, queue, heads, now):
                cards = cards_of(self._verbs, transaction, queue, ids, now)
                claimed = [card for card in cards.values() if card is not None and card.state is State.CLAIMED]
        started = {card.id: transitions.start(card, now, until) for card in claimed}
        if claimed:
            transaction.swap([new_change((card, started[card.id], None)) for card in claimed])
        return self._shown(transaction, ids, {**cards, **started})

    def look(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> list[Fetched | QueueError]:
        """The same, and nothing changes."""
        return self._shown(transaction, ids, cards_of(self._verbs, transaction, queue, ids, self._clock.now_ms()))

    def _shown(
        self, transaction: Transaction, ids: Sequence[str], cards: Mapping[str, Message | None]
    ) -> list[Fetched | QueueError]:
        found: dict[str, Fetched | QueueError] = {}
        readable: list[Message] = []
        for id, card in cards.items():
            try:
                readable.append(rules.readable(card))
            except QueueError as error:
                found[id] = error
        is_checked = bool(readable) and self._damage.is_looked_for(transaction, readable[0].queue)
        for card, envelope in zip(readable, transaction.envelopes(readable), strict=True):
            if envelope is None:
                found[card.id] = NotFound(rules.UNHEARD)
                continue
            trouble = self._damage.error_of(transaction, card, envelope) if is_checked else None
            found[card.id] = trouble or Fetched(card, envelope)
        return [found[id] for id in ids]

    # -- settling -------------------------------------------------------------------------------------------------

    def complete(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> Results:
        now = self._clock.now_ms()

        def decided(card: Message | None, policy: QueuePolicy) -> Change | None:
            after = rules.complete(card, policy, now)
            return None if after is None or card is None else new_change((card, after, None))

        errors, changes = self._settle(transaction, queue, ids, decided, now)
        self._verbs.happened.settled("ack", changes, now)
        self._verbs.tidy_after(transaction, len(changes), now)
        return errors

    def fail(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> Results:
        now = self._clock.now_ms()

        def decided(card: Message | None, policy: QueuePolicy) -> Change | None:
            outcome = rules.fail_order(card, policy, now)
            return None if outcome is None or card is None else Change(card, *outcome)

        errors, changes = self._settle(transaction, queue, ids, decided, now)
        self._verbs.happened.settled("nack", changes, now, Reason.HANDLER_ERROR)
        return errors

    def renew(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> Results:
        now = self._clock.now_ms()

        def decided(card: Message | None, policy: QueuePolicy) -> Change | None:
            [failure] = transaction.failures([card]) if card is not None else [None]
            after = rules.renew(card, failure, now, transaction.places(1))
            return None if after is None or card is None else Change(card, after)

        errors, changes = self._settle(transaction, queue, ids, decided, now)
        if changes:
            self._verbs.touched.add(queue)
            self._verbs.happened.moved(State.READY, [change.before for change in changes])
        return errors

    def abandon(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> Results:
        now = self._clock.now_ms()

        def decided(card: Message | None, policy: QueuePolicy) -> Change | None:
            after = rules.abandon_order(card, policy, now)
            return None if after is None or card is None else Change(card, after)

        errors, changes = self._settle(transaction, queue, ids, decided, now)
        self._verbs.happened.dropped("asked", changes)
        return errors

    def _settle(
        self, transaction: Transaction, queue: str, ids: Sequence[str], decided: Decided, now: int
    ) -> tuple[Results, list[Change]]:
        """Look the messages up, decide each, swap all at once. One that is asked for twice has one answer."""
        policy = transaction.policy(queue)
        errors: dict[str, QueueError | None] = {}
        changes: list[Change] = []
        for id, card in cards_of(self._verbs, transaction, queue, ids, now).items():
            try:
                change = decided(card, policy)
            except QueueError as error:
                errors[id] = error
                continue
            errors[id] = None
            if change is not None:
                changes.append(change)
        self._verbs.swap(transaction, changes, now)
        return [errors[id] for id in ids], changes

    # -- the queue ------------------------------------------------------------------------------------------------

    def stats(self, transaction: Transaction, queue: str) -> Counts:
        """After all that is due has happened."""
        self._verbs.pass_time(transaction, self._clock.now_ms())
        return transaction.counts(queue)

    def clear(self, transaction: Transaction, queue: str) -> None:
        """Everything but the policy goes, as far as one commit can (``wholesale.clear``)."""
        text = transaction.policy_text(queue)
        transaction.delete_queue(queue)
        if text is not None:
            transaction.set_policy(queue, text)
        self._verbs.happened.add(Steered(queue, "clear"))
