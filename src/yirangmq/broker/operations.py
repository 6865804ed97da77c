"""Queue operations inside a transaction: publish, lease, settle, drop, sweep; and atomic bundles of them.

Each operation loads messages, decides by ``core.transitions`` and swaps them, many at a time. It checks everything
before it writes anything: an operation that raises a ``QueueError`` has changed nothing. Apart from leasing, and from
acks of whole runs, messages change through ``swap``. It maintains unique payloads, FIFO groups, concurrency limits and
delivery records. For the committing thread only.

A bundle publishes messages and settles leases together or not at all (a STOMP transaction). All of it is checked before
the first write, because a refused operation does not undo those before it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

from yirangmq.broker import dead_letter_sources, selection, settle
from yirangmq.broker.admission.admission import AdmissionControl, Admitted, Schemas
from yirangmq.broker.dispatch.dispatcher import QueueDispatcher
from yirangmq.broker.dispatch.fan_out import BROADCASTER, publish_outcomes
from yirangmq.broker.event_buffer import EventBuffer
from yirangmq.broker.expiry_sweeper import MAX_PER_SWEEP, prune, sweep
from yirangmq.broker.quota import added_load, enforce_quota
from yirangmq.broker.selection import Head, MessageSelector, StrictOrder
from yirangmq.broker.settle import MAX_PER_CALL, Leases, Results
from yirangmq.broker.store_time import StoreTime
from yirangmq.broker.unique_payloads import UniquePayloadIndex
from yirangmq.core import transitions, validation
from yirangmq.core.dispatch import BY_NAME
from yirangmq.core.errors import NotFound, QueueError, QuotaExceeded, TooLarge
from yirangmq.core.events import MessagesRefused
from yirangmq.core.message import Envelope, payload_of, queue_of
from yirangmq.core.policy import Defaults, MessageLoad, QueuePolicy
from yirangmq.core.ports import AddResult, Change, Clock, Ids, Transaction, before_of, new_change
from yirangmq.core.processor import Chain
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageDelivery, new_message_delivery
from yirangmq.format.envelope import with_timestamp

PRUNE_INTERVAL_MS = 1_000
"""Interval at which history is pruned while messages are published or settled, in ms."""
IDLE_PRUNE_INTERVAL_MS = 60_000
"""The same interval while the queues are idle, in ms: polling consumers must not cause writes."""
PRUNE_AFTER_SETTLED = 500
"""Settled messages after which history is pruned before ``PRUNE_INTERVAL_MS`` has passed. A pruning may remove twice as
many messages as were settled since the last, so that history stays within its bounds at any rate."""
_group_of = itemgetter(Envelope._fields.index("group"))
PROCESSOR = "processor"
"""Consumer name on messages that hooks replaced by others and that are stored only as a record."""


class QueueOperations:
    """All queue operations of a store, inside a transaction. Used by one thread at a time, the committing one."""

    def __init__(self, clock: Clock, ids: Ids, defaults: Defaults | None = None) -> None:
        self.clock = clock
        self._ids = ids
        self.defaults = defaults or Defaults()
        self.uniqueness = UniquePayloadIndex(self.defaults)
        self.schemas = Schemas()
        self.admission = AdmissionControl(self.defaults)
        self.event_buffer = EventBuffer()
        self._tidied_at = 0
        self._settled = 0
        self._is_quiet = True
        """True if no message was published or settled since the latest pruning found no more to do."""
        self._swept_in: Transaction | None = None
        self.strict = StrictOrder()
        self.selector = MessageSelector(self)
        self.dispatcher = QueueDispatcher(self)
        self.store_time = StoreTime(clock)
        self.touched: set[str] = set()
        """Queues that may have messages to lease; the wait list serves and clears them."""

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def fraction(self) -> float:
        return self._ids.fraction()

    # -- producing ------------------------------------------------------------------------------------------------

    def publish(self, transaction: Transaction, queue: str, envelopes: Sequence[Envelope]) -> list[AddResult]:
        """Store new envelopes of one queue; they are already validated."""
        now = self.clock.now_ms()
        if not transaction.has_queue(queue):
            self.check_new_queue(transaction, queue, len(envelopes))
        if now >= self.store_time.record_at:
            self.store_time.renew_record(transaction)
        policy = transaction.policy(queue)
        if ahead := self.clock.ahead_ms():
            envelopes = [with_timestamp(envelope, ahead) for envelope in envelopes]
        sizes = [*map(len, map(payload_of, envelopes))]
        if max(sizes) > policy.max_body:
            raise TooLarge(f"{max(sizes)} bytes, this queue takes {policy.max_body}", field="payload")
        chain, admitted = self.defaults.chain_in(policy, queue), None
        if chain is not None:
            admitted = self.admit(transaction, queue, chain, envelopes, now)
            envelopes = admitted.envelopes
        if policy.ttl_ms:
            envelopes = [
                e if e.expires_at else e._replace(expires_at=e.published_at + policy.ttl_ms) for e in envelopes
            ]
        complaints = [self.schemas.complaint(e, policy) for e in envelopes] if policy.schemas else []
        if policy.quota.is_set:
            self._enforce_quota(transaction, policy, queue, envelopes, now)
        if self.defaults.unique_in(policy):
            stored = self.uniqueness.add(transaction, queue, envelopes, now, now + policy.dedup_ms)
        else:
            stored = transaction.add(envelopes, now, now + policy.dedup_ms)
        self.touched.add(queue)
        self._is_quiet = False
        self.event_buffer.published(queue, envelopes, sizes, stored, now)
        if complaints and any(complaints):
            stored = self._refuse_unfit(transaction, policy, envelopes, stored, complaints, now)
        if any(map(_group_of, envelopes)):
            seqs = [one.seq for one, sent in zip(stored, envelopes, strict=True) if sent.group and not one.duplicate]
            selection.hold_group_followers(transaction, [row for row in transaction.by_seq(seqs) if row is not None])
        if admitted is not None and admitted.derived:
            self.publish_derived(transaction, admitted, stored, policy, now)
        return stored

    def admit(
        self, transaction: Transaction, queue: str, chain: Chain, envelopes: Sequence[Envelope], now: int
    ) -> Admitted:
        """Pass envelopes through the queue's chain of checks and hooks; a refusal is recorded as an event."""
        try:
            return self.admission.admit(transaction, queue, chain, envelopes, now)
        except QueueError as error:
            self.event_buffer.add(MessagesRefused(queue, error.code, len(envelopes)))
            self.admission.refused(queue, error)
            raise

    def publish_derived(
        self, transaction: Transaction, admitted: Admitted, stored: Sequence[AddResult], policy: QueuePolicy, now: int
    ) -> None:
        """Publish the messages that hooks derived from new messages. The gate has checked that it cannot fail."""
        fresh = [not (one.duplicate or one.refused) for one in stored]
        for queue, derived in admitted.derived.items():
            born = [child.envelope for child in derived if fresh[child.parent]]
            if born:
                self.publish(transaction, queue, born)
        recorded = [stored[place].seq for place in sorted(admitted.recorded) if fresh[place]]
        rows = [row for row in transaction.by_seq(recorded) if row is not None and row.state is State.READY]
        if not rows:
            return
        leased = [Change(row, transitions.lease(row, now, now, PROCESSOR)) for row in rows]
        transaction.swap(leased)
        done = [Change(row, transitions.ack(row, policy, now)) for _, row, _ in leased]
        self.swap(transaction, done, now)
        self.event_buffer.settled("ack", done, now)

    def _enforce_quota(
        self, transaction: Transaction, policy: QueuePolicy, queue: str, envelopes: Sequence[Envelope], now: int
    ) -> None:
        coming = added_load(transaction, policy, queue, envelopes)
        if coming.messages:
            self.enforce_quota(transaction, policy, queue, coming, now)

    def check_new_queue(self, transaction: Transaction, queue: str, count: int) -> None:
        """Raise if messages may not make this queue; its ``count`` messages are recorded as refused."""
        try:
            dead_letter_sources.check_publish(transaction, [queue], self.defaults.max_queues)
        except QueueError as error:
            self.event_buffer.add(MessagesRefused(queue, error.code, count))
            raise
        dead_letter_sources.complete(transaction)

    def enforce_quota(
        self, transaction: Transaction, policy: QueuePolicy, queue: str, coming: MessageLoad, now: int
    ) -> None:
        """Drop messages so that the new ones fit; raise ``QuotaExceeded`` if they do not fit."""
        try:
            going = enforce_quota(transaction, policy, queue, coming, now)
        except QuotaExceeded as error:
            self.event_buffer.add(MessagesRefused(queue, error.code, coming.messages))
            raise
        self.swap(transaction, going, now)
        self.event_buffer.dropped("quota", going)

    def _refuse_unfit(
        self,
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
        self.swap(transaction, changes, now)
        self.event_buffer.refused(changes, now)
        return receipts

    # -- consuming ------------------------------------------------------------------------------------------------

    def lease(
        self,
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
        now = self.clock.now_ms()
        limit = self.allowance(transaction, queue, limit, now)
        if not limit:
            return []
        policy = transaction.policy(queue)
        if policy.dispatch is not None and policy.dispatch.strategy in BY_NAME:
            return self.dispatcher.lease_for_poll(transaction, queue, policy.dispatch, limit, span, consumer_id, now)
        until = now + (policy.visibility_ms if span is None else span)
        runs = self.selector.select_runs(transaction, queue, limit, validation.line_of(consumer_id), most_bytes)
        if runs is not None:
            lease = partial(transitions.lease, now=now, until=until, consumer=consumer_id)
            deliveries = settle.lease(self, transaction, runs, lease, now)
            if policy.dispatch is not None:
                self.event_buffer.deliveries.delivery_started([row for row, _, _ in deliveries])
            return deliveries
        heads = self.selector.select(transaction, queue, limit, validation.line_of(consumer_id), most_bytes, now)
        return self.lease_heads(transaction, queue, heads, span, consumer_id, now)

    def lease_heads(
        self, transaction: Transaction, queue: str, heads: Sequence[Head], span: int | None, consumer_id: str, now: int
    ) -> list[MessageDelivery]:
        """Lease exactly these messages."""
        policy = transaction.policy(queue)
        until = now + (policy.visibility_ms if span is None else span)
        changes, deliveries = [], []
        for before, envelope in heads:
            after = transitions.lease(before, now, until, consumer_id)
            changes.append(new_change((before, after, None)))
            deliveries.append(new_message_delivery((after, envelope, policy)))
        if changes:
            transaction.swap(changes)
            self.event_buffer.leased(queue, heads, now)
            if policy.dispatch is not None:
                self.event_buffer.deliveries.delivery_started([row for row, _, _ in deliveries])
        return deliveries

    def allowance(self, transaction: Transaction, queue: str, wanted: int, now: int) -> int:
        """Return how many of ``wanted`` messages the queue's policy allows to lease now."""
        self.sweep_if_due(transaction, now)
        policy = transaction.policy(queue)
        if policy.paused:
            return 0
        if policy.is_ordered:
            wanted = self.strict.allowance(transaction, queue, policy, wanted)
        most = self.defaults.concurrency_in(policy)
        if most is None:
            return wanted
        counts = transaction.counts(queue)
        return max(0, min(wanted, most - counts.claimed - counts.leased))

    def ack(self, transaction: Transaction, leases: Leases, consumer: str | None) -> Results:
        return settle.ack(self, transaction, leases, consumer)

    def nack(self, transaction: Transaction, leases: Leases, consumer: str | None, cause: transitions.Cause) -> Results:
        return settle.nack(self, transaction, leases, consumer, cause)

    def release(
        self, transaction: Transaction, leases: Leases, consumer: str | None, *, in_place: bool = False
    ) -> Results:
        """Release messages that were not processed: they are ready again immediately and the attempt does not count.

        With ``in_place`` they keep their position, even if the policy moves released messages elsewhere."""
        return settle.release(self, transaction, leases, consumer, in_place=in_place)

    def extend(self, transaction: Transaction, leases: Leases, consumer: str | None, span: int | None) -> Results:
        return settle.extend(self, transaction, leases, consumer, span)

    def drop(self, transaction: Transaction, queue: str, ids: Sequence[str]) -> Results:
        """Drop messages by id, in any state."""
        now = self.clock.now_ms()
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
        self.swap(transaction, changes, now)
        self.event_buffer.dropped("asked", changes)
        return errors

    def swap(self, transaction: Transaction, changes: Sequence[Change], now: int) -> None:
        """Apply changes of message state; all changes but leases and acks of whole runs pass here.

        Unique payloads and FIFO groups are updated. Queues with a concurrency limit are marked to be served again."""
        if not changes:
            return
        self.uniqueness.track(transaction, changes, now)
        selection.swap(transaction, changes, now, self.touched)
        for queue in set(map(queue_of, map(before_of, changes))):
            policy = transaction.policy(queue)
            if self.defaults.concurrency_in(policy) is not None:
                self.touched.add(queue)
            if policy.dispatch is not None or self.event_buffer.deliveries.has_open(queue):
                own = [change for change in changes if change.before.queue == queue]
                self.dispatched(transaction, policy, queue, own, now)

    def dispatched(
        self, transaction: Transaction, policy: QueuePolicy, queue: str, changes: Sequence[Change], now: int
    ) -> None:
        """Follow changes in a queue with a dispatch strategy: deliveries end, and strict order may lease the next.

        After the strategy is removed this runs until the deliveries that began under it have ended."""
        if policy.is_ordered:
            self.strict.track(queue, policy, changes)
            self.touched.add(queue)
        ended = [change for change in changes if change.before.consumer != BROADCASTER]
        records = self.event_buffer.deliveries.ended(ended, now, only_open=policy.dispatch is None)
        if records and policy.dispatch is not None and policy.dispatch.outcomes:
            publish_outcomes(self, transaction, policy.dispatch.outcomes, records, self._ids, now)

    # -- time -----------------------------------------------------------------------------------------------------

    def sweep(self, transaction: Transaction) -> int:
        """Apply expiries and due times, up to the limit of a commit; return the number of changed messages."""
        now = self.clock.now_ms()
        if now >= self.store_time.record_at:
            self.store_time.renew_record(transaction)
        return self.sweep_once(transaction, now) + prune(transaction, now)

    def sweep_once(self, transaction: Transaction, now: int, limit: int = MAX_PER_SWEEP) -> int:
        return sweep(transaction, now, self.swap, self.touched, self.event_buffer, limit)

    def sweep_if_due(self, transaction: Transaction, now: int) -> None:
        """Sweep once per transaction. Messages that fall due during the transaction are swept in the next."""
        if transaction is self._swept_in:
            return
        self._swept_in = transaction
        if now >= self.store_time.record_at:
            self.store_time.renew_record(transaction)
        self.sweep_once(transaction, now)
        self._tidy_in_passing(transaction, now)

    def prune_after(self, transaction: Transaction, settled: int, now: int) -> None:
        """Count ``settled`` more messages, and prune history if it is due."""
        self._settled += settled
        self._is_quiet = self._is_quiet and not settled
        self._tidy_in_passing(transaction, now)

    def _tidy_in_passing(self, transaction: Transaction, now: int) -> None:
        pace = IDLE_PRUNE_INTERVAL_MS if self._is_quiet else PRUNE_INTERVAL_MS
        if 0 <= now - self._tidied_at < pace and self._settled < PRUNE_AFTER_SETTLED:
            return
        most = MAX_PER_SWEEP + 2 * self._settled
        self._tidied_at, self._settled = now, 0
        self._is_quiet = self.sweep_once(transaction, now, most) + prune(transaction, now, most) == 0


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

    def perform(self, operations: QueueOperations, transaction: Transaction, now: int) -> None:
        """Perform the whole bundle, or raise and change nothing."""
        self._check_leases(transaction, now)
        queues = self.queues()
        dead_letter_sources.check_publish(transaction, queues, operations.defaults.max_queues)
        for queue, envelopes in queues.items():
            _check_quota(transaction, queue, envelopes, now)
        operations.admission.check_all(transaction, queues, now)
        for queue, envelopes in queues.items():
            operations.publish(transaction, queue, envelopes)
        if self.acked:
            operations.ack(transaction, Leases(self.acked), None)
        if self.nacked and self.cause is not None:
            operations.nack(transaction, Leases(self.nacked), None, self.cause)

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
