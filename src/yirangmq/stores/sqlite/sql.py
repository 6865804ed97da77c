"""SQL statements of the queue tables, and the mapping of rows to values.

The columns of ``life`` have the order of the fields of ``core.message.FeedMessage``, so one tuple serves every
statement: ?1 is seq, ?2 the queue's number, ?4 the state, and so on. Statements on ``fresh`` and ``batch`` are in
``stores.sqlite.runs``, those on ``content`` in ``stores.sqlite.payloads``."""

from collections.abc import Callable, Sequence
from typing import Any

from yirangmq.core.errors import BadInput, StoreDamaged
from yirangmq.core.message import Counts, Envelope, Message, new_envelope, new_message
from yirangmq.core.ports import Page
from yirangmq.core.states import State
from yirangmq.format.json_codec import dumps
from yirangmq.stores.sqlite.payloads import SIZE

COUNTED = Counts._fields
_IS_READY = State.READY
Payload = tuple[bytes, bool]
"""Payload bytes, and whether they are JSON."""
ADD_COUNTS = f"UPDATE queue SET {', '.join(f'{name} = {name} + ?' for name in COUNTED)} WHERE n = ?"
"""Adds to all counters each time: a separate statement per set of counters would rarely be in the statement cache."""
OF_NEW = frozenset({"published", "ready", "bytes"})
"""Counters that change when plain ready messages are published."""
ADD_NEW = "UPDATE queue SET published = published + ?, ready = ready + ?, bytes = bytes + ? WHERE n = ?"


class _States(dict[str, State]):
    def __missing__(self, name: str) -> State:
        raise StoreDamaged(f"{name!r} is not the state of a message; see 'yirangmq check' and 'yirangmq repair'")


STATES = _States({state.value: state for state in State})
_LIFE = ", ".join("grp" if field == "group" else field for field in Message._fields)
_READY = (
    "r.seq, r.queue, m.id, 'ready', r.rank, r.place, r.attempt, r.leases, r.expires_at, r.expires_at, r.changed_at, "
    "r.consumer, r.reason, r.repeats, 1, r.grp, r.target, r.size"
)

INSERT_MESSAGE = "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
ROWS_PER_INSERT = (64, 8)
"""Numbers of messages that one statement inserts, if they differ only in id and payload."""


def _insert_many(count: int) -> str:
    """Build an INSERT for ``count`` messages. ?1 is the first message number, ?2 the queue number; rank, times and
    header follow, then id and payload of each message."""
    rows = [f"(?1 + {n}, ?2, ?{n * 2 + 7}, ?3, ?4, ?5, 0, NULL, ?6, ?{n * 2 + 8}, 0, 0)" for n in range(count)]
    return f"INSERT INTO message VALUES {', '.join(rows)}"


INSERT_MANY = {count: _insert_many(count) for count in ROWS_PER_INSERT}
NAME_NEW = "INSERT INTO name SELECT queue, id, seq, seq FROM message WHERE seq BETWEEN ? AND ?"
NAME_ONE = "INSERT INTO name VALUES (?, ?, ?, ?)"
READY_NEW = f"""
INSERT INTO ready SELECT queue, target, rank, seq, seq, 0, 0, expires_at, published_at, '', '', 0, grp,
    {SIZE}
FROM message WHERE seq BETWEEN ? AND ? AND available_at <= ?"""
DELAY_NEW = f"""
INSERT INTO life SELECT seq, queue, id, 'delayed', rank, seq, 0, 0,
    CASE WHEN expires_at BETWEEN 1 AND available_at THEN expires_at ELSE available_at END,
    expires_at, published_at, '', '', 0, 1, grp, target, {SIZE}
FROM message WHERE seq BETWEEN ? AND ? AND available_at > ?"""
DRAFT_NEW = f"""
INSERT INTO life SELECT seq, queue, id, 'draft', rank, seq, 0, 0, ?3, expires_at, published_at, '', '', 0, 1, grp,
    target, {SIZE}
FROM message WHERE seq BETWEEN ?1 AND ?2"""
MEMBERS_NEW = "INSERT INTO member SELECT queue, grp, seq, seq FROM message WHERE seq BETWEEN ? AND ? AND grp > 0"
JOIN_GROUP = "INSERT INTO member VALUES (?, ?, ?, ?)"
LEAVE_GROUP = "DELETE FROM member WHERE queue = ? AND grp = ? AND place = ?"
GROUP_FIRST = "SELECT seq FROM member WHERE queue = ? AND grp = ? ORDER BY place LIMIT 1"
REWRITE = "UPDATE message SET header = ?, payload = ? WHERE seq = ?"
RESIZE_LIVES = f"""
UPDATE life SET size = (SELECT {SIZE} FROM message m WHERE m.seq = life.seq)
WHERE seq """
RESIZE_READY = "UPDATE ready SET size = ? WHERE queue = ? AND target = ? AND rank = ? AND place = ?"
QUEUES = "SELECT name FROM queue WHERE name > ? AND name >= ? AND name < ? ORDER BY name LIMIT ?"
FINISHED = "SELECT n, name FROM queue WHERE n > ? AND n <= ? AND done > 0"
NOTES = "SELECT key, text FROM note WHERE key >= ? AND key < ? ORDER BY key"
KEY_HOLDER = "SELECT seq, id FROM dedup WHERE queue = ? AND key = ? AND until > ?"
HOLD_KEY = "INSERT OR REPLACE INTO dedup VALUES (?, ?, ?, ?, ?)"
FORGET_KEYS = "DELETE FROM dedup WHERE (queue, key) IN (SELECT queue, key FROM dedup WHERE until <= ? LIMIT ?)"
FREE_KEY = "DELETE FROM dedup WHERE queue = ? AND key = ?"

INSERT_LIFE = (
    "INSERT INTO life VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)"
)
UPDATE_LIFE = """
UPDATE life SET state = ?4, place = ?6, attempt = ?7, leases = ?8, due_at = ?9, expires_at = ?10, changed_at = ?11,
    consumer = ?12, reason = ?13, repeats = ?14, body = ?15, size = ?18
WHERE seq = ?1"""
SETTLE_LIFE = "UPDATE life SET state = 'done', due_at = ?, changed_at = ?, body = ? WHERE seq "
START_LIFE = "UPDATE life SET state = 'leased', due_at = ?, changed_at = ? WHERE seq "
REMEMBER_LIFE = "UPDATE life SET body = 0, due_at = changed_at + ? WHERE seq "
END_LIVES = "DELETE FROM life WHERE seq "
END_LIFE = "DELETE FROM life WHERE seq = ?"
INSERT_READY = "INSERT INTO ready VALUES (?2, ?17, ?5, ?6, ?1, ?7, ?8, ?10, ?11, ?12, ?13, ?14, ?16, ?18)"
END_READY = "DELETE FROM ready WHERE queue = ? AND target = ? AND rank = ? AND place = ?"
END_READY_RUN = "DELETE FROM ready WHERE queue = ? AND target = 0 AND rank = ? AND place BETWEEN ? AND ?"
MOVE_NAME = "UPDATE name SET place = ? WHERE queue = ? AND id = ?"
END_NAME = "DELETE FROM name WHERE queue = ? AND id = ?"
END_MESSAGES = "DELETE FROM message WHERE seq "
SET_FAILURE = "INSERT OR REPLACE INTO failure VALUES (?, ?, ?, ?, ?, ?)"
END_FAILURES = "DELETE FROM failure WHERE seq "

HEADS = """
SELECT r.seq, m.id, r.rank, r.place, r.attempt, r.leases, r.expires_at, r.changed_at, r.consumer, r.reason, r.repeats,
    r.grp, r.target, r.size, m.published_at, m.available_at, m.expires_at, m.dedup_key, m.header, m.payload
FROM ready r CROSS JOIN message m ON m.seq = r.seq
WHERE r.queue = ?1 AND r.target = ?3 ORDER BY r.rank, r.place LIMIT ?2"""
READY_PLACES = "SELECT rank, place FROM ready WHERE queue = ? AND target = 0 ORDER BY rank, place LIMIT ?"
READY_SEQS = "SELECT seq FROM ready WHERE queue = ? AND target = ? ORDER BY rank, place LIMIT ?"
IS_ANY_SINGLE = "SELECT 1 FROM ready WHERE queue = ? AND target IN (0, ?) LIMIT 1"
FIRST_SINGLE = "SELECT rank, place FROM ready WHERE queue = ? AND target = ? ORDER BY rank, place LIMIT 1"
HAS_TARGET = "SELECT 1 FROM ready WHERE queue = ? AND target = ? LIMIT 1"
LIFE_BY_SEQ = f"SELECT {_LIFE} FROM life WHERE seq = ?"
LIFE_BY_SEQS = f"SELECT {_LIFE} FROM life WHERE seq "
READY_BY_NAME = f"""
SELECT {_READY} FROM name n CROSS JOIN message m ON m.seq = n.seq
CROSS JOIN ready r ON r.queue = n.queue AND r.target = m.target AND r.rank = m.rank AND r.place = n.place
WHERE n.queue = ? AND n.id = ? AND r.seq = n.seq"""
RANK_BY_NAME = "SELECT m.rank, m.seq FROM name n CROSS JOIN message m ON m.seq = n.seq WHERE n.queue = ? AND n.id = ?"
SCAN_READY = f"""
SELECT {_READY} FROM ready r CROSS JOIN message m ON m.seq = r.seq
WHERE r.queue = ? AND (r.target, r.rank, r.place) > (?, ?, ?) ORDER BY r.target, r.rank, r.place LIMIT ?"""
SCAN_DEAD = f"""
SELECT {_LIFE} FROM life WHERE queue = ? AND state = ? AND state IN ('dead', 'parked') AND (changed_at, seq) > (?, ?)
ORDER BY changed_at, seq LIMIT ?"""
SCAN_LIFE = f"SELECT {_LIFE} FROM life WHERE queue = ? AND state = ? AND seq > ? ORDER BY seq LIMIT ?"
DUE = f"SELECT {_LIFE} FROM life WHERE due_at > 0 AND due_at <= ? ORDER BY due_at LIMIT ?"
AGED = f"""
SELECT {_READY} FROM ready r CROSS JOIN message m ON m.seq = r.seq
WHERE r.expires_at > 0 AND r.expires_at <= ? ORDER BY r.expires_at LIMIT ?"""
NEXT_DUE = """
SELECT min(moment) FROM (
    SELECT min(due_at) AS moment FROM life WHERE due_at > 0 UNION ALL
    SELECT min(due_at) FROM batch WHERE due_at > 0 UNION ALL
    SELECT min(expires_at) FROM ready WHERE expires_at > 0)"""
OLDEST_DONE = """
SELECT changed_at, seq FROM life WHERE queue = ? AND state = 'done' AND body = 1 ORDER BY changed_at LIMIT ?"""
_SENT = "id, rank, published_at, available_at, expires_at, dedup_key, header, payload, grp, target"
ENVELOPES = f"SELECT seq, {_SENT} FROM message WHERE seq "
PAYLOAD = ["seq", *_SENT.split(", ")].index("payload")
"""Column of ``ENVELOPES``."""
SEQS_BY_NAMES = """
SELECT n.id, n.seq FROM json_each(?2) wanted CROSS JOIN name n ON n.queue = ?1 AND n.id = wanted.value"""
FAILURE = "SELECT reason_code, reason_message, failed_at, attempt, consumer FROM failure WHERE seq = ?"


def among(seqs: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
    """Return the rest of a statement that ends in "seq ", with its bindings. Numbers used together are usually
    consecutive, which needs one BETWEEN."""
    low, high = min(seqs), max(seqs)
    if high - low + 1 == len(seqs) == len(set(seqs)):
        return "BETWEEN ? AND ?", (low, high)
    return "IN (SELECT value FROM json_each(?))", (dumps(list(seqs)).decode(),)


def message_of(row: Sequence[Any], queue: str) -> Message:
    """Convert a row in the order of ``FeedMessage``; ``queue`` replaces the queue number."""
    return new_message((row[0], queue, row[2], STATES[row[3]], *row[4:14], row[14] == 1, *row[15:]))


def head_of(row: Sequence[Any], queue: str, sent: Payload) -> tuple[Message, Envelope]:
    """Convert a row of ``HEADS``; ``sent``: the decoded payload of its last column."""
    (seq, id, rank, place, attempt, leases, expires, changed, consumer, reason, repeats) = row[:11]
    group, target, size, published, available, sent_expires, key, header, _ = row[11:]
    card = (
        seq,
        queue,
        id,
        _IS_READY,
        rank,
        place,
        attempt,
        leases,
        expires,
        expires,
        changed,
        consumer,
        reason,
        repeats,
    )
    envelope = (queue, id, rank, published, available, sent_expires, key, header, *sent, group, target)
    return new_message((*card, True, group, target, size)), new_envelope(envelope)


def envelope_of(row: Sequence[Any], queue: str, sent: Payload) -> Envelope:
    """Convert a row of ``ENVELOPES``; ``sent``: its decoded column ``payload``."""
    _, id, rank, published, available, expires, key, header, _, group, target = row
    return new_envelope((queue, id, rank, published, available, expires, key, header, *sent, group, target))


def message_rows(
    first: int, queue: int, envelopes: Sequence[Envelope], column: Sequence[int | str | bytes]
) -> list[tuple[Any, ...]]:
    """Build rows of ``message`` numbered from ``first``; ``column``: the values of the column ``payload``."""
    sent = zip(range(first, first + len(envelopes)), envelopes, column, strict=True)
    return [
        (seq, queue, id, rank, published, available, expires, key, header, payload, group, target)
        for seq, (_, id, rank, published, available, expires, key, header, _, _, group, target), payload in sent
    ]


def read_cursor(cursor: str, parts: int = 2) -> tuple[int, ...]:
    """Parse the numbers of a cursor; numbers missing at its beginning are 0. An empty cursor gives -1 for each."""
    if not cursor:
        return -1, *[-1] * (parts - 1)
    try:
        numbers = [int(part) for part in cursor.split(".")]
        if not 2 <= len(numbers) <= parts:
            raise ValueError
        return *[0] * (parts - len(numbers)), *numbers
    except ValueError:
        raise BadInput(f"{cursor!r} is not a cursor of this listing", field="cursor") from None


def page_of(found: list[Message], limit: int, place: Callable[[Message], tuple[int, ...]]) -> Page:
    """Build a page; ``place`` gives the numbers of the cursor after the last message. A short page is the last one."""
    if len(found) < limit or not found:
        return Page(found, "")
    return Page(found, ".".join(map(str, place(found[-1]))))
