"""Messages in line that never were anywhere else: the table ``fresh`` (schema/004-runs.sql), where those whose numbers
follow each other are one row.

Knows: spans of numbers; how a run in line grows, is cut and is read. Does not know: verbs, counters, single rows. New
runs are kept back until somebody has to find them in the table, or the commit comes: who is served in the commit that
brought its messages takes them from here, and nothing is written and deleted again."""

from collections.abc import Iterable, Sequence

import apsw

from yirangmq.core.message import Envelope, Message, new_envelope, new_message
from yirangmq.core.states import State
from yirangmq.stores.sqlite_arrivals import Arrivals
from yirangmq.stores.sqlite_content import BEGINS, LENGTH, SIZE, Contents, missing

Span = tuple[int, int]
"""The first and the last of numbers that follow each other."""
Head = tuple[Message, Envelope]

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
SELECT seq, id, published_at, available_at, dedup_key, header, typeof(payload) = 'text',
    iif(typeof(payload) = 'text', CAST(payload AS BLOB), payload)
FROM message WHERE seq BETWEEN ? AND ? LIMIT ?"""
FRESH_CARDS = f"SELECT seq, id, {SIZE}, published_at FROM message WHERE seq BETWEEN ? AND ? LIMIT ?"

MOST_TAILS = 1000


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


class InLine:
    """The runs in line of one store, inside a transaction."""

    def __init__(
        self,
        db: apsw.Connection,
        tails: dict[tuple[int, int], Span] | None = None,
        arrivals: Arrivals | None = None,
        contents: Contents | None = None,
    ) -> None:
        """``tails``: the last runs in the table as far as they are known, by queue and rank. ``arrivals``: what was
        published just now."""
        self._db = db
        self._tails = {} if tails is None else tails
        self._arrivals = arrivals or Arrivals()
        self._contents = contents or Contents(db)
        self._new: dict[tuple[int, int], Span] = {}
        """By queue and rank, a run that is not in the table yet. It stands behind all that are."""

    def line_up(self, queue: int, rank: int, first: int, last: int) -> None:
        """New messages, behind all others of their rank."""
        new = self._new.get((queue, rank))
        if new is not None and new[1] == first - 1:
            first = new[0]
        elif new is not None:
            self._write(queue, rank)
        self._new[queue, rank] = first, last

    def write(self) -> None:
        """What was kept back goes to the table."""
        for queue, rank in list(self._new):
            self._write(queue, rank)

    def _write(self, queue: int, rank: int) -> None:
        first, last = self._new.pop((queue, rank))
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
        new = self._new.get((queue, rank))
        covered: list[Span] = []
        if new is not None and low == new[0] and high <= new[1]:
            del self._new[queue, rank]
            if high < new[1]:
                self._new[queue, rank] = high + 1, new[1]
            covered.append((low, high))
        else:
            if new is not None and low <= new[1] and high >= new[0]:
                self._write(queue, rank)
            covered += self._cut_table(queue, rank, low, high)
        for first, last in covered:
            self._arrivals.drop(first, last)
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

    def line(self, queue: int, most: int) -> list[tuple[int, int, int]]:
        """(rank, first, last) in order of delivery, as far as it takes to have so many."""
        found = _enough_runs(self._db.execute(FRESH_LINE, (queue,)), most)
        new = [(rank, *span) for (of, rank), span in self._new.items() if of == queue] if self._new else []
        return _enough_runs(_joined(sorted([*found, *new])), most) if new else found

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
        """Of a run's messages the number and the envelope. Bytes are taken as they are, without making a text of them
        and bytes again; but what should be a text and is none is an error here too."""
        kept = self._arrivals.find(span[0], min(span[1] - span[0] + 1, most))
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
                begin = payload >> BEGINS  # as ``part`` does it; there are many of them
                stop = begin + (payload >> 1 & LENGTH)
                if begin < 0 or stop > len(data):
                    raise missing(seq)
                payload = data[begin:stop]
            if is_json and not payload.isascii():
                payload.decode()
            sent = (name, id, rank, published, available, 0, key, header, payload, is_json == 1, 0, 0)
            found.append((seq, new_envelope(sent)))
        return found

    def in_line(self, queue: int, name: str, behind: Span, most: int) -> list[Message]:
        """Cards of those behind a place, (rank, number), in order of delivery."""
        self.write()
        found: list[Message] = []
        for rank, first, last in self._db.execute(FRESH_BEHIND, (queue, *behind)):
            begin = max(first, behind[1] + 1) if rank == behind[0] else first
            found += self._fresh_cards(name, rank, (begin, last), most - len(found))
            if len(found) >= most:
                break
        return found

    def _fresh_cards(self, name: str, rank: int, span: Span, most: int) -> list[Message]:
        ready = State.READY
        return [
            new_message((seq, name, id, ready, rank, seq, 0, 0, 0, 0, published, "", "", 0, True, 0, 0, size))
            for seq, id, size, published in self._db.execute(FRESH_CARDS, (*span, most))
        ]

    def fresh(self, queue: int, name: str, rank: int, seq: int) -> Message | None:
        """The card of one in line; None if it is not there."""
        self.write()
        if self._db.execute(FRESH_OVER, (queue, rank, seq, seq)).fetchone() is None:
            return None
        cards = self._fresh_cards(name, rank, (seq, seq), 1)
        return cards[0] if cards else None


def _enough_runs(runs: Iterable[tuple[int, int, int]], most: int) -> list[tuple[int, int, int]]:
    """The first of them, as many as it takes to have so many messages."""
    found = []
    for run in runs:
        found.append(run)
        most -= run[2] - run[1] + 1
        if most <= 0:
            break
    return found


def _joined(runs: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Runs of one rank that follow each other as one."""
    found: list[tuple[int, int, int]] = []
    for rank, first, last in runs:
        if found and found[-1][0] == rank and found[-1][2] == first - 1:
            found[-1] = rank, found[-1][1], last
        else:
            found.append((rank, first, last))
    return found
