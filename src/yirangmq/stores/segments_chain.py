"""The segments of a log, in order. Knows: where each begins and ends, and what is missing between them.
Does not know: how they came to be. A chain is replaced, never changed: whoever holds one may go on with it."""

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, takewhile
from typing import NamedTuple

from yirangmq.core.errors import StoreDamaged
from yirangmq.core.topics import Gap, Trimmed
from yirangmq.fsio.lock import try_lock
from yirangmq.stores import segments_scan as scan
from yirangmq.stores.segments_layout import Head, Seal, Summary


class Tail(NamedTuple):
    """How far a segment goes: one value, so that a reader sees all of it or none."""

    last: int
    end: int
    first_ns: int
    last_ns: int


class Gone(Exception):
    """The file is no longer the one this segment was in: retired, used again, or made anew from what was left of it."""


class Segment:
    """``sums`` is known of a segment in use, or while its seal is still to be written."""

    __slots__ = ("head", "path", "seal", "sums", "tail")

    def __init__(self, path: str, head: Head, *, seal: Seal | None = None, sums: scan.Sums | None = None) -> None:
        self.path = path
        self.head = head
        self.seal = seal
        self.sums = sums
        self.tail = Tail(head.first - 1, head.begin, 0, 0)
        if seal is not None:
            self.tail = Tail(seal.last, seal.end, seal.first_ns, seal.last_ns)
        elif sums is not None:
            self.confirm()

    @property
    def first(self) -> int:
        return self.head.first

    @property
    def size(self) -> int:
        """Bytes of its records."""
        return self.tail.end - self.head.begin

    @property
    def own_sums(self) -> scan.Sums:
        """Of a segment in use."""
        if self.sums is None:
            raise StoreDamaged(f"{self.path} is sealed and takes no more")
        return self.sums

    def confirm(self) -> None:
        """Everything added up so far may be read."""
        if self.sums is not None:
            self.tail = Tail(self.sums.last, self.sums.end, self.sums.first_ns, self.sums.last_ns)

    def summary(self, fd: int) -> Summary:
        """Its index; made anew where it cannot be read."""
        if self.sums is not None:
            return self.sums.summary()
        try:
            if self.seal is not None:
                return scan.summary_of(fd, self.seal)
        except StoreDamaged:
            pass
        sums = scan.Sums(self.first, self.head.begin, scan.state_of(fd, self.head))
        scan.add_sound(sums, fd, self.tail.end, self.tail.last)
        return sums.summary()

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor for reading. While it is open the file is not used again for other records."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Gone from None
        try:
            self._hold(fd)
            yield fd
        finally:
            os.close(fd)

    def _hold(self, fd: int) -> None:
        try:
            if not try_lock(fd, shared=True) or scan.head_of(fd) != self.head:
                raise Gone
        except StoreDamaged:
            raise Gone from None


Chain = Sequence[Segment]


def find(chain: Chain, sequence: int) -> Segment | None:
    """The segment that holds the sequence, or the first one after the gap in which it lies; None: past the end."""
    place = max(bisect_right(chain, sequence, key=_first) - 1, 0)
    for segment in chain[place:]:
        if segment.tail.last >= sequence:
            return segment
    return None


def gaps(chain: Chain) -> list[Gap]:
    return [
        Gap(before.tail.last + 1, after.first - 1)
        for before, after in pairwise(chain)
        if after.first > before.tail.last + 1
    ]


def _first(segment: Segment) -> int:
    return segment.first


def to_be_trimmed(chain: Chain, before: int) -> Trimmed:
    """What giving up everything before a sequence would take away: whole segments, and no empty one."""
    going = list(takewhile(lambda segment: segment.first <= segment.tail.last < before, chain))
    first = chain[len(going)].first if len(going) < len(chain) else chain[-1].tail.last + 1
    return Trimmed(len(going), sum(segment.size for segment in going), first)
