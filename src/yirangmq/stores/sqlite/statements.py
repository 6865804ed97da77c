"""SQL statements that change the store, and their numbers in the redo log (``STATEMENTS``, at the end).

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


class Effects(NamedTuple):
    """What the recorder must know of a statement (``stores.sqlite.recorder``). The defaults are those of a query."""

    number: int = 0
    """Number in the redo log; 0: a query, which is not logged."""
    fills: str = ""
    """The table into which the statement may put a row, if queries on that table have a negative cache; "" otherwise.
    A changed row counts as put."""
    is_deferrable: bool = False
    """True if the statement cannot fail and its result is not read: it may be executed later."""
    is_always_logged: bool = False
    """False for UPDATE and DELETE: they are logged only if they have changed a row."""


class Statement(str):
    """Text of a SQL statement, with its effects. Those of statements that change the store are set from the tables at
    the end of this module."""

    effects = Effects()
    empty_until = ""
    """For a query with a negative cache: the only table that it reads. "" for all others."""


def cached_query(text: str, *, empty_until: str) -> Statement:
    """Return a query with a negative cache: its empty result stays valid until a row is put into this table."""
    statement = Statement(text)
    statement.empty_until = empty_until
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


def seq_statement(text: str) -> SeqStatement:
    """Return a query or a change of messages by number; ``text`` ends before the condition on the number."""
    return SeqStatement(Statement(text + _SPAN), Statement(text + _SOME))


# -- queues, counters, notes, keys -------------------------------------------------------------------------------------

RESERVE = Statement("UPDATE sequence SET last = ?")
ADD_QUEUE = Statement("INSERT INTO queue (name) VALUES (?) RETURNING n")
ADD_NEW = Statement("UPDATE queue SET published = published + ?, ready = ready + ?, bytes = bytes + ? WHERE n = ?")
OF_NEW = frozenset({"published", "ready", "bytes"})
"""Counters that change when plain ready messages are published: ``ADD_NEW`` instead of ``ADD_COUNTS``."""
ADD_COUNTS = Statement(f"UPDATE queue SET {', '.join([f'{name} = {name} + ?' for name in COUNTED])} WHERE n = ?")
"""Adds to all counters each time: a separate statement per set of counters would rarely be in the statement cache."""
SET_POLICY = Statement("UPDATE queue SET policy = ? WHERE n = ?")
END_QUEUE = Statement("DELETE FROM queue WHERE n = ?")
END_QUEUE_ROWS = (
    Statement("DELETE FROM failure WHERE seq IN (SELECT seq FROM name WHERE queue = ?)"),
    Statement("DELETE FROM message WHERE seq IN (SELECT seq FROM name WHERE queue = ?)"),
    Statement("DELETE FROM life WHERE seq IN (SELECT seq FROM name WHERE queue = ?)"),
    Statement("DELETE FROM name WHERE queue = ?"),
    Statement("DELETE FROM ready WHERE queue = ?"),
    Statement("DELETE FROM fresh WHERE queue = ?"),
    Statement("DELETE FROM batch WHERE queue = ?"),
    Statement("DELETE FROM member WHERE queue = ?"),
    Statement("DELETE FROM dedup WHERE queue = ?"),
)
"""Deletions of all rows of a queue, in this order. ``failure``, ``message`` and ``life`` are not indexed by queue: a
full scan would be slow."""
SET_NOTE = Statement("INSERT OR REPLACE INTO note VALUES (?, ?)")
END_NOTE = Statement("DELETE FROM note WHERE key = ?")
HOLD_KEY = Statement("INSERT OR REPLACE INTO dedup VALUES (?, ?, ?, ?, ?)")
FREE_KEY = Statement("DELETE FROM dedup WHERE queue = ? AND key = ?")
FORGET_KEYS = Statement(
    "DELETE FROM dedup WHERE (queue, key) IN (SELECT queue, key FROM dedup WHERE until <= ? LIMIT ?)"
)

# -- new messages ------------------------------------------------------------------------------------------------------

INSERT_MESSAGE = Statement("INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")


def _insert_many(count: int) -> Statement:
    """Build an INSERT for ``count`` messages. ?1 is the first message number, ?2 the queue number; rank, times and
    header follow, then id and payload of each message."""
    rows = [f"(?1 + {n}, ?2, ?{n * 2 + 7}, ?3, ?4, ?5, 0, NULL, ?6, ?{n * 2 + 8}, 0, 0)" for n in range(count)]
    return Statement(f"INSERT INTO message VALUES {', '.join(rows)}")


INSERT_MANY = {64: _insert_many(64), 8: _insert_many(8)}
"""Statements that insert many messages that differ only in id and payload, by the number of messages."""
UNDO_MESSAGES = Statement("DELETE FROM message WHERE seq >= ?")
NAME_ONE = Statement("INSERT INTO name VALUES (?, ?, ?, ?)")
NAME_NEW = Statement("INSERT INTO name SELECT queue, id, seq, seq FROM message WHERE seq BETWEEN ? AND ?")
READY_NEW = Statement(
    "INSERT INTO ready SELECT queue, target, rank, seq, seq, 0, 0, expires_at, published_at, '', '', 0, grp, "
    f"{SIZE} FROM message WHERE seq BETWEEN ? AND ? AND available_at <= ?"
)
DELAY_NEW = Statement(
    f"""
INSERT INTO life SELECT seq, queue, id, 'delayed', rank, seq, 0, 0,
    CASE WHEN expires_at BETWEEN 1 AND available_at THEN expires_at ELSE available_at END,
    expires_at, published_at, '', '', 0, 1, grp, target, {SIZE}
FROM message WHERE seq BETWEEN ? AND ? AND available_at > ?""",
)
DRAFT_NEW = Statement(
    f"""
INSERT INTO life SELECT seq, queue, id, 'draft', rank, seq, 0, 0, ?3, expires_at, published_at, '', '', 0, 1, grp,
    target, {SIZE}
FROM message WHERE seq BETWEEN ?1 AND ?2""",
)
MEMBERS_NEW = Statement(
    "INSERT INTO member SELECT queue, grp, seq, seq FROM message WHERE seq BETWEEN ? AND ? AND grp > 0"
)
JOIN_GROUP = Statement("INSERT INTO member VALUES (?, ?, ?, ?)")
LEAVE_GROUP = Statement("DELETE FROM member WHERE queue = ? AND grp = ? AND place = ?")

# -- messages in single rows -------------------------------------------------------------------------------------------

REWRITE = Statement("UPDATE message SET header = ?, payload = ? WHERE seq = ?")
RESIZE_LIVES = seq_statement(f"UPDATE life SET size = (SELECT {SIZE} FROM message m WHERE m.seq = life.seq) WHERE seq ")
RESIZE_READY = Statement("UPDATE ready SET size = ? WHERE queue = ? AND target = ? AND rank = ? AND place = ?")
INSERT_LIFE = Statement(
    "INSERT INTO life VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)"
)
UPDATE_LIFE = Statement(
    """
UPDATE life SET state = ?4, place = ?6, attempt = ?7, leases = ?8, due_at = ?9, expires_at = ?10, changed_at = ?11,
    consumer = ?12, reason = ?13, repeats = ?14, body = ?15, size = ?18
WHERE seq = ?1""",
)
SETTLE_LIFE = seq_statement("UPDATE life SET state = 'done', due_at = ?, changed_at = ?, body = ? WHERE seq ")
START_LIFE = seq_statement("UPDATE life SET state = 'leased', due_at = ?, changed_at = ? WHERE seq ")
REMEMBER_LIFE = seq_statement("UPDATE life SET body = 0, due_at = changed_at + ? WHERE seq ")
END_LIVES = seq_statement("DELETE FROM life WHERE seq ")
INSERT_READY = Statement("INSERT INTO ready VALUES (?2, ?17, ?5, ?6, ?1, ?7, ?8, ?10, ?11, ?12, ?13, ?14, ?16, ?18)")
END_READY = Statement("DELETE FROM ready WHERE queue = ? AND target = ? AND rank = ? AND place = ?")
END_READY_RUN = Statement("DELETE FROM ready WHERE queue = ? AND target = 0 AND rank = ? AND place BETWEEN ? AND ?")
MOVE_NAME = Statement("UPDATE name SET place = ? WHERE queue = ? AND id = ?")
END_NAME = Statement("DELETE FROM name WHERE queue = ? AND id = ?")
END_MESSAGES = seq_statement("DELETE FROM message WHERE seq ")
SET_FAILURE = Statement("INSERT OR REPLACE INTO failure VALUES (?, ?, ?, ?, ?, ?)")
END_FAILURES = seq_statement("DELETE FROM failure WHERE seq ")

# -- runs --------------------------------------------------------------------------------------------------------------

BATCH_COLUMNS = "first, last, queue, rank, state, due_at, changed_at, consumer, body, ids"
ADD_FRESH = Statement("INSERT INTO fresh VALUES (?, ?, ?, ?)")
GROW_FRESH = Statement("UPDATE fresh SET last = ?4 WHERE queue = ?1 AND rank = ?2 AND first = ?3")
BEHEAD_FRESH = Statement("UPDATE fresh SET first = ?4 WHERE queue = ?1 AND rank = ?2 AND first = ?3")
END_FRESH = Statement("DELETE FROM fresh WHERE queue = ? AND rank = ? AND first = ?")
ADD_BATCH = Statement(f"INSERT INTO batch ({BATCH_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
END_BATCH = Statement("DELETE FROM batch WHERE first = ?")
SETTLE_BATCH = Statement(
    "UPDATE batch SET state = ?, due_at = ?, changed_at = ?, consumer = ?, body = ?, ids = ? WHERE first = ?"
)
INSERT_READY_ROW = Statement(
    "INSERT INTO ready SELECT queue, target, rank, seq, seq, 0, 0, expires_at, published_at, '', '', 0, grp, "
    f"{SIZE} FROM message WHERE seq = ?"
)
INSERT_LIFE_ROW = Statement(
    "INSERT OR IGNORE INTO life SELECT seq, queue, id, ?2, rank, seq, 1, 1, ?3, 0, ?4, ?5, '', 0, 1, 0, 0, "
    f"{SIZE} FROM message WHERE seq = ?1",
)

# -- packed payloads ---------------------------------------------------------------------------------------------------

ADD_CONTENT = Statement("INSERT INTO content VALUES (?, ?, ?, ?)")
UNDO_CONTENT = Statement("DELETE FROM content WHERE first >= ?")
SET_JSON = Statement("UPDATE message SET payload = CAST(? AS TEXT) WHERE seq = ?")
SET_BYTES = Statement("UPDATE message SET payload = ? WHERE seq = ?")
IS_LITTER = """
NOT EXISTS (SELECT 1 FROM message m WHERE m.seq BETWEEN content.first AND content.last
            AND typeof(m.payload) = 'integer')"""
SWEEP = Statement(
    f"""
DELETE FROM content WHERE last >= ?1 AND first BETWEEN
    coalesce((SELECT max(first) FROM content WHERE first <= ?1), ?1) AND ?2 AND {IS_LITTER}""",
)
END_CONTENT = Statement(
    """
DELETE FROM content WHERE first IN (
    SELECT c.first FROM name n CROSS JOIN content c ON c.first = (SELECT max(first) FROM content WHERE first <= n.seq)
    WHERE n.queue = ? AND c.last >= n.seq)""",
)

# -- messages that do not decode (stores.sqlite.corrupt_rows) ----------------------------------------------------------

MAKE_READABLE = Statement("UPDATE message SET id = ?, dedup_key = ?, header = ?, payload = ? WHERE seq = ?")
BURY_READY = Statement(
    f"""
INSERT INTO life SELECT seq, queue, ?2, 'dead', rank, place, attempt, leases, 0, expires_at, changed_at, '',
    '{Reason.CORRUPT}', 1, 1, grp, target, size
FROM ready WHERE seq = ?1""",
)
BURY_LIFE = Statement(
    f"""
UPDATE life SET id = ?2, state = 'dead', due_at = 0, consumer = '', reason = '{Reason.CORRUPT}', repeats = 1
WHERE seq = ?1 AND state IN ('draft', 'delayed', 'held', 'claimed', 'leased')""",
)
SET_CORRUPT_FAILURE = Statement(
    f"""
INSERT OR REPLACE INTO failure SELECT seq, '{Reason.CORRUPT}', ?2, changed_at, attempt, '' FROM life
WHERE seq = ?1 AND state = 'dead' AND reason = '{Reason.CORRUPT}'""",
)
END_NAME_OF = Statement("DELETE FROM name WHERE seq = ?")
ADD_NAME = Statement("INSERT INTO name (queue, id, seq, place) VALUES (?, ?, ?, ?)")
END_READY_OF = Statement("DELETE FROM ready WHERE seq = ?")

# -- numbers in the redo log -------------------------------------------------------------------------------------------

STATEMENTS: dict[int, Statement] = {
    1: RESERVE,
    2: ADD_QUEUE,
    3: ADD_NEW,
    4: ADD_COUNTS,
    5: SET_POLICY,
    6: END_QUEUE,
    **dict(enumerate(END_QUEUE_ROWS, 7)),
    16: SET_NOTE,
    17: END_NOTE,
    18: HOLD_KEY,
    19: FREE_KEY,
    20: FORGET_KEYS,
    21: INSERT_MESSAGE,
    22: INSERT_MANY[64],
    23: INSERT_MANY[8],
    24: UNDO_MESSAGES,
    25: NAME_ONE,
    26: NAME_NEW,
    27: READY_NEW,
    28: DELAY_NEW,
    29: DRAFT_NEW,
    30: MEMBERS_NEW,
    31: JOIN_GROUP,
    32: LEAVE_GROUP,
    33: REWRITE,
    34: RESIZE_LIVES.span,
    35: RESIZE_LIVES.some,
    36: RESIZE_READY,
    37: INSERT_LIFE,
    38: UPDATE_LIFE,
    39: SETTLE_LIFE.span,
    40: SETTLE_LIFE.some,
    41: START_LIFE.span,
    42: START_LIFE.some,
    43: REMEMBER_LIFE.span,
    44: REMEMBER_LIFE.some,
    45: END_LIVES.span,
    46: END_LIVES.some,
    47: INSERT_READY,
    48: END_READY,
    49: END_READY_RUN,
    50: MOVE_NAME,
    51: END_NAME,
    52: END_MESSAGES.span,
    53: END_MESSAGES.some,
    54: SET_FAILURE,
    55: END_FAILURES.span,
    56: END_FAILURES.some,
    57: ADD_FRESH,
    58: GROW_FRESH,
    59: BEHEAD_FRESH,
    60: END_FRESH,
    61: ADD_BATCH,
    62: END_BATCH,
    63: SETTLE_BATCH,
    64: INSERT_READY_ROW,
    65: INSERT_LIFE_ROW,
    66: ADD_CONTENT,
    67: UNDO_CONTENT,
    68: SET_JSON,
    69: SET_BYTES,
    70: SWEEP,
    71: END_CONTENT,
    72: MAKE_READABLE,
    73: BURY_READY,
    74: BURY_LIFE,
    75: SET_CORRUPT_FAILURE,
    76: END_NAME_OF,
    77: ADD_NAME,
    78: END_READY_OF,
}
"""Every statement of the redo log by its number."""

_DEFERRABLE = (ADD_NEW, ADD_COUNTS, INSERT_MESSAGE, NAME_ONE, ADD_FRESH, GROW_FRESH, ADD_BATCH, SETTLE_BATCH)
_FILLS = {
    **dict.fromkeys((READY_NEW, RESIZE_READY, INSERT_READY, INSERT_READY_ROW), "ready"),
    **dict.fromkeys((ADD_FRESH, GROW_FRESH, BEHEAD_FRESH), "fresh"),
}
"""The table into which a statement may put a row; only tables of queries with a negative cache."""

for _number, _statement in STATEMENTS.items():
    _is_insert = _statement.lstrip().startswith("INSERT")
    _statement.effects = Effects(_number, _FILLS.get(_statement, ""), _statement in _DEFERRABLE, _is_insert)
