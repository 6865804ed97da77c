"""Where a store lives while tests open, close and open it again. Every store the project has is listed here once."""

from pathlib import Path

from yirangmq.core.ports import Store
from yirangmq.stores.memory import MemoryStore
from yirangmq.stores.memory_state import MemoryState
from yirangmq.stores.open import open_store

KINDS = ("memory", "sqlite")


class Place:
    """One store's home. ``open`` may be called again and again: what was committed is there."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._folder = folder
        self._state = MemoryState()
        self._opened: list[Store] = []

    @property
    def url(self) -> str:
        return {"sqlite": f"sqlite:{self._folder / 'queue.db'}", "files": f"files:{self._folder / 'queues'}"}[self.kind]

    def open(self) -> Store:
        self._opened.append(self._made())
        return self._opened[-1]

    def _made(self) -> Store:
        if self.kind == "memory":
            return MemoryStore(self._state)
        # "os" spares the syncs, which only a power cut could tell from none; the rules are the same.
        return open_store(self.url, durability="os")

    def reopen(self) -> Store:
        self.close()
        return self.open()

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()
