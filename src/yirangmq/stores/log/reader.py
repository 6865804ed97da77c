"""Topic log reader: by sequence or time, as records, as frames, or as ranges of files.

``SegmentReader`` reads the segments of a ``SegmentSource``, which is the log itself or a read-only view. Readers share
no descriptors. If a file was retired or recycled meanwhile, the reader refreshes its source and retries; the 5th
failure in a row is an error."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeVar

from yirangmq.core.errors import BadInput, Retired, StoreDamaged
from yirangmq.core.topics import FileRange, Gap, LogSplitPoint, Record, RecordFrames, TopicPredicate, TopicState
from yirangmq.stores.log import segment_format as scan
from yirangmq.stores.log.segment import (
    Chain,
    LogSegment,
    SegmentGone,
    WantedShare,
    cached_filter,
    check_walk_complete,
    decoded,
    find,
    gaps,
    offsets,
    places,
    sequence_at,
    split_piece,
    state_after,
    state_at,
    state_before,
    state_up_to,
    wanted_share,
)
from yirangmq.stores.log.segment_format import TopicNumbers
from yirangmq.wire import records

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


class _Span(NamedTuple):
    """Part of an open segment that is in a range. ``matches`` is the filter of encoded topic names; None if all records
    match."""

    segment: LogSegment
    fd: int
    begin: int
    end: int
    matches: Callable[[bytes], bool] | None


class _FrameBatch:
    """Frames of matching records until there are enough to yield. ``passed``: bytes of the frames skipped meanwhile."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []
        self.held = self.passed = self.first = self.last = 0

    def take(self, reached: int) -> RecordFrames:
        """Remove and return the frames; ``reached`` is the last sequence of the walk. The result may be empty: it then
        reports progress."""
        last = self.last if self.parts else reached
        found = RecordFrames(b"".join(self.parts), self.first or reached, last, len(self.parts))
        self.parts.clear()
        self.held = self.passed = self.first = 0
        return found

    def rest(self) -> Iterator[RecordFrames]:
        if self.parts:
            yield self.take(self.last)


def _ranges(span: _Span, start: int, stop: int, size: int | None) -> Iterator[FileRange]:
    """Yield a part of a segment as ranges of its file of about ``size`` bytes. Only the index is read."""
    segment, fd, begin, end, _ = span
    last = min(stop - 1, segment.tail.last)
    return split_piece(segment, FileRange(fd, begin, end - begin, max(start, segment.first), last), size)


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
        return self._frames(*self._span(start, stop), wanted, size)

    def pieces(self, start: int, stop: int | None = None, size: int | None = None) -> Iterator[FileRange]:
        return self._pieces(*self._span(start, stop), size)

    def parts(
        self, start: int, stop: int | None = None, wanted: TopicPredicate | None = None, size: int | None = None
    ) -> Iterator[FileRange | RecordFrames]:
        return self._parts(*self._span(start, stop), wanted, size)

    def _span(self, start: int, stop: int | None) -> tuple[int, int]:
        first, last = self.first, self.last
        if start < 1 or start > last + 1:
            raise BadInput(f"must be from 1 to {last + 1}, not {start}", field="start")
        if start < first:
            raise _retired(start, first)
        return start, last + 1 if stop is None else max(start, min(stop, last + 1))

    def _records(self, start: int, stop: int, wanted: TopicPredicate | None) -> Iterator[Record]:
        for segment, fd, begin, end, matches in self._spans(start, stop, wanted):
            for step in scan.walk(fd, begin, end):
                begin = step.offset + step.head.size
                if matches is None or matches(records.topic_at(step.data, step.at, step.head)):
                    yield decoded(segment, step)
            check_walk_complete(segment, begin, end)

    def _frames(self, start: int, stop: int, wanted: TopicPredicate | None, size: int) -> Iterator[RecordFrames]:
        batch = _FrameBatch()
        for span in self._spans(start, stop, wanted):
            yield from self._walked(span, batch, size)
        yield from batch.rest()

    def _pieces(self, start: int, stop: int, size: int | None) -> Iterator[FileRange]:
        for span in self._spans(start, stop, None):
            yield from _ranges(span, start, stop, size)

    def _parts(
        self, start: int, stop: int, wanted: TopicPredicate | None, size: int | None
    ) -> Iterator[FileRange | RecordFrames]:
        batch = _FrameBatch()
        for span in self._spans(start, stop, wanted):
            if span.matches is None:
                yield from batch.rest()
                yield from _ranges(span, start, stop, size)
            else:
                yield from self._walked(span, batch, BATCH_BYTES)
        yield from batch.rest()

    def _walked(self, span: "_Span", batch: "_FrameBatch", size: int) -> Iterator[RecordFrames]:
        """Walk over the frames of a segment and yield the matching ones, about ``size`` bytes at a time."""
        segment, fd, begin, end, matches = span
        for offset, head, data, at in scan.walk(fd, begin, end):
            begin = offset + head.size
            if matches is None or matches(records.topic_at(data, at, head)):
                batch.first, batch.last = batch.first or head.sequence, head.sequence
                batch.parts.append(data[at : at + head.size])
                batch.held += head.size
            else:
                batch.passed += head.size
            if batch.held >= size or batch.passed >= MAX_SKIPPED_BYTES:
                yield batch.take(head.sequence)
        check_walk_complete(segment, begin, end)

    # -- segments -------------------------------------------------------------------------------------------------

    def _spans(self, start: int, stop: int, wanted: TopicPredicate | None) -> Iterator["_Span"]:
        """Yield the part of each segment that is in the range, with an open descriptor. Segments without a matching
        record are skipped."""
        matches, share = cached_filter(wanted), WantedShare.ALL
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
                    if wanted is not None:
                        share = wanted_share(segment, fd, stop, wanted)
                    if share is not WantedShare.NONE:
                        is_all = share is WantedShare.ALL
                        yield _Span(segment, fd, *offsets(segment, fd, start, stop), None if is_all else matches)
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
