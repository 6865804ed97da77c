"""Consistency check of a SQLite store, and repair of all damage that can be repaired without guessing.

Damage that ``PRAGMA integrity_check`` finds, or text that does not decode, is reported as ``damaged`` and not changed:
``stores.sqlite.salvage`` rebuilds the file. The other checks run in one transaction:

- Runs: all messages between the bounds of a row of ``fresh`` or ``batch`` exist, and no other row holds them. A run
  that breaks this rule is cut; a message then in no state is found by a later check and made ready again.
- Payload rows: rows do not overlap, and each is used by at least one message.
- Messages: rows that no longer decode (``corrupt_rows``); no state, two states, no content, no name.
- Groups and counters: compared with the messages."""

from collections.abc import Iterator
from itertools import pairwise

import apsw

from yirangmq.core.errors import BadInput
from yirangmq.core.ports import CheckProgress, Finding, no_progress
from yirangmq.core.states import State
from yirangmq.format.json_codec import loads
from yirangmq.stores.sqlite.cache import BatchRow, Span
from yirangmq.stores.sqlite.corrupt_rows import move_to_dead_letters, unreadable
from yirangmq.stores.sqlite.runs import Runs, spans
from yirangmq.stores.sqlite.statements import IS_LITTER, SIZE
from yirangmq.stores.sqlite.writes import BATCH_STATES

# -- packed payloads ---------------------------------------------------------------------------------------------------

_OVERLAPPING_CONTENT = """
SELECT first, last, next FROM (SELECT first, last, lead(first) OVER (ORDER BY first) AS next FROM content)
WHERE last >= next"""
_LITTER = f"SELECT first, last FROM content WHERE {IS_LITTER}"


def overlapping(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Check for overlapping rows of ``content``. Readers use the later row, so the repair cuts the earlier one."""
    for first, last, following in list(db.execute(_OVERLAPPING_CONTENT)):
        if repair:
            db.execute("UPDATE content SET last = ? WHERE first = ?", (following - 1, first))
        yield Finding("torn", f"{first}-{last}", f"payloads up to {last}, and others from {following} on; cut", repair)


def littered(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Check for rows of ``content`` that no message uses."""
    for first, last in list(db.execute(_LITTER)):
        if repair:
            db.execute("DELETE FROM content WHERE first = ?", (first,))
        yield Finding("litter", f"{first}-{last}", "payloads without a message; dropped", repair)


# -- runs --------------------------------------------------------------------------------------------------------------

COUNTED = "coalesce(sum(last - first + 1), 0)"
"""SQL expression for the number of messages in rows of ``fresh`` or ``batch``."""
WEIGHED = f"""
SELECT coalesce(sum({SIZE}), 0) FROM {{}} CROSS JOIN message w
ON w.seq BETWEEN r.first AND r.last WHERE {{}}"""
"""Template of a query for the bytes of messages in runs; the parameters are the table as ``r``, and a condition."""
_IN_FRESH = """
coalesce((SELECT last FROM fresh f WHERE f.queue = m.queue AND f.rank = m.rank AND f.first <= m.seq
          ORDER BY f.first DESC LIMIT 1), 0) >= m.seq"""
_IN_BATCH = """
coalesce((SELECT last FROM batch b WHERE b.first <= m.seq ORDER BY b.first DESC LIMIT 1), 0) >= m.seq"""
IN_RUN = f"{_IN_FRESH} OR {_IN_BATCH}"
"""SQL condition: message ``m`` is in a run."""
_OVERLAPPING = """
SELECT queue, rank, first, last FROM
    (SELECT *, max(last) OVER (PARTITION BY queue, rank ORDER BY first ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
        AS before FROM fresh)
WHERE first > last OR before >= first"""
_BATCHES = "SELECT first, last, queue, rank, state, due_at, changed_at, consumer, body, ids FROM batch ORDER BY first"
_FRESH = "SELECT queue, rank, first, last FROM fresh"
_STRANGERS = """
SELECT r.queue, r.rank, m.seq, m.id FROM fresh r CROSS JOIN message m ON m.seq BETWEEN r.first AND r.last
WHERE (m.queue, m.rank, m.target, m.grp, m.expires_at) != (r.queue, r.rank, 0, 0, 0)"""
_DOUBLES = {
    "in line": f"SELECT m.seq, m.queue, m.rank FROM ready m WHERE {IN_RUN}",
    "in another state": f"SELECT m.seq, m.queue, m.rank FROM life m WHERE {IN_RUN}",
    "in hand": f"SELECT m.seq, m.queue, m.rank FROM message m WHERE {_IN_FRESH} AND {_IN_BATCH}",
}


def torn(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Check all rows of ``fresh`` and ``batch``."""
    for run_check in (_misshapen, _strangers, _gaps, _doubles):
        yield from run_check(db, repair)


def _misshapen(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Check for rows of ``fresh`` and ``batch`` that are invalid, or overlap others of their table."""
    for queue, rank, first, last in list(db.execute(_OVERLAPPING)):
        if repair:
            db.execute("DELETE FROM fresh WHERE queue = ? AND rank = ? AND first = ?", (queue, rank, first))
        yield Finding("torn", f"{first}-{last}", "an impossible range of the ready index; rebuilt", repair)
    end = 0
    for batch in [BatchRow(*row) for row in db.execute(_BATCHES)]:
        if batch.first > end and _is_whole(batch):
            end = batch.last
            continue
        if repair:
            _dissolve(db, batch)
        yield Finding("torn", f"{batch.first}-{batch.last}", "a batch that cannot be; taken apart", repair)


def _is_whole(batch: BatchRow) -> bool:
    if batch.first > batch.last:
        return False
    if batch.state == State.LEASED or (batch.body and batch.ids is None):
        return batch.body == 1 and batch.ids is None and batch.state in BATCH_STATES
    try:
        return batch.state == State.DONE and len(loads((batch.ids or "").encode())) == batch.size
    except (BadInput, TypeError):
        return False


def _dissolve(db: apsw.Connection, batch: BatchRow) -> None:
    """Delete an invalid batch. Messages of a done batch stay done; a later check makes the others ready again."""
    db.execute("DELETE FROM batch WHERE first = ?", (batch.first,))
    if batch.state == State.DONE:
        for (seq,) in list(db.execute("SELECT seq FROM message WHERE seq BETWEEN ? AND ?", (batch.first, batch.last))):
            Runs(db).insert_single_row(seq, batch)


def _strangers(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Check for messages in a row of ``fresh`` of another queue or rank, or that must not be in a run at all."""
    for queue, rank, seq, id in list(db.execute(_STRANGERS)):
        if repair:
            Runs(db).remove_ready(queue, rank, [seq])
        yield Finding("torn", id, "is in a range of the ready index to which it does not belong; rebuilt", repair)


def _gaps(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Check for numbers in runs without a message."""
    runs = Runs(db)
    for queue, rank, *run in list(db.execute(_FRESH)):
        for first, last in _missing(db, run[0], run[1]):
            if repair:
                runs.cut_fresh(queue, rank, first, last)
            yield Finding("bodiless", f"{first}-{last}", "are in the ready index without content; removed", repair)
    for batch in [BatchRow(*row) for row in db.execute(_BATCHES)]:
        if batch.body:
            for first, last in _missing(db, batch.first, batch.last):
                if repair:
                    runs.cut(first, last)
                    db.execute("DELETE FROM name WHERE seq BETWEEN ? AND ?", (first, last))
                yield Finding("bodiless", f"{first}-{last}", "are leased without content; removed", repair)


def _missing(db: apsw.Connection, first: int, last: int) -> list[Span]:
    """Return the parts of a span without messages."""
    there = [row[0] for row in db.execute("SELECT seq FROM message WHERE seq BETWEEN ? AND ?", (first, last))]
    if len(there) == last - first + 1:
        return []
    filled = [(first - 1, first - 1), *spans(there), (last + 1, last + 1)]
    return [(one[1] + 1, other[0] - 1) for one, other in pairwise(filled) if one[1] + 1 < other[0]]


def _doubles(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Check for messages that are in a run and in another row."""
    for where, statement in _DOUBLES.items():
        for seq, queue, rank in list(db.execute(statement)):
            if repair:
                runs = Runs(db)
                if not runs.remove_ready(queue, rank, [seq]):
                    runs.cut(seq, seq)
            yield Finding("twice", str(seq), f"in a run, and {where}; taken out of the run", repair)


# -- the file, messages, groups and counters ---------------------------------------------------------------------------

DAMAGED = "damaged"
"""Kind of a finding that only salvage into a new file repairs."""
UNKNOWN_FENCE = 1_000_000
"""Lease count for a message that lost its count. It is more than the message can have had, so that no old lease id
becomes valid again."""

_RECOUNT = f"""
SELECT (SELECT count(*) FROM ready WHERE queue = q.n) + (SELECT {COUNTED} FROM fresh WHERE queue = q.n),
       {{states}},
       (SELECT count(*) FROM life WHERE queue = q.n AND state = 'done' AND body = 1)
           + (SELECT {COUNTED} FROM batch WHERE queue = q.n AND state = 'done' AND body = 1),
       (SELECT coalesce(sum(size), 0) FROM ready WHERE queue = q.n)
           + (SELECT coalesce(sum(size), 0) FROM life
              WHERE queue = q.n AND state IN ('delayed', 'held', 'claimed', 'leased'))
           + ({WEIGHED.format("fresh r", "r.queue = q.n")})
           + ({WEIGHED.format("batch r", "r.queue = q.n AND r.state = 'leased'")})
FROM queue q WHERE q.n = ?"""
_LEAST = f"""
SELECT (SELECT count(*) FROM ready WHERE queue = q.n) + (SELECT {COUNTED} FROM fresh WHERE queue = q.n)
           + (SELECT count(*) FROM life WHERE queue = q.n AND state NOT IN ('draft', 'dropped'))
           + (SELECT {COUNTED} FROM batch WHERE queue = q.n),
       (SELECT count(*) FROM life WHERE queue = q.n AND state = 'done')
           + (SELECT {COUNTED} FROM batch WHERE queue = q.n AND state = 'done'),
       published, acked, name
FROM queue q WHERE q.n = ?"""
"""Minimum of the totals: every stored message was published, and every done message was acked. The totals may be
higher, because they include messages that were deleted."""
_LIVING = ("draft", "delayed", "held", "claimed", "leased", "dead", "parked")
_NARROW = {
    **dict.fromkeys(("queue", "name", "ready", "fresh", "life", "batch", "member", "dedup", "failure", "note"), "*"),
    "message": "id, dedup_key",
}
_STATES = ", ".join(f"'{state}'" for state in State if state is not State.READY)
_STATELESS = f"SELECT seq, id, state FROM life WHERE state NOT IN ({_STATES})"
_NOWHERE = f"""
SELECT seq, queue, id FROM message m
WHERE seq NOT IN (SELECT seq FROM ready) AND seq NOT IN (SELECT seq FROM life) AND NOT ({IN_RUN})"""
_TWICE = "SELECT seq FROM ready WHERE seq IN (SELECT seq FROM life)"
_BODILESS_READY = "SELECT queue, target, rank, place, seq FROM ready WHERE seq NOT IN (SELECT seq FROM message)"
_BODILESS_LIFE = "SELECT seq, id FROM life WHERE body = 1 AND seq NOT IN (SELECT seq FROM message)"
_NAMELESS = """
SELECT queue, id, seq, coalesce((SELECT place FROM ready WHERE seq = m.seq), seq) FROM message m
WHERE NOT EXISTS (SELECT 1 FROM name n WHERE n.queue = m.queue AND n.id = m.id)"""
_DOUBLED = """
SELECT queue, target, rank, place, seq
FROM (SELECT *, row_number() OVER (PARTITION BY seq ORDER BY place) AS n FROM ready) WHERE n > 1"""
_READY_AGAIN = f"""
INSERT INTO ready SELECT queue, target, rank, ?2, seq, 0, {UNKNOWN_FENCE}, 0, published_at, '', '', 0, grp,
    {SIZE}
FROM message WHERE seq = ?1"""
_TAKEN = "SELECT 1 FROM ready JOIN message m USING (queue, target, rank) WHERE m.seq = ?1 AND place = ?1"
_END_READY = "DELETE FROM ready WHERE queue = ? AND target = ? AND rank = ? AND place = ?"
_MEMBERS = """
SELECT queue, grp, place, seq FROM ready WHERE grp > 0 UNION ALL
SELECT queue, grp, place, seq FROM life WHERE grp > 0 AND state IN ('delayed', 'held', 'claimed', 'leased')"""
_MISGROUPED = f"""
SELECT (SELECT count(*) FROM (SELECT * FROM member EXCEPT {_MEMBERS.replace("UNION ALL", "EXCEPT")}))
     + (SELECT count(*) FROM ({_MEMBERS}) WHERE (queue, grp, place, seq) NOT IN (SELECT * FROM member))"""
_STUCK = """
SELECT l.seq, l.id FROM (SELECT queue, grp, min(place), seq FROM member GROUP BY queue, grp) f JOIN life l USING (seq)
WHERE l.state = 'held'"""
_FREE = """
INSERT INTO ready SELECT queue, target, rank, place, seq, attempt, leases, expires_at, changed_at, consumer, reason,
    repeats, grp, size
FROM life WHERE seq = ?"""


def check(db: apsw.Connection, *, repair: bool, progress: CheckProgress = no_progress) -> Iterator[Finding]:
    """Run all checks in one transaction; repair each finding if ``repair`` is set. A ``DAMAGED`` file is reported and
    not changed."""
    damage = _damage(db, progress)
    if damage:
        yield from (Finding(DAMAGED, "file", text) for text in damage)
        return
    db.execute("BEGIN IMMEDIATE" if repair else "BEGIN")
    try:
        findings: list[Finding] = []
        for number, run_check in enumerate(_CHECKS, 1):
            progress(f"consistency, step {number} of {len(_CHECKS)}", 0, 0)
            findings.extend(run_check(db, repair))
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    yield from findings


def _damage(db: apsw.Connection, progress: CheckProgress) -> list[str]:
    """Return the lines that SQLite reports about its pages, or the tables with text that does not decode."""
    progress("pages and indexes", 0, 0)
    try:
        reported = [row[0] for row in db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
    except (apsw.CorruptError, apsw.SQLError) as error:
        reported = [str(error)]
    found = [line for text in reported for line in text.splitlines() if not line.startswith("***")]
    if found:
        return found
    for table, columns in _NARROW.items():
        progress(f"table {table}", 0, 0)
        try:
            for _ in db.execute(f"SELECT {columns} FROM {table}"):
                pass
        except UnicodeDecodeError:
            found.append(f"table {table} contains invalid text")
    return found


def insert_ready(db: apsw.Connection, seq: int) -> int:
    """Insert a row into ``ready`` for a message at its original place, or at the end if that place is taken. Return the
    place."""
    place = seq
    if db.execute(_TAKEN, (seq,)).fetchone() is not None:
        place = next(db.execute("UPDATE sequence SET last = last + 1 RETURNING last"))[0]
    db.execute(_READY_AGAIN, (seq, place))
    return place


def _unreadable(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Check for messages with bytes that do not decode."""
    for sent in list(unreadable(db)):
        if repair:
            move_to_dead_letters(db, sent)
        yield Finding("unreadable", sent.id, f"{sent.damage}; dead as CORRUPT, its payload as bytes", repair)


def _misplaced(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Check that each message is in exactly one valid state, and can be found by its id."""
    for seq, id, state in list(db.execute(_STATELESS)):
        if repair:
            db.execute("DELETE FROM life WHERE seq = ?", (seq,))
        yield Finding("stateless", id, f"{state!r} is not a state; forgotten", repair)
    for *place, seq in list(db.execute(_DOUBLED)):
        if repair:
            db.execute(_END_READY, place)
        yield Finding("twice", str(seq), "is twice in the ready index; the first position is kept", repair)
    for seq, queue, id in list(db.execute(_NOWHERE)):
        if repair:
            place = insert_ready(db, seq)
            db.execute("UPDATE name SET place = ? WHERE queue = ? AND id = ?", (place, queue, id))
        yield Finding("nowhere", id, "a message in no state; made ready again", repair)
    for (seq,) in list(db.execute(_TWICE)):
        if repair:
            db.execute("DELETE FROM ready WHERE seq = ?", (seq,))
        yield Finding("twice", str(seq), "in two states; the later one is kept", repair)
    for queue, id, seq, place in list(db.execute(_NAMELESS)):
        if repair:
            db.execute("INSERT INTO name VALUES (?, ?, ?, ?)", (queue, id, seq, place))
        yield Finding("nameless", id, "cannot be found by its id; named again", repair)


def _bodiless(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Check for states without a row of ``message``."""
    for *place, seq in list(db.execute(_BODILESS_READY)):
        if repair:
            db.execute(_END_READY, place)
        yield Finding("bodiless", str(seq), "is in the ready index without content; removed", repair)
    for seq, id in list(db.execute(_BODILESS_LIFE)):
        if repair:
            db.execute("UPDATE life SET body = 0, state = 'dropped' WHERE seq = ?", (seq,))
        yield Finding("bodiless", id, "its content is gone; remembered by id only", repair)


def _misgrouped(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Compare the table ``member`` with the messages, and check for held messages that are first of their group."""
    wrong = next(db.execute(_MISGROUPED))[0]
    if wrong:
        if repair:
            db.execute("DELETE FROM member")
            db.execute(f"INSERT OR IGNORE INTO member {_MEMBERS}")
        yield Finding("misgrouped", "member", f"{wrong} positions in groups do not match the messages; rebuilt", repair)
    for seq, id in list(db.execute(_STUCK)):
        if repair:
            db.execute(_FREE, (seq,))
            db.execute("UPDATE name SET place = (SELECT place FROM life WHERE seq = ?1) WHERE seq = ?1", (seq,))
            db.execute("DELETE FROM life WHERE seq = ?", (seq,))
        yield Finding("stuck", id, "held, and no message of its group is before it; made ready", repair)


def _miscounted(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Compare the counters of each queue with its messages."""
    states = ", ".join(
        f"(SELECT count(*) FROM life WHERE queue = q.n AND state = '{state}')"
        f" + (SELECT {COUNTED} FROM batch WHERE queue = q.n AND state = '{state}')"
        for state in _LIVING
    )
    columns = [State.READY.value, *_LIVING, State.DONE.value, "bytes"]
    for queue, name in list(db.execute("SELECT n, name FROM queue")):
        found = next(db.execute(_RECOUNT.format(states=states), (queue,)))
        kept = next(db.execute(f"SELECT {', '.join(columns)} FROM queue WHERE n = ?", (queue,)))
        if found != kept:
            if repair:
                sets = ", ".join(f"{column} = ?" for column in columns)
                db.execute(f"UPDATE queue SET {sets} WHERE n = ?", (*found, queue))
            yield Finding("miscounted", name, f"counted {found}, kept {kept}", repair)


def _undercounted(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Check for totals that are smaller than the number of stored messages."""
    for (queue,) in list(db.execute("SELECT n FROM queue")):
        published, acked, *kept, name = next(db.execute(_LEAST, (queue,)))
        least = [max(published, kept[0]), max(acked, kept[1])]
        if least != kept:
            if repair:
                db.execute("UPDATE queue SET published = ?, acked = ? WHERE n = ?", (*least, queue))
            text = f"published {kept[0]}, acked {kept[1]}; of messages that are there {published} and {acked}"
            yield Finding("miscounted", name, text, repair)


_CHECKS = (torn, overlapping, _unreadable, _misplaced, _bodiless, _misgrouped, _miscounted, _undercounted, littered)
