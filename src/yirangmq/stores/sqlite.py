"""Messages in one SQLite file. One writing connection per process, short immediate transactions, WAL with full sync:
when ``transaction`` ends without an error, its changes are on disk. The schema is in ``schema/*.sql``."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from yirangmq.core.ports import Finding
from yirangmq.stores.sqlite_ledger import Known
from yirangmq.stores.sqlite_open import open_connection, translated
from yirangmq.stores.sqlite_transaction import SqliteTransaction
from yirangmq.stores.watch import FileWatch


class SqliteStore:
    """``core.ports.Store`` on one file. ``vfs`` names an SQLite VFS to go through, for tests of power cuts."""

    def __init__(
        self, path: Path, *, durability: str = "full", busy_seconds: float = 30, vfs: str | None = None
    ) -> None:
        self._path = path
        self._durability = durability
        self._busy_seconds = busy_seconds
        self._vfs = vfs
        self._open()
        self._lock = threading.RLock()
        self._known = Known()
        self._version: int | None = None
        self._watch = FileWatch([Path(f"{path}-wal")])

    def _open(self) -> None:
        with translated(None, self._path):
            self._db = open_connection(self._path, self._durability, self._busy_seconds, self._vfs)

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[SqliteTransaction]:
        with self._lock, translated(self._db, self._path):
            self._db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            given = 0, 0
            try:
                self._hear_of_others()
                given = self._known.last, self._known.reserved
                work = SqliteTransaction(self._db, self._known)
                yield work
                work.flush()
                self._db.execute("COMMIT")
            except BaseException:
                self._known = Known(last=given[0], reserved=given[1])
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _hear_of_others(self) -> None:
        """Another process may have deleted a queue, and given its number to the next one."""
        version = self._db.pragma("data_version")
        if version != self._version:
            self._version = version
            self._known = Known(policies=self._known.policies)

    def wait(self, timeout: float) -> None:
        self._watch.wait(timeout)

    def check(self, *, repair: bool) -> Iterator[Finding]:
        from yirangmq.stores.sqlite_check import DAMAGED, check

        with self._lock, translated(self._db, self._path):
            if repair:
                self._known = Known()
            findings = list(check(self._db, repair=repair))
            if repair and any(finding.kind == DAMAGED for finding in findings):
                findings = self._salvage()
            yield from findings

    def _salvage(self) -> list[Finding]:
        """Go on with a new file; where that cannot be had, with the old one."""
        from yirangmq.stores.sqlite_salvage import salvage

        self._db.close()
        try:
            return salvage(self._path)
        finally:
            self._known, self._version = Known(), None
            self._open()

    def used_bytes(self) -> int:
        """Bytes of the file that hold something; pages that were freed are used again before it grows."""
        with self._lock, translated(self._db, self._path):
            pages = self._db.pragma("page_count") - self._db.pragma("freelist_count")
            return int(pages * self._db.pragma("page_size"))

    def durability(self) -> str:
        return self._durability

    def close(self) -> None:
        with self._lock:
            self._watch.close()
            self._db.close()
