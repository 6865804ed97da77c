"""Ports of topic delivery: client connection, catch-up outlet, dialect and loop; and its settings.

A connection is the sending side of one client. During a catch-up a worker has its outlet, and the connection's own
messages wait for the end of a frame. A dialect is how a protocol writes records and control messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from yirangmq.core.errors import QueueError
from yirangmq.core.topics import Gap, Retention

# -- connections -------------------------------------------------------------------------------------------------------


class Outlet(Protocol):
    """The way out to one client, in the hands of a recovery worker. ``BlockingIOError``: not now; any other
    ``OSError``: the client is gone."""

    def fileno(self) -> int:
        """To be polled for writing; -1: ``wake`` is called instead when it can take more."""

    def send(self, data: memoryview) -> int:
        """How many bytes were taken."""

    def send_file(self, file: int, offset: int, count: int) -> int:
        """The same straight from a file; 0: the file ends there."""

    def close(self) -> None: ...


Take = Callable[[Outlet], None]


class Line(Protocol):
    """The sending side of one client's connection. Everything here is called on the loop's thread."""

    @property
    def peer(self) -> str:
        """Who is at the other end, for people."""

    def send(self, data: bytes) -> None:
        """In order, as soon as this turn is over. While the line is lent: when a whole frame has ended there."""

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more can wait for the client without filling its buffer."""

    def lend(self, take: Take, wake: Callable[[], None]) -> None:
        """Call ``take`` once everything sent is out; nothing else is sent until ``give_back``. If the connection is
        lost before, ``take`` is never called."""

    def owed(self) -> bytes:
        """What was to be sent while the line is lent, taken away by the one who has it, on any thread."""

    def give_back(self) -> None: ...

    def fail(self, error: QueueError) -> None:
        """Tell the client why, and close."""

    def cut(self, reason: str) -> None:
        """Close at once; no reason: it is gone by itself."""


# -- dialects ----------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Stored frames in a row, and how many records they are."""

    data: bytes
    records: int


class Subscribed(NamedTuple):
    """What a subscriber is told first."""

    epoch: str
    next: int
    first: int
    last: int
    gaps: Sequence[Gap]
    resumed: bool


class Recovering(NamedTuple):
    """What a subscriber is told before history; ``total`` is None if nobody has counted."""

    start: int
    end: int
    total: int | None
    gaps: Sequence[Gap]


class Dialect(Protocol):
    """How a feed speaks to a subscriber. Hashable; one that has no words for something says nothing: ``b""``."""

    sends_stored: bool
    """Stored frames are sent as they lie, without a look at them."""
    needs_count: bool
    """It has no words for a recovery of which nobody has counted the records."""

    def subscribed(self, request: int, about: Subscribed) -> bytes: ...

    def recovering(self, request: int, about: Recovering) -> bytes: ...

    def complete(self, request: int, sequence: int, sent: int, at_ns: int) -> bytes: ...

    def progress(self, sequence: int, sent: int, last: int, at_ns: int) -> bytes: ...

    def records(self, batch: Batch) -> bytes:
        """Stored frames in the words of this dialect."""


# -- loop and settings -------------------------------------------------------------------------------------------------

MOST_PER_PUBLISH = 10_000
MASKED = ("TOPIC1", "TOPIC2", "MISC")
WEEK_SECONDS = 7 * 86400.0
KEEP_A_WEEK = Retention(round(WEEK_SECONDS * 1e9))


class Pace(NamedTuple):
    """Of recoveries. ``budget``: bytes for one client before the next one has its turn. ``stall_seconds``: a client
    that takes nothing for so long is given up. Not ``threaded``: somebody else calls ``turn``.
    ``beside_live``: bytes a second of all
    recoveries together while live records pass; 0: no limit."""

    budget: int = 1 << 20
    stall_seconds: float = 600.0
    threaded: bool = True
    beside_live: int = 300_000_000


USUAL_PACE = Pace()


@dataclass(frozen=True, slots=True)
class Loop:
    """``soon``: when the current turn is over. ``later``: after some seconds. ``call``: the same as ``soon``, from any
    thread. ``seconds`` only grow; ``now_ns``: since 1970."""

    soon: Callable[[Callable[[], None]], Any]
    later: Callable[[float, Callable[[], None]], Any]
    call: Callable[[Callable[[], None]], Any]
    seconds: Callable[[], float]
    now_ns: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Settings:
    buffer_bytes: int = 2 << 20
    """Bytes waiting for one subscriber past which it is sent the rest from the log."""
    most_buffer_bytes: int = 64 << 20
    """What that may be set to: a connection with more than this waiting for it is closed."""
    commit_bytes: int = 512 << 10
    """Payload bytes in one commit; past this it only gets later, not cheaper."""
    workers: int = 2
    pace: Pace = USUAL_PACE
    """Of the workers. Its ``stall_seconds`` also hold for one that must read before it is handed to a worker."""
    masked: tuple[str, ...] = MASKED
    """Topics that have a bit in masks: 1, 2, 4 …"""
    retention: Retention = KEEP_A_WEEK
    retention_seconds: float = 30.0
    """How often the log is trimmed."""
    cursor_seconds: float = WEEK_SECONDS
    """A durable subscriber that was not heard of for so long holds the log back no longer."""
    lag_limit: int = 1000
    """Records a subscriber may be behind before somebody should look; 0: never."""
    publisher_id: int = 1000
    publisher_name: str = "yirangmq"
