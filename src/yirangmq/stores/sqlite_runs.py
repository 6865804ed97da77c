"""Messages kept as one row while they share their fate: the tables ``fresh`` and ``batch`` (schema/004-runs.sql).

Knows: spans of numbers; how a run grows, is cut and is read. Does not know: verbs, counters, single rows."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apsw

from yirangmq.core.message import Envelope, Message, new_envelope, new_message
from yirangmq.core.states import State
from yirangmq.format.jsontext import dumps, loads

Span = tuple[int, int]
"""The first and the last of numbers that follow each other."""

_SIZE = "octet_length(payload) + length(header)"
_COLUMNS = "first, last, queue, rank, state, due_at, changed_at, consumer, body, ids"

LAST_FRESH = "SELECT first, last FROM fresh WHERE queue = ? AND rank = ? ORDER BY first DESC LIMIT 1"
ADD_FRESH = "INSERT INTO fresh VALUES (?, ?, ?, ?)"
GROW_FRESH = "UPDATE fresh SET last = ?4 WHERE queue = ?1 AND rank = ?2 AND first = ?3"
BEHEAD_FRESH = "UPDATE fresh SET first = ?4 WHERE queue = ?1 AND rank = ?2 AND first = ?3"
END_FRESH = "DELETE FROM fresh WHERE queue = ? AND rank = ? AND first = ?"
FRESH_OVER = """
SELECT first, last FROM fresh WHERE queue = ?1 AND rank = ?2 AND last >= ?3 AND first BETWEEN
    coalesce((SELECT max(first) FROM fresh WHERE queue = ?1 AND rank = ?2 AND first <= ?3), ?3) AND ?4"""
FRESH_BEHIND = """
SELECT rank, first, last FROM fresh WHERE queue = ?1 AND (rank, first) >=
    (?2, coalesce((SELECT max(first) FROM fresh WHERE queue = ?1 AND rank = ?2 AND first <= ?3), ?3))
ORDER BY rank, first"""
FRESH_LINE = "SELECT rank, first, last FROM fresh WHERE queue = ? ORDER BY rank, first"
FRESH_HEADS = """
SELECT seq, id, published_at, available_at, dedup_key, header, payload FROM message WHERE seq BETWEEN ? AND ? LIMIT ?"""
FRESH_CARDS = f"SELECT seq, id, {_SIZE}, published_at FROM message WHERE seq BETWEEN ? AND ? LIMIT ?"

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
INSERT INTO ready SELECT queue, target, rank, seq, seq, 0, 0, expires_at, published_at, '', '', 0, grp, {_SIZE}
FROM message WHERE seq = ?"""
APART = f"""
INSERT OR IGNORE INTO life SELECT seq, queue, id, ?2, rank, seq, 1, 1, ?3, 0, ?4, ?5, '', 0, 1, 0, 0, {_SIZE}
FROM message WHERE seq = ?1"""
BATCH_IDS = f"""
SELECT json_group_object(id, size), sum(size)
FROM (SELECT id, {_SIZE} AS size FROM message WHERE seq BETWEEN ? AND ?)"""
BATCH_CARDS = f"SELECT seq, id, {_SIZE} FROM message WHERE seq BETWEEN ? AND ? LIMIT ?"

Head = tuple[Message, Envelope]
MOST_TAILS = 1000


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


def spans(numbers: Sequence[int]) -> list[Span]:
    """Numbers, each given once, as few spans as there can be; mostly it is one and they are in order."""
    if not numbers:
        return []
    low, high = min(numbers), max(numbers)
    if high - low + 1 == len(numbers):
        return [(low, high)]
    found: list[Span] = []
    begin = last = low
    for number in sorted(numbers)[1:]:
        if number != last + 1:
            found.append((begin, last))
            begin = number
        last = number
    return [*found, (begin, last)]


def members(covered: Sequence[Span]) -> set[int]:
    return set().union(*[range(first, last + 1) for first, last in covered])


class Runs:
    """The runs of one store, inside a transaction."""

    def __init__(self, db: apsw.Connection, tails: dict[tuple[int, int], Span] | None = None) -> None:
        """``tails``: the last runs in line as far as they are known, by queue and rank."""
        self._db = db
        self._tails = {} if tails is None else tails

    # -- in line --------------------------------------------------------------------------------------------------

    def line_up(self, queue: int, rank: int, first: int, last: int) -> None:
        """New messages, behind all others of their rank."""
        end = self._tails.get((queue, rank)) or self._db.execute(LAST_FRESH, (queue, rank)).fetchone()
        begin = first
        if end is not None and end[1] == first - 1:
            begin = end[0]
            self._db.execute(GROW_FRESH, (queue, rank, begin, last))
        else:
            self._db.execute(ADD_FRESH, (queue, rank, first, last))
        if len(self._tails) >= MOST_TAILS:
            self._tails.clear()
        self._tails[queue, rank] = begin, last

    def leave_line(self, queue: int, rank: int, places: Sequence[int]) -> list[Span]:
        """Take out whoever of these stands there; who that was."""
        return [covered for span in spans(places) for covered in self.cut_fresh(queue, rank, *span)]

    def cut_fresh(self, queue: int, rank: int, low: int, high: int) -> list[Span]:
        covered: list[Span] = []
        run = (queue, rank)
        self._tails.pop(run, None)
        for first, last in list(self._db.execute(FRESH_OVER, (*run, low, high))):
            if first < low:
                self._db.execute(GROW_FRESH, (*run, first, low - 1))
                if last > high:
                    self._db.execute(ADD_FRESH, (*run, high + 1, last))
            elif last > high:
                self._db.execute(BEHEAD_FRESH, (*run, first, high + 1))
            else:
                self._db.execute(END_FRESH, (*run, first))
            covered.append((max(first, low), min(last, high)))
        return covered

    def line(self, queue: int, most: int) -> list[tuple[int, int, int]]:
        """(rank, first, last) in order of delivery, as far as it takes to have so many."""
        found = []
        for run in self._db.execute(FRESH_LINE, (queue,)):
            found.append(run)
            most -= run[2] - run[1] + 1
            if most <= 0:
                break
        return found

    def heads(self, name: str, rank: int, span: Span, most: int) -> list[Head]:
        """Messages of a run with their envelopes."""
        ready = State.READY
        found = []
        for seq, sent in self.sent(name, rank, span, most):
            size = len(sent[8]) + len(sent[7])
            card = (seq, name, sent[1], ready, rank, seq, 0, 0, 0, 0, sent[3], "", "", 0, True, 0, 0, size)
            found.append((new_message(card), sent))
        return found

    def sent(self, name: str, rank: int, span: Span, most: int) -> list[tuple[int, Envelope]]:
        """Of a run's messages the number and the envelope."""
        found = []
        for seq, id, published, available, key, header, payload in self._db.execute(FRESH_HEADS, (*span, most)):
            if type(payload) is str:
                sent = (name, id, rank, published, available, 0, key, header, payload.encode(), True, 0, 0)
            else:
                sent = (name, id, rank, published, available, 0, key, header, payload, False, 0, 0)
            found.append((seq, new_envelope(sent)))
        return found

    def in_line(self, queue: int, name: str, behind: Span, most: int) -> list[Message]:
        """Cards of those behind a place, (rank, number), in order of delivery."""
        found: list[Message] = []
        for rank, first, last in self._db.execute(FRESH_BEHIND, (queue, *behind)):
            begin = max(first, behind[1] + 1) if rank == behind[0] else first
            found += self._fresh_cards(name, rank, (begin, last), most - len(found))
            if len(found) >= most:
                break
        return found

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

    def _fresh_cards(self, name: str, rank: int, span: Span, most: int) -> list[Message]:
        ready = State.READY
        return [
            new_message((seq, name, id, ready, rank, seq, 0, 0, 0, 0, published, "", "", 0, True, 0, 0, size))
            for seq, id, size, published in self._db.execute(FRESH_CARDS, (*span, most))
        ]

    def fresh(self, queue: int, name: str, rank: int, seq: int) -> Message | None:
        """The card of one in line; None if it is not there."""
        if self._db.execute(FRESH_OVER, (queue, rank, seq, seq)).fetchone() is None:
            return None
        cards = self._fresh_cards(name, rank, (seq, seq), 1)
        return cards[0] if cards else None

    # -- held and done --------------------------------------------------------------------------------------------

    def add(self, batch: Batch) -> None:
        self._db.execute(ADD_BATCH, batch)

    def cut(self, low: int, high: int) -> list[Span]:
        """Take these out of the batches they are in; who that was."""
        covered: list[Span] = []
        for batch in self.over(low, high):
            self._db.execute(END_BATCH, (batch.first,))
            if batch.first < low:
                self.add(batch.part(batch.first, low - 1))
            if batch.last > high:
                self.add(batch.part(high + 1, batch.last))
            covered.append((max(batch.first, low), min(batch.last, high)))
        return covered

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
        self.cut(batch.first, last)
        self.add(batch.part(batch.first, last)._replace(due_at=due_at, body=0))


def _enough(rows: Iterator[Any], most: int) -> list[Batch]:
    found: list[Batch] = []
    for row in rows:
        found.append(Batch(*row))
        most -= found[-1].size
        if most <= 0:
            break
    return found
