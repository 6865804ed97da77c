"""Messages kept as one row while they share their fate: the tables ``fresh`` (``sqlite_line``) and ``batch``
(schema/004-runs.sql).

Knows: spans of numbers; how a run grows, is cut and is read. Does not know: verbs, counters, single rows."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import apsw

from yirangmq.core.message import Message, new_message
from yirangmq.core.states import State
from yirangmq.format.json_codec import dumps, loads
from yirangmq.stores.sqlite_arrivals import Arrivals
from yirangmq.stores.sqlite_content import SIZE, Contents
from yirangmq.stores.sqlite_line import InLine, Span

_COLUMNS = "first, last, queue, rank, state, due_at, changed_at, consumer, body, ids"

ADD_BATCH = f"INSERT INTO batch ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
END_BATCH = "DELETE FROM batch WHERE first = ?"
BATCHES_OVER = f"""
SELECT {_COLUMNS} FROM batch WHERE last >= ?1 AND first BETWEEN
    coalesce((SELECT max(first) FROM batch WHERE first <= ?1), ?1) AND ?2"""
BATCHES_BEHIND = f"""
SELECT {_COLUMNS} FROM batch WHERE queue = ?1 AND state = ?2 AND last > ?3
    AND first >= coalesce((SELECT max(first) FROM batch WHERE first <= ?3), 0)
ORDER BY first"""
BATCHES_DUE = f"SELECT {_COLUMNS} FROM batch WHERE due_at > 0 AND due_at <= ? ORDER BY due_at, first"
OLDEST_BATCHES = f"""
SELECT {_COLUMNS} FROM batch WHERE queue = ? AND state = 'done' AND body = 1 ORDER BY changed_at, first"""
APART_IN_LINE = f"""
INSERT INTO ready SELECT queue, target, rank, seq, seq, 0, 0, expires_at, published_at, '', '', 0, grp, {SIZE}
FROM message WHERE seq = ?"""
APART = f"""
INSERT OR IGNORE INTO life SELECT seq, queue, id, ?2, rank, seq, 1, 1, ?3, 0, ?4, ?5, '', 0, 1, 0, 0, {SIZE}
FROM message WHERE seq = ?1"""
SETTLE_BATCH = """
UPDATE batch SET state = ?, due_at = ?, changed_at = ?, consumer = ?, body = ?, ids = ? WHERE first = ?"""
BATCH_SIZE = f"SELECT coalesce(sum({SIZE}), 0) FROM message WHERE seq BETWEEN ? AND ?"
BATCH_IDS = f"""
SELECT json_group_object(id, size), sum(size)
FROM (SELECT id, {SIZE} AS size FROM message WHERE seq BETWEEN ? AND ?)"""
BATCH_CARDS = f"SELECT seq, id, {SIZE} FROM message WHERE seq BETWEEN ? AND ? LIMIT ?"


MOST_HELD = 10_000
"""Batches remembered, at some 400 bytes each."""


class Batch(NamedTuple):
    """A row of ``batch``."""

    first: int
    last: int
    queue: int
    rank: int
    state: str
    due_at: int
    changed_at: int
    consumer: str
    body: int
    ids: str | None

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def part(self, first: int, last: int) -> "Batch":
        """The same of fewer messages."""
        ids = self.ids
        if ids is not None and last - first + 1 < self.size:
            pairs = list(loads(ids.encode()).items())
            ids = dumps(dict(pairs[first - self.first : last - self.first + 1])).decode()
        return self._replace(first=first, last=last, ids=ids)


class Held(NamedTuple):
    """A batch that was leased here, and the bytes of its messages."""

    batch: Batch
    size: int


class Runs(InLine):
    """The runs of one store, inside a transaction."""

    def __init__(
        self,
        db: apsw.Connection,
        tails: dict[tuple[int, int], Span] | None = None,
        arrivals: Arrivals | None = None,
        held: dict[int, Held] | None = None,
        contents: Contents | None = None,
    ) -> None:
        """``held``: batches leased here, by their first number, as far as they are known to be as they were."""
        super().__init__(db, tails, arrivals, contents)
        self._held = {} if held is None else held

    def single_out(self, seq: int) -> None:
        """Give a message its own row, as it stands; one that is done stays where it is."""
        row = self._db.execute("SELECT queue, rank FROM message WHERE seq = ?", (seq,)).fetchone()
        if row is not None and self.cut_fresh(row[0], row[1], seq, seq):
            self._db.execute(APART_IN_LINE, (seq,))
        for batch in self.over(seq, seq):
            if batch.state == State.LEASED:
                self.cut(seq, seq)
                self.put_apart(seq, batch)

    def put_apart(self, seq: int, batch: Batch) -> None:
        """A row of its own for a message that was in a batch, if it has none."""
        self._db.execute(APART, (seq, batch.state, batch.due_at, batch.changed_at, batch.consumer))

    # -- held and done --------------------------------------------------------------------------------------------

    def add(self, batch: Batch) -> None:
        self._db.execute(ADD_BATCH, tuple(batch))

    def cut(self, low: int, high: int) -> list[Span]:
        """Take these out of the batches they are in; who that was."""
        covered: list[Span] = []
        for batch in self.over(low, high):
            self._held.pop(batch.first, None)
            self._db.execute(END_BATCH, (batch.first,))
            if batch.first < low:
                self.add(batch.part(batch.first, low - 1))
            if batch.last > high:
                self.add(batch.part(high + 1, batch.last))
            covered.append((max(batch.first, low), min(batch.last, high)))
        return covered

    def hold(self, batch: Batch, size: int) -> None:
        """Leased just now, of so many bytes: whoever settles all of it reads nothing."""
        self.add(batch)
        if len(self._held) >= MOST_HELD:
            self._held.clear()
        self._held[batch.first] = Held(batch, size)

    def held(self, first: int, last: int) -> Held | None:
        """The batch of exactly these, if it was leased here and not touched since."""
        held = self._held.get(first)
        return held if held is not None and held.batch.last == last else None

    def settle(self, after: Batch) -> None:
        """What becomes of a batch that is held here."""
        del self._held[after.first]
        self._db.execute(SETTLE_BATCH, (*after[4:], after.first))

    def weight(self, span: Span) -> int:
        """Bytes of the content of messages."""
        return int(next(self._db.execute(BATCH_SIZE, span))[0])

    def over(self, low: int, high: int) -> list[Batch]:
        """Batches that have any of these."""
        return [Batch(*row) for row in self._db.execute(BATCHES_OVER, (low, high))]

    def ids(self, span: Span) -> tuple[str, int]:
        """What is kept of messages when their content goes, and the bytes of their content."""
        ids, size = next(self._db.execute(BATCH_IDS, span))
        return ids, size

    def cards(self, batch: Batch, name: str, span: Span, most: int = -1) -> Iterator[Message]:
        """Of the messages of a batch those of a span."""
        state = State(batch.state)
        low, high = max(batch.first, span[0]), min(batch.last, span[1])
        tail = (1, 1, batch.due_at, 0, batch.changed_at, batch.consumer, "", 0, batch.body == 1, 0, 0)
        for seq, id, size in self._members(batch, low, high, most):
            yield new_message((seq, name, id, state, batch.rank, seq, *tail, size))

    def _members(self, batch: Batch, low: int, high: int, most: int) -> Iterator[tuple[int, str, int]]:
        if batch.ids is None:
            yield from self._db.execute(BATCH_CARDS, (low, high, most))
            return
        for seq, (id, size) in enumerate(loads(batch.ids.encode()).items(), batch.first):
            if low <= seq <= high and most != 0:
                yield seq, id, size
                most -= 1

    def behind(self, queue: int, state: State, seq: int) -> Iterator[Batch]:
        """Batches with messages of larger numbers."""
        return (Batch(*row) for row in self._db.execute(BATCHES_BEHIND, (queue, state.value, seq)))

    def due(self, now: int, most: int) -> list[Batch]:
        """As many as it takes to have so many messages."""
        return _enough(self._db.execute(BATCHES_DUE, (now,)), most)

    def oldest(self, queue: int, most: int) -> list[Batch]:
        """Of those acknowledged, with their content."""
        return _enough(self._db.execute(OLDEST_BATCHES, (queue,)), most)

    def strip(self, batch: Batch, last: int, due_at: int) -> None:
        """Remember of its messages up to ``last`` no more than the ids; their content is the caller's business."""
        part = batch.part(batch.first, last)
        ids = self.ids((batch.first, last))[0] if part.ids is None else part.ids
        self.cut(batch.first, last)
        self.add(part._replace(due_at=due_at, body=0, ids=ids))


def _enough(rows: Iterator[Any], most: int) -> list[Batch]:
    found: list[Batch] = []
    for row in rows:
        found.append(Batch(*row))
        most -= found[-1].size
        if most <= 0:
            break
    return found
