"""Check of a topic log, and repair of a damaged segment.

``check`` reads every byte and verifies checksums, numbers and indexes. It may run beside a writer and changes nothing.
``repair_segment`` repairs one sealed segment of a log that is open for writing (``SegmentLog.mend``). It rewrites a
wrong index, or salvages the sound records into new segments."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from yirangmq.core.errors import StoreDamaged
from yirangmq.core.ports import Finding
from yirangmq.core.topics import MAX_SEQUENCE, Record
from yirangmq.stores.log import segment_format as scan
from yirangmq.stores.log.reader import LogSegment, SegmentGone, gaps
from yirangmq.stores.log.readonly import SegmentView
from yirangmq.stores.log.recovery import NON_SEGMENT_PREFIXES
from yirangmq.stores.log.salvage import QUARANTINE, SalvageCase, salvage
from yirangmq.stores.log.segment_files import SegmentFileOperations
from yirangmq.stores.log.segment_format import SPARE, IndexMark, first_of
from yirangmq.wire import records

# -- check -------------------------------------------------------------------------------------------------------------

DAMAGED, GAP, INDEX, QUARANTINED, FOREIGN = "damaged", "gap", "index", "set-aside", "foreign"
Progress = Callable[[int, int], None]
"""Callback with two arguments: bytes read, and total bytes."""


class LogCheckResult(NamedTuple):
    """Result of a log check: the number of sound records, and one finding per fault."""

    records: int
    findings: list[Finding]


def check(view: SegmentView, progress: Progress = lambda done, total: None) -> LogCheckResult:
    """Verify every segment of the view. A segment that is retired during the check is skipped."""
    total = sum(segment.size for segment in view.chain)
    done = sound = 0
    findings = [Finding(DAMAGED, path, "cannot be read as a segment", False) for path in view.unreadable]
    for segment in view.chain:
        try:
            good, found = _check_segment(segment)
        except SegmentGone:
            continue  # retired meanwhile
        sound += good
        findings += found
        done += segment.size
        progress(done, total)
    for gap in gaps(view.chain):
        text = f"the records {gap.first} to {gap.last} are lost"
        findings.append(Finding(GAP, str(view.folder), text, False))
    return LogCheckResult(sound, [*findings, *_other_files(str(view.folder))])


def _check_segment(segment: LogSegment) -> tuple[int, list[Finding]]:
    with segment.opened() as fd:
        tail = segment.tail
        try:
            sums = sound_part(segment, fd)
        except StoreDamaged as error:
            return 0, [Finding(DAMAGED, segment.path, str(error), False)]
        sound = sums.last - segment.first + 1
        if (sums.last, sums.end) != (tail.last, tail.end):
            text = f"the record {sums.last + 1} is damaged; the segment ends at {tail.last}"
            return sound, [Finding(DAMAGED, segment.path, text, False)]
        if not has_good_index(segment, fd, sums):
            return sound, [Finding(INDEX, segment.path, "its index cannot be used and is rebuilt when needed", False)]
    return sound, []


def sound_part(segment: LogSegment, fd: int) -> scan.SegmentSums:
    """Scan the segment up to its first damaged record, and return the sums of the sound part."""
    sums = scan.SegmentSums(segment.first, segment.head.begin, scan.state_of(fd, segment.head))
    scan.add_sound(sums, fd, segment.tail.end, segment.tail.last)
    return sums


def has_good_index(segment: LogSegment, fd: int, sums: scan.SegmentSums) -> bool:
    """Check whether the index of a sealed segment agrees with its records.

    The marks need not equal those of ``sums``: two writers may choose different ones. Each mark must point at its
    record."""
    if segment.seal is None:
        return True
    try:
        summary = scan.summary_of(fd, segment.seal)
    except StoreDamaged:
        return False
    return summary.state == sums.state and _are_true(summary.marks, fd)


def _are_true(marks: list[IndexMark], fd: int) -> bool:
    for mark in marks:
        step = next(scan.walk(fd, mark.offset, mark.offset + scan.CHUNK), None)
        if step is not None and (step.head.sequence, step.head.at_ns) != (mark.sequence, mark.at_ns):
            return False
    return True


def has_segments(folder: str) -> bool:
    return os.path.isdir(folder) and any(first_of(name) is not None for name in os.listdir(folder))


def sound_records(path: str) -> Iterator[Record]:
    """Yield every sound record of a segment file or a quarantined file, regardless of its offset."""
    image = Path(path).read_bytes()
    for offset, head in scan.stray_records_in(image, 0, 0, MAX_SEQUENCE):
        yield records.decode(image, offset, head)


def _other_files(folder: str) -> Iterator[Finding]:
    for name in sorted(os.listdir(folder)):
        if first_of(name) is None and not name.startswith((SPARE, *NON_SEGMENT_PREFIXES)):
            yield Finding(FOREIGN, f"{folder}/{name}", "is no part of a log", False)
    quarantine = f"{folder}/{QUARANTINE}"
    for name in sorted(os.listdir(quarantine)) if os.path.isdir(quarantine) else []:
        if not name.endswith(".txt"):
            yield Finding(QUARANTINED, f"{quarantine}/{name}", "was damaged; what is sound in it was saved", True)


# -- repair ------------------------------------------------------------------------------------------------------------


def repair_segment(
    segment_files: SegmentFileOperations, segment: LogSegment, following: LogSegment, now_ns: int
) -> list[LogSegment] | None:
    """Return the segments that replace it, or None if it is undamaged. ``following`` is the segment after it."""
    try:
        with segment.opened() as fd:
            state = scan.state_of(fd, segment.head)
            sums = sound_part(segment, fd)
            is_whole = (sums.last, sums.end) == (segment.tail.last, segment.tail.end)
            if is_whole and has_good_index(segment, fd, sums):
                return None
        reason = f"the record {sums.last + 1} is damaged"
    except StoreDamaged as error:
        is_whole, state, reason = False, {}, str(error)
    if is_whole:
        return [_sealed_again(segment_files, segment, sums)]
    head = segment.head
    after: scan.State = {}
    if following.first == segment.tail.last + 1:
        with suppress(StoreDamaged, SegmentGone), following.opened() as fd:
            after = scan.state_of(fd, following.head)
    case = SalvageCase(segment.path, head.first, segment.tail.last, head.epoch, head.before, state, reason, after)
    return salvage(segment_files, case, now_ns)


def _sealed_again(segment_files: SegmentFileOperations, segment: LogSegment, sums: scan.SegmentSums) -> LogSegment:
    fd = segment_files.disk.open_update(segment.path)
    try:
        return segment_files.seal(LogSegment(segment.path, segment.head, sums=sums), fd)
    finally:
        segment_files.disk.close(fd)
