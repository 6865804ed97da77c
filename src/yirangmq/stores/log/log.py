"""Topic log open for writing: append with group commit, retention, repair.

``Appender`` is the group commit: threads queue tickets, and the thread that gets the lock writes up to 4 MiB of
waiting records with one write and one sync. Readers see confirmed records only. A failed write is overwritten with
zeros. After a failed sync the content of the disk is unknown, and the log refuses appends until it is opened again.

``SegmentLog`` is a folder of segments: one process writes, any number read (``stores.log.readonly``). ``docs/log.md``
describes the layout and the guarantees."""

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

from yirangmq.clock import default_consumer
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, StoreError, Unavailable
from yirangmq.core.topics import (
    MAX_SEQUENCE,
    AppendResult,
    Gap,
    KnownPositions,
    NewRecord,
    Retention,
    TopicState,
    TrimResult,
)
from yirangmq.fsio.disk import LARGE, Disk
from yirangmq.fsio.errors import as_store_error, os_errors_translated
from yirangmq.fsio.permissions import access_in
from yirangmq.stores.lock import Holder, StoreLock
from yirangmq.stores.log.check import sound_part
from yirangmq.stores.log.reader import Chain, LogSegment, SegmentReader, plan_trim
from yirangmq.stores.log.recovery import LogRecovery
from yirangmq.stores.log.segment_files import ZEROS, ActiveSegment, SegmentFileOperations
from yirangmq.stores.log.segment_set import SegmentSet, segment_size
from yirangmq.wire import records

# -- append ------------------------------------------------------------------------------------------------------------

MAX_COMMIT_BYTES = 4 << 20
"""Upper bound of payload bytes in one group commit; at 4 MiB the sync is a small part of its cost."""
MAX_SEGMENT_RECORDS = 1 << 18
"""Upper bound of records per segment, because the last segment is scanned when a log is opened. One group commit may
exceed it."""
Durability = Literal["full", "os"]
OnCommit = Callable[[Sequence[AppendResult]], None]


class PendingAppend:
    """Pending call of ``append``. It is done when it has a result or an error."""

    __slots__ = ("error", "records", "result", "size")

    def __init__(self, batch: Sequence[NewRecord], size: int) -> None:
        self.records = batch
        self.size = size
        self.result: AppendResult | None = None
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.result is not None or self.error is not None


class Appender:
    """Group commit of the topic log: waiting calls of ``append`` share one write and one sync.

    Any thread may call ``append``. The thread that gets ``write_lock`` commits for all waiting calls. Everything else
    here changes under ``write_lock`` only."""

    def __init__(
        self,
        segment_files: SegmentFileOperations,
        end: ActiveSegment,
        durability: Durability,
        now_ns: Callable[[], int],
        segment_set: SegmentSet,
    ) -> None:
        self._disk = segment_files.disk
        self._root = Path(segment_files.folder)
        self._is_full = durability == "full"
        self._now_ns = now_ns
        self._segment_set = segment_set
        self._prepared_segment: LogSegment | None = None
        self._waiting: deque[PendingAppend] = deque()
        self.write_lock = threading.RLock()
        """Write lock: its holder may append records and start a new segment."""
        self.end = end
        self.on_commit: OnCommit | None = None
        state = end.segment.own_sums.state
        self._numbers = {name: topic.topic_sequence for name, topic in state.items()}
        self._is_synced = True
        self._failure_reason: str | None = None
        self._last_ns = max([end.segment.own_sums.last_ns, *(topic.at_ns for topic in state.values())])

    def append(self, batch: Sequence[NewRecord]) -> AppendResult:
        pending = PendingAppend(batch, records.check_batch(batch, self._numbers))
        self._waiting.append(pending)
        while not pending.is_done:
            with self.write_lock:
                if not pending.is_done:
                    self._commit_batch(self._taken())
        if pending.error is not None:
            raise pending.error
        if pending.result is None:
            raise StoreError("an append ended without a result")
        return pending.result

    def _taken(self) -> list[PendingAppend]:
        """Remove the next batch from the queue: at most ``MAX_COMMIT_BYTES`` bytes together, but at least one call."""
        taken = [self._waiting.popleft()]
        size = taken[0].size
        while self._waiting and size + self._waiting[0].size <= MAX_COMMIT_BYTES:
            taken.append(self._waiting.popleft())
            size += taken[-1].size
        return taken

    def _commit_batch(self, pending_appends: list[PendingAppend]) -> None:
        """Commit a batch. Every ticket gets its result or its error, also when the thread is interrupted."""
        try:
            results = self._commit(pending_appends)
        except OSError as error:
            self._fail(pending_appends, as_store_error(error, self._root))
        except Exception as error:
            self._fail(pending_appends, error)
        except BaseException:
            self._failure_reason = "a write was interrupted"
            self._fail(pending_appends, StoreError(f"the log in {self._root} was interrupted; open it again"))
            raise
        else:
            for pending, result in zip(pending_appends, results, strict=True):
                pending.result = result
            if self.on_commit is not None:
                self.on_commit(results)

    def _fail(self, pending_appends: list[PendingAppend], error: Exception) -> None:
        for pending in pending_appends:
            pending.error = error

    # -- one write ------------------------------------------------------------------------------------------------

    def _commit(self, pending_appends: list[PendingAppend]) -> list[AppendResult]:
        self._check_usable()
        at_ns = max(self._now_ns(), self._last_ns)
        before: dict[str, int] = {}
        try:
            results, batches = self._encoded(pending_appends, at_ns, before)
            data = batches[0].data if len(batches) == 1 else b"".join(batch.data for batch in batches)
            if not self._has_capacity(len(data), results[-1].last):
                self.end = self._segment_set.roll(self.end, len(data))
            self._write(data)
        except BaseException:
            for name, number in before.items():
                self._numbers[name] = number
            self._numbers = {name: number for name, number in self._numbers.items() if number}
            raise
        self._count(pending_appends, batches, at_ns)
        # For large writes the disk is the limit, not the cost of growing the file: no file is prepared.
        if self._prepared_segment is not self.end.segment and len(data) < LARGE:
            self._prepared_segment = self.end.segment
            self._segment_set.prepare()
        return results

    def _has_capacity(self, size: int, last: int) -> bool:
        segment, file = self.end
        return segment.tail.end + size <= file.size and last - segment.first < MAX_SEGMENT_RECORDS

    def _encoded(
        self, pending_appends: list[PendingAppend], at_ns: int, before: dict[str, int]
    ) -> tuple[list[AppendResult], list[records.EncodedBatch]]:
        """Encode a batch. ``before`` receives the previous topic sequences, so that a failed write can restore them."""
        sequence = self.end.segment.tail.last + 1
        synced = self._is_synced
        results, batches = [], []
        numbers = self._numbers
        for pending in pending_appends:
            batch = records.encode_batch(pending.records, sequence, at_ns, numbers, synced=synced)
            for name, number in batch.topics.items():
                before.setdefault(name, numbers.get(name, 0))
                numbers[name] = number
            batches.append(batch)
            last = sequence + len(pending.records) - 1
            results.append(AppendResult(sequence, last, at_ns, batch.data, batch.offsets))
            sequence, synced = last + 1, False
        return results, batches

    def _write(self, data: bytes) -> None:
        fd, offset = self.end.file.fd, self.end.segment.tail.end
        if len(data) >= LARGE:  # if the disk filled up halfway, readers could see records that are then erased
            self._disk.reserve(fd, offset, len(data))
        try:
            self._disk.write_at(fd, data, offset)
        except OSError:
            self._erase_unconfirmed(len(data))
            raise
        if not self._is_full:
            self._is_synced = False
            return
        try:
            self._disk.fdatasync(fd)
        except OSError as error:
            self._failure_reason = f"a sync failed ({error.strerror}); what is on disk is not known"
            self._erase_unconfirmed(len(data))
            raise
        self._is_synced = True

    def _erase_unconfirmed(self, size: int) -> None:
        """Overwrite unconfirmed bytes with zeros and sync: no reader, and no recovery after a power cut, finds them."""
        begin = self.end.segment.tail.end
        try:
            try:
                for offset in range(begin, begin + size, len(ZEROS)):
                    self._disk.write_at(self.end.file.fd, ZEROS[: begin + size - offset], offset)
            except OSError:  # no space for zeros either: this file was not preallocated
                self._disk.truncate(self.end.file.path, begin)
            self._disk.fdatasync(self.end.file.fd)
        except OSError as error:
            self._failure_reason = self._failure_reason or f"a partial write could not be undone ({error.strerror})"

    def _count(self, pending_appends: list[PendingAppend], batches: list[records.EncodedBatch], at_ns: int) -> None:
        sums = self.end.segment.own_sums
        for pending, batch in zip(pending_appends, batches, strict=True):
            if len(batch.topics) == 1:
                [(name, number)] = batch.topics.items()
                sums.add_same(name, number, at_ns, len(pending.records), len(batch.data))
                continue
            counts = Counter(record.topic for record in pending.records)
            numbers = {name: batch.topics[name] - count for name, count in counts.items()}
            ends = [*batch.offsets[1:], len(batch.data)]
            for record, begin, end in zip(pending.records, batch.offsets, ends, strict=True):
                numbers[record.topic] += 1
                sums.add(record.topic, numbers[record.topic], at_ns, end - begin)
        self._last_ns = at_ns
        self.end.segment.confirm()

    # -- state and control ----------------------------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        """False if a write or a sync failed: appends are refused until the log is opened again."""
        return self._failure_reason is None and self._segment_set.failure_reason is None

    def _check_usable(self) -> None:
        reason = self._failure_reason or self._segment_set.failure_reason
        if reason is not None:
            raise StoreError(f"the log in {self._root} takes no more: {reason}; open it again")

    def roll(self) -> None:
        """Start a new segment; later records are appended there."""
        with self.write_lock:
            self._check_usable()
            self.end = self._segment_set.roll(self.end, 0)

    def close(self) -> None:
        with self.write_lock:
            try:
                if not self._is_synced and self._failure_reason is None:
                    self._disk.fdatasync(self.end.file.fd)
            finally:
                self._disk.close(self.end.file.fd)

    def sync(self) -> None:
        """Sync appended records now; needed with durability "os", where appends do not sync."""
        with self.write_lock:
            self._check_usable()
            try:
                self._disk.fdatasync(self.end.file.fd)
            except OSError as error:
                self._failure_reason = f"a sync failed ({error.strerror}); what is on disk is not known"
                raise
            self._is_synced = True


# -- log ---------------------------------------------------------------------------------------------------------------


class LogSettings(NamedTuple):
    """Settings of a topic log.

    ``durability`` "full": records are on disk when ``append`` returns. "os": they survive a killed process, but not a
    power cut. ``ahead``: prepare the next file and seal the previous one on a background thread."""

    segment_bytes: int = 64 << 20
    durability: Durability = "full"
    ahead: bool = True

    def checked(self) -> "LogSettings":
        validation.check_count(self.segment_bytes, "segmentBytes", least=1024, most=1 << 40)
        if self.durability not in ("full", "os"):
            raise BadInput(f"must be 'full' or 'os', not {self.durability!r}", field="durability")
        return self


DEFAULTS = LogSettings()


class SegmentLog:
    """Topic log open for writing, from construction until ``close``.

    It holds the lock of its folder. ``append`` and the read methods may be called from any thread. If ``epoch`` is
    given, a log of another epoch is refused with ``WrongEpoch``. ``known`` is called while the log is opened: if a
    durable reader has confirmed more than the log holds, a new epoch begins."""

    def __init__(
        self,
        folder: Path | str,
        settings: LogSettings = DEFAULTS,
        *,
        epoch: str | None = None,
        disk: Disk | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        new_epoch: Callable[[], bytes] = lambda: os.urandom(16),
        known: KnownPositions = lambda epoch, since_ns: {},
    ) -> None:
        self.settings = settings.checked()
        self.folder = Path(folder)
        self._now_ns = now_ns
        self._segment_files = SegmentFileOperations(str(self.folder), disk or Disk())
        self._is_open = True
        with os_errors_translated(self.folder):
            self._segment_files.disk.access = access_in(self.folder)
            _make_folder(self._segment_files.disk, self.folder)
        self._lock = _lock(self.folder)
        try:
            with os_errors_translated(self.folder):
                size = segment_size(settings.segment_bytes, 0)
                found = LogRecovery(self._segment_files, now_ns, new_epoch, known).run(size, epoch)
        except BaseException:
            self._lock.close()
            raise
        self.notes: Sequence[str] = found.notes
        """Messages about faults that were found and repaired while opening."""
        self.loss = found.loss
        """Why a new epoch began while opening, or ""."""
        self._segment_set = SegmentSet(
            self._segment_files, found.chain, settings.segment_bytes, now_ns, ahead=settings.ahead
        )
        end = ActiveSegment(found.chain[-1], found.active)
        self._appender = Appender(self._segment_files, end, settings.durability, now_ns, self._segment_set)

    # -- properties -----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> str:
        return self.chain[-1].head.epoch.hex()

    @property
    def durability(self) -> Durability:
        return self.settings.durability

    @property
    def chain(self) -> Chain:
        return self._segment_set.chain

    @property
    def first(self) -> int:
        return self.chain[0].first

    @property
    def last(self) -> int:
        return self.chain[-1].tail.last

    @property
    def size(self) -> int:
        """Bytes of all retained records."""
        return self._segment_set.size

    def refresh(self, *, reload: bool = False) -> None:
        """Do nothing: the writer is always up to date."""

    def reader(self) -> SegmentReader:
        return SegmentReader(self)

    def gaps(self) -> Sequence[Gap]:
        return self.reader().gaps()

    def topics(self) -> dict[str, TopicState]:
        return self.reader().topics()

    @property
    def is_usable(self) -> bool:
        return self._appender.is_usable

    # -- appending ------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[NewRecord]) -> AppendResult:
        self._check_open()
        return self._appender.append(records)

    def on_commit(self, listener: OnCommit | None) -> None:
        """Set the callback of each commit. It runs in commit order, under the append lock, before the appending calls
        return."""
        with self._appender.write_lock:
            self._appender.on_commit = listener

    @contextmanager
    def pause_appends(self) -> Iterator[int]:
        """Block appends inside the ``with`` block and yield the last sequence. Keep the block short."""
        with self._appender.write_lock:
            yield self.last

    def sync(self) -> None:
        with os_errors_translated(self.folder):
            self._appender.sync()

    def _check_open(self) -> None:
        if not self._is_open:
            raise Unavailable(f"the log in {self.folder} is closed")

    # -- retention and repair -------------------------------------------------------------------------------------

    def retain(self, rule: Retention, floor: int | None = None) -> TrimResult:
        for value, field in ((rule.age_ns, "ageNs"), (rule.size, "size"), (floor, "floor")):
            if value is not None:
                validation.check_count(value, field, least=0, most=MAX_SEQUENCE)
        chain = self.chain
        before = chain[0].first
        if rule.age_ns is not None:
            before = max(before, self.reader().sequence_at(self._now_ns() - rule.age_ns))
        if rule.size is not None:
            before = max(before, _oldest_within(chain, rule.size))
        return self.trim(before if floor is None else min(before, floor))

    def trim(self, before: int, *, dry_run: bool = False) -> TrimResult:
        self._check_open()
        validation.check_count(before, "before", least=0, most=MAX_SEQUENCE)
        if dry_run:
            return plan_trim(self.chain, before)
        with os_errors_translated(self.folder):
            done = self._segment_set.retire(before)  # before the roll, which needs disk space: the disk may be full
            end = self.chain[-1]
            if not end.first <= end.tail.last < before:
                return done
            self._appender.roll()
            more = self._segment_set.retire(before)
            return TrimResult(done.segments + more.segments, done.size + more.size, more.first)

    def mend(self) -> list[str]:
        """Read all segments and repair the damaged ones: quarantine the file, keep its sound records.

        Return one message per repaired segment. Lost records become a gap."""
        self._check_open()
        with os_errors_translated(self.folder):
            if self._is_end_damaged():
                self._appender.roll()
            return self._segment_set.mend()

    def _is_end_damaged(self) -> bool:
        end = self.chain[-1]
        with end.opened() as fd:
            last = end.tail.last
            return sound_part(end, fd).last < last

    # -- closing --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            with os_errors_translated(self.folder), self._appender.write_lock:
                try:
                    self._segment_set.close()
                finally:
                    self._appender.close()
        finally:
            self._lock.close()

    def __enter__(self) -> "SegmentLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _oldest_within(chain: Chain, size: int) -> int:
    """Return the first sequence of the fewest newest segments that together have at least ``size`` bytes."""
    for segment in reversed(chain):
        size -= segment.size
        if size <= 0:
            return segment.first
    return chain[0].first


def _make_folder(disk: Disk, folder: Path) -> None:
    """Create the folder if needed. Always sync its parent: a killed process may have created it without a sync."""
    if not folder.is_dir():
        disk.mkdir(str(folder))
    disk.fsync_folder(str(folder.parent))


def _lock(folder: Path) -> StoreLock:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return StoreLock(f"log:{folder}", Holder(os.getpid(), "", default_consumer(), since))
