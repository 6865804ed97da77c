"""Looks a SQLite store over, and mends what can be mended without guessing."""

from collections.abc import Iterator

import apsw

from yirangmq.core.ports import Finding
from yirangmq.core.states import State

_RECOUNT = """
SELECT (SELECT count(*) FROM ready WHERE queue = q.n),
       {states},
       (SELECT count(*) FROM life WHERE queue = q.n AND state = 'done' AND body = 1)
FROM queue q WHERE q.n = ?"""
_LIVING = ("draft", "delayed", "claimed", "leased", "dead", "parked")
_NOWHERE = (
    "SELECT seq, id FROM message m WHERE seq NOT IN (SELECT seq FROM ready) AND seq NOT IN (SELECT seq FROM life)"
)
_TWICE = "SELECT seq FROM ready WHERE seq IN (SELECT seq FROM life)"
_BODILESS_READY = "SELECT queue, rank, place, seq FROM ready WHERE seq NOT IN (SELECT seq FROM message)"
_BODILESS_LIFE = "SELECT seq, id FROM life WHERE body = 1 AND seq NOT IN (SELECT seq FROM message)"
_NAMELESS = """
SELECT queue, id, seq FROM message m
WHERE NOT EXISTS (SELECT 1 FROM name n WHERE n.queue = m.queue AND n.id = m.id)"""
_READY_AGAIN = """
INSERT INTO ready SELECT queue, rank, seq, seq, 0, 0, 0, published_at, '', '', 0 FROM message WHERE seq = ?"""


def check(db: apsw.Connection, *, repair: bool) -> Iterator[Finding]:
    """Findings, each mended if ``repair``. A file that SQLite itself finds damaged is reported, not touched."""
    damage = [row[0] for row in db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
    if damage:
        yield from (Finding("damaged", "file", text) for text in damage)
        return
    db.execute("BEGIN IMMEDIATE" if repair else "BEGIN")
    try:
        findings = [*_misplaced(db, repair), *_bodiless(db, repair), *_miscounted(db, repair)]
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    yield from findings


def _misplaced(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    for seq, id in list(db.execute(_NOWHERE)):
        if repair:
            db.execute(_READY_AGAIN, (seq,))
            db.execute("UPDATE name SET place = ?1 WHERE seq = ?1", (seq,))
        yield Finding("nowhere", id, "a message in no state; made ready again", repair)
    for (seq,) in list(db.execute(_TWICE)):
        if repair:
            db.execute("DELETE FROM ready WHERE seq = ?", (seq,))
        yield Finding("twice", str(seq), "in two states; the later one stays", repair)
    for queue, id, seq in list(db.execute(_NAMELESS)):
        if repair:
            db.execute("INSERT INTO name VALUES (?, ?, ?, ?)", (queue, id, seq, seq))
        yield Finding("nameless", id, "cannot be found by its id; named again", repair)


def _bodiless(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    for queue, rank, place, seq in list(db.execute(_BODILESS_READY)):
        if repair:
            db.execute("DELETE FROM ready WHERE queue = ? AND rank = ? AND place = ?", (queue, rank, place))
        yield Finding("bodiless", str(seq), "stands in line without content; taken out", repair)
    for seq, id in list(db.execute(_BODILESS_LIFE)):
        if repair:
            db.execute("UPDATE life SET body = 0, state = 'dropped' WHERE seq = ?", (seq,))
        yield Finding("bodiless", id, "its content is gone; remembered by id only", repair)


def _miscounted(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    states = ", ".join(f"(SELECT count(*) FROM life WHERE queue = q.n AND state = '{state}')" for state in _LIVING)
    columns = [State.READY.value, *_LIVING, State.DONE.value]
    for queue, name in list(db.execute("SELECT n, name FROM queue")):
        found = next(db.execute(_RECOUNT.format(states=states), (queue,)))
        kept = next(db.execute(f"SELECT {', '.join(columns)} FROM queue WHERE n = ?", (queue,)))
        if found != kept:
            if repair:
                sets = ", ".join(f"{column} = ?" for column in columns)
                db.execute(f"UPDATE queue SET {sets} WHERE n = ?", (*found, queue))
            yield Finding("miscounted", name, f"counted {found}, kept {kept}", repair)
