"""Settling: ack, nack, release and extend of leases, singly or in runs; lease ids; leasing of runs.

An operation looks the leases up, decides each by ``core.transitions``, and swaps all in one call. A stale lease gets
an error and does not affect the others. A repeated ack or nack succeeds.

A lease id is the message's number and a fence. A call takes ``MAX_PER_CALL`` ids at most, none twice.

A run is a sequence of consecutive messages in the same state, decided once for all. Messages are leased and acked in
runs. An ack needs leases of the same fence, no unique payloads, no dispatch strategy and no recorded delivery in
flight; otherwise each lease is settled singly."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from yirangmq.broker.changes import apply_changes, apply_run, may_ack_run
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.expiry_sweeper import prune_after
from yirangmq.core import transitions
from yirangmq.core.backoff import RandomFraction
from yirangmq.core.errors import BadInput, NotFound, QueueError
from yirangmq.core.message import Envelope, Message, MessageRun, lease_span, split_lease_id
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Change, Transaction, new_change
from yirangmq.format.delivery import MessageDelivery, RunDeliveries

# -- lease ids ---------------------------------------------------------------------------------------------------------

MAX_PER_CALL = 10_000
"""Upper bound of messages per call. A larger batch is not faster and delays other requests."""

Results = list[QueueError | None]
"""Per message None, or its error."""


def raise_first(errors: Results) -> None:
    for error in errors:
        if error is not None:
            raise error


class Leases:
    """Lease ids of a call, parsed and validated: their number, the form of each, no duplicates.

    ``queue``: the queue that all leases must belong to, or None. ``span``: if the caller has computed it."""

    def __init__(
        self, leases: Sequence[str], queue: str | None = None, span: tuple[int, int, int] | None = None
    ) -> None:
        if len(leases) > MAX_PER_CALL:
            raise BadInput(f"{len(leases)} in one call, at most {MAX_PER_CALL}", field="leases")
        self.texts = leases
        self.queue = queue
        self.span = lease_span(leases) if span is None else span
        """(first, last, fence) if the numbers are consecutive and the fence is the same, as is usual; else None."""
        self._keys = None if self.span else [_checked_lease(lease) for lease in leases]
        if self._keys is not None and len(set(self._keys)) != len(self._keys):
            raise BadInput("the same lease twice in one call", field="leases")

    @property
    def keys(self) -> list[tuple[int, int]]:
        """(number, fence) of each lease."""
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


class LeaseIds(Protocol):
    """Leases named by a caller, such as ``broker.settle.Leases``."""

    texts: Sequence[str]
    queue: str | None
    span: tuple[int, int, int] | None


def lease_runs(
    context: TransactionContext,
    transaction: Transaction,
    policy: QueuePolicy,
    runs: Sequence[tuple[MessageRun, list[Envelope]]],
    transition: Callable[[Message], Message],
    now: int,
) -> Sequence[MessageDelivery]:
    """Lease runs of one queue. ``transition`` maps the message before the lease to the message after it."""
    operations = transaction.run_operations()
    if not runs or operations is None:
        return []
    leased = []
    for run, envelopes in runs:
        after = run._replace(row=transition(run.row))
        apply_run(operations, run, after.row)
        context.event_buffer.leased_run(run, envelopes, now)
        leased.append((after, envelopes))
    deliveries = RunDeliveries(leased, policy)
    if policy.dispatch is not None:
        context.event_buffer.deliveries.delivery_started([row for row, _, _ in deliveries])
    return deliveries


def ack_run(
    context: TransactionContext, transaction: Transaction, leases: LeaseIds, consumer: str | None, now: int
) -> bool:
    """Ack leases as a run. Return False, without a change, if each lease must be settled singly."""
    runs = transaction.run_operations()
    if runs is None or leases.span is None:
        return False
    first, last, fence = leases.span
    run = runs.leased_run(first, last)
    if run is None or leases.queue not in (None, run.row.queue):
        return False
    policy = transaction.policy(run.row.queue)
    if not may_ack_run(context, policy, run.row.queue):
        return False
    try:
        transitions.check_lease(run.row, fence, consumer, now, leases.texts[0])
    except QueueError:
        return False
    apply_run(runs, run, transitions.ack(run.row, policy, now))
    if context.defaults.concurrency_in(policy) is not None:
        context.wake_queues.add(run.row.queue)
    context.event_buffer.settled_run("ack", run, now)
    prune_after(context, transaction, run.length, now)
    return True


# -- leases singly -----------------------------------------------------------------------------------------------------

Settle = Callable[[Message | None, int, str, Transaction, int], Change | None]


def ack(context: TransactionContext, transaction: Transaction, leases: Leases, consumer: str | None) -> Results:
    def settle(message: Message | None, fence: int, lease: str, transaction: Transaction, now: int) -> Change | None:
        if transitions.acked_before(message, fence):
            return None
        before = transitions.check_lease(message, fence, consumer, now, lease)
        policy = transaction.policy(before.queue)
        return new_change((before, transitions.ack(before, policy, now), None))

    if ack_run(context, transaction, leases, consumer, context.clock.now_ms()):
        return [None] * len(leases.texts)
    return _settle(context, transaction, leases, "ack", settle)


def nack(
    context: TransactionContext,
    transaction: Transaction,
    leases: Leases,
    consumer: str | None,
    cause: transitions.Cause,
) -> Results:
    def settle(message: Message | None, fence: int, lease: str, transaction: Transaction, now: int) -> Change | None:
        if transitions.nacked_before(message, fence):
            return None
        before = transitions.check_lease(message, fence, consumer, now, lease)
        chance = RandomFraction(context.ids.fraction())
        policy = transaction.policy(before.queue)
        outcome = transitions.nack(before, policy, now, cause, transaction.places(1), chance)
        context.wake_queues.add(before.queue)
        return Change(before, outcome.message, outcome.failure)

    return _settle(context, transaction, leases, "nack", settle, cause.reason)


def release(
    context: TransactionContext,
    transaction: Transaction,
    leases: Leases,
    consumer: str | None,
    *,
    in_place: bool = False,
) -> Results:
    """Release messages that were not processed: they are ready again immediately and the attempt does not count.

    With ``in_place`` they keep their position, even if the policy moves released messages elsewhere."""

    def settle(message: Message | None, fence: int, lease: str, transaction: Transaction, now: int) -> Change | None:
        before = transitions.check_lease(message, fence, consumer, now, lease)
        context.wake_queues.add(before.queue)
        place = before.place if in_place else transaction.places(1)
        return Change(before, transitions.release(before, transaction.policy(before.queue), now, place))

    return _settle(context, transaction, leases, "release", settle)


def extend(
    context: TransactionContext, transaction: Transaction, leases: Leases, consumer: str | None, span: int | None
) -> Results:
    def settle(message: Message | None, fence: int, lease: str, transaction: Transaction, now: int) -> Change | None:
        before = transitions.check_lease(message, fence, consumer, now, lease)
        length = transaction.policy(before.queue).visibility_ms if span is None else span
        return Change(before, transitions.extend(before, now, now + length))

    return _settle(context, transaction, leases, "extend", settle)


def _settle(
    context: TransactionContext, transaction: Transaction, leases: Leases, verb: str, settle: Settle, reason: str = ""
) -> Results:
    now = context.clock.now_ms()
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
    record = partial(context.event_buffer.settled, verb, reason=reason)
    apply_changes(context, transaction, changes, now, record)
    prune_after(context, transaction, len(changes), now)
    return errors
