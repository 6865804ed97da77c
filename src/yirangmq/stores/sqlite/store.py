"""SQLite store that several processes may open: one writing connection each, short immediate transactions.

WAL with full sync: when ``transaction`` ends without an error, its changes are on disk. The schema is in
``schema/*.sql``. A lock serializes the threads of one process.

A writing transaction first replays the redo log of a server that was killed, and waits for a server's background
commit. When another process has written, the caches (``reads.StoreCache``) are dropped, except for parsed policies.

On a full disk the reserve is released and history is trimmed. While the reserve is in use, new messages get only pages
that are free inside the file."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import apsw

from yirangmq.core.errors import StoreBusy, StoreError
from yirangmq.core.ports import Finding
from yirangmq.stores.file_watch import FileWatch
from yirangmq.stores.reserve import HISTORY_PARTS, sqlite_reserve, trim_history
from yirangmq.stores.sqlite.cache import StoreCache
from yirangmq.stores.sqlite.connection import (
    BusyHandler,
    checkpoint_pages,
    open_connection,
    set_busy_handler,
    sqlite_errors_translated,
    translation,
)
from yirangmq.stores.sqlite.redo_log import is_locked, redo_path, replay_in_transaction, shared_lock
from yirangmq.stores.sqlite.transaction import SqliteTransaction

LOCK_TIMEOUT_SECONDS = 0.05
"""Maximum wait for another thread of this process after ``never_wait``. A background commit usually takes less time; a
longer one raises ``StoreBusy``."""

MAX_PAGES = 2**32 - 2
"""Maximum number of pages of a SQLite file."""
MIN_FREE_BYTES = 1024 * 1024
"""Free bytes inside the file at which trimming of history stops, when a message finds no space."""
MAX_TRIM_ROUNDS, FEW_TRIM_ROUNDS = 20, 4
"""Maximum number of trim transactions: when a message finds no space, and after each transaction that uses the
reserve."""


class SqliteStore:
    """SQLite store (``core.ports.Store``) in one file. ``vfs`` names the SQLite VFS to use, for power-cut tests;
    ``connect`` opens the file in another way (``stores.read_only``).

    The attributes are slots, because the server store adds many more: CPython 3.11 reads the attributes of an instance
    with more than 29 from a dict, which is slower."""

    __slots__ = (
        "_busy_seconds",
        "_cache",
        "_committed_numbers",
        "_connect",
        "_db",
        "_durability",
        "_has_added",
        "_is_capped",
        "_is_trimming",
        "_lock",
        "_lock_timeout",
        "_path",
        "_redo",
        "_reserve",
        "_transaction",
        "_version",
        "_vfs",
        "_watch",
        "is_closed",
    )  # fmt: skip

    def __init__(
        self,
        path: Path,
        *,
        durability: str = "full",
        busy_seconds: float = 30,
        vfs: str | None = None,
        connect: Callable[[], apsw.Connection] | None = None,
        reserve_bytes: int = 0,
    ) -> None:
        self._path = path
        self._durability = durability
        self._busy_seconds = busy_seconds
        self._vfs = vfs
        self._connect = connect
        self._redo = redo_path(path)
        self._reserve = sqlite_reserve(path, reserve_bytes) if reserve_bytes else None
        self._open()
        if self._reserve is not None:
            self._reserve.make()
        self._has_added = False
        """True if the latest failed transaction was to add messages."""
        self._is_capped = False
        """True while SQLite may not grow the file."""
        self._is_trimming = False
        """True while history is trimmed, so that the trim transactions do not start another trim."""
        self._lock = threading.RLock()
        self._lock_timeout = -1.0
        """Seconds that a thread waits for another one of this process; -1: no limit."""
        self.is_closed = False
        self._cache = StoreCache()
        self._transaction: SqliteTransaction | None = None
        """The latest transaction, whose parts the next one uses; None after a transaction that failed."""
        self._committed_numbers = 0, 0
        """Last used and last reserved message number at the last commit."""
        self._version: int | None = None
        self._watch = FileWatch([Path(f"{path}-wal")])

    def _open(self) -> None:
        with sqlite_errors_translated(None, self._path):
            if self._connect is not None:
                self._db = self._connect()
            else:
                self._db = open_connection(self._path, self._durability, self._busy_seconds, self._vfs)
                if self._reserve is not None:
                    self._db.execute(f"PRAGMA wal_autocheckpoint = {self._log_pages()}")

    def transaction(self, *, write: bool = True) -> "_TransactionBlock":
        return _TransactionBlock(self, write)

    def never_wait(self) -> None:
        """Raise ``StoreBusy`` immediately from now on if another process holds the lock. An event loop then retries by
        a timer and does other work meanwhile. The wait for a thread of this process is limited to
        ``LOCK_TIMEOUT_SECONDS``."""
        self._busy_seconds, self._lock_timeout = 0.0, LOCK_TIMEOUT_SECONDS
        with self._lock:
            set_busy_handler(self._db, 0)

    def _enter(self) -> None:
        if not self._lock.acquire(True, self._lock_timeout):
            raise self._in_use()

    def _in_use(self) -> StoreBusy:
        return StoreBusy(f"{self._path} is in use by a long commit of this process; try again")

    def _begin(self, write: bool) -> SqliteTransaction:
        if write:
            self._begin_writing()
        else:
            self._db.execute("BEGIN")
        try:
            if write:
                self._replay_leftover()
            else:  # the data version shows writes of other processes only inside a transaction
                self._db.execute("SELECT last FROM sequence").fetchone()
            self._refresh_cache()
            self._committed_numbers = self._cache.last, self._cache.reserved
            return self._work()
        except BaseException:
            self._roll_back()
            raise

    def _begin_writing(self) -> None:
        """Begin a writing transaction. It waits while a server runs a background commit; a server that cannot lock its
        redo log, because this process holds a shared lock on it, yields at its next commit."""
        busy_handler, tries = BusyHandler(self._busy_seconds), 0
        while True:
            with shared_lock(self._redo) as is_free:
                if is_free:
                    self._db.execute("BEGIN IMMEDIATE")
                    if not is_locked(self._redo):  # a log created since then may be
                        return
                    self._db.execute("ROLLBACK")
            if not busy_handler(tries):
                raise apsw.BusyError("a server is in the midst of a commit")
            tries += 1

    def _replay_leftover(self) -> bool:
        """Replay the redo log of a server that was killed, before this process changes the store. Return True if there
        was one."""
        if not self._redo.exists() or not replay_in_transaction(self._db, self._redo):
            return False
        self._cache.reset()
        return True

    def _work(self) -> SqliteTransaction:
        if self._transaction is None:
            self._transaction = SqliteTransaction(self._db, self._cache)
        return self._transaction.start(None if self._reserve is None else self._before_adding)

    def _log_pages(self) -> int:
        """Return the length of the WAL, in pages, at which it is checkpointed: its pages must fit the reserve."""
        usual = checkpoint_pages(self._db)
        if self._reserve is None or not self._reserve.size:
            return usual
        return int(max(1, min(usual, self._reserve.size // 2 // self._db.pragma("page_size"))))

    def _commit(self, work: SqliteTransaction, write: bool) -> None:
        if write:
            work.flush()
        self._execute_commit()

    def _execute_commit(self) -> None:
        self._db.execute("COMMIT")
        self._version = self._db.data_version("main")

    def _roll_back(self, write: bool = True) -> None:
        """Roll back, and drop the caches, which may have uncommitted rows. Message numbers used since the last commit
        are free again."""
        last, reserved = self._committed_numbers
        self._cache.reset(last, reserved)
        self._transaction = None
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._version = self._db.data_version("main")

    def _refresh_cache(self) -> None:
        """Drop the caches if another process has written: it may have deleted a queue and reused its number. SQLite's
        data version also counts commits of this process, so its value after the last of them is stored."""
        if self._db.data_version("main") != self._version:
            self._cache.reset()

    # -- a full disk ----------------------------------------------------------------------------------------------

    @property
    def is_short(self) -> bool:
        """True if the reserve is in use or could not be allocated."""
        return self._reserve is not None and self._reserve.is_short

    def _before_adding(self) -> None:
        """While the reserve is in use, stop SQLite from growing the file: new messages may only use free pages in
        it."""
        if self._check_short() and not self._is_capped:
            self._is_capped = True
            self._db.execute(f"PRAGMA max_page_count = {self._db.pragma('page_count')}")

    def _check_short(self) -> bool:
        """Return True if the reserve is in use; other processes use the same one, so the file is checked."""
        return self._reserve is not None and self._reserve.refresh()

    def relieve(self) -> bool:
        """Release the reserve until the next transaction ends, after a transaction found no space. If that was to add
        messages, history is trimmed to make space for them. Return False if there is no reserve."""
        with self._lock:
            if self._reserve is None or self.is_closed:
                return False
            is_for_new = self._has_added
            self._release_reserve()
            if is_for_new:
                self._trim_until_free(MAX_TRIM_ROUNDS)
                self._release_reserve()
            return True

    def _release_reserve(self) -> None:
        """Release the reserve, and checkpoint the WAL."""
        if self._reserve is not None:
            self._reserve.release()
            self._checkpoint()

    def _trim_until_free(self, rounds: int) -> None:
        """Trim history until there are enough free pages inside the file, which draining a store also needs."""
        if self._reserve is None or self._is_trimming:
            return
        self._is_trimming = True
        enough = min(MIN_FREE_BYTES, self._reserve.size)
        try:
            for _ in range(rounds):
                if self.reusable_bytes() >= enough or not self._trim_history():
                    break
        finally:
            self._is_trimming = False

    def _trim_history(self) -> bool:
        """Trim the largest part of history that fits the available space. Return False if there is no history left."""
        for limit in HISTORY_PARTS:
            try:
                with self.transaction() as work:
                    return trim_history(work, limit) > 0
            except StoreError:
                continue
            finally:
                self._release_reserve()
        return False

    def _checkpoint(self) -> None:
        """Checkpoint and truncate the WAL. If that is not possible now, a later checkpoint does it."""
        with contextlib.suppress(apsw.Error):
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _restore_reserve(self) -> None:
        """Allow the file to grow and allocate the reserve again, after each transaction that ran while it was in use.
        Errors do not fail that transaction."""
        with contextlib.suppress(StoreError, apsw.Error):
            if self._is_capped:
                self._is_capped = False
                self._db.execute(f"PRAGMA max_page_count = {MAX_PAGES}")
            self._restore()
            if self.is_short and not self._is_trimming:
                self._trim_until_free(FEW_TRIM_ROUNDS)
                self._restore()

    def _restore(self) -> None:
        if self._reserve is not None and self._reserve.is_short:
            self._checkpoint()
            self._reserve.make()

    def reusable_bytes(self) -> int:
        """Return the bytes of the free pages inside the file."""
        with self._lock, sqlite_errors_translated(self._db, self._path):
            return int(self._db.pragma("freelist_count") * self._db.pragma("page_size"))

    # -- the whole store ------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> None:
        self._watch.wait(timeout)

    def check(self, *, repair: bool) -> Iterator[Finding]:
        from yirangmq.stores.sqlite.check import DAMAGED, check

        with self._lock, sqlite_errors_translated(self._db, self._path):
            if repair:
                self._cache.reset()
            findings = list(check(self._db, repair=repair))
            if repair and any(finding.kind == DAMAGED for finding in findings):
                findings = self._salvage()
            yield from findings

    def _salvage(self) -> list[Finding]:
        """Salvage the rows into a new file and open it; if salvage fails, open the old one again."""
        from yirangmq.stores.sqlite.salvage import salvage

        self._db.close()
        try:
            return salvage(self._path)
        finally:
            self._cache.reset()
            self._transaction, self._version = None, None
            self._open()

    def used_bytes(self) -> int:
        """Return the bytes of the used pages of the file; SQLite reuses free pages before the file grows."""
        self._enter()
        try:
            with sqlite_errors_translated(self._db, self._path):
                pages = self._db.pragma("page_count") - self._db.pragma("freelist_count")
                return int(pages * self._db.pragma("page_size"))
        finally:
            self._lock.release()

    def durability(self) -> str:
        return self._durability

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            self._watch.close()
            with sqlite_errors_translated(None, self._path):
                self._db.close()


class _TransactionBlock:
    """One transaction as a ``with`` block. It is a class because there is a transaction for every few messages, and a
    generator-based context manager takes the time of a statement."""

    __slots__ = ("_store", "_work", "_write")

    def __init__(self, store: SqliteStore, write: bool) -> None:
        self._store = store
        self._write = write

    def __enter__(self) -> SqliteTransaction:
        store = self._store
        if not store._lock.acquire(True, store._lock_timeout):
            raise store._in_use()
        try:
            self._work = store._begin(self._write)
        except BaseException as error:
            store._has_added = False
            store._lock.release()
            self._raise_ours(error)
            raise
        return self._work

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            store = self._store
            try:
                store._commit(self._work, self._write)
            except BaseException as problem:
                self._fail(problem)
                raise
            store._committed_numbers = store._cache.last, store._cache.reserved
            try:
                if self._write and store._reserve is not None and store._reserve.is_short:
                    store._restore_reserve()
            finally:
                store._lock.release()
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Roll back, release the lock, and raise the error as a ``StoreError`` if it is one of SQLite."""
        self._store._has_added = self._work.has_added
        try:
            ours = translation(error, self._store._db, self._store._path)  # before another call resets the error code
            with sqlite_errors_translated(None, self._store._path):
                self._store._roll_back(self._write)
                if self._write and self._store.is_short:
                    self._store._restore_reserve()
            if ours is not None:
                raise ours from error
        finally:
            self._store._lock.release()

    def _raise_ours(self, error: BaseException) -> None:
        ours = translation(error, self._store._db, self._store._path)
        if ours is not None:
            raise ours from error
