"""Read-only view of a log's folder: takes no lock, needs no writer, changes nothing.

A writer may add, seal, retire or recycle segments while the view reads the folder. A refresh that is disturbed by this
is repeated after 2 ms, up to 50 times.

All records the view shows are on disk: if a record may not be synced yet, the view syncs the file before it shows the
record."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from yirangmq.core.errors import NotFound, StoreDamaged, WrongEpoch
from yirangmq.core.topics import MAX_SEQUENCE, Gap, TopicState
from yirangmq.fsio.errors import os_errors_translated
from yirangmq.fsio.lock import try_lock
from yirangmq.stores.log import segment_format as scan
from yirangmq.stores.log.reader import Chain, LogSegment, SegmentGone, SegmentReader
from yirangmq.stores.log.segment_format import Head, first_of

MAX_TRIES = 50
RETRY_SECONDS = 0.002
"""Seconds before a refresh is repeated after a writer changed files during it."""


class SegmentView:
    """Read-only view of a topic log that another process may be writing.

    It shows the state of the last ``refresh``. If ``epoch`` is given, a log of another epoch is refused with
    ``WrongEpoch``."""

    def __init__(self, folder: Path | str, *, epoch: str | None = None) -> None:
        self.folder = Path(folder)
        self.unreadable: Sequence[str] = ()
        """Paths with a segment's name that cannot be read as segments."""
        self._chain: tuple[LogSegment, ...] = ()
        self._epoch = epoch
        self.refresh()

    @property
    def epoch(self) -> str:
        return self._chain[-1].head.epoch.hex()

    @property
    def chain(self) -> Chain:
        return self._chain

    @property
    def first(self) -> int:
        return self._chain[0].first

    @property
    def last(self) -> int:
        return self._chain[-1].tail.last

    def reader(self) -> SegmentReader:
        return SegmentReader(self)

    def gaps(self) -> Sequence[Gap]:
        return self.reader().gaps()

    def topics(self) -> dict[str, TopicState]:
        return self.reader().topics()

    def close(self) -> None:
        """Do nothing: the view holds no descriptors."""

    def __enter__(self) -> "SegmentView":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- refresh --------------------------------------------------------------------------------------------------

    def refresh(self, *, reload: bool = False) -> None:
        """Find new records and segments. ``reload``: also check whether sealed segments were replaced.

        Raises ``WrongEpoch`` if the log continues with another epoch; a new view can read that one."""
        with os_errors_translated(self.folder):
            for _ in range(MAX_TRIES):
                try:
                    self._scan_folder({} if reload else {segment.path: segment for segment in self._chain})
                    return
                except (SegmentGone, FileNotFoundError):
                    time.sleep(RETRY_SECONDS)
        raise StoreDamaged(f"the segments in {self.folder} change faster than they can be read")

    def _scan_folder(self, known: dict[str, LogSegment]) -> None:
        names = self._names()
        chain: list[LogSegment] = []
        unreadable: list[str] = []
        for index, (first, path) in enumerate(names):
            most = names[index + 1][0] - 1 if index + 1 < len(names) else MAX_SEQUENCE
            segment = known.get(path)
            try:
                if segment is None or segment.seal is None:
                    segment = self._read(first, path, most, segment)
            except StoreDamaged:
                unreadable.append(path)
            else:
                chain.append(segment)
        if not chain:
            raise StoreDamaged(f"{self.folder} contains no readable segment")
        self._check_epoch(chain[-1].head)
        self._chain, self.unreadable = tuple(chain), unreadable

    def _names(self) -> list[tuple[int, str]]:
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"there is no log in {self.folder}", field="folder") from None
        found = sorted((first, f"{self.folder}/{name}") for name in names if (first := first_of(name)) is not None)
        if not found:
            raise NotFound(f"there is no log in {self.folder}", field="folder")
        return found

    def _check_epoch(self, head: Head) -> None:
        if self._epoch is None:
            self._epoch = head.epoch.hex()
        elif head.epoch.hex() != self._epoch:
            raise WrongEpoch(f"the log in {self.folder} is of epoch {head.epoch.hex()}, not {self._epoch}")

    def _read(self, first: int, path: str, most: int, known: LogSegment | None) -> LogSegment:
        with _open_locked(path) as fd:
            head = scan.head_of(fd)
            if head.first != first:
                raise SegmentGone
            seal = scan.seal_of(fd, head)
            if seal is not None:
                return LogSegment(path, head, seal=seal)
            if known is None or known.head != head or known.sums is None:
                known = LogSegment(path, head, sums=scan.SegmentSums(first, head.begin, scan.state_of(fd, head)))
            _scan_new_records(known, fd, most)
            return known


def _scan_new_records(segment: LogSegment, fd: int, most: int) -> None:
    """Scan records written since the last scan. Make them visible after an fdatasync, if it succeeds."""
    sums = segment.sums
    if sums is None:
        return
    scan.add_sound(sums, fd, os.fstat(fd).st_size, most)
    if sums.last == segment.tail.last:
        return
    try:
        os.fdatasync(fd)
    except OSError:
        return  # the new records may not be on disk: they are not shown yet
    segment.confirm()


@contextmanager
def _open_locked(path: str) -> Iterator[int]:
    """Open a file with a shared lock, so that it is not recycled while it is read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not try_lock(fd, shared=True):
            raise SegmentGone
        yield fd
    finally:
        os.close(fd)
