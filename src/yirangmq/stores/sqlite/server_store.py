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

import apsw

from yirangmq.core.errors import StoreBusy
from yirangmq.core.ports import Finding
from yirangmq.fsio.disk import Disk
from yirangmq.fsio.errors import as_store_error
from yirangmq.stores.sqlite.background import Checkpointer, DeferredCommitter
from yirangmq.stores.sqlite.connection import checkpoint_pages, sqlite_errors_translated
from yirangmq.stores.sqlite.recorder import Recorder
from yirangmq.stores.sqlite.redo_format import RedoPosition
from yirangmq.stores.sqlite.redo_log import (
    BYTES,
    RedoLog,
    new_generation,
    read_position,
    replay,
    write_position,
)
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.stores.sqlite.transaction import SqliteTransaction

COMMIT_DELAY_SECONDS = 2.0
"""Maximum time that a change is only in the redo log, before SQLite commits it."""
MAX_REDO_ROWS = 150
"""Maximum number of changed rows of a commit to the redo log. A larger one (about 70 new messages) is committed by
SQLite directly: the redo log would only make it be written twice."""
QUIET_SECONDS = 10.0
"""Minimum interval between two warnings that a SQLite commit failed."""
MIN_REDO_BYTES = 65536
"""Minimum length of the redo log in bytes. A small reserve reduces the length, because the changes in the log must fit
the reserve when the disk is full."""
YIELD_SECONDS = 0.025
"""Time that the server leaves SQLite's write lock free, so that a waiting process can take it."""
log = logging.getLogger(__name__)


class ServedSqliteStore(SqliteStore):
    """SQLite store of a server: redo log, background commit and deferred statements.

    Invariant: the SQLite file, followed by the records of the redo log after its position, contains every confirmed
    change. Callers and the commit thread share ``_lock``; the background commit itself runs under ``_background_lock``
    without it."""

    def __init__(
        self,
        path: Path,
        *,
        durability: str = "full",
        busy_seconds: float = 30,
        vfs: str | None = None,
        disk: Disk | None = None,
        redo_bytes: int = BYTES,
        seconds: float | None = COMMIT_DELAY_SECONDS,
        reserve_bytes: int = 0,
    ) -> None:
        """``seconds``: delay before SQLite commits changes of the redo log. If None, no thread is started: a half-full
        redo log starts a commit, which the next call that needs SQLite runs, and the committing thread checkpoints the
        WAL."""
        super().__init__(path, durability=durability, busy_seconds=busy_seconds, vfs=vfs, reserve_bytes=reserve_bytes)
        if self._reserve is not None and self._reserve.size:
            redo_bytes = min(redo_bytes, max(self._reserve.size // 8, MIN_REDO_BYTES))
        self._record()
        try:
            with sqlite_errors_translated(self._db, path):
                self._changes = RedoLog(path, read_position(self._db), disk, redo_bytes, sync=durability == "full")
                self._checkpointer = self._new_checkpointer() if seconds is not None else None
        except BaseException:
            super().close()
            raise
        self._is_open = False
        """True while SQLite's transaction is open and contains every record of the redo log."""
        self._touched = 0
        """Rows changed on the connection before this transaction (``total_changes``)."""
        self._background_commit: _BackgroundCommit | None = None
        """The background commit, from its start until it is joined."""
        self._is_writer_waiting = False
        """True if another process waits to write."""
        self._yield_until = 0.0
        """Monotonic time until which the write lock stays free for that process; 0: that time has not started."""
        self._number = 0
        """Number of the next record when this transaction started."""
        self._quiet_until = 0.0
        self._commit_error: Exception | None = None
        """Error of the latest SQLite commit of the redo log; None if it succeeded."""
        self._background_lock = threading.Lock()
        """Held by the thread that runs the background commit."""
        self._deferred_committer = (
            DeferredCommitter(self.commit_in_background, seconds) if seconds is not None else None
        )

    def _begin_writing(self) -> None:
        """Begin a writing transaction. A process that waits for the write lock gets it first, for up to
        ``YIELD_SECONDS``. Background commits of other servers need no check, because this is the only server of the
        store."""
        if self._is_writer_waiting:
            self._yield_until = self._yield_until or monotonic() + YIELD_SECONDS
            while monotonic() < self._yield_until and not self._changes.acquire_lock():
                if not self._busy_seconds:
                    raise apsw.BusyError("another process waits to write, and goes first")
                sleep(YIELD_SECONDS / 50)
            self._is_writer_waiting, self._yield_until = False, 0.0
            self._changes.release_lock()
        self._db.execute("BEGIN IMMEDIATE")

    def _record(self) -> None:
        """Create the recorder for a new connection."""
        self._recorder = Recorder(self._db, self._cache.misses)

    # -- transaction ----------------------------------------------------------------------------------------------

    def _begin(self, write: bool) -> SqliteTransaction:
        if self._background_commit is not None and self._background_commit.has_ended:
            self._join_quietly()
        if self._changes.count and not self._is_open:
            self._replay()
        if write and self._changes.is_in_doubt:
            self._resolve_in_doubt()
        if not self._is_open:
            return super()._begin(write)
        self._committed_numbers = self._cache.last, self._cache.reserved
        return self._work()

    def _work(self) -> SqliteTransaction:
        self._recorder.start()
        self._number = self._changes.number
        if self._background_commit is None:
            self._touched = self._db.total_changes()
        if self._transaction is None:
            self._transaction = SqliteTransaction(self._recorder, self._cache)
        is_short = self._reserve is not None and self._reserve.is_short  # no other process uses the reserve
        return self._transaction.start(self._before_adding if is_short else None)

    def _commit(self, work: SqliteTransaction, write: bool) -> None:
        if not write:
            if not self._is_open:
                super()._commit(work, write)
            return
        work.flush()
        logged = self._recorder
        if not logged.logged and not logged.is_in_doubt:
            if not self._is_open:
                self._execute_commit()
        elif self._is_small(work) and self._append():
            self._appended()
        else:
            logged.flush_deferred()
            self._commit_all()
        logged.start()

    def _appended(self) -> None:
        """Schedule a commit after an append, or start one if the redo log is half full. The record is on disk, so an
        error is logged and fails no request."""
        is_first, self._is_open = not self._is_open, True
        try:
            if is_first and self._deferred_committer is not None:
                self._deferred_committer.start()
            if self._changes.is_half_full and self._background_commit is None:
                if self._start_background_commit():
                    if self._deferred_committer is not None:
                        self._deferred_committer.commit_now()
                else:
                    self._commit_pending()
        except Exception as error:
            self._log_commit_error(error)

    def _append(self) -> bool:
        try:
            return self._changes.append(self._recorder.logged, self._flush_deferred)
        except OSError as error:
            raise as_store_error(error, self._changes.path) from error

    def _flush_deferred(self) -> None:
        """Execute the deferred statements, unless a background commit has the connection."""
        if self._background_commit is None or self._background_commit.has_ended:
            self._recorder.flush_deferred()

    def _is_small(self, work: SqliteTransaction) -> bool:
        logged = self._recorder
        if logged.is_in_doubt or work.written > self._changes.free_bytes or len(logged.logged) > MAX_REDO_ROWS:
            return False
        return self._background_commit is not None or self._db.total_changes() - self._touched <= MAX_REDO_ROWS

    def _commit_all(self) -> None:
        """Commit all changes in SQLite, and void the records of the redo log."""
        position = self._changes.position
        if self._changes.count or self._changes.is_in_doubt:
            position = RedoPosition(new_generation())
            write_position(self._db, position)
        try:
            self._execute_commit()
        except BaseException:  # it may still be on disk after a crash, and then no new record is valid
            self._changes.is_in_doubt = True
            raise
        self._changes.start(position)
        self._is_open = False
        if self._checkpointer is not None:
            self._checkpointer.after_commit()

    def _roll_back(self, write: bool = True) -> None:
        """Roll back to the last SQLite commit; the next transaction replays the redo log. A read that failed has
        changed nothing and needs no rollback, unless SQLite has rolled back its transaction."""
        with contextlib.suppress(Exception):
            self._join_background_commit()
        if write or self._recorder.is_partially_applied or not (self._is_open and self._db.in_transaction):
            if self._changes.number != self._number:  # its record is on disk, but an interrupt came before the reply
                self._committed_numbers = 0, 0
            self._is_open = False
            self._recorder.discard_deferred()
            super()._roll_back(write)

    def _replay_leftover(self) -> bool:
        """Before the first record of this server, replay and commit the redo log of an earlier one, because new records
        overwrite it."""
        if self._changes.is_file_open:
            return False
        is_taken = super()._replay_leftover()
        if is_taken:
            self._execute_commit()
            self._db.execute("BEGIN IMMEDIATE")
        self._changes.start(read_position(self._db))
        return is_taken

    def _replay(self) -> None:
        """Begin a transaction and replay the redo log into it, after a rollback."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            position = read_position(self._db)
            if position.generation == self._changes.position.generation:
                if position != self._changes.position:  # an interrupt came between a commit and its result
                    self._changes.void_before(position)
                replay(self._db, self._changes.logged())
                self._is_open = True
            else:  # another process has replayed the log and voided it
                self._changes.start(position)
        finally:
            if not self._is_open and self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _resolve_in_doubt(self) -> None:
        """Void a refused record or commit that may still be on disk, together with all records, by a SQLite commit."""
        try:
            self._recorder.flush_deferred()
            if not self._is_open:
                self._db.execute("BEGIN IMMEDIATE")
            self._commit_all()
        except BaseException:
            self._roll_back()
            raise

    # -- background commit ----------------------------------------------------------------------------------------

    def _start_background_commit(self) -> bool:
        """Start a background commit of all changes. Return False if it cannot run in the background: the log is in
        doubt, another process waits to write, or the redo position cannot be written."""
        if self._changes.is_in_doubt:
            return False
        if not self._changes.acquire_lock():
            self._is_writer_waiting = True
            return False
        position = self._changes.start_commit()
        try:
            write_position(self._db, position)
        except apsw.Error as error:
            self._changes.release_lock()
            self._log_commit_error(error)
            self._is_open = self._db.in_transaction
            return False
        self._background_commit = _BackgroundCommit(position)
        self._recorder.join_background_commit = self._join_background_commit
        return True

    def _run_background_commit(self) -> None:
        """Run the background commit: COMMIT, then BEGIN IMMEDIATE. It runs once, on the commit thread or on the first
        thread that needs SQLite. The error, if any, is raised by ``_join_background_commit``."""
        with self._background_lock:
            background = self._background_commit
            if background is None or background.has_ended:
                return
            try:
                self._execute_commit()
                background.is_committed = True
                if self._checkpointer is not None:
                    self._checkpointer.after_commit()
                    self._version = self._db.data_version("main")
                self._db.execute("BEGIN IMMEDIATE")
                if self._db.data_version("main") != self._version:
                    raise StoreBusy(f"{self._path} was changed by another program; try again")
            except BaseException as error:
                background.error = error
            background.has_ended = True

    def _join_background_commit(self) -> None:
        """Wait for the background commit and take the connection back. Raise its error if COMMIT or the next BEGIN
        IMMEDIATE failed."""
        if self._background_commit is None:
            return
        self._run_background_commit()
        background, self._background_commit, self._recorder.join_background_commit = self._background_commit, None, None
        if background.is_committed:
            self._changes.void_before(background.position)
        self._changes.release_lock()
        self._touched = self._db.total_changes()
        if background.error is not None:
            raise background.error

    def _join_quietly(self) -> None:
        """Join the background commit like ``_join_background_commit``, but log an error instead of raising it: no
        caller waits for the commit, and the next transaction recovers."""
        try:
            self._join_background_commit()
        except Exception as error:
            self._handle_commit_error(error)

    def commit_in_background(self) -> bool:
        """Commit in the background, while other threads run transactions. Return True if nothing is left to commit.

        Called on the commit thread."""
        with self._lock:
            if self._background_commit is None and self._changes.count:
                self._start_or_commit()
        self._run_background_commit()
        with self._lock:
            self._join_quietly()
            if self._changes.count and isinstance(self._commit_error, apsw.FullError):
                self._commit_pending()
            if self._is_open and not self._changes.count:
                self._is_open = False  # before the ROLLBACK: a failed one also ends it
                self._db.execute("ROLLBACK")  # the transaction is empty
            return not self._changes.count

    def _start_or_commit(self) -> None:
        """Start a background commit, or commit here if that is not possible."""
        try:
            self._recorder.flush_deferred()
            if self._is_open and self._start_background_commit():
                return
        except Exception as error:
            self._handle_commit_error(error)
        self._commit_pending()

    # -- a full disk ----------------------------------------------------------------------------------------------

    def _check_short(self) -> bool:
        """Return True if the reserve is in use, which no other process can change. The caller then queries the size of
        the file, so the background commit is joined first."""
        if self.is_short:
            self._join_background_commit()
        return self.is_short

    def _checkpoint(self) -> None:
        with contextlib.suppress(Exception):
            self._join_quietly()
            self._commit_pending()
        super()._checkpoint()

    def reusable_bytes(self) -> int:
        self._enter()
        try:
            self._join_quietly()
            return super().reusable_bytes()
        finally:
            self._lock.release()

    # -- the whole store ------------------------------------------------------------------------------------------

    def check(self, *, repair: bool) -> Iterator[Finding]:
        with self._lock:
            self._commit_pending()
            yield from super().check(repair=repair)

    def _salvage(self) -> list[Finding]:
        has_checkpointer = self._checkpointer is not None
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._changes.close_file()
        try:
            return super()._salvage()
        finally:
            self._record()
            self._changes.start(read_position(self._db))
            self._is_open = False
            self._checkpointer = self._new_checkpointer() if has_checkpointer else None

    def _new_checkpointer(self) -> Checkpointer:
        """Create the checkpointer; a small reserve limits the length of the WAL."""
        usual = checkpoint_pages(self._db)
        pages = self._log_pages()
        return Checkpointer(self._db, self._path, self._vfs, pages if pages < usual else 0)

    def _commit_pending(self) -> None:
        """Commit all changes in SQLite. If that fails, they stay in the redo log. On a full disk the commit is retried
        with the space of the reserve, because all these changes are confirmed."""
        if self._try_commit_pending() or self._reserve is None or not self._reserve.is_held:
            return
        if isinstance(self._commit_error, apsw.FullError):
            self._reserve.release()
            self._try_commit_pending()
            self._restore_reserve()

    def _try_commit_pending(self) -> bool:
        """Commit all changes in SQLite. Return False if that fails."""
        try:
            self._recorder.flush_deferred()
            if self._changes.count and not self._is_open:
                self._replay()
            if self._is_open:
                self._commit_all()
        except Exception as error:
            self._handle_commit_error(error)
            return False
        self._commit_error = None
        return True

    def _handle_commit_error(self, error: Exception) -> None:
        """Log and store the error of a commit, and roll back."""
        self._log_commit_error(error)
        self._commit_error = error
        self._roll_back()

    def _log_commit_error(self, error: Exception) -> None:
        """Log the error of a commit, at most once per ``QUIET_SECONDS``."""
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + QUIET_SECONDS
            log.warning("background_commit_failed", extra={"values": {"error": str(error)}})

    def used_bytes(self) -> int:
        self._enter()
        try:
            self._join_quietly()
            return super().used_bytes()
        finally:
            self._lock.release()

    def commit_pending(self) -> bool:
        """Commit all changes in SQLite. Return False if that fails."""
        with self._lock:
            self._commit_pending()
            return not self._changes.count

    def close(self) -> None:
        for thread in (self._deferred_committer, self._checkpointer):
            if thread is not None:
                thread.close()
        with self._lock:
            if not self.is_closed:
                self._commit_pending()
                super().close()
                self._changes.close()


class _BackgroundCommit:
    """A background commit: its result, set by the thread that runs it."""

    def __init__(self, position: RedoPosition) -> None:
        self.position = position
        """Position of the first record that is not part of this commit."""
        self.is_committed = self.has_ended = False
        """True after a successful COMMIT; true when the commit has ended, also with an error."""
        self.error: BaseException | None = None
