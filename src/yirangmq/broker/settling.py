"""Verbs that end a lease or make it longer, inside one transaction: look the leases up, decide each by
``core.transitions``, swap all at once. A stale one is its own error and harms no other.

Knows: leases, transactions. Does not know: how messages are handed out, doors."""

from collections.abc import Callable, Sequence
from typing import Protocol

from yirangmq.broker import together
from yirangmq.broker.leases import Leases, Results
from yirangmq.core import transitions
from yirangmq.core.errors import NotFound, QueueError
from yirangmq.core.message import Message
from yirangmq.core.policy import Chance
from yirangmq.core.ports import Change, Transaction, new_change

Settle = Callable[[Message | None, int, str, Transaction, int], Change | None]


class Deeds(together.RunDeeds, Protocol):
    """What goes with it (``broker.verbs.Verbs``)."""

    def now_ms(self) -> int: ...

    def fraction(self) -> float:
        """Chance: from 0 on, below 1."""

    def swap(self, transaction: Transaction, changes: Sequence[Change], now: int) -> None: ...


def ack(deeds: Deeds, transaction: Transaction, leases: Leases, consumer: str | None) -> Results:
    def settle(message: Message | None, fence: int, lease: str, transaction: Transaction, now: int) -> Change | None:
        if transitions.acked_before(message, fence):
            return None
        before = transitions.held(message, fence, consumer, now, lease)
        policy = transaction.policy(before.queue)
        return new_change((before, transitions.ack(before, policy, now), None))

    if together.ack_runs(deeds, transaction, leases, consumer, deeds.now_ms()):
        return [None] * len(leases.texts)
    return _settle(deeds, transaction, leases, "ack", settle)


def nack(
    deeds: Deeds, transaction: Transaction, leases: Leases, consumer: str | None, cause: transitions.Cause
) -> Results:
    def settle(message: Message | None, fence: int, lease: str, transaction: Transaction, now: int) -> Change | None:
        if transitions.nacked_before(message, fence):
            return None
        before = transitions.held(message, fence, consumer, now, lease)
        chance = Chance(deeds.fraction())
        policy = transaction.policy(before.queue)
        outcome = transitions.nack(before, policy, now, cause, transaction.places(1), chance)
        deeds.touched.add(before.queue)
        return Change(before, outcome.message, outcome.failure)

    return _settle(deeds, transaction, leases, "nack", settle, cause.reason)


def release(
    deeds: Deeds, transaction: Transaction, leases: Leases, consumer: str | None, *, in_place: bool = False
) -> Results:
    def settle(message: Message | None, fence: int, lease: str, transaction: Transaction, now: int) -> Change | None:
        before = transitions.held(message, fence, consumer, now, lease)
        deeds.touched.add(before.queue)
        place = before.place if in_place else transaction.places(1)
        return Change(before, transitions.release(before, transaction.policy(before.queue), now, place))

    return _settle(deeds, transaction, leases, "release", settle)


def extend(deeds: Deeds, transaction: Transaction, leases: Leases, consumer: str | None, span: int | None) -> Results:
    def settle(message: Message | None, fence: int, lease: str, transaction: Transaction, now: int) -> Change | None:
        before = transitions.held(message, fence, consumer, now, lease)
        length = transaction.policy(before.queue).visibility_ms if span is None else span
        return Change(before, transitions.extend(before, now, now + length))

    return _settle(deeds, transaction, leases, "extend", settle)


def _settle(
    deeds: Deeds, transaction: Transaction, leases: Leases, verb: str, settle: Settle, reason: str = ""
) -> Results:
    now = deeds.now_ms()
    found = transaction.by_seq([seq for seq, _ in leases.keys])
    errors: Results = []
    changes: list[Change] = []
    for message, (_, fence), lease in zip(found, leases.keys, leases.texts, strict=True):
        try:
            if leases.queue is not None and message is not None and message.queue != leases.queue:
                raise NotFound(f"lease {lease} is not one of queue {leases.queue!r}")
            change = settle(message, fence, lease, transaction, now)
        except QueueError as error:
            errors.append(error)
            continue
        errors.append(None)
        if change is not None:
            changes.append(change)
    deeds.swap(transaction, changes, now)
    deeds.happened.settled(verb, changes, now, reason)
    deeds.tidy_after(transaction, len(changes), now)
    return errors
