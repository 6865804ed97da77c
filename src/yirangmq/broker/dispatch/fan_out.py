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
from yirangmq.broker.event_buffer import Happenings
from yirangmq.broker.quota import check_new_queues, newcomers
from yirangmq.broker.selection import Head, Offers, addressed, targets
from yirangmq.core import transitions, validation
from yirangmq.core.dispatch import copy_id, is_copy
from yirangmq.core.errors import QueueError, StoreError
from yirangmq.core.events import RELEASED, DeliveryRecord, Refused
from yirangmq.core.message import Envelope
from yirangmq.core.policy import Defaults, Load, QueuePolicy
from yirangmq.core.ports import Change, Ids, Transaction
from yirangmq.format.envelope import MAX_TEXT, NewMessage, build, iso
from yirangmq.format.json_codec import dumps, loads

# -- broadcast ---------------------------------------------------------------------------------------------------------

BROADCASTER = "broadcast"
"""Consumer id under which the original message is leased and acked."""
MOST_COPIES = 1_000
"""Upper bound of copies per commit; the copies of a single message may exceed it."""
MOST_FANNED = 100
"""Upper bound of messages copied per commit."""
BYTES_FANNED = 512 * 1024
"""Upper bound of payload bytes of the messages copied per commit."""
LOOK_MS = 10_000
"""Interval of the search for copies addressed to former members, in ms. A change of membership starts one too."""
MOST_LINES = 64
"""Upper bound of consumers examined per search."""
PER_LINE = 100
"""Upper bound of copies per former member that one search makes dead letters."""


class Deeds(Protocol):
    """Port to the queue operations that broadcast needs (``broker.operations.Verbs``)."""

    happened: Happenings
    offers: Offers
    touched: set[str]

    def swap(self, transaction: Transaction, changes: Sequence[Change], now: int) -> None: ...


class Broadcast:
    """Broadcast fan-out: stores a copy of each message per member, and acks the original. Committing thread only."""

    def __init__(self, deeds: Deeds) -> None:
        self._deeds = deeds
        self._looked: dict[str, tuple[int, tuple[str, ...]]] = {}

    def fan_out(self, transaction: Transaction, queue: str, everyone: Sequence[str], now: int) -> bool:
        """Copy the first ready messages for all members. Return True if there may be more.

        Without members the messages stay ready for later members."""
        self._bury_abandoned(transaction, queue, everyone, now)
        if not everyone:
            return False
        most = max(1, min(MOST_FANNED, MOST_COPIES // len(everyone)))
        heads = self._deeds.offers.affordable(transaction, queue, most, 0, BYTES_FANNED, now)
        if heads:
            self._copy(transaction, queue, heads, everyone, now)
            self._finish(transaction, queue, heads, now)
        return len(heads) == most

    def _copy(
        self, transaction: Transaction, queue: str, heads: Sequence[Head], everyone: Sequence[str], now: int
    ) -> None:
        copies = [copy_of(envelope, name, now) for _, envelope in heads for name in everyone]
        stored = transaction.add(copies, now, 0)
        self._deeds.happened.published(queue, copies, [len(one.payload) for one in copies], stored, now)
        if any(copy.group for copy in copies):
            seqs = [one.seq for one, copy in zip(stored, copies, strict=True) if copy.group and not one.duplicate]
            selection.line_up(transaction, [card for card in transaction.by_seq(seqs) if card is not None])

    def _finish(self, transaction: Transaction, queue: str, heads: Sequence[Head], now: int) -> None:
        policy = transaction.policy(queue)
        taken = [transitions.lease(message, now, now, BROADCASTER) for message, _ in heads]
        transaction.swap([Change(message, after) for (message, _), after in zip(heads, taken, strict=True)])
        done = [Change(card, transitions.ack(card, policy, now)) for card in taken]
        self._deeds.happened.leased(queue, heads, now)
        self._deeds.swap(transaction, done, now)
        self._deeds.happened.settled("ack", done, now)

    def _bury_abandoned(self, transaction: Transaction, queue: str, everyone: Sequence[str], now: int) -> None:
        looked_at, known = self._looked.get(queue, (0, ()))
        if known == tuple(everyone) and 0 <= now - looked_at < LOOK_MS:
            return
        self._looked[queue] = now, tuple(everyone)
        lines = {validation.line_of(name) for name in everyone}
        gone = [line for line in islice(targets(transaction, queue), MOST_LINES) if line not in lines]
        policy = transaction.policy(queue)
        changes = []
        for line in gone:
            cards = [card for card in addressed(transaction, queue, line, PER_LINE) if is_copy(card.id, line)]
            if cards:
                self._looked.pop(queue, None)  # search again: more may remain, or become ready in a group
            for card in cards:
                outcome = transitions.abandon(card, policy, now, "its consumer is no longer one of this queue")
                changes.append(Change(card, outcome.message, outcome.failure))
        self._deeds.swap(transaction, changes, now)
        self._deeds.happened.refused(changes, now)


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


class OutcomeDeeds(Protocol):
    """Port to the queue operations that outcomes need (``broker.operations.Verbs``)."""

    happened: Happenings
    touched: set[str]
    defaults: Defaults

    def make_room(self, transaction: Transaction, policy: QueuePolicy, queue: str, coming: Load, now: int) -> None: ...


def tell_outcomes(
    deeds: OutcomeDeeds, transaction: Transaction, queue: str, records: Sequence[DeliveryRecord], ids: Ids, now: int
) -> None:
    """Publish the outcomes of deliveries to ``queue``. Releases are not outcomes.

    If the queue is full, or has ``outcomes`` in its own policy, the refusal is counted and the deliveries do not fail.
    The queue's processor is not applied, because the server builds these messages."""
    told = [record for record in records if record.reason != RELEASED]
    if not told:
        return
    try:
        policy = transaction.policy(queue)
        if policy.dispatch is not None and policy.dispatch.outcomes:
            deeds.happened.add(Refused(queue, "outcomes_of_outcomes", len(told)))
            return
        check_new_queues(transaction, [queue], deeds.defaults.max_queues)
        new = [NewMessage(payload=document(record), type=TYPE) for record in told]
        envelopes = [build(queue, one, id, now) for one, id in zip(new, ids.new(len(new)), strict=True)]
        if policy.quota.is_set:
            deeds.make_room(transaction, policy, queue, newcomers(transaction, policy, queue, envelopes), now)
        stored = transaction.add(envelopes, now, 0)
        deeds.happened.published(queue, envelopes, [len(one.payload) for one in envelopes], stored, now)
        deeds.touched.add(queue)
    except StoreError:
        raise
    except QueueError as error:
        deeds.happened.add(Refused(queue, error.code, len(told)))


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
