"""Ports of topic delivery: client connection, catch-up outlet, dialect, range of a catch-up, and loop; its settings.

A connection is the sending side of one client. During a catch-up a worker has its outlet, and the connection's own
messages wait for the end of a frame. A dialect is how a protocol writes records and control messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from yirangmq.core.errors import QueueError
from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import Gap, Retention

# -- connections -------------------------------------------------------------------------------------------------------


class CatchupOutput(Protocol):
    """Output to one client, held by a catch-up worker.

    ``send`` and ``send_file`` never block: they raise ``BlockingIOError`` if the client cannot take bytes now. Any
    other ``OSError`` means that the client is gone."""

    def fileno(self) -> int:
        """Return the descriptor to poll for writing, or -1 if ``wake`` is called when the outlet can take more."""

    def send(self, data: memoryview) -> int:
        """Send a part of ``data``, and return its size in bytes."""

    def send_file(self, file: int, offset: int, count: int) -> int:
        """Send a part of a file, and return its size in bytes; 0 means the end of the file."""

    def close(self) -> None: ...


DetachedCallback = Callable[[CatchupOutput], None]


class SubscriberConnection(Protocol):
    """Sending side of one client's connection. Loop thread only, except ``deferred``."""

    @property
    def peer(self) -> str:
        """Return a readable name of the client, for logs and for operators."""

    def send(self, data: bytes) -> None:
        """Send in order, after this iteration of the loop. While detached, the bytes are deferred to a frame's end."""

    def has_capacity(self, size: int) -> bool:
        """True if ``size`` more bytes fit into the client's send buffer."""

    def detach(self, on_detached: DetachedCallback, wake: Callable[[], None]) -> None:
        """Detach the connection: call ``on_detached`` with the outlet once all bytes sent before are out.

        The loop sends nothing else until ``attach``, which sends the deferred bytes. ``on_detached`` is never called if
        the connection is lost before."""

    def deferred(self) -> bytes:
        """Remove and return the deferred bytes, on the thread that holds the outlet."""

    def attach(self) -> None: ...

    def fail(self, error: QueueError) -> None:
        """Send the error to the client, and close the connection."""

    def cut(self, reason: str) -> None:
        """Close immediately. ``reason`` is empty if the client has closed the connection."""


# -- dialects ----------------------------------------------------------------------------------------------------------


class EncodedRecords(NamedTuple):
    """Encoded frames of consecutive records, and the number of records."""

    data: bytes
    records: int


class Subscribed(NamedTuple):
    """Content of the first message to a subscriber: the epoch, its next sequence, and the bounds of the log."""

    epoch: str
    next: int
    first: int
    last: int
    gaps: Sequence[Gap]
    resumed: bool


class Recovering(NamedTuple):
    """Content of the message before a catch-up. ``total``: number of records, or None if they were not counted."""

    start: int
    end: int
    total: int | None
    gaps: Sequence[Gap]


class Dialect(Protocol):
    """Encoding of records and control messages for one protocol. Hashable.

    A method returns ``b""`` if the protocol has no such message."""

    sends_stored: bool
    """True if stored frames are sent unchanged, so that ``sendfile`` is possible."""
    needs_count: bool
    """True if the protocol cannot announce a catch-up without its number of records."""

    def subscribed(self, request: int, about: Subscribed) -> bytes: ...

    def recovering(self, request: int, about: Recovering) -> bytes: ...

    def complete(self, request: int, sequence: int, sent: int, at_ns: int) -> bytes: ...

    def refused(self, request: int, error: QueueError) -> bytes:
        """Encode the refusal of a recovery request that had to wait for its answer."""

    def progress(self, sequence: int, sent: int, last: int, at_ns: int) -> bytes: ...

    def records(self, batch: EncodedRecords) -> bytes:
        """Encode stored frames in this dialect."""


# -- catch-up ----------------------------------------------------------------------------------------------------------


class CatchupResult(Enum):
    """Result of one step of a catch-up."""

    MORE = "it can go on at once"
    BLOCKED = "the client must read first"
    DONE = "nothing is left, or it was asked to stop"
    GONE = "the client is not there any more"
    STALLED = "the client has taken nothing for too long"
    FAILED = "the log cannot give what is needed"


class CatchupRange(NamedTuple):
    """Range of a catch-up: the matching records after ``after`` up to ``target``, then those published meanwhile.

    ``requests``: numbers of the requests that this answers; empty for a recovery that the subscriber did not ask for.
    ``is_counted``: announce the number of records first. ``announced_start``: start of the range in the announcement;
    0 is ``after`` + 1."""

    filter: Filter
    dialect: Dialect
    after: int
    target: int
    requests: tuple[int, ...] = ()
    is_counted: bool = True
    announced_start: int = 0


# -- loop and settings -------------------------------------------------------------------------------------------------

MAX_PER_PUBLISH = 10_000
MASKED = ("TOPIC1", "TOPIC2", "MISC")
WEEK_SECONDS = 7 * 86400.0
DEFAULT_RETENTION = Retention(round(WEEK_SECONDS * 1e9))


class CatchupPacing(NamedTuple):
    """Pacing of catch-up.

    ``budget``: bytes for one client before the worker serves the next one. ``stall_seconds``: a client that accepts no
    bytes for this time is disconnected. ``threaded``: if false, the worker starts no thread, and a caller runs
    ``turn``. ``live_rate_limit``: bytes/s of all catch-up together while live records are sent; 0 is no limit."""

    budget: int = 1 << 20
    stall_seconds: float = 600.0
    threaded: bool = True
    live_rate_limit: int = 300_000_000


DEFAULT_PACING = CatchupPacing()


@dataclass(frozen=True, slots=True)
class Loop:
    """Event loop as topic delivery sees it.

    ``soon`` runs a function after the current iteration, ``later`` after a delay in seconds. ``call`` is like ``soon``,
    from any thread. ``seconds`` is a monotonic clock; ``now_ns`` returns nanoseconds since 1970."""

    soon: Callable[[Callable[[], None]], Any]
    later: Callable[[float, Callable[[], None]], Any]
    call: Callable[[Callable[[], None]], Any]
    seconds: Callable[[], float]
    now_ns: Callable[[], int]


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of topic delivery."""

    buffer_bytes: int = 2 << 20
    """Send buffer of one subscriber, in bytes. Beyond it the subscriber lags, and catches up from the log."""
    max_buffer_bytes: int = 64 << 20
    """Upper bound of ``buffer_bytes``. A connection with more unsent bytes than this is closed."""
    commit_bytes: int = 512 << 10
    """Payload bytes in one commit. Larger commits add latency and save nothing."""
    workers: int = 2
    pacing: CatchupPacing = DEFAULT_PACING
    """Pacing of the workers. ``stall_seconds`` also bounds the wait for a connection to detach."""
    masked: tuple[str, ...] = MASKED
    """Topics that have a bit in masks: 1, 2, 4 …"""
    retention: Retention = DEFAULT_RETENTION
    retention_seconds: float = 30.0
    """Interval in seconds between two runs of retention."""
    cursor_seconds: float = WEEK_SECONDS
    """Time in seconds after which the cursor of an absent durable subscriber no longer holds records in the log."""
    lag_limit: int = 1000
    """Lag of a subscriber in records above which an alarm is raised; 0 is no alarm."""
    publisher_id: int = 1000
    publisher_name: str = "yirangmq"
