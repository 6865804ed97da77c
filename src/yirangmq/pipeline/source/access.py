"""What a way to the log must offer: its files on this machine (``segments``), or a server (``broker``)."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from yirangmq.pipeline.source.frames import Run


class Info(NamedTuple):
    """Where the log stands. Another epoch is another log: no sequence of the old one means anything in it."""

    epoch: str
    first: int
    last: int


class Place(NamedTuple):
    """A sequence, and how many bytes of frames lie before it in the log, more or less."""

    sequence: int
    size: int


class LogAccess(Protocol):
    def info(self) -> Info: ...

    def topics(self) -> list[str]:
        """Every topic that ever had a record."""

    def sequence_at(self, at_ms: int) -> int:
        """The first from that time on; ``last + 1`` if there is none."""

    def places(self, after: int, last: int) -> list[Place]:
        """Some sequences between, with sizes, to split the range by."""

    def hints(self, after: int, last: int) -> Sequence[Any]:
        """What spares a task the search for its range; plain values."""

    def runs(self, after: int, last: int, hints: Sequence[Any] = ()) -> Iterator[Run]:
        """The records of (after, last] in order; a few around them may come with them. ``Retired`` if the next one is
        gone; gaps are passed over, whoever reads sees them by the numbers. A run is good until the next one is asked
        for: they share their memory."""

    def close(self) -> None: ...
