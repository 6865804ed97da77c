"""Statement recorder of the server store, with a negative cache.

``Recorder`` takes the place of the connection in transactions of the server store:

- It records each statement that changed something, for the redo log.
- It defers statements that cannot fail and whose result is unused, to the next query at the latest.
- It remembers queries that found nothing (negative cache) until a row is put into the one table they read.
- It waits for a background commit before it uses the connection.

What it does with a statement is an attribute of the statement (``stores.sqlite.statements``)."""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import apsw

from yirangmq.stores.sqlite.redo_format import LoggedStatement
from yirangmq.stores.sqlite.statements import Misses, Statement, Values

MAX_MISSES = 1000
"""Maximum number of empty results remembered per table; beyond it those of the table are dropped."""


class Recorder:
    """Statement recorder (``statements.StatementExecutor``): records, defers, and answers from the negative cache.

    An error in ``execute`` or ``executemany`` sets ``is_in_doubt``. Not thread-safe: used under the store's lock."""

    def __init__(self, db: apsw.Connection, misses: Misses) -> None:
        """``misses``: the negative caches. The result of a query that has one can only be iterated."""
        self._execute = db.execute
        self._executemany = db.executemany
        self.changes = db.changes
        self._misses = misses
        self.logged: list[LoggedStatement] = []
        self.is_in_doubt = False
        """True if a statement failed; it may have changed rows before it did."""
        self._deferred: list[tuple[Statement, Values]] = []
        """Deferred statements that are not executed yet, in order."""
        self.is_partially_applied = False
        """True if executing the deferred statements failed: an unknown part of them was executed."""
        self.join_background_commit: Callable[[], None] | None = None
        """Called before the connection is used, while a background commit has it. It joins that commit, or raises."""

    def execute(self, statement: Statement, values: Values = ()) -> Any:
        number, fills, is_deferrable, is_always_logged = statement.effects
        if number:
            if fills:
                self._misses[fills].clear()
            if is_deferrable:
                self.logged.append((number, False, values))
                self._deferred.append((statement, values))
                return None
        elif statement.empty_until and (statement, values) in self._misses[statement.empty_until]:
            return iter(())
        if self._deferred or self.join_background_commit is not None:
            self.flush_deferred()
        try:
            cursor = self._execute(statement, values)
        except BaseException:
            self.is_in_doubt = True
            raise
        if number:
            if is_always_logged or self.changes():
                self.logged.append((number, False, values))
        elif statement.empty_until:
            return _remembered(self._misses[statement.empty_until], (statement, values), cursor)
        return cursor

    def executemany(self, statement: Statement, rows: Iterable[Values]) -> apsw.Cursor:
        every = rows if isinstance(rows, list) else list(rows)
        number, fills, _, _ = statement.effects
        if fills:
            self._misses[fills].clear()
        if self._deferred or self.join_background_commit is not None:
            self.flush_deferred()
        try:
            cursor = self._executemany(statement, every)
        except BaseException:
            self.is_in_doubt = True
            raise
        if every:
            self.logged.append((number, True, every))
        return cursor

    def flush_deferred(self) -> None:
        """Join the background commit if there is one, and execute the deferred statements."""
        was_in_doubt = self.is_in_doubt
        if self.join_background_commit is not None:
            self.join_background_commit()
        if not self._deferred:
            return
        self.is_partially_applied = self.is_in_doubt = True
        for statement, values in self._deferred:
            self._execute(statement, values)
        self._deferred.clear()
        self.is_partially_applied = False
        self.is_in_doubt = was_in_doubt

    def start(self) -> None:
        """Start recording a new transaction."""
        self.logged = []
        self.is_in_doubt = False

    def discard_deferred(self) -> None:
        """Discard the deferred statements: their transaction failed, or the redo log replays them."""
        self._deferred.clear()
        self.is_partially_applied = False


def _remembered(
    misses: set[tuple[Statement, Values]], query: tuple[Statement, Values], cursor: apsw.Cursor
) -> Iterable[Any]:
    """Return the rows of a query; remember it in the negative cache if it has none."""
    row = cursor.fetchone()
    if row is not None:
        return chain((row,), cursor)
    if len(misses) >= MAX_MISSES:
        misses.clear()
    misses.add(query)
    return iter(())
