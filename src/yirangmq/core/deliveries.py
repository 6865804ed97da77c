"""One delivery of one message to one consumer: how it stands, when it began and ended, what became of the message.

Knows: cards before and after a change. Does not know: where records are kept, who reads them."""

from enum import StrEnum
from typing import Any, NamedTuple

from yirangmq.core.message import Failure, Message
from yirangmq.core.reasons import Reason
from yirangmq.core.states import State

IN_HAND = (State.LEASED, State.CLAIMED)
RELEASED = "released"
"""Why a delivery failed that was given back untouched: by a consumer that went, or never got it."""
DROPPED = "dropped"
"""Why one failed whose message an operator gave up meanwhile."""


class Status(StrEnum):
    DELIVERING = "DELIVERING"
    """In a consumer's hands."""
    DELIVERED = "DELIVERED"
    """Confirmed by it."""
    FAILED = "FAILED"
    """Rejected, failed, or given back."""
    TIMEOUT = "TIMEOUT"
    """Its time ran out without a word."""


class DeliveryRecord(NamedTuple):
    """Instants in milliseconds; ``ended_at`` 0 while it goes on. ``became``: the state of the message after it;
    ``text``: what was said of a failure."""

    queue: str
    id: str
    seq: int
    fence: int
    consumer: str
    attempt: int
    status: Status
    begun_at: int
    ended_at: int = 0
    reason: str = ""
    text: str = ""
    became: str = State.LEASED.value

    @property
    def is_final(self) -> bool:
        """Nobody gets this message again, unless an operator says so."""
        return self.became not in (State.LEASED, State.READY, State.DELAYED, State.HELD, State.CLAIMED)


def begun(card: Message) -> DeliveryRecord:
    """``card``: as it stands once it is in the consumer's hands."""
    seq, queue, id, state, _, _, attempt, fence, _, _, changed_at, consumer, *_ = card
    return DeliveryRecord(queue, id, seq, fence, consumer, attempt, Status.DELIVERING, changed_at, became=state.value)


def ended(record: DeliveryRecord, after: Message, failure: Failure | None, now: int) -> DeliveryRecord:
    """What a change from in hand to anything else makes of it."""
    status, reason, text = _judged(record, after, failure)
    return record._replace(status=status, ended_at=now, reason=reason, text=text, became=after.state.value)


def _judged(record: DeliveryRecord, after: Message, failure: Failure | None) -> tuple[Status, str, str]:
    if after.state is State.DONE:
        return Status.DELIVERED, "", ""
    if failure is None:
        return Status.FAILED, DROPPED if after.state is State.DROPPED else RELEASED, ""
    said_by_holder = failure.reason_code != Reason.TIMEOUT or bool(after.consumer)
    status = Status.FAILED if said_by_holder else Status.TIMEOUT
    return status, str(failure.reason_code), failure.reason_message


def leaves_hand(before: Message, after: Message) -> bool:
    return before.state in IN_HAND and after.state not in IN_HAND


def show(record: DeliveryRecord) -> dict[str, Any]:
    """For programs: times as milliseconds since 1970, as a consumer's card has them."""
    return {
        "queue": record.queue,
        "messageId": record.id,
        "leaseId": f"{record.seq}-{record.fence}",
        "consumerId": record.consumer,
        "attempt": record.attempt,
        "status": record.status.value,
        "begunAt": record.begun_at,
        "endedAt": record.ended_at or None,
        "reason": record.reason or None,
        "text": record.text or None,
        "became": record.became,
    }
