"""Segment set of a log open for writing: roll, seal, retention, replacement, and the background executor.

``SegmentSet`` holds the chain of segments and the spare file. New segments are added at the end, old ones are removed
at the beginning, damaged ones are replaced. The chain is an immutable tuple: readers keep the one they have. ``roll``
is called under the appender's lock. Changes of other segments take ``_maintenance_lock``.

``MaintenanceExecutor`` runs jobs that no caller waits for (sealing, preparing the next file) in order on one thread. If
``ahead`` is off, it runs them immediately on the caller's thread."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise

from yirangmq.core.errors import Unavailable
from yirangmq.core.topics import TrimResult
from yirangmq.fsio.background import BackgroundExecutor
from yirangmq.stores.log.check import repair_segment
from yirangmq.stores.log.reader import LogSegment
from yirangmq.stores.log.salvage import QUARANTINE
from yirangmq.stores.log.segment_files import ActiveSegment, SegmentFileOperations, SegmentHeadValues, SpareFile
from yirangmq.stores.log.segment_format import HEAD_SIZE, write_state

# -- background executor -----------------------------------------------------------------------------------------------

Work = Callable[[], None]
log = logging.getLogger(__name__)


class MaintenanceExecutor:
    """Background executor of segment maintenance: runs one job at a time, in order, on one thread.

    Without ``ahead`` there is no thread, and ``run`` executes the job."""

    def __init__(self, *, ahead: bool) -> None:
        self._executor = BackgroundExecutor(partial(ThreadPoolExecutor, 1, "yirangmq-log")) if ahead else None

    def run(self, work: Work) -> None:
        if self._executor is None:
            work()
            return
        try:
            self._executor.submit(partial(_logged, work))
        except Unavailable:  # no thread can be started: the caller runs the job
            _logged(work)

    def wait_idle(self) -> None:
        """Wait until all submitted jobs have finished."""
        if self._executor is not None:
            self._executor.drain()

    def close(self) -> None:
        """Run all submitted jobs to the end, then stop the thread."""
        if self._executor is not None:
            self._executor.stop(cancel=False)


def _logged(work: Work) -> None:
    try:
        work()
    except Exception:  # no caller waits for the error, and the next job must still run
        log.exception("log_upkeep_failed")


# -- segment set -------------------------------------------------------------------------------------------------------

SMALLEST_FIRST = 1 << 20
"""Size of the first segment of a new log: 1 MiB. Later ones may be as large as all retained records together."""


def segment_size(most: int, kept: int) -> int:
    return min(most, max(SMALLEST_FIRST, kept))


class SegmentSet:
    """Segment set: the live segments of a log open for writing, and the spare file.

    ``most`` is the maximum size of a segment in bytes. ``ahead``: seal and prepare files on a background thread."""

    def __init__(
        self,
        segment_files: SegmentFileOperations,
        chain: Sequence[LogSegment],
        most: int,
        now_ns: Callable[[], int],
        *,
        ahead: bool,
    ) -> None:
        self.chain = tuple(chain)
        self.failure_reason: str | None = None
        """Why appends are refused until the log is opened again, or None."""
        self._segment_files = segment_files
        self._most = most
        self._now_ns = now_ns
        self._ahead = ahead
        self._maintenance = MaintenanceExecutor(ahead=ahead)
        self._spare: SpareFile | None = None
        self._maintenance_lock = threading.RLock()
        """Lock for changes of segments other than the last."""
        self._chain_lock = threading.Lock()
        """Lock for the replacement of ``chain`` and of the spare file; held only briefly."""

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.chain)

    # -- roll and preparation -------------------------------------------------------------------------------------

    def roll(self, old: ActiveSegment, need: int) -> ActiveSegment:
        """Start a new segment at the end, with capacity for at least ``need`` bytes of records.

        The caller holds the appender's lock."""
        state = old.segment.own_sums.state
        capacity = max(segment_size(self._most, self.size), HEAD_SIZE + len(write_state(state)) + need)
        is_empty = old.segment.tail.last < old.segment.first
        epoch = old.segment.head.epoch
        before = old.segment.head.before if is_empty else epoch
        head_values = SegmentHeadValues(epoch, before, old.segment.tail.last + 1, self._now_ns())
        spare = self._take_spare() or self._segment_files.new_spare(0 if self._ahead else capacity)
        try:
            # The appender does not wait for preallocation: without a prepared file, the file grows as it is written.
            spare = spare.with_capacity(capacity) if self._ahead else self._segment_files.extend(spare, capacity)
            segment = self._segment_files.write_opening(spare, head_values, state)
            self._segment_files.disk.fdatasync(spare.fd)
        except BaseException:
            self._segment_files.discard(spare)
            raise
        try:
            self._segment_files.rename_into_place(spare, segment)
        except BaseException:
            self.failure_reason = "a new segment could not be installed"
            raise
        with self._chain_lock:
            self.chain = (*self.chain[:-1], segment) if is_empty else (*self.chain, segment)
        if is_empty:  # it was too small for its first batch of records, and was replaced
            with suppress(OSError):
                self._segment_files.disk.close(old.file.fd)
        else:
            self._maintenance.run(lambda: self._seal(old))
        return ActiveSegment(segment, spare._replace(path=segment.path))

    def prepare(self) -> None:
        """Prepare the next file in the background. Called when the last segment has its first records."""
        if self._ahead:
            self._maintenance.run(self._prepare)

    def _prepare(self) -> None:
        capacity = segment_size(self._most, self.size)
        with self._maintenance_lock:
            spare = self._take_spare()
            try:
                spare = (
                    self._segment_files.extend(spare, capacity) if spare else self._segment_files.new_spare(capacity)
                )
            except OSError:
                pass  # the next roll tries again and reports the error
            if spare is not None:
                self._put_spare(spare)

    def _take_spare(self) -> SpareFile | None:
        with self._chain_lock:
            spare, self._spare = self._spare, None
        return spare

    def _put_spare(self, spare: SpareFile) -> None:
        with self._chain_lock:
            other, self._spare = self._spare, spare
        if other is not None:
            self._segment_files.discard(other)

    def _seal(self, end: ActiveSegment) -> None:
        """Seal the previous segment. An error is ignored: the next opening seals it."""
        with self._maintenance_lock:
            try:
                sealed = self._segment_files.seal(end.segment, end.file.fd)
            except OSError:
                sealed = end.segment
            with suppress(OSError):
                self._segment_files.disk.close(end.file.fd)
            self._replace(end.segment, [sealed])

    def _replace(self, old: LogSegment, new: Sequence[LogSegment]) -> None:
        with self._chain_lock:
            self.chain = tuple(one for segment in self.chain for one in (new if segment is old else [segment]))

    # -- retention and repair -------------------------------------------------------------------------------------

    def retire(self, before: int) -> TrimResult:
        """Remove whole segments before a sequence, the oldest first.

        Each removal is durable before the next, so a power cut leaves no gap."""
        count = size = 0
        with self._maintenance_lock:
            while len(self.chain) > 1 and self.chain[0].tail.last < before:
                segment = self.chain[0]
                # An unsealed file must not be recycled: its pending seal would be written into the new segment.
                recycle = self._spare is None and segment.seal is not None
                try:
                    spare = self._segment_files.retire(segment, recycle=recycle)
                finally:
                    if not os.path.lexists(segment.path):
                        self._replace(segment, [])
                if spare is not None:
                    self._put_spare(spare)
                count += 1
                size += segment.size
            return TrimResult(count, size, self.chain[0].first)

    def mend(self) -> list[str]:
        """Repair every damaged segment except the last. Return one message per repaired segment."""
        done: list[str] = []
        self._maintenance.wait_idle()
        with self._maintenance_lock:
            for segment, following in pairwise(self.chain):
                repaired = repair_segment(self._segment_files, segment, following, self._now_ns())
                if repaired is not None:
                    self._replace(segment, repaired)
                    done.append(
                        f"{segment.path} was damaged; its readable records are kept, the file is in {QUARANTINE}"
                    )
        return done

    def close(self) -> None:
        self._maintenance.close()
        spare = self._take_spare()
        if spare is not None:
            self._segment_files.discard(spare)
