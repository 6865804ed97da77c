"""The SQLite file of a store, opened: its connection, its cache, and its transactions.

``SqliteTransaction`` has the methods of ``core.ports.Transaction`` that the parts of a transaction implement.
``StoreFile`` starts it; the store and its committer share the file."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import apsw

from yirangmq.stores.reserve import Reserve
from yirangmq.stores.sqlite import sql
from yirangmq.stores.sqlite.cache import StoreCache
from yirangmq.stores.sqlite.connection import checkpoint_pages, open_connection, sqlite_errors_translated
from yirangmq.stores.sqlite.deletions import MessageDeletions
from yirangmq.stores.sqlite.inserts import MessageInserts
from yirangmq.stores.sqlite.reads import MessageLookup
from yirangmq.stores.sqlite.run_operations import RunOperations
from yirangmq.stores.sqlite.statements import StatementExecutor
from yirangmq.stores.sqlite.tables import tables_of
from yirangmq.stores.sqlite.writes import StateChanges

# -- transaction -------------------------------------------------------------------------------------------------------


class SqliteTransaction:
    """Transaction of the SQLite store (``core.ports.Transaction``).

    The parts are made once and used by one transaction after the other, because making them takes longer than a small
    transaction. The store makes new ones after a transaction that failed: its parts may hold uncommitted changes."""

    def __init__(self, db: StatementExecutor, cache: StoreCache) -> None:
        tables = tables_of(db, cache)
        queues, self._contents, self._runs = tables.queues, tables.contents, tables.runs
        lookup, changes = MessageLookup(tables), StateChanges(tables)
        deletions = MessageDeletions(tables, lookup, changes)
        self._queues = queues
        self._run_operations = RunOperations(tables, changes)
        self.inserts = MessageInserts(tables)
        # The methods of the parts are attributes: a method here that calls them would be one more call.
        self.places, self.policy, self.counts, self.totals = queues.places, queues.policy, queues.counts, queues.totals
        self.policy_text, self.set_policy = queues.policy_text, queues.set_policy
        self.queues, self.queue_count, self.has_queue = queues.queues, queues.queue_count, queues.has_queue
        self.queues_with_policy = queues.queues_with_policy
        self.note, self.notes, self.set_note = queues.note, queues.notes, queues.set_note
        self.by_seq, self.by_id, self.group_first = lookup.by_seq, lookup.by_id, lookup.group_first
        self.envelopes, self.failures, self.scan = lookup.envelopes, lookup.failures, lookup.scan
        self.due, self.next_due = lookup.due, lookup.next_due
        self.swap = changes.swap
        self.heads, self.rewrite, self.forget, self.trim = (
            deletions.heads,
            deletions.rewrite,
            deletions.forget,
            deletions.trim,
        )
        self.add, self.key_holders, self.hold_keys = (
            self.inserts.add,
            self.inserts.key_holders,
            self.inserts.hold_keys,
        )
        self.free_keys, self.forget_keys = self.inserts.free_keys, self.inserts.forget_keys

    def run_operations(self) -> RunOperations:
        return self._run_operations

    def delete_queue(self, queue: str) -> None:
        self._runs.write()
        self._queues.delete_queue(queue)

    # -- for the store --------------------------------------------------------------------------------------------

    def start(self, on_add: Callable[[], None] | None) -> "SqliteTransaction":
        """Return a new transaction with the parts of this one, and drop what they keep for the duration of one: callers
        tell transactions apart by identity. ``on_add`` is called before messages are added, if the store has a reserve
        that may be in use."""
        self._queues.deltas.clear()
        self._run_operations.offered.clear()
        inserts = self.inserts
        inserts.on_add, inserts.has_added, inserts.written = on_add, False, 0
        started = SqliteTransaction.__new__(SqliteTransaction)
        started.__dict__ = self.__dict__
        return started

    def flush(self) -> None:
        """Write the ready runs and counters that were kept in memory; called once, just before the commit."""
        if self._runs.new:
            self._runs.write()
        if self._contents.unswept:
            self._contents.sweep()
        self._queues.write_counters()


# -- file --------------------------------------------------------------------------------------------------------------


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
