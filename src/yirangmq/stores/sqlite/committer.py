"""Committers of the SQLite store: how its transactions begin and reach the disk.

``DirectCommitter`` makes SQLite commit each transaction; several processes may write. ``RedoCommitter``
(``stores.sqlite.redo_committer``) is that of a server, the only writer of its store."""

from typing import Protocol

import apsw

from yirangmq.stores.sqlite.connection import BusyHandler
from yirangmq.stores.sqlite.redo_replay import is_locked, redo_path, replay_in_transaction, shared_lock
from yirangmq.stores.sqlite.store_file import SqliteTransaction, StoreFile


class Committer(Protocol):
    """Commit strategy of a store. Called under the store's lock, except for ``close``."""

    def begin(self, write: bool) -> SqliteTransaction: ...

    def commit(self, work: SqliteTransaction, write: bool) -> None:
        """Make the changes of a transaction durable, or end a transaction that reads."""

    def roll_back(self, write: bool = True) -> None:
        """Roll back a transaction that failed."""

    def commit_pending(self) -> bool:
        """Make SQLite commit all confirmed changes. Return False if that fails."""

    def take_connection(self) -> None:
        """Wait until no other thread uses the connection. Errors are logged."""

    def check_short(self) -> bool:
        """Return True if the reserve for a full disk is in use."""

    def suspend(self) -> None:
        """Stop using the file, which the store replaces."""

    def resume(self) -> None:
        """Use the file that the store has opened again."""

    def close(self) -> None:
        """Stop the threads, without the store's lock."""

    def close_log(self) -> None:
        """Release what is left after the file was closed."""


class DirectCommitter:
    """Committer of a store that several processes may open: SQLite commits each transaction.

    A writing transaction first replays the redo log of a server that was killed, and waits for a server's background
    commit."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self._redo_path = redo_path(file.path)

    def begin(self, write: bool) -> SqliteTransaction:
        file = self._file
        if write:
            self._begin_writing()
        try:
            if not write:
                file.begin_read()
            elif self._redo_path.exists() and replay_in_transaction(file.db, self._redo_path):
                file.cache.reset()
            file.refresh_cache()
            return file.start(file.db, None if file.reserve is None else file.on_add)
        except BaseException:
            self.roll_back()
            raise

    def _begin_writing(self) -> None:
        """Begin a writing transaction. It waits while a server runs a background commit; a server that cannot lock its
        redo log, because this process holds a shared lock on it, yields at its next commit."""
        busy_handler, tries, db = BusyHandler(self._file.busy_seconds), 0, self._file.db
        while True:
            with shared_lock(self._redo_path) as is_free:
                if is_free:
                    db.execute("BEGIN IMMEDIATE")
                    if not is_locked(self._redo_path):  # a log created since then may be
                        return
                    db.execute("ROLLBACK")
            if not busy_handler(tries):
                raise apsw.BusyError("a server is committing")
            tries += 1

    def commit(self, work: SqliteTransaction, write: bool) -> None:
        if write:
            work.flush()
        self._file.execute_commit()

    def roll_back(self, write: bool = True) -> None:
        self._file.roll_back()

    def commit_pending(self) -> bool:
        return True

    def take_connection(self) -> None:
        pass

    def check_short(self) -> bool:
        """Other processes use the same reserve, so its file is checked."""
        reserve = self._file.reserve
        return reserve is not None and reserve.refresh()

    def suspend(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def close(self) -> None:
        pass

    def close_log(self) -> None:
        pass
