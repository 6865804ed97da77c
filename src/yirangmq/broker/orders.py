"""The verbs of the HTTP document, one message each, inside one transaction: draft, set, claim (order), fetch (get), and
those that settle it by its id alone. The rules are ``core.orders``; whole queues are ``broker.wholesale``.

A verb checks everything before it writes anything, so that one that raises one of our errors has changed nothing."""

from typing import NamedTuple

from yirangmq.broker.offers import MOST_SWEEPS
from yirangmq.broker.room import check_growth
from yirangmq.broker.verbs import Verbs
from yirangmq.core import decide, names
from yirangmq.core import orders as rules
from yirangmq.core.errors import NotFound, TooLarge
from yirangmq.core.events import Steered
from yirangmq.core.message import RANK_LAST, Counts, Envelope, Message, new_envelope
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Change, Clock, Stored, Transaction
from yirangmq.core.quota import Load
from yirangmq.core.reasons import Reason
from yirangmq.core.states import State
from yirangmq.format.content import with_content

OURS = '{"retry":{"limit":null},"dlq":{"retentionDays":3660},"archive":{"enabled":false}}'
"""The policy of a queue that begins with a draft, as the document describes queues: a message may come back any number
of times, one that failed stays until somebody decides, and one that is completed is not kept."""


class Content(NamedTuple):
    """A media type ("" is none) and bytes."""

    type: str
    body: bytes


class Fetched(NamedTuple):
    """A message, as it stands after it was fetched."""

    message: Message
    envelope: Envelope


class Orders:
    """Used with the verbs of one store, so by one thread at a time."""

    def __init__(self, verbs: Verbs, clock: Clock) -> None:
        self._verbs = verbs
        self._clock = clock

    # -- producing ------------------------------------------------------------------------------------------------

    def draft(self, transaction: Transaction, queue: str, id: str, rank: int, namespace: str = "") -> str:
        """A place for a message whose content is still to come; its id. ``namespace``: what the queue is called where
        it cannot be called by its own name."""
        now = self._clock.now_ms()
        self.found(transaction, queue, namespace)
        header = "" if rank == RANK_LAST else f'{{"attributes":{{"priority":{rank}}}}}'
        envelope = new_envelope((queue, id, rank, now, now, 0, None, header, b"", False, 0, 0))
        until = now + self._verbs.defaults.draft_in(transaction.policy(queue))
        [stored] = transaction.add([envelope], now, now, until)
        return stored.id

    def found(self, transaction: Transaction, queue: str, namespace: str = "") -> None:
        """A queue that begins here gets the document's policy."""
        if transaction.policy(queue).retry.limit is None:
            return
        if transaction.policy_text(queue) is None and not any(transaction.counts(queue)):
            transaction.set_policy(queue, OURS)
            if namespace:
                transaction.set_note(note_of(queue), namespace)

    def set(self, transaction: Transaction, queue: str, id: str, content: Content) -> None:
        """A draft becomes a message; a message that nobody has taken yet gets other content, and keeps its place."""
        now = self._clock.now_ms()
        policy = transaction.policy(queue)
        most = self._verbs.defaults.set_body_in(policy)
        if len(content.body) > most:
            raise TooLarge(f"{len(content.body)} bytes, this queue takes {most}", field="payload")
        card = rules.settable(self._card(transaction, queue, id, now))
        [old] = transaction.envelopes([card])
        if old is None:
            raise NotFound(rules.UNHEARD)
        new = with_content(old, content.type, content.body)
        is_unique = self._verbs.defaults.unique_in(policy)
        if is_unique:
            self._verbs.uniqueness.check(transaction, card, new.payload, now)
        if policy.quota.is_set:
            self._check_room(transaction, policy, card, new, now)
        transaction.rewrite([card], [new])
        after = card._replace(size=new.size)
        if card.state is State.DRAFT:
            self._enter(transaction, after, new, policy, now)
        if is_unique:
            before = None if card.state is State.DRAFT else old.payload
            self._verbs.uniqueness.rewritten(transaction, card, before, new.payload, now)
        elif card.state is not State.DRAFT:
            self._verbs.uniqueness.spoil(transaction, queue)

    def _check_room(
        self, transaction: Transaction, policy: QueuePolicy, card: Message, new: Envelope, now: int
    ) -> None:
        if card.state is State.DRAFT:
            self._verbs.make_room(transaction, policy, card.queue, Load(1, new.size), now)
        elif new.size > card.size:
            check_growth(transaction, policy, card.queue, new.size - card.size)

    def _enter(self, transaction: Transaction, card: Message, sent: Envelope, policy: QueuePolicy, now: int) -> None:
        verbs = self._verbs
        after = decide.set_content(card, policy, now, transaction.places(1))
        verbs.swap(transaction, [Change(card, after)], now)
        verbs.touched.add(card.queue)
        verbs.happened.published(card.queue, [sent], [len(sent.payload)], [Stored(card.seq, card.id, False)], now)

    # -- consuming ------------------------------------------------------------------------------------------------

    def claim(self, transaction: Transaction, queue: str, limit: int = 1) -> list[Message]:
        """Give out the ids of the first in line; their content is fetched by name."""
        now = self._clock.now_ms()
        limit = self._verbs.allowance(transaction, queue, limit, now)
        found = self._first(transaction, queue, limit, now) if limit else []
        if not found:
            return []
        until = now + self._verbs.defaults.claim_in(transaction.policy(queue))
        claimed = [decide.claim(message, now, until, rules.ORDERER) for message in found]
        transaction.swap([Change(before, after) for before, after in zip(found, claimed, strict=True)])
        self._verbs.happened.claimed(queue, found, now)
        return claimed

    def _first(self, transaction: Transaction, queue: str, limit: int, now: int) -> list[Message]:
        """Without their content, unless it must be looked at. Those for one consumer stand behind all others."""
        if not transaction.policy(queue).schemas:
            found = transaction.scan(queue, State.READY, limit).messages
            if not any(message.target or 0 < message.expires_at <= now for message in found):
                return found
        return [message for message, _ in self._verbs.offers.live(transaction, queue, limit, 0, now)]

    def unclaim(self, transaction: Transaction, claimed: Message) -> None:
        """Whoever was to have it had left."""
        [card] = transaction.by_seq([claimed.seq])
        if card == claimed:
            now = self._clock.now_ms()
            self._verbs.swap(transaction, [Change(card, decide.unclaim(card, now))], now)
            self._verbs.touched.add(card.queue)

    def fetch(self, transaction: Transaction, queue: str, id: str) -> Fetched:
        """A claimed message is leased from now on; any other is shown as it is."""
        now = self._clock.now_ms()
        card = rules.readable(self._card(transaction, queue, id, now))
        if card.state is State.CLAIMED:
            after = decide.start(card, now, now + self._verbs.defaults.active_in(transaction.policy(queue)))
            transaction.swap([Change(card, after)])
            card = after
        return self._with_envelope(transaction, card)

    def look(self, transaction: Transaction, queue: str, id: str) -> Fetched:
        """The same, and nothing changes."""
        card = rules.readable(self._card(transaction, queue, id, self._clock.now_ms()))
        return self._with_envelope(transaction, card)

    def _with_envelope(self, transaction: Transaction, card: Message) -> Fetched:
        [envelope] = transaction.envelopes([card])
        if envelope is None:
            raise NotFound(rules.UNHEARD)
        return Fetched(card, envelope)

    # -- settling -------------------------------------------------------------------------------------------------

    def complete(self, transaction: Transaction, queue: str, id: str) -> None:
        now = self._clock.now_ms()
        card = self._card(transaction, queue, id, now)
        after = rules.complete(card, transaction.policy(queue), now)
        if card is not None and after is not None:
            change = Change(card, after)
            self._verbs.swap(transaction, [change], now)
            self._verbs.happened.settled("ack", [change], now)
            self._verbs.tidy_after(transaction, 1, now)

    def fail(self, transaction: Transaction, queue: str, id: str) -> None:
        now = self._clock.now_ms()
        card = self._card(transaction, queue, id, now)
        outcome = rules.fail(card, transaction.policy(queue), now)
        if card is not None and outcome is not None:
            change = Change(card, outcome.message, outcome.failure)
            self._verbs.swap(transaction, [change], now)
            self._verbs.happened.settled("nack", [change], now, Reason.HANDLER_ERROR)

    def renew(self, transaction: Transaction, queue: str, id: str) -> None:
        now = self._clock.now_ms()
        card = self._card(transaction, queue, id, now)
        [failure] = transaction.failures([card]) if card is not None else [None]
        after = rules.renew(card, failure, now, transaction.places(1))
        if card is not None and after is not None:
            self._verbs.swap(transaction, [Change(card, after)], now)
            self._verbs.touched.add(queue)
            self._verbs.happened.moved(State.READY, [card])

    def abandon(self, transaction: Transaction, queue: str, id: str) -> None:
        now = self._clock.now_ms()
        card = self._card(transaction, queue, id, now)
        after = rules.abandon(card, transaction.policy(queue), now)
        if card is not None and after is not None:
            change = Change(card, after)
            self._verbs.swap(transaction, [change], now)
            self._verbs.happened.dropped("asked", [change])

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

    def _card(self, transaction: Transaction, queue: str, id: str, now: int) -> Message | None:
        """Where it stands, time included."""
        if not names.IDENTIFIER.fullmatch(id):
            return None
        [card] = transaction.by_id(queue, [id])
        for _ in range(MOST_SWEEPS):
            if card is None or not 0 < card.due_at <= now or not self._verbs.sweep_once(transaction, now):
                break
            [card] = transaction.by_id(queue, [id])
        return card


def note_of(queue: str) -> str:
    """Where the namespace of a queue is kept that is too long to be its name."""
    return f"mq/namespace/{queue}"
