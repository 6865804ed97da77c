"""Reads a log: by sequence, by time, as records, as frames, as pieces of files. Knows: a source of segments.
Does not know: who writes them. Every reader has descriptors of its own and moves nobody's position."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeVar

from yirangmq.core.errors import BadInput, Retired, StoreDamaged
from yirangmq.core.topics import Frames, Gap, Piece, Place, Record, TopicState, Wanted
from yirangmq.stores import segments_pick as pick
from yirangmq.stores import segments_scan as scan
from yirangmq.stores.segments_chain import Chain, Gone, Segment, find, gaps
from yirangmq.stores.segments_layout import Topic
from yirangmq.wire import records

ENOUGH = 1 << 18
"""Bytes of frames handed over at once where they are picked by topic."""
LONG_WAY = 8 << 20
"""Bytes of unwanted records after which a sign of life is given."""
TRIES = 5
"""How often to look anew where files vanish while they are being opened."""
T = TypeVar("T")
NOTHING = Topic(0, 0, 0, 0)


class Source(Protocol):
    """Where a reader has its segments from: the log itself, or a view of its folder."""

    @property
    def epoch(self) -> str: ...

    @property
    def chain(self) -> Chain: ...

    def refresh(self, *, anew: bool = False) -> None:
        """Look what has come since; ``anew``: and whether what was there is still what it was."""


class SegmentReader:
    def __init__(self, source: Source) -> None:
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
        """Nothing is open but what an iterator holds."""

    # -- numbers --------------------------------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicState]:
        before = self._read(self._oldest, pick.state_before)
        after = self._read(self._newest, pick.state_after)
        found = {}
        for name, (number, sequence, at_ns, size) in after.items():
            old = before.get(name, NOTHING)
            found[name] = TopicState(number, sequence, at_ns, number - old.topic_sequence, size - old.size)
        return found

    def sequence_at(self, at_ns: int) -> int:
        for segment in self._source.chain:
            if segment.tail.last >= segment.first and segment.tail.last_ns >= at_ns:
                found = self._read(partial(self._at, segment.first), partial(pick.sequence_at, at_ns=at_ns))
                if found is not None:
                    return found
        return self.last + 1

    def count(self, start: int, stop: int | None = None, wanted: Wanted | None = None) -> int:
        """How many records ``records`` would give."""
        start, stop = self._span(start, stop)
        lost = [gap for gap in self.gaps() if gap.first < stop and gap.last >= start]
        if wanted is None:
            return stop - start - sum(min(gap.last + 1, stop) - max(gap.first, start) for gap in lost)
        edges = [start, *(edge for gap in lost for edge in (gap.first, gap.last + 1)), stop]
        spans = [(low, high) for low, high in list(pairwise(edges))[::2] if low < high]
        return sum(self._numbers(high, wanted) - self._numbers(low, wanted) for low, high in spans)

    def places(self, start: int, stop: int | None = None, most: int = 10_000) -> list[Place]:
        """Where the span could be cut; at most so many, about as many bytes apart."""
        start, stop = self._span(start, stop)
        chain = self._source.chain
        within = [segment for segment in chain if segment.tail.last >= start and segment.first < stop]
        total = sum(segment.size for segment in within)
        step = 0 if total // scan.MARK_EVERY + len(within) <= most else total // max(most - 1, 1)
        before = sum(segment.size for segment in chain if segment.tail.last < start)
        found: list[Place] = []
        for segment in within:
            marks = [Place(segment.first, 0)]
            if segment.size > step:
                marks = self._read(partial(self._at, segment.first), pick.places)
            for sequence, size in marks:
                is_far = not found or before + size >= found[-1].size + step
                if start <= sequence < stop and is_far and len(found) < most:
                    found.append(Place(sequence, before + size))
            before += segment.size
        return found

    def _numbers(self, sequence: int, wanted: Wanted) -> int:
        """How many records of the wanted topics there have ever been before this sequence."""
        if sequence > self.last:
            state = self._read(self._newest, pick.state_after)
            if all(topic.sequence < sequence for topic in state.values()):
                return sum(topic.topic_sequence for name, topic in state.items() if wanted(name))
        where = partial(self._at, sequence) if sequence <= self.last else self._newest  # something came meanwhile
        state = self._read(where, partial(pick.state_at, sequence=sequence))
        return sum(topic.topic_sequence for name, topic in state.items() if wanted(name))

    # -- records --------------------------------------------------------------------------------------------------

    def records(self, start: int, stop: int | None = None, wanted: Wanted | None = None) -> Iterator[Record]:
        return self._records(*self._span(start, stop), wanted)

    def frames(
        self, start: int, stop: int | None = None, wanted: Wanted | None = None, size: int = ENOUGH
    ) -> Iterator[Frames]:
        """The same as stored frames, about ``size`` bytes at a time; unchecked, as ``pieces`` are."""
        return self._frames(*self._span(start, stop), wanted, size)

    def pieces(
        self, start: int, stop: int | None = None, wanted: Wanted | None = None, size: int | None = None
    ) -> Iterator[Piece]:
        return self._pieces(*self._span(start, stop), wanted, size)

    def _span(self, start: int, stop: int | None) -> tuple[int, int]:
        first, last = self.first, self.last
        if start < 1 or start > last + 1:
            raise BadInput(f"must be from 1 to {last + 1}, not {start}", field="start")
        if start < first:
            raise _retired(start, first)
        return start, last + 1 if stop is None else max(start, min(stop, last + 1))

    def _records(self, start: int, stop: int, wanted: Wanted | None) -> Iterator[Record]:
        is_wanted = pick.remembered(wanted)
        for segment, fd, begin, end in self._spans(start, stop, wanted):
            for step in scan.walk(fd, begin, end):
                begin = step.offset + step.head.size
                if is_wanted is None or is_wanted(records.topic_at(step.data, step.at, step.head)):
                    yield pick.decoded(segment, step)
            pick.see_all(segment, begin, end)

    def _frames(self, start: int, stop: int, wanted: Wanted | None, size: int) -> Iterator[Frames]:
        parts: list[memoryview] = []
        held = passed = first = last = 0
        is_wanted = pick.remembered(wanted)
        for segment, fd, begin, end in self._spans(start, stop, wanted):
            for offset, head, data, at in scan.walk(fd, begin, end):
                begin = offset + head.size
                if is_wanted is None or is_wanted(records.topic_at(data, at, head)):
                    first, last = first or head.sequence, head.sequence
                    parts.append(data[at : at + head.size])
                    held += head.size
                else:
                    passed += head.size
                if held >= size or passed >= LONG_WAY:
                    yield Frames(b"".join(parts), first or head.sequence, last if parts else head.sequence, len(parts))
                    parts.clear()
                    held = passed = first = 0
            pick.see_all(segment, begin, end)
        if parts:
            yield Frames(b"".join(parts), first, last, len(parts))

    def _pieces(self, start: int, stop: int, wanted: Wanted | None, size: int | None) -> Iterator[Piece]:
        is_wanted = pick.remembered(wanted)
        for segment, fd, begin, end in self._spans(start, stop, wanted):
            if is_wanted is None:
                whole = Piece(fd, begin, end - begin, max(start, segment.first), min(stop - 1, segment.tail.last))
                yield from pick.cut(segment, whole, size)
                continue
            first = last = length = 0
            for offset, head, data, at in scan.walk(fd, begin, end):
                begin = offset + head.size
                if is_wanted(records.topic_at(data, at, head)):
                    first, last = first or head.sequence, head.sequence
                    length += head.size
                elif length:
                    yield Piece(fd, offset - length, length, first, last)
                    first = length = 0
                if length >= ENOUGH:
                    yield Piece(fd, begin - length, length, first, last)
                    first = length = 0
            pick.see_all(segment, begin, end)
            if length:
                yield Piece(fd, begin - length, length, first, last)

    # -- segments -------------------------------------------------------------------------------------------------

    def _spans(self, start: int, stop: int, wanted: Wanted | None = None) -> Iterator[tuple[Segment, int, int, int]]:
        """Each segment of the span with an open descriptor, and where in it the span begins and ends."""
        tries = 0
        while start < stop:
            segment = find(self._source.chain, start)
            if start < self.first:  # also where nothing of the span is left
                raise _retired(start, self.first)
            if segment is None or segment.first >= stop:
                return
            try:
                with segment.opened() as fd:
                    after = segment.tail.last + 1
                    if wanted is None or pick.holds(segment, fd, wanted):
                        yield segment, fd, *pick.offsets(segment, fd, start, stop)
                    start, tries = after, 0
            except Gone:
                tries += 1
                self._again(start, tries)

    def _read(self, choose: Callable[[], Segment], work: Callable[[Segment, int], T]) -> T:
        tries = 0
        while True:
            segment = choose()
            try:
                with segment.opened() as fd:
                    return work(segment, fd)
            except Gone:
                tries += 1
                self._again(self.first, tries)

    def _oldest(self) -> Segment:
        return self._source.chain[0]

    def _newest(self) -> Segment:
        return self._source.chain[-1]

    def _at(self, sequence: int) -> Segment:
        segment = find(self._source.chain, sequence)
        if segment is None or sequence < self.first:
            raise _retired(sequence, self.first)
        return segment

    def _again(self, start: int, tries: int) -> None:
        """A file was not what it was taken for: look anew what there is."""
        self._source.refresh(anew=True)
        if start < self.first:
            raise _retired(start, self.first)
        if tries == TRIES:
            raise StoreDamaged(f"the segment with sequence {start} is not there any more")


def _retired(asked: int, first: int) -> Retired:
    text = f"sequence {asked} is no longer kept; the log begins at {first}"
    return Retired(text, field="start", asked=asked, first=first)
