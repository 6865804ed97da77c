"""Log recovery: opens a folder of segments for writing.

Recovery reads the head and seal of every segment, scans the last one, and overwrites a torn tail left by a power cut.
It seals segments that were not sealed yet, salvages damaged ones, and removes spare files. The segments hold all state
of the log; there is no other file.

The log continues with a new epoch only if an unknown number of records is lost. ``StoreTooNew`` and ``WrongEpoch`` are
raised before anything is changed."""

import os
from collections.abc import Callable
from typing import NamedTuple

from yirangmq.core.errors import StoreDamaged, StoreError, StoreTooNew, WrongEpoch
from yirangmq.core.topics import MOST_SEQUENCE
from yirangmq.stores.log import segment_format as scan
from yirangmq.stores.log.reader import Segment
from yirangmq.stores.log.salvage import QUARANTINE, Case, proven, runs, salvage
from yirangmq.stores.log.segment_files import ZEROS, Making, Spare, Workshop
from yirangmq.stores.log.segment_format import SPARE, Head, State, Topic, first_of
from yirangmq.wire import records

BESIDE = (QUARANTINE, "cursors")
"""Name prefixes of files and folders in a log's folder that are not segments."""


class Entry(NamedTuple):
    """File with a segment's name. ``head`` is None if it cannot be read, for the reason ``why``."""

    first: int
    path: str
    head: Head | None
    why: str = ""


class Recovered(NamedTuple):
    """Result of a recovery.

    ``active`` is the file of the last segment of ``chain``, open for writing. ``notes`` are messages about faults found
    and repaired."""

    chain: list[Segment]
    active: Spare
    notes: list[str]


class Recovery:
    """Recovery of a topic log; used once, while the lock of its folder is held."""

    def __init__(self, workshop: Workshop, now_ns: Callable[[], int], new_epoch: Callable[[], bytes]) -> None:
        self._workshop = workshop
        self._disk = workshop.disk
        self._now_ns = now_ns
        self._new_epoch = new_epoch
        self._notes: list[str] = []

    def run(self, size: int, epoch: str | None) -> Recovered:
        """Recover the log. ``size`` is the size of a new segment in bytes.

        A log of an epoch other than ``epoch``, if given, is refused before anything is changed."""
        entries = self._entries()
        self._check_epochs(entries, epoch)
        self._clear_spares()
        self._disk.fsync_folder(self._workshop.folder)  # a killed writer may not have synced its last rename
        if not entries:
            fresh = self._new_epoch()
            segment, active = self._begin(size, Making(fresh, fresh, 1, self._now_ns()), {})
            return Recovered([segment], active, self._notes)
        last, active = self._last(entries[-1], entries, size)
        chain: list[Segment] = []
        new = Entry(last.first, last.path, last.head)
        for entry, following in zip(entries, [*entries[1:], new], strict=True):
            if entry.first != following.first:
                chain += self._settled(entry, following, entries)
        return Recovered([*chain, last], active, self._notes)

    # -- files ----------------------------------------------------------------------------------------------------

    def _entries(self) -> list[Entry]:
        folder = self._workshop.folder
        names = sorted(os.listdir(folder))
        found = [self._entry(first, self._workshop.path(name)) for name in names if (first := first_of(name))]
        foreign = [name for name in names if first_of(name) is None and not name.startswith((SPARE, *BESIDE))]
        if not found and foreign:
            raise StoreError(f"{folder} holds no log but other files, such as {foreign[0]!r}; choose an empty folder")
        return found

    def _entry(self, first: int, path: str) -> Entry:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            head = scan.head_of(fd)
        except StoreTooNew as error:
            raise StoreTooNew(f"{path}: {error}") from None
        except StoreDamaged as error:
            return Entry(first, path, None, str(error))
        finally:
            os.close(fd)
        if head.first != first:
            raise StoreDamaged(f"{path} holds the segment that begins at {head.first}; it was renamed by somebody")
        return Entry(first, path, head)

    def _check_epochs(self, entries: list[Entry], expected: str | None) -> None:
        before: Entry | None = None
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
            raise WrongEpoch(f"the log in {self._workshop.folder} is of epoch {found.hex()}, not {expected}")

    def _clear_spares(self) -> None:
        """Delete spare files: their content is unknown after a power cut, and new ones are cheap."""
        for name in os.listdir(self._workshop.folder):
            if name.startswith(SPARE):
                self._disk.unlink(self._workshop.path(name))

    # -- last segment ---------------------------------------------------------------------------------------------

    def _last(self, entry: Entry, entries: list[Entry], size: int) -> tuple[Segment, Spare]:
        """Open the segment to write to: the last one, or a new one after it if the last is sealed or damaged."""
        if entry.head is None:
            return self._after_damage(entry, entry.first - 1, entries, size)
        fd = self._disk.open_update(entry.path)
        try:
            seal = scan.seal_of(fd, entry.head)
            if seal is not None:
                return self._after_loss(entry.head, seal.last, scan.summary_of(fd, seal).state, size)
            sums = scan.Sums(entry.first, entry.head.begin, scan.state_of(fd, entry.head))
        except StoreDamaged:
            self._disk.close(fd)
            return self._after_damage(entry, entry.first - 1, entries, size)
        scan.add_sound(sums, fd, os.fstat(fd).st_size, MOST_SEQUENCE)
        if self._is_damaged(fd, sums):
            self._disk.close(fd)
            return self._after_damage(entry, sums.last, entries, size)
        self._disk.fdatasync(fd)  # a killed writer may have left records unsynced
        return Segment(entry.path, entry.head, sums=sums), Spare(entry.path, fd, os.fstat(fd).st_size)

    def _is_damaged(self, fd: int, sums: scan.Sums) -> bool:
        """Check whether confirmed records follow the first unreadable byte.

        If none do, the rest is a torn tail that was never confirmed. It is overwritten with zeros up to its last sound
        record, so that none of its records can reappear among records written later."""
        size = os.fstat(fd).st_size
        high = min(MOST_SEQUENCE, sums.last + 1 + (size - sums.end) // records.HEAD)
        found = list(scan.strays(fd, sums.end, sums.last + 1, high))
        if proven(runs(one for one in found if one.head.sequence > sums.last + 1)):
            return True
        if found:
            end = found[-1].offset + found[-1].head.size
            for offset in range(sums.end, end, len(ZEROS)):
                self._disk.write_at(fd, ZEROS[: end - offset], offset)
            self._notes.append(f"cut off {len(found)} records after sequence {sums.last} that were never confirmed")
        return False

    def _after_loss(self, head: Head, last: int, state: State, size: int) -> tuple[Segment, Spare]:
        """Start a new segment after a sealed one, because the segment after it is missing.

        The number of lost records is unknown, so the log continues with a new epoch."""
        self._notes.append(f"the segment after sequence {last} is lost; the feed goes on with a new epoch")
        return self._begin(size, Making(self._new_epoch(), head.epoch, last + 1, self._now_ns()), state)

    def _after_damage(self, entry: Entry, last: int, entries: list[Entry], size: int) -> tuple[Segment, Spare]:
        """Start a new segment after the last readable, possibly confirmed record of a damaged one.

        The damaged one is salvaged later, like earlier segments. If no such record can be read, the number of lost
        records is unknown, and the log continues with a new epoch."""
        state = self._state_before(entry, entries)
        fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            high = min(MOST_SEQUENCE, last + 1 + os.fstat(fd).st_size // records.HEAD)
            rows = proven(runs(scan.strays(fd, 0, entry.first, high)))
            for one in (one for row in rows for one in row.found):
                _count(state, os.pread(fd, one.head.size, one.offset), one.head)
        finally:
            os.close(fd)
        epoch = entry.head.epoch if entry.head else _epoch(entries) or self._new_epoch()
        if rows:
            return self._begin(size, Making(epoch, epoch, rows[-1].last + 1, self._now_ns()), state)
        first = max(last, entry.first) + 1  # a file name not in use
        return self._begin(size, Making(self._new_epoch(), epoch, first, self._now_ns()), state)

    def _begin(self, size: int, making: Making, state: State) -> tuple[Segment, Spare]:
        spare = self._workshop.new_spare(size)
        segment = self._workshop.begin(spare, making, state)
        return segment, spare._replace(path=segment.path)

    # -- earlier segments -----------------------------------------------------------------------------------------

    def _settled(self, entry: Entry, following: Entry, entries: list[Entry]) -> list[Segment]:
        """Return the segment unchanged if its seal is valid.

        Otherwise seal it if all its records are sound, or salvage it."""
        why = entry.why
        if entry.head is not None:
            fd = self._disk.open_update(entry.path)
            try:
                seal = scan.seal_of(fd, entry.head)
                if seal is not None and seal.last < following.first:
                    return [Segment(entry.path, entry.head, seal=seal)]
                sums = scan.Sums(entry.first, entry.head.begin, scan.state_of(fd, entry.head))
                scan.add_sound(sums, fd, os.fstat(fd).st_size, following.first - 1)
                if sums.last == following.first - 1:
                    return [self._workshop.seal(Segment(entry.path, entry.head, sums=sums), fd)]
                why = f"the record {sums.last + 1} does not hold what was written"
            except StoreDamaged as error:
                why = str(error)
            finally:
                self._disk.close(fd)
        return self._salvaged(entry, following, entries, why)

    def _salvaged(self, entry: Entry, following: Entry, entries: list[Entry], why: str) -> list[Segment]:
        known = [other for other in entries if other.first < entry.first and other.head is not None]
        before = known[-1].head.epoch if known and known[-1].head else None
        after = following.head.before if following.head else None
        epoch = entry.head.epoch if entry.head else after or before or _epoch(entries) or self._new_epoch()
        state = self._state_before(entry, entries)
        case = Case(entry.path, entry.first, following.first - 1, epoch, before or epoch, state, why)
        made = salvage(self._workshop, case, self._now_ns())
        kept = sum(segment.tail.last - segment.first + 1 for segment in made)
        self._notes.append(
            f"{entry.path} is damaged ({why}); it is in {QUARANTINE}, and {kept} records of it were saved"
        )
        return made

    def _state_before(self, entry: Entry, entries: list[Entry]) -> State:
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
                sums = scan.Sums(other.first, other.head.begin, state)
                scan.add_sound(sums, fd, os.fstat(fd).st_size, entry.first - 1)
                return sums.state
            except StoreDamaged:
                continue
            finally:
                os.close(fd)
        return {}


def _epoch(entries: list[Entry]) -> bytes | None:
    """Return the epoch of the last segment with a readable head, or None."""
    return next((entry.head.epoch for entry in reversed(entries) if entry.head is not None), None)


def _count(state: State, data: bytes, head: records.RecordHead) -> None:
    name = str(records.topic_at(data, 0, head), "utf-8", "replace")
    size = head.size + (state[name].size if name in state else 0)
    state[name] = Topic(head.topic_sequence, head.sequence, head.at_ns, size)
