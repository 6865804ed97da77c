"""A connection that remembers what was changed through it, and where it looked in vain. Knows: which statements only
look, which can wait, which tables they are about. Does not know: what they mean, what becomes of the record."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import apsw

from yirangmq.stores.sqlite_redo import Made

Values = Sequence[Any]
_PUTS_INTO = re.compile(r"(?:INTO|UPDATE)\s+(?:OR\s+\w+\s+)?(\w+)")
MOST_IN_VAIN = 1000
"""Looks remembered for each table."""


class _Kind(NamedTuple):
    """Of statements."""

    word: str
    waits: bool = False
    vain: set[tuple[str, Values]] | None = None
    """Where a look that finds nothing is remembered."""
    puts_into: tuple[set[tuple[str, Values]], ...] = ()
    """What is not known any more after it."""


class Recorder:
    """As much of ``apsw.Connection`` as a batch of work uses."""

    def __init__(
        self, db: apsw.Connection, patient: Iterable[str] = (), steady: Mapping[str, str] | None = None
    ) -> None:
        """``patient``: statements that change what they say, without fail, and whose outcome nobody asks for. They are
        made before anything else is asked, or by ``make``, in this batch of work or a later one. ``steady``: looks that
        find nothing until something is put into the one table that is named here; what they give can only be
        iterated."""
        self._execute = db.execute
        self._executemany = db.executemany
        self.changes = db.changes
        self.made: list[Made] = []
        self.is_in_doubt = False
        """A statement failed, and may have changed something before it did."""
        self._vain: dict[str, set[tuple[str, Values]]] = {table: set() for table in (steady or {}).values()}
        self._kinds: dict[str, _Kind] = {}
        for statement in patient:
            self._kinds[statement] = self._kind(statement)._replace(waits=True)
        for statement, table in (steady or {}).items():
            self._kinds[statement] = _Kind("SELECT", vain=self._vain[table])
        self._waiting: list[tuple[str, Values]] = []
        """What is not made yet, in order."""
        self.is_torn = False
        """Nobody knows how much of what waited was made."""
        self.reach: Callable[[], None] | None = None
        """To be called before the connection is used, if it is away; it comes back, or that is an error."""

    def execute(self, statement: str, values: Values = ()) -> Any:
        word, waits, vain, puts_into = self._kinds.get(statement) or self._kind(statement)
        if vain is not None and (statement, values) in vain:
            return iter(())
        for known in puts_into:
            known.clear()
        if waits:
            self.made.append((statement, False, values))
            self._waiting.append((statement, values))
            return None
        if self._waiting or self.reach is not None:
            self.make()
        try:
            cursor = self._execute(statement, values)
        except BaseException:
            self.is_in_doubt = True
            raise
        if vain is not None:
            return _remembered(vain, (statement, values), cursor)
        if word != "SELECT" and (word == "INSERT" or self.changes()):
            self.made.append((statement, False, values))
        return cursor

    def executemany(self, statement: str, rows: Iterable[Values]) -> apsw.Cursor:
        every = rows if isinstance(rows, list) else list(rows)
        for known in (self._kinds.get(statement) or self._kind(statement)).puts_into:
            known.clear()
        if self._waiting or self.reach is not None:
            self.make()
        try:
            cursor = self._executemany(statement, every)
        except BaseException:
            self.is_in_doubt = True
            raise
        if every:
            self.made.append((statement, True, every))
        return cursor

    def make(self) -> None:
        """What waits."""
        was_in_doubt = self.is_in_doubt
        if self.reach is not None:
            self.reach()
        if not self._waiting:
            return
        self.is_torn = self.is_in_doubt = True
        for statement, values in self._waiting:
            self._execute(statement, values)
        self._waiting.clear()
        self.is_torn = False
        self.is_in_doubt = was_in_doubt

    def begin(self) -> None:
        """Another batch of work."""
        self.made = []
        self.is_in_doubt = False

    def give_up(self) -> None:
        """What waits: nothing of it happened, or it is made again by others."""
        self._waiting.clear()
        self.is_torn = False

    def doubt(self) -> None:
        """What is in the tables may be something else than was seen."""
        for known in self._vain.values():
            known.clear()

    def _kind(self, statement: str) -> _Kind:
        """By its first word; of one that gives back rows SQLite does not know yet whether it changes any."""
        word = "INSERT" if "RETURNING" in statement else statement.split(None, 1)[0].upper()
        puts_into = [self._vain[table] for table in _PUTS_INTO.findall(statement) if table in self._vain]
        kind = self._kinds[statement] = _Kind(word, puts_into=tuple(puts_into))
        return kind


def _remembered(vain: set[tuple[str, Values]], look: tuple[str, Values], cursor: apsw.Cursor) -> Iterable[Any]:
    row = cursor.fetchone()
    if row is not None:
        return chain((row,), cursor)
    if len(vain) >= MOST_IN_VAIN:
        vain.clear()
    vain.add(look)
    return iter(())
