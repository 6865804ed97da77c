"""Topic log reader, with the segments and the chain of segments it reads.

``LogSegment`` is one file and the part of it that may be read. While a reader has the file open, a shared ``flock``
keeps it from being recycled. A chain is an immutable ordered sequence of segments. The log replaces it as a whole, so a
reader may continue to use an old one.

``SegmentReader`` reads by sequence or time, as records, as frames, or as pieces of files. Its ``SegmentSource`` is the
log itself or a read-only view. Readers share no descriptors. If a file was retired or recycled meanwhile, the reader
refreshes its source and retries; the 5th failure in a row is an error."""

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, takewhile
from typing import NamedTuple, Protocol, TypeVar

from yirangmq.core.errors import BadInput, Retired, StoreDamaged
from yirangmq.core.topics import (
    FileRange,
    Gap,
    LogSplitPoint,
    Record,
    RecordFrames,
    TopicPredicate,
    TopicState,
    TrimResult,
)
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


def has_wanted_record(segment: LogSegment, fd: int, wanted: TopicPredicate) -> bool:
    """Check by the index whether the segment has a record of a wanted topic."""
    state = segment.summary(fd).state
    return any(topic.sequence >= segment.first and wanted(name) for name, topic in list(state.items()))


def state_before(segment: LogSegment, fd: int) -> State:
    return scan.state_of(fd, segment.head)


def state_after(segment: LogSegment, fd: int) -> State:
    return dict(segment.summary(fd).state)


def state_at(segment: LogSegment, fd: int, sequence: int) -> State:
    """Return the numbers of each topic before the record with that sequence."""
    state = scan.state_of(fd, segment.head)
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


# -- reader ------------------------------------------------------------------------------------------------------------

BATCH_BYTES = 1 << 18
"""Batch size in bytes when frames are filtered by topic: 256 KiB."""
MAX_SKIPPED_BYTES = 8 << 20
"""Bytes of skipped records after which an empty batch is yielded to report progress: 8 MiB."""
MAX_TRIES = 5
"""Attempts to open a segment while files are retired or recycled at the same time."""
T = TypeVar("T")
NOTHING = TopicNumbers(0, 0, 0, 0)


class SegmentSource(Protocol):
    """Source of segments for a reader: the log itself, or a read-only view of its folder."""

    @property
    def epoch(self) -> str: ...

    @property
    def chain(self) -> Chain: ...

    def refresh(self, *, reload: bool = False) -> None:
        """Find new records and segments. ``reload``: also check whether known segments were replaced."""


class SegmentReader:
    """Log reader (``core.topics.LogReader``) over the segments of a source. For one thread at a time."""

    def __init__(self, source: SegmentSource) -> None:
        self._source = source

    @property
    def epoch(self) -> str:
        return self._source.epoch

    @property
    def first(self) -> int:
        return self._source.chain[0].first

    @property
    def last(self) -> int:
        return self._source.chain[-1].tail.last

    def refresh(self) -> int:
        self._source.refresh()
        return self.last

    def gaps(self) -> Sequence[Gap]:
        return gaps(self._source.chain)

    def close(self) -> None:
        """Do nothing: only a running iterator holds a descriptor."""

    # -- counts and positions -------------------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicState]:
        before = self._read(self._oldest, state_before)
        after = self._read(self._newest, state_after)
        lost = self._lost_numbers()
        found = {}
        for name, (number, sequence, at_ns, size) in after.items():
            old = before.get(name, NOTHING)
            records = number - old.topic_sequence - lost[name]
            found[name] = TopicState(number, sequence, at_ns, records, size - old.size)
        return found

    def _lost_numbers(self) -> Counter[str]:
        """Count the topic sequences inside gaps, by topic. Reads two segments for each gap."""
        found: Counter[str] = Counter()
        for before, after in pairwise(self._source.chain):
            if after.first == before.tail.last + 1:
                continue
            try:
                with before.opened() as fd:
                    ended = state_after(before, fd)
                with after.opened() as fd:
                    begun = state_before(after, fd)
            except SegmentGone:  # retired meanwhile, and the gap with it
                continue
            for name, topic in begun.items():
                found[name] += topic.topic_sequence - ended.get(name, NOTHING).topic_sequence
        return found

    def sequence_at(self, at_ns: int) -> int:
        for segment in self._source.chain:
            if segment.tail.last >= segment.first and segment.tail.last_ns >= at_ns:
                found = self._read(partial(self._at, segment.first), partial(sequence_at, at_ns=at_ns))
                if found is not None:
                    return found
        return self.last + 1

    def count(self, start: int, stop: int | None = None, wanted: TopicPredicate | None = None) -> int:
        """Return how many records ``records`` would yield."""
        start, stop = self._span(start, stop)
        lost = [gap for gap in self.gaps() if gap.first < stop and gap.last >= start]
        if wanted is None:
            return stop - start - sum(min(gap.last + 1, stop) - max(gap.first, start) for gap in lost)
        edges = [start, *(edge for gap in lost for edge in (gap.first, gap.last + 1)), stop]
        spans = [(low, high) for low, high in list(pairwise(edges))[::2] if low < high]
        return sum(self._numbers(high - 1, wanted) - self._numbers(low, wanted, before=True) for low, high in spans)

    def places(self, start: int, stop: int | None = None, most: int = 10_000) -> list[LogSplitPoint]:
        """Return at most ``most`` positions at which the range can be split, at about equal distances in bytes."""
        start, stop = self._span(start, stop)
        chain = self._source.chain
        within = [segment for segment in chain if segment.tail.last >= start and segment.first < stop]
        total = sum(segment.size for segment in within)
        step = 0 if total // scan.MARK_EVERY + len(within) <= most else total // max(most - 1, 1)
        before = sum(segment.size for segment in chain if segment.tail.last < start)
        found: list[LogSplitPoint] = []
        for segment in within:
            marks = [LogSplitPoint(segment.first, 0)]
            if segment.size > step:
                marks = self._read(partial(self._at, segment.first), places)
            for sequence, size in marks:
                is_far = not found or before + size >= found[-1].size + step
                if start <= sequence < stop and is_far and len(found) < most:
                    found.append(LogSplitPoint(sequence, before + size))
            before += segment.size
        return found

    def _numbers(self, sequence: int, wanted: TopicPredicate, *, before: bool = False) -> int:
        """Return the sum of the wanted topics' sequences after the record with this sequence, or before it.

        The segment of the record is read: the numbers of another one may be those on the other side of a gap."""
        work = partial(state_at, sequence=sequence) if before else partial(state_up_to, sequence=sequence)
        state = self._read(partial(self._at, sequence), work)
        return sum(topic.topic_sequence for name, topic in state.items() if wanted(name))

    # -- records --------------------------------------------------------------------------------------------------

    def records(self, start: int, stop: int | None = None, wanted: TopicPredicate | None = None) -> Iterator[Record]:
        return self._records(*self._span(start, stop), wanted)

    def frames(
        self, start: int, stop: int | None = None, wanted: TopicPredicate | None = None, size: int = BATCH_BYTES
    ) -> Iterator[RecordFrames]:
        """Yield the records as stored frames, about ``size`` bytes at a time. Checksums are not verified."""
        return self._frames(*self._span(start, stop), wanted, size)

    def pieces(
        self, start: int, stop: int | None = None, wanted: TopicPredicate | None = None, size: int | None = None
    ) -> Iterator[FileRange]:
        return self._pieces(*self._span(start, stop), wanted, size)

    def _span(self, start: int, stop: int | None) -> tuple[int, int]:
        first, last = self.first, self.last
        if start < 1 or start > last + 1:
            raise BadInput(f"must be from 1 to {last + 1}, not {start}", field="start")
        if start < first:
            raise _retired(start, first)
        return start, last + 1 if stop is None else max(start, min(stop, last + 1))

    def _records(self, start: int, stop: int, wanted: TopicPredicate | None) -> Iterator[Record]:
        is_wanted = cached_filter(wanted)
        for segment, fd, begin, end in self._spans(start, stop, wanted):
            for step in scan.walk(fd, begin, end):
                begin = step.offset + step.head.size
                if is_wanted is None or is_wanted(records.topic_at(step.data, step.at, step.head)):
                    yield decoded(segment, step)
            check_walk_complete(segment, begin, end)

    def _frames(self, start: int, stop: int, wanted: TopicPredicate | None, size: int) -> Iterator[RecordFrames]:
        parts: list[memoryview] = []
        held = passed = first = last = 0
        is_wanted = cached_filter(wanted)
        for segment, fd, begin, end in self._spans(start, stop, wanted):
            for offset, head, data, at in scan.walk(fd, begin, end):
                begin = offset + head.size
                if is_wanted is None or is_wanted(records.topic_at(data, at, head)):
                    first, last = first or head.sequence, head.sequence
                    parts.append(data[at : at + head.size])
                    held += head.size
                else:
                    passed += head.size
                if held >= size or passed >= MAX_SKIPPED_BYTES:
                    yield RecordFrames(
                        b"".join(parts), first or head.sequence, last if parts else head.sequence, len(parts)
                    )
                    parts.clear()
                    held = passed = first = 0
            check_walk_complete(segment, begin, end)
        if parts:
            yield RecordFrames(b"".join(parts), first, last, len(parts))

    def _pieces(self, start: int, stop: int, wanted: TopicPredicate | None, size: int | None) -> Iterator[FileRange]:
        is_wanted = cached_filter(wanted)
        for segment, fd, begin, end in self._spans(start, stop, wanted):
            if is_wanted is None:
                whole = FileRange(fd, begin, end - begin, max(start, segment.first), min(stop - 1, segment.tail.last))
                yield from split_piece(segment, whole, size)
                continue
            first = last = length = 0
            for offset, head, data, at in scan.walk(fd, begin, end):
                begin = offset + head.size
                if is_wanted(records.topic_at(data, at, head)):
                    first, last = first or head.sequence, head.sequence
                    length += head.size
                elif length:
                    yield FileRange(fd, offset - length, length, first, last)
                    first = length = 0
                if length >= BATCH_BYTES:
                    yield FileRange(fd, begin - length, length, first, last)
                    first = length = 0
            check_walk_complete(segment, begin, end)
            if length:
                yield FileRange(fd, begin - length, length, first, last)

    # -- segments -------------------------------------------------------------------------------------------------

    def _spans(
        self, start: int, stop: int, wanted: TopicPredicate | None = None
    ) -> Iterator[tuple[LogSegment, int, int, int]]:
        """Yield each segment of the range with an open descriptor and the byte range inside it."""
        tries = 0
        while start < stop:
            segment = find(self._source.chain, start)
            if start < self.first:  # also if no record of the range is left
                raise _retired(start, self.first)
            if segment is None or segment.first >= stop:
                return
            try:
                with segment.opened() as fd:
                    after = segment.tail.last + 1
                    if wanted is None or has_wanted_record(segment, fd, wanted):
                        yield segment, fd, *offsets(segment, fd, start, stop)
                    start, tries = after, 0
            except SegmentGone:
                tries += 1
                self._refresh_after_loss(start, tries)

    def _read(self, choose: Callable[[], LogSegment], work: Callable[[LogSegment, int], T]) -> T:
        tries = 0
        while True:
            segment = choose()
            try:
                with segment.opened() as fd:
                    return work(segment, fd)
            except SegmentGone:
                tries += 1
                self._refresh_after_loss(self.first, tries)

    def _oldest(self) -> LogSegment:
        return self._source.chain[0]

    def _newest(self) -> LogSegment:
        return self._source.chain[-1]

    def _at(self, sequence: int) -> LogSegment:
        segment = find(self._source.chain, sequence)
        if segment is None or sequence < self.first:
            raise _retired(sequence, self.first)
        return segment

    def _refresh_after_loss(self, start: int, tries: int) -> None:
        """Refresh the source after ``SegmentGone``.

        Raises ``Retired`` if the records were retired, and ``StoreDamaged`` after ``MAX_TRIES`` attempts."""
        self._source.refresh(reload=True)
        if start < self.first:
            raise _retired(start, self.first)
        if tries == MAX_TRIES:
            raise StoreDamaged(f"the segment with sequence {start} is not there any more")


def _retired(asked: int, first: int) -> Retired:
    text = f"sequence {asked} is no longer kept; the log begins at {first}"
    return Retired(text, field="start", asked=asked, first=first)
