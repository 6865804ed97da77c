"""The stores that can be tortured: how to open each with a recorder under it, and how to open what is left.
Knows: the stores by name. Does not know: workloads, cuts."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

from yirangmq.core.ports import Store
from yirangmq.fsio.disk import Disk
from yirangmq.stores.files.store import FilesStore
from yirangmq.stores.sqlite.server_store import ServedSqliteStore
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.torture.journal import Journal
from yirangmq.torture.recording_disk import RecordingDisk
from yirangmq.torture.recording_vfs import RecordingVfs
from yirangmq.torture.tree import Tree, read_tree

OpenStore = Callable[[], Store]
STORE = "store"
"""The name of the store's file or folder."""
REDO_BYTES = 16384
SHARED = f"{STORE}-shm"
"""SQLite's index of the WAL, shared by processes."""


class Backend(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def is_atomic(self) -> bool:
        """A call cut off half-way is there wholly or not at all; where not, each message is."""

    def recorded(self, top: Path, journal: Journal) -> AbstractContextManager[OpenStore]:
        """Ways to open the store below ``top``, as often as wanted, with everything it does in the journal."""

    def plain(self, top: Path) -> Store:
        """The store as users open it."""

    def is_recorded(self, path: str) -> bool:
        """False: the store never syncs this file, and makes it anew after a power cut."""

    def debris(self, day: Path) -> Tree:
        """Such files as may still lie there, with any content. ``day``: where the recorded store was."""

    def half_written(self, top: Path) -> list[str]:
        """Files of unfinished messages that lie where they were being written."""

    def set_aside(self, top: Path) -> int:
        """How many files the store has put where they can do no harm, for a person to see."""


class SqliteBackend:
    """``yirangmq torture --backend sqlite``."""

    name = "sqlite"
    is_atomic = True
    _numbers = count()

    @contextmanager
    def recorded(self, top: Path, journal: Journal) -> Iterator[OpenStore]:
        name = f"yirangmq-torture-{next(self._numbers)}"
        vfs = RecordingVfs(name, journal)
        try:
            yield lambda: self._open(top, name)
        finally:
            vfs.unregister()

    def plain(self, top: Path) -> Store:
        return self._open(top, None)

    def is_recorded(self, path: str) -> bool:
        return path != SHARED

    def debris(self, day: Path) -> Tree:
        return {SHARED: bytes(range(256)) * 128}

    def half_written(self, top: Path) -> list[str]:
        return []  # what a transaction left unfinished is no part of the file

    def set_aside(self, top: Path) -> int:
        return 0

    def _open(self, top: Path, vfs: str | None) -> Store:
        return SqliteStore(top / STORE, vfs=vfs)


class ServedBackend(SqliteBackend):
    """``yirangmq torture --backend served``: SQLite as a server has it, once in its process. Without threads, whose
    work could not be told apart, and with little room beside the file, so that all there is happens."""

    name = "served"

    @contextmanager
    def recorded(self, top: Path, journal: Journal) -> Iterator[OpenStore]:
        name = f"yirangmq-torture-{next(self._numbers)}"
        vfs, disk = RecordingVfs(name, journal), RecordingDisk(journal, use_syncfs=False)
        store: ServedSqliteStore | None = None

        def open_once() -> Store:
            nonlocal store
            if store is None or store.is_closed:
                store = ServedSqliteStore(top / STORE, vfs=name, disk=disk, redo_bytes=REDO_BYTES, seconds=None)
            return store

        try:
            yield open_once
        finally:
            vfs.unregister()


class FilesBackend:
    """``yirangmq torture --backend fs``. Every second opening does without ``syncfs``, as on other systems."""

    name = "fs"
    is_atomic = False

    @contextmanager
    def recorded(self, top: Path, journal: Journal) -> Iterator[OpenStore]:
        numbers = count()
        yield lambda: FilesStore(top / STORE, disk=self._disk(journal, use_syncfs=next(numbers) % 2 == 0))

    def _disk(self, journal: Journal, *, use_syncfs: bool) -> Disk:
        return RecordingDisk(journal, use_syncfs=use_syncfs)

    def plain(self, top: Path) -> Store:
        return FilesStore(top / STORE)

    def is_recorded(self, path: str) -> bool:
        return not path.startswith((f"{STORE}/.index", f"{STORE}/.lock"))

    def debris(self, day: Path) -> Tree:
        return {path: content for path, content in read_tree(day).items() if not self.is_recorded(path)}

    def half_written(self, top: Path) -> list[str]:
        return sorted(str(path.relative_to(top)) for path in (top / STORE).glob("*/meta/temp/*"))

    def set_aside(self, top: Path) -> int:
        return sum(1 for path in (top / STORE).glob("*/quarantine/*.tmp"))


class LogBackend:
    """``yirangmq torture --backend log``: a log of topics and its cursors; no store of queues (log_workload.py)."""

    name = "log"

    def disk(self, journal: Journal) -> Disk:
        return RecordingDisk(journal, use_syncfs=False)


BACKENDS: dict[str, Callable[[], Backend | LogBackend]] = {
    "fs": FilesBackend,
    "log": LogBackend,
    "served": ServedBackend,
    "sqlite": SqliteBackend,
}
