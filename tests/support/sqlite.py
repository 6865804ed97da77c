"""What tests of the store of a server are made of: the store without its threads, what a kill leaves, and ids that need
not be looked for."""

import shutil
from pathlib import Path
from typing import Any

from yirangmq.broker.queues import Queues
from yirangmq.core.ports import Store
from yirangmq.stores.sqlite.redo_committer import RedoCommitter
from yirangmq.stores.sqlite.server_store import open_served_store
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.testing import CountingIds, open_for_test


class OrderedIds(CountingIds):
    """Each greater than those before it, as real ones mostly are: nobody has to look for it among them."""

    def new(self, count: int) -> list[str]:
        return [f"{one.partition('-')[2]:0>8}" for one in super().new(count)]


def served(folder: Path, **settings: Any) -> SqliteStore:
    return open_served_store(folder / "queue.db", **{"durability": "os", "seconds": None, **settings})


def plain(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "queue.db", durability="os")


def after_a_kill(folder: Path, to: Path) -> Path:
    """What lies on disk now, as the next process finds it."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*-shm"))
    return to


def ids(store: Store, queue: str = "q") -> list[str]:
    with store.transaction(write=False) as transaction:
        return [envelope.id for _, envelope in transaction.heads(queue, 10_000)]


def open_sqlite(path: Path) -> Queues:
    return open_for_test(store=SqliteStore(path, durability="os"))


def redo_of(store: Store) -> RedoCommitter:
    """The committer of a server's store."""
    assert isinstance(store, SqliteStore)
    assert isinstance(store.committer, RedoCommitter)
    return store.committer
