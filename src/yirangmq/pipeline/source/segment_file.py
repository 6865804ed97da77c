"""Segment file of the topic log: head, seal, index and records of a single file.

The format is in docs/log.md. A shared flock keeps the writer from reusing a file that is being read. A file that was
retired or reused raises ``LocalSegmentGone``; the caller decides what follows."""

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from struct import unpack_from
from typing import NamedTuple

from yirangmq.pipeline.source.errors import SourceError
from yirangmq.pipeline.source.frames import (
    CRC_FROM,
    HEAD,
    LENGTH_FROM,
    MAX_FRAME_BYTES,
    SIGNATURE,
    FrameColumns,
    FrameRun,
    find_frames,
    find_frames_by_length,
    heads_of,
)
from yirangmq.pipeline.source.msgpack import read_count, read_text, read_whole

BATCH_BYTES = 2 << 20
"""Bytes of frames per Arrow batch: so large that the fixed cost per batch is negligible."""
FIRST_READ_BYTES = 1 << 16
"""Bytes of the first read when checking for new records; usually there are few."""
INDEX_INTERVAL_BYTES = 1 << 16
HEAD_SIZE, SEAL_SIZE = 96, 64
HEAD_FORM, SEAL_FORM, FRAME_FORM = ">8sHHI16s16sQQQ24x", ">8sHHIQQQQQ8x", ">I8sIQQQHHHH"
"""Struct formats as texts, because a ``Struct`` cannot be sent to a task."""


class LocalSegmentGone(Exception):
    """The file no longer holds the expected segment: it was removed or reused, or a writer has locked it."""


class Unreadable(Exception):
    """The file has a segment's name but no valid segment head."""


class SegmentFileHead(NamedTuple):
    epoch: str
    first: int
    made_ns: int
    begin: int


class FileIndexMark(NamedTuple):
    sequence: int
    at_ns: int
    offset: int


class SegmentFileInfo(NamedTuple):
    path: str
    head: SegmentFileHead
    last: int
    end: int
    last_ns: int
    is_sealed: bool

    @property
    def size(self) -> int:
        return self.end - self.head.begin


class FileByteRange(NamedTuple):
    """Byte range of adjacent whole frames in one file, up to the sequence ``last``."""

    path: str
    head: SegmentFileHead
    begin: int
    end: int
    last: int


class Scan:
    """Incremental scan of the active segment. ``follow`` continues where the previous call ended."""

    def __init__(self, head: SegmentFileHead) -> None:
        self.head = head
        self.last = head.first - 1
        self.end = head.begin
        self.last_ns = 0
        self.marks: list[FileIndexMark] = []
        self.topics: set[str] = set()
        self._next_mark = head.begin

    def follow(self, fd: int, most: int) -> bool:
        """Read the whole, sound records that follow. Return True if there are new ones."""
        before = self.last
        need = FIRST_READ_BYTES
        while data := os.pread(fd, need, self.end):
            used = self._add(data, most)
            if len(data) < need or used < 0:
                break
            need = min(4 * need, BATCH_BYTES if used else 2 * MAX_FRAME_BYTES)
        return self.last > before

    def _add(self, data: bytes, most: int) -> int:
        """Return the number of bytes of sound records, or a negative number if invalid data follows them."""
        run = find_frames_by_length(data)
        found = FrameColumns(run._replace(starts=run.starts[: self._in_order(data, run, most)]))
        whole = found.first_damaged()
        if whole < len(run.starts):
            found = found.select(slice(whole))
        if whole:
            self._take(found)
        return run.end if whole == len(run.starts) and self._may_follow(data, run.end, most) else -1

    def _in_order(self, data: bytes, run: FrameRun, most: int) -> int:
        """Return the number of leading frames with heads that form a valid sequence."""
        import numpy as np

        heads = heads_of(memoryview(data), run.starts)
        parts = sum(heads[name].astype(np.int64) for name in ("topic_size", "key_size", "headers_size"))
        good = (heads["sign"] == int.from_bytes(SIGNATURE)) & (parts + HEAD <= heads["length"] + np.int64(LENGTH_FROM))
        good &= heads["sequence"] == np.arange(len(heads), dtype=np.uint64) + (self.last + 1)
        good &= heads["sequence"] <= np.uint64(most)
        good &= np.diff(heads["at_ns"].astype(np.int64), prepend=self.last_ns) >= 0
        return len(good) if good.all() else int(good.argmin())

    def _may_follow(self, data: bytes, at: int, most: int) -> bool:
        """Return whether an incomplete record may begin here."""
        if len(data) - at < HEAD:
            return True
        length, sign, _, sequence, *_ = unpack_from(FRAME_FORM, data, at)
        is_next = sign == SIGNATURE and sequence == self.last + 1 <= most
        return bool(is_next and len(data) - at < LENGTH_FROM + length <= MAX_FRAME_BYTES)

    def _take(self, found: FrameColumns) -> None:
        starts = found.starts + self.end
        row = int(starts.searchsorted(self._next_mark))
        while row < len(found):
            at = int(starts[row])
            self.marks.append(FileIndexMark(int(found.sequence[row]), int(found.at_ns[row]), at))
            self._next_mark = at + INDEX_INTERVAL_BYTES
            row = int(starts.searchsorted(self._next_mark))
        self.topics.update(found.topics()[1])
        self.last, self.last_ns = int(found.sequence[-1]), int(found.at_ns[-1])
        self.end += int(found.ends[-1])


@contextmanager
def open_shared(path: str, head: SegmentFileHead | None = None) -> Iterator[int]:
    """Open the file with a shared flock, so that no writer reuses it meanwhile.

    ``head``: the segment that the file must still hold; else ``LocalSegmentGone``."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise LocalSegmentGone from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalSegmentGone from None
        if head is not None and _head_or_none(fd) != head:
            raise LocalSegmentGone
        yield fd
    finally:
        os.close(fd)


def read_at(fd: int, offset: int, size: int) -> bytes:
    parts = []
    while size > 0:
        part = os.pread(fd, min(size, 1 << 30), offset)
        if not part:
            break
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_head(fd: int) -> SegmentFileHead:
    data = os.pread(fd, HEAD_SIZE, 0)
    if len(data) < HEAD_SIZE or data[:8] != b"YRGMQLOG" or _crc_differs(data):
        raise Unreadable
    _, version, _, _, epoch, _, first, made_ns, begin = unpack_from(HEAD_FORM, data)
    if version != 1:
        raise SourceError(f"a segment of version {version}; this yirangmq reads 1")
    return SegmentFileHead(epoch.hex(), first, made_ns, begin)


def _head_or_none(fd: int) -> SegmentFileHead | None:
    try:
        return read_head(fd)
    except Unreadable:
        return None


def read_seal(fd: int, head: SegmentFileHead) -> tuple[int, ...] | None:
    """Return first and last sequence, the times of both, and the end of the records.

    None if the segment is not sealed, or its seal is incomplete."""
    size = os.fstat(fd).st_size
    data = os.pread(fd, SEAL_SIZE, size - SEAL_SIZE) if size >= head.begin + SEAL_SIZE else b""
    if len(data) != SEAL_SIZE or data[:8] != b"YRGMQEND" or _crc_differs(data):
        return None
    _, version, _, _, *numbers = unpack_from(SEAL_FORM, data)
    is_ours = version == 1 and numbers[0] == head.first and head.begin <= numbers[4] <= size - SEAL_SIZE - CRC_FROM
    return tuple(numbers) if is_ours else None


def _crc_differs(data: bytes) -> bool:
    """Compare the checksum of all bytes except the four that hold it."""
    wanted: int = unpack_from(">I", data, 12)[0]
    return zlib.crc32(data[16:], zlib.crc32(data[:12])) != wanted


def marks_of(fd: int, segment: SegmentFileInfo) -> list[FileIndexMark]:
    """Return the marks of the segment's index, or of a new scan if the index cannot be read."""
    data = memoryview(read_at(fd, segment.end, os.fstat(fd).st_size - SEAL_SIZE - segment.end))
    try:
        (crc,) = unpack_from(">I", data, 12)
        if zlib.crc32(data[16:]) == crc:
            return _read_marks(data[16:])
    except (IndexError, struct.error, SourceError):
        pass
    scan = Scan(segment.head)
    scan.follow(fd, segment.last)
    return scan.marks


def _read_marks(view: memoryview) -> list[FileIndexMark]:
    """Read the second of the index's two arrays of arrays."""
    _, at = read_count(view, 0)
    _, at = topics_at(view, at)
    count, at = read_count(view, at)
    marks = []
    for _ in range(count):
        _, at = read_count(view, at)
        sequence, at = read_whole(view, at)
        at_ns, at = read_whole(view, at)
        offset, at = read_whole(view, at)
        marks.append(FileIndexMark(sequence, at_ns, offset))
    return marks


def topics_at(view: memoryview, at: int) -> tuple[list[tuple[str, int]], int]:
    """Return the topics with their latest offsets, and the position after them."""
    count, at = read_count(view, at)
    found = []
    for _ in range(count):
        _, at = read_count(view, at)
        name, at = read_text(view, at)
        number, at = read_whole(view, at)
        for _ in range(3):
            _, at = read_whole(view, at)
        found.append((name, number))
    return found, at


def runs_of(fd: int, begin: int, end: int, path: str) -> Iterator[FrameRun]:
    """Yield runs of about ``BATCH_BYTES`` each.

    All runs share one buffer: a run is valid until the next one is requested."""
    need = BATCH_BYTES
    memory = memoryview(b"")
    while begin < end:
        if min(need, end - begin) > len(memory):
            memory = memoryview(bytearray(min(need, end - begin)))
        part = memory[: min(need, end - begin)]
        data = part[: _read_to(part, fd, begin)]
        run = find_frames(data)
        if run.end:
            yield run
            begin, need = begin + run.end, BATCH_BYTES
        elif len(data) < len(part) or len(data) == end - begin or need > MAX_FRAME_BYTES:
            raise SourceError(f"{path} cannot be read at byte {begin}; run 'yirangmq log check'")
        else:
            need *= 2


def _read_to(target: memoryview, fd: int, offset: int) -> int:
    """Return the number of bytes read; fewer than requested only at the end of the file."""
    have = 0
    while have < len(target) and (more := os.preadv(fd, [target[have:]], offset + have)):
        have += more
    return have
