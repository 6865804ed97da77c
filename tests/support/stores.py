"""Where a store lives while tests open, close and open it again. Every store the project has is listed here once."""

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from yirangmq.core.ports import Store, Transaction
from yirangmq.stores.memory import MemoryState, MemoryStore
from yirangmq.stores.open import open_store
from yirangmq.stores.sqlite.server_store import open_served_store

KINDS = ("memory", "sqlite", "files")
ALL_KINDS = (*KINDS, "served")
"""``served``: SQLite as a server has it, alone."""
REDO_BYTES = 8192
"""Small, so that the file of changes is full again and again."""


class Killed(Exception):
    """The process ended here, as far as its store can tell."""


class Place:
    """One store's home. ``open`` may be called again and again: what was committed is there."""

    def __init__(self, kind: str, folder: Path, etcd: str = "") -> None:
        self.kind = kind
        self._etcd = f"etcd://{etcd}?name={uuid.uuid4().hex}&lease=60"
        self._folder = folder
        self._crashes = 0
        self._opened: list[Store] = []
        self.state = MemoryState()

    @property
    def url(self) -> str:
        return f"files:{self._home / 'queues'}" if self.kind == "files" else f"sqlite:{self._home / 'queue.db'}"

    @property
    def _home(self) -> Path:
        return self._folder / str(self._crashes)

    def open(self) -> Store:
        self._opened.append(self._made())
        return self._opened[-1]

    def _made(self) -> Store:
        if self.kind == "memory":
            return MemoryStore(self.state)
        if self.kind in ("etcd", "served") and self._opened:  # a process has it once, and all there share it
            return self._opened[0]
        if self.kind == "etcd":
            return open_store(self._etcd)
        self._home.mkdir(exist_ok=True)
        if self.kind == "served":
            return open_served_store(
                self._home / "queue.db", durability="os", busy_seconds=2, redo_bytes=REDO_BYTES, seconds=None
            )
        # "os" spares the syncs, which only a power cut could tell from none; the rules are the same.
        return open_store(self.url, durability="os")

    def reopen(self) -> Store:
        self.close()
        return self.open()

    def crash(self, unfinished: Callable[[Transaction], None]) -> None:
        """Every opener is killed, one of them in the middle of a transaction; what is on disk then is all there is."""
        try:
            with self._opened[0].transaction() as transaction:
                unfinished(transaction)
                before = self._home
                self._crashes += 1
                if self.kind not in ("memory", "etcd"):
                    shutil.copytree(before, self._home, ignore=shutil.ignore_patterns("*-shm"))
                raise Killed
        except Killed:
            self.close()

    def close(self) -> None:
        opened, self._opened = self._opened, []
        for store in dict.fromkeys(opened):
            store.close()


@contextmanager
def checked_place(kind: str, folder: Path) -> Iterator[Place]:
    """A home for a store; whatever a test did, a check of the store finds nothing wrong."""
    place = Place(kind, folder)
    try:
        yield place
        assert list(place.reopen().check(repair=False)) == []
    finally:
        place.close()
