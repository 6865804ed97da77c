"""The SQLite file of a store, opened: its connection, cache and transaction parts, shared by the store and its
committer."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import apsw

from yirangmq.stores.reserve import Reserve
from yirangmq.stores.sqlite import sql
from yirangmq.stores.sqlite.cache import StoreCache
from yirangmq.stores.sqlite.connection import checkpoint_pages, open_connection, sqlite_errors_translated
from yirangmq.stores.sqlite.statements import StatementExecutor
from yirangmq.stores.sqlite.transaction import SqliteTransaction


class StoreFile:
    """An open SQLite file with its cache. Used under ``lock``.

    ``on_add`` and ``borrow_reserve`` are functions of the store: ``on_add`` runs before messages are added while the
    disk may be full; ``borrow_reserve`` releases the reserve while its block runs, and yields False if there is
    none."""

    def __init__(
        self,
        path: Path,
        *,
        durability: str,
        busy_seconds: float,
        vfs: str | None,
        connect: Callable[[], apsw.Connection] | None,
        reserve: Reserve | None,
        on_add: Callable[[], None],
        borrow_reserve: Callable[[], AbstractContextManager[bool]],
    ) -> None:
        self.path = path
        self.lock = threading.RLock()
        """Serializes the threads of this process: transactions, and the background commit of a server."""
        self.durability = durability
        self.busy_seconds = busy_seconds
        self.vfs = vfs
        self._connect = connect
        self.reserve = reserve
        self.on_add = on_add
        self.borrow_reserve = borrow_reserve
        self.cache = StoreCache()
        self._parts: SqliteTransaction | None = None
        """The latest transaction, whose parts the next one uses; None after a transaction that failed."""
        self.committed_numbers = 0, 0
        """Last used and last reserved message number at the last commit."""
        self._version: int | None = None
        self.open()

    def open(self) -> None:
        with sqlite_errors_translated(None, self.path):
            if self._connect is not None:
                self.db = self._connect()
            else:
                self.db = open_connection(self.path, self.durability, self.busy_seconds, self.vfs)
                if self.reserve is not None:
                    self.db.execute(f"PRAGMA wal_autocheckpoint = {self.log_pages()}")

    def reopen(self) -> None:
        """Open the file again after it was replaced."""
        self.cache.reset()
        self._parts, self._version = None, None
        self.open()

    def close(self) -> None:
        with sqlite_errors_translated(None, self.path):
            self.db.close()

    def log_pages(self) -> int:
        """Return the length of the WAL, in pages, at which it is checkpointed: its pages must fit the reserve."""
        usual = checkpoint_pages(self.db)
        if self.reserve is None or not self.reserve.size:
            return usual
        return int(max(1, min(usual, self.reserve.size // 2 // self.db.pragma("page_size"))))

    # -- transactions ---------------------------------------------------------------------------------------------

    def begin_read(self) -> None:
        self.db.execute("BEGIN")
        # The data version shows writes of other processes only inside a transaction.
        self.db.execute(sql.LAST_NUMBER).fetchone()

    def refresh_cache(self) -> None:
        """Drop the caches if another process has written: it may have deleted a queue and reused its number. SQLite's
        data version also counts commits of this process, so its value after the last of them is stored."""
        if self.is_changed():
            self.cache.reset()

    def is_changed(self) -> bool:
        """Return True if another process has written since the last commit of this one."""
        return self.db.data_version("main") != self._version

    def note_version(self) -> None:
        self._version = self.db.data_version("main")

    def start(self, db: StatementExecutor, on_add: Callable[[], None] | None) -> SqliteTransaction:
        """Start a transaction of the store over the connection, or over the recorder of a server."""
        cache = self.cache
        self.committed_numbers = cache.last, cache.reserved
        if self._parts is None:
            self._parts = SqliteTransaction(db, cache)
        return self._parts.start(on_add)

    def execute_commit(self) -> None:
        self.db.execute("COMMIT")
        self._version = self.db.data_version("main")

    def roll_back(self) -> None:
        """Roll back, and drop the caches, which may have uncommitted rows. Message numbers used since the last commit
        are free again."""
        self.cache.reset(*self.committed_numbers)
        self._parts = None
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
        self._version = self.db.data_version("main")
