"""SQLite's own way to the disk, with everything it asks written down. Knows: apsw's VFS, and two habits of SQLite's
unix VFS: the shared-memory file is not meant to survive, and the first sync of a journal or WAL that was opened with
leave to create it also syncs its folder (tests/torture proves the latter). Does not know: what the database means."""

import os
from pathlib import Path
from typing import Any

import apsw

from yirangmq.torture.journal import Journal, SyncFile, SyncFolder, Truncate, Write

BASE = "unix"
JOURNALS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL


class RecordingVfs(apsw.VFS):
    """Register it under a name, open connections with that name, read ``journal`` afterwards."""

    def __init__(self, name: str, journal: Journal) -> None:
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
        self._journal: Journal | None = None
        self._node = -1
        self._path = Path()
        self._sync_folder = False

    def record(self, journal: Journal, path: Path, node: int | None, *, sync_folder: bool) -> None:
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


def sync_folder_of(journal: Journal, path: Path) -> None:
    node = journal.node(path.parent)
    if node is not None:
        journal.add(SyncFolder(node))
