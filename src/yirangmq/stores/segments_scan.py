"""Walks over the frames of a segment's file. Knows: how to read them from a descriptor, what a sound row of them is.
Does not know: which segments there are, what to do about damage. Reads with ``pread``: no position is shared."""

import mmap
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

from yirangmq.core.errors import StoreDamaged
from yirangmq.stores.segments_layout import (
    FRAME_HEAD,
    HEAD_SIZE,
    SEAL_SIZE,
    Head,
    Mark,
    Seal,
    State,
    Summary,
    Topic,
    read_head,
    read_index,
    read_seal,
    read_state,
)
from yirangmq.wire import records

CHUNK = 1 << 20
MARK_EVERY = 1 << 16
"""Bytes between two marks of the sparse index: what is walked to find one record."""


class Step(NamedTuple):
    """One frame on a walk: where it lies in the file, its head, and its bytes from ``at`` in ``data`` on."""

    offset: int
    head: records.Head
    data: memoryview
    at: int


new_step = cast("Callable[[tuple[Any, ...]], Step]", partial(tuple.__new__, Step))


def walk(fd: int, begin: int, end: int) -> Iterator[Step]:
    """Frame after frame, unchecked, until ``end`` or something that is no whole frame."""
    offset = begin
    need = records.HEAD
    while end - offset >= need:
        data = memoryview(os.pread(fd, min(max(CHUNK, need), end - offset), offset))
        if len(data) < need:
            return
        at, need = 0, records.HEAD
        while len(data) - at >= records.HEAD:
            head = records.read_head(data, at)
            if head is None:
                return
            if len(data) - at < head.size:
                need = head.size
                break
            yield new_step((offset + at, head, data, at))
            at += head.size
        offset += at


class Sums:
    """What a row of records adds up to; the writer keeps it as it goes, everybody else makes it by a scan."""

    def __init__(self, first: int, begin: int, state: State) -> None:
        self.last = first - 1
        self.end = begin
        self.first_ns = self.last_ns = 0
        self.state = state
        self.marks: list[Mark] = []
        self._next_mark = begin

    def add(self, topic: str, topic_sequence: int, at_ns: int, size: int) -> None:
        """The next record, which lies where the last one ends."""
        self.last += 1
        if self.end >= self._next_mark:
            self.marks.append(Mark(self.last, at_ns, self.end))
            self._next_mark = self.end + MARK_EVERY
        before = self.state.get(topic)
        self.state[topic] = Topic(topic_sequence, self.last, at_ns, size + (before.size if before else 0))
        self.first_ns = self.first_ns or at_ns
        self.last_ns = at_ns
        self.end += size

    def add_same(self, topic: str, topic_sequence: int, at_ns: int, count: int, size: int) -> None:
        """The next ``count`` records, all of one topic and written at once."""
        if self.end >= self._next_mark:
            self.marks.append(Mark(self.last + 1, at_ns, self.end))
            self._next_mark = self.end + MARK_EVERY
        self.last += count
        before = self.state.get(topic)
        self.state[topic] = Topic(topic_sequence, self.last, at_ns, size + (before.size if before else 0))
        self.first_ns = self.first_ns or at_ns
        self.last_ns = at_ns
        self.end += size

    def seal(self, first: int) -> Seal:
        return Seal(first, self.last, self.first_ns, self.last_ns, self.end)

    def summary(self) -> Summary:
        return Summary(self.state, self.marks)


def add_sound(sums: Sums, fd: int, end: int, most: int) -> None:
    """Add the records that follow in the file: whole, sound, with the right numbers, none after ``most``."""
    for step in walk(fd, sums.end, end):
        head = step.head
        if head.sequence != sums.last + 1 or head.sequence > most or head.at_ns < sums.last_ns:
            return
        if not records.is_sound(step.data, step.at, head):
            return
        topic = str(records.topic_at(step.data, step.at, head), "utf-8", "replace")
        sums.add(topic, head.topic_sequence, head.at_ns, head.size)


def head_of(fd: int) -> Head:
    return read_head(os.pread(fd, HEAD_SIZE, 0))


def state_of(fd: int, head: Head) -> State:
    """Each topic's numbers before the first record of the segment."""
    return read_state(os.pread(fd, head.begin - HEAD_SIZE, HEAD_SIZE))


def seal_of(fd: int, head: Head) -> Seal | None:
    """None: it is not sealed, or its seal is not to be trusted."""
    size = os.fstat(fd).st_size
    if size < head.begin + SEAL_SIZE:
        return None
    seal = read_seal(os.pread(fd, SEAL_SIZE, size - SEAL_SIZE))
    if seal is None or seal.first != head.first or not head.begin <= seal.end <= size - SEAL_SIZE - FRAME_HEAD:
        return None
    return seal


def summary_of(fd: int, seal: Seal) -> Summary:
    size = os.fstat(fd).st_size - SEAL_SIZE - seal.end
    return read_index(os.pread(fd, size, seal.end))


def offset_of(fd: int, marks: list[Mark], sequence: int, begin: int, end: int) -> int:
    """Where the record lies; ``end`` if it comes after all of them."""
    place = bisect_right(marks, sequence, key=_mark_sequence) - 1
    near = marks[place].offset if place >= 0 else begin
    for step in walk(fd, near, end):
        if step.head.sequence >= sequence:
            return step.offset
        near = step.offset + step.head.size
    if near != end:
        raise StoreDamaged(f"the frame at byte {near} cannot be read")
    return end


def sequence_at(fd: int, marks: list[Mark], at_ns: int, begin: int, end: int) -> int | None:
    """The first sequence from that time on; None: all are older."""
    place = bisect_right(marks, at_ns - 1, key=_mark_time) - 1
    for step in walk(fd, marks[place].offset if place >= 0 else begin, end):
        if step.head.at_ns >= at_ns:
            return step.head.sequence
    return None


def _mark_sequence(mark: Mark) -> int:
    return mark.sequence


def _mark_time(mark: Mark) -> int:
    return mark.at_ns


class Found(NamedTuple):
    """A sound record that lies where it was not looked for."""

    offset: int
    head: records.Head


def strays(fd: int, begin: int, low: int, high: int) -> Iterator[Found]:
    """Sound records anywhere from ``begin`` on, with sequences from ``low`` to ``high``. For the writer only: nobody
    else may be cutting the file meanwhile."""
    size = os.fstat(fd).st_size
    if size - begin >= records.HEAD:
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as image:
            yield from strays_in(image, begin, low, high)


def strays_in(image: bytes | mmap.mmap, begin: int, low: int, high: int) -> Iterator[Found]:
    """The same in what was read of a file."""
    with memoryview(image) as view:
        at = image.find(records.SIGN, begin + 4)
        while at >= 0:
            found = _stray(view, at - 4, low, high)
            if found is not None:
                yield found
                at = found.offset + found.head.size
            at = image.find(records.SIGN, at + 1)


def _stray(view: memoryview, offset: int, low: int, high: int) -> Found | None:
    if len(view) - offset < records.HEAD:
        return None
    head = records.read_head(view, offset)
    if head is None or not low <= head.sequence <= high or head.size > len(view) - offset:
        return None
    return Found(offset, head) if records.is_sound(view, offset, head) else None
