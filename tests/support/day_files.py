"""A store with files by date that a test opens, kills and opens again."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any

from tests.support.stores import Place
from yirangmq.broker.queues import Queues
from yirangmq.core.ports import Store
from yirangmq.format.journal_line import read
from yirangmq.fsio.disk import Disk
from yirangmq.stores.journal import files
from yirangmq.stores.journal.files import JournalFiles
from yirangmq.stores.journal.maintenance import check
from yirangmq.stores.journal.store import JournaledStore
from yirangmq.testing import CountingIds, FailingStore, ManualClock, open_for_test

DAY_MS = 86_400_000


class Kept:
    """A store with files by date that can be closed, killed and opened again."""

    def __init__(self, kind: str, folder: Path, zone: tzinfo | None = UTC) -> None:
        self.zone = zone
        self.place = Place(kind, folder)
        self.root = folder / "by-date"
        self.clock = ManualClock()
        self.ids = CountingIds()
        self.disk: Disk = Disk()
        self.open()

    def open(self) -> Queues:
        self.inner = FailingStore(self.place.open())
        files = JournalFiles(self.root, self.disk, durability="os", file_bytes=4000)
        self.store = JournaledStore(self.inner, files, self.clock, self.zone)
        self.queues = open_for_test(store=self.store, clock=self.clock, ids=self.ids)
        return self.queues

    def killed(self) -> Queues:
        """Nothing is said at the end."""
        self.store.files.close()
        self.place.close()
        return self.open()

    def raw(self) -> Store:
        return self.place.open()

    @property
    def records(self) -> list[dict[str, Any]]:
        names = files.files(self.root)
        return [read(line) for name in names for line in files.lines(self.root / name)]

    def told(self) -> list[tuple[str, str, str]]:
        return [(one["record"], one["messageId"], one.get("state", "")) for one in self.records]

    def agrees(self) -> None:
        found = check(self.root, self.queues.read)
        assert found.findings == []


@contextmanager
def keeping(kind: str, folder: Path, zone: tzinfo | None = UTC) -> Iterator[Kept]:
    made = Kept(kind, folder, zone)
    yield made
    made.store.files.close()
    made.place.close()
