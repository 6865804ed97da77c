"""The log of a publisher's topics: a folder of segments. One process writes, any number read (``segments_view``).

Knows: how the parts work together, which segments there are. Does not know: subscribers, sockets.
``docs/log.md`` says what lies where and what is promised."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from yirangmq.clock import default_consumer
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, Unavailable
from yirangmq.core.topics import MOST_SEQUENCE, Appended, Gap, NewRecord, Retention, TopicState, Trimmed
from yirangmq.fsio.disk import Disk
from yirangmq.fsio.errors import translated
from yirangmq.fsio.permissions import access_in
from yirangmq.stores.holder import Holder, StoreLock
from yirangmq.stores.segments_append import Appender, Durability, OnCommit
from yirangmq.stores.segments_chain import Chain, to_be_trimmed
from yirangmq.stores.segments_check import sound_part
from yirangmq.stores.segments_house import House, segment_size
from yirangmq.stores.segments_make import End, Workshop
from yirangmq.stores.segments_reader import SegmentReader
from yirangmq.stores.segments_recover import Recovery


class LogSettings(NamedTuple):
    """``durability``: "full", an append is on disk when it returns; "os", it survives a killed process, no power cut.
    ``ahead``: prepare the next file, and seal the last one, in a thread of its own."""

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
        self._is_open = True
        with translated(self.folder):
            self._workshop.disk.access = access_in(self.folder)
            _make_folder(self._workshop.disk, self.folder)
        self._lock = _lock(self.folder)
        try:
            with translated(self.folder):
                size = segment_size(settings.segment_bytes, 0)
                found = Recovery(self._workshop, now_ns, new_epoch).run(size, epoch)
        except BaseException:
            self._lock.close()
            raise
        self.notes: Sequence[str] = found.notes
        """What was found and done while opening, in words."""
        self._house = House(self._workshop, found.chain, settings.segment_bytes, now_ns, ahead=settings.ahead)
        end = End(found.chain[-1], found.active)
        self._appender = Appender(self._workshop, end, settings.durability, now_ns, self._house)

    # -- what there is --------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> str:
        return self.chain[-1].head.epoch.hex()

    @property
    def durability(self) -> Durability:
        return self.settings.durability

    @property
    def chain(self) -> Chain:
        return self._house.chain

    @property
    def first(self) -> int:
        return self.chain[0].first

    @property
    def last(self) -> int:
        return self.chain[-1].tail.last

    @property
    def size(self) -> int:
        """Bytes of all records that are kept."""
        return self._house.size

    def refresh(self, *, anew: bool = False) -> None:
        """The log always knows."""

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

    def append(self, records: Sequence[NewRecord]) -> Appended:
        self._check_open()
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

    def _check_open(self) -> None:
        if not self._is_open:
            raise Unavailable(f"the log in {self.folder} is closed")

    # -- segments go ----------------------------------------------------------------------------------------------

    def retain(self, rule: Retention, floor: int | None = None) -> Trimmed:
        for value, field in ((rule.age_ns, "ageNs"), (rule.size, "size"), (floor, "floor")):
            if value is not None:
                validation.check_count(value, field, least=0, most=MOST_SEQUENCE)
        chain = self.chain
        before = chain[0].first
        if rule.age_ns is not None:
            before = max(before, self.reader().sequence_at(self._now_ns() - rule.age_ns))
        if rule.size is not None:
            before = max(before, _oldest_within(chain, rule.size))
        return self.trim(before if floor is None else min(before, floor))

    def trim(self, before: int, *, dry_run: bool = False) -> Trimmed:
        self._check_open()
        validation.check_count(before, "before", least=0, most=MOST_SEQUENCE)
        if dry_run:
            return to_be_trimmed(self.chain, before)
        with translated(self.folder):
            done = self._house.retire(before)  # first what needs no room: the disk may be full
            end = self.chain[-1]
            if not end.first <= end.tail.last < before:
                return done
            self._appender.roll()
            more = self._house.retire(before)
            return Trimmed(done.segments + more.segments, done.size + more.size, more.first)

    def mend(self) -> list[str]:
        """Read everything; set damaged segments aside and go on with what is sound in them. What was done, in words.
        What is lost is a gap from then on."""
        self._check_open()
        with translated(self.folder):
            if self._is_end_damaged():
                self._appender.roll()
            return self._house.mend()

    def _is_end_damaged(self) -> bool:
        end = self.chain[-1]
        with end.opened() as fd:
            last = end.tail.last
            return sound_part(end, fd).last < last

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            with translated(self.folder), self._appender.turn:
                try:
                    self._house.close()
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
    """The first sequence of the shortest end of the chain that has at least so many bytes."""
    for segment in reversed(chain):
        size -= segment.size
        if size <= 0:
            return segment.first
    return chain[0].first


def _make_folder(disk: Disk, folder: Path) -> None:
    """The sync is also for whoever made it and was killed before its own."""
    if not folder.is_dir():
        disk.mkdir(str(folder))
    disk.fsync_folder(str(folder.parent))


def _lock(folder: Path) -> StoreLock:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return StoreLock(f"log:{folder}", Holder(os.getpid(), "", default_consumer(), since))
