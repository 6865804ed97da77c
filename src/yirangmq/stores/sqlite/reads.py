"""Message lookups of the SQLite transaction.

``MessageLookup`` finds messages in order, by number, id, state and due time, in single rows and in runs
(``stores.sqlite.runs``)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

from yirangmq.core.message import Envelope, Message, MessageFailure, seq_of
from yirangmq.core.ports import Page
from yirangmq.core.states import State
from yirangmq.format.json_codec import dumps
from yirangmq.stores.sqlite import corrupt_rows as unreadable
from yirangmq.stores.sqlite import sql
from yirangmq.stores.sqlite.cache import BatchRow, Span
from yirangmq.stores.sqlite.runs import ReadyMessage, spans
from yirangmq.stores.sqlite.tables import Tables

_by_number = itemgetter(0)
"""Number of a message: the first column of its row."""
_index = Message._fields.index
_in_order: Callable[[Message], tuple[int, int]] = itemgetter(_index("rank"), _index("place"))
_by_moment: Callable[[Message], tuple[int, int]] = itemgetter(_index("due_at"), _index("seq"))
_by_target: Callable[[Message], tuple[int, int, int]] = itemgetter(_index("target"), _index("rank"), _index("place"))


class MessageLookup:
    """Message lookups inside a transaction."""

    def __init__(self, tables: Tables) -> None:
        self._db, self._cache, self._queues, self._contents, self._runs = tables

    # -- ready messages -------------------------------------------------------------------------------------------

    def heads(self, queue: str, limit: int, target: int = 0) -> list[ReadyMessage]:
        number = self._queues.number(queue)
        if number is None:
            return []
        found = self._untargeted_heads(number, queue, limit)
        if target and self._queues.value(sql.HAS_TARGET, number, target):
            found += self._single_row_heads(queue, (number, limit, target))
            found.sort(key=_head_in_order)
        return found[:limit]

    def _untargeted_heads(self, number: int, queue: str, limit: int) -> list[ReadyMessage]:
        """Return the first ready messages without a target. Usually all are in runs; if some are in single rows, the
        two are merged by rank and place."""
        first_runs = self._runs.first_runs(number, limit)
        singles = list(self._db.execute(sql.READY_PLACES, (number, limit)))
        if first_runs and singles:
            first_runs, count = _merged(first_runs, singles, limit)
        else:
            count = len(singles)
        found: list[ReadyMessage] = []
        for rank, first, last in first_runs:
            found += self._runs.heads(queue, rank, (first, last), limit - len(found))
        if count:
            found += self._single_row_heads(queue, (number, count, 0))
            found.sort(key=_head_in_order)
        return found

    def _single_row_heads(self, queue: str, bindings: tuple[int, ...]) -> list[ReadyMessage]:
        rows = list(self._db.execute(sql.HEADS, bindings))
        return [sql.head_of(row, queue, self._contents.payload(row[0], row[-1])) for row in rows]

    def group_first(self, queue: str, groups: Sequence[int]) -> list[Message | None]:
        number = self._queues.number(queue)
        firsts = [self._queues.value(sql.GROUP_FIRST, number, group) for group in groups]
        return self.by_seq([seq or 0 for seq in firsts])

    # -- by number and id -----------------------------------------------------------------------------------------

    def by_seq(self, seqs: Sequence[int]) -> list[Message | None]:
        if not seqs:
            return []
        leased = self._cache.leased
        missing = {seq for seq in seqs if seq not in leased}
        if not missing:
            return [leased[seq] for seq in seqs]
        found = {seq: leased[seq] for seq in seqs if seq in leased}
        for lookup in (self._from_single_rows, self._from_batches, self._from_ready):
            if missing:
                found.update((message.seq, message) for message in lookup(missing))
                missing = {seq for seq in missing if seq not in found}
        return [found.get(seq) for seq in seqs]

    def _from_single_rows(self, seqs: set[int]) -> Iterator[Message]:
        return (self._queues.message(row) for row in self._db.execute(*sql.LIFE_BY_SEQS.among(list(seqs))))

    def _from_batches(self, seqs: set[int]) -> Iterator[Message]:
        for span in spans(list(seqs)):
            for batch in self._runs.batches_in(*span):
                yield from self._of_batch(batch, span)

    def _from_ready(self, seqs: set[int]) -> Iterator[Message]:
        for seq in seqs:
            row = self._db.execute(sql.QUEUE_AND_ID, (seq,)).fetchone()
            message = self._ready_by_name(row[0], row[1]) if row else None
            if message is not None:
                yield message

    def _of_batch(self, batch: BatchRow, span: Span, most: int = -1) -> Iterator[Message]:
        return self._runs.messages(batch, self._queues.name(batch.queue), span, most)

    def by_id(self, queue: str, ids: Sequence[str]) -> list[Message | None]:
        number = self._queues.number(queue)
        if number is None:
            return [None] * len(ids)
        named = self._cache.named.by_id(queue, ids, self._cache.leased)
        if named is not None:
            return list(named)
        if len(ids) <= 1:
            return [self._by_name(number, id) for id in ids]
        seqs = dict(self._db.execute(sql.SEQS_BY_NAMES, (number, dumps(list(ids)).decode())))
        messages = dict(zip(seqs, self.by_seq(list(seqs.values())), strict=True))
        return [messages.get(id) for id in ids]

    def _by_name(self, queue: int, id: str) -> Message | None:
        seq = self._queues.value(sql.SEQ_BY_NAME, queue, id)
        if seq is None:
            return None
        if seq in self._cache.leased:
            return self._cache.leased[seq]
        found = next(self._from_single_rows({seq}), None) or next(self._from_batches({seq}), None)
        return found or self._ready_by_name(queue, id)

    def _ready_by_name(self, queue: int, id: str) -> Message | None:
        row = self._db.execute(sql.READY_BY_NAME, (queue, id)).fetchone()
        if row is not None:
            return self._queues.message(row)
        row = self._db.execute(sql.RANK_BY_NAME, (queue, id)).fetchone()
        return self._runs.find_ready(queue, self._queues.name(queue), *row) if row else None

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope | None]:
        named = self._cache.named.envelopes(messages)
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
        """Read envelopes by number; in the order of the numbers, so that each row of ``content`` is read once."""
        rows = sorted(self._db.execute(*sql.ENVELOPES.among(list(queues))), key=_by_number)
        return {
            row[0]: sql.envelope_of(row, queues[row[0]], self._contents.payload(row[0], row[sql.PAYLOAD]))
            for row in rows
        }

    def failures(self, messages: Sequence[Message]) -> list[MessageFailure | None]:
        rows = [self._db.execute(sql.FAILURE, (message.seq,)).fetchone() for message in messages]
        return [MessageFailure(*row) if row else None for row in rows]

    # -- page by page ---------------------------------------------------------------------------------------------

    def scan(self, queue: str, state: State, limit: int, cursor: str = "") -> Page:
        number = self._queues.number(queue)
        if number is None:
            return Page([], "")
        if state is State.READY:
            found = self._scan_ready(number, queue, limit, sql.read_cursor(cursor, 3))
            return sql.page_of(found, limit, lambda last: (last.target, last.rank, last.place))
        low, high = sql.read_cursor(cursor)
        if state in (State.DEAD, State.PARKED):
            rows = self._db.execute(sql.SCAN_DEAD, (number, state.value, low, high, limit))
            return sql.page_of(
                [self._queues.message(row) for row in rows], limit, lambda last: (last.changed_at, last.seq)
            )
        found = self._scan_life(number, state, limit, high)
        return sql.page_of(found, limit, lambda last: (0, last.seq))

    def _scan_ready(self, number: int, queue: str, limit: int, cursor: tuple[int, ...]) -> list[Message]:
        rows = self._db.execute(sql.SCAN_READY, (number, *cursor, limit))
        found = [self._queues.message(row) for row in rows]
        target, rank, place = cursor
        if target <= 0:  # messages for one consumer come after all runs
            after = (rank, place) if target == 0 else (-1, -1)
            found += self._runs.scan_ready(number, queue, after, limit)
            found.sort(key=_by_target)
        return found[:limit]

    def _scan_life(self, number: int, state: State, limit: int, after: int) -> list[Message]:
        rows = self._db.execute(sql.SCAN_LIFE, (number, state.value, after, limit))
        found = [self._queues.message(row) for row in rows]
        if state in (State.LEASED, State.DONE):
            found += islice(self._batches_messages(self._runs.after(number, state, after), after, limit), limit)
            found.sort(key=seq_of)
        return found[:limit]

    def _batches_messages(self, batches: Iterable[BatchRow], after: int = -1, most: int = -1) -> Iterator[Message]:
        for batch in batches:
            yield from self._of_batch(batch, (max(batch.first, after + 1), batch.last), most)

    # -- by time --------------------------------------------------------------------------------------------------

    def due(self, now: int, limit: int) -> list[Message]:
        cached = self._cache.due
        if cached is not None and (cached[0] is None or cached[0] > now):
            return []
        found = [self._queues.message(row) for row in self._db.execute(sql.DUE, (now, limit))]
        more = [self._queues.message(row) for row in self._db.execute(sql.AGED, (now, limit))]
        batches = self._runs.due(now, limit)
        if batches:
            more += islice(self._batches_messages(batches, most=limit), limit)
        if more:
            found = sorted(found + more, key=_by_moment)
        self._cache.forget_due()
        return found[:limit]

    def next_due(self, before: int | None = None) -> int | None:
        cached = self._cache.due
        if cached is not None and before is not None and (cached[0] is None or cached[0] >= before):
            return None
        if cached is None or not cached[1]:
            cached = self._cache.due = self._queues.value(sql.NEXT_DUE), True
        moment = cached[0]
        return None if moment is None or (before is not None and moment >= before) else moment


def _head_in_order(head: ReadyMessage) -> tuple[int, int]:
    message, _ = head
    return _in_order(message)


def _merged(
    first_runs: list[tuple[int, int, int]], singles: list[tuple[int, int]], limit: int
) -> tuple[list[tuple[int, int, int]], int]:
    """Limit runs (rank, first, last) and single places (rank, place) to the first ``limit`` messages of both. Return
    the runs, and the number of single places."""
    places = sorted(
        [*singles, *((rank, seq) for rank, first, last in first_runs for seq in _some(first, last, limit))]
    )[:limit]
    end = places[-1]
    runs = [(rank, first, last if rank < end[0] else min(last, end[1])) for rank, first, last in first_runs]
    return [run for run in runs if run[:2] <= end], sum(place <= end for place in singles)


def _some(first: int, last: int, limit: int) -> range:
    return range(first, min(last, first + limit - 1) + 1)
