"""Topics: records, ports of the log and of cursors, and the states of a publisher and its subscribers.

One log holds all topics of a publisher. ``sequence`` counts through the whole log, ``topic_sequence`` through one
topic, both from 1 and without gaps. Records that were confirmed and lost are gaps of the log.

Every change of state of a publisher or subscriber is a row of ``PUBLISHER_TRANSITIONS`` or ``SUBSCRIBER_TRANSITIONS``;
docs/topics.md shows both tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol

from yirangmq.core import validation

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
MAX_SEQUENCE = 2**64 - 1
TopicPredicate = Callable[[str], bool]
"""Predicate on the name of a topic: True if its records are wanted. It is called once per name, not per record."""


# -- records and parts of a log ----------------------------------------------------------------------------------------


class NewRecord(NamedTuple):
    """Record to be appended. The log assigns its sequences and its time."""

    topic: str
    payload: bytes
    key: str | None = None
    headers: Mapping[str, str] = NO_HEADERS


class Record(NamedTuple):
    """Stored record of a topic. ``at_ns``: nanoseconds since 1970, never less than that of the record before."""

    sequence: int
    topic_sequence: int
    at_ns: int
    topic: str
    key: str | None
    headers: Mapping[str, str]
    payload: bytes


class AppendResult(NamedTuple):
    """Result of ``append``: the records are on disk with the sequences ``first`` to ``last``. ``data`` has their
    frames, as stored and as sent; frame n starts at ``offsets[n]``."""

    first: int
    last: int
    at_ns: int
    data: bytes
    offsets: Sequence[int]


class Gap(NamedTuple):
    """Gap of the log: confirmed records that are lost, from the ``first`` to the ``last`` missing sequence."""

    first: int
    last: int


class TopicState(NamedTuple):
    """Latest record of a topic, even if it has been retired since. ``records`` and ``size``: number of records that the
    log still holds, and their bytes including frames."""

    topic_sequence: int
    sequence: int
    at_ns: int
    records: int
    size: int


class FileRange(NamedTuple):
    """Range of whole frames in one file, for ``os.sendfile(socket, file, offset, length)``.

    ``file`` is a descriptor for reading. It is valid until the iterator is advanced or closed. The caller must not
    close it or change its file position."""

    file: int
    offset: int
    length: int
    first: int
    last: int


class RecordFrames(NamedTuple):
    """Concatenated stored frames of wanted topics, with the first and last sequence and the number of records.

    Without records, ``last`` is the sequence up to which the log was scanned: progress during a long scan without a
    match."""

    data: bytes
    first: int
    last: int
    records: int


class LogSplitPoint(NamedTuple):
    """Split point: a record that the index finds without a scan. ``sequence``: the record; ``size``: bytes of all kept
    records before it."""

    sequence: int
    size: int


class Retention(NamedTuple):
    """Retention rule; None: no limit of that kind. Only whole segments are deleted, so up to a segment more is kept."""

    age_ns: int | None = None
    size: int | None = None


class TrimResult(NamedTuple):
    """Result of a trim: the segments and bytes deleted; the log now starts at ``first``."""

    segments: int
    size: int
    first: int


# -- ports -------------------------------------------------------------------------------------------------------------


class LogReader(Protocol):
    """Reader of the log: it returns confirmed records only, and never blocks the writer. For one thread at a time;
    cheap to create."""

    @property
    def epoch(self) -> str:
        """Epoch of the log, 32 hexadecimal digits. Sequences of one epoch have no meaning in another."""

    @property
    def first(self) -> int:
        """First sequence that is kept; ``last + 1`` if no record is kept."""

    @property
    def last(self) -> int:
        """Last confirmed sequence; 0 before the first record."""

    def refresh(self) -> int:
        """Check for new records and return ``last``. A reader in the writing process is always up to date."""

    def gaps(self) -> Sequence[Gap]: ...

    def topics(self) -> Mapping[str, TopicState]: ...

    def sequence_at(self, at_ns: int) -> int:
        """Return the first sequence at or after that time; ``last + 1`` if there is none."""

    def records(self, start: int, stop: int | None = None, wanted: TopicPredicate | None = None) -> Iterator[Record]:
        """Yield the records from ``start`` up to, but excluding, ``stop`` (default: all that is confirmed now). Gaps
        are skipped. Raises ``Retired`` if ``start`` is no longer kept, and ``StoreDamaged`` at a damaged frame."""

    def count(self, start: int, stop: int | None = None, wanted: TopicPredicate | None = None) -> int:
        """Return the number of records that ``records`` would yield. With ``wanted`` up to two segments are read."""

    def frames(
        self, start: int, stop: int | None = None, wanted: TopicPredicate | None = None, size: int = 1 << 18
    ) -> Iterator[RecordFrames]:
        """Yield the same records as stored frames, about ``size`` bytes at a time. Like ``pieces`` they are not
        verified."""

    def pieces(
        self, start: int, stop: int | None = None, wanted: TopicPredicate | None = None, size: int | None = None
    ) -> Iterator[FileRange]:
        """Yield the same records as ranges of files. Without ``wanted`` only the index is read, and a range is a whole
        segment or, if ``size`` is given, about that many bytes."""

    def places(self, start: int, stop: int | None = None, most: int = 10_000) -> Sequence[LogSplitPoint]:
        """Return points at which the span can be split into parts of known size: at most ``most``, evenly spaced in
        bytes."""

    def close(self) -> None: ...


class Log(Protocol):
    """Log of topics. One process writes. ``append``, ``reader`` and the properties may be called from any thread."""

    @property
    def epoch(self) -> str: ...

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> int: ...

    @property
    def is_usable(self) -> bool:
        """False after an error: the log accepts no records until it is opened again."""

    @property
    def loss(self) -> str:
        """Why opening it began a new epoch: what is lost at its end, and how that is known. "" if the epoch goes on."""

    def append(self, records: Sequence[NewRecord]) -> AppendResult:
        """Store all of them or none; they are on disk when this returns. Calls from several threads share one sync."""

    def gaps(self) -> Sequence[Gap]: ...

    def topics(self) -> Mapping[str, TopicState]: ...

    def reader(self) -> LogReader: ...

    def retain(self, rule: Retention, floor: int | None = None) -> TrimResult:
        """Delete segments beyond the retention rule, but no record from ``floor`` on. ``floor``: the next sequence of
        the slowest durable subscriber; None: there is none."""

    def trim(self, before: int, *, dry_run: bool = False) -> TrimResult:
        """Delete the whole segments before this sequence. ``dry_run``: only return the result."""

    def close(self) -> None: ...


KnownPositions = Callable[[str, int], Mapping[str, int]]
"""(epoch, since) → the last sequence of that epoch that each durable reader has confirmed, by a text that names the
reader. The epoch "" is any epoch. A reader whose positions have no epoch reports those that it stored after ``since``,
in nanoseconds since 1970: the epoch is as old as that."""


class Cursor(NamedTuple):
    """Cursor of a durable subscriber: it has confirmed everything up to ``sequence``. ``filter``: its filter, as the
    subscriber wrote it."""

    name: str
    epoch: str
    sequence: int
    filter: str
    at_ns: int


class Cursors(Protocol):
    """Port of the cursors of durable subscribers. The changes of ``put`` and ``drop`` are on disk when they return."""

    def get(self, name: str) -> Cursor | None: ...

    def all(self) -> Sequence[Cursor]:
        """Return all cursors in order of name."""

    def put(self, cursors: Sequence[Cursor]) -> None:
        """Store the cursors atomically: a power cut leaves all or none."""

    def drop(self, name: str) -> bool:
        """Delete a cursor; return False if there was none."""

    def floor(self) -> int | None:
        """Return the next sequence of the slowest subscriber; None if there are no cursors."""

    def close(self) -> None: ...


def check_topic(name: object, field: str = "topic") -> str:
    """Check a topic's name. The rule is that of queue names, so that each can be copied to the other."""
    return validation.check_queue(name, field)


def check_subscriber(name: object, field: str = "name") -> str:
    return validation.check_consumer(name, field)


# -- states ------------------------------------------------------------------------------------------------------------


class PublisherState(StrEnum):
    STARTING = "starting"
    LISTENING = "listening"
    ONLINE = "online"
    ERROR = "error"


class PublisherVerb(StrEnum):
    START = "start"
    LISTEN = "listen"
    SERVE = "serve"
    FAIL = "fail"


PUBLISHER_TRANSITIONS: dict[tuple[PublisherState | None, PublisherVerb], PublisherState] = {
    (None, PublisherVerb.START): PublisherState.STARTING,
    (PublisherState.STARTING, PublisherVerb.LISTEN): PublisherState.LISTENING,
    (PublisherState.LISTENING, PublisherVerb.SERVE): PublisherState.ONLINE,
    (PublisherState.STARTING, PublisherVerb.FAIL): PublisherState.ERROR,
    (PublisherState.LISTENING, PublisherVerb.FAIL): PublisherState.ERROR,
    (PublisherState.ONLINE, PublisherVerb.FAIL): PublisherState.ERROR,
    (PublisherState.ERROR, PublisherVerb.START): PublisherState.STARTING,
}

PUBLISHER_MEANING: dict[PublisherState, str] = {
    PublisherState.STARTING: "the log is being opened; clients cannot connect yet",
    PublisherState.LISTENING: "clients can connect",
    PublisherState.ONLINE: "records are stored and sent",
    PublisherState.ERROR: "the log could not be opened or written; the reason is shown, and the server tries again",
}


class SubscriberState(StrEnum):
    """States of a subscriber, in the order of the public numbers 0 to 5."""

    __hash__ = str.__hash__  # an Enum hashes in Python code; these are looked up for every batch

    CONNECTED = "connected"
    RECOVERY_NEEDED = "recovery_needed"
    RECOVERING = "recovering"
    CATCHING_UP = "catching_up"
    ONLINE = "online"
    OFFLINE = "offline"


class SubscriberVerb(StrEnum):
    __hash__ = str.__hash__

    ACCEPT = "accept"
    SUBSCRIBE = "subscribe"
    LAG = "lag"
    RECOVER = "recover"
    COMPLETE = "complete"
    ARRIVE = "arrive"
    UNSUBSCRIBE = "unsubscribe"
    LEAVE = "leave"


SUBSCRIBER_TRANSITIONS: dict[tuple[SubscriberState | None, SubscriberVerb], SubscriberState] = {
    (None, SubscriberVerb.ACCEPT): SubscriberState.CONNECTED,
    (SubscriberState.CONNECTED, SubscriberVerb.SUBSCRIBE): SubscriberState.ONLINE,
    (SubscriberState.ONLINE, SubscriberVerb.LAG): SubscriberState.RECOVERY_NEEDED,
    (SubscriberState.ONLINE, SubscriberVerb.RECOVER): SubscriberState.RECOVERING,
    (SubscriberState.RECOVERY_NEEDED, SubscriberVerb.RECOVER): SubscriberState.RECOVERING,
    (SubscriberState.RECOVERING, SubscriberVerb.RECOVER): SubscriberState.RECOVERING,
    (SubscriberState.CATCHING_UP, SubscriberVerb.RECOVER): SubscriberState.RECOVERING,
    (SubscriberState.RECOVERING, SubscriberVerb.COMPLETE): SubscriberState.CATCHING_UP,
    (SubscriberState.RECOVERING, SubscriberVerb.ARRIVE): SubscriberState.ONLINE,
    (SubscriberState.CATCHING_UP, SubscriberVerb.ARRIVE): SubscriberState.ONLINE,
    (SubscriberState.ONLINE, SubscriberVerb.UNSUBSCRIBE): SubscriberState.CONNECTED,
    (SubscriberState.RECOVERY_NEEDED, SubscriberVerb.UNSUBSCRIBE): SubscriberState.CONNECTED,
    (SubscriberState.RECOVERING, SubscriberVerb.UNSUBSCRIBE): SubscriberState.CONNECTED,
    (SubscriberState.CATCHING_UP, SubscriberVerb.UNSUBSCRIBE): SubscriberState.CONNECTED,
    (SubscriberState.CONNECTED, SubscriberVerb.LEAVE): SubscriberState.OFFLINE,
    (SubscriberState.ONLINE, SubscriberVerb.LEAVE): SubscriberState.OFFLINE,
    (SubscriberState.RECOVERY_NEEDED, SubscriberVerb.LEAVE): SubscriberState.OFFLINE,
    (SubscriberState.RECOVERING, SubscriberVerb.LEAVE): SubscriberState.OFFLINE,
    (SubscriberState.CATCHING_UP, SubscriberVerb.LEAVE): SubscriberState.OFFLINE,
}

SUBSCRIBER_MEANING: dict[SubscriberState, str] = {
    SubscriberState.CONNECTED: "the client has no subscription yet",
    SubscriberState.RECOVERY_NEEDED: "the subscriber is behind; it must read the output in flight before it gets "
    "the rest from the log",
    SubscriberState.RECOVERING: "a catch-up worker sends the records that it missed",
    SubscriberState.CATCHING_UP: "the missed records are sent; records published meanwhile follow, still from the log",
    SubscriberState.ONLINE: "the subscriber gets each record as soon as the record is on disk",
    SubscriberState.OFFLINE: "the subscriber is not connected; the cursor of a durable one is kept",
}


class Start(StrEnum):
    """Start of a subscription that has no cursor."""

    NEW = "new"
    BEGINNING = "beginning"
    SEQUENCE = "sequence"
    TIME = "time"


def publisher_after(state: PublisherState | None, verb: PublisherVerb) -> PublisherState | None:
    """Return the next state, or None if the verb does not apply."""
    return PUBLISHER_TRANSITIONS.get((state, verb))


def subscriber_after(state: SubscriberState | None, verb: SubscriberVerb) -> SubscriberState | None:
    """Return the next state, or None if the verb does not apply."""
    return SUBSCRIBER_TRANSITIONS.get((state, verb))
