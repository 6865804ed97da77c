"""Runs: messages with consecutive numbers and the same state, one row in ``fresh`` or ``batch``.

The schema is in schema/004-runs.sql. Before a message changes separately from its run, it is cut out of the run and
gets a single row in ``ready`` or ``life``.

Ready runs (``fresh``) have messages that are ready and were never leased. New runs are kept in memory until a query
has to find them, or until the commit: a message leased in the commit that published it is never written to ``fresh``.

Batches (``batch``) have messages leased together for the first time, and those acked together. Up to 10,000 batches
leased by this process are cached, so that settling one reads nothing."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from yirangmq.core.message import Envelope, Message, new_envelope, new_message
from yirangmq.core.states import State
from yirangmq.format.json_codec import loads
from yirangmq.stores.sqlite.cache import BatchRow, LeasedBatch, RecentPayloads, Span
from yirangmq.stores.sqlite.payloads import OFFSET_SHIFT, Contents, missing
from yirangmq.stores.sqlite.sql import QUEUE_AND_RANK
from yirangmq.stores.sqlite.statements import (
    ADD_BATCH,
    ADD_FRESH,
    BATCH_COLUMNS,
    BEHEAD_FRESH,
    END_BATCH,
    END_FRESH,
    GROW_FRESH,
    INSERT_LIFE_ROW,
    INSERT_READY_ROW,
    LENGTH,
    SETTLE_BATCH,
    SIZE,
    Statement,
    StatementExecutor,
    cached_query,
)

ReadyMessage = tuple[Message, Envelope]


# -- ready runs: fresh -------------------------------------------------------------------------------------------------

LAST_FRESH = Statement("SELECT first, last FROM fresh WHERE queue = ? AND rank = ? ORDER BY first DESC LIMIT 1")
FRESH_OVER = Statement("""
SELECT first, last FROM fresh WHERE queue = ?1 AND rank = ?2 AND last >= ?3 AND first BETWEEN
    coalesce((SELECT max(first) FROM fresh WHERE queue = ?1 AND rank = ?2 AND first <= ?3), ?3) AND ?4""")
FRESH_BEHIND = cached_query(
    """
SELECT rank, first, last FROM fresh WHERE queue = ?1 AND (rank, first) >=
    (?2, coalesce((SELECT max(first) FROM fresh WHERE queue = ?1 AND rank = ?2 AND first <= ?3), ?3))
ORDER BY rank, first""",
    empty_until="fresh",
)
FRESH_LINE = cached_query(
    "SELECT rank, first, last FROM fresh WHERE queue = ? ORDER BY rank, first", empty_until="fresh"
)
FRESH_HEADS = Statement("""
SELECT seq, id, published_at, available_at, dedup_key, header, typeof(payload) = 'text',
    iif(typeof(payload) = 'text', CAST(payload AS BLOB), payload)
FROM message WHERE seq BETWEEN ? AND ? LIMIT ?""")
FRESH_ROWS = Statement(f"SELECT seq, id, {SIZE}, published_at FROM message WHERE seq BETWEEN ? AND ? LIMIT ?")

MAX_CACHED_LAST_RUNS = 1000


def spans(numbers: Sequence[int]) -> list[Span]:
    """Return distinct numbers as the fewest possible spans. Usually there is one span, and the numbers are in order."""
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
    """Return all numbers in these spans."""
    return set().union(*[range(first, last + 1) for first, last in covered])


# -- leased and done runs: batch ---------------------------------------------------------------------------------------

BATCHES_OVER = Statement(f"""
SELECT {BATCH_COLUMNS} FROM batch WHERE last >= ?1 AND first BETWEEN
    coalesce((SELECT max(first) FROM batch WHERE first <= ?1), ?1) AND ?2""")
BATCHES_BEHIND = Statement(f"""
SELECT {BATCH_COLUMNS} FROM batch WHERE queue = ?1 AND state = ?2 AND last > ?3
    AND first >= coalesce((SELECT max(first) FROM batch WHERE first <= ?3), 0)
ORDER BY first""")
BATCHES_DUE = Statement(f"SELECT {BATCH_COLUMNS} FROM batch WHERE due_at > 0 AND due_at <= ? ORDER BY due_at, first")
OLDEST_BATCHES = Statement(f"""
SELECT {BATCH_COLUMNS} FROM batch WHERE queue = ? AND state = 'done' AND body = 1 ORDER BY changed_at, first""")
BATCH_SIZE = Statement(f"SELECT coalesce(sum({SIZE}), 0) FROM message WHERE seq BETWEEN ? AND ?")
BATCH_IDS = Statement(f"""
SELECT json_group_object(id, size), sum(size)
FROM (SELECT id, {SIZE} AS size FROM message WHERE seq BETWEEN ? AND ?)""")
BATCH_ROWS = Statement(f"SELECT seq, id, {SIZE} FROM message WHERE seq BETWEEN ? AND ? LIMIT ?")


MAX_CACHED_BATCHES = 10_000
"""Maximum number of cached leased batches, about 400 bytes each; beyond it all are dropped."""


# -- runs --------------------------------------------------------------------------------------------------------------


class Runs:
    """Runs of a store inside a transaction: ready, leased and done."""

    def __init__(
        self,
        db: StatementExecutor,
        tails: dict[tuple[int, int], Span] | None = None,
        recent_payloads: RecentPayloads | None = None,
        leased: dict[int, LeasedBatch] | None = None,
        contents: Contents | None = None,
    ) -> None:
        """``tails``: cache of the last run in the table, by queue and rank. ``recent_payloads``: cache of recently
        published envelopes. ``leased``: cache of batches that this process leased and that have not changed since, by
        first number."""
        self._db = db
        self._tails = {} if tails is None else tails
        self._recent_payloads = recent_payloads or RecentPayloads()
        self._leased = {} if leased is None else leased
        self._contents = contents or Contents(db)
        self.new: dict[tuple[int, int], Span] = {}
        """Runs that are not in the table yet, by queue and rank. Each comes after all runs in the table."""

    # -- ready ----------------------------------------------------------------------------------------------------

    def add_ready(self, queue: int, rank: int, first: int, last: int) -> None:
        """Add new messages after all others of their queue and rank."""
        new = self.new.get((queue, rank))
        if new is not None and new[1] == first - 1:
            first = new[0]
        elif new is not None:
            self._write(queue, rank)
        self.new[queue, rank] = first, last

    def write(self) -> None:
        """Write the runs that were kept in memory to the table."""
        for queue, rank in list(self.new):
            self._write(queue, rank)

    def _write(self, queue: int, rank: int) -> None:
        first, last = self.new.pop((queue, rank))
        end = self._tails.get((queue, rank)) or self._db.execute(LAST_FRESH, (queue, rank)).fetchone()
        begin = first
        if end is not None and end[1] == first - 1:
            begin = end[0]
            self._db.execute(GROW_FRESH, (queue, rank, begin, last))
        else:
            self._db.execute(ADD_FRESH, (queue, rank, first, last))
        if len(self._tails) >= MAX_CACHED_LAST_RUNS:
            self._tails.clear()
        self._tails[queue, rank] = begin, last

    def remove_ready(self, queue: int, rank: int, places: Sequence[int]) -> list[Span]:
        """Remove the given places from the ready runs. Return the spans that were in a run."""
        return [covered for span in spans(places) for covered in self.cut_fresh(queue, rank, *span)]

    def cut_fresh(self, queue: int, rank: int, low: int, high: int) -> list[Span]:
        """Remove a span from the ready runs. Return the parts of it that were in a run."""
        new = self.new.get((queue, rank))
        covered: list[Span] = []
        if new is not None and low == new[0] and high <= new[1]:
            del self.new[queue, rank]
            if high < new[1]:
                self.new[queue, rank] = high + 1, new[1]
            covered.append((low, high))
        else:
            if new is not None and low <= new[1] and high >= new[0]:
                self._write(queue, rank)
            covered += self._cut_table(queue, rank, low, high)
        for first, last in covered:
            self._recent_payloads.drop(first, last)
        return covered

    def _cut_table(self, queue: int, rank: int, low: int, high: int) -> list[Span]:
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

    def first_runs(self, queue: int, most: int) -> list[tuple[int, int, int]]:
        """Return (rank, first, last) of the first runs in order of delivery, until they have ``most`` messages."""
        found = _enough_runs(self._db.execute(FRESH_LINE, (queue,)), most)
        new = [(rank, *span) for (of, rank), span in self.new.items() if of == queue] if self.new else []
        return _enough_runs(_joined(sorted([*found, *new])), most) if new else found

    def heads(self, name: str, rank: int, span: Span, most: int) -> list[ReadyMessage]:
        """Return the first ``most`` messages of a run with their envelopes."""
        ready = State.READY
        found = []
        for seq, sent in self.sent(name, rank, span, most):
            size = len(sent.payload) + len(sent.header)
            card = (seq, name, sent.id, ready, rank, seq, 0, 0, 0, 0, sent.published_at, "", "", 0, True, 0, 0, size)
            found.append((new_message(card), sent))
        return found

    def sent(self, name: str, rank: int, span: Span, most: int) -> list[tuple[int, Envelope]]:
        """Return number and envelope of the first ``most`` messages of a run. Payloads are read as bytes without a
        conversion to text; text that does not decode still raises ``UnicodeDecodeError``."""
        kept = self._recent_payloads.find(span[0], min(span[1] - span[0] + 1, most))
        if kept is not None:
            return list(enumerate(kept, span[0]))
        found = []
        end, data = -1, b""
        for seq, id, published, available, key, header, is_json, payload in list(
            self._db.execute(FRESH_HEADS, (*span, most))
        ):
            if type(payload) is int:
                if seq > end:
                    _, end, data = self._contents.row(seq) or (0, seq, b"")
                is_json = payload & 1
                begin = payload >> OFFSET_SHIFT  # inlined, because it runs once per message
                stop = begin + (payload >> 1 & LENGTH)
                if begin < 0 or stop > len(data):
                    raise missing(seq)
                payload = data[begin:stop]
            if is_json and not payload.isascii():
                payload.decode()
            sent = (name, id, rank, published, available, 0, key, header, payload, is_json == 1, 0, 0)
            found.append((seq, new_envelope(sent)))
        return found

    def scan_ready(self, queue: int, name: str, after: Span, most: int) -> list[Message]:
        """Return the first ``most`` messages after a place (rank, number), in order of delivery."""
        self.write()
        found: list[Message] = []
        for rank, first, last in self._db.execute(FRESH_BEHIND, (queue, *after)):
            begin = max(first, after[1] + 1) if rank == after[0] else first
            found += self._ready_messages(name, rank, (begin, last), most - len(found))
            if len(found) >= most:
                break
        return found

    def _ready_messages(self, name: str, rank: int, span: Span, most: int) -> list[Message]:
        ready = State.READY
        return [
            new_message((seq, name, id, ready, rank, seq, 0, 0, 0, 0, published, "", "", 0, True, 0, 0, size))
            for seq, id, size, published in self._db.execute(FRESH_ROWS, (*span, most))
        ]

    def find_ready(self, queue: int, name: str, rank: int, seq: int) -> Message | None:
        """Return one message, or None if it is not in a ready run."""
        self.write()
        if self._db.execute(FRESH_OVER, (queue, rank, seq, seq)).fetchone() is None:
            return None
        messages = self._ready_messages(name, rank, (seq, seq), 1)
        return messages[0] if messages else None

    def move_to_single_row(self, seq: int) -> None:
        """Move a message from its run to a single row, in the same state. A done message stays in its batch."""
        row = self._db.execute(QUEUE_AND_RANK, (seq,)).fetchone()
        if row is not None and self.cut_fresh(row[0], row[1], seq, seq):
            self._db.execute(INSERT_READY_ROW, (seq,))
        for batch in self.batches_in(seq, seq):
            if batch.state == State.LEASED:
                self.cut(seq, seq)
                self.insert_single_row(seq, batch)

    def insert_single_row(self, seq: int, batch: BatchRow) -> None:
        """Insert a single row for a message that was in a batch, unless it has one."""
        self._db.execute(INSERT_LIFE_ROW, (seq, batch.state, batch.due_at, batch.changed_at, batch.consumer))

    # -- leased and done ------------------------------------------------------------------------------------------

    def add(self, batch: BatchRow) -> None:
        self._db.execute(ADD_BATCH, tuple(batch))

    def cut(self, low: int, high: int) -> list[Span]:
        """Remove a span from the batches. Return the parts of it that were in a batch."""
        covered: list[Span] = []
        for batch in self.batches_in(low, high):
            self._leased.pop(batch.first, None)
            self._db.execute(END_BATCH, (batch.first,))
            if batch.first < low:
                self.add(batch.part(batch.first, low - 1))
            if batch.last > high:
                self.add(batch.part(high + 1, batch.last))
            covered.append((max(batch.first, low), min(batch.last, high)))
        return covered

    def add_leased(self, batch: BatchRow, size: int) -> None:
        """Add a batch that was just leased, with ``size`` bytes of content. Settling all of it then reads nothing."""
        self.add(batch)
        if len(self._leased) >= MAX_CACHED_BATCHES:
            self._leased.clear()
        self._leased[batch.first] = LeasedBatch(batch, size)

    def leased(self, first: int, last: int) -> LeasedBatch | None:
        """Return the batch of exactly these numbers if this process leased it and it has not changed since."""
        leased = self._leased.get(first)
        return leased if leased is not None and leased.batch.last == last else None

    def update_leased(self, after: BatchRow) -> None:
        """Update a cached leased batch to ``after``, and drop it from the cache."""
        del self._leased[after.first]
        changed = (after.state, after.due_at, after.changed_at, after.consumer, after.body, after.ids)
        self._db.execute(SETTLE_BATCH, (*changed, after.first))

    def content_bytes(self, span: Span) -> int:
        """Return the bytes of the content of these messages."""
        return int(next(self._db.execute(BATCH_SIZE, span))[0])

    def batches_in(self, low: int, high: int) -> list[BatchRow]:
        """Return the batches that have any of these numbers."""
        return [BatchRow(*row) for row in self._db.execute(BATCHES_OVER, (low, high))]

    def ids(self, span: Span) -> tuple[str, int]:
        """Return the JSON of ids that stays when the content is deleted, and the bytes of the content."""
        ids, size = next(self._db.execute(BATCH_IDS, span))
        return ids, size

    def messages(self, batch: BatchRow, name: str, span: Span, most: int = -1) -> Iterator[Message]:
        """Yield the messages of a batch that are in a span, at most ``most`` (-1: all)."""
        state = State(batch.state)
        low, high = max(batch.first, span[0]), min(batch.last, span[1])
        tail = (1, 1, batch.due_at, 0, batch.changed_at, batch.consumer, "", 0, batch.body == 1, 0, 0)
        for seq, id, size in self._members(batch, low, high, most):
            yield new_message((seq, name, id, state, batch.rank, seq, *tail, size))

    def _members(self, batch: BatchRow, low: int, high: int, most: int) -> Iterator[tuple[int, str, int]]:
        if batch.ids is None:
            yield from self._db.execute(BATCH_ROWS, (low, high, most))
            return
        for seq, (id, size) in enumerate(loads(batch.ids.encode()).items(), batch.first):
            if low <= seq <= high and most != 0:
                yield seq, id, size
                most -= 1

    def after(self, queue: int, state: State, seq: int) -> Iterator[BatchRow]:
        """Yield the batches that have messages with numbers larger than ``seq``."""
        return (BatchRow(*row) for row in self._db.execute(BATCHES_BEHIND, (queue, state.value, seq)))

    def due(self, now: int, most: int) -> list[BatchRow]:
        """Return the batches due first, until they have ``most`` messages."""
        return _enough(self._db.execute(BATCHES_DUE, (now,)), most)

    def oldest(self, queue: int, most: int) -> list[BatchRow]:
        """Return the done batches with content that were acknowledged first, until they have ``most`` messages."""
        return _enough(self._db.execute(OLDEST_BATCHES, (queue,)), most)

    def delete_content(self, batch: BatchRow, last: int, due_at: int) -> None:
        """Reduce the messages of a batch up to ``last`` to their ids. The caller deletes their content."""
        part = batch.part(batch.first, last)
        ids = self.ids((batch.first, last))[0] if part.ids is None else part.ids
        self.cut(batch.first, last)
        self.add(part._replace(due_at=due_at, body=0, ids=ids))


def _enough_runs(runs: Iterable[tuple[int, int, int]], most: int) -> list[tuple[int, int, int]]:
    """Return the first runs, until they have ``most`` messages."""
    found = []
    for run in runs:
        found.append(run)
        most -= run[2] - run[1] + 1
        if most <= 0:
            break
    return found


def _joined(runs: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Join adjacent runs of the same rank."""
    found: list[tuple[int, int, int]] = []
    for rank, first, last in runs:
        if found and found[-1][0] == rank and found[-1][2] == first - 1:
            found[-1] = rank, found[-1][1], last
        else:
            found.append((rank, first, last))
    return found


def _enough(rows: Iterator[Any], most: int) -> list[BatchRow]:
    found: list[BatchRow] = []
    for row in rows:
        found.append(BatchRow(*row))
        most -= found[-1].size
        if most <= 0:
            break
    return found
