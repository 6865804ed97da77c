"""A connection that remembers what was changed through it. Knows: which statements only look, and which can wait. Does
not know: what they mean, what becomes of the record."""

from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from yirangmq.stores.sqlite_redo import Made

Values = Sequence[Any]
PATIENT = "PATIENT"


class Recorder:
    """As much of ``apsw.Connection`` as a batch of work uses."""

    def __init__(self, db: apsw.Connection, patient: Iterable[str] = ()) -> None:
        """``patient``: statements that change what they say, without fail, and whose outcome nobody asks for. They are
        made before anything else is asked, or by ``make``."""
        self._execute = db.execute
        self._executemany = db.executemany
        self.changes = db.changes
        self.made: list[Made] = []
        self.is_in_doubt = False
        """A statement failed, and may have changed something before it did."""
        self._kinds = dict.fromkeys(patient, PATIENT)
        self._count = 0
        """How many of ``made`` are."""

    def execute(self, statement: str, values: Values = ()) -> apsw.Cursor | None:
        kind = self._kinds.get(statement) or self._kind(statement)
        if kind is PATIENT:
            self.made.append((statement, False, values))
            return None
        if self._count < len(self.made):
            self.make()
        try:
            cursor = self._execute(statement, values)
        except BaseException:
            self.is_in_doubt = True
            raise
        if kind != "SELECT" and (kind == "INSERT" or self.changes()):
            self.made.append((statement, False, values))
            self._count += 1
        return cursor

    def executemany(self, statement: str, rows: Iterable[Values]) -> apsw.Cursor:
        every = rows if isinstance(rows, list) else list(rows)
        if self._count < len(self.made):
            self.make()
        try:
            cursor = self._executemany(statement, every)
        except BaseException:
            self.is_in_doubt = True
            raise
        if every:
            self.made.append((statement, True, every))
            self._count += 1
        return cursor

    def make(self) -> None:
        """What waits."""
        try:
            for statement, _, values in self.made[self._count :]:
                self._execute(statement, values)
        except BaseException:
            self.is_in_doubt = True
            raise
        self._count = len(self.made)

    def forget(self) -> None:
        self.made = []
        self._count = 0
        self.is_in_doubt = False

    def _kind(self, statement: str) -> str:
        """Its first word; of one that gives back rows SQLite does not know yet whether it changes any."""
        word = "INSERT" if "RETURNING" in statement else statement.split(None, 1)[0].upper()
        self._kinds[statement] = word
        return word
