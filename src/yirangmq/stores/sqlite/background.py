"""Background threads of the server's SQLite store: deferred commit, and WAL checkpoint.

Each thread starts when it first has work. ``DeferredCommitter`` makes SQLite commit changes that are only in the redo
log, after a delay or immediately on request. ``Checkpointer`` runs checkpoints: it copies WAL pages over a separate
connection while other threads commit. The committing thread copies the pages written meanwhile, so that the WAL
restarts; it also checkpoints a WAL longer than 8 times the checkpoint size.

A thread that fails to start, or meets an error, fails no request: the next commit or a later retry does its work."""

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import apsw

from yirangmq.stores.sqlite.connection import CHECKPOINT_BYTES

FORCED_CHECKPOINT_FACTOR = 8
"""The committing thread checkpoints a WAL longer than this many times the checkpoint size."""
log = logging.getLogger(__name__)


def start_thread(work: Callable[[], None], name: str) -> threading.Thread | None:
    """Start a daemon thread. Return None if the system cannot start one."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log.warning("thread_not_started", extra={"values": {"thread": name, "error": str(error)}})
        return None
    return thread


class DeferredCommitter:
    """Deferred commit thread: makes SQLite commit changes that have been only in the redo log for ``seconds``, or
    immediately after ``commit_now``. It retries after ``seconds`` while ``commit`` fails or leaves changes."""

    def __init__(self, commit: Callable[[], bool], seconds: float) -> None:
        """``commit`` commits. It returns True if nothing is left to commit."""
        self._commit = commit
        self._seconds = seconds
        self._has_changes = threading.Event()
        self._is_urgent = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Note that there are changes to commit, and start the thread if it is not running."""
        self._has_changes.set()
        self._thread = self._thread or start_thread(self._run, "yirangmq-commit")

    def commit_now(self) -> None:
        """Commit without waiting for the delay."""
        self._has_changes.set()
        self._is_urgent.set()

    def _run(self) -> None:
        while True:
            self._has_changes.wait()
            self._is_urgent.wait(self._seconds)
            if self._is_closed:
                return
            self._has_changes.clear()
            self._is_urgent.clear()
            try:
                is_all = self._commit()
            except Exception:
                log.exception("background_commit_crashed")
                is_all = False
            if not is_all:
                self._has_changes.set()

    def close(self) -> None:
        self._is_closed = True
        self.commit_now()
        if self._thread is not None:
            self._thread.join()


class Checkpointer:
    """WAL checkpointer: copies pages from the WAL into the SQLite file on a background thread. Pages written meanwhile
    are copied by the committing thread between two commits, so that the WAL restarts.

    ``after_commit`` runs on the committing thread."""

    def __init__(self, db: apsw.Connection, path: Path, vfs: str | None, max_pages: int = 0) -> None:
        """``db`` commits; the thread copies over another connection.

        ``max_pages``: maximum length of the WAL in pages, set where a disk that fills up has no space to copy a longer
        one. The committing thread then checkpoints a longer WAL itself. 0: checkpoint at ``CHECKPOINT_BYTES``."""
        self._db = db
        self._path = path
        self._vfs = vfs
        self._pages = 0
        self._is_requested = self._is_done = False
        self._requested = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._max_pages = max_pages or CHECKPOINT_BYTES // db.pragma("page_size")
        self._forced_factor = 1 if max_pages else FORCED_CHECKPOINT_FACTOR
        db.set_wal_hook(self._committed)

    def _committed(self, db: apsw.Connection, name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def after_commit(self) -> None:
        """Check the length of the WAL after a commit: request a checkpoint, or finish one."""
        if self._pages < self._max_pages:
            return
        if self._pages > self._forced_factor * self._max_pages:
            self._is_requested = self._is_done = False
            _checkpoint(self._db)
        elif not self._is_requested:
            self._is_requested = True
            self._requested.set()
            self._thread = self._thread or start_thread(self._run, "yirangmq-copy")
        elif self._is_done:
            self._is_requested = self._is_done = False
            _checkpoint(self._db)

    def _run(self) -> None:
        db: apsw.Connection | None = None
        while True:
            self._requested.wait()
            self._requested.clear()
            if self._is_closed:
                break
            try:
                db = db or self._connected()
                _checkpoint(db)
            except (apsw.Error, OSError) as error:
                # The committing thread does it later.
                log.warning("checkpoint_failed", extra={"values": {"error": str(error)}})
            self._is_done = True
        if db is not None:
            db.close()

    def _connected(self) -> apsw.Connection:
        db = apsw.Connection(str(self._path), vfs=self._vfs)
        db.execute("PRAGMA synchronous = FULL")
        db.execute("SELECT generation FROM redo").fetchone()  # the first read opens the WAL
        return db

    def close(self) -> None:
        self._is_closed = True
        self._requested.set()
        if self._thread is not None:
            self._thread.join()


def _checkpoint(db: apsw.Connection) -> None:
    """Checkpoint in passive mode. Pages that cannot be copied now stay in the WAL and are copied later."""
    with contextlib.suppress(apsw.Error):
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
