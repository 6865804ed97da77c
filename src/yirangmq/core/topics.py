"""Topics: records, ports of the log and of cursors, and the states of a publisher and its subscribers.

One log holds all topics of a publisher. ``sequence`` counts through the whole log, ``topic_sequence`` through one
topic, both from 1 and without gaps. Records that were confirmed and lost are gaps of the log.

Every change of state of a publisher or a subscriber is a row of ``PUBLISHER`` or ``CLIENT``; docs/topics.md shows both
tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol

from yirangmq.core import validation

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
MOST_SEQUENCE = 2**64 - 1
Wanted = Callable[[str], bool]
"""Whether a topic, by its name, is asked for. It is asked once for each name, not for each record."""


# -- records and parts of a log ----------------------------------------------------------------------------------------


class NewRecord(NamedTuple):
    """A record to be appended; its numbers and its time are given by the log."""

    topic: str
    payload: bytes
    key: str | None = None
    headers: Mapping[str, str] = NO_HEADERS


class Record(NamedTuple):
    """``at_ns``: nanoseconds since 1970, never less than that of the record before."""

    sequence: int
    topic_sequence: int
    at_ns: int
    topic: str
    key: str | None
    headers: Mapping[str, str]
    payload: bytes


class Appended(NamedTuple):
    """What became of one call of ``append``: it is on disk under these numbers. ``data`` are its frames, as stored and
    as sent; frame n begins at ``offsets[n]``."""

    first: int
    last: int
    at_ns: int
    data: bytes
    offsets: Sequence[int]


class Gap(NamedTuple):
    """Records that were confirmed and are lost: the first and the last missing sequence."""

    first: int
    last: int


class TopicState(NamedTuple):
    """The latest record of a topic, also where it has been retired since. ``records`` and ``size`` are how many the log
    still holds, and their bytes, frames and all."""

    topic_sequence: int
    sequence: int
    at_ns: int
    records: int
    size: int


class Piece(NamedTuple):
    """Whole frames in a row in one file, for ``os.sendfile(socket, file, offset, length)``. ``file`` is a descriptor
    for reading, good until the next piece is asked for or the iterator is closed; never close it, never move it."""

    file: int
    offset: int
    length: int
    first: int
    last: int


class Frames(NamedTuple):
    """Stored frames of wanted topics, one after the other; the first and the last sequence, and how many. Without any,
    ``last`` is how far was looked: a sign of life on a long way through what nobody asked for."""

    data: bytes
    first: int
    last: int
    records: int


class Place(NamedTuple):
    """A record that is found without walking to it: its sequence, and the bytes of all kept records before it."""

    sequence: int
    size: int


class Retention(NamedTuple):
    """How much to keep; None: no limit of that kind. Whole segments go, so somewhat more is kept."""

    age_ns: int | None = None
    size: int | None = None


class Trimmed(NamedTuple):
    """What a trim took away: so many bytes, and the log now begins at ``first``."""

    segments: int
    size: int
    first: int


# -- ports -------------------------------------------------------------------------------------------------------------


class LogReader(Protocol):
    """Sees confirmed records only, and never disturbs the writer. For one thread at a time; cheap to make."""

    @property
    def epoch(self) -> str:
        """32 hexadecimal digits. Another epoch is another feed: no sequence of the old one means anything in it."""

    @property
    def first(self) -> int:
        """The first sequence that is kept; ``last + 1`` where nothing is."""

    @property
    def last(self) -> int:
        """The last confirmed sequence; 0 before the first."""

    def refresh(self) -> int:
        """Look what has come since; ``last``. (A reader of the writing process always knows.)"""

    def gaps(self) -> Sequence[Gap]: ...

    def topics(self) -> Mapping[str, TopicState]: ...

    def sequence_at(self, at_ns: int) -> int:
        """The first sequence from that time on; ``last + 1`` if there is none."""

    def records(self, start: int, stop: int | None = None, wanted: Wanted | None = None) -> Iterator[Record]:
        """From ``start`` up to, but without, ``stop`` (default: all that is confirmed now). Gaps are passed over.
        ``Retired`` if ``start`` is no longer kept; ``StoreDamaged`` where a frame does not hold what was written."""

    def count(self, start: int, stop: int | None = None, wanted: Wanted | None = None) -> int:
        """How many records ``records`` would give. With ``wanted`` two segments may have to be read for it."""

    def frames(
        self, start: int, stop: int | None = None, wanted: Wanted | None = None, size: int = 1 << 18
    ) -> Iterator[Frames]:
        """The same as stored frames, about ``size`` bytes at a time; unchecked, as ``pieces`` are."""

    def pieces(
        self, start: int, stop: int | None = None, wanted: Wanted | None = None, size: int | None = None
    ) -> Iterator[Piece]:
        """The same as pieces of files. Without ``wanted`` nothing is read but the index, and a piece is a whole segment
        or, where ``size`` is given, about so many bytes."""

    def places(self, start: int, stop: int | None = None, most: int = 10_000) -> Sequence[Place]:
        """Where the span could be cut into parts of a known size; at most so many, about as many bytes apart."""

    def close(self) -> None: ...


class Log(Protocol):
    """One process writes. ``append``, ``reader`` and the properties may be called from any thread."""

    @property
    def epoch(self) -> str: ...

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> int: ...

    @property
    def is_usable(self) -> bool:
        """False: after an error it takes no more until it is opened again."""

    def append(self, records: Sequence[NewRecord]) -> Appended:
        """Store all of them or none; they are on disk when this returns. Calls from several threads share one sync."""

    def gaps(self) -> Sequence[Gap]: ...

    def topics(self) -> Mapping[str, TopicState]: ...

    def reader(self) -> LogReader: ...

    def retain(self, rule: Retention, floor: int | None = None) -> Trimmed:
        """Give up what the rule does not want kept, but nothing from ``floor`` on (the sequence that the slowest
        durable subscriber needs next; None: there is none)."""

    def trim(self, before: int, *, dry_run: bool = False) -> Trimmed:
        """Give up everything before this sequence, as far as whole segments go. ``dry_run``: say what would go."""

    def close(self) -> None: ...


class Cursor(NamedTuple):
    """How far a durable subscriber has come: everything up to ``sequence`` is confirmed. ``filter`` is what it asked
    for, in its own words."""

    name: str
    epoch: str
    sequence: int
    filter: str
    at_ns: int


class Cursors(Protocol):
    """Where durable subscribers' cursors are kept. What ``put`` and ``drop`` did is on disk when they return."""

    def get(self, name: str) -> Cursor | None: ...

    def all(self) -> Sequence[Cursor]:
        """In the order of their names."""

    def put(self, cursors: Sequence[Cursor]) -> None:
        """All of them in one step: a power cut leaves all or none."""

    def drop(self, name: str) -> bool:
        """False: there was none."""

    def floor(self) -> int | None:
        """The sequence the slowest of them needs next; None: there are none."""

    def close(self) -> None: ...


def check_topic(name: object, field: str = "topic") -> str:
    """A topic is named like a queue, so that one can feed the other."""
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


PUBLISHER: dict[tuple[PublisherState | None, PublisherVerb], PublisherState] = {
    (None, PublisherVerb.START): PublisherState.STARTING,
    (PublisherState.STARTING, PublisherVerb.LISTEN): PublisherState.LISTENING,
    (PublisherState.LISTENING, PublisherVerb.SERVE): PublisherState.ONLINE,
    (PublisherState.STARTING, PublisherVerb.FAIL): PublisherState.ERROR,
    (PublisherState.LISTENING, PublisherVerb.FAIL): PublisherState.ERROR,
    (PublisherState.ONLINE, PublisherVerb.FAIL): PublisherState.ERROR,
    (PublisherState.ERROR, PublisherVerb.START): PublisherState.STARTING,
}

PUBLISHER_MEANING: dict[PublisherState, str] = {
    PublisherState.STARTING: "the log is being opened, nobody is listened to yet",
    PublisherState.LISTENING: "clients can connect",
    PublisherState.ONLINE: "records are taken and sent",
    PublisherState.ERROR: "the log could not be opened or written; why stands beside it, and it is tried again",
}


class ClientState(StrEnum):
    """In the order of the public numbers 0 to 5."""

    __hash__ = str.__hash__  # an Enum hashes in Python code; these are looked up for every batch

    CONNECTED = "connected"
    RECOVERY_NEEDED = "recovery_needed"
    RECOVERING = "recovering"
    CATCHING_UP = "catching_up"
    ONLINE = "online"
    OFFLINE = "offline"


class ClientVerb(StrEnum):
    __hash__ = str.__hash__

    ACCEPT = "accept"
    SUBSCRIBE = "subscribe"
    LAG = "lag"
    RECOVER = "recover"
    COMPLETE = "complete"
    ARRIVE = "arrive"
    UNSUBSCRIBE = "unsubscribe"
    LEAVE = "leave"


CLIENT: dict[tuple[ClientState | None, ClientVerb], ClientState] = {
    (None, ClientVerb.ACCEPT): ClientState.CONNECTED,
    (ClientState.CONNECTED, ClientVerb.SUBSCRIBE): ClientState.ONLINE,
    (ClientState.ONLINE, ClientVerb.LAG): ClientState.RECOVERY_NEEDED,
    (ClientState.ONLINE, ClientVerb.RECOVER): ClientState.RECOVERING,
    (ClientState.RECOVERY_NEEDED, ClientVerb.RECOVER): ClientState.RECOVERING,
    (ClientState.RECOVERING, ClientVerb.COMPLETE): ClientState.CATCHING_UP,
    (ClientState.RECOVERING, ClientVerb.ARRIVE): ClientState.ONLINE,
    (ClientState.CATCHING_UP, ClientVerb.ARRIVE): ClientState.ONLINE,
    (ClientState.ONLINE, ClientVerb.UNSUBSCRIBE): ClientState.CONNECTED,
    (ClientState.RECOVERY_NEEDED, ClientVerb.UNSUBSCRIBE): ClientState.CONNECTED,
    (ClientState.RECOVERING, ClientVerb.UNSUBSCRIBE): ClientState.CONNECTED,
    (ClientState.CATCHING_UP, ClientVerb.UNSUBSCRIBE): ClientState.CONNECTED,
    (ClientState.CONNECTED, ClientVerb.LEAVE): ClientState.OFFLINE,
    (ClientState.ONLINE, ClientVerb.LEAVE): ClientState.OFFLINE,
    (ClientState.RECOVERY_NEEDED, ClientVerb.LEAVE): ClientState.OFFLINE,
    (ClientState.RECOVERING, ClientVerb.LEAVE): ClientState.OFFLINE,
    (ClientState.CATCHING_UP, ClientVerb.LEAVE): ClientState.OFFLINE,
}

CLIENT_MEANING: dict[ClientState, str] = {
    ClientState.CONNECTED: "it follows nothing yet",
    ClientState.RECOVERY_NEEDED: "it is behind; what is on its way must be read before the rest is sent from the log",
    ClientState.RECOVERING: "a recovery worker sends it what it missed",
    ClientState.CATCHING_UP: "what it missed is sent; what came meanwhile follows, still from the log",
    ClientState.ONLINE: "it is sent every record as soon as that is on disk",
    ClientState.OFFLINE: "it is not connected; of a durable one the cursor is kept",
}


class Start(StrEnum):
    """Where a subscription begins that does not go on under its name."""

    NEW = "new"
    BEGINNING = "beginning"
    SEQUENCE = "sequence"
    TIME = "time"


def publisher_after(state: PublisherState | None, verb: PublisherVerb) -> PublisherState | None:
    """The state that follows, or None where the verb does not apply."""
    return PUBLISHER.get((state, verb))


def client_after(state: ClientState | None, verb: ClientVerb) -> ClientState | None:
    """The state that follows, or None where the verb does not apply."""
    return CLIENT.get((state, verb))
