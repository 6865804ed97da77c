"""What a commit left behind: one value a batch, never one a message, so that telling costs next to nothing. Metrics,
log lines and whoever watches a queue all read the same events. They are told after the commit, never before."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from yirangmq.core.deliveries import DeliveryRecord


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
