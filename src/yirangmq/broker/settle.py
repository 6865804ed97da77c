"""Settling: ack, nack, release and extend of leases, singly or in runs; lease ids; leasing of runs.

An operation looks the leases up, decides each by ``core.transitions``, and swaps all at once. A stale lease gets its
own error and does not affect the others. A repeated ack or nack succeeds.

A lease id is the message's number and a fence. A call takes ``MOST_PER_CALL`` ids at most, none twice.

A run is a sequence of consecutive messages in the same state, decided once for all. Messages are leased and acked in
runs. An ack needs leases of the same fence, no unique payloads and no dispatch strategy; otherwise each lease is
settled by itself."""

from collections.abc import Callable, Sequence
from typing import Protocol

from yirangmq.broker.event_buffer import Happenings
from yirangmq.core import transitions
from yirangmq.core.errors import BadInput, NotFound, QueueError
from yirangmq.core.message import Envelope, Message, Run, lease_span, split_lease_id
from yirangmq.core.policy import Chance, Defaults
from yirangmq.core.ports import Change, Transaction, new_change
from yirangmq.format.delivery import Delivery, RunDeliveries

# -- lease ids ---------------------------------------------------------------------------------------------------------

MOST_PER_CALL = 10_000
"""Messages in one call; a larger batch gains nothing and holds the lane."""

Results = list[QueueError | None]
"""For each message None, or why not."""


class Leases:
    """Lease ids of one call, read and checked: how many, each well formed, none twice. ``queue``: where all of them
    must be from, if the caller says so. ``span``: if it is known already."""

    def __init__(
        self, leases: Sequence[str], queue: str | None = None, span: tuple[int, int, int] | None = None
    ) -> None:
        if len(leases) > MOST_PER_CALL:
            raise BadInput(f"{len(leases)} in one call, at most {MOST_PER_CALL}", field="leases")
        self.texts = leases
        self.queue = queue
        self.span = lease_span(leases) if span is None else span
        """First, last and fence, if their numbers follow each other and all have the same fence, as is usual."""
        self._keys = None if self.span else [_checked_lease(lease) for lease in leases]
        if self._keys is not None and len(set(self._keys)) != len(self._keys):
            raise BadInput("the same lease twice in one call", field="leases")

    @property
    def keys(self) -> list[tuple[int, int]]:
        """Number and fence of each."""
        if self._keys is None and self.span is not None:
            first, last, fence = self.span
            self._keys = [(seq, fence) for seq in range(first, last + 1)]
        return self._keys or []


def _checked_lease(lease: object) -> tuple[int, int]:
    key = split_lease_id(lease) if isinstance(lease, str) else None
    if key is None:
        raise BadInput(f"{lease!r} is not a lease id", field="leaseId")
    return key


# -- runs --------------------------------------------------------------------------------------------------------------


class RunDeeds(Protocol):
    """What goes with it (``broker.operations.Verbs``)."""

    happened: Happenings
    defaults: Defaults
    touched: set[str]

    def tidy_after(self, transaction: Transaction, settled: int, now: int) -> None: ...


class Named(Protocol):
    """Leases as a caller names them (``broker.settle.Leases``)."""

    texts: Sequence[str]
    queue: str | None
    span: tuple[int, int, int] | None


def lease(
    deeds: RunDeeds,
    transaction: Transaction,
    runs: Sequence[tuple[Run, list[Envelope]]],
    turn: Callable[[Message], Message],
    now: int,
) -> Sequence[Delivery]:
    """``turn`` is what happens to a card. All of one queue."""
    leased = []
    for run, envelopes in runs:
        after = run._replace(card=turn(run.card))
        _swap(transaction, run, after.card)
        deeds.happened.leased_run(run, envelopes, now)
        leased.append((after, envelopes))
    return RunDeliveries(leased, transaction.policy(runs[0][0].card.queue)) if leased else []


def ack_runs(deeds: RunDeeds, transaction: Transaction, leases: Named, consumer: str | None, now: int) -> bool:
    """False where each must be looked at by itself; then nothing is done."""
    runs = transaction.in_runs()
    if runs is None or leases.span is None:
        return False
    first, last, fence = leases.span
    run = runs.held_run(first, last)
    if run is None or leases.queue not in (None, run.card.queue):
        return False
    policy = transaction.policy(run.card.queue)
    if deeds.defaults.unique_in(policy) or policy.dispatch is not None:
        return False
    try:
        transitions.held(run.card, fence, consumer, now, leases.texts[0])
    except QueueError:
        return False
    _swap(transaction, run, transitions.ack(run.card, policy, now))
    if deeds.defaults.concurrency_in(policy) is not None:
        deeds.touched.add(run.card.queue)
    deeds.happened.settled_run("ack", run, now)
    deeds.tidy_after(transaction, run.length, now)
    return True


def _swap(transaction: Transaction, run: Run, after: Message) -> None:
    runs = transaction.in_runs()
    assert runs is not None
    runs.swap_run(run, after)


# -- leases singly -----------------------------------------------------------------------------------------------------

Settle = Callable[[Message | None, int, str, Transaction, int], Change | None]


class Deeds(RunDeeds, Protocol):
    """What goes with it (``broker.operations.Verbs``)."""

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

    if ack_runs(deeds, transaction, leases, consumer, deeds.now_ms()):
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
