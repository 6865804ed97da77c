"""Cursors in a SQLite file of their own. Several processes may have it open. Knows: one table.
Does not know: what the cursors point at."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw

from yirangmq.core.errors import StoreDamaged
from yirangmq.core.topics import Cursor
from yirangmq.stores.sqlite_open import make_file, sqlite_errors_translated

APPLICATION_ID = 0x79724D43
"""Marks the file as ours: "yrMC"."""
BUSY_MS = 5_000
TABLE = """
CREATE TABLE IF NOT EXISTS cursor (
    name TEXT PRIMARY KEY, epoch TEXT NOT NULL, sequence INTEGER NOT NULL, filter TEXT NOT NULL, at_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID
"""
HALF, WHOLE = 2**63, 2**64
"""SQLite's integers have a sign; ours do not."""


class SqliteCursors:
    def __init__(self, path: Path, *, vfs: str | None = None) -> None:
        self._path = path
        self._turn = threading.Lock()
        with sqlite_errors_translated(None, path):
            if vfs is None:
                make_file(path)
            self._db = apsw.Connection(str(path), vfs=vfs)
        try:
            with sqlite_errors_translated(self._db, path):
                self._settle()
        except BaseException:
            self._db.close()
            raise

    def _settle(self) -> None:
        db = self._db
        db.set_busy_timeout(BUSY_MS)
        if db.pragma("application_id") != APPLICATION_ID:
            if db.execute("SELECT 1 FROM sqlite_schema").fetchone():
                raise StoreDamaged(f"{self._path} is a SQLite database of something else; name another file")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; {TABLE}; COMMIT")
        db.execute("PRAGMA synchronous = FULL")

    def get(self, name: str) -> Cursor | None:
        rows = self._rows("SELECT * FROM cursor WHERE name = ?", (name,))
        return rows[0] if rows else None

    def all(self) -> list[Cursor]:
        return self._rows("SELECT * FROM cursor ORDER BY name")

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Cursor]:
        with self._turn, sqlite_errors_translated(self._db, self._path):
            rows: list[Any] = self._db.execute(query, values).fetchall()
        return [Cursor(name, epoch, number % WHOLE, text, at_ns % WHOLE) for name, epoch, number, text, at_ns in rows]

    def put(self, cursors: Sequence[Cursor]) -> None:
        rows = [(c.name, c.epoch, _signed(c.sequence), c.filter, _signed(c.at_ns)) for c in cursors]
        with self._turn, sqlite_errors_translated(self._db, self._path), self._db:
            self._db.executemany("INSERT OR REPLACE INTO cursor VALUES (?, ?, ?, ?, ?)", rows)

    def drop(self, name: str) -> bool:
        found: list[Any] = []
        with self._turn, sqlite_errors_translated(self._db, self._path), self._db:
            found = self._db.execute("DELETE FROM cursor WHERE name = ? RETURNING 1", (name,)).fetchall()
        return bool(found)

    def close(self) -> None:
        with self._turn:
            self._db.close()


def _signed(number: int) -> int:
    return number - WHOLE if number >= HALF else number
