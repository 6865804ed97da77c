"""Redo log of the server's SQLite store, ``queue.db-redo``: the appender, which writes and syncs records.

The format of a record is in ``stores.sqlite.redo_format``, the replay in ``stores.sqlite.redo_replay``. A record holds
the changes of one commit.

The file is a ring of 1 MiB: a record that does not fit before the end is written at the beginning. Its length never
changes, so a sync writes nothing but the record.

``append`` returns False if the file has no space or cannot be created (retried after 60 s); the store then makes SQLite
commit."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from time import monotonic

from yirangmq.format.messagepack import fast_encoder, is_msgspec_loaded, pack
from yirangmq.fsio.disk import Disk
from yirangmq.fsio.lock import try_lock, unlock
from yirangmq.fsio.permissions import access_in
from yirangmq.stores.sqlite.redo_format import (
    FORMAT,
    HEAD,
    LoggedStatement,
    ReadStatement,
    RedoPosition,
    commits,
    record,
)
from yirangmq.stores.sqlite.redo_replay import redo_path

BYTES = 1024 * 1024
"""Length of the whole file. One half holds the records that SQLite commits next, large enough that most commits write
no page; the other half holds records appended during that commit."""
BLOCK = 65536
"""Bytes written at a time while the file is created."""
PLAIN_RECORDS = 100
"""Number of records that a log encodes in plain Python before it loads msgspec, which an idle server does without."""
PAUSE_SECONDS = 60.0
"""Delay before the file is created again after a failure."""


class RedoLog:
    """Redo log of a server: append records, read them back, and void them when SQLite has committed them.

    Not thread-safe: used under the store's lock."""

    def __init__(
        self, path: Path, position: RedoPosition, disk: Disk | None = None, size: int = BYTES, *, sync: bool = True
    ) -> None:
        """The file is created when it is first needed. ``sync``: if False, records are not synced, and a power cut may
        lose them."""
        self.path = redo_path(path)
        self._disk = disk or Disk()
        self._disk.access = access_in(path.parent)
        self.size = size
        """Length of the file in bytes."""
        self._sync = sync
        self._fd = -1
        self._not_before = 0.0
        self._encode: Callable[[Sequence[LoggedStatement]], bytes] = pack
        """Encoder of records: in plain Python until the process has loaded msgspec, or has many commits."""
        self._plain_left = PLAIN_RECORDS
        self.start(position)

    def start(self, position: RedoPosition) -> None:
        """Start an empty log at ``position``: every record appended before is in the SQLite file, which has this redo
        position."""
        self.position = position
        """Position of the first record that is not in the SQLite file."""
        self.number, self._at = position.number, position.at
        """Number and offset of the next record."""
        self._has_wrapped = False
        """True if the ring has wrapped: the next record goes before those that are not in the SQLite file."""
        self._wrapped_since_commit = False
        """True if the ring has wrapped since ``start_commit``."""
        self.is_in_doubt = False
        """True if a write failed that may be valid after a crash: of a record, or a commit of SQLite."""

    @property
    def is_file_open(self) -> bool:
        """True if the file is open: a record was appended since the store was opened."""
        return self._fd >= 0

    @property
    def count(self) -> int:
        """Number of records that are not in the SQLite file."""
        return self.number - self.position.number

    @property
    def free_bytes(self) -> int:
        """Free space for one record, in bytes."""
        if self._has_wrapped:
            return self.position.at - self._at
        return max(self.size - self._at, self.position.at)

    @property
    def is_half_full(self) -> bool:
        used = self._at - self.position.at
        return (used + self.size if self._has_wrapped else used) >= self.size // 2

    def start_commit(self) -> RedoPosition:
        """Return the position for a background commit of SQLite that contains all records so far. Records appended
        during that commit follow this position."""
        self._wrapped_since_commit = False
        return RedoPosition(self.position.generation, self.number, self._at)

    def void_before(self, position: RedoPosition) -> None:
        """Void the records before ``position``: the commit that contains them is on disk."""
        self.position = position
        self._has_wrapped = self._wrapped_since_commit

    def _place(self, length: int) -> int:
        """Return the offset for a record of this length, or -1 if there is no space."""
        if self._at + length <= (self.position.at if self._has_wrapped else self.size):
            return self._at
        return 0 if not self._has_wrapped and length <= self.position.at else -1

    def append(self, logged: Sequence[LoggedStatement], meanwhile: Callable[[], None]) -> bool:
        """Append a record. Return True when it is on disk, or False if there is no space for it.

        ``meanwhile`` is called while the disk writes. If it or the disk fails, the record is voided, or the log is in
        doubt."""
        if self._encode is pack:
            self._choose_encoder()
        body = FORMAT + self._encode(logged)
        length = HEAD.size + len(body)
        at = self._place(length)
        if at < 0 or (self._fd < 0 and not self._open()):
            return False
        disk = self._disk
        data = record(self.position.generation, self.number, body)
        self.is_in_doubt = True
        try:
            disk.write_at(self._fd, data, at)
            if self._sync:
                disk.begin_sync(self._fd, at, length)
            meanwhile()
            if self._sync:
                disk.fdatasync(self._fd)
        except BaseException:
            self._make_void(at)
            raise
        self.is_in_doubt = False
        if at < self._at:
            self._has_wrapped = self._wrapped_since_commit = True
        self._at = at + length
        self.number += 1
        return True

    def _choose_encoder(self) -> None:
        self._plain_left -= 1
        if self._plain_left < 0 or is_msgspec_loaded():
            try:
                self._encode = fast_encoder()
            except ImportError:
                self._plain_left = sys.maxsize

    def _make_void(self, start: int) -> None:
        """Overwrite the header of a record that was refused, so that a process that opens the store after a crash does
        not replay it."""
        with contextlib.suppress(OSError):
            self._disk.write_at(self._fd, bytes(HEAD.size), start)
            if self._sync:
                self._disk.fdatasync(self._fd)
            self.is_in_doubt = False

    def _open(self) -> bool:
        """Open the file. Return False if it cannot be created; the next try is ``PAUSE_SECONDS`` later."""
        if monotonic() < self._not_before:
            return False
        try:
            self._fd = self._opened()
        except OSError:
            self._not_before = monotonic() + PAUSE_SECONDS
            with contextlib.suppress(OSError):
                self._disk.unlink(str(self.path))
            return False
        return True

    def _opened(self) -> int:
        path = str(self.path)
        if self.path.exists():
            if self.path.stat().st_size == self.size:
                self._disk.fsync_folder(str(self.path.parent.absolute()))  # its creator may not have synced the folder
                return self._disk.open_update(path)
            self._disk.unlink(path)
        fd = self._disk.open_write(path)
        try:
            for start in range(0, self.size, BLOCK):
                self._disk.write(fd, bytes(min(BLOCK, self.size - start)))
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)
        self._disk.fsync_folder(str(self.path.parent.absolute()))
        return self._disk.open_update(path)

    def logged(self) -> Iterator[ReadStatement]:
        """Read back the statements that were appended and are not in the SQLite file, without refused ones."""
        if not self.count:
            return iter(())
        return chain.from_iterable(islice(commits(self.path.read_bytes(), self.position), self.count))

    def acquire_lock(self) -> bool:
        """Lock the file until ``release_lock`` or until this process ends, so that no other process replays it, even if
        it gets SQLite's write lock. Return False if another process waits to write."""
        try:
            return try_lock(self._fd)
        except OSError:
            return False

    def release_lock(self) -> None:
        """Release the lock; never fails. If unlocking fails, the file is closed, which releases the lock; the next
        record opens it again."""
        if self._fd >= 0:
            try:
                unlock(self._fd)
            except OSError:
                self.close_file()

    def close_file(self) -> None:
        """Close the descriptor; the next record opens or creates the file again."""
        fd, self._fd = self._fd, -1  # before the close: another file may get the same descriptor
        if fd >= 0:
            with contextlib.suppress(OSError):
                self._disk.close(fd)

    def close(self) -> None:
        """Close the log, and delete the file unless it has records that are not in the SQLite file."""
        self.close_file()
        with contextlib.suppress(OSError):  # its records are void, even if the file stays
            if not self.count and self.path.exists():
                self._disk.unlink(str(self.path))
