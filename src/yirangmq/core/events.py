"""Events that a commit leaves behind, and the record of a delivery.

An event stands for a whole batch, never for one message, so that observing costs next to nothing. Metrics, log lines
and event followers all get the same events, after the commit and never before.

A delivery record is one delivery of one message to one consumer: its status, when it began and ended, and the state of
the message after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from yirangmq.core.message import Failure, Message, Reason
from yirangmq.core.states import State

# -- delivery records --------------------------------------------------------------------------------------------------

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


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """New in the queue; what was known already does not count. ``bytes`` are those of the payloads."""

    queue: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Leased:
    """Handed out. ``waited_ms``: how long each could have been taken before it was."""

    queue: str
    count: int
    waited_ms: Sequence[int]


@dataclass(frozen=True, slots=True)
class Settled:
    """What holders said of their leases: ``ack``, ``nack``, ``release`` or ``extend``. ``worked_ms``: how long each was
    held; empty for ``extend``. ``reason``: that of a nack."""

    queue: str
    verb: str
    count: int
    worked_ms: Sequence[int] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lapsed:
    """Leases that ended without a word from their holder."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class Died:
    """Given up: now among the dead letters, or parked where the queue has none."""

    queue: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Gone for good; ``why``: ``asked``, ``expired``, ``retention``, ``quota``, or ``given_up`` (no dead letters)."""

    queue: str
    why: str
    count: int


@dataclass(frozen=True, slots=True)
class Redriven:
    """Back in line from the dead letters."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class Parked:
    """Set aside by an operator."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Messages that were not taken in; ``code`` is that of the error their producer got."""

    queue: str
    code: str
    count: int


@dataclass(frozen=True, slots=True)
class Steered:
    """``what`` an operator did to the queue: ``policy``, ``pause``, ``resume``, ``clear`` or ``delete``."""

    queue: str
    what: str


@dataclass(frozen=True, slots=True)
class DeliveriesEnded:
    """Deliveries of a queue whose policy has ``dispatch``: what became of each, with its times."""

    queue: str
    count: int
    records: Sequence[DeliveryRecord]


@dataclass(frozen=True, slots=True)
class ClientRefused:
    """A program that was not let in, or not allowed what it asked for. ``door``: where; ``who``: its name, if it is
    known by one; ``why``: the code of the reason."""

    queue: ClassVar[str] = ""
    door: str
    address: str
    who: str
    why: str
    text: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class FeedMoved:
    """A change of state in the feed of topics. ``who``: ``publisher``, or the name or number of a subscriber."""

    queue: ClassVar[str] = ""
    who: str
    before: str
    after: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit itself: how many requests and messages shared it, how long the work and the sync took."""

    requests: int
    messages: int
    work_seconds: float
    sync_seconds: float


@dataclass(frozen=True, slots=True)
class Traced:
    """One step in the life of one message that carries a trace, told only where somebody collects traces. ``step``:
    ``publish`` or ``process``; ``outcome``: ``ok``, or why not."""

    queue: str
    id: str
    header: str
    step: str
    attempt: int
    begun_at: int
    ended_at: int
    outcome: str = "ok"


OfQueue = (
    Published
    | Leased
    | Settled
    | Lapsed
    | Died
    | Dropped
    | Redriven
    | Parked
    | Refused
    | Steered
    | FeedMoved
    | ClientRefused
)
Event = OfQueue | Traced | Committed | DeliveriesEnded


_MOVES = (Published, Leased, Settled, Lapsed, Dropped, Redriven, Parked)


def moved(events: Sequence[Event]) -> int:
    """How many changes to messages these events tell of; a message that lapsed and died was changed once."""
    return sum([event.count for event in events if isinstance(event, _MOVES)])
