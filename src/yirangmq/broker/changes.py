"""Changes of messages: the only module that changes the state of stored messages.

``apply_changes`` swaps messages and updates what depends on them: unique payloads, FIFO groups, concurrency limits,
delivery records with their outcomes, strict order, and events. Leases and acks of whole runs have a shorter way each,
because what they change does not concern the rest.

FIFO groups: of the messages with the same group id, the first is ready or in flight and the others are held. The next
one is freed in the commit that ends the first.

Outcomes: a policy can name a queue that receives the outcome of each delivery as a JSON message, in the same commit.
The delivery does not wait for consumers or webhooks of that queue, and does not fail if it is full. Released messages
have no outcome. An outcome queue with ``outcomes`` in its own policy receives none.

Committing thread only."""

from collections.abc import Callable, Sequence
from functools import partial

from yirangmq.broker.context import TransactionContext
from yirangmq.broker.dead_letter_sources import check_publish
from yirangmq.broker.quota import added_load, enforce_quota
from yirangmq.core import transitions
from yirangmq.core.errors import QueueError, QuotaExceeded, StoreError
from yirangmq.core.events import RELEASED, DeliveryRecord, MessagesRefused
from yirangmq.core.message import Envelope, Message, MessageRun, group_of, queue_of
from yirangmq.core.policy import MessageLoad, QueuePolicy
from yirangmq.core.ports import AddResult, Change, MessageRunOperations, Transaction, after_of, before_of
from yirangmq.core.states import UNFINISHED, State
from yirangmq.format.envelope import NewMessage, build, iso

# -- changes -----------------------------------------------------------------------------------------------------------

BROADCASTER = "broadcast"
"""Consumer id under which the original message of a broadcast is leased and acked."""
RecordEvents = Callable[[Sequence[Change], int], None]
"""(changes, now): adds the events of changes, such as ``EventBuffer.refused``."""


def apply_changes(
    context: TransactionContext, transaction: Transaction, changes: Sequence[Change], now: int, record: RecordEvents
) -> None:
    """Change messages, of one queue or several. ``record`` adds the events."""
    if not changes:
        return
    queues = set(map(queue_of, map(before_of, changes)))
    defaults = context.defaults
    for queue in queues:
        if defaults.unique_in(transaction.policy(queue)):
            own = changes if len(queues) == 1 else _of_queue(changes, queue)
            context.uniqueness.track(transaction, queue, own, now)
    transaction.swap(changes)
    if any(map(group_of, map(after_of, changes))):
        _advance_groups(transaction, changes, now, context.wake_queues)
    for queue in queues:
        policy = transaction.policy(queue)
        if defaults.concurrency_in(policy) is not None:
            context.wake_queues.add(queue)
        if policy.dispatch is not None or context.event_buffer.deliveries.has_open(queue):
            own = changes if len(queues) == 1 else _of_queue(changes, queue)
            _end_deliveries(context, transaction, policy, queue, own, now)
    record(changes, now)


def no_events(changes: Sequence[Change], now: int) -> None:
    """``record`` of changes without events."""


def apply_leases(
    context: TransactionContext, transaction: Transaction, changes: Sequence[Change], *, is_delivery: bool
) -> None:
    """Lease or claim ready messages. Nothing else depends on that: they stay in their group and keep their payload.

    ``is_delivery``: the queue has a dispatch strategy, and a delivery to a consumer begins."""
    transaction.swap(changes)
    if is_delivery:
        context.event_buffer.deliveries.delivery_started(map(after_of, changes))


def apply_run(runs: MessageRunOperations, run: MessageRun, after: Message) -> None:
    """Lease a run, or ack one that ``may_ack_run`` allows."""
    runs.swap_run(run, after)


def may_ack_run(context: TransactionContext, policy: QueuePolicy, queue: str) -> bool:
    """Return True if the ack of a run in this queue changes neither unique payloads nor deliveries. No message of a
    run has a group."""
    if policy.dispatch is not None or context.defaults.unique_in(policy):
        return False
    return not context.event_buffer.deliveries.has_open(queue)


def apply_durations(transaction: Transaction, changes: Sequence[Change]) -> None:
    """Change when states of messages end, and not the states."""
    transaction.swap(changes)


def _of_queue(changes: Sequence[Change], queue: str) -> list[Change]:
    return [change for change in changes if change.before.queue == queue]


def _end_deliveries(
    context: TransactionContext,
    transaction: Transaction,
    policy: QueuePolicy,
    queue: str,
    changes: Sequence[Change],
    now: int,
) -> None:
    """Follow changes in a queue with a dispatch strategy: deliveries end, and strict order may lease the next.

    After the strategy is removed this runs until the deliveries that began under it have ended."""
    if policy.is_ordered:
        context.dispatch.strict.track(queue, policy, changes)
        context.wake_queues.add(queue)
    ended = [change for change in changes if change.before.consumer != BROADCASTER]
    records = context.event_buffer.deliveries.ended(ended, now, only_open=policy.dispatch is None)
    if records and policy.dispatch is not None and policy.dispatch.outcomes:
        publish_outcomes(context, transaction, policy.dispatch.outcomes, records, now)


def make_room(
    context: TransactionContext,
    transaction: Transaction,
    policy: QueuePolicy,
    queue: str,
    coming: MessageLoad,
    now: int,
) -> None:
    """Drop messages so that the new ones fit the quota; raise ``QuotaExceeded`` if they do not fit."""
    try:
        going = enforce_quota(transaction, policy, queue, coming, now)
    except QuotaExceeded as error:
        context.event_buffer.add(MessagesRefused(queue, error.code, coming.messages))
        raise
    apply_changes(context, transaction, going, now, partial(context.event_buffer.dropped, "quota"))


# -- FIFO groups -------------------------------------------------------------------------------------------------------


def hold_new(transaction: Transaction, envelopes: Sequence[Envelope], stored: Sequence[AddResult]) -> None:
    """Hold the messages just stored that are behind others of their group."""
    seqs = [one.seq for one, sent in zip(stored, envelopes, strict=True) if sent.group and not one.duplicate]
    hold_group_followers(transaction, [row for row in transaction.by_seq(seqs) if row is not None])


def hold_group_followers(transaction: Transaction, new: Sequence[Message]) -> None:
    """Hold newly added messages that are behind others of their group."""
    held = [message for message in new if message.group and message.state in (State.READY, State.DELAYED)]
    firsts = _firsts(transaction, held)
    transaction.swap([Change(m, transitions.hold(m)) for m in held if firsts[m.queue, m.group].seq != m.seq])


def _advance_groups(transaction: Transaction, changes: Sequence[Change], now: int, wake_queues: set[str]) -> None:
    came = [after for before, after, _ in changes if after.group and _entered(before, after)]
    hold_group_followers(transaction, came)
    left = [after for before, after, _ in changes if after.group and _left(before, after)]
    next_ones = [message for message in _firsts(transaction, left).values() if message.state is State.HELD]
    turns = []
    for message, envelope in zip(next_ones, transaction.envelopes(next_ones), strict=True):
        if envelope is not None:  # else its content is lost, and the store has freed the next one
            turns.append(Change(message, transitions.free(message, envelope.available_at, now)))
            wake_queues.add(message.queue)
    transaction.swap(turns)


def _entered(before: Message, after: Message) -> bool:
    return after.state in UNFINISHED and before.state not in UNFINISHED


def _left(before: Message, after: Message) -> bool:
    return before.state in UNFINISHED and after.state not in UNFINISHED


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


# -- delivery outcomes -------------------------------------------------------------------------------------------------

TYPE = "delivery.outcome"


def publish_outcomes(
    context: TransactionContext, transaction: Transaction, queue: str, records: Sequence[DeliveryRecord], now: int
) -> None:
    """Publish the outcomes of deliveries to ``queue``. Releases are not outcomes.

    If the queue is full, or has ``outcomes`` in its own policy, the refusal is counted and the deliveries do not fail.
    The queue's processor is not applied, because the server builds these messages."""
    reportable = [record for record in records if record.reason != RELEASED]
    if not reportable:
        return
    try:
        policy = transaction.policy(queue)
        if policy.dispatch is not None and policy.dispatch.outcomes:
            context.event_buffer.add(MessagesRefused(queue, "outcomes_of_outcomes", len(reportable)))
            return
        check_publish(transaction, [queue], context.defaults.max_queues)
        new = [NewMessage(payload=document(record), type=TYPE) for record in reportable]
        envelopes = [build(queue, one, id, now) for one, id in zip(new, context.ids.new(len(new)), strict=True)]
        if policy.quota.is_set:
            make_room(context, transaction, policy, queue, added_load(transaction, policy, queue, envelopes), now)
        stored = transaction.add(envelopes, now, 0)
        context.event_buffer.published(queue, envelopes, [len(one.payload) for one in envelopes], stored, now)
        context.wake_queues.add(queue)
    except StoreError:
        raise
    except QueueError as error:
        context.event_buffer.add(MessagesRefused(queue, error.code, len(reportable)))


def document(record: DeliveryRecord) -> dict[str, object]:
    """Return the JSON document of an outcome."""
    return {
        "queue": record.queue,
        "messageId": record.id,
        "consumerId": record.consumer,
        "attempt": record.attempt,
        "status": record.status.value,
        "begunAt": iso(record.begun_at),
        "endedAt": iso(record.ended_at),
        "reason": record.reason or None,
        "text": record.text or None,
        "became": record.became,
        "final": record.is_final,
    }
