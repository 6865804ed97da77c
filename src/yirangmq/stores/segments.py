"""The log of a publisher's topics: a folder of segments. One process writes, any number read (``segments_view``).

Knows: how the parts work together, which segments there are. Does not know: subscribers, sockets.
``docs/log.md`` says what lies where and what is promised."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from yirangmq.clock import default_consumer
from yirangmq.core import names
from yirangmq.core.errors import BadInput, Unavailable
from yirangmq.core.topics import MOST_SEQUENCE, Appended, Gap, NewRecord, Retention, TopicState, Trimmed
from yirangmq.stores.disk import Disk
from yirangmq.stores.files_errors import translated
from yirangmq.stores.holder import Holder, StoreLock
from yirangmq.stores.segments_append import Appender, Durability, End, OnCommit, sums_of
from yirangmq.stores.segments_chain import Chain, Segment
from yirangmq.stores.segments_errands import Errands
from yirangmq.stores.segments_layout import HEAD_SIZE, write_state
from yirangmq.stores.segments_make import Making, Spare, Workshop
from yirangmq.stores.segments_reader import SegmentReader
from yirangmq.stores.segments_recover import Recovery

SMALLEST_FIRST = 1 << 20
"""A new log begins small, and each segment may be as large as all that is kept before it."""


class LogSettings(NamedTuple):
    """``durability``: "full", an append is on disk when it returns; "os", it survives a killed process, no power cut.
    ``ahead``: prepare the next file, and seal the last one, in a thread of its own."""

    segment_bytes: int = 64 << 20
    durability: Durability = "full"
    ahead: bool = True

    def checked(self) -> "LogSettings":
        names.check_count(self.segment_bytes, "segmentBytes", least=1024, most=1 << 40)
        if self.durability not in ("full", "os"):
            raise BadInput(f"must be 'full' or 'os', not {self.durability!r}", field="durability")
        return self


DEFAULTS = LogSettings()


class SegmentLog:
    """Open for writing from the moment it is made until ``close``. ``epoch``: refuse a log of another one."""

    def __init__(
        self,
        folder: Path | str,
        settings: LogSettings = DEFAULTS,
        *,
        epoch: str | None = None,
        disk: Disk | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        new_epoch: Callable[[], bytes] = lambda: os.urandom(16),
    ) -> None:
        self.settings = settings.checked()
        self.folder = Path(folder)
        self._now_ns = now_ns
        self._workshop = Workshop(str(self.folder), disk or Disk())
        self._upkeep = threading.RLock()
        """Whoever has it may change segments other than the last."""
        self._swap = threading.Lock()
        """For the moment in which one chain takes the place of another."""
        self._spare: Spare | None = None
        self._is_open = True
        with translated(self.folder):
            _make_folder(self._workshop.disk, self.folder)
        self._lock = _lock(self.folder)
        try:
            with translated(self.folder):
                found = Recovery(self._workshop, now_ns, new_epoch).run(self._size(0), epoch)
        except BaseException:
            self._lock.close()
            raise
        self.notes: Sequence[str] = found.notes
        """What was found and done while opening, in words."""
        self._chain: tuple[Segment, ...] = tuple(found.chain)
        end = End(found.chain[-1], found.active)
        self._appender = Appender(self._workshop, end, settings.durability, now_ns, self)
        self._errands = Errands(ahead=settings.ahead)

    # -- what there is --------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> str:
        return self._chain[-1].head.epoch.hex()

    @property
    def durability(self) -> Durability:
        return self.settings.durability

    @property
    def chain(self) -> Chain:
        return self._chain

    @property
    def first(self) -> int:
        return self._chain[0].first

    @property
    def last(self) -> int:
        return self._chain[-1].tail.last

    @property
    def size(self) -> int:
        """Bytes of all records that are kept."""
        return sum(segment.size for segment in self._chain)

    def refresh(self) -> None:
        """The log always knows."""

    def reader(self) -> SegmentReader:
        return SegmentReader(self)

    def gaps(self) -> Sequence[Gap]:
        return self.reader().gaps()

    def topics(self) -> dict[str, TopicState]:
        return self.reader().topics()

    # -- appending ------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[NewRecord]) -> Appended:
        if not self._is_open:
            raise Unavailable(f"the log in {self.folder} is closed")
        return self._appender.append(records)

    def on_commit(self, tell: OnCommit | None) -> None:
        """Call this with every commit, in order, before its callers go on: nobody else appends meanwhile."""
        with self._appender.turn:
            self._appender.on_commit = tell

    @contextmanager
    def standing_still(self) -> Iterator[int]:
        """Nothing is appended inside: the last sequence, to do something in step with it. Be quick."""
        with self._appender.turn:
            yield self.last

    def sync(self) -> None:
        with translated(self.folder):
            self._appender.sync()

    # -- segments come --------------------------------------------------------------------------------------------

    def _size(self, kept: int) -> int:
        return min(self.settings.segment_bytes, max(SMALLEST_FIRST, kept))

    def roll(self, need: int) -> End:
        """A new segment at the end, with room for so many bytes. For the appender, which has the turn."""
        old = self._appender.end
        state = sums_of(old.segment).state
        room = max(self._size(self.size), HEAD_SIZE + len(write_state(state)) + need)
        epoch = old.segment.head.epoch
        making = Making(epoch, epoch, old.segment.tail.last + 1, self._now_ns())
        spare = self._take_spare() or self._workshop.new_spare(room)
        try:
            spare = self._workshop.longer(spare, room)
            segment = self._workshop.write_opening(spare, making, state)
            self._workshop.disk.fdatasync(spare.fd)
        except BaseException:
            self._workshop.give_up(spare)
            raise
        try:
            self._workshop.place(spare, segment)
        except BaseException:
            self._appender.refuse("a new segment could not be put in its place")
            raise
        with self._swap:
            self._chain = (*self._chain, segment)
        self._errands.run(lambda: self._seal(old))
        return End(segment, spare._replace(path=segment.path))

    def prepare(self) -> None:
        """The end is half full: the next file can be made ready."""
        if self.settings.ahead:
            self._errands.run(self._prepare)

    def _prepare(self) -> None:
        room = self._size(self.size)
        with self._upkeep:
            spare = self._take_spare()
            try:
                spare = self._workshop.longer(spare, room) if spare else self._workshop.new_spare(room)
            except OSError:
                pass  # whoever needs it will try again, and be told
            if spare is not None:
                self._put_spare(spare)

    def _take_spare(self) -> Spare | None:
        with self._swap:
            spare, self._spare = self._spare, None
        return spare

    def _put_spare(self, spare: Spare) -> None:
        with self._swap:
            other, self._spare = self._spare, spare
        if other is not None:
            self._workshop.give_up(other)

    def _seal(self, end: End) -> None:
        """Not being able to does no harm: the next opening will."""
        with self._upkeep:
            try:
                sealed = self._workshop.seal(end.segment, end.file.fd)
            except OSError:
                sealed = end.segment
            self._workshop.disk.close(end.file.fd)
            self._replace(end.segment, [sealed])

    def _replace(self, old: Segment, new: Sequence[Segment]) -> None:
        with self._swap:
            self._chain = tuple(one for segment in self._chain for one in (new if segment is old else [segment]))

    # -- segments go ----------------------------------------------------------------------------------------------

    def retain(self, rule: Retention, floor: int | None = None) -> Trimmed:
        chain = self._chain
        before = chain[0].first
        if rule.age_ns is not None:
            before = max(before, self.reader().sequence_at(self._now_ns() - rule.age_ns))
        if rule.size is not None:
            before = max(before, _oldest_within(chain, rule.size))
        return self.trim(before if floor is None else min(before, floor))

    def trim(self, before: int) -> Trimmed:
        if not self._is_open:
            raise Unavailable(f"the log in {self.folder} is closed")
        names.check_count(before, "before", least=0, most=MOST_SEQUENCE)
        with translated(self.folder):
            with self._appender.turn:
                end = self._appender.end.segment
                if end.first <= end.tail.last < before:
                    self._appender.check_usable()
                    self._appender.end = self.roll(0)
            with self._upkeep:
                return self._retire(before)

    def _retire(self, before: int) -> Trimmed:
        """From the oldest on, one after the other, so that no power cut leaves a hole."""
        count = size = 0
        while len(self._chain) > 1 and self._chain[0].tail.last < before:
            segment = self._chain[0]
            spare = self._workshop.retire(segment, recycle=self._spare is None)
            self._replace(segment, [])
            if spare is not None:
                self._put_spare(spare)
            count += 1
            size += segment.size
        return Trimmed(count, size, self.first)

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._errands.close()
        with self._appender.turn, translated(self.folder):
            disk = self._workshop.disk
            try:
                if self.settings.durability == "os":
                    disk.fdatasync(self._appender.end.file.fd)
            finally:
                disk.close(self._appender.end.file.fd)
                spare = self._take_spare()
                if spare is not None:
                    self._workshop.give_up(spare)
                self._lock.close()

    def __enter__(self) -> "SegmentLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _oldest_within(chain: Chain, size: int) -> int:
    """The first sequence of the shortest end of the chain that has at least so many bytes."""
    for segment in reversed(chain):
        size -= segment.size
        if size <= 0:
            return segment.first
    return chain[0].first


def _make_folder(disk: Disk, folder: Path) -> None:
    if not folder.is_dir():
        disk.mkdir(str(folder))
        disk.fsync_folder(str(folder.parent))


def _lock(folder: Path) -> StoreLock:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return StoreLock(f"log:{folder}", Holder(os.getpid(), "", default_consumer(), since))
