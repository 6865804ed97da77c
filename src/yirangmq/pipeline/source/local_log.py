"""Topic log read from its segment files, and the interface for access to the log.

Reading changes nothing and does not block the writer; only durable records are returned. It copes with a writer at
work: segments may appear, and be sealed, retired or reused between two steps. A segment that changed is looked up
again.

The interface has two implementations: the files of this machine here, and a server in
``pipeline.source.http_client``."""

import os
import re
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from yirangmq.pipeline.source.errors import RecordsRetired, SourceError
from yirangmq.pipeline.source.frames import CRC_FROM, FrameColumns, FrameRun
from yirangmq.pipeline.source.segment_file import (
    HEAD_SIZE,
    FileByteRange,
    FileIndexMark,
    LocalSegmentGone,
    Scan,
    SegmentFileHead,
    SegmentFileInfo,
    Unreadable,
    marks_of,
    open_shared,
    read_at,
    read_head,
    read_seal,
    runs_of,
    topics_at,
)

# -- interface ---------------------------------------------------------------------------------------------------------


class LogInfo(NamedTuple):
    """Epoch and bounds of the log. Another epoch is another log: sequences of the old one are invalid in it."""

    epoch: str
    first: int
    last: int


class SplitPoint(NamedTuple):
    """Split point of a range: a sequence, and the approximate number of bytes of frames before it in the log."""

    sequence: int
    size: int


class LogAccess(Protocol):
    def info(self) -> LogInfo: ...

    def topics(self) -> list[str]:
        """Return every topic that ever had a record."""

    def sequence_at(self, at_ms: int) -> int:
        """Return the first sequence from that time on, or ``last + 1`` if there is none."""

    def split_points(self, after: int, last: int) -> list[SplitPoint]:
        """Return some sequences of the range with their sizes, to split the range by."""

    def hints(self, after: int, last: int) -> Sequence[Any]:
        """Return plain values that save a task the search for its range."""

    def runs(self, after: int, last: int, hints: Sequence[Any] = ()) -> Iterator[FrameRun]:
        """Yield the records of (after, last] in order; a few records around the range may be included.

        Raises ``RecordsRetired`` if the next record is no longer kept. Gaps are skipped; the caller finds them by the
        sequences. A run is valid until the next one is requested, because all runs share one buffer."""

    def close(self) -> None: ...


# -- segment files -----------------------------------------------------------------------------------------------------

MANY_SEGMENTS = 64
"""Upper bound of the segments in a range that are split within; a range of more segments is split between them."""
TRIES, PAUSE = 50, 0.002
"""Retries, and the pause between them in seconds, when a file vanishes between two steps because a writer is at
work."""


class LocalLog:
    """Local access to the log: ``LogAccess`` on a folder of segment files."""

    def __init__(self, folder: str) -> None:
        self._folder = log_folder(folder)
        self._sealed: dict[str, SegmentFileInfo] = {}
        self._scans: dict[str, Scan] = {}
        self._marks: dict[tuple[str, SegmentFileHead], list[FileIndexMark]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder, "_sealed": {}, "_scans": {}, "_marks": {}}

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _read_error(self) -> SourceError:
        if has_segments(self._folder):
            return SourceError(f"the segments in {self._folder} change faster than they can be read")
        return SourceError(f"there is no log of topics in {self._folder} any more: it was removed during the read")

    # -- segments -----------------------------------------------------------------------------------------------------

    def segments(self, *, refresh: bool = False) -> list[SegmentFileInfo]:
        """Return the current segments, the oldest first. ``refresh``: read sealed segments again too."""
        if refresh:
            self._sealed.clear()
        for _ in range(TRIES):
            try:
                return self._scan_folder()
            except (LocalSegmentGone, FileNotFoundError):
                time.sleep(PAUSE)
        raise self._read_error()

    def _scan_folder(self) -> list[SegmentFileInfo]:
        names = sorted(name for name in os.listdir(self._folder) if re.fullmatch(r"[0-9]{20}\.log", name))
        firsts = [int(name[:20]) for name in names]
        found = []
        for name, first, after in zip(names, firsts, [*firsts[1:], 1 << 64], strict=True):
            path = f"{self._folder}/{name}"
            try:
                found.append(self._sealed.get(path) or self._read(path, first, after - 1))
            except Unreadable:
                continue  # a gap; it is reported as missing records
        if not found:
            raise SourceError(f"there is no log in {self._folder} that can be read")
        self._sealed = {segment.path: segment for segment in found if segment.is_sealed}
        return found

    def _read(self, path: str, first: int, most: int) -> SegmentFileInfo:
        with open_shared(path) as fd:
            head = read_head(fd)
            if head.first != first:
                raise LocalSegmentGone
            seal = read_seal(fd, head)
            if seal is not None:
                self._scans.pop(path, None)
                return SegmentFileInfo(path, head, seal[1], seal[4], seal[3], True)
            scan = self._scans.get(path)
            if scan is None or scan.head != head:
                scan = self._scans[path] = Scan(head)
            if scan.follow(fd, most):
                os.fdatasync(fd)  # only durable records are returned
            return SegmentFileInfo(path, head, scan.last, scan.end, scan.last_ns, False)

    def info(self) -> LogInfo:
        segments = self.segments()
        return LogInfo(segments[-1].head.epoch, segments[0].head.first, segments[-1].last)

    def topics(self) -> list[str]:
        newest = self.segments()[-1]
        with open_shared(newest.path) as fd:
            data = memoryview(read_at(fd, HEAD_SIZE, newest.head.begin - HEAD_SIZE))
        found = {name for name, _ in topics_at(data[CRC_FROM:], 0)[0]}
        scan = self._scans.get(newest.path)
        found |= scan.topics if scan else set()
        return sorted(found)

    def sequence_at(self, at_ms: int) -> int:
        wanted = at_ms * 1_000_000
        segments = self.segments()
        for segment in segments:
            if segment.last >= segment.head.first and segment.last_ns >= wanted:
                near = bisect_right(self.marks(segment), wanted - 1, key=lambda mark: mark.at_ns) - 1
                after = self.marks(segment)[near].sequence - 1 if near >= 0 else segment.head.first - 1
                for run in self.runs(after, segment.last):
                    found = FrameColumns(run)
                    later = ((found.at_ns >= wanted) & (found.sequence > after)).nonzero()[0]
                    if len(later):
                        return int(found.sequence[later[0]])
        return segments[-1].last + 1

    def marks(self, segment: SegmentFileInfo) -> list[FileIndexMark]:
        """Return the index marks of a segment: the known offsets of some records, about every 64 KiB."""
        scan = self._scans.get(segment.path)
        if scan is not None and scan.head == segment.head and not segment.is_sealed:
            return scan.marks
        key = segment.path, segment.head
        if key not in self._marks:
            with open_shared(segment.path, segment.head) as fd:
                self._marks[key] = marks_of(fd, segment)
        return self._marks[key]

    def split_points(self, after: int, last: int) -> list[SplitPoint]:
        found, size = [], 0
        segments = self.segments()
        within = sum(segment.last > after and segment.head.first <= last for segment in segments)
        for segment in segments:
            if segment.last > after and segment.head.first <= last:
                coarse = [FileIndexMark(segment.head.first, 0, segment.head.begin)]
                for mark in coarse if within > MANY_SEGMENTS else self._marks_or(segment, coarse):
                    if after < mark.sequence <= last:
                        found.append(SplitPoint(mark.sequence, size + mark.offset - segment.head.begin))
            size += segment.size
        return found

    def _marks_or(self, segment: SegmentFileInfo, otherwise: list[FileIndexMark]) -> list[FileIndexMark]:
        try:
            return self.marks(segment)
        except LocalSegmentGone:
            return otherwise

    # -- reading ------------------------------------------------------------------------------------------------------

    def hints(self, after: int, last: int) -> list[FileByteRange]:
        """Return the byte ranges that hold the records of (after, last], and a few records around them."""
        segments = self.segments()
        if after + 1 < segments[0].head.first and last > after:
            raise RecordsRetired(after + 1, segments[0].head.first)
        found = []
        for segment in segments:
            if segment.last > after and segment.head.first <= last:
                begin, end = segment.head.begin, segment.end
                if after >= segment.head.first or last < segment.last:
                    marks = self.marks(segment)
                    begin = max((mark.offset for mark in marks if mark.sequence <= after + 1), default=begin)
                    end = min((mark.offset for mark in marks if mark.sequence > last), default=end)
                found.append(FileByteRange(segment.path, segment.head, begin, end, min(last, segment.last)))
        return found

    def runs(self, after: int, last: int, hints: Sequence[Any] = ()) -> Iterator[FrameRun]:
        todo = list(hints) or self._hints_again(after, last)
        position, tries = after, 0
        while todo:
            piece = FileByteRange(*todo[0])
            try:
                with open_shared(piece.path, SegmentFileHead(*piece.head)) as fd:
                    for run in runs_of(fd, piece.begin, piece.end, piece.path):
                        yield run
                        position = max(position, run.last)
                position, tries = max(position, piece.last), 0
                todo = todo[1:]
            except LocalSegmentGone:
                tries += 1
                if tries > TRIES:
                    raise SourceError(f"{piece.path} changes faster than it can be read") from None
                todo = self._hints_again(position, last)

    def _hints_again(self, after: int, last: int) -> list[FileByteRange]:
        for _ in range(TRIES):
            try:
                return self.hints(after, last) if last > after else []
            except LocalSegmentGone:
                self.segments(refresh=True)
        raise self._read_error()


def has_segments(folder: str) -> bool:
    try:
        return any(re.fullmatch(r"[0-9]{20}\.log", name) for name in os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False


def log_folder(folder: str) -> str:
    """Return the folder of the log, given that folder or a server's data folder."""
    for path in (folder, os.path.join(folder, "topics")):
        if has_segments(path):
            return os.path.abspath(path)
    if not os.path.isdir(folder):
        raise SourceError(
            f"path: there is no folder {folder} on this machine; to read from a server set the option broker"
        )
    raise SourceError(
        f"path: there is no log of topics in {folder}; give the server's data folder, or the option broker"
    )
