"""Background threads of the server's SQLite store: deferred commit, and WAL checkpoint.

Each thread starts when it first has work. ``Settling`` lets SQLite commit what has been in the redo log alone for too
long, or at once when hurried. ``Copying`` is the checkpointer: it copies WAL pages over a connection of its own while
others commit. The committing thread copies the pages that came meanwhile, so that the WAL restarts; it also copies a
WAL longer than 8 times the checkpoint size.

A thread that cannot be started, or meets an error, fails no request: the next commit does its work, or a later try."""

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import apsw

from yirangmq.stores.sqlite.connection import CHECKPOINT_BYTES

MOST_TIMES = 8
"""So many times as long as it should be, SQLite's log is copied by whoever commits."""
log = logging.getLogger(__name__)


def started(work: Callable[[], None], name: str) -> threading.Thread | None:
    """None where no thread can be had."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log.warning("%s: %s", name, error)
        return None
    return thread


class Settling:
    """Commits what has been in the file of changes alone for long enough, or is enough."""

    def __init__(self, settle: Callable[[], bool], seconds: float) -> None:
        """``settle``: whether nothing is left to commit."""
        self._settle = settle
        self._seconds = seconds
        self._begun = threading.Event()
        self._hurried = threading.Event()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Something is there that was not."""
        self._begun.set()
        self._thread = self._thread or started(self._run, "yirangmq-commit")

    def hurry(self) -> None:
        self._begun.set()
        self._hurried.set()

    def _run(self) -> None:
        while True:
            self._begun.wait()
            self._hurried.wait(self._seconds)
            if self._is_over:
                return
            self._begun.clear()
            self._hurried.clear()
            try:
                is_all = self._settle()
            except Exception:
                log.exception("SQLite does not commit")
                is_all = False
            if not is_all:
                self._begun.set()

    def close(self) -> None:
        self._is_over = True
        self.hurry()
        if self._thread is not None:
            self._thread.join()


class Copying:
    """Copies pages from SQLite's log into its file while others work; the last of them, which came meanwhile, are
    copied between two commits, so that the log begins anew."""

    def __init__(self, db: apsw.Connection, path: Path, vfs: str | None, most: int = 0) -> None:
        """``db`` commits; another connection copies. ``most``: pages of a log that must not be longer, because there is
        no space to copy it on a disk that fills up; whoever commits copies it at once."""
        self._db = db
        self._path = path
        self._vfs = vfs
        self._pages = 0
        self._is_asked = self._is_done = False
        self._asked = threading.Event()
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._most = most or CHECKPOINT_BYTES // db.pragma("page_size")
        self._times = 1 if most else MOST_TIMES
        db.set_wal_hook(self._committed)

    def _committed(self, db: apsw.Connection, name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def look(self) -> None:
        """After a commit."""
        if self._pages < self._most:
            return
        if self._pages > self._times * self._most:
            self._is_asked = self._is_done = False
            _copy(self._db)
        elif not self._is_asked:
            self._is_asked = True
            self._asked.set()
            self._thread = self._thread or started(self._run, "yirangmq-copy")
        elif self._is_done:
            self._is_asked = self._is_done = False
            _copy(self._db)

    def _run(self) -> None:
        db: apsw.Connection | None = None
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._is_over:
                break
            try:
                db = db or self._connected()
                _copy(db)
            except (apsw.Error, OSError) as error:
                log.warning("SQLite's log is not copied: %s", error)  # whoever commits does it when it is long
            self._is_done = True
        if db is not None:
            db.close()

    def _connected(self) -> apsw.Connection:
        db = apsw.Connection(str(self._path), vfs=self._vfs)
        db.execute("PRAGMA synchronous = FULL")
        db.execute("SELECT generation FROM redo").fetchone()  # or it does not know of a log
        return db

    def close(self) -> None:
        self._is_over = True
        self._asked.set()
        if self._thread is not None:
            self._thread.join()


def _copy(db: apsw.Connection) -> None:
    """What cannot be copied now is copied later; until then SQLite's log has it."""
    with contextlib.suppress(apsw.Error):
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
