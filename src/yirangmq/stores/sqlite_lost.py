"""Payloads out of a damaged SQLite store, also of messages whose own rows are lost: a page of ``message`` has some two
hundred rows, and their payloads lie elsewhere (schema/005-content.sql).

Knows: what is left of such a message. Does not know: how tables are read around a gap, what becomes of it."""

from typing import Any

import apsw

from yirangmq.core.message import RANK_LAST
from yirangmq.core.validation import IDENTIFIER
from yirangmq.stores.sqlite_content import Contents, number_of
from yirangmq.stores.sqlite_unreadable import Find

UNREADABLE = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.IOError, UnicodeDecodeError)
MOST = 2**53
"""No number of ours is larger; a damaged one may be."""
LOST = "all but its id and payload was lost"
_IS_THERE = """
SELECT 1 FROM message WHERE seq = ?1 UNION ALL SELECT 1 FROM life WHERE seq = ?1 AND body = 0 UNION ALL
SELECT 1 FROM (SELECT last, body FROM batch WHERE first <= ?1 ORDER BY first DESC LIMIT 1)
WHERE last >= ?1 AND body = 0"""
_SIZES = "SELECT first, last, sizes FROM content WHERE first <= ? ORDER BY first DESC LIMIT 1"
_STOOD = """
SELECT rank FROM life WHERE seq = ?2 UNION ALL SELECT rank FROM ready WHERE seq = ?2 UNION ALL
SELECT rank FROM fresh WHERE queue = ?1 AND ?2 BETWEEN first AND last UNION ALL
SELECT rank FROM (SELECT * FROM batch WHERE first <= ?2 ORDER BY first DESC LIMIT 1) WHERE last >= ?2"""
_NEIGHBOUR = "SELECT published_at FROM message WHERE seq <= ? ORDER BY seq DESC LIMIT 1"


def is_number(value: object) -> bool:
    return isinstance(value, int) and 0 < value < MOST


def finder(old: apsw.Connection) -> Find:
    """Payloads as far as they can be read."""
    contents = Contents(old)

    def find(seq: int, number: int) -> bytes | None:
        try:
            found = contents.bytes_of(seq, number)
        except (*UNREADABLE, TypeError):
            return None
        return found if isinstance(found, bytes) else None

    return find


def lost_row(old: apsw.Connection, new: apsw.Connection, find: Find, name: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A row of ``message`` for what has a name and a payload in the old store, and in the new one neither a row nor a
    mark that it is done with; None for any other."""
    queue, id, seq, _ = name
    if not is_number(seq) or not IDENTIFIER.fullmatch(str(id)):
        return None
    if new.execute(_IS_THERE, (seq,)).fetchone() is not None:
        return None
    try:
        first, last, sizes = old.execute(_SIZES, (seq,)).fetchone() or (0, 0, b"")
        number = number_of(seq - first, sizes) if first <= seq <= last else None
    except (*UNREADABLE, TypeError, ValueError):
        return None
    payload = None if number is None else find(seq, number)
    if payload is None:
        return None
    rank = new.execute(_STOOD, (queue, seq)).fetchone() or (RANK_LAST,)
    at = new.execute(_NEIGHBOUR, (seq,)).fetchone() or (0,)
    return seq, queue, id, rank[0], at[0], at[0], 0, None, "", payload, 0, 0
