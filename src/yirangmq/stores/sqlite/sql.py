"""Queries of the queue tables, and the mapping of rows to values.

The columns of ``life`` have the order of the fields of ``core.message.FeedMessage``, so one tuple serves every
statement: ?1 is seq, ?2 the queue's number, ?4 the state, and so on. Queries of ``fresh`` and ``batch`` are in
``stores.sqlite.runs``, those of ``content`` in ``stores.sqlite.payloads``. Statements that change something are in
``stores.sqlite.statements``."""

from collections.abc import Callable, Sequence
from typing import Any

from yirangmq.core.errors import BadInput, StoreDamaged
from yirangmq.core.message import Envelope, Message, new_envelope, new_message
from yirangmq.core.ports import Page
from yirangmq.core.states import State
from yirangmq.stores.sqlite.statements import COUNTED, Statement, cached_query, seq_statement

_IS_READY = State.READY
Payload = tuple[bytes, bool]
"""Payload bytes, and whether they are JSON."""


class _States(dict[str, State]):
    def __missing__(self, name: str) -> State:
        raise StoreDamaged(f"{name!r} is not the state of a message; see 'yirangmq check' and 'yirangmq repair'")


STATES = _States({state.value: state for state in State})
_LIFE = ", ".join(["grp" if field == "group" else field for field in Message._fields])
_READY = (
    "r.seq, r.queue, m.id, 'ready', r.rank, r.place, r.attempt, r.leases, r.expires_at, r.expires_at, r.changed_at, "
    "r.consumer, r.reason, r.repeats, 1, r.grp, r.target, r.size"
)

LAST_NUMBER = Statement("SELECT last FROM sequence")
QUEUE_BY_NAME = Statement("SELECT n FROM queue WHERE name = ?")
QUEUE_NAME = Statement("SELECT name FROM queue WHERE n = ?")
QUEUE_COUNTS = Statement(f"SELECT n, {', '.join(COUNTED)} FROM queue WHERE name = ?")
QUEUE_SUMS = Statement(f"SELECT {', '.join([f'coalesce(sum({name}), 0)' for name in COUNTED])} FROM queue")
QUEUE_COUNT = Statement("SELECT count(*) FROM queue")
LAST_QUEUE = Statement("SELECT max(n) FROM queue")
POLICY = Statement("SELECT policy FROM queue WHERE name = ?")
QUEUES_WITH_POLICY = Statement("SELECT name FROM queue WHERE policy IS NOT NULL")
NOTE = Statement("SELECT text FROM note WHERE key = ?")
QUEUE_AND_ID = Statement("SELECT queue, id FROM message WHERE seq = ?")
QUEUE_AND_RANK = Statement("SELECT queue, rank FROM message WHERE seq = ?")
SEQ_BY_NAME = Statement("SELECT seq FROM name WHERE queue = ? AND id = ?")
NEWEST_ID = Statement("SELECT max(id) FROM name WHERE queue = ?")
GROUP_FIRST = Statement("SELECT seq FROM member WHERE queue = ? AND grp = ? ORDER BY place LIMIT 1")
QUEUES = Statement("SELECT name FROM queue WHERE name > ? AND name >= ? AND name < ? ORDER BY name LIMIT ?")
FINISHED = Statement("SELECT n, name FROM queue WHERE n > ? AND n <= ? AND done > 0")
NOTES = Statement("SELECT key, text FROM note WHERE key >= ? AND key < ? ORDER BY key")
KEY_HOLDER = Statement("SELECT seq, id FROM dedup WHERE queue = ? AND key = ? AND until > ?")
HEADS = Statement("""
SELECT r.seq, m.id, r.rank, r.place, r.attempt, r.leases, r.expires_at, r.changed_at, r.consumer, r.reason, r.repeats,
    r.grp, r.target, r.size, m.published_at, m.available_at, m.expires_at, m.dedup_key, m.header, m.payload
FROM ready r CROSS JOIN message m ON m.seq = r.seq
WHERE r.queue = ?1 AND r.target = ?3 ORDER BY r.rank, r.place LIMIT ?2""")
READY_PLACES = Statement("SELECT rank, place FROM ready WHERE queue = ? AND target = 0 ORDER BY rank, place LIMIT ?")
READY_SEQS = Statement("SELECT seq FROM ready WHERE queue = ? AND target = ? ORDER BY rank, place LIMIT ?")
IS_ANY_SINGLE = cached_query("SELECT 1 FROM ready WHERE queue = ? AND target IN (0, ?) LIMIT 1", empty_until="ready")
FIRST_SINGLE = Statement("SELECT rank, place FROM ready WHERE queue = ? AND target = ? ORDER BY rank, place LIMIT 1")
HAS_TARGET = Statement("SELECT 1 FROM ready WHERE queue = ? AND target = ? LIMIT 1")
LIFE_BY_SEQ = Statement(f"SELECT {_LIFE} FROM life WHERE seq = ?")
LIFE_BY_SEQS = seq_statement(f"SELECT {_LIFE} FROM life WHERE seq ")
READY_BY_NAME = Statement(f"""
SELECT {_READY} FROM name n CROSS JOIN message m ON m.seq = n.seq
CROSS JOIN ready r ON r.queue = n.queue AND r.target = m.target AND r.rank = m.rank AND r.place = n.place
WHERE n.queue = ? AND n.id = ? AND r.seq = n.seq""")
RANK_BY_NAME = Statement(
    "SELECT m.rank, m.seq FROM name n CROSS JOIN message m ON m.seq = n.seq WHERE n.queue = ? AND n.id = ?"
)
SCAN_READY = cached_query(
    f"""
SELECT {_READY} FROM ready r CROSS JOIN message m ON m.seq = r.seq
WHERE r.queue = ? AND (r.target, r.rank, r.place) > (?, ?, ?) ORDER BY r.target, r.rank, r.place LIMIT ?""",
    empty_until="ready",
)
SCAN_DEAD = Statement(f"""
SELECT {_LIFE} FROM life WHERE queue = ? AND state = ? AND state IN ('dead', 'parked') AND (changed_at, seq) > (?, ?)
ORDER BY changed_at, seq LIMIT ?""")
SCAN_LIFE = Statement(f"SELECT {_LIFE} FROM life WHERE queue = ? AND state = ? AND seq > ? ORDER BY seq LIMIT ?")
DUE = Statement(f"SELECT {_LIFE} FROM life WHERE due_at > 0 AND due_at <= ? ORDER BY due_at LIMIT ?")
AGED = Statement(f"""
SELECT {_READY} FROM ready r CROSS JOIN message m ON m.seq = r.seq
WHERE r.expires_at > 0 AND r.expires_at <= ? ORDER BY r.expires_at LIMIT ?""")
NEXT_DUE = Statement("""
SELECT min(moment) FROM (
    SELECT min(due_at) AS moment FROM life WHERE due_at > 0 UNION ALL
    SELECT min(due_at) FROM batch WHERE due_at > 0 UNION ALL
    SELECT min(expires_at) FROM ready WHERE expires_at > 0)""")
OLDEST_DONE = Statement("""
SELECT changed_at, seq FROM life WHERE queue = ? AND state = 'done' AND body = 1 ORDER BY changed_at LIMIT ?""")
_SENT = "id, rank, published_at, available_at, expires_at, dedup_key, header, payload, grp, target"
ENVELOPES = seq_statement(f"SELECT seq, {_SENT} FROM message WHERE seq ")
PAYLOAD = ["seq", *_SENT.split(", ")].index("payload")
"""Column of ``ENVELOPES``."""
SEQS_BY_NAMES = Statement("""
SELECT n.id, n.seq FROM json_each(?2) wanted CROSS JOIN name n ON n.queue = ?1 AND n.id = wanted.value""")
FAILURE = Statement("SELECT reason_code, reason_message, failed_at, attempt, consumer FROM failure WHERE seq = ?")


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
