"""Backends under test, and the I/O recorders below them: a ``Disk``, and a VFS for SQLite.

A recorder executes a call, then adds it to the journal. The VFS models two properties of SQLite's unix VFS. The
shared-memory file does not survive a power cut. The first sync of a journal or WAL opened with permission to create it
also syncs its folder; a test proves this.

A ``Backend`` opens its store with a recorder below it, and without one as users do."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import apsw

from yirangmq.core.ports import Store
from yirangmq.crashtest.disk_model import IoJournal, SyncAll, SyncFile, SyncFolder, Tree, Truncate, Write, read_tree
from yirangmq.fsio.disk import Disk
from yirangmq.stores.files.store import FilesStore
from yirangmq.stores.sqlite.server_store import open_served_store
from yirangmq.stores.sqlite.store import SqliteStore

# -- recorder of the files store, the redo log and the topic log -------------------------------------------------------


class RecordingDisk(Disk):
    """Disk that executes each call, then records it. Calls outside the journal's folder are not recorded."""

    def __init__(self, journal: IoJournal, *, use_syncfs: bool) -> None:
        super().__init__()
        self._journal = journal
        self._use_syncfs = use_syncfs
        self._nodes: dict[int, int] = {}

    @property
    def has_syncfs(self) -> bool:
        return self._use_syncfs and super().has_syncfs

    # -- contents -------------------------------------------------------------------------------------------------

    def open_write(self, path: str, *, append: bool = False) -> int:
        is_new = not os.path.lexists(path)
        fd = super().open_write(path, append=append)
        if self._journal.holds(path):
            self._nodes[fd] = self._journal.create(path) if is_new else self._known(path)
        return fd

    def write(self, fd: int, data: bytes) -> None:
        offset = os.fstat(fd).st_size  # both new and appended files are written at their end
        super().write(fd, data)
        if fd in self._nodes:
            self._journal.add(Write(self._nodes[fd], offset, bytes(data)))

    def open_update(self, path: str) -> int:
        fd = super().open_update(path)
        if self._journal.holds(path):
            self._nodes[fd] = self._known(path)
        return fd

    def write_at(self, fd: int, data: bytes, offset: int) -> None:
        super().write_at(fd, data, offset)
        if fd in self._nodes:
            self._journal.add(Write(self._nodes[fd], offset, bytes(data)))

    def truncate(self, path: str, size: int) -> None:
        super().truncate(path, size)
        if self._journal.holds(path):
            self._journal.add(Truncate(self._known(path), size))

    def close(self, fd: int) -> None:
        self._nodes.pop(fd, None)
        super().close(fd)

    # -- syncs ----------------------------------------------------------------------------------------------------

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        if fd in self._nodes:
            self._journal.add(SyncFile(self._nodes[fd]))

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        if fd in self._nodes:
            self._journal.add(SyncFile(self._nodes[fd]))

    def fsync_file(self, path: str) -> None:
        super().fsync_file(path)
        if self._journal.holds(path):
            self._journal.add(SyncFile(self._known(path)))

    def fsync_folder(self, path: str) -> None:
        super().fsync_folder(path)
        if self._journal.holds(path):
            self._journal.add(SyncFolder(self._known(path)))

    def syncfs(self, path: str) -> None:
        super().syncfs(path)
        if self._journal.holds(path):
            self._journal.add(SyncAll())

    # -- names ----------------------------------------------------------------------------------------------------

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if self._journal.holds(source):
            self._journal.rename(source, target)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        if self._journal.holds(path):
            self._journal.remove(path)

    def mkdir(self, path: str) -> None:
        super().mkdir(path)
        if self._journal.holds(path):
            self._journal.create(path, is_folder=True)

    def rmdir(self, path: str) -> None:
        super().rmdir(path)
        if self._journal.holds(path):
            self._journal.remove(path)

    def _known(self, path: str) -> int:
        node = self._journal.node(path)
        if node is None:
            raise ValueError(f"{path} was made behind the recorder's back")
        return node


# -- recorder of SQLite ------------------------------------------------------------------------------------------------

BASE = "unix"
JOURNALS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL


class RecordingVfs(apsw.VFS):
    """SQLite VFS that records the I/O. Open connections with its name, then read ``journal``."""

    def __init__(self, name: str, journal: IoJournal) -> None:
        super().__init__(name, BASE)
        self.journal = journal

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "RecordingFile":
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        is_new = path is not None and not os.path.lexists(path)
        opened = RecordingFile(name, flags)
        if path is not None and self.journal.holds(path):
            node = self.journal.create(path) if is_new else self.journal.node(path)
            may_create = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & JOURNALS)
            opened.record(self.journal, Path(path), node, sync_folder=may_create)
        return opened

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        if self.journal.holds(filename):
            self.journal.remove(filename)
            if syncdir:
                sync_folder_of(self.journal, Path(filename))


class RecordingFile(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__(BASE, name, flags)
        self._journal: IoJournal | None = None
        self._node = -1
        self._path = Path()
        self._sync_folder = False

    def record(self, journal: IoJournal, path: Path, node: int | None, *, sync_folder: bool) -> None:
        if node is None:
            raise ValueError(f"{path} was made behind the recorder's back")
        self._journal, self._path, self._node, self._sync_folder = journal, path, node, sync_folder

    def xWrite(self, data: Any, offset: int) -> None:
        super().xWrite(data, offset)
        if self._journal is not None:
            self._journal.add(Write(self._node, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        if self._journal is not None:
            self._journal.add(Truncate(self._node, newsize))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        if self._journal is None:
            return
        self._journal.add(SyncFile(self._node))
        if self._sync_folder:
            self._sync_folder = False
            sync_folder_of(self._journal, self._path)


def sync_folder_of(journal: IoJournal, path: Path) -> None:
    node = journal.node(path.parent)
    if node is not None:
        journal.add(SyncFolder(node))


# -- backends ----------------------------------------------------------------------------------------------------------

OpenStore = Callable[[], Store]
STORE = "store"
"""Name of the store's file or folder."""
REDO_BYTES = 16384
SHARED = f"{STORE}-shm"
"""SQLite's shared-memory index of the WAL."""


class Backend(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def is_atomic(self) -> bool:
        """True if an interrupted call is on disk completely or not at all. Otherwise this holds per message."""

    def recorded(self, top: Path, journal: IoJournal) -> AbstractContextManager[OpenStore]:
        """Yield a function that opens the store in ``top``, any number of times, with all its I/O recorded."""

    def open_plain(self, top: Path) -> Store:
        """Open the store as users do, without a recorder."""

    def is_recorded(self, path: str) -> bool:
        """Return False if the store never syncs this file and rebuilds it after a power cut."""

    def stale_files(self, recorded_folder: Path) -> Tree:
        """Return stale files that are never synced. ``recorded_folder`` is the folder of the recorded store."""

    def half_written(self, top: Path) -> list[str]:
        """Return the files of half-written messages that are still in the temporary folder."""

    def quarantined(self, top: Path) -> int:
        """Return the number of files that the store has quarantined."""


class SqliteBackend:
    """``yirangmq torture --backend sqlite``."""

    name = "sqlite"
    is_atomic = True
    _numbers = count()

    @contextmanager
    def recorded(self, top: Path, journal: IoJournal) -> Iterator[OpenStore]:
        name = f"yirangmq-torture-{next(self._numbers)}"
        vfs = RecordingVfs(name, journal)
        try:
            yield lambda: self._open(top, name)
        finally:
            vfs.unregister()

    def open_plain(self, top: Path) -> Store:
        return self._open(top, None)

    def is_recorded(self, path: str) -> bool:
        return path != SHARED

    def stale_files(self, recorded_folder: Path) -> Tree:
        return {SHARED: bytes(range(256)) * 128}

    def half_written(self, top: Path) -> list[str]:
        return []  # an unfinished transaction is not part of the database

    def quarantined(self, top: Path) -> int:
        return 0

    def _open(self, top: Path, vfs: str | None) -> Store:
        return SqliteStore(top / STORE, vfs=vfs)


class ServedBackend(SqliteBackend):
    """``yirangmq torture --backend served``: SQLite as a server uses it, one handle per process.

    It runs without threads, because the journal cannot tell the I/O of one thread from that of another. The redo log is
    small, so that every path of the store runs."""

    name = "served"

    @contextmanager
    def recorded(self, top: Path, journal: IoJournal) -> Iterator[OpenStore]:
        name = f"yirangmq-torture-{next(self._numbers)}"
        vfs, disk = RecordingVfs(name, journal), RecordingDisk(journal, use_syncfs=False)
        store: SqliteStore | None = None

        def open_once() -> Store:
            nonlocal store
            if store is None or store.is_closed:
                store = open_served_store(top / STORE, vfs=name, disk=disk, redo_bytes=REDO_BYTES, seconds=None)
            return store

        try:
            yield open_once
        finally:
            vfs.unregister()


class FilesBackend:
    """``yirangmq torture --backend fs``. Every second handle does not use ``syncfs``, as on other systems."""

    name = "fs"
    is_atomic = False

    @contextmanager
    def recorded(self, top: Path, journal: IoJournal) -> Iterator[OpenStore]:
        numbers = count()
        yield lambda: FilesStore(top / STORE, disk=self._disk(journal, use_syncfs=next(numbers) % 2 == 0))

    def _disk(self, journal: IoJournal, *, use_syncfs: bool) -> Disk:
        return RecordingDisk(journal, use_syncfs=use_syncfs)

    def open_plain(self, top: Path) -> Store:
        return FilesStore(top / STORE)

    def is_recorded(self, path: str) -> bool:
        return not path.startswith((f"{STORE}/.index", f"{STORE}/.lock"))

    def stale_files(self, recorded_folder: Path) -> Tree:
        return {path: content for path, content in read_tree(recorded_folder).items() if not self.is_recorded(path)}

    def half_written(self, top: Path) -> list[str]:
        return sorted(str(path.relative_to(top)) for path in (top / STORE).glob("*/meta/temp/*"))

    def quarantined(self, top: Path) -> int:
        return sum(1 for path in (top / STORE).glob("*/quarantine/*.tmp"))


class LogBackend:
    """``yirangmq torture --backend log``: a topic log with its cursors and no queue store (``log_workload``)."""

    name = "log"

    def disk(self, journal: IoJournal) -> Disk:
        return RecordingDisk(journal, use_syncfs=False)


BACKENDS: dict[str, Callable[[], Backend | LogBackend]] = {
    "fs": FilesBackend,
    "log": LogBackend,
    "served": ServedBackend,
    "sqlite": SqliteBackend,
}
