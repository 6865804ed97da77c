"""Selection of messages to lease: ready, alive, valid, intact, affordable; FIFO groups; strict order.

Selection sweeps expired messages, moves those that do not fit their schema to the dead letters, and stops at a limit of
bytes. The count that fitted last time is the count loaded next time, so that large payloads are not read in vain.

Messages for a single consumer stand behind all other ready messages, in places by consumer (``Transaction.scan``).

FIFO groups: of the messages with the same group id, the first is ready or in flight and the others are held. Changes of
messages pass ``swap``, so that a group moves on in the commit that ends its first message.

Integrity: where a queue keeps the SHA-256 of payloads, each payload is verified before it is leased. A damaged message
goes to the dead letters or is parked, and is counted and logged.

Strict order: a single message of a queue is in flight at a time. The next follows when it is acked or dead; a message
that waits for its retry holds the others back. Begun messages are found in the store at first and followed from then
on; a policy change starts anew."""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from yirangmq.broker.admission.admission import Gate, Schemas
from yirangmq.broker.event_buffer import Happenings
from yirangmq.core import transitions
from yirangmq.core.dispatch import may_begin
from yirangmq.core.errors import PayloadDamaged, QueueError
from yirangmq.core.message import RANK_LAST, Envelope, Message, Run, sizes_of
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import WAITING, State
from yirangmq.format.envelope import damage

# -- messages for a single consumer ------------------------------------------------------------------------------------

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


# -- FIFO groups -------------------------------------------------------------------------------------------------------


def swap(transaction: Transaction, changes: Sequence[Change], now: int, touched: set[str]) -> None:
    """``Transaction.swap``, and the turn of whoever is next in the groups it concerns."""
    transaction.swap(changes)
    if any(change[1][15] for change in changes):
        _turn(transaction, changes, now, touched)


def line_up(transaction: Transaction, new: Sequence[Message]) -> None:
    """Messages just added: those behind others of their group are held."""
    held = [message for message in new if message.group and message.state in (State.READY, State.DELAYED)]
    firsts = _firsts(transaction, held)
    transaction.swap([Change(m, transitions.hold(m)) for m in held if firsts[m.queue, m.group].seq != m.seq])


def _turn(transaction: Transaction, changes: Sequence[Change], now: int, touched: set[str]) -> None:
    came = [after for before, after, _ in changes if after.group and _entered(before, after)]
    line_up(transaction, came)
    left = [after for before, after, _ in changes if after.group and _left(before, after)]
    next_ones = [message for message in _firsts(transaction, left).values() if message.state is State.HELD]
    turns = []
    for message, envelope in zip(next_ones, transaction.envelopes(next_ones), strict=True):
        if envelope is not None:  # else its content is lost, and the store has passed its turn on
            turns.append(Change(message, transitions.free(message, envelope.available_at, now)))
            touched.add(message.queue)
    transaction.swap(turns)


def _entered(before: Message, after: Message) -> bool:
    return after.state in WAITING and before.state not in WAITING


def _left(before: Message, after: Message) -> bool:
    return before.state in WAITING and after.state not in WAITING


def _firsts(transaction: Transaction, messages: Sequence[Message]) -> dict[tuple[str, int], Message]:
    groups: dict[str, dict[int, None]] = {}
    for message in messages:
        groups.setdefault(message.queue, {})[message.group] = None
    found = {}
    for queue, numbers in groups.items():
        for group, first in zip(numbers, transaction.group_first(queue, list(numbers)), strict=True):
            if first is not None:
                found[queue, group] = first
    return found


# -- payload integrity -------------------------------------------------------------------------------------------------

log = logging.getLogger("yirangmq")


class IntegrityDeeds(Protocol):
    """What goes with it (``broker.operations.Verbs``)."""

    gate: Gate
    happened: Happenings

    def swap(self, transaction: Transaction, changes: Sequence[Change], now: int) -> None: ...


def damaged(envelopes: Iterable[Envelope]) -> bool:
    return any(map(damage, envelopes))


class Damage:
    def __init__(self, deeds: IntegrityDeeds) -> None:
        self._deeds = deeds

    def is_looked_for(self, transaction: Transaction, queue: str) -> bool:
        chain = self._deeds.gate.chain_of(transaction, queue)
        return chain is not None and chain.integrity

    def set_aside(
        self, transaction: Transaction, queue: str, found: Sequence[tuple[Message, Envelope]], now: int
    ) -> bool:
        """Those that are not what was sent go to the dead letters, or are parked. True if there was one."""
        if not self.is_looked_for(transaction, queue):
            return False
        policy = transaction.policy(queue)
        changes = []
        for message, envelope in found:
            text = damage(envelope)
            if text:
                outcome = transitions.set_aside(message, policy, now, text)
                changes.append(Change(message, outcome.message, outcome.failure))
                about = {"queue": queue, "messageId": message.id, "state": outcome.message.state, "why": text}
                log.error("a stored payload is damaged", extra={"values": about})
        self._deeds.swap(transaction, changes, now)
        self._deeds.happened.refused(changes, now)
        return bool(changes)

    def error_of(self, transaction: Transaction, message: Message, envelope: Envelope) -> QueueError | None:
        """For one that is asked for by its name."""
        text = damage(envelope) if self.is_looked_for(transaction, message.queue) else ""
        return PayloadDamaged(f"message {message.id} is not handed out: {text}") if text else None


# -- strict order ------------------------------------------------------------------------------------------------------

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


# -- selection ---------------------------------------------------------------------------------------------------------

Head = tuple[Message, Envelope]
MOST_SWEEPS = 20
"""Sweeps one lease may do before it takes what is left; the rest is due at the next call."""


class Deeds(Protocol):
    """What is done to messages on the way (``broker.operations.Verbs``)."""

    schemas: Schemas
    gate: Gate
    happened: Happenings
    touched: set[str]
    strict: StrictOrder

    def swap(self, transaction: Transaction, changes: Sequence[Change], now: int) -> None: ...

    def sweep_once(self, transaction: Transaction, now: int) -> int: ...


class Offers:
    def __init__(self, deeds: Deeds) -> None:
        self._deeds = deeds
        self._damage = Damage(deeds)
        self._fit: dict[str, int] = {}
        """How many messages of a queue were affordable when its messages are large."""

    def affordable(
        self, transaction: Transaction, queue: str, limit: int, target: int, most_bytes: int | None, now: int
    ) -> list[Head]:
        """As many as the bytes allow. How many that were last time is how many are loaded, so that large payloads are
        not read again and again for nothing; a queue that may have more is marked as touched."""
        asked = self._asked(queue, limit, most_bytes)
        heads = self.live(transaction, queue, asked, target, now)
        kept = self._kept(queue, limit, asked, [envelope.size for _, envelope in heads], most_bytes)
        return heads[:kept]

    def affordable_runs(
        self, transaction: Transaction, queue: str, limit: int, target: int, most_bytes: int | None
    ) -> list[tuple[Run, list[Envelope]]] | None:
        """The same of messages that can be treated as one; None where some must be looked at by themselves."""
        runs = transaction.in_runs()
        if runs is None:
            return None
        policy = transaction.policy(queue)
        if policy.schemas or policy.is_ordered:
            return None
        asked = self._asked(queue, limit, most_bytes)
        found = runs.head_runs(queue, asked, target)
        if not found:
            return found
        if self._damage.is_looked_for(transaction, queue) and any(damaged(envelopes) for _, envelopes in found):
            return None
        sizes = [size for _, envelopes in found for size in sizes_of(envelopes)]
        left = self._kept(queue, limit, asked, sizes, most_bytes)
        kept = []
        for run, envelopes in found:
            if left > 0:
                kept.append((run._replace(length=min(run.length, left)), envelopes[:left]))
            left -= run.length
        return kept

    def _asked(self, queue: str, limit: int, most_bytes: int | None) -> int:
        return limit if most_bytes is None else min(limit, self._fit.get(queue, limit))

    def _kept(self, queue: str, limit: int, asked: int, sizes: Sequence[int], most_bytes: int | None) -> int:
        """How many of those found, with these sizes, are affordable."""
        count = len(sizes)
        if most_bytes is None:
            return count
        kept = count if sum(sizes) <= most_bytes else max(1, bisect_right(list(accumulate(sizes)), most_bytes))
        if kept < count:
            self._fit[queue] = kept
        elif asked < limit:
            self._fit[queue] = asked * 2
        else:
            return kept
        if kept < count or count == asked:
            self._deeds.touched.add(queue)
        return kept

    def live(self, transaction: Transaction, queue: str, limit: int, target: int, now: int) -> list[Head]:
        """Whose time ran out is not handed out, however much is due at once; nor what does not fit its schema."""
        for _ in range(MOST_SWEEPS):
            heads = self._heads(transaction, queue, limit, target)
            if any(0 < message.expires_at <= now for message, _ in heads):
                self._deeds.sweep_once(transaction, now)
            elif not self._bury_unfit(transaction, queue, heads, now) and not self._damage.set_aside(
                transaction, queue, heads, now
            ):
                return heads
        return []

    def sound(self, transaction: Transaction, queue: str, heads: list[Head], now: int) -> list[Head]:
        """These, if nothing is wrong with any; else what is wrong is set aside, and the others come the next time."""
        if self._bury_unfit(transaction, queue, heads, now) or self._damage.set_aside(transaction, queue, heads, now):
            self._deeds.touched.add(queue)
            return []
        return heads

    def _heads(self, transaction: Transaction, queue: str, limit: int, target: int) -> list[Head]:
        """In strict order, first what was begun before."""
        policy = transaction.policy(queue)
        again = self._deeds.strict.again(transaction, queue, policy, target) if policy.is_ordered else None
        return transaction.heads(queue, limit, target) if again is None else [again]

    def _bury_unfit(self, transaction: Transaction, queue: str, heads: Sequence[Head], now: int) -> bool:
        """Publishing has checked what came through it; a file dropped into a folder, or a message older than its
        schema, is checked before it is first handed out. True if there was one."""
        policy = transaction.policy(queue)
        if not policy.schemas:
            return False
        changes = []
        for message, envelope in heads:
            complaint = "" if message.leases else self._deeds.schemas.complaint(envelope, policy)
            if complaint:
                outcome = transitions.refuse(message, policy, now, complaint)
                changes.append(Change(message, outcome.message, outcome.failure))
        self._deeds.swap(transaction, changes, now)
        self._deeds.happened.refused(changes, now)
        return bool(changes)
