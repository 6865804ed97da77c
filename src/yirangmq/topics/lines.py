"""What a feed needs from whoever holds a client's connection, and from the protocol spoken on it.

Knows: values and ports. Does not know: sockets, loops, frames."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from yirangmq.core.errors import QueueError
from yirangmq.core.topics import Gap


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
