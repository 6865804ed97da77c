"""Segment format of the topic log (head, state, index, seal), and the walk over the frames of a segment.

A segment's file holds, in this order::

    head        96 bytes: epoch of the log, epoch of the segment before, first sequence, time, where the records begin
    state       one frame of kind 21: each topic's numbers before the first record here
    records     frames as they are sent (wire/records.py)
    index       one frame of kind 22, written when the segment is sealed: the topics' numbers after the last record,
                and every 64 KiB a mark (sequence, time, offset)
    seal        64 bytes, the last of the file: first and last sequence, their times, where the index begins

A segment in use ends in zeros, or in what its file held before it was recycled; it has neither index nor seal. Both
can be rebuilt from the records. Numbers are big-endian; ``docs/log.md`` draws the layout.

The format functions do no I/O. The walk reads a descriptor with ``pread``, so no file position is shared. It reports
how far records are sound; callers decide how to handle damage."""

import mmap
import os
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, cast
from zlib import crc32

import msgspec

from yirangmq.core.errors import StoreDamaged, StoreTooNew
from yirangmq.wire import records

# -- format ------------------------------------------------------------------------------------------------------------

VERSION = 1
SIGN = b"YRGMQLOG"
SEAL_SIGN = b"YRGMQEND"
STATE, INDEX = 21, 22
_HEAD = struct.Struct(">8sHHI16s16sQQQ24x")
_SEAL = struct.Struct(">8sHHIQQQQQ8x")
_FRAME = struct.Struct(">IBBHII")
HEAD_SIZE, SEAL_SIZE, FRAME_HEAD = _HEAD.size, _SEAL.size, _FRAME.size
CRC_FROM = 12
NAME = re.compile(r"([0-9]{20})\.log")
SPARE = "spare"
"""Name prefix of preallocated files that can become segments."""


class Head(NamedTuple):
    """Header of a segment file.

    ``before`` is the epoch of the segment before; it differs from ``epoch`` only if the log started a new epoch here.
    ``begin`` is the offset of the first record."""

    epoch: bytes
    before: bytes
    first: int
    created_ns: int
    begin: int


class Seal(NamedTuple):
    """Last 64 bytes of a sealed segment. ``end`` is the offset where the records end and the index begins."""

    first: int
    last: int
    first_ns: int
    last_ns: int
    end: int


class TopicNumbers(NamedTuple):
    """Numbers of a topic: its latest record, and ``size``, the bytes of all its frames since the log began."""

    topic_sequence: int
    sequence: int
    at_ns: int
    size: int


State = dict[str, TopicNumbers]


class IndexMark(NamedTuple):
    """Entry of the sparse index: a record and its offset in the file."""

    sequence: int
    at_ns: int
    offset: int


class SegmentSummary(NamedTuple):
    """Content of a segment's index: the topic numbers after its last record, and the sparse index."""

    state: State
    marks: list[IndexMark]


_pack = msgspec.msgpack.Encoder().encode
_read_state = msgspec.msgpack.Decoder(list[tuple[str, int, int, int, int]]).decode
_read_index = msgspec.msgpack.Decoder(tuple[list[tuple[str, int, int, int, int]], list[tuple[int, int, int]]]).decode


def file_name(first: int) -> str:
    return f"{first:020d}.log"


def first_of(name: str) -> int | None:
    """Parse the first sequence from a segment's file name. Return None if the name is not a segment's."""
    found = NAME.fullmatch(name)
    return int(found[1]) if found else None


def write_head(head: Head) -> bytes:
    fields = (head.epoch, head.before, head.first, head.created_ns, head.begin)
    return _HEAD.pack(SIGN, VERSION, 0, _crc(_HEAD.pack(SIGN, VERSION, 0, 0, *fields)), *fields)


def read_head(data: bytes) -> Head:
    """Parse a segment head. Raises ``StoreDamaged`` if it is not one, ``StoreTooNew`` if its version is later."""
    if len(data) < HEAD_SIZE or data[:8] != SIGN:
        raise StoreDamaged("it does not begin with the header of a segment")
    _, version, _, crc, *fields = _HEAD.unpack_from(data)
    if crc != _crc(data[:HEAD_SIZE]):
        raise StoreDamaged("its head is damaged")
    if version > VERSION:
        raise StoreTooNew(f"a segment of version {version}; this yirangmq reads {VERSION}")
    return Head(*fields)


def write_seal(seal: Seal) -> bytes:
    return _SEAL.pack(SEAL_SIGN, VERSION, 0, _crc(_SEAL.pack(SEAL_SIGN, VERSION, 0, 0, *seal)), *seal)


def read_seal(data: bytes) -> Seal | None:
    """Parse the last bytes of a file. Return None if the segment is not sealed, or its seal is incomplete."""
    if len(data) != SEAL_SIZE or data[:8] != SEAL_SIGN:
        return None
    _, version, _, crc, *fields = _SEAL.unpack(data)
    return Seal(*fields) if version == VERSION and crc == _crc(data) else None


def _crc(data: bytes) -> int:
    """Return the CRC-32 of all bytes except the four that hold it. Their offset is the same in every version."""
    return crc32(data[CRC_FROM + 4 :], crc32(data[:CRC_FROM]))


def write_state(state: Mapping[str, TopicNumbers]) -> bytes:
    return _frame(STATE, _pack([(name, *topic) for name, topic in state.items()]))


def read_state(data: bytes) -> State:
    try:
        return {name: TopicNumbers(*numbers) for name, *numbers in _read_state(_body(STATE, data))}
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"the state of its topics cannot be read: {error}") from None


def write_index(summary: SegmentSummary) -> bytes:
    return _frame(INDEX, _pack(([(name, *topic) for name, topic in summary.state.items()], summary.marks)))


def read_index(data: bytes) -> SegmentSummary:
    try:
        topics, marks = _read_index(_body(INDEX, data))
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"its index cannot be read: {error}") from None
    return SegmentSummary(
        {name: TopicNumbers(*numbers) for name, *numbers in topics}, [IndexMark(*mark) for mark in marks]
    )


def _frame(kind: int, body: bytes) -> bytes:
    return _FRAME.pack(len(body) + 4, 1, kind, 0, 0, crc32(body)) + body


def _body(kind: int, data: bytes) -> bytes:
    what = "the state of its topics" if kind == STATE else "its index"
    if len(data) < FRAME_HEAD:
        raise StoreDamaged(f"{what} is cut off")
    length, version, found, flags, request, crc = _FRAME.unpack_from(data)
    body = data[FRAME_HEAD : length + FRAME_HEAD - 4]
    if (version, found, flags, request) != (1, kind, 0, 0) or len(body) != length - 4 or crc32(body) != crc:
        raise StoreDamaged(f"{what} is damaged")
    return body


# -- walk over frames --------------------------------------------------------------------------------------------------

CHUNK = 1 << 20
MARK_EVERY = 1 << 16
"""Bytes between two marks of the sparse index, which bounds the walk to find one record: 64 KiB."""


class FrameStep(NamedTuple):
    """One frame of a walk: its offset in the file and its head. Its bytes begin at ``data[at]``."""

    offset: int
    head: records.RecordHead
    data: memoryview
    at: int


new_step = cast("Callable[[tuple[Any, ...]], FrameStep]", partial(tuple.__new__, FrameStep))


def walk(fd: int, begin: int, end: int) -> Iterator[FrameStep]:
    """Yield frames up to ``end`` or the first incomplete or malformed frame. Checksums are not verified."""
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


class SegmentSums:
    """Running sums over consecutive records of a segment: extent, times, topic numbers, sparse index.

    The writer updates them with each commit; recovery and readers compute them by a scan. ``state`` is changed in
    place."""

    def __init__(self, first: int, begin: int, state: State) -> None:
        self.last = first - 1
        self.end = begin
        self.first_ns = self.last_ns = 0
        self.state = state
        self.marks: list[IndexMark] = []
        self._next_mark = begin

    def add(self, topic: str, topic_sequence: int, at_ns: int, size: int) -> None:
        """Add the next record. It begins at ``end``."""
        self.last += 1
        if self.end >= self._next_mark:
            self.marks.append(IndexMark(self.last, at_ns, self.end))
            self._next_mark = self.end + MARK_EVERY
        before = self.state.get(topic)
        self.state[topic] = TopicNumbers(topic_sequence, self.last, at_ns, size + (before.size if before else 0))
        self.first_ns = self.first_ns or at_ns
        self.last_ns = at_ns
        self.end += size

    def add_same(self, topic: str, topic_sequence: int, at_ns: int, count: int, size: int) -> None:
        """Add the next ``count`` records, all of one topic and of the same write."""
        if self.end >= self._next_mark:
            self.marks.append(IndexMark(self.last + 1, at_ns, self.end))
            self._next_mark = self.end + MARK_EVERY
        self.last += count
        before = self.state.get(topic)
        self.state[topic] = TopicNumbers(topic_sequence, self.last, at_ns, size + (before.size if before else 0))
        self.first_ns = self.first_ns or at_ns
        self.last_ns = at_ns
        self.end += size

    def seal(self, first: int) -> Seal:
        return Seal(first, self.last, self.first_ns, self.last_ns, self.end)

    def summary(self) -> SegmentSummary:
        return SegmentSummary(self.state, self.marks)


def add_sound(sums: SegmentSums, fd: int, end: int, most: int) -> None:
    """Scan and add following records until one is incomplete, damaged, out of sequence, or after ``most``."""
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
    """Read the numbers of each topic before the first record of the segment."""
    return read_state(os.pread(fd, head.begin - HEAD_SIZE, HEAD_SIZE))


def seal_of(fd: int, head: Head) -> Seal | None:
    """Read the seal. Return None if the segment is not sealed, or its seal is damaged or inconsistent."""
    size = os.fstat(fd).st_size
    if size < head.begin + SEAL_SIZE:
        return None
    seal = read_seal(os.pread(fd, SEAL_SIZE, size - SEAL_SIZE))
    if seal is None or seal.first != head.first or not head.begin <= seal.end <= size - SEAL_SIZE - FRAME_HEAD:
        return None
    return seal


def summary_of(fd: int, seal: Seal) -> SegmentSummary:
    size = os.fstat(fd).st_size - SEAL_SIZE - seal.end
    return read_index(os.pread(fd, size, seal.end))


def offset_of(fd: int, marks: list[IndexMark], sequence: int, begin: int, end: int) -> int:
    """Return the offset of the first record with at least that sequence, or ``end`` if there is none."""
    place = bisect_right(marks, sequence, key=_mark_sequence) - 1
    near = marks[place].offset if place >= 0 else begin
    for step in walk(fd, near, end):
        if step.head.sequence >= sequence:
            return step.offset
        near = step.offset + step.head.size
    if near != end:
        raise StoreDamaged(f"the frame at byte {near} cannot be read")
    return end


def sequence_at(fd: int, marks: list[IndexMark], at_ns: int, begin: int, end: int) -> int | None:
    """Return the first sequence at or after that time. Return None if all records are older."""
    place = bisect_right(marks, at_ns - 1, key=_mark_time) - 1
    for step in walk(fd, marks[place].offset if place >= 0 else begin, end):
        if step.head.at_ns >= at_ns:
            return step.head.sequence
    return None


def _mark_sequence(mark: IndexMark) -> int:
    return mark.sequence


def _mark_time(mark: IndexMark) -> int:
    return mark.at_ns


class StrayRecord(NamedTuple):
    """Sound record found by a byte-wise scan, at any offset."""

    offset: int
    head: records.RecordHead


def stray_records(fd: int, begin: int, low: int, high: int) -> Iterator[StrayRecord]:
    """Yield sound records at any offset from ``begin``, with sequences from ``low`` to ``high``.

    For the writer only: the file is mapped into memory and must not be truncated meanwhile."""
    size = os.fstat(fd).st_size
    if size - begin >= records.HEAD:
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as image:
            yield from stray_records_in(image, begin, low, high)


def stray_records_in(image: bytes | mmap.mmap, begin: int, low: int, high: int) -> Iterator[StrayRecord]:
    """Like ``stray_records``, but in bytes that are in memory."""
    with memoryview(image) as view:
        at = image.find(records.SIGN, begin + 4)
        while at >= 0:
            found = _stray(view, at - 4, low, high)
            if found is not None:
                yield found
                at = found.offset + found.head.size
            at = image.find(records.SIGN, at + 1)


def _stray(view: memoryview, offset: int, low: int, high: int) -> StrayRecord | None:
    if len(view) - offset < records.HEAD:
        return None
    head = records.read_head(view, offset)
    if head is None or not low <= head.sequence <= high or head.size > len(view) - offset:
        return None
    return StrayRecord(offset, head) if records.is_sound(view, offset, head) else None
