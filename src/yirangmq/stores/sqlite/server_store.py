"""SQLite store of a server, its only writer: small commits to a redo log, SQLite's commits in the background.

A SQLite commit writes whole pages, about 60 KB for one message. A small commit (up to 150 changed rows) goes to the
redo log instead (``stores.sqlite.redo_log``), with one write and one sync. SQLite's transaction stays open, so later
transactions see the change. SQLite commits all of it with the next large commit, when the redo log is half full, or
after 2 s.

The last two are background commits on a thread (docs/decisions/0019-background-commit.md). Meanwhile transactions
continue as long as they need no answer from SQLite: their changes are on disk in the redo log, and SQLite executes
them after the background commit. Between COMMIT and the next BEGIN IMMEDIATE another process could take SQLite's write
lock. The server therefore holds ``flock`` on the redo log for that window, and other writers that see it locked back
off. Another thread checkpoints the WAL.

A failed transaction rolls SQLite back to its last commit, and the redo log is replayed. After a crash the next process
that opens the store replays it."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import cast

import apsw

from yirangmq.core.errors import StoreBusy
from yirangmq.core.ports import Finding
from yirangmq.fsio.disk import Disk
from yirangmq.fsio.errors import as_store_error
from yirangmq.stores.sqlite import sql
from yirangmq.stores.sqlite.background import Copying, Settling
from yirangmq.stores.sqlite.cache import Recorder
from yirangmq.stores.sqlite.connection import checkpoint_pages, sqlite_errors_translated
from yirangmq.stores.sqlite.redo_log import BYTES, Mark, RedoFile, make_again, mark_of, new_generation, put_mark
from yirangmq.stores.sqlite.runs import ADD_BATCH, ADD_FRESH, FRESH_BEHIND, FRESH_LINE, GROW_FRESH, SETTLE_BATCH
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.stores.sqlite.transaction import SqliteTransaction

SECONDS = 2.0
"""Maximum time that a change is only in the redo log, before SQLite commits it."""
MOST_ROWS = 150
"""Maximum number of changed rows of a commit to the redo log. A larger one (about 70 new messages) is committed by
SQLite directly: the redo log would only make it be written twice."""
PATIENT = (
    *(sql.INSERT_MESSAGE, sql.NAME_ONE, sql.ADD_NEW, sql.ADD_COUNTS),
    *(ADD_FRESH, GROW_FRESH, ADD_BATCH, SETTLE_BATCH),
)
"""Deferrable statements: the changes of publish, lease and ack. SQLite executes them while the disk writes their
record."""
STEADY = {
    sql.IS_ANY_APART: "ready",
    sql.SCAN_READY: "ready",
    FRESH_LINE: "fresh",
    FRESH_BEHIND: "fresh",
}
"""Queries with cacheable misses, each with its table: every lease runs them, and they find nothing in an empty
queue."""
QUIET_SECONDS = 10.0
"""Minimum interval between two warnings that a SQLite commit failed."""
LEAST_REDO = 65536
"""Minimum length of the redo log in bytes. A small reserve reduces the length, because the changes in the log must fit
the reserve when the disk is full."""
WAY_SECONDS = 0.025
"""Time that the server leaves SQLite's write lock free, so that a waiting process can take it."""
log = logging.getLogger(__name__)


class ServedSqliteStore(SqliteStore):
    """SQLite store of a server: redo log, background commit and deferred statements.

    Invariant: the SQLite file, followed by the records of the redo log after its position, contains every confirmed
    change. Callers and the commit thread share ``_lock``; the background commit itself runs under ``_going`` without
    it."""

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
        reserve_bytes: int = 0,
    ) -> None:
        """``seconds``: delay before SQLite commits changes of the redo log. If None, no thread is started: a half-full
        redo log starts a commit, which the next call that needs SQLite runs, and the committing thread checkpoints the
        WAL."""
        super().__init__(path, durability=durability, busy_seconds=busy_seconds, vfs=vfs, reserve_bytes=reserve_bytes)
        if self._reserve is not None and self._reserve.size:
            redo_bytes = min(redo_bytes, max(self._reserve.size // 8, LEAST_REDO))
        self._record()
        self._believed = self._known
        """The cache at the start of the last transaction; another one invalidates the recorder's negative cache."""
        try:
            with sqlite_errors_translated(self._db, path):
                self._changes = RedoFile(path, mark_of(self._db), disk, redo_bytes, sync=durability == "full")
                self._copying = self._copier() if seconds is not None else None
        except BaseException:
            super().close()
            raise
        self._is_open = False
        """True while SQLite's transaction is open and contains every record of the redo log."""
        self._touched = 0
        """Rows changed on the connection before this transaction (``total_changes``)."""
        self._away: _Away | None = None
        """The background commit, from its start until it is joined."""
        self._is_awaited = False
        """True if another process waits to write."""
        self._way_until = 0.0
        """Monotonic time until which the write lock stays free for that process; 0: that time has not started."""
        self._number = 0
        """Number of the next record when this transaction started."""
        self._quiet_until = 0.0
        self._complaint: Exception | None = None
        """Error of the latest SQLite commit of the redo log; None if it succeeded."""
        self._going = threading.Lock()
        """Held by the thread that runs the background commit."""
        self._settling = Settling(self.settle_aside, seconds) if seconds is not None else None

    def _begin_writing(self) -> None:
        """Begin a writing transaction. A process that waits for the write lock gets it first, for up to
        ``WAY_SECONDS``. Background commits of other servers need no check, because this is the only server of the
        store."""
        if self._is_awaited:
            self._way_until = self._way_until or monotonic() + WAY_SECONDS
            while monotonic() < self._way_until and not self._changes.hold():
                if not self._busy_seconds:
                    raise apsw.BusyError("another process waits to write, and goes first")
                sleep(WAY_SECONDS / 50)
            self._is_awaited, self._way_until = False, 0.0
            self._changes.let_go()
        self._db.execute("BEGIN IMMEDIATE")

    def _record(self) -> None:
        """Create the recorder for a new connection."""
        self._recorder = Recorder(self._db, PATIENT, STEADY)
        self._recorded = cast("apsw.Connection", self._recorder)

    # -- transaction ----------------------------------------------------------------------------------------------

    def _begin(self, write: bool) -> SqliteTransaction:
        if self._away is not None and self._away.is_back:
            self._welcome()
        if self._changes.count and not self._is_open:
            self._catch_up()
        if write and self._changes.is_in_doubt:
            self._end_doubt()
        if not self._is_open:
            return super()._begin(write)
        self._given = self._known.last, self._known.reserved
        return self._work()

    def _work(self) -> SqliteTransaction:
        self._recorder.begin()
        self._number = self._changes.number
        if self._believed is not self._known:
            self._believed = self._known
            self._recorder.doubt()
        if self._away is None:
            self._touched = self._db.total_changes()
        work = SqliteTransaction(self._recorded, self._known)
        if self._reserve is not None and self._reserve.is_short:  # no other process uses the reserve
            work.on_add = self._before_adding
        return work

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
            self._appended()
        else:
            made.make()
            self._settle()
        made.begin()

    def _appended(self) -> None:
        """Schedule a commit after an append, or start one if the redo log is half full. The record is on disk, so an
        error is logged and fails no request."""
        is_first, self._is_open = not self._is_open, True
        try:
            if is_first and self._settling is not None:
                self._settling.begin()
            if self._changes.is_half_full and self._away is None:
                if self._go_away():
                    if self._settling is not None:
                        self._settling.hurry()
                else:
                    self._settle_all()
        except Exception as error:
            self._tell_later(error)

    def _append(self) -> bool:
        try:
            return self._changes.append(self._recorder.made, self._make)
        except OSError as error:
            raise as_store_error(error, self._changes.path) from error

    def _make(self) -> None:
        """Execute the deferred statements, unless a background commit has the connection."""
        if self._away is None or self._away.is_back:
            self._recorder.make()

    def _is_small(self, work: SqliteTransaction) -> bool:
        made = self._recorder
        if made.is_in_doubt or work.written > self._changes.room or len(made.made) > MOST_ROWS:
            return False
        return self._away is not None or self._db.total_changes() - self._touched <= MOST_ROWS

    def _settle(self) -> None:
        """Commit all changes in SQLite, and void the records of the redo log."""
        mark = self._changes.position
        if self._changes.count or self._changes.is_in_doubt:
            mark = Mark(new_generation())
            put_mark(self._db, mark)
        try:
            self._end()
        except BaseException:  # it may still be on disk after a crash, and then no new record is valid
            self._changes.is_in_doubt = True
            raise
        self._changes.begin(mark)
        self._is_open = False
        if self._copying is not None:
            self._copying.look()

    def _roll_back(self, write: bool = True) -> None:
        """Roll back to the last SQLite commit; the next transaction replays the redo log. A read that failed has
        changed nothing and needs no rollback, unless SQLite has rolled back its transaction."""
        with contextlib.suppress(Exception):
            self._reach()
        if write or self._recorder.is_torn or not (self._is_open and self._db.in_transaction):
            if self._changes.number != self._number:  # its record is on disk, but an interrupt came before the reply
                self._given = 0, 0
            self._is_open = False
            self._recorder.give_up()
            super()._roll_back(write)

    def _take_in(self) -> bool:
        """Before the first record of this server, replay and commit the redo log of an earlier one, because new records
        overwrite it."""
        if self._changes.is_made:
            return False
        is_taken = super()._take_in()
        if is_taken:
            self._end()
            self._db.execute("BEGIN IMMEDIATE")
        self._changes.begin(mark_of(self._db))
        return is_taken

    def _catch_up(self) -> None:
        """Begin a transaction and replay the redo log into it, after a rollback."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            mark = mark_of(self._db)
            if mark.generation == self._changes.position.generation:
                if mark != self._changes.position:  # an interrupt came between a commit and its result
                    self._changes.taken_in(mark)
                make_again(self._db, self._changes.made())
                self._is_open = True
            else:  # another process has replayed the log and voided it
                self._changes.begin(mark)
        finally:
            if not self._is_open and self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _end_doubt(self) -> None:
        """Void a refused record or commit that may still be on disk, together with all records, by a SQLite commit."""
        try:
            self._recorder.make()
            if not self._is_open:
                self._db.execute("BEGIN IMMEDIATE")
            self._settle()
        except BaseException:
            self._roll_back()
            raise

    # -- background commit ----------------------------------------------------------------------------------------

    def _go_away(self) -> bool:
        """Start a background commit of all changes. Return False if it cannot run in the background: the log is in
        doubt, another process waits to write, or the redo position cannot be written."""
        if self._changes.is_in_doubt:
            return False
        if not self._changes.hold():
            self._is_awaited = True
            return False
        mark = self._changes.start_commit()
        try:
            put_mark(self._db, mark)
        except apsw.Error as error:
            self._changes.let_go()
            self._tell_later(error)
            self._is_open = self._db.in_transaction
            return False
        self._away = _Away(mark)
        self._recorder.reach = self._reach
        return True

    def _commit_aside(self) -> None:
        """Run the background commit: COMMIT, then BEGIN IMMEDIATE. It runs once, on the commit thread or on the first
        thread that needs SQLite. The error, if any, is raised by ``_reach``."""
        with self._going:
            away = self._away
            if away is None or away.is_back:
                return
            try:
                self._end()
                away.is_committed = True
                if self._copying is not None:
                    self._copying.look()
                    self._version = self._db.data_version("main")
                self._db.execute("BEGIN IMMEDIATE")
                if self._db.data_version("main") != self._version:
                    raise StoreBusy(f"{self._path} was changed by another program; try again")
            except BaseException as error:
                away.error = error
            away.is_back = True

    def _reach(self) -> None:
        """Wait for the background commit and take the connection back. Raise its error if COMMIT or the next BEGIN
        IMMEDIATE failed."""
        if self._away is None:
            return
        self._commit_aside()
        away, self._away, self._recorder.reach = self._away, None, None
        if away.is_committed:
            self._changes.taken_in(away.mark)
        self._changes.let_go()
        self._touched = self._db.total_changes()
        if away.error is not None:
            raise away.error

    def _welcome(self) -> None:
        """Join the background commit like ``_reach``, but log an error instead of raising it: no caller waits for the
        commit, and the next transaction recovers."""
        try:
            self._reach()
        except Exception as error:
            self._complain(error)

    def settle_aside(self) -> bool:
        """Commit in the background, while other threads run transactions. Return True if nothing is left to commit.

        Called on the commit thread."""
        with self._lock:
            if self._away is None and self._changes.count:
                self._send_away()
        self._commit_aside()
        with self._lock:
            self._welcome()
            if self._changes.count and isinstance(self._complaint, apsw.FullError):
                self._settle_all()
            if self._is_open and not self._changes.count:
                self._is_open = False  # before the ROLLBACK: a failed one also ends it
                self._db.execute("ROLLBACK")  # the transaction is empty
            return not self._changes.count

    def _send_away(self) -> None:
        """Start a background commit, or commit here if that is not possible."""
        try:
            self._recorder.make()
            if self._is_open and self._go_away():
                return
        except Exception as error:
            self._complain(error)
        self._settle_all()

    # -- a full disk ----------------------------------------------------------------------------------------------

    def _looked_short(self) -> bool:
        """Return True if the reserve is in use, which no other process can change. The caller then queries the size of
        the file, so the background commit is joined first."""
        if self.is_short:
            self._reach()
        return self.is_short

    def _checkpoint(self) -> None:
        with contextlib.suppress(Exception):
            self._welcome()
            self._settle_all()
        super()._checkpoint()

    def reusable_bytes(self) -> int:
        self._enter()
        try:
            self._welcome()
            return super().reusable_bytes()
        finally:
            self._lock.release()

    # -- the whole store ------------------------------------------------------------------------------------------

    def check(self, *, repair: bool) -> Iterator[Finding]:
        with self._lock:
            self._settle_all()
            yield from super().check(repair=repair)

    def _salvage(self) -> list[Finding]:
        is_copied_aside = self._copying is not None
        if self._copying is not None:
            self._copying.close()
        self._changes.leave()
        try:
            return super()._salvage()
        finally:
            self._record()
            self._changes.begin(mark_of(self._db))
            self._is_open = False
            self._copying = self._copier() if is_copied_aside else None

    def _copier(self) -> Copying:
        """Create the checkpointer; a small reserve limits the length of the WAL."""
        usual = checkpoint_pages(self._db)
        pages = self._log_pages()
        return Copying(self._db, self._path, self._vfs, pages if pages < usual else 0)

    def _settle_all(self) -> None:
        """Commit all changes in SQLite. If that fails, they stay in the redo log. On a full disk the commit is retried
        with the space of the reserve, because all these changes are confirmed."""
        if self._has_settled() or self._reserve is None or not self._reserve.is_held:
            return
        if isinstance(self._complaint, apsw.FullError):
            self._reserve.release()
            self._has_settled()
            self._give_back()

    def _has_settled(self) -> bool:
        """Commit all changes in SQLite. Return False if that fails."""
        try:
            self._recorder.make()
            if self._changes.count and not self._is_open:
                self._catch_up()
            if self._is_open:
                self._settle()
        except Exception as error:
            self._complain(error)
            return False
        self._complaint = None
        return True

    def _complain(self, error: Exception) -> None:
        """Log and store the error of a commit, and roll back."""
        self._tell_later(error)
        self._complaint = error
        self._roll_back()

    def _tell_later(self, error: Exception) -> None:
        """Log the error of a commit, at most once per ``QUIET_SECONDS``."""
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + QUIET_SECONDS
            log.warning("background_commit_failed", extra={"values": {"error": str(error)}})

    def used_bytes(self) -> int:
        self._enter()
        try:
            self._welcome()
            return super().used_bytes()
        finally:
            self._lock.release()

    def settle(self) -> bool:
        """Commit all changes in SQLite. Return False if that fails."""
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


class _Away:
    """A background commit: its result, set by the thread that runs it."""

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        """Position of the first record that is not part of this commit."""
        self.is_committed = self.is_back = False
        """True after a successful COMMIT; true when the commit has ended, also with an error."""
        self.error: BaseException | None = None
