"""Segment salvage: new segments from the sound records of a damaged one.

A copy of the damaged file goes to ``quarantine/`` with a text file that states the reason. Lost records become gaps
between the new segments. The file is copied first and replaced last. After a power cut at any point, the next opening
salvages it again."""

import os
from collections.abc import Iterable
from typing import NamedTuple

from yirangmq.core.errors import StoreDamaged
from yirangmq.stores.log import segment_format as scan
from yirangmq.stores.log.reader import LogSegment
from yirangmq.stores.log.segment_files import SegmentFileOperations, SegmentHeadValues, SpareFile
from yirangmq.stores.log.segment_format import HEAD_SIZE, State, TopicNumbers, file_name
from yirangmq.wire.records import SYNCED, RecordHead, topic_at

QUARANTINE = "quarantine"
PART = 1 << 20


class SalvageCase(NamedTuple):
    """Damaged segment to salvage.

    ``low`` and ``high`` bound the sequences it can hold. ``epoch`` is its epoch, ``before`` that of the segment before.
    ``state`` holds the topic numbers before ``low``, ``after`` those after ``high`` if the next segment can be read."""

    path: str
    low: int
    high: int
    epoch: bytes
    before: bytes
    state: State
    reason: str
    after: State


class RecordRun(NamedTuple):
    """Sound records with consecutive sequences."""

    found: list[scan.StrayRecord]

    @property
    def first(self) -> int:
        return self.found[0].head.sequence

    @property
    def last(self) -> int:
        return self.found[-1].head.sequence


def group_runs(found: Iterable[scan.StrayRecord]) -> list[RecordRun]:
    """Group records into runs without gaps. A record out of order is not a record of this segment and is skipped."""
    rows: list[RecordRun] = []
    for one in found:
        if rows and one.head.sequence <= rows[-1].last:
            continue
        if rows and one.head.sequence == rows[-1].last + 1:
            rows[-1].found.append(one)
        else:
            rows.append(RecordRun([one]))
    return rows


def confirmed_runs(rows: list[RecordRun]) -> list[RecordRun]:
    """Return the runs at the end of a log that were, or may have been, confirmed.

    When a frame marked ``SYNCED`` was written, all records before it were on disk. Runs after the last run with such a
    frame are a torn tail."""
    while rows and not any(one.head.marks & SYNCED for one in rows[-1].found):
        rows = rows[:-1]
    return rows


def salvage(segment_files: SegmentFileOperations, case: SalvageCase, now_ns: int) -> list[LogSegment]:
    """Replace a damaged segment. Return the new segments; the first has the old file name and may be empty."""
    fd = os.open(case.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        rows = group_runs(scan.stray_records(fd, 0, case.low, case.high))
        _quarantine(segment_files, case, fd)
        if not rows or rows[0].first != case.low:
            rows.insert(0, RecordRun([]))
        rebuilt: list[tuple[SpareFile, LogSegment]] = []
        state = dict(case.state)
        for row in rows:
            first = row.first if row.found else case.low
            head_values = SegmentHeadValues(case.epoch, case.before if not rebuilt else case.epoch, first, now_ns)
            is_followed = bool(row.found) and row.last == case.high
            _skip_lost(state, row, fd, case.after if is_followed else {})
            rebuilt.append(_rebuilt(segment_files, head_values, row, fd, state))
        return _placed(segment_files, rebuilt)
    finally:
        os.close(fd)


def _skip_lost(state: State, row: RecordRun, fd: int, after: State) -> None:
    """Advance the topic numbers before a run past the records that are lost, so that they are outside the segment.

    The first record of each topic in the run says how many are lost. For the topics without one, the numbers ``after``
    the run do, if no gap follows it."""
    found: dict[str, int] = {}
    for one in row.found:
        name = _topic(os.pread(fd, one.head.size, one.offset), one.head)
        found.setdefault(name, one.head.topic_sequence - 1)
    for name, known in after.items():
        found.setdefault(name, known.topic_sequence)
    for name, number in found.items():
        before = state.get(name)
        if before is not None:
            state[name] = before._replace(topic_sequence=max(number, before.topic_sequence))
        elif number:
            state[name] = TopicNumbers(number, 0, 0, 0)


def _rebuilt(
    segment_files: SegmentFileOperations, head_values: SegmentHeadValues, row: RecordRun, fd: int, state: State
) -> tuple[SpareFile, LogSegment]:
    """Write a sealed and synced segment that is not yet renamed into place. Updates ``state`` with its records."""
    spare = segment_files.new_spare(HEAD_SIZE)
    segment = segment_files.write_opening(spare, head_values, state)
    sums = segment.sums
    if sums is None:
        raise StoreDamaged(f"{segment.path} was sealed during its creation")
    for one in row.found:
        data = os.pread(fd, one.head.size, one.offset)
        segment_files.disk.write_at(spare.fd, data, sums.end)
        sums.add(_topic(data, one.head), one.head.topic_sequence, one.head.at_ns, one.head.size)
    state.update(sums.state)
    sealed = segment_files.seal(LogSegment(spare.path, segment.head, sums=sums), spare.fd)
    return spare, LogSegment(segment.path, sealed.head, seal=sealed.seal)


def _topic(data: bytes, head: RecordHead) -> str:
    return str(topic_at(data, 0, head), "utf-8", "replace")


def _placed(segment_files: SegmentFileOperations, rebuilt: list[tuple[SpareFile, LogSegment]]) -> list[LogSegment]:
    """Rename the new segments into place, the first one last: it replaces the damaged file."""
    for spare, segment in rebuilt[:0:-1]:
        segment_files.disk.rename(spare.path, segment.path)
    segment_files.disk.fsync_folder(segment_files.folder)
    spare, segment = rebuilt[0]
    segment_files.disk.rename(spare.path, segment.path)
    segment_files.disk.fsync_folder(segment_files.folder)
    for spare, _ in rebuilt:
        segment_files.disk.close(spare.fd)
    return [segment for _, segment in rebuilt]


def _quarantine(segment_files: SegmentFileOperations, case: SalvageCase, fd: int) -> None:
    """Write a copy of the whole file to ``quarantine/``, and a text file with the reason."""
    disk, folder = segment_files.disk, segment_files.path(QUARANTINE)
    if not os.path.isdir(folder):
        disk.mkdir(folder)
        disk.fsync_folder(segment_files.folder)
    name = file_name(case.low)
    number = sum(other.startswith(name) and not other.endswith(".txt") for other in os.listdir(folder))
    target = f"{folder}/{name}.{number + 1}" if number else f"{folder}/{name}"
    for path, parts in ((target, _parts(fd)), (f"{target}.txt", [f"{case.reason}\n".encode()])):
        _write_new(segment_files, path, parts)
    disk.fsync_folder(folder)


def _write_new(segment_files: SegmentFileOperations, path: str, parts: Iterable[bytes]) -> None:
    disk = segment_files.disk
    if os.path.lexists(path):
        disk.unlink(path)
    fd = disk.open_write(path)
    try:
        for part in parts:
            disk.write(fd, part)
        disk.fsync(fd)
    finally:
        disk.close(fd)


def _parts(fd: int) -> Iterable[bytes]:
    offset = 0
    while part := os.pread(fd, PART, offset):
        yield part
        offset += len(part)
