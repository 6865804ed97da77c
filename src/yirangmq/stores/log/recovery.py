"""Log recovery: opens a folder of segments for writing.

Recovery reads the head and seal of every segment, scans the last one, and overwrites a torn tail left by a power cut.
It seals segments that were not sealed yet, salvages damaged ones, and removes spare files. The segments hold all state
of the log; there is no other file.

The log continues with a new epoch if records at its end are lost: if nothing shows how many, or if a durable reader has
confirmed a sequence after the last record. The new epoch begins after every sequence, and with topic sequences after
every one, that a reader may know. ``StoreTooNew`` and ``WrongEpoch`` are raised before anything is changed."""

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from yirangmq.core.errors import StoreDamaged, StoreError, StoreTooNew, WrongEpoch
from yirangmq.core.topics import MAX_SEQUENCE, KnownPositions
from yirangmq.stores.log import segment_format as scan
from yirangmq.stores.log.reader import LogSegment
from yirangmq.stores.log.salvage import QUARANTINE, SalvageCase, confirmed_runs, group_runs, salvage
from yirangmq.stores.log.segment_files import ZEROS, SegmentFileOperations, SegmentHeadValues, SpareFile
from yirangmq.stores.log.segment_format import SPARE, Head, State, TopicNumbers, first_of
from yirangmq.wire import records

NON_SEGMENT_PREFIXES = (QUARANTINE, "cursors")
"""Name prefixes of files and folders in a log's folder that are not segments."""


class SegmentEntry(NamedTuple):
    """File with a segment's name. ``head`` is None if it cannot be read, for the reason ``reason``."""

    first: int
    path: str
    head: Head | None
    reason: str = ""


class RecoveredLog(NamedTuple):
    """Result of a recovery.

    ``active`` is the file of the last segment of ``chain``, open for writing. ``notes`` are messages about faults found
    and repaired. ``loss``: why a new epoch began, or ""."""

    chain: list[LogSegment]
    active: SpareFile
    notes: list[str]
    loss: str


class LogRecovery:
    """Recovery of a topic log; used once, while the lock of its folder is held."""

    def __init__(
        self,
        segment_files: SegmentFileOperations,
        now_ns: Callable[[], int],
        new_epoch: Callable[[], bytes],
        known: KnownPositions,
    ) -> None:
        self._segment_files = segment_files
        self._disk = segment_files.disk
        self._now_ns = now_ns
        self._new_epoch = new_epoch
        self._known = known
        self._notes: list[str] = []
        self._loss = ""
        self._positions: Mapping[str, int] = {}

    def run(self, size: int, epoch: str | None) -> RecoveredLog:
        """Recover the log. ``size`` is the size of a new segment in bytes.

        A log of an epoch other than ``epoch``, if given, is refused before anything is changed."""
        entries = self._entries()
        self._check_epochs(entries, epoch)
        found = _epoch(entries)
        if found is not None:
            self._positions = self._known(found.hex(), _created_ns(entries, found))
        self._clear_spares()
        self._disk.fsync_folder(self._segment_files.folder)  # a killed writer may not have synced its last rename
        if not entries:
            self._note_lost_log()
            fresh = self._new_epoch()
            segment, active = self._begin(size, SegmentHeadValues(fresh, fresh, 1, self._now_ns()), {})
            return RecoveredLog([segment], active, self._notes, self._loss)
        last, active = self._last(entries[-1], entries, size)
        last, active = self._check_tail(last, active, size)
        chain: list[LogSegment] = []
        new = SegmentEntry(last.first, last.path, last.head)
        for entry, following in zip(entries, [*entries[1:], new], strict=True):
            if entry.first != following.first:
                chain += self._seal_or_salvage(entry, following, entries)
        return RecoveredLog([*chain, last], active, self._notes, self._loss)

    # -- files ----------------------------------------------------------------------------------------------------

    def _entries(self) -> list[SegmentEntry]:
        folder = self._segment_files.folder
        names = sorted(os.listdir(folder))
        found = [self._entry(first, self._segment_files.path(name)) for name in names if (first := first_of(name))]
        foreign = [
            name for name in names if first_of(name) is None and not name.startswith((SPARE, *NON_SEGMENT_PREFIXES))
        ]
        if not found and foreign:
            raise StoreError(
                f"{folder} contains no log but other files, such as {foreign[0]!r}; choose an empty folder"
            )
        return found

    def _entry(self, first: int, path: str) -> SegmentEntry:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            head = scan.head_of(fd)
        except StoreTooNew as error:
            raise StoreTooNew(f"{path}: {error}") from None
        except StoreDamaged as error:
            return SegmentEntry(first, path, None, str(error))
        finally:
            os.close(fd)
        if head.first != first:
            raise StoreDamaged(f"{path} holds the segment that begins at {head.first}; another process renamed it")
        return SegmentEntry(first, path, head)

    def _check_epochs(self, entries: list[SegmentEntry], expected: str | None) -> None:
        before: SegmentEntry | None = None
        for entry in entries:
            if entry.head is None:
                before = None  # without its head, its neighbours cannot be compared
                continue
            if before is not None and before.head is not None and entry.head.before != before.head.epoch:
                raise WrongEpoch(
                    f"{entry.path} follows epoch {entry.head.before.hex()}, but {before.path} is of epoch "
                    f"{before.head.epoch.hex()}: one of them belongs to another log; move it away"
                )
            before = entry
        found = _epoch(entries)
        if expected is not None and found is not None and found.hex() != expected:
            raise WrongEpoch(f"the log in {self._segment_files.folder} is of epoch {found.hex()}, not {expected}")

    def _clear_spares(self) -> None:
        """Delete spare files: their content is unknown after a power cut, and new ones are cheap."""
        for name in os.listdir(self._segment_files.folder):
            if name.startswith(SPARE):
                self._disk.unlink(self._segment_files.path(name))

    # -- last segment ---------------------------------------------------------------------------------------------

    def _last(self, entry: SegmentEntry, entries: list[SegmentEntry], size: int) -> tuple[LogSegment, SpareFile]:
        """Open the segment to write to: the last one, or a new one after it if the last is sealed or damaged."""
        if entry.head is None:
            return self._after_damage(entry, entry.first - 1, entries, size)
        fd = self._disk.open_update(entry.path)
        try:
            seal = scan.seal_of(fd, entry.head)
            if seal is not None:
                # There was a segment after a sealed one. How many records it had is not known.
                state = scan.summary_of(fd, seal).state
                return self._begin_epoch(entry.head.epoch, seal.last, seal.last + 1, state, size)
            sums = scan.SegmentSums(entry.first, entry.head.begin, scan.state_of(fd, entry.head))
        except StoreDamaged:
            self._disk.close(fd)
            return self._after_damage(entry, entry.first - 1, entries, size)
        scan.add_sound(sums, fd, os.fstat(fd).st_size, MAX_SEQUENCE)
        if self._repair_torn_tail(fd, sums):
            self._disk.close(fd)
            return self._after_damage(entry, sums.last, entries, size)
        self._disk.fdatasync(fd)  # a killed writer may have left records unsynced
        return LogSegment(entry.path, entry.head, sums=sums), SpareFile(entry.path, fd, os.fstat(fd).st_size)

    def _repair_torn_tail(self, fd: int, sums: scan.SegmentSums) -> bool:
        """Check whether confirmed records follow the first unreadable byte.

        If none do, the rest is a torn tail that was never confirmed. It is overwritten with zeros up to its last sound
        record, so that none of its records can reappear among records written later."""
        size = os.fstat(fd).st_size
        high = min(MAX_SEQUENCE, sums.last + 1 + (size - sums.end) // records.HEAD)
        found = list(scan.stray_records(fd, sums.end, sums.last + 1, high))
        if confirmed_runs(group_runs(one for one in found if one.head.sequence > sums.last + 1)):
            return True
        if found:
            end = found[-1].offset + found[-1].head.size
            for offset in range(sums.end, end, len(ZEROS)):
                self._disk.write_at(fd, ZEROS[: end - offset], offset)
            self._notes.append(f"cut off {len(found)} records after sequence {sums.last} that were never confirmed")
        return False

    def _note_lost_log(self) -> None:
        """Note that there was a log before, if a durable reader has confirmed a sequence of it."""
        positions = self._known("", 0)
        highest, reader = max(((sequence, name) for name, sequence in positions.items()), default=(0, ""))
        if highest:
            lost = f"the log is lost, with records at least up to {highest}, which {reader} has confirmed"
            self._loss = f"{lost}; a new one begins with a new epoch"
            self._notes.append(self._loss)

    def _check_tail(self, last: LogSegment, active: SpareFile, size: int) -> tuple[LogSegment, SpareFile]:
        """Start a new epoch if a durable reader has confirmed a sequence after the last record.

        Otherwise that sequence would be assigned again in the same epoch, and the reader would take the new record for
        one that it has."""
        end = last.tail.last
        if self._loss or max(self._positions.values(), default=0) <= end:
            return last, active
        state = dict(last.own_sums.state)
        self._segment_files.seal(last, active.fd)  # sealed even if it is empty: the gap after it is part of the log
        self._disk.close(active.fd)
        return self._begin_epoch(last.head.epoch, end, end + 1, state, size)

    def _begin_epoch(
        self, before: bytes, last: int, least: int, state: State, size: int
    ) -> tuple[LogSegment, SpareFile]:
        """Start a segment with a new epoch: after ``last``, the last record that can be read, or from ``least`` on.

        Sequences that a reader has confirmed are skipped, in the log and as many in each topic: a subscriber of a
        protocol without epochs must not take new records for records that it has."""
        highest = max(self._positions.values(), default=0)
        first = max(least, highest + 1)
        reason = f"records after sequence {last} are lost"
        if highest > last:
            readers = sorted(name for name, sequence in self._positions.items() if sequence == highest)
            reason += f", at least up to {highest}, which {readers[0]} has confirmed"
            state = {
                name: one._replace(topic_sequence=one.topic_sequence + highest - last) for name, one in state.items()
            }
        self._loss = f"{reason}; the feed continues with a new epoch at sequence {first}"
        self._notes.append(self._loss)
        return self._begin(size, SegmentHeadValues(self._new_epoch(), before, first, self._now_ns()), state)

    def _after_damage(
        self, entry: SegmentEntry, last: int, entries: list[SegmentEntry], size: int
    ) -> tuple[LogSegment, SpareFile]:
        """Start a new segment after the last readable, possibly confirmed record of a damaged one.

        The damaged one is salvaged later, like earlier segments. If no such record can be read, the number of lost
        records is unknown, and the log continues with a new epoch."""
        state = self._state_before(entry, entries)
        fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            high = min(MAX_SEQUENCE, last + 1 + os.fstat(fd).st_size // records.HEAD)
            rows = confirmed_runs(group_runs(scan.stray_records(fd, 0, entry.first, high)))
            for one in (one for row in rows for one in row.found):
                _count(state, os.pread(fd, one.head.size, one.offset), one.head)
        finally:
            os.close(fd)
        epoch = entry.head.epoch if entry.head else _epoch(entries) or self._new_epoch()
        if rows:
            return self._begin(size, SegmentHeadValues(epoch, epoch, rows[-1].last + 1, self._now_ns()), state)
        return self._begin_epoch(epoch, last, max(last, entry.first) + 1, state, size)  # a file name not in use

    def _begin(self, size: int, head_values: SegmentHeadValues, state: State) -> tuple[LogSegment, SpareFile]:
        spare = self._segment_files.new_spare(size)
        segment = self._segment_files.begin(spare, head_values, state)
        return segment, spare._replace(path=segment.path)

    # -- earlier segments -----------------------------------------------------------------------------------------

    def _seal_or_salvage(
        self, entry: SegmentEntry, following: SegmentEntry, entries: list[SegmentEntry]
    ) -> list[LogSegment]:
        """Return the segment unchanged if its seal is valid.

        Otherwise seal it if all its records are sound, or salvage it."""
        reason = entry.reason
        if entry.head is not None:
            fd = self._disk.open_update(entry.path)
            try:
                seal = scan.seal_of(fd, entry.head)
                if seal is not None and seal.last < following.first:
                    return [LogSegment(entry.path, entry.head, seal=seal)]
                sums = scan.SegmentSums(entry.first, entry.head.begin, scan.state_of(fd, entry.head))
                scan.add_sound(sums, fd, os.fstat(fd).st_size, following.first - 1)
                if sums.last == following.first - 1:
                    return [self._segment_files.seal(LogSegment(entry.path, entry.head, sums=sums), fd)]
                reason = f"the record {sums.last + 1} is damaged"
            except StoreDamaged as error:
                reason = str(error)
            finally:
                self._disk.close(fd)
        return self._salvaged(entry, following, entries, reason)

    def _salvaged(
        self, entry: SegmentEntry, following: SegmentEntry, entries: list[SegmentEntry], reason: str
    ) -> list[LogSegment]:
        known = [other for other in entries if other.first < entry.first and other.head is not None]
        before = known[-1].head.epoch if known and known[-1].head else None
        after = following.head.before if following.head else None
        epoch = entry.head.epoch if entry.head else after or before or _epoch(entries) or self._new_epoch()
        state = self._state_before(entry, entries)
        case = SalvageCase(
            entry.path, entry.first, following.first - 1, epoch, before or epoch, state, reason, _state_of(following)
        )
        salvaged = salvage(self._segment_files, case, self._now_ns())
        kept = sum(segment.tail.last - segment.first + 1 for segment in salvaged)
        self._notes.append(
            f"{entry.path} is damaged ({reason}); it is in {QUARANTINE}, and {kept} records of it were saved"
        )
        return salvaged

    def _state_before(self, entry: SegmentEntry, entries: list[SegmentEntry]) -> State:
        """Return the topic numbers before a segment, from its own state frame.

        If that cannot be read, add up the nearest earlier segment that can be read."""
        for other in sorted((other for other in entries if other.first <= entry.first), reverse=True):
            if other.head is None:
                continue
            fd = os.open(other.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                state = scan.state_of(fd, other.head)
                if other.first == entry.first:
                    return state
                sums = scan.SegmentSums(other.first, other.head.begin, state)
                scan.add_sound(sums, fd, os.fstat(fd).st_size, entry.first - 1)
                return sums.state
            except StoreDamaged:
                continue
            finally:
                os.close(fd)
        return {}


def _state_of(entry: SegmentEntry) -> State:
    """Return the topic numbers before a segment; {} if they cannot be read."""
    if entry.head is None:
        return {}
    fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return scan.state_of(fd, entry.head)
    except StoreDamaged:
        return {}
    finally:
        os.close(fd)


def _created_ns(entries: list[SegmentEntry], epoch: bytes) -> int:
    """Return when the oldest segment of this epoch was created, in nanoseconds since 1970."""
    created = [entry.head.created_ns for entry in entries if entry.head is not None and entry.head.epoch == epoch]
    return min(created, default=0)


def _epoch(entries: list[SegmentEntry]) -> bytes | None:
    """Return the epoch of the last segment with a readable head, or None."""
    return next((entry.head.epoch for entry in reversed(entries) if entry.head is not None), None)


def _count(state: State, data: bytes, head: records.RecordHead) -> None:
    name = str(records.topic_at(data, 0, head), "utf-8", "replace")
    size = head.size + (state[name].size if name in state else 0)
    state[name] = TopicNumbers(head.topic_sequence, head.sequence, head.at_ns, size)
