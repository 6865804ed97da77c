"""The part of a batch of work that looks messages up: in line, by number, by id, by state, by what time wants.

A message is found in a row of its own or in a run (``sqlite_runs``); nobody who asks sees the difference."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

from yirangmq.core.message import Envelope, Failure, Message
from yirangmq.core.ports import Page
from yirangmq.core.states import State
from yirangmq.format.json_codec import dumps
from yirangmq.stores import sqlite_rows as sql
from yirangmq.stores import sqlite_unreadable as unreadable
from yirangmq.stores.sqlite_ledger import Ledger
from yirangmq.stores.sqlite_line import Head, Span, spans
from yirangmq.stores.sqlite_runs import Batch

_in_order = itemgetter(4, 5)
"""Of a card: rank and place."""
_by_moment = itemgetter(8, 0)
"""Of a card: when it is due, and its number."""
_by_number = itemgetter(0)


class Reading(Ledger):
    # -- in line --------------------------------------------------------------------------------------------------

    def heads(self, queue: str, limit: int, target: int = 0) -> list[Head]:
        number = self._queue(queue)
        if number is None:
            return []
        found = self._anyones(number, queue, limit)
        if target and self._value(sql.HAS_TARGET, number, target):
            found += self._heads_apart(queue, (number, limit, target))
            found.sort(key=_head_in_order)
        return found[:limit]

    def _anyones(self, number: int, queue: str, limit: int) -> list[Head]:
        """Mostly all stand in runs; where some do not, places decide."""
        line = self._runs.line(number, limit)
        apart = list(self._db.execute(sql.READY_PLACES, (number, limit)))
        if line and apart:
            line, count = _merged(line, apart, limit)
        else:
            count = len(apart)
        found: list[Head] = []
        for rank, first, last in line:
            found += self._runs.heads(queue, rank, (first, last), limit - len(found))
        if count:
            found += self._heads_apart(queue, (number, count, 0))
            found.sort(key=_head_in_order)
        return found

    def _heads_apart(self, queue: str, bindings: tuple[int, ...]) -> list[Head]:
        rows = list(self._db.execute(sql.HEADS, bindings))
        return [sql.head_of(row, queue, self._contents.payload(row[0], row[-1])) for row in rows]

    def group_first(self, queue: str, groups: Sequence[int]) -> list[Message | None]:
        number = self._queue(queue)
        firsts = [self._value(sql.GROUP_FIRST, number, group) for group in groups]
        return self.by_seq([seq or 0 for seq in firsts])

    # -- by name --------------------------------------------------------------------------------------------------

    def by_seq(self, seqs: Sequence[int]) -> list[Message | None]:
        if not seqs:
            return []
        leased = self._known.leased
        missing = {seq for seq in seqs if seq not in leased}
        if not missing:
            return [leased[seq] for seq in seqs]
        found = {seq: leased[seq] for seq in seqs if seq in leased}
        for look in (self._apart, self._together, self._in_line):
            if missing:
                found.update((card.seq, card) for card in look(missing))
                missing = {seq for seq in missing if seq not in found}
        return [found.get(seq) for seq in seqs]

    def _apart(self, seqs: set[int]) -> Iterator[Message]:
        which, bindings = sql.among(list(seqs))
        return (self._message(row) for row in self._db.execute(sql.LIFE_BY_SEQS + which, bindings))

    def _together(self, seqs: set[int]) -> Iterator[Message]:
        for span in spans(list(seqs)):
            for batch in self._runs.over(*span):
                yield from self._of_batch(batch, span)

    def _in_line(self, seqs: set[int]) -> Iterator[Message]:
        for seq in seqs:
            row = self._db.execute("SELECT queue, id FROM message WHERE seq = ?", (seq,)).fetchone()
            card = self._ready_by_name(row[0], row[1]) if row else None
            if card is not None:
                yield card

    def _of_batch(self, batch: Batch, span: Span, most: int = -1) -> Iterator[Message]:
        return self._runs.cards(batch, self._queue_name(batch.queue), span, most)

    def by_id(self, queue: str, ids: Sequence[str]) -> list[Message | None]:
        number = self._queue(queue)
        if number is None:
            return [None] * len(ids)
        named = self._known.named.by_id(queue, ids, self._known.leased)
        if named is not None:
            return list(named)
        if len(ids) <= 1:
            return [self._by_name(number, id) for id in ids]
        seqs = dict(self._db.execute(sql.SEQS_BY_NAMES, (number, dumps(list(ids)).decode())))
        cards = dict(zip(seqs, self.by_seq(list(seqs.values())), strict=True))
        return [cards.get(id) for id in ids]

    def _by_name(self, queue: int, id: str) -> Message | None:
        seq = self._value("SELECT seq FROM name WHERE queue = ? AND id = ?", queue, id)
        if seq is None:
            return None
        if seq in self._known.leased:
            return self._known.leased[seq]
        found = next(self._apart({seq}), None) or next(self._together({seq}), None)
        return found or self._ready_by_name(queue, id)

    def _ready_by_name(self, queue: int, id: str) -> Message | None:
        row = self._db.execute(sql.READY_BY_NAME, (queue, id)).fetchone()
        if row is not None:
            return self._message(row)
        row = self._db.execute(sql.RANK_BY_NAME, (queue, id)).fetchone()
        return self._runs.fresh(queue, self._queue_name(queue), *row) if row else None

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope | None]:
        named = self._known.named.envelopes(messages)
        if named is not None:
            return list(named)
        if len(messages) <= 1:
            return [self._envelope(message.queue, message.seq) for message in messages]
        try:
            found = self._envelopes({message.seq: message.queue for message in messages})
        except UnicodeDecodeError:
            return [self._envelope(message.queue, message.seq) for message in messages]
        return [found.get(message.seq) for message in messages]

    def _envelope(self, queue: str, seq: int) -> Envelope | None:
        try:
            return self._envelopes({seq: queue}).get(seq)
        except UnicodeDecodeError:
            return unreadable.envelope_as_bytes(self._db, queue, seq)

    def _envelopes(self, queues: dict[int, str]) -> dict[int, Envelope]:
        """By their numbers, in whose order contents are read."""
        which, bindings = sql.among(list(queues))
        rows = sorted(self._db.execute(sql.ENVELOPES + which, bindings), key=_by_number)
        return {row[0]: sql.envelope_of(row, queues[row[0]], self._contents.payload(row[0], row[8])) for row in rows}

    def failures(self, messages: Sequence[Message]) -> list[Failure | None]:
        rows = [self._db.execute(sql.FAILURE, (message.seq,)).fetchone() for message in messages]
        return [Failure(*row) if row else None for row in rows]

    # -- page by page ---------------------------------------------------------------------------------------------

    def scan(self, queue: str, state: State, limit: int, cursor: str = "") -> Page:
        number = self._queue(queue)
        if number is None:
            return Page([], "")
        if state is State.READY:
            found = self._scan_line(number, queue, limit, sql.read_cursor(cursor, 3))
            return sql.page_of(found, limit, lambda last: (last.target, last.rank, last.place))
        low, high = sql.read_cursor(cursor)
        if state in (State.DEAD, State.PARKED):
            rows = self._db.execute(sql.SCAN_DEAD, (number, state.value, low, high, limit))
            return sql.page_of([self._message(row) for row in rows], limit, lambda last: (last.changed_at, last.seq))
        found = self._scan_life(number, state, limit, high)
        return sql.page_of(found, limit, lambda last: (0, last.seq))

    def _scan_line(self, number: int, queue: str, limit: int, cursor: tuple[int, ...]) -> list[Message]:
        rows = self._db.execute(sql.SCAN_READY, (number, *cursor, limit))
        found = [self._message(row) for row in rows]
        target, rank, place = cursor
        if target <= 0:  # those for one consumer stand behind all runs
            behind = (rank, place) if target == 0 else (-1, -1)
            found += self._runs.in_line(number, queue, behind, limit)
            found.sort(key=itemgetter(16, 4, 5))
        return found[:limit]

    def _scan_life(self, number: int, state: State, limit: int, after: int) -> list[Message]:
        rows = self._db.execute(sql.SCAN_LIFE, (number, state.value, after, limit))
        found = [self._message(row) for row in rows]
        if state in (State.LEASED, State.DONE):
            found += islice(self._cards(self._runs.behind(number, state, after), after, limit), limit)
            found.sort(key=_by_number)
        return found[:limit]

    def _cards(self, batches: Iterable[Batch], after: int = -1, most: int = -1) -> Iterator[Message]:
        for batch in batches:
            yield from self._of_batch(batch, (max(batch.first, after + 1), batch.last), most)

    # -- by time --------------------------------------------------------------------------------------------------

    def due(self, now: int, limit: int) -> list[Message]:
        known = self._known.due
        if known is not None and (known[0] is None or known[0] > now):
            return []
        found = [self._message(row) for row in self._db.execute(sql.DUE, (now, limit))]
        more = [self._message(row) for row in self._db.execute(sql.AGED, (now, limit))]
        batches = self._runs.due(now, limit)
        if batches:
            more += islice(self._cards(batches, most=limit), limit)
        if more:
            found = sorted(found + more, key=_by_moment)
        self._known.due = None
        return found[:limit]

    def next_due(self, before: int | None = None) -> int | None:
        known = self._known.due
        if known is not None and before is not None and (known[0] is None or known[0] >= before):
            return None
        if known is None or not known[1]:
            known = self._known.due = self._value(sql.NEXT_DUE), True
        moment = known[0]
        return None if moment is None or (before is not None and moment >= before) else moment


def _head_in_order(head: Head) -> tuple[int, int]:
    return _in_order(head[0])  # type: ignore[no-any-return]


def _merged(
    line: list[tuple[int, int, int]], apart: list[tuple[int, int]], limit: int
) -> tuple[list[tuple[int, int, int]], int]:
    """Of runs, (rank, first, last), and of single places, (rank, place), so much as the first ``limit`` are; of the
    latter how many."""
    places = sorted([*apart, *((rank, seq) for rank, first, last in line for seq in _some(first, last, limit))])[:limit]
    end = places[-1]
    runs = [(rank, first, last if rank < end[0] else min(last, end[1])) for rank, first, last in line]
    return [run for run in runs if run[:2] <= end], sum(place <= end for place in apart)


def _some(first: int, last: int, limit: int) -> range:
    return range(first, min(last, first + limit - 1) + 1)
