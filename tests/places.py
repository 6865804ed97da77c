"""Where a store lives while tests open, close and open it again. Every store the project has is listed here once."""

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from yirangmq.core.ports import Store, Transaction
from yirangmq.stores.memory import MemoryStore
from yirangmq.stores.memory_state import MemoryState
from yirangmq.stores.open import open_store

KINDS = ("memory", "sqlite", "files")


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
        return {"sqlite": f"sqlite:{self._home / 'queue.db'}", "files": f"files:{self._home / 'queues'}"}[self.kind]

    @property
    def _home(self) -> Path:
        return self._folder / str(self._crashes)

    def open(self) -> Store:
        self._opened.append(self._made())
        return self._opened[-1]

    def _made(self) -> Store:
        if self.kind == "memory":
            return MemoryStore(self.state)
        if self.kind == "etcd":  # a process that leads has it once, and all who open it there share it
            return self._opened[0] if self._opened else open_store(self._etcd)
        self._home.mkdir(exist_ok=True)
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
        while self._opened:
            self._opened.pop().close()
