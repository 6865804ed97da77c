"""A connection that remembers what was changed through it. Knows: which statements only look. Does not know: what they
mean, what becomes of the record."""

from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from yirangmq.stores.sqlite_redo import Made

Values = Sequence[Any]


class Recorder:
    """As much of ``apsw.Connection`` as a batch of work uses."""

    def __init__(self, db: apsw.Connection) -> None:
        self._execute = db.execute
        self._executemany = db.executemany
        self.changes = db.changes
        self.made: list[Made] = []
        self.rows = 0
        """How many rows were given to statements for many."""
        self.is_in_doubt = False
        """A statement failed, and may have changed something before it did."""
        self._kinds: dict[str, str] = {}

    def execute(self, statement: str, values: Values = ()) -> apsw.Cursor:
        try:
            cursor = self._execute(statement, values)
        except BaseException:
            self.is_in_doubt = True
            raise
        kind = self._kinds.get(statement) or self._kind(statement)
        if kind != "SELECT" and (kind == "INSERT" or self.changes()):
            self.made.append((statement, False, values))
        return cursor

    def executemany(self, statement: str, rows: Iterable[Values]) -> apsw.Cursor:
        every = rows if isinstance(rows, list) else list(rows)
        try:
            cursor = self._executemany(statement, every)
        except BaseException:
            self.is_in_doubt = True
            raise
        if every:
            self.made.append((statement, True, every))
            self.rows += len(every)
        return cursor

    def forget(self) -> None:
        self.made = []
        self.rows = 0
        self.is_in_doubt = False

    def _kind(self, statement: str) -> str:
        """Its first word; of one that gives back rows SQLite does not know yet whether it changes any."""
        word = "INSERT" if "RETURNING" in statement else statement.split(None, 1)[0].upper()
        self._kinds[statement] = word
        return word
