"""Committer of a server's SQLite store, its only writer: small commits to a redo log, SQLite's in the background.

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
that opens the store replays it.

``phase`` says where SQLite's transaction, the redo log and the background commit stand; its diagram and table are in
``stores.sqlite.commit_phase``."""

import contextlib
import logging
import threading
from time import monotonic, sleep

import apsw

from yirangmq.core.errors import StoreBusy
from yirangmq.fsio.disk import Disk
from yirangmq.fsio.errors import as_store_error
from yirangmq.stores.sqlite.background import Checkpointer, DeferredCommitter
from yirangmq.stores.sqlite.commit_phase import HAS_TRANSACTION, TRANSITIONS, CommitEvent, Phase
from yirangmq.stores.sqlite.connection import checkpoint_pages, sqlite_errors_translated
from yirangmq.stores.sqlite.recorder import Recorder
from yirangmq.stores.sqlite.redo_format import RedoPosition
from yirangmq.stores.sqlite.redo_log import BYTES, RedoLog
from yirangmq.stores.sqlite.redo_replay import (
    new_generation,
    read_position,
    replay,
    replay_in_transaction,
    write_position,
)
from yirangmq.stores.sqlite.store_file import SqliteTransaction, StoreFile

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


class RedoCommitter:
    """Committer of a server (``committer.Committer``): redo log, background commit and deferred statements.

    Invariant: the SQLite file, followed by the records of the redo log after its position, contains every confirmed
    change. Callers and the commit thread share the lock of the file; the background commit itself runs under
    ``_background_lock`` without it."""

    def __init__(
        self,
        file: StoreFile,
        *,
        disk: Disk | None = None,
        redo_bytes: int = BYTES,
        seconds: float | None = COMMIT_DELAY_SECONDS,
    ) -> None:
        """``seconds``: delay before SQLite commits changes of the redo log. If None, no thread is started: a half-full
        redo log starts a commit, which the next call that needs SQLite runs, and the committing thread checkpoints the
        WAL."""
        self._file = file
        if file.reserve is not None and file.reserve.size:
            redo_bytes = min(redo_bytes, max(file.reserve.size // 8, MIN_REDO_BYTES))
        self.recorder = Recorder(file.db, file.cache.misses)
        with sqlite_errors_translated(file.db, file.path):
            position = read_position(file.db)
            self.log = RedoLog(file.path, position, disk, redo_bytes, sync=file.durability == "full")
            self.checkpointer = self._new_checkpointer() if seconds is not None else None
        self.phase = Phase.CLOSED
        self._has_checkpointer = seconds is not None
        self._touched = 0
        """Rows changed on the connection before this transaction (``total_changes``)."""
        self.background: BackgroundCommit | None = None
        """The background commit, from its start until it is joined: in the phase COMMITTING."""
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

    def _move(self, event: CommitEvent) -> None:
        self.phase = TRANSITIONS[self.phase, event]

    # -- transaction ----------------------------------------------------------------------------------------------

    def begin(self, write: bool) -> SqliteTransaction:
        if self.background is not None and self.background.has_ended:
            self._join_quietly()
        if self.phase is not Phase.OPEN and self.phase is not Phase.COMMITTING:
            self._recover(write)
            if self.phase not in HAS_TRANSACTION:
                return self._begin_transaction(write)
        return self._start()

    def _begin_transaction(self, write: bool) -> SqliteTransaction:
        """Begin a transaction of SQLite."""
        if write:
            self._begin_writing()
        try:
            if write:
                self._replay_leftover()
            else:
                self._file.begin_read()
            self._file.refresh_cache()
            return self._start()
        except BaseException:
            self.roll_back()
            raise

    def _begin_writing(self) -> None:
        """Begin a writing transaction. A process that waits for the write lock gets it first, for up to
        ``YIELD_SECONDS``. Background commits of other servers need no check, because this is the only server of the
        store."""
        if self._is_writer_waiting:
            self._yield_until = self._yield_until or monotonic() + YIELD_SECONDS
            while monotonic() < self._yield_until and not self.log.acquire_lock():
                if not self._file.busy_seconds:
                    raise apsw.BusyError("another process waits to write, and has precedence")
                sleep(YIELD_SECONDS / 50)
            self._is_writer_waiting, self._yield_until = False, 0.0
            self.log.release_lock()
        self._file.db.execute("BEGIN IMMEDIATE")

    def _start(self) -> SqliteTransaction:
        file = self._file
        self.recorder.start()
        self._number = self.log.number
        if self.background is None:
            self._touched = file.db.total_changes()
        is_short = file.reserve is not None and file.reserve.is_short  # no other process uses the reserve
        return file.start(self.recorder, file.on_add if is_short else None)

    def commit(self, work: SqliteTransaction, write: bool) -> None:
        if not write:
            if self.phase not in HAS_TRANSACTION:
                self._file.execute_commit()
            return
        work.flush()
        recorder = self.recorder
        if not recorder.logged and not recorder.is_in_doubt:
            if self.phase not in HAS_TRANSACTION:
                self._file.execute_commit()
        elif not self._is_small(work) or not self._append():
            recorder.flush_deferred()
            self._commit_all()
        recorder.logged = []  # the values may be large

    def _append(self) -> bool:
        """Append a record, and schedule a commit, or start one if the redo log is half full. Return False if there is
        no space for the record. Once it is on disk, an error is logged and fails no request."""
        try:
            if not self.log.append(self.recorder.logged, self._flush_deferred):
                return False
        except OSError as error:
            raise as_store_error(error, self.log.path) from error
        is_first, self.phase = self.phase is Phase.CLOSED, TRANSITIONS[self.phase, CommitEvent.LOG]
        try:
            if is_first and self._deferred_committer is not None:
                self._deferred_committer.start()
            if self.background is None and self.log.is_half_full:
                if self._start_background_commit():
                    if self._deferred_committer is not None:
                        self._deferred_committer.commit_now()
                else:
                    self._commit_pending()
        except Exception as error:
            self._log_commit_error(error)
        return True

    def _flush_deferred(self) -> None:
        """Execute the deferred statements, unless a background commit has the connection."""
        if self.background is None or self.background.has_ended:
            self.recorder.flush_deferred()

    def _is_small(self, work: SqliteTransaction) -> bool:
        recorder = self.recorder
        if recorder.is_in_doubt or work.inserts.written > self.log.size or len(recorder.logged) > MAX_REDO_ROWS:
            return False
        return self.background is not None or self._file.db.total_changes() - self._touched <= MAX_REDO_ROWS

    def _commit_all(self) -> None:
        """Commit all changes in SQLite, and void the records of the redo log."""
        redo_log = self.log
        position = redo_log.position
        if redo_log.count or redo_log.is_in_doubt:
            position = RedoPosition(new_generation())
            write_position(self._file.db, position)
        try:
            self._file.execute_commit()
        except BaseException:  # it may still be on disk after a crash, and then no new record is valid
            redo_log.is_in_doubt = True
            raise
        redo_log.start(position)
        self._move(CommitEvent.VOID)
        if self.checkpointer is not None:
            self.checkpointer.after_commit()

    # -- rollback and replay --------------------------------------------------------------------------------------

    def roll_back(self, write: bool = True) -> None:
        """Roll back to the last SQLite commit; the next transaction replays the redo log. A read that failed has
        changed nothing and needs no rollback, unless SQLite has rolled back its transaction."""
        with contextlib.suppress(Exception):
            self.join_background_commit()
        has_transaction = self.phase in HAS_TRANSACTION and self._file.db.in_transaction
        if write or self.recorder.is_partially_applied or not has_transaction:
            if self.log.number != self._number:  # its record is on disk, but an interrupt came before the reply
                self._file.committed_numbers = 0, 0
            self._move(CommitEvent.ROLL_BACK_IN_DOUBT if self.log.is_in_doubt else CommitEvent.ROLL_BACK)
            self.recorder.discard_deferred()
            self._file.roll_back()

    def _recover(self, write: bool) -> None:
        """Replay the records after a rollback. Before a write, end the doubt about a record or commit that failed."""
        if self.phase is Phase.BEHIND or self.phase is Phase.IN_DOUBT:
            if self.log.count:
                self._replay()
            elif self.phase is Phase.BEHIND:
                self._move(CommitEvent.EMPTY)
        if write and self.log.is_in_doubt:
            self._resolve_in_doubt()

    def _replay_leftover(self) -> None:
        """Before the first record of this server, replay and commit the redo log of an earlier one, because new records
        overwrite it."""
        if self.log.is_file_open:
            return
        db = self._file.db
        if self.log.path.exists() and replay_in_transaction(db, self.log.path):
            self._file.cache.reset()
            self._file.execute_commit()
            db.execute("BEGIN IMMEDIATE")
        self.log.start(read_position(db))

    def _replay(self) -> None:
        """Begin a transaction and replay the redo log into it, after a rollback."""
        db, redo_log = self._file.db, self.log
        db.execute("BEGIN IMMEDIATE")
        try:
            position = read_position(db)
            if position.generation == redo_log.position.generation:
                if position != redo_log.position:  # an interrupt came between a commit and its result
                    redo_log.void_before(position)
                replay(db, redo_log.logged())
                self._move(CommitEvent.REPLAY)
            else:  # another process has replayed the log and voided it
                redo_log.start(position)
                self._move(CommitEvent.EMPTY)
        finally:
            if self.phase not in HAS_TRANSACTION and db.in_transaction:
                db.execute("ROLLBACK")

    def _resolve_in_doubt(self) -> None:
        """Void a refused record or commit that may still be on disk, together with all records, by a SQLite commit."""
        try:
            self.recorder.flush_deferred()
            if self.phase not in HAS_TRANSACTION:
                self._file.db.execute("BEGIN IMMEDIATE")
            self._commit_all()
        except BaseException:
            self.roll_back()
            raise

    # -- background commit ----------------------------------------------------------------------------------------

    def _start_background_commit(self) -> bool:
        """Start a background commit of all changes. Return False if it cannot run in the background: the log is in
        doubt, another process waits to write, or the redo position cannot be written."""
        if self.log.is_in_doubt:
            return False
        if not self.log.acquire_lock():
            self._is_writer_waiting = True
            return False
        position = self.log.start_commit()
        try:
            write_position(self._file.db, position)
        except apsw.Error as error:
            self.log.release_lock()
            self._log_commit_error(error)
            if not self._file.db.in_transaction:
                self._move(CommitEvent.ROLL_BACK)
            return False
        self._move(CommitEvent.START)
        self.background = BackgroundCommit(position)
        self.recorder.join_background_commit = self.join_background_commit
        return True

    def run_background_commit(self) -> None:
        """Run the background commit: COMMIT, then BEGIN IMMEDIATE. It runs once, on the commit thread or on the first
        thread that needs SQLite. The error, if any, is raised by ``join_background_commit``."""
        with self._background_lock:
            background, file = self.background, self._file
            if background is None or background.has_ended:
                return
            try:
                file.execute_commit()
                background.is_committed = True
                if self.checkpointer is not None:
                    self.checkpointer.after_commit()
                    file.note_version()
                file.db.execute("BEGIN IMMEDIATE")
                if file.is_changed():
                    raise StoreBusy(f"{file.path} was changed by another program; try again")
            except BaseException as error:
                background.error = error
            background.has_ended = True

    def join_background_commit(self) -> None:
        """Wait for the background commit and take the connection back. Raise its error if COMMIT or the next BEGIN
        IMMEDIATE failed."""
        if self.background is None:
            return
        self.run_background_commit()
        background, phase = self.background, TRANSITIONS[self.phase, CommitEvent.JOIN]
        self.background, self.recorder.join_background_commit, self.phase = None, None, phase
        if background.is_committed:
            self.log.void_before(background.position)
        self.log.release_lock()
        self._touched = self._file.db.total_changes()
        if background.error is not None:
            raise background.error

    def _join_quietly(self) -> None:
        """Join the background commit like ``join_background_commit``, but log an error instead of raising it: no caller
        waits for the commit, and the next transaction recovers."""
        try:
            self.join_background_commit()
        except Exception as error:
            self._handle_commit_error(error)

    def commit_in_background(self) -> bool:
        """Commit in the background, while other threads run transactions. Return True if nothing is left to commit.

        Called on the commit thread, without the lock."""
        with self._file.lock:
            if self.background is None and self.log.count:
                self._start_or_commit()
        self.run_background_commit()
        with self._file.lock:
            self._join_quietly()
            if self.log.count and isinstance(self._commit_error, apsw.FullError):
                self._commit_pending()
            if self.phase is Phase.OPEN and not self.log.count:
                self._move(CommitEvent.EMPTY)  # before the ROLLBACK: a failed one also ends it
                self._file.db.execute("ROLLBACK")  # the transaction is empty
            return not self.log.count

    def _start_or_commit(self) -> None:
        """Start a background commit, or commit here if that is not possible."""
        try:
            self.recorder.flush_deferred()
            if self.phase is Phase.OPEN and self._start_background_commit():
                return
        except Exception as error:
            self._handle_commit_error(error)
        self._commit_pending()

    # -- pending changes ------------------------------------------------------------------------------------------

    def commit_pending(self) -> bool:
        self._commit_pending()
        return not self.log.count

    def _commit_pending(self) -> None:
        """Commit all changes in SQLite. If that fails, they stay in the redo log. On a full disk the commit is retried
        with the space of the reserve, because all these changes are confirmed."""
        if self._try_commit_pending() or not isinstance(self._commit_error, apsw.FullError):
            return
        with self._file.borrow_reserve() as is_released:
            if is_released:
                self._try_commit_pending()

    def _try_commit_pending(self) -> bool:
        """Commit all changes in SQLite. Return False if that fails."""
        try:
            self.recorder.flush_deferred()
            if self.log.count and self.phase not in HAS_TRANSACTION:
                self._replay()
            if self.phase in HAS_TRANSACTION:
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
        self.roll_back()

    def _log_commit_error(self, error: Exception) -> None:
        """Log the error of a commit, at most once per ``QUIET_SECONDS``."""
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + QUIET_SECONDS
            log.warning("background_commit_failed", extra={"values": {"error": str(error)}})

    # -- for the store --------------------------------------------------------------------------------------------

    def take_connection(self) -> None:
        self._join_quietly()

    def check_short(self) -> bool:
        """No other process uses the reserve. If it is in use, the caller queries the size of the file, so the
        background commit is joined first."""
        reserve = self._file.reserve
        is_short = reserve is not None and reserve.is_short
        if is_short:
            self.join_background_commit()
        return is_short

    def suspend(self) -> None:
        if self.checkpointer is not None:
            self.checkpointer.close()
        self.log.close_file()

    def resume(self) -> None:
        file = self._file
        self.recorder = Recorder(file.db, file.cache.misses)
        self.log.start(read_position(file.db))
        self._move(CommitEvent.RESET)
        self.checkpointer = self._new_checkpointer() if self._has_checkpointer else None

    def _new_checkpointer(self) -> Checkpointer:
        """Create the checkpointer; a small reserve limits the length of the WAL."""
        file = self._file
        usual, pages = checkpoint_pages(file.db), file.log_pages()
        return Checkpointer(file.db, file.path, file.vfs, pages if pages < usual else 0)

    def close(self) -> None:
        for thread in (self._deferred_committer, self.checkpointer):
            if thread is not None:
                thread.close()

    def close_log(self) -> None:
        self.log.close()


class BackgroundCommit:
    """A background commit: its result, set by the thread that runs it."""

    def __init__(self, position: RedoPosition) -> None:
        self.position = position
        """Position of the first record that is not part of this commit."""
        self.is_committed = self.has_ended = False
        """True after a successful COMMIT; true when the commit has ended, also with an error."""
        self.error: BaseException | None = None
