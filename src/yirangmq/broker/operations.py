"""Queue operations inside a transaction: publish, lease, drop; and atomic bundles of them.

The first argument of each is the context (``broker.context``). Leases are settled by ``broker.settle``. For the
committing thread only.

A bundle publishes messages and settles leases together or not at all (a STOMP transaction). All of it is checked before
the first write, because a refused operation does not undo those before it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

from yirangmq.broker import dead_letter_sources, settle
from yirangmq.broker.admission.admission import Admitted
from yirangmq.broker.changes import apply_changes, apply_leases, hold_new, make_room
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.dispatch.dispatcher import lease_for_poll
from yirangmq.broker.quota import added_load, enforce_quota
from yirangmq.broker.selection import allowance, lease_heads, select, select_runs
from yirangmq.broker.settle import MAX_PER_CALL, Leases, Results, lease_runs
from yirangmq.core import transitions, validation
from yirangmq.core.dispatch import BY_NAME
from yirangmq.core.errors import NotFound, QueueError, TooLarge
from yirangmq.core.events import MessagesRefused
from yirangmq.core.message import Envelope, payload_of
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import AddResult, Change, Transaction
from yirangmq.core.processor import Chain
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageDelivery
from yirangmq.format.envelope import with_timestamp

_group_of = itemgetter(Envelope._fields.index("group"))
PROCESSOR = "processor"
"""Consumer name on messages that hooks replaced by others and that are stored only as a record."""


# -- producing ---------------------------------------------------------------------------------------------------------


def publish(
    context: TransactionContext, transaction: Transaction, queue: str, envelopes: Sequence[Envelope]
) -> list[AddResult]:
    """Store new envelopes of one queue; they are already validated."""
    now = context.clock.now_ms()
    if not transaction.has_queue(queue):
        check_new_queue(context, transaction, queue, len(envelopes))
    if now >= context.store_time.record_at:
        context.store_time.renew_record(transaction)
    policy = transaction.policy(queue)
    if ahead := context.clock.ahead_ms():
        envelopes = [with_timestamp(envelope, ahead) for envelope in envelopes]
    sizes = [*map(len, map(payload_of, envelopes))]
    if max(sizes) > policy.max_body:
        raise TooLarge(f"{max(sizes)} bytes, this queue takes {policy.max_body}", field="payload")
    chain, admitted = context.defaults.chain_in(policy, queue), None
    if chain is not None:
        admitted = admit(context, transaction, queue, chain, envelopes, now)
        envelopes = admitted.envelopes
    if policy.ttl_ms:
        envelopes = [e if e.expires_at else e._replace(expires_at=e.published_at + policy.ttl_ms) for e in envelopes]
    complaints = [context.schemas.complaint(e, policy) for e in envelopes] if policy.schemas else []
    if policy.quota.is_set:
        _enforce_quota(context, transaction, policy, queue, envelopes, now)
    if context.defaults.unique_in(policy):
        stored = context.uniqueness.add(transaction, queue, envelopes, now, now + policy.dedup_ms)
    else:
        stored = transaction.add(envelopes, now, now + policy.dedup_ms)
    context.wake_queues.add(queue)
    context.sweeps.is_quiet = False
    context.event_buffer.published(queue, envelopes, sizes, stored, now)
    if complaints and any(complaints):
        stored = _refuse_unfit(context, transaction, policy, envelopes, stored, complaints, now)
    if any(map(_group_of, envelopes)):
        hold_new(transaction, envelopes, stored)
    if admitted is not None and admitted.derived:
        publish_derived(context, transaction, admitted, stored, policy, now)
    return stored


def admit(
    context: TransactionContext,
    transaction: Transaction,
    queue: str,
    chain: Chain,
    envelopes: Sequence[Envelope],
    now: int,
) -> Admitted:
    """Pass envelopes through the queue's chain of checks and hooks; a refusal is recorded as an event."""
    try:
        return context.admission.admit(transaction, queue, chain, envelopes, now)
    except QueueError as error:
        context.event_buffer.add(MessagesRefused(queue, error.code, len(envelopes)))
        context.admission.refused(queue, error)
        raise


def publish_derived(
    context: TransactionContext,
    transaction: Transaction,
    admitted: Admitted,
    stored: Sequence[AddResult],
    policy: QueuePolicy,
    now: int,
) -> None:
    """Publish the messages that hooks derived from new messages. The gate has checked that it cannot fail."""
    fresh = [not (one.duplicate or one.refused) for one in stored]
    for queue, derived in admitted.derived.items():
        born = [child.envelope for child in derived if fresh[child.parent]]
        if born:
            publish(context, transaction, queue, born)
    recorded = [stored[place].seq for place in sorted(admitted.recorded) if fresh[place]]
    rows = [row for row in transaction.by_seq(recorded) if row is not None and row.state is State.READY]
    if not rows:
        return
    leased = [Change(row, transitions.lease(row, now, now, PROCESSOR)) for row in rows]
    apply_leases(context, transaction, leased, is_delivery=False)
    done = [Change(row, transitions.ack(row, policy, now)) for _, row, _ in leased]
    apply_changes(context, transaction, done, now, partial(context.event_buffer.settled, "ack"))


def _enforce_quota(
    context: TransactionContext,
    transaction: Transaction,
    policy: QueuePolicy,
    queue: str,
    envelopes: Sequence[Envelope],
    now: int,
) -> None:
    coming = added_load(transaction, policy, queue, envelopes)
    if coming.messages:
        make_room(context, transaction, policy, queue, coming, now)


def check_new_queue(context: TransactionContext, transaction: Transaction, queue: str, count: int) -> None:
    """Raise if messages may not make this queue; its ``count`` messages are recorded as refused."""
    try:
        dead_letter_sources.check_publish(transaction, [queue], context.defaults.max_queues)
    except QueueError as error:
        context.event_buffer.add(MessagesRefused(queue, error.code, count))
        raise
    dead_letter_sources.complete(transaction)


def _refuse_unfit(
    context: TransactionContext,
    transaction: Transaction,
    policy: QueuePolicy,
    envelopes: Sequence[Envelope],
    stored: list[AddResult],
    complaints: list[str],
    now: int,
) -> list[AddResult]:
    receipts, changes = [], []
    for envelope, receipt, complaint in zip(envelopes, stored, complaints, strict=True):
        if receipt.duplicate or not complaint:
            receipts.append(receipt)
            continue
        receipts.append(receipt._replace(refused=complaint))
        before = transitions.fresh(envelope, receipt.seq, now)
        outcome = transitions.refuse(before, policy, now, complaint)
        changes.append(Change(before, outcome.message, outcome.failure))
    apply_changes(context, transaction, changes, now, context.event_buffer.refused)
    return receipts


# -- consuming ---------------------------------------------------------------------------------------------------------


def lease(
    context: TransactionContext,
    transaction: Transaction,
    queue: str,
    limit: int,
    span: int | None,
    consumer_id: str,
    most_bytes: int | None = None,
) -> Sequence[MessageDelivery]:
    """Lease up to ``limit`` messages for ``span`` ms; if None, for the visibility timeout of the queue's policy.

    The payloads take at most ``most_bytes``; a single larger message is still leased. A paused queue leases
    nothing."""
    now = context.clock.now_ms()
    policy = transaction.policy(queue)
    limit = allowance(context, transaction, queue, policy, limit, now)
    if not limit:
        return []
    if policy.dispatch is not None and policy.dispatch.strategy in BY_NAME:
        return lease_for_poll(context, transaction, queue, policy.dispatch, limit, span, consumer_id, now)
    until = now + (policy.visibility_ms if span is None else span)
    target = validation.line_of(consumer_id)
    runs = select_runs(context, transaction, queue, policy, limit, target, most_bytes)
    if runs is not None:
        transition = partial(transitions.lease, now=now, until=until, consumer=consumer_id)
        return lease_runs(context, transaction, policy, runs, transition, now)
    heads = select(context, transaction, queue, limit, target, most_bytes, now)
    return lease_heads(context, transaction, queue, heads, span, consumer_id, now)


def drop(context: TransactionContext, transaction: Transaction, queue: str, ids: Sequence[str]) -> Results:
    """Drop messages by id, in any state."""
    now = context.clock.now_ms()
    policy = transaction.policy(queue)
    errors: Results = []
    changes: list[Change] = []
    for id, message in zip(ids, transaction.by_id(queue, ids), strict=True):
        try:
            if message is None:
                raise NotFound(f"queue {queue!r} has no message {id!r}")
            if message.state is not State.DROPPED:
                changes.append(Change(message, transitions.drop(message, policy, now)))
            errors.append(None)
        except QueueError as error:
            errors.append(error)
    apply_changes(context, transaction, changes, now, partial(context.event_buffer.dropped, "asked"))
    return errors


# -- atomic bundle -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class AtomicBundle:
    """Atomic bundle of messages to publish and leases to settle. All ``nacked`` leases fail with the same cause."""

    envelopes: list[Envelope] = field(default_factory=list)
    acked: list[str] = field(default_factory=list)
    nacked: list[str] = field(default_factory=list)
    cause: transitions.Cause | None = None

    @property
    def size(self) -> int:
        return len(self.envelopes) + len(self.acked) + len(self.nacked)

    def add(self, envelope: Envelope) -> None:
        self._check_size(1)
        self.envelopes.append(envelope)

    def settle(self, leases: list[str], cause: transitions.Cause | None) -> None:
        """Add leases to ack, or to nack with a cause."""
        self._check_size(len(leases))
        if cause is None:
            self.acked += leases
        else:
            self.nacked += leases
            self.cause = cause

    def _check_size(self, more: int) -> None:
        if self.size + more > MAX_PER_CALL:
            raise TooLarge(f"more than {MAX_PER_CALL} messages and acks; commit earlier", field="transaction")

    def queues(self) -> dict[str, list[Envelope]]:
        found: dict[str, list[Envelope]] = {}
        for envelope in self.envelopes:
            found.setdefault(envelope.queue, []).append(envelope)
        return found

    def perform(self, context: TransactionContext, transaction: Transaction, now: int) -> None:
        """Perform the whole bundle, or raise and change nothing."""
        self._check_leases(transaction, now)
        queues = self.queues()
        dead_letter_sources.check_publish(transaction, queues, context.defaults.max_queues)
        for queue, envelopes in queues.items():
            _check_quota(transaction, queue, envelopes, now)
        context.admission.check_all(transaction, queues, now)
        for queue, envelopes in queues.items():
            publish(context, transaction, queue, envelopes)
        if self.acked:
            settle.ack(context, transaction, Leases(self.acked), None)
        if self.nacked and self.cause is not None:
            settle.nack(context, transaction, Leases(self.nacked), None, self.cause)

    def _check_leases(self, transaction: Transaction, now: int) -> None:
        leases = Leases([*self.acked, *self.nacked])
        found = transaction.by_seq([seq for seq, _ in leases.keys])
        for message, (_, fence), lease in zip(found, leases.keys, leases.texts, strict=True):
            transitions.check_lease(message, fence, None, now, lease)


def _check_quota(transaction: Transaction, queue: str, envelopes: list[Envelope], now: int) -> None:
    policy = transaction.policy(queue)
    largest = max(len(envelope.payload) for envelope in envelopes)
    if largest > policy.max_body:
        raise TooLarge(f"{largest} bytes, queue {queue!r} takes {policy.max_body}", field="payload")
    if policy.quota.is_set:
        coming = added_load(transaction, policy, queue, envelopes)
        if coming.messages:
            enforce_quota(transaction, policy, queue, coming, now)
