"""The end of each delivery, told to a queue: in the same commit, so that none is forgotten, and by its webhook or its
subscribers at their own pace, so that nobody waits for it.

Knows: records as documents. Does not know: how that queue's messages reach anybody."""

from collections.abc import Sequence
from typing import Protocol

from yirangmq.broker.happenings import Happenings
from yirangmq.broker.room import check_new_queues, newcomers
from yirangmq.core.errors import QueueError, StoreError
from yirangmq.core.events import RELEASED, DeliveryRecord, Refused
from yirangmq.core.policy import Defaults, Load, QueuePolicy
from yirangmq.core.ports import Ids, Transaction
from yirangmq.format.envelope import NewMessage, build, iso

TYPE = "delivery.outcome"


class OutcomeDeeds(Protocol):
    happened: Happenings
    touched: set[str]
    defaults: Defaults

    def make_room(self, transaction: Transaction, policy: QueuePolicy, queue: str, coming: Load, now: int) -> None: ...


def tell_outcomes(
    deeds: OutcomeDeeds, transaction: Transaction, queue: str, records: Sequence[DeliveryRecord], ids: Ids, now: int
) -> None:
    """What was given back untouched is no outcome. A queue of outcomes that is full, or that would tell of itself, is
    not told: deliveries do not fail for it. Its processor is not asked: these are our own words."""
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
    """As a receiver of outcomes reads it."""
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
