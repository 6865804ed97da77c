"""Read-only opening of stores this process cannot write: read-only file system, other owner, immutable file.

SQLite: the file is opened with ``mode=ro`` (and ``immutable=1`` if the WAL is empty) if that shows every confirmed
message. In three cases it does not: the index of the WAL would have to be written, a redo log is not applied yet, the
schema is older. Then the file, its WAL and its redo log are copied to a temporary folder and opened there.

Files: the index is built from the file names in a temporary folder.

The store itself is never written; every write is refused with ``store_read_only``."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from urllib.parse import quote

import apsw

from yirangmq.core.errors import StoreDamaged, StoreError, StoreReadOnly
from yirangmq.core.ports import CheckProgress, Finding, Store, Transaction, no_progress
from yirangmq.fsio.errors import unwritable
from yirangmq.stores.files.store import FilesStore
from yirangmq.stores.sqlite.connection import open_read_connection
from yirangmq.stores.sqlite.store import SqliteStore

COPIED = ("", "-wal", "-redo")


class ReadOnlyStore:
    """Store (``core.ports.Store``) that refuses every write.

    ``stack`` closes the inner store and removes its temporary folder."""

    def __init__(self, place: str, store: Store, stack: ExitStack, *, is_copy: bool = False) -> None:
        self._place = place
        self._store = store
        self._stack = stack
        self.is_copy = is_copy
        """True if the store is a copy, made when it was opened; later changes are not visible."""

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Transaction]:
        if write:
            raise unwritable(self._place, "it is open for reading only")
        return self._store.transaction(write=False)

    def wait(self, timeout: float) -> None:
        self._store.wait(timeout)

    def check(self, *, repair: bool, progress: CheckProgress = no_progress) -> Iterator[Finding]:
        if repair:
            raise unwritable(self._place, "it is open for reading only")
        return self._store.check(repair=False, progress=progress)

    def durability(self) -> str:
        return self._store.durability()

    def close(self) -> None:
        self._stack.close()


def open_read_only(scheme: str, place: str, durability: str) -> Store:
    """Open a store for reading only. ``scheme`` is "sqlite" or "files"."""
    if not Path(place).exists():
        raise StoreReadOnly(f"there is no store at {place}, and none can be created for reading only")
    with ExitStack() as stack:
        if scheme == "files":
            folder = stack.enter_context(_temporary())
            made: Store = FilesStore(Path(place), durability=durability, index_folder=f"{folder}/index")
            is_copy = False
        else:
            made, is_copy = _sqlite(Path(place), durability, stack)
        stack.callback(made.close)
        return ReadOnlyStore(place, made, stack.pop_all(), is_copy=is_copy)


def _sqlite(path: Path, durability: str, stack: ExitStack) -> tuple[SqliteStore, bool]:
    modes = ["mode=ro"] if _size(Path(f"{path}-wal")) else ["mode=ro", "immutable=1"]
    for mode in modes:
        uri = f"file:{quote(str(path.absolute()))}?{mode}"
        try:
            return SqliteStore(path, durability=durability, connect=partial(open_read_connection, uri, path)), False
        except (StoreDamaged, StoreReadOnly, StoreError, apsw.Error):
            continue  # opening the copy succeeds, or raises the actual error
    folder = stack.enter_context(_temporary())
    copy = Path(folder) / path.name
    try:
        for suffix in COPIED:
            if Path(f"{path}{suffix}").exists():
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
    except OSError as error:
        text = f"{path} has changes that only a copy can show, and none can be made in {folder}: {error.strerror}"
        raise StoreError(f"{text}; name another folder with the environment variable TMPDIR") from error
    return SqliteStore(copy, durability=durability), True


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _temporary() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="yirangmq-look-", ignore_cleanup_errors=True)
