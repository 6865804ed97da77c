"""Events of a commit, and delivery records.

An event describes a whole batch, never one message, so that its cost is negligible. Metrics, log lines and followers of
the event stream get the same events, always after the commit.

A delivery record describes one delivery of one message to one consumer: its status, its start and end, and the state of
the message after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from yirangmq.core.message import Message, MessageFailure, Reason
from yirangmq.core.states import State

# -- delivery records --------------------------------------------------------------------------------------------------

IN_FLIGHT_STATES = (State.LEASED, State.CLAIMED)
RELEASED = "released"
"""Reason of a delivery that was released unprocessed: its consumer disconnected, or never received it."""
DROPPED = "dropped"
"""Reason of a delivery with a message that an operator dropped meanwhile."""


class DeliveryStatus(StrEnum):
    DELIVERING = "DELIVERING"
    """Leased by a consumer."""
    DELIVERED = "DELIVERED"
    """Acknowledged by the consumer."""
    FAILED = "FAILED"
    """Rejected, failed, or released."""
    TIMEOUT = "TIMEOUT"
    """The lease expired without a settlement."""


class DeliveryRecord(NamedTuple):
    """Delivery record: one delivery of one message to one consumer.

    Instants are in milliseconds; ``ended_at`` is 0 while the delivery is in progress. ``became``: the state of the
    message after it; ``text``: the description of a failure."""

    queue: str
    id: str
    seq: int
    fence: int
    consumer: str
    attempt: int
    status: DeliveryStatus
    begun_at: int
    ended_at: int = 0
    reason: str = ""
    text: str = ""
    became: str = State.LEASED.value

    @property
    def is_final(self) -> bool:
        """True if the message is not delivered again unless an operator redrives it."""
        return self.became not in (State.LEASED, State.READY, State.DELAYED, State.HELD, State.CLAIMED)


def delivery_started(row: Message) -> DeliveryRecord:
    """Return the record of a delivery that starts. ``row``: the message after it was leased."""
    seq, queue, id, state, _, _, attempt, fence, _, _, changed_at, consumer, *_ = row
    return DeliveryRecord(
        queue, id, seq, fence, consumer, attempt, DeliveryStatus.DELIVERING, changed_at, became=state.value
    )


def ended(record: DeliveryRecord, after: Message, failure: MessageFailure | None, now: int) -> DeliveryRecord:
    """Return the record after the message left the states leased and claimed."""
    status, reason, text = _delivery_result(record, after, failure)
    return record._replace(status=status, ended_at=now, reason=reason, text=text, became=after.state.value)


def removed(record: DeliveryRecord, now: int) -> DeliveryRecord:
    """Return the record after its message was removed together with all others of the queue."""
    became = State.DROPPED.value
    return record._replace(status=DeliveryStatus.FAILED, ended_at=now, reason=DROPPED, became=became)


def _delivery_result(
    record: DeliveryRecord, after: Message, failure: MessageFailure | None
) -> tuple[DeliveryStatus, str, str]:
    if after.state is State.DONE:
        return DeliveryStatus.DELIVERED, "", ""
    if failure is None:
        return DeliveryStatus.FAILED, DROPPED if after.state is State.DROPPED else RELEASED, ""
    said_by_holder = failure.reason_code != Reason.TIMEOUT or bool(after.consumer)
    status = DeliveryStatus.FAILED if said_by_holder else DeliveryStatus.TIMEOUT
    return status, str(failure.reason_code), failure.reason_message


def ends_delivery(before: Message, after: Message) -> bool:
    return before.state in IN_FLIGHT_STATES and after.state not in IN_FLIGHT_STATES


def show(record: DeliveryRecord) -> dict[str, Any]:
    """Return the record as a JSON document: times in milliseconds since 1970, as in the consumer registry."""
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


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessagesPublished:
    """Messages were published to a queue; duplicates do not count. ``bytes`` counts the payloads."""

    queue: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MessagesLeased:
    """Messages were leased. ``waited_ms``: for each, the time it was ready before that, in ms."""

    queue: str
    count: int
    waited_ms: Sequence[int]


@dataclass(frozen=True, slots=True)
class LeasesSettled:
    """Leases were settled by their holders: ``ack``, ``nack``, ``release`` or ``extend``. ``worked_ms``: for each, the
    time it was held, in ms; empty for ``extend``. ``reason``: the reason of a nack."""

    queue: str
    verb: str
    count: int
    worked_ms: Sequence[int] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeasesExpired:
    """Leases expired without a settlement."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class MessagesDied:
    """Messages failed finally: they are dead letters now, or parked if the queue has no dead-letter queue."""

    queue: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class MessagesDropped:
    """Messages were dropped. ``why``: ``asked``, ``expired``, ``retention``, ``quota``, or ``given_up`` (no dead
    letters)."""

    queue: str
    why: str
    count: int


@dataclass(frozen=True, slots=True)
class MessagesRedriven:
    """Dead letters were redriven: they are ready again."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class MessagesParked:
    """Messages were parked by an operator."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class MessagesRefused:
    """Messages were refused. ``code``: the code of the error that their producer got."""

    queue: str
    code: str
    count: int


@dataclass(frozen=True, slots=True)
class QueueChanged:
    """An operator changed a queue. ``what``: ``policy``, ``pause``, ``resume``, ``clear`` or ``delete``."""

    queue: str
    what: str


@dataclass(frozen=True, slots=True)
class DeliveriesEnded:
    """Deliveries ended, in a queue with ``dispatch`` in its policy: the result and the times of each."""

    queue: str
    count: int
    records: Sequence[DeliveryRecord]


@dataclass(frozen=True, slots=True)
class ClientRefused:
    """A client was refused, or lacked the right to a request. ``door``: the protocol; ``who``: the client's name, if it
    has one; ``why``: the code of the reason."""

    queue: ClassVar[str] = ""
    door: str
    address: str
    who: str
    why: str
    text: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class TopicStateChanged:
    """A publisher or subscriber of topics changed its state. ``who``: ``publisher``, or the name or number of a
    subscriber."""

    queue: ClassVar[str] = ""
    who: str
    before: str
    after: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class GroupCommitted:
    """A group commit was made: the requests and messages that shared it, and the seconds of the work and of the
    sync."""

    requests: int
    messages: int
    work_seconds: float
    sync_seconds: float


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of a message that carries a trace, emitted only if traces are collected. ``step``: ``publish`` or
    ``process``; ``outcome``: ``ok``, or the reason of a failure."""

    queue: str
    id: str
    header: str
    step: str
    attempt: int
    begun_at: int
    ended_at: int
    outcome: str = "ok"


QueueEvent = (
    MessagesPublished
    | MessagesLeased
    | LeasesSettled
    | LeasesExpired
    | MessagesDied
    | MessagesDropped
    | MessagesRedriven
    | MessagesParked
    | MessagesRefused
    | QueueChanged
    | TopicStateChanged
    | ClientRefused
)
Event = QueueEvent | TraceStep | GroupCommitted | DeliveriesEnded


_CHANGE_EVENTS = (
    MessagesPublished,
    MessagesLeased,
    LeasesSettled,
    LeasesExpired,
    MessagesDropped,
    MessagesRedriven,
    MessagesParked,
)


def moved(events: Sequence[Event]) -> int:
    """Return the number of message changes in these events. A lease that expired and made its message a dead letter
    counts once."""
    total = 0
    for event in events:  # at each commit: a loop without a frame of its own
        if isinstance(event, _CHANGE_EVENTS):
            total += event.count
    return total
