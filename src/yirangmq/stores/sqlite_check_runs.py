"""Looks over the runs of a SQLite store (schema/004-runs.sql): each holds the messages it says, and nobody else does.

What is torn is cut out: a message that then stands nowhere is found, and put back in line, by ``sqlite_check``."""

from collections.abc import Iterator
from itertools import pairwise

import apsw

from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Finding
from yirangmq.core.states import State
from yirangmq.format.json_codec import loads
from yirangmq.stores.sqlite_content import SIZE
from yirangmq.stores.sqlite_line import Span, spans
from yirangmq.stores.sqlite_runs import Batch, Runs
from yirangmq.stores.sqlite_sort import SHARED

COUNTED = "coalesce(sum(last - first + 1), 0)"
"""Messages in runs."""
WEIGHED = f"""
SELECT coalesce(sum({SIZE}), 0) FROM {{}} CROSS JOIN message w
ON w.seq BETWEEN r.first AND r.last WHERE {{}}"""
"""Bytes of messages in runs: of which table, and which of its rows."""
_IN_FRESH = """
coalesce((SELECT last FROM fresh f WHERE f.queue = m.queue AND f.rank = m.rank AND f.first <= m.seq
          ORDER BY f.first DESC LIMIT 1), 0) >= m.seq"""
_IN_BATCH = """
coalesce((SELECT last FROM batch b WHERE b.first <= m.seq ORDER BY b.first DESC LIMIT 1), 0) >= m.seq"""
IN_RUN = f"{_IN_FRESH} OR {_IN_BATCH}"
"""Of a message ``m``."""
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
    for look in (_misshapen, _strangers, _gaps, _doubles):
        yield from look(db, repair)


def _misshapen(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Runs that cannot be, in themselves or beside the others."""
    for queue, rank, first, last in list(db.execute(_OVERLAPPING)):
        if repair:
            db.execute("DELETE FROM fresh WHERE queue = ? AND rank = ? AND first = ?", (queue, rank, first))
        yield Finding("torn", f"{first}-{last}", "a run in line that cannot be; lined up anew", repair)
    end = 0
    for batch in [Batch(*row) for row in db.execute(_BATCHES)]:
        if batch.first > end and _is_whole(batch):
            end = batch.last
            continue
        if repair:
            _dissolve(db, batch)
        yield Finding("torn", f"{batch.first}-{batch.last}", "a batch that cannot be; taken apart", repair)


def _is_whole(batch: Batch) -> bool:
    if batch.first > batch.last:
        return False
    if batch.state == State.LEASED or (batch.body and batch.ids is None):
        return batch.body == 1 and batch.ids is None and batch.state in SHARED
    try:
        return batch.state == State.DONE and len(loads((batch.ids or "").encode())) == batch.size
    except (BadInput, TypeError):
        return False


def _dissolve(db: apsw.Connection, batch: Batch) -> None:
    """What is known to be done stays done; whatever else is left becomes ready again."""
    db.execute("DELETE FROM batch WHERE first = ?", (batch.first,))
    if batch.state == State.DONE:
        for (seq,) in list(db.execute("SELECT seq FROM message WHERE seq BETWEEN ? AND ?", (batch.first, batch.last))):
            Runs(db).put_apart(seq, batch)


def _strangers(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    for queue, rank, seq, id in list(db.execute(_STRANGERS)):
        if repair:
            Runs(db).leave_line(queue, rank, [seq])
        yield Finding("torn", id, "stands in a run it does not belong to; lined up anew", repair)


def _gaps(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    """Numbers in runs that no message has."""
    runs = Runs(db)
    for queue, rank, *run in list(db.execute(_FRESH)):
        for first, last in _missing(db, run[0], run[1]):
            if repair:
                runs.cut_fresh(queue, rank, first, last)
            yield Finding("bodiless", f"{first}-{last}", "stand in line without content; taken out", repair)
    for batch in [Batch(*row) for row in db.execute(_BATCHES)]:
        if batch.body:
            for first, last in _missing(db, batch.first, batch.last):
                if repair:
                    runs.cut(first, last)
                    db.execute("DELETE FROM name WHERE seq BETWEEN ? AND ?", (first, last))
                yield Finding("bodiless", f"{first}-{last}", "are in hand without content; forgotten", repair)


def _missing(db: apsw.Connection, first: int, last: int) -> list[Span]:
    """What is left of a span between the messages that are there."""
    there = [row[0] for row in db.execute("SELECT seq FROM message WHERE seq BETWEEN ? AND ?", (first, last))]
    if len(there) == last - first + 1:
        return []
    filled = [(first - 1, first - 1), *spans(there), (last + 1, last + 1)]
    return [(one[1] + 1, other[0] - 1) for one, other in pairwise(filled) if one[1] + 1 < other[0]]


def _doubles(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    for where, statement in _DOUBLES.items():
        for seq, queue, rank in list(db.execute(statement)):
            if repair:
                runs = Runs(db)
                if not runs.leave_line(queue, rank, [seq]):
                    runs.cut(seq, seq)
            yield Finding("twice", str(seq), f"in a run, and {where}; taken out of the run", repair)
