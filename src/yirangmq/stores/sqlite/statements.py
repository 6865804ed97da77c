"""SQL statements that change the store, each with its number in the redo log.

The numbers are part of a disk format (docs/redo-log.md): a record of the redo log names a statement by its number. A
number never gets another text. A statement whose text changes, also because a table changes, gets a new number; the
old one stays, because the redo log of an older version is replayed before its schema is migrated.
tests/golden/redo-statements.json has every number with its text.

Queries (``stores.sqlite.sql`` and others) are statements without a number."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from yirangmq.core.message import Counts, Reason
from yirangmq.format.json_codec import dumps

LENGTH = (1 << 24) - 1
"""Mask of the length in the integer of a packed payload (``stores.sqlite.payloads``)."""
SIZE = f"iif(typeof(payload) = 'integer', payload >> 1 & {LENGTH}, octet_length(payload)) + length(header)"
"""SQL expression for the bytes of payload and header of a row of ``message``, packed or not."""
COUNTED = Counts._fields

# -- statements as values ----------------------------------------------------------------------------------------------


class Statement(str):
    """Text of a SQL statement, with its effects as the recorder needs them (``stores.sqlite.recorder``)."""

    __slots__ = ("empty_until", "fills", "is_always_logged", "is_deferrable", "number")

    number: int
    """Number in the redo log; 0: a query, which is not logged."""
    is_always_logged: bool
    """False for UPDATE and DELETE: they are logged only if they have changed a row."""
    is_deferrable: bool
    """True if the statement cannot fail and its result is not read: it may be executed later."""
    fills: str
    """The table into which the statement may put a row, if queries on that table have a negative cache; "" otherwise.
    A changed row counts as put."""
    empty_until: str
    """For a query with a negative cache: the only table that it reads. "" for all others."""


STATEMENTS: dict[int, Statement] = {}
"""Every statement of the redo log by its number."""


def query(text: str, *, empty_until: str = "") -> Statement:
    """Return a query. ``empty_until``: its empty result stays valid until a row is put into this table."""
    statement = Statement(text)
    statement.number, statement.is_always_logged, statement.is_deferrable = 0, False, False
    statement.fills, statement.empty_until = "", empty_until
    return statement


def _numbered(number: int, text: str, *, fills: str = "", deferrable: bool = False) -> Statement:
    if number in STATEMENTS:
        raise ValueError(f"statement number {number} is used twice")
    statement = STATEMENTS[number] = query(text)
    statement.number, statement.fills, statement.is_deferrable = number, fills, deferrable
    statement.is_always_logged = text.lstrip().startswith("INSERT")
    return statement


Values = Sequence[Any]
Misses = dict[str, set[tuple[Statement, Values]]]
"""Negative caches by table: the queries that found nothing, with their values."""


class StatementExecutor(Protocol):
    """What a transaction uses of a connection: ``apsw.Connection`` itself, or the recorder of a server."""

    def execute(self, statement: Statement, values: Values = ..., /) -> Any: ...

    def executemany(self, statement: Statement, rows: Iterable[Values], /) -> Any: ...

    def changes(self) -> int: ...


class SeqStatement(NamedTuple):
    """A statement on messages by number: one variant for consecutive numbers, one for any numbers."""

    span: Statement
    some: Statement

    def among(self, seqs: Sequence[int]) -> tuple[Statement, tuple[Any, ...]]:
        """Return the statement for these numbers, and its last bindings. Numbers used together are usually consecutive,
        which needs one BETWEEN."""
        low, high = min(seqs), max(seqs)
        if high - low + 1 == len(seqs) == len(set(seqs)):
            return self.span, (low, high)
        return self.some, (dumps(list(seqs)).decode(),)


_SPAN, _SOME = "BETWEEN ? AND ?", "IN (SELECT value FROM json_each(?))"


def seq_query(text: str) -> SeqStatement:
    """Return a query on messages by number; ``text`` ends before the condition on the number."""
    return SeqStatement(query(text + _SPAN), query(text + _SOME))


def _seq_statement(number: int, text: str) -> SeqStatement:
    """Return a change of messages by number, with this number and the next one."""
    return SeqStatement(_numbered(number, text + _SPAN), _numbered(number + 1, text + _SOME))


# -- queues, counters, notes, keys -------------------------------------------------------------------------------------

RESERVE = _numbered(1, "UPDATE sequence SET last = ?")
ADD_QUEUE = _numbered(2, "INSERT INTO queue (name) VALUES (?) RETURNING n")
ADD_NEW = _numbered(
    3, "UPDATE queue SET published = published + ?, ready = ready + ?, bytes = bytes + ? WHERE n = ?", deferrable=True
)
OF_NEW = frozenset({"published", "ready", "bytes"})
"""Counters that change when plain ready messages are published: ``ADD_NEW`` instead of ``ADD_COUNTS``."""
ADD_COUNTS = _numbered(
    4, f"UPDATE queue SET {', '.join(f'{name} = {name} + ?' for name in COUNTED)} WHERE n = ?", deferrable=True
)
"""Adds to all counters each time: a separate statement per set of counters would rarely be in the statement cache."""
SET_POLICY = _numbered(5, "UPDATE queue SET policy = ? WHERE n = ?")
END_QUEUE = _numbered(6, "DELETE FROM queue WHERE n = ?")
END_QUEUE_ROWS = (
    _numbered(7, "DELETE FROM failure WHERE seq IN (SELECT seq FROM name WHERE queue = ?)"),
    _numbered(8, "DELETE FROM message WHERE seq IN (SELECT seq FROM name WHERE queue = ?)"),
    _numbered(9, "DELETE FROM life WHERE seq IN (SELECT seq FROM name WHERE queue = ?)"),
    _numbered(10, "DELETE FROM name WHERE queue = ?"),
    _numbered(11, "DELETE FROM ready WHERE queue = ?"),
    _numbered(12, "DELETE FROM fresh WHERE queue = ?"),
    _numbered(13, "DELETE FROM batch WHERE queue = ?"),
    _numbered(14, "DELETE FROM member WHERE queue = ?"),
    _numbered(15, "DELETE FROM dedup WHERE queue = ?"),
)
"""Deletions of all rows of a queue, in this order. ``failure``, ``message`` and ``life`` are not indexed by queue: a
full scan would be slow."""
SET_NOTE = _numbered(16, "INSERT OR REPLACE INTO note VALUES (?, ?)")
END_NOTE = _numbered(17, "DELETE FROM note WHERE key = ?")
HOLD_KEY = _numbered(18, "INSERT OR REPLACE INTO dedup VALUES (?, ?, ?, ?, ?)")
FREE_KEY = _numbered(19, "DELETE FROM dedup WHERE queue = ? AND key = ?")
FORGET_KEYS = _numbered(
    20, "DELETE FROM dedup WHERE (queue, key) IN (SELECT queue, key FROM dedup WHERE until <= ? LIMIT ?)"
)

# -- new messages ------------------------------------------------------------------------------------------------------

INSERT_MESSAGE = _numbered(21, "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", deferrable=True)


def _insert_many(number: int, count: int) -> Statement:
    """Build an INSERT for ``count`` messages. ?1 is the first message number, ?2 the queue number; rank, times and
    header follow, then id and payload of each message."""
    rows = [f"(?1 + {n}, ?2, ?{n * 2 + 7}, ?3, ?4, ?5, 0, NULL, ?6, ?{n * 2 + 8}, 0, 0)" for n in range(count)]
    return _numbered(number, f"INSERT INTO message VALUES {', '.join(rows)}")


INSERT_MANY = {64: _insert_many(22, 64), 8: _insert_many(23, 8)}
"""Statements that insert many messages that differ only in id and payload, by the number of messages."""
UNDO_MESSAGES = _numbered(24, "DELETE FROM message WHERE seq >= ?")
NAME_ONE = _numbered(25, "INSERT INTO name VALUES (?, ?, ?, ?)", deferrable=True)
NAME_NEW = _numbered(26, "INSERT INTO name SELECT queue, id, seq, seq FROM message WHERE seq BETWEEN ? AND ?")
READY_NEW = _numbered(
    27,
    "INSERT INTO ready SELECT queue, target, rank, seq, seq, 0, 0, expires_at, published_at, '', '', 0, grp, "
    f"{SIZE} FROM message WHERE seq BETWEEN ? AND ? AND available_at <= ?",
    fills="ready",
)
DELAY_NEW = _numbered(
    28,
    f"""
INSERT INTO life SELECT seq, queue, id, 'delayed', rank, seq, 0, 0,
    CASE WHEN expires_at BETWEEN 1 AND available_at THEN expires_at ELSE available_at END,
    expires_at, published_at, '', '', 0, 1, grp, target, {SIZE}
FROM message WHERE seq BETWEEN ? AND ? AND available_at > ?""",
)
DRAFT_NEW = _numbered(
    29,
    f"""
INSERT INTO life SELECT seq, queue, id, 'draft', rank, seq, 0, 0, ?3, expires_at, published_at, '', '', 0, 1, grp,
    target, {SIZE}
FROM message WHERE seq BETWEEN ?1 AND ?2""",
)
MEMBERS_NEW = _numbered(
    30, "INSERT INTO member SELECT queue, grp, seq, seq FROM message WHERE seq BETWEEN ? AND ? AND grp > 0"
)
JOIN_GROUP = _numbered(31, "INSERT INTO member VALUES (?, ?, ?, ?)")
LEAVE_GROUP = _numbered(32, "DELETE FROM member WHERE queue = ? AND grp = ? AND place = ?")

# -- messages in single rows -------------------------------------------------------------------------------------------

REWRITE = _numbered(33, "UPDATE message SET header = ?, payload = ? WHERE seq = ?")
RESIZE_LIVES = _seq_statement(
    34, f"UPDATE life SET size = (SELECT {SIZE} FROM message m WHERE m.seq = life.seq) WHERE seq "
)
RESIZE_READY = _numbered(
    36, "UPDATE ready SET size = ? WHERE queue = ? AND target = ? AND rank = ? AND place = ?", fills="ready"
)
INSERT_LIFE = _numbered(
    37, "INSERT INTO life VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)"
)
UPDATE_LIFE = _numbered(
    38,
    """
UPDATE life SET state = ?4, place = ?6, attempt = ?7, leases = ?8, due_at = ?9, expires_at = ?10, changed_at = ?11,
    consumer = ?12, reason = ?13, repeats = ?14, body = ?15, size = ?18
WHERE seq = ?1""",
)
SETTLE_LIFE = _seq_statement(39, "UPDATE life SET state = 'done', due_at = ?, changed_at = ?, body = ? WHERE seq ")
START_LIFE = _seq_statement(41, "UPDATE life SET state = 'leased', due_at = ?, changed_at = ? WHERE seq ")
REMEMBER_LIFE = _seq_statement(43, "UPDATE life SET body = 0, due_at = changed_at + ? WHERE seq ")
END_LIVES = _seq_statement(45, "DELETE FROM life WHERE seq ")
INSERT_READY = _numbered(
    47,
    "INSERT INTO ready VALUES (?2, ?17, ?5, ?6, ?1, ?7, ?8, ?10, ?11, ?12, ?13, ?14, ?16, ?18)",
    fills="ready",
)
END_READY = _numbered(48, "DELETE FROM ready WHERE queue = ? AND target = ? AND rank = ? AND place = ?")
END_READY_RUN = _numbered(49, "DELETE FROM ready WHERE queue = ? AND target = 0 AND rank = ? AND place BETWEEN ? AND ?")
MOVE_NAME = _numbered(50, "UPDATE name SET place = ? WHERE queue = ? AND id = ?")
END_NAME = _numbered(51, "DELETE FROM name WHERE queue = ? AND id = ?")
END_MESSAGES = _seq_statement(52, "DELETE FROM message WHERE seq ")
SET_FAILURE = _numbered(54, "INSERT OR REPLACE INTO failure VALUES (?, ?, ?, ?, ?, ?)")
END_FAILURES = _seq_statement(55, "DELETE FROM failure WHERE seq ")

# -- runs --------------------------------------------------------------------------------------------------------------

BATCH_COLUMNS = "first, last, queue, rank, state, due_at, changed_at, consumer, body, ids"
ADD_FRESH = _numbered(57, "INSERT INTO fresh VALUES (?, ?, ?, ?)", fills="fresh", deferrable=True)
GROW_FRESH = _numbered(
    58,
    "UPDATE fresh SET last = ?4 WHERE queue = ?1 AND rank = ?2 AND first = ?3",
    fills="fresh",
    deferrable=True,
)
BEHEAD_FRESH = _numbered(59, "UPDATE fresh SET first = ?4 WHERE queue = ?1 AND rank = ?2 AND first = ?3", fills="fresh")
END_FRESH = _numbered(60, "DELETE FROM fresh WHERE queue = ? AND rank = ? AND first = ?")
ADD_BATCH = _numbered(61, f"INSERT INTO batch ({BATCH_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", deferrable=True)
END_BATCH = _numbered(62, "DELETE FROM batch WHERE first = ?")
SETTLE_BATCH = _numbered(
    63,
    "UPDATE batch SET state = ?, due_at = ?, changed_at = ?, consumer = ?, body = ?, ids = ? WHERE first = ?",
    deferrable=True,
)
INSERT_READY_ROW = _numbered(
    64,
    "INSERT INTO ready SELECT queue, target, rank, seq, seq, 0, 0, expires_at, published_at, '', '', 0, grp, "
    f"{SIZE} FROM message WHERE seq = ?",
    fills="ready",
)
INSERT_LIFE_ROW = _numbered(
    65,
    "INSERT OR IGNORE INTO life SELECT seq, queue, id, ?2, rank, seq, 1, 1, ?3, 0, ?4, ?5, '', 0, 1, 0, 0, "
    f"{SIZE} FROM message WHERE seq = ?1",
)

# -- packed payloads ---------------------------------------------------------------------------------------------------

ADD_CONTENT = _numbered(66, "INSERT INTO content VALUES (?, ?, ?, ?)")
UNDO_CONTENT = _numbered(67, "DELETE FROM content WHERE first >= ?")
SET_JSON = _numbered(68, "UPDATE message SET payload = CAST(? AS TEXT) WHERE seq = ?")
SET_BYTES = _numbered(69, "UPDATE message SET payload = ? WHERE seq = ?")
IS_LITTER = """
NOT EXISTS (SELECT 1 FROM message m WHERE m.seq BETWEEN content.first AND content.last
            AND typeof(m.payload) = 'integer')"""
SWEEP = _numbered(
    70,
    f"""
DELETE FROM content WHERE last >= ?1 AND first BETWEEN
    coalesce((SELECT max(first) FROM content WHERE first <= ?1), ?1) AND ?2 AND {IS_LITTER}""",
)
END_CONTENT = _numbered(
    71,
    """
DELETE FROM content WHERE first IN (
    SELECT c.first FROM name n CROSS JOIN content c ON c.first = (SELECT max(first) FROM content WHERE first <= n.seq)
    WHERE n.queue = ? AND c.last >= n.seq)""",
)

# -- messages that do not decode (stores.sqlite.corrupt_rows) ----------------------------------------------------------

MAKE_READABLE = _numbered(72, "UPDATE message SET id = ?, dedup_key = ?, header = ?, payload = ? WHERE seq = ?")
BURY_READY = _numbered(
    73,
    f"""
INSERT INTO life SELECT seq, queue, ?2, 'dead', rank, place, attempt, leases, 0, expires_at, changed_at, '',
    '{Reason.CORRUPT}', 1, 1, grp, target, size
FROM ready WHERE seq = ?1""",
)
BURY_LIFE = _numbered(
    74,
    f"""
UPDATE life SET id = ?2, state = 'dead', due_at = 0, consumer = '', reason = '{Reason.CORRUPT}', repeats = 1
WHERE seq = ?1 AND state IN ('draft', 'delayed', 'held', 'claimed', 'leased')""",
)
SET_CORRUPT_FAILURE = _numbered(
    75,
    f"""
INSERT OR REPLACE INTO failure SELECT seq, '{Reason.CORRUPT}', ?2, changed_at, attempt, '' FROM life
WHERE seq = ?1 AND state = 'dead' AND reason = '{Reason.CORRUPT}'""",
)
END_NAME_OF = _numbered(76, "DELETE FROM name WHERE seq = ?")
ADD_NAME = _numbered(77, "INSERT INTO name (queue, id, seq, place) VALUES (?, ?, ?, ?)")
END_READY_OF = _numbered(78, "DELETE FROM ready WHERE seq = ?")
