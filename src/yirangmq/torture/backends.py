"""The stores that can be tortured: how to open each with a recorder under it, and how to open what is left.
Knows: the stores by name. Does not know: workloads, cuts."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

from yirangmq.core.ports import Store
from yirangmq.stores.sqlite import SqliteStore
from yirangmq.torture.journal import Journal
from yirangmq.torture.recording_vfs import RecordingVfs

OpenStore = Callable[[], Store]


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

    def _open(self, top: Path, vfs: str | None) -> Store:
        return SqliteStore(top / "queue.db", vfs=vfs)


BACKENDS: dict[str, Callable[[], Backend]] = {"sqlite": SqliteBackend}
