"""Row salvage from a damaged SQLite file: readable rows, and payloads without their message rows.

A lost page costs its own rows only. Reading of a table with an integer key continues after a gap of up to 100,000
numbers; after a longer gap the rest is read from the other end. Other tables are read from both ends.

A page of ``message`` has about 200 rows, while their payloads are stored elsewhere (schema/005-content.sql). A message
with only its id and payload left goes to the dead letters as CORRUPT. Rows that contradict each other are left to
``stores.sqlite.check``."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import apsw

from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.message import RANK_LAST, Counts
from yirangmq.core.policy import read_policy
from yirangmq.core.states import STORED_STATES, State
from yirangmq.core.validation import IDENTIFIER
from yirangmq.format.json_codec import loads
from yirangmq.stores.sqlite import corrupt_rows as unreadable
from yirangmq.stores.sqlite.check import insert_ready
from yirangmq.stores.sqlite.corrupt_rows import Find
from yirangmq.stores.sqlite.payloads import Contents, number_of
from yirangmq.stores.sqlite.runs import Runs

UNREADABLE = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.IOError, UnicodeDecodeError)
NUMBER_LIMIT = 2**53
"""Exclusive upper bound of valid message and queue numbers; a damaged number may be larger."""


# -- payloads without message rows -------------------------------------------------------------------------------------

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
    return isinstance(value, int) and 0 < value < NUMBER_LIMIT


def finder(old: apsw.Connection) -> Find:
    """Return a lookup of packed payloads that returns None for an unreadable one."""
    contents = Contents(old)

    def find(seq: int, number: int) -> bytes | None:
        try:
            found = contents.bytes_of(seq, number)
        except (*UNREADABLE, TypeError):
            return None
        return found if isinstance(found, bytes) else None

    return find


def lost_row(old: apsw.Connection, new: apsw.Connection, find: Find, name: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Rebuild a row of ``message`` from a row of ``name`` and a packed payload of the old store. Return None if the new
    store has the message or remembers it as finished, or if there is no payload."""
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


# -- readable rows -----------------------------------------------------------------------------------------------------

MAX_GAP = 100_000
"""Numbers to try one by one after a lost page; after a longer gap the rest is read from the other end."""

TABLES: dict[str, tuple[str, ...]] = {
    "queue": ("n", "name", "policy", *Counts._fields),
    "message": ("seq", "queue", "id", "rank", "published_at", "available_at", "expires_at", "dedup_key", "header",
                "payload", "grp", "target"),
    "life": ("seq", "queue", "id", "state", "rank", "place", "attempt", "leases", "due_at", "expires_at", "changed_at",
             "consumer", "reason", "repeats", "body", "grp", "target", "size"),
    "failure": ("seq", "reason_code", "reason_message", "failed_at", "attempt", "consumer"),
    "ready": ("queue", "target", "rank", "place", "seq", "attempt", "leases", "expires_at", "changed_at", "consumer",
              "reason", "repeats", "grp", "size"),
    "fresh": ("queue", "rank", "first", "last"),
    "batch": ("first", "last", "queue", "rank", "state", "due_at", "changed_at", "consumer", "body", "ids"),
    "name": ("queue", "id", "seq", "place"),
    "dedup": ("queue", "key", "until", "seq", "id"),
    "note": ("key", "text"),
    "sequence": ("last",),
}  # fmt: skip
_STATES = {state.value for state in State} - {State.READY.value}
_FITTING_READY = """
DELETE FROM ready AS r WHERE NOT EXISTS
    (SELECT 1 FROM message m WHERE m.seq = r.seq AND m.queue = r.queue AND m.target = r.target AND m.rank = r.rank)"""
_NAMES = (
    "INSERT OR IGNORE INTO name SELECT m.queue, m.id, m.seq, r.place FROM ready r JOIN message m USING (seq)",
    "INSERT OR IGNORE INTO name SELECT queue, id, seq, place FROM life",
    "INSERT OR IGNORE INTO name SELECT queue, id, seq, seq FROM message",
    """INSERT OR IGNORE INTO name SELECT queue, i.key, seq, seq FROM
        (SELECT b.queue, i.key, b.first + row_number() OVER (PARTITION BY b.first ORDER BY i.id) - 1 AS seq
         FROM batch b JOIN json_each(b.ids) i WHERE b.body = 0 AND json_valid(b.ids)) i""",
)
_STANDS = "SELECT 1 FROM life WHERE seq = ?1 UNION ALL SELECT 1 FROM ready WHERE seq = ?1"
_NAMELESS_QUEUES = """
INSERT INTO queue (n, name) SELECT DISTINCT queue, 'salvaged-' || queue FROM
    (SELECT queue FROM message UNION SELECT queue FROM life) WHERE queue NOT IN (SELECT n FROM queue)"""
_FAILURES_OF_NOBODY = "DELETE FROM failure WHERE seq NOT IN (SELECT seq FROM life UNION SELECT seq FROM message)"
_LAST = """
SELECT max(seq), max(place) FROM
    (SELECT seq, place FROM ready UNION ALL SELECT seq, place FROM life UNION ALL SELECT last, last FROM batch)"""


class SalvageResult(NamedTuple):
    """Result of a salvage."""

    messages: int
    queues: int
    missing: int
    """Messages that are missing according to the readable counters."""
    corrupt: int
    """Salvaged messages that are damaged."""


def copy_readable_rows(old: apsw.Connection, new: apsw.Connection) -> SalvageResult:
    """Copy all readable rows in one transaction of the new store."""
    new.execute("BEGIN IMMEDIATE")
    expected = 0
    for row in _numbered(old, "queue"):
        fitting = _queue_row(row)
        if _put(new, "queue", fitting):
            expected += sum(getattr(Counts(*row[3:]), state.value) for state in STORED_STATES)
    corrupt = list(_carry_messages(old, new))
    for row in _numbered(old, "life"):
        if row[3] in _STATES:
            _put(new, "life", row)
    for row in _numbered(old, "batch"):
        _put(new, "batch", row)
    for row in _numbered(old, "failure"):
        _put(new, "failure", row)
    for table, order in (
        ("ready", "queue, target, rank, place"),
        ("fresh", "queue, rank, first"),
        ("dedup", "queue, key"),
        ("note", "key"),
    ):
        for row in _sorted(old, table, order):
            _put(new, table, row)
    corrupt += _carry_lost(old, new)
    new.execute(_FITTING_READY)
    for statement in (_NAMELESS_QUEUES, *_NAMES, _FAILURES_OF_NOBODY):
        new.execute(statement)
    _set_sequence(old, new)
    _move_to_dead_letters(new, corrupt)
    new.execute("COMMIT")
    messages, queues = next(new.execute("SELECT (SELECT count(*) FROM message), (SELECT count(*) FROM queue)"))
    return SalvageResult(messages, queues, max(0, expected - messages), len(corrupt))


def _carry_messages(old: apsw.Connection, new: apsw.Connection) -> Iterator[tuple[int, str]]:
    """Copy the rows of ``message`` with unpacked payloads. Yield number and damage of each that does not decode."""
    find = finder(old)
    for raw in _numbered(old, "message m", unreadable.RAW, "m.seq"):
        if None not in (raw[2], raw[8], raw[9]):
            sent = unreadable.read_raw(raw, find)
            if _put(new, "message", sent.row) and sent.damage:
                yield sent.seq, sent.damage


def _carry_lost(old: apsw.Connection, new: apsw.Connection) -> Iterator[tuple[int, str]]:
    """Rebuild messages with only id and payload left. Yield number and damage of each."""
    find = finder(old)
    for name in _sorted(old, "name", "queue, id"):
        row = lost_row(old, new, find, name)
        if row is not None and _put(new, "message", row):
            yield row[0], LOST


def _move_to_dead_letters(new: apsw.Connection, corrupt: list[tuple[int, str]]) -> None:
    """Move the damaged messages to the dead letters."""
    for seq, damage in corrupt:
        Runs(new).move_to_single_row(seq)
        if new.execute(_STANDS, (seq,)).fetchone() is None and not Runs(new).batches_in(seq, seq):
            insert_ready(new, seq)
        sent = unreadable.read_raw(next(new.execute(unreadable.ONE, (seq,))), Contents(new).bytes_of)
        unreadable.move_to_dead_letters(new, sent._replace(damage=damage))


def _put(new: apsw.Connection, table: str, row: tuple[Any, ...]) -> bool:
    """Insert a row; return False if it was not inserted. The new table is strict: a row that does not fit is damaged. A
    row that exists already was read twice."""
    columns = TABLES[table]
    marks = ", ".join("?" * len(columns))
    try:
        new.execute(f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})", row)
    except (apsw.ConstraintError, apsw.MismatchError):
        return False
    return bool(new.changes())


def _queue_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace an invalid queue name, and drop an invalid policy."""
    number, name, policy, *counters = row
    try:
        validation.check_queue(name)
    except BadInput:
        name = f"salvaged-{number}"
    try:
        read_policy(loads(policy.encode()) if policy else {}, name)
    except (BadInput, AttributeError):
        policy = None
    return (number, name, policy, *counters)


def _numbered(
    db: apsw.Connection, table: str, columns: str | None = None, key: str | None = None
) -> Iterator[tuple[Any, ...]]:
    """Yield rows in order of their number, and continue after each gap. After a gap longer than ``MAX_GAP``, the
    rest is read from the other end."""
    wanted = TABLES[table.partition(" ")[0]]
    select = f"SELECT {columns or ', '.join(wanted)} FROM {table}"
    key = key or wanted[0]
    last = 0
    while True:
        try:
            for row in db.execute(f"{select} WHERE {key} > ? ORDER BY {key}", (last,)):
                if not is_number(row[0]) or row[0] <= last:
                    break  # out of order: treated as unreadable
                last = row[0]
                yield row
            else:
                return
        except UNREADABLE:
            pass
        found = _next(db, f"{select} WHERE {key} = ?", last)
        if found is None:
            break
        last = found[0]
        yield found
    try:
        yield from db.execute(f"{select} WHERE {key} > ? ORDER BY {key} DESC", (last + MAX_GAP,))
    except UNREADABLE:
        return


def _next(db: apsw.Connection, select: str, last: int) -> tuple[Any, ...] | None:
    for number in range(last + 1, last + 1 + MAX_GAP):
        try:
            row = db.execute(select, (number,)).fetchone()
        except UNREADABLE:
            continue
        if row is not None and row[0] == number:
            return tuple(row)
    return None


def _sorted(db: apsw.Connection, table: str, order: str) -> Iterator[tuple[Any, ...]]:
    select = f"SELECT {', '.join(TABLES[table])} FROM {table} ORDER BY "
    try:
        yield from db.execute(select + order)
        return
    except UNREADABLE:
        pass
    try:
        yield from db.execute(select + order.replace(",", " DESC,") + " DESC")
    except UNREADABLE:
        return


def _set_sequence(old: apsw.Connection, new: apsw.Connection) -> None:
    """Set the sequence to the largest number in the readable rows, so that no number is used twice."""
    known = [*next(new.execute(_LAST)), *next(new.execute("SELECT max(seq) FROM message"))]
    try:
        known += [row[0] for row in old.execute("SELECT last FROM sequence")]
    except UNREADABLE:
        pass
    new.execute("UPDATE sequence SET last = ?", (max((n for n in known if is_number(n)), default=0),))
