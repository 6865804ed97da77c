"""SQLite store: one file, whose transactions begin and commit as its committer says.

WAL with full sync: when ``transaction`` ends without an error, its changes are on disk. The schema is in
``schema/*.sql``. A lock serializes the threads of one process. With a ``DirectCommitter`` several processes may open
the file, with one writing connection each; a server has a ``RedoCommitter`` (``stores.sqlite.server_store``).

On a full disk the reserve is released and history is trimmed. While the reserve is in use, new messages get only pages
that are free inside the file."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import apsw

from yirangmq.core.errors import StoreBusy, StoreError
from yirangmq.core.ports import CheckProgress, Finding, no_progress
from yirangmq.stores.file_watch import FileWatch
from yirangmq.stores.reserve import HISTORY_PARTS, sqlite_reserve, trim_history
from yirangmq.stores.sqlite.committer import Committer, DirectCommitter
from yirangmq.stores.sqlite.connection import set_busy_handler, sqlite_errors_translated, translation
from yirangmq.stores.sqlite.store_file import SqliteTransaction, StoreFile

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
    ``connect`` opens the file in another way (``stores.read_only``)."""

    __slots__ = (
        "_committer",
        "_file",
        "_has_added",
        "_is_capped",
        "_is_trimming",
        "_lock",
        "_lock_timeout",
        "_path",
        "_reserve",
        "_watch",
        "is_closed",
    )

    def __init__(
        self,
        path: Path,
        *,
        durability: str = "full",
        busy_seconds: float = 30,
        vfs: str | None = None,
        connect: Callable[[], apsw.Connection] | None = None,
        reserve_bytes: int = 0,
        committer: Callable[[StoreFile], Committer] = DirectCommitter,
    ) -> None:
        self._path = path
        self._reserve = sqlite_reserve(path, reserve_bytes) if reserve_bytes else None
        self._file = StoreFile(
            path,
            durability=durability,
            busy_seconds=busy_seconds,
            vfs=vfs,
            connect=connect,
            reserve=self._reserve,
            on_add=self._before_adding,
            borrow_reserve=self._borrow_reserve,
        )
        if self._reserve is not None:
            self._reserve.make()
        self._has_added = False
        """True if the latest failed transaction was to add messages."""
        self._is_capped = False
        """True while SQLite may not grow the file."""
        self._is_trimming = False
        """True while history is trimmed, so that the trim transactions do not start another trim."""
        self._lock = self._file.lock
        self._lock_timeout = -1.0
        """Seconds that a thread waits for another one of this process; -1: no limit."""
        self.is_closed = False
        self._watch = FileWatch([Path(f"{path}-wal")])
        try:
            self._committer = committer(self._file)
        except BaseException:
            self._watch.close()
            self._file.close()
            raise

    @property
    def file(self) -> StoreFile:
        return self._file

    @property
    def committer(self) -> Committer:
        return self._committer

    def transaction(self, *, write: bool = True) -> "_TransactionBlock":
        return _TransactionBlock(self, write)

    def never_wait(self) -> None:
        """Raise ``StoreBusy`` immediately from now on if another process holds the lock. An event loop then retries by
        a timer and does other work meanwhile. The wait for a thread of this process is limited to
        ``LOCK_TIMEOUT_SECONDS``."""
        self._file.busy_seconds, self._lock_timeout = 0.0, LOCK_TIMEOUT_SECONDS
        with self._lock:
            set_busy_handler(self._file.db, 0)

    def _enter(self) -> None:
        if not self._lock.acquire(True, self._lock_timeout):
            raise self._in_use()

    def _in_use(self) -> StoreBusy:
        return StoreBusy(f"{self._path} is in use by a long commit of this process; try again")

    def commit_pending(self) -> bool:
        """Make SQLite commit all confirmed changes. Return False if that fails."""
        with self._lock:
            return self._committer.commit_pending()

    # -- a full disk ----------------------------------------------------------------------------------------------

    @property
    def is_short(self) -> bool:
        """True if the reserve is in use or could not be allocated."""
        return self._reserve is not None and self._reserve.is_short

    def _before_adding(self) -> None:
        """While the reserve is in use, stop SQLite from growing the file: new messages may only use free pages in
        it."""
        if self._committer.check_short() and not self._is_capped:
            self._is_capped = True
            db = self._file.db
            db.execute(f"PRAGMA max_page_count = {db.pragma('page_count')}")

    @contextlib.contextmanager
    def _borrow_reserve(self) -> Iterator[bool]:
        """Release the reserve while the block runs, for a commit of confirmed changes. Yield False if there is none."""
        if self._reserve is None or not self._reserve.is_held:
            yield False
            return
        self._reserve.release()
        yield True
        self._restore_reserve()

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
        with contextlib.suppress(Exception):
            self._committer.take_connection()
            self._committer.commit_pending()
        with contextlib.suppress(apsw.Error):
            self._file.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _restore_reserve(self) -> None:
        """Allow the file to grow and allocate the reserve again, after each transaction that ran while it was in use.
        Errors do not fail that transaction."""
        with contextlib.suppress(StoreError, apsw.Error):
            if self._is_capped:
                self._is_capped = False
                self._file.db.execute(f"PRAGMA max_page_count = {MAX_PAGES}")
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
        self._enter()
        try:
            self._committer.take_connection()
            db = self._file.db
            with sqlite_errors_translated(db, self._path):
                return int(db.pragma("freelist_count") * db.pragma("page_size"))
        finally:
            self._lock.release()

    # -- the whole store ------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> None:
        self._watch.wait(timeout)

    def check(self, *, repair: bool, progress: CheckProgress = no_progress) -> Iterator[Finding]:
        with self._lock:
            self._committer.commit_pending()
            yield from self._check(repair, progress)

    def _check(self, repair: bool, progress: CheckProgress) -> list[Finding]:
        from yirangmq.stores.sqlite.check import DAMAGED, check

        file = self._file
        with sqlite_errors_translated(file.db, self._path):
            if repair:
                file.cache.reset()
            findings = list(check(file.db, repair=repair, progress=progress))
            if repair and any(finding.kind == DAMAGED for finding in findings):
                progress("salvage", 0, 0)
                findings = self._salvage()
            return findings

    def _salvage(self) -> list[Finding]:
        """Salvage the rows into a new file and open it; if salvage fails, open the old one again."""
        from yirangmq.stores.sqlite.salvage import salvage

        self._committer.suspend()
        try:
            self._file.db.close()
            try:
                return salvage(self._path)
            finally:
                self._file.reopen()
        finally:
            self._committer.resume()

    def used_bytes(self) -> int:
        """Return the bytes of the used pages of the file; SQLite reuses free pages before the file grows."""
        self._enter()
        try:
            self._committer.take_connection()
            db = self._file.db
            with sqlite_errors_translated(db, self._path):
                pages = db.pragma("page_count") - db.pragma("freelist_count")
                return int(pages * db.pragma("page_size"))
        finally:
            self._lock.release()

    def durability(self) -> str:
        return self._file.durability

    def close(self) -> None:
        self._committer.close()
        with self._lock:
            if self.is_closed:
                return
            self._committer.commit_pending()
            self.is_closed = True
            self._watch.close()
            self._file.close()
            self._committer.close_log()


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
            self._work = store._committer.begin(self._write)
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
                store._committer.commit(self._work, self._write)
            except BaseException as problem:
                self._fail(problem)
                raise
            file = store._file
            file.committed_numbers = file.cache.last, file.cache.reserved
            try:
                if self._write and store._reserve is not None and store._reserve.is_short:
                    store._restore_reserve()
            finally:
                store._lock.release()
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Roll back, release the lock, and raise the error as a ``StoreError`` if it is one of SQLite."""
        self._store._has_added = self._work.inserts.has_added
        try:
            file = self._store._file
            ours = translation(error, file.db, file.path)  # before another call resets the error code
            with sqlite_errors_translated(None, file.path):
                self._store._committer.roll_back(self._write)
                if self._write and self._store.is_short:
                    self._store._restore_reserve()
            if ours is not None:
                raise ours from error
        finally:
            self._store._lock.release()

    def _raise_ours(self, error: BaseException) -> None:
        file = self._store._file
        ours = translation(error, file.db, file.path)
        if ours is not None:
            raise ours from error
