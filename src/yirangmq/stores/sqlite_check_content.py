"""Looks over the payloads that lie together in a SQLite store (schema/005-content.sql): each row is of messages of its
own, and of some that are there. A message whose payload is not where it should be is found by ``sqlite_unreadable``."""

from collections.abc import Iterator

import apsw

from yirangmq.core.ports import Finding
from yirangmq.stores.sqlite_content import IS_LITTER

_OVERLAPPING_CONTENT = """
SELECT first, last, next FROM (SELECT first, last, lead(first) OVER (ORDER BY first) AS next FROM content)
WHERE last >= next"""
_LITTER = f"SELECT first, last FROM content WHERE {IS_LITTER}"


def overlapping(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Whoever reads takes the later row: it is made so that this is the only one."""
    for first, last, following in list(db.execute(_OVERLAPPING_CONTENT)):
        if repair:
            db.execute("UPDATE content SET last = ? WHERE first = ?", (following - 1, first))
        yield Finding("torn", f"{first}-{last}", f"payloads up to {last}, and others from {following} on; cut", repair)


def littered(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    for first, last in list(db.execute(_LITTER)):
        if repair:
            db.execute("DELETE FROM content WHERE first = ?", (first,))
        yield Finding("litter", f"{first}-{last}", "payloads of no message; given up", repair)
