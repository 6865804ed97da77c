"""The SQLite store of a server, which nobody else writes to: small commits and many.

A commit of SQLite writes whole pages, some 60 KB for one message. So a small one goes to the file of changes
(``sqlite_redo``), one write and one sync, and SQLite's own transaction stays open: whoever comes next sees what was
done. A large one, a full file of changes, or the end of two seconds make SQLite commit all of it. Pages are copied from
SQLite's log into its file by a thread of their own.

If a batch of work fails, SQLite forgets all since its last commit, and what is in the file of changes is made again.
After a crash the same happens when the store is opened, by whomever."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import apsw

from yirangmq.core.ports import Finding
from yirangmq.stores import sqlite_rows as sql
from yirangmq.stores.disk import Disk
from yirangmq.stores.files_errors import as_store_error
from yirangmq.stores.sqlite import SqliteStore
from yirangmq.stores.sqlite_line import ADD_FRESH, GROW_FRESH
from yirangmq.stores.sqlite_open import CHECKPOINT_BYTES
from yirangmq.stores.sqlite_recorder import Recorder
from yirangmq.stores.sqlite_redo import BYTES, RedoFile, generation_of, make_again, new_generation
from yirangmq.stores.sqlite_transaction import SqliteTransaction

SECONDS = 2.0
"""How long a change may be in the file of changes alone."""
MOST_ROWS = 150
"""A commit that changes more of them, as seventy new messages do, goes to SQLite at once: it would be written twice for
nothing."""
MOST_TIMES = 8
"""So many times as long as it should be, SQLite's log is copied by whoever commits."""
PATIENT = (sql.INSERT_MESSAGE, sql.NAME_ONE, sql.ADD_NEW, ADD_FRESH, GROW_FRESH)
"""What the publishing of one message changes: SQLite does it while the disk writes the record of it."""
log = logging.getLogger(__name__)


class ServedSqliteStore(SqliteStore):
    def __init__(
        self,
        path: Path,
        *,
        durability: str = "full",
        busy_seconds: float = 30,
        vfs: str | None = None,
        disk: Disk | None = None,
        redo_bytes: int = BYTES,
        seconds: float | None = SECONDS,
    ) -> None:
        """``seconds``: None leaves the moment of commits to the size of what there is, and pages are copied by whoever
        commits; no thread is started."""
        super().__init__(path, durability=durability, busy_seconds=busy_seconds, vfs=vfs)
        self._record()
        self._changes = RedoFile(path, generation_of(self._db), disk, redo_bytes, sync=durability == "full")
        self._is_open = False
        """SQLite's transaction is, with everything in it that is in the file of changes."""
        self._touched = 0
        self._copying = _Copying(self) if seconds is not None else None
        self._settling = _Settling(self, seconds) if seconds is not None else None

    def _record(self) -> None:
        """The connection is a new one."""
        self._recorder = Recorder(self._db, PATIENT)
        self._recorded = cast("apsw.Connection", self._recorder)

    # -- a batch of work ------------------------------------------------------------------------------------------

    def _begin(self, write: bool) -> SqliteTransaction:
        if self._changes.count and not self._is_open:
            self._catch_up()
        if write and self._changes.is_in_doubt:
            self._end_doubt()
        if not self._is_open:
            return super()._begin(write)
        self._given = self._known.last, self._known.reserved
        return self._work()

    def _work(self) -> SqliteTransaction:
        self._recorder.forget()
        self._touched = self._db.total_changes()
        return SqliteTransaction(self._recorded, self._known)

    def _commit(self, work: SqliteTransaction, write: bool) -> None:
        if not write:
            if not self._is_open:
                super()._commit(work, write)
            return
        work.flush()
        made = self._recorder
        if not made.made and not made.is_in_doubt:
            if not self._is_open:
                self._end()
        elif self._is_small(work) and self._append():
            if not self._is_open:
                self._is_open = True
                if self._settling is not None:
                    self._settling.begin()
        else:
            made.make()
            self._settle()
        made.forget()

    def _append(self) -> bool:
        try:
            return self._changes.append(self._recorder.made, self._recorder.make)
        except OSError as error:
            raise as_store_error(error, self._changes.path) from error

    def _is_small(self, work: SqliteTransaction) -> bool:
        made = self._recorder
        if work.written > self._changes.room or len(made.made) > MOST_ROWS:
            return False
        return not made.is_in_doubt and self._db.total_changes() - self._touched <= MOST_ROWS

    def _settle(self) -> None:
        """SQLite commits all there is."""
        generation = self._changes.generation
        if self._changes.count or self._changes.is_in_doubt:
            generation = new_generation()
            self._db.execute("UPDATE redo SET generation = ?", (generation,))
        try:
            self._end()
        except BaseException:  # after a crash it may be one nevertheless, and then no record of now would count
            self._changes.is_in_doubt = True
            raise
        self._changes.begin(generation)
        self._is_open = False
        if self._copying is not None:
            self._copying.look()

    def _roll_back(self, write: bool = True) -> None:
        """A look that failed has changed nothing, unless SQLite gave up all of its transaction."""
        if write or not (self._is_open and self._db.in_transaction):
            self._is_open = False
            super()._roll_back(write)

    def _take_in(self) -> bool:
        """Until our first record, what lies there is that of a server before us: it is in SQLite's file before ours is
        written over it."""
        if self._changes.is_made:
            return False
        is_taken = super()._take_in()
        if is_taken:
            self._end()
            self._db.execute("BEGIN IMMEDIATE")
        self._changes.begin(generation_of(self._db))
        return is_taken

    def _catch_up(self) -> None:
        """What is in the file of changes and no longer in SQLite's transaction is made again."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            if generation_of(self._db) == self._changes.generation:
                make_again(self._db, self._changes.made())
                self._is_open = True
            else:  # somebody who opened the store has taken it in
                self._changes.begin(generation_of(self._db))
        finally:
            if not self._is_open and self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _end_doubt(self) -> None:
        """What was refused, and may be on disk nevertheless, is made void with all records, by a commit."""
        if not self._is_open:
            self._db.execute("BEGIN IMMEDIATE")
        try:
            self._settle()
        except BaseException:
            self._roll_back()
            raise

    # -- the whole store ------------------------------------------------------------------------------------------

    def check(self, *, repair: bool) -> Iterator[Finding]:
        with self._lock:
            self._settle_all()
            yield from super().check(repair=repair)

    def _salvage(self) -> list[Finding]:
        is_copied_aside = self._copying is not None
        if self._copying is not None:
            self._copying.close()
        try:
            return super()._salvage()
        finally:
            self._record()
            self._changes.begin(generation_of(self._db))
            self._is_open = False
            self._copying = _Copying(self) if is_copied_aside else None

    def _settle_all(self) -> None:
        """If SQLite cannot, what there is stays in the file of changes."""
        try:
            if self._changes.count and not self._is_open:
                self._catch_up()
            if self._is_open:
                self._settle()
        except apsw.Error as error:
            log.warning("SQLite does not commit: %s; what is on disk beside it is taken in later", error)
            self._roll_back()

    def settle(self) -> bool:
        """Let SQLite commit what there is; whether it did."""
        with self._lock:
            self._settle_all()
            return not self._changes.count

    def close(self) -> None:
        for thread in (self._settling, self._copying):
            if thread is not None:
                thread.close()
        with self._lock:
            if not self.is_closed:
                self._settle_all()
                super().close()
                self._changes.close()


class _Settling:
    """Commits what has been in the file of changes alone for long enough."""

    def __init__(self, store: ServedSqliteStore, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self._begun = threading.Event()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Something is there that was not."""
        self._begun.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="yirangmq-commit", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._begun.wait()
            if self._is_over.wait(self._seconds):
                return
            self._begun.clear()
            if not self._store.settle():
                self._begun.set()

    def close(self) -> None:
        self._is_over.set()
        self._begun.set()
        if self._thread is not None:
            self._thread.join()


class _Copying:
    """Copies pages from SQLite's log into its file while others work; the last of them, which came meanwhile, are
    copied between two commits, so that the log begins anew."""

    def __init__(self, store: ServedSqliteStore) -> None:
        self._store = store
        self._pages = 0
        self._is_asked = self._is_done = False
        self._asked = threading.Event()
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._most = CHECKPOINT_BYTES // store._db.pragma("page_size")
        store._db.set_wal_hook(self._committed)

    def _committed(self, db: apsw.Connection, name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def look(self) -> None:
        """After a commit."""
        if self._pages < self._most:
            return
        if not self._is_asked:
            self._is_asked = True
            self._asked.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="yirangmq-copy", daemon=True)
                self._thread.start()
        elif self._is_done or self._pages > MOST_TIMES * self._most:
            self._is_asked = self._is_done = False
            _copy(self._store._db)

    def _run(self) -> None:
        db: apsw.Connection | None = None
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._is_over:
                break
            if db is None:
                db = apsw.Connection(str(self._store._path), vfs=self._store._vfs)
                db.execute("PRAGMA synchronous = FULL")
                db.execute("SELECT generation FROM redo").fetchone()  # or it does not know of a log
            _copy(db)
            self._is_done = True
        if db is not None:
            db.close()

    def close(self) -> None:
        self._is_over = True
        self._asked.set()
        if self._thread is not None:
            self._thread.join()


def _copy(db: apsw.Connection) -> None:
    """What cannot be copied now is copied later; until then SQLite's log has it."""
    with contextlib.suppress(apsw.Error):
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
