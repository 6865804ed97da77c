"""Broadcast fan-out: a copy of each message per member of the queue; and delivery outcomes sent to a queue.

Each copy is addressed to a single consumer and has its own lease, retries and final state. The original is acked in the
commit that stores the copies. Without members the messages stay ready. Copies for a former member become dead letters.

Outcomes: a policy can name a queue that receives the outcome of each delivery as a JSON message, in the same commit.
The delivery does not wait for consumers or webhooks of that queue, and does not fail if it is full. Released messages
have no outcome. An outcome queue with ``outcomes`` in its own policy receives none."""

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from yirangmq.broker import selection
from yirangmq.broker.dead_letter_sources import check_publish
from yirangmq.broker.event_buffer import EventBuffer
from yirangmq.broker.quota import added_load
from yirangmq.broker.selection import Head, MessageSelector, addressed, targets
from yirangmq.core import transitions, validation
from yirangmq.core.dispatch import copy_id, is_copy
from yirangmq.core.errors import QueueError, StoreError
from yirangmq.core.events import RELEASED, DeliveryRecord, MessagesRefused
from yirangmq.core.message import Envelope
from yirangmq.core.policy import Defaults, MessageLoad, QueuePolicy
from yirangmq.core.ports import Change, Ids, Transaction
from yirangmq.format.envelope import MAX_TEXT, NewMessage, build, iso
from yirangmq.format.json_codec import dumps, loads

# -- broadcast ---------------------------------------------------------------------------------------------------------

BROADCASTER = "broadcast"
"""Consumer id under which the original message is leased and acked."""
MAX_COPIES = 1_000
"""Upper bound of copies per commit; the copies of a single message may exceed it."""
MAX_BROADCAST = 100
"""Upper bound of messages copied per commit."""
MAX_BROADCAST_BYTES = 512 * 1024
"""Upper bound of payload bytes of the messages copied per commit."""
SEARCH_INTERVAL_MS = 10_000
"""Interval of the search for copies addressed to former members, in ms. A change of membership starts one too."""
MAX_CONSUMERS_PER_SEARCH = 64
"""Upper bound of consumers examined per search."""
MAX_COPIES_PER_CONSUMER = 100
"""Upper bound of copies per former member that one search makes dead letters."""


class BroadcastOperations(Protocol):
    """Port to the queue operations that broadcast needs (``broker.operations.QueueOperations``)."""

    event_buffer: EventBuffer
    selector: MessageSelector
    touched: set[str]

    def swap(self, transaction: Transaction, changes: Sequence[Change], now: int) -> None: ...


class Broadcast:
    """Broadcast fan-out: stores a copy of each message per member, and acks the original. Committing thread only."""

    def __init__(self, operations: BroadcastOperations) -> None:
        self._operations = operations
        self._examined: dict[str, tuple[int, tuple[str, ...]]] = {}

    def fan_out(self, transaction: Transaction, queue: str, members: Sequence[str], now: int) -> bool:
        """Copy the first ready messages for all members. Return True if there may be more.

        Without members the messages stay ready for later members."""
        self._dead_letter_abandoned(transaction, queue, members, now)
        if not members:
            return False
        most = max(1, min(MAX_BROADCAST, MAX_COPIES // len(members)))
        heads = self._operations.selector.select(transaction, queue, most, 0, MAX_BROADCAST_BYTES, now)
        if heads:
            self._copy(transaction, queue, heads, members, now)
            self._finish(transaction, queue, heads, now)
        return len(heads) == most

    def _copy(
        self, transaction: Transaction, queue: str, heads: Sequence[Head], members: Sequence[str], now: int
    ) -> None:
        copies = [copy_of(envelope, name, now) for _, envelope in heads for name in members]
        stored = transaction.add(copies, now, 0)
        self._operations.event_buffer.published(queue, copies, [len(one.payload) for one in copies], stored, now)
        if any(copy.group for copy in copies):
            seqs = [one.seq for one, copy in zip(stored, copies, strict=True) if copy.group and not one.duplicate]
            selection.hold_group_followers(transaction, [row for row in transaction.by_seq(seqs) if row is not None])

    def _finish(self, transaction: Transaction, queue: str, heads: Sequence[Head], now: int) -> None:
        policy = transaction.policy(queue)
        taken = [transitions.lease(message, now, now, BROADCASTER) for message, _ in heads]
        transaction.swap([Change(message, after) for (message, _), after in zip(heads, taken, strict=True)])
        done = [Change(row, transitions.ack(row, policy, now)) for row in taken]
        self._operations.event_buffer.leased(queue, heads, now)
        self._operations.swap(transaction, done, now)
        self._operations.event_buffer.settled("ack", done, now)

    def _dead_letter_abandoned(self, transaction: Transaction, queue: str, members: Sequence[str], now: int) -> None:
        examined_at, known = self._examined.get(queue, (0, ()))
        if known == tuple(members) and 0 <= now - examined_at < SEARCH_INTERVAL_MS:
            return
        self._examined[queue] = now, tuple(members)
        lines = {validation.line_of(name) for name in members}
        gone = [line for line in islice(targets(transaction, queue), MAX_CONSUMERS_PER_SEARCH) if line not in lines]
        policy = transaction.policy(queue)
        changes = []
        for line in gone:
            rows = [
                row for row in addressed(transaction, queue, line, MAX_COPIES_PER_CONSUMER) if is_copy(row.id, line)
            ]
            if rows:
                self._examined.pop(queue, None)  # search again: more may remain, or become ready in a group
            for row in rows:
                outcome = transitions.abandon(row, policy, now, "its consumer is no longer one of this queue")
                changes.append(Change(row, outcome.message, outcome.failure))
        self._operations.swap(transaction, changes, now)
        self._operations.event_buffer.refused(changes, now)


def copy_of(envelope: Envelope, name: str, now: int) -> Envelope:
    """Return a copy for one consumer, with the same payload and age. Its header names the original."""
    header = loads(envelope.header.encode()) if envelope.header else {}
    header.pop("deduplicationKey", None)
    header |= {"targetConsumerId": name, "copyOf": envelope.id}
    if header.get("groupId"):
        group = f"{header['groupId']}@{name}"
        header["groupId"] = group if len(group) <= MAX_TEXT else str(validation.line_of(group))
    target = validation.line_of(name)
    return envelope._replace(
        id=copy_id(envelope.id, target),
        available_at=now,
        dedup_key=None,
        header=dumps(header).decode(),
        group=validation.line_of(header.get("groupId") or ""),
        target=target,
    )


# -- delivery outcomes -------------------------------------------------------------------------------------------------

TYPE = "delivery.outcome"


class OutcomeOperations(Protocol):
    """Port to the queue operations that outcomes need (``broker.operations.QueueOperations``)."""

    event_buffer: EventBuffer
    touched: set[str]
    defaults: Defaults

    def enforce_quota(
        self, transaction: Transaction, policy: QueuePolicy, queue: str, coming: MessageLoad, now: int
    ) -> None: ...


def publish_outcomes(
    operations: OutcomeOperations,
    transaction: Transaction,
    queue: str,
    records: Sequence[DeliveryRecord],
    ids: Ids,
    now: int,
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
            operations.event_buffer.add(MessagesRefused(queue, "outcomes_of_outcomes", len(reportable)))
            return
        check_publish(transaction, [queue], operations.defaults.max_queues)
        new = [NewMessage(payload=document(record), type=TYPE) for record in reportable]
        envelopes = [build(queue, one, id, now) for one, id in zip(new, ids.new(len(new)), strict=True)]
        if policy.quota.is_set:
            operations.enforce_quota(transaction, policy, queue, added_load(transaction, policy, queue, envelopes), now)
        stored = transaction.add(envelopes, now, 0)
        operations.event_buffer.published(queue, envelopes, [len(one.payload) for one in envelopes], stored, now)
        operations.touched.add(queue)
    except StoreError:
        raise
    except QueueError as error:
        operations.event_buffer.add(MessagesRefused(queue, error.code, len(reportable)))


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
