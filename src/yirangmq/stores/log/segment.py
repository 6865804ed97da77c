"""Segments of the topic log, the chain of segments, and queries on an open segment.

``LogSegment`` is one file and the part of it that may be read. While a reader has the file open, a shared ``flock``
keeps it from being recycled. A chain is an immutable ordered sequence of segments. The log replaces it as a whole, so a
reader may continue to use an old one."""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import pairwise, takewhile
from typing import NamedTuple

from yirangmq.core.errors import BadInput, StoreDamaged
from yirangmq.core.topics import FileRange, Gap, LogSplitPoint, Record, TopicPredicate, TrimResult
from yirangmq.fsio.lock import try_lock
from yirangmq.stores.log import segment_format as scan
from yirangmq.stores.log.segment_format import Head, Seal, SegmentSummary, State, TopicNumbers
from yirangmq.wire import records

# -- segment -----------------------------------------------------------------------------------------------------------


class SegmentTail(NamedTuple):
    """Readable extent of a segment. It is replaced as one value, so a reader on another thread never sees a mix."""

    last: int
    end: int
    first_ns: int
    last_ns: int


class SegmentGone(Exception):
    """The file no longer holds this segment: it was retired, recycled, or replaced by a repair."""


class LogSegment:
    """One segment file of the topic log. ``sums`` is set while the segment is not sealed."""

    __slots__ = ("head", "path", "seal", "sums", "tail")

    def __init__(
        self, path: str, head: Head, *, seal: Seal | None = None, sums: scan.SegmentSums | None = None
    ) -> None:
        self.path = path
        self.head = head
        self.seal = seal
        self.sums = sums
        self.tail = SegmentTail(head.first - 1, head.begin, 0, 0)
        if seal is not None:
            self.tail = SegmentTail(seal.last, seal.end, seal.first_ns, seal.last_ns)
        elif sums is not None:
            self.confirm()

    @property
    def first(self) -> int:
        return self.head.first

    @property
    def size(self) -> int:
        """Size of its records in bytes."""
        return self.tail.end - self.head.begin

    @property
    def own_sums(self) -> scan.SegmentSums:
        """The running sums of a segment that is not sealed. Raises ``StoreDamaged`` if it is."""
        if self.sums is None:
            raise StoreDamaged(f"{self.path} is sealed and takes no more")
        return self.sums

    def confirm(self) -> None:
        """Make all records counted in ``sums`` visible to readers."""
        if self.sums is not None:
            self.tail = SegmentTail(self.sums.last, self.sums.end, self.sums.first_ns, self.sums.last_ns)

    def summary(self, fd: int) -> SegmentSummary:
        """Return its index, rebuilt by a scan if the stored one cannot be read."""
        if self.sums is not None:
            return self.sums.summary()
        try:
            if self.seal is not None:
                return scan.summary_of(fd, self.seal)
        except StoreDamaged:
            pass
        sums = scan.SegmentSums(self.first, self.head.begin, scan.state_of(fd, self.head))
        scan.add_sound(sums, fd, self.tail.end, self.tail.last)
        return sums.summary()

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the file for reading. While it is open, a shared lock keeps it from being recycled. Raises
        ``SegmentGone``."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SegmentGone from None
        try:
            self._hold(fd)
            yield fd
        finally:
            os.close(fd)

    def _hold(self, fd: int) -> None:
        try:
            if not try_lock(fd, shared=True) or scan.head_of(fd) != self.head:
                raise SegmentGone
        except StoreDamaged:
            raise SegmentGone from None


# -- chain of segments -------------------------------------------------------------------------------------------------

Chain = Sequence[LogSegment]


def find(chain: Chain, sequence: int) -> LogSegment | None:
    """Return the segment that holds the sequence, or the next one if the sequence is in a gap.

    Return None if it is after the last record."""
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


def _first(segment: LogSegment) -> int:
    return segment.first


def oldest_within(chain: Chain, size: int) -> int:
    """Return the first sequence of the fewest newest segments that together have at least ``size`` bytes."""
    for segment in reversed(chain):
        size -= segment.size
        if size <= 0:
            return segment.first
    return chain[0].first


def plan_trim(chain: Chain, before: int) -> TrimResult:
    """Return the result of a trim before a sequence: it removes whole segments, and no empty one."""
    going = list(takewhile(lambda segment: segment.first <= segment.tail.last < before, chain))
    first = chain[len(going)].first if len(going) < len(chain) else chain[-1].tail.last + 1
    return TrimResult(len(going), sum(segment.size for segment in going), first)


# -- queries on an open segment ----------------------------------------------------------------------------------------


def offsets(segment: LogSegment, fd: int, start: int, stop: int) -> tuple[int, int]:
    """Return the byte range of the records from ``start`` to ``stop`` (exclusive)."""
    tail = segment.tail
    begin, end = segment.head.begin, tail.end
    if start <= segment.first and stop > tail.last:
        return begin, end
    try:
        marks = segment.summary(fd).marks
        low = begin if start <= segment.first else scan.offset_of(fd, marks, start, begin, end)
        return low, end if stop > tail.last else scan.offset_of(fd, marks, stop, begin, end)
    except StoreDamaged as error:
        raise StoreDamaged(f"{segment.path}: {error}") from None


def split_piece(segment: LogSegment, whole: FileRange, size: int | None) -> Iterator[FileRange]:
    """Split a piece at index marks. Each part has whole frames and at least ``size`` bytes, except the last.

    ``size`` None: do not split."""
    fd, begin, length, first, last = whole
    end = begin + length
    if size is not None and length > size:
        for mark in list(segment.summary(fd).marks):
            if begin + size <= mark.offset < end:
                yield FileRange(fd, begin, mark.offset - begin, first, mark.sequence - 1)
                begin, first = mark.offset, mark.sequence
    yield FileRange(fd, begin, end - begin, first, last)


class WantedShare(Enum):
    """Which records of a segment a filter of topics matches."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


def wanted_share(segment: LogSegment, fd: int, stop: int, wanted: TopicPredicate) -> WantedShare:
    """Return by the index alone which records before ``stop`` the filter matches.

    ``ALL`` requires an index of all these records. That of a damaged segment, rebuilt by a scan, may end before
    them."""
    topics = list(segment.summary(fd).state.items())
    answers = [(wanted(name), topic.sequence) for name, topic in topics if topic.sequence >= segment.first]
    if not any(is_wanted for is_wanted, _ in answers):
        return WantedShare.NONE
    is_indexed = max(sequence for _, sequence in answers) >= min(stop - 1, segment.tail.last)
    is_all = is_indexed and all(is_wanted for is_wanted, _ in answers)
    return WantedShare.ALL if is_all else WantedShare.SOME


def state_before(segment: LogSegment, fd: int) -> State:
    return scan.state_of(fd, segment.head)


def state_after(segment: LogSegment, fd: int) -> State:
    return dict(segment.summary(fd).state)


def state_at(segment: LogSegment, fd: int, sequence: int) -> State:
    """Return the numbers of each topic before the record with that sequence."""
    state = scan.state_of(fd, segment.head)
    if sequence <= segment.first:
        return state
    for step in scan.walk(fd, segment.head.begin, segment.tail.end):
        head = step.head
        if head.sequence >= sequence:
            break
        name = str(records.topic_at(step.data, step.at, head), "utf-8", "replace")
        state[name] = TopicNumbers(head.topic_sequence, head.sequence, head.at_ns, 0)
    return state


def state_up_to(segment: LogSegment, fd: int, sequence: int) -> State:
    """Return the numbers of each topic after the record with that sequence."""
    if segment.tail.last == sequence:
        state = state_after(segment, fd)
        if all(topic.sequence <= sequence for topic in state.values()):  # else records were appended meanwhile
            return state
    return state_at(segment, fd, sequence + 1)


def sequence_at(segment: LogSegment, fd: int, at_ns: int) -> int | None:
    return scan.sequence_at(fd, segment.summary(fd).marks, at_ns, segment.head.begin, segment.tail.end)


def places(segment: LogSegment, fd: int) -> list[LogSplitPoint]:
    """Return the index marks of the segment, each with the record bytes before it."""
    return [LogSplitPoint(mark.sequence, mark.offset - segment.head.begin) for mark in list(segment.summary(fd).marks)]


def cached_filter(wanted: TopicPredicate | None) -> Callable[[bytes], bool] | None:
    """Adapt a topic filter to encoded names, and cache its result per name."""
    if wanted is None:
        return None
    known: dict[bytes, bool] = {}

    def matches(name: bytes) -> bool:
        answer = known.get(name)
        if answer is None:
            answer = known[name] = wanted(str(name, "utf-8", "replace"))
        return answer

    return matches


def decoded(segment: LogSegment, step: scan.FrameStep) -> Record:
    try:
        return records.decode(step.data, step.at, step.head)
    except (BadInput, StoreDamaged) as error:
        raise StoreDamaged(f"{segment.path}: {error}") from None


def check_walk_complete(segment: LogSegment, reached: int, end: int) -> None:
    """Raise ``StoreDamaged`` if a walk stopped before ``end``: it stops early only at a damaged frame."""
    if reached != end:
        raise StoreDamaged(
            f"{segment.path}: the frame at byte {reached} cannot be read; 'yirangmq log check' says more"
        )
