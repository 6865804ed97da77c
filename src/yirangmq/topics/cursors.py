"""Cursors of durable subscribers, with group commit, and the start position of a subscription.

Confirmations that arrive during a write are written together in the next one. A cached cursor is always on disk. Loop
thread only; writes run in the background executor.

``CursorLags`` counts the records after the cursors of subscribers that are not connected, ``SentMarks`` those that a
connected one was sent and has not confirmed.

A start is given as new, beginning, a sequence, or a time. Finding a time in the log may wait for the disk; the other
starts need no read."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from yirangmq.core.errors import BadInput, QueueError, WrongEpoch
from yirangmq.core.topic_filter import Filter, filter_of_text
from yirangmq.core.topics import MAX_SEQUENCE, Cursor, Cursors, Log, LogReader, Start
from yirangmq.fsio.background import LoopExecutor

DoneCallback = Callable[[QueueError | None], None]


# -- cursors -----------------------------------------------------------------------------------------------------------


class CursorCommitter:
    """Group commit of cursors, with a cache of all of them. Loop thread only.

    A cursor enters the cache when it is on disk."""

    def __init__(self, cursors: Cursors, executor: LoopExecutor) -> None:
        self._cursors = cursors
        self._executor = executor
        self._cache = {cursor.name: cursor for cursor in cursors.all()}
        self._waiting: dict[str, Cursor] = {}
        self._callbacks: list[DoneCallback] = []
        self._is_writing = False

    def get(self, name: str) -> Cursor | None:
        return self._cache.get(name)

    def all(self) -> Sequence[Cursor]:
        return [self._cache[name] for name in sorted(self._cache)]

    def put(self, cursor: Cursor, notify: DoneCallback) -> None:
        """Write a cursor in the next group. ``notify(error)`` is called when it is on disk, or refused."""
        self._waiting[cursor.name] = cursor
        self._callbacks.append(notify)
        self._write()

    def drop(self, name: str, notify: Callable[[bool, QueueError | None], None]) -> None:
        def dropped(was_there: bool | None, error: QueueError | None) -> None:
            if error is None:
                self._cache.pop(name, None)
            notify(bool(was_there), error)

        self._waiting.pop(name, None)
        self._executor.run(partial(self._cursors.drop, name), dropped)

    def _write(self) -> None:
        if self._is_writing or not self._callbacks:
            return
        self._is_writing = True
        cursors, notify = list(self._waiting.values()), self._callbacks
        self._waiting, self._callbacks = {}, []
        self._executor.run(partial(self._cursors.put, cursors), partial(self._written, cursors, notify))

    def _written(
        self, cursors: Sequence[Cursor], notify: list[DoneCallback], value: None, error: QueueError | None
    ) -> None:
        self._is_writing = False
        if error is None:
            self._cache |= {cursor.name: cursor for cursor in cursors}
        try:
            for on_done in notify:
                on_done(error)
        finally:
            self._write()

    def close(self) -> None:
        self._cursors.close()


def retention_floor(cursors: Sequence[Cursor], epoch: str, oldest_ns: int, connected: frozenset[str]) -> int | None:
    """Return the first sequence that retention must keep for durable subscribers, or None if they need none.

    A cursor of this epoch counts while its subscriber is connected, or if it was written since ``oldest_ns``. Cursors
    of other epochs do not count."""
    needed = [
        cursor.sequence + 1
        for cursor in cursors
        if cursor.epoch == epoch and (cursor.at_ns >= oldest_ns or cursor.name in connected)
    ]
    return min(needed, default=None)


def positions_of(cursors: Sequence[Cursor], epoch: str) -> dict[str, int]:
    """Return what each durable subscriber of this epoch has confirmed; "": of any epoch."""
    return {f"subscriber {cursor.name}": cursor.sequence for cursor in cursors if epoch in ("", cursor.epoch)}


# -- lag of subscribers that are not connected -------------------------------------------------------------------------


def lag_in_log(cursor: Cursor, epoch: str, last: int) -> int:
    """Return the number of all records after a cursor, whether they match its filter or not."""
    return max(0, last - cursor.sequence) if cursor.epoch == epoch else last


MAX_COUNTS = 20
"""Upper bound of cursors whose records are being counted: each count takes some 0.1 s of a thread."""


class CountedCursor(NamedTuple):
    """Matching records after a cursor, up to the end of the log at one moment, and the sum of the sequences of the
    matching topics at that moment."""

    cursor: Cursor
    records: int
    matched: int


class CursorLags:
    """Lag of durable subscribers that are not connected: the records after their cursors that match their filters.

    Records are counted once for each cursor, on a background thread, which reads up to two segments. Those published
    since are the growth of the topics' sequences. Loop thread only."""

    def __init__(self, executor: LoopExecutor) -> None:
        self._executor = executor
        self._counted: dict[str, CountedCursor] = {}
        self._counting: set[str] = set()

    def of(self, cursors: Sequence[Cursor], log: Log, masked: Sequence[str]) -> dict[str, int]:
        """Return the lag of each cursor by name. Until its records are counted it is that of the whole log."""
        topics = None
        found = {}
        for cursor in cursors:
            found[cursor.name] = lag_in_log(cursor, log.epoch, log.last)
            filter = filter_of_text(cursor.filter, masked)
            if filter is None or filter.is_all or cursor.epoch != log.epoch or not found[cursor.name]:
                continue
            topics = log.topics() if topics is None else topics
            matched = sum(state.topic_sequence for name, state in topics.items() if filter.wants(name))
            known = self._counted.get(cursor.name)
            if known is not None and _place(known.cursor) == _place(cursor):
                found[cursor.name] = known.records + matched - known.matched
            else:
                self._count(cursor, filter, log, matched)
        self._counted = {name: known for name, known in self._counted.items() if name in found}
        return found

    def when_counted(self, act: Callable[[], None]) -> None:
        """Call ``act`` when the counts under way are done; the executor runs them in order."""
        if self._counting:
            self._executor.run(_nothing, lambda value, error: act())
        else:
            act()

    def _count(self, cursor: Cursor, filter: Filter, log: Log, matched: int) -> None:
        if cursor.name in self._counting or len(self._counting) >= MAX_COUNTS:
            return
        self._counting.add(cursor.name)

        def counted(records: int | None, error: QueueError | None) -> None:
            self._counting.discard(cursor.name)
            if records is not None:
                self._counted[cursor.name] = CountedCursor(cursor, records, matched)

        self._executor.run(partial(count_after, log.reader(), filter, cursor.sequence, log.last), counted)


MAX_MARKS = 64
"""Upper bound of the marks of one subscriber. Above it every second one is dropped."""


class SentMarks:
    """Number of records that a durable subscriber with a filter was sent, by their sequences. Loop thread only.

    It is marked at intervals: up to this sequence, so many records. Between two marks it is interpolated."""

    def __init__(self, sequence: int, total: int) -> None:
        self._sequences = [sequence]
        self._counts = [0]
        self._offset = total

    def add(self, sequence: int, total: int) -> None:
        """Add a mark. ``total``: all records sent, those that are sent again after a recovery request included."""
        if sequence < self._sequences[-1]:  # what follows is sent again
            count = self._count_at(sequence)
            kept = bisect_left(self._sequences, sequence)
            del self._sequences[kept:], self._counts[kept:]
            self._offset = total - count
        elif sequence == self._sequences[-1]:
            self._sequences.pop()
            self._counts.pop()
        self._sequences.append(sequence)
        self._counts.append(total - self._offset)
        if len(self._sequences) > MAX_MARKS:
            del self._sequences[1:-1:2], self._counts[1:-1:2]

    def confirm(self, sequence: int) -> None:
        """Drop the marks that are not needed any more: all but one up to this sequence."""
        passed = bisect_right(self._sequences, sequence) - 1
        if passed > 0:
            del self._sequences[:passed], self._counts[:passed]

    def after(self, sequence: int) -> int:
        """Return the number of records sent after this sequence."""
        return max(0, self._counts[-1] - self._count_at(sequence))

    def _count_at(self, sequence: int) -> int:
        place = bisect_right(self._sequences, sequence)
        if place == 0:
            return self._counts[0]
        if place == len(self._sequences):
            return self._counts[-1]
        low, high = self._sequences[place - 1 : place + 1]
        first, last = self._counts[place - 1 : place + 1]
        return first + round((last - first) * (sequence - low) / (high - low))


def _nothing() -> None:
    """Do nothing: its place in the order of the executor's work is what counts."""


def _place(cursor: Cursor) -> tuple[str, int, str]:
    return cursor.epoch, cursor.sequence, cursor.filter


def count_after(reader: LogReader, filter: Filter, sequence: int, last: int) -> int:
    """Return the number of matching records after ``sequence`` up to ``last`` that are kept. Blocks on the disk."""
    with closing(reader):
        return reader.count(max(sequence + 1, reader.first), last + 1, filter.wants)


# -- start of a subscription -------------------------------------------------------------------------------------------

MAX_PROGRESS_SECONDS = 3600.0


class SubscriptionParameters(NamedTuple):
    """Parameters of a subscription: filter, durable name, start and progress interval."""

    filter: Filter
    name: str = ""
    start: Start = Start.NEW
    at: int = 0
    epoch: str = ""
    resume: bool = True
    progress_seconds: float = 1.0


def check_epoch(log: Log, epoch: str, whose: str) -> None:
    if epoch and epoch != log.epoch:
        raise WrongEpoch(
            f"{whose} is of epoch {epoch[:40]}, and the feed is of epoch {log.epoch}: it is a new log", field="epoch"
        )


def resumed(log: Log, cursor: Cursor) -> int:
    """Return the first sequence that this cursor has not confirmed."""
    check_epoch(log, cursor.epoch, f"the cursor of {cursor.name!r}")
    if cursor.sequence > log.last:
        raise WrongEpoch(
            f"{cursor.name!r} has confirmed sequence {cursor.sequence}, and the feed ends at {log.last}: records that "
            "were confirmed are lost",
            field="name",
        )
    return cursor.sequence + 1


def start_sequence(log: Log, parameters: SubscriptionParameters) -> int:
    """Return the first sequence of a subscription. A start by time reads the log, and so may block."""
    if parameters.start is Start.NEW:
        return log.last + 1
    if parameters.start is Start.BEGINNING:
        return log.first
    if parameters.start is Start.TIME:
        if not 0 <= parameters.at <= MAX_SEQUENCE:
            raise BadInput(f"must be nanoseconds since 1970, not {parameters.at}", field="at")
        reader = log.reader()
        try:
            return max(reader.sequence_at(parameters.at), log.first)
        finally:
            reader.close()
    if parameters.epoch and parameters.at > log.last + 1:
        raise WrongEpoch(
            f"sequence {parameters.at} was requested, and the feed ends at {log.last}: records of this epoch are lost",
            field="at",
        )
    if not 1 <= parameters.at <= log.last + 1:
        raise BadInput(f"must be a sequence from 1 to {log.last + 1}, not {parameters.at}", field="at")
    return parameters.at


def read_start(text: str) -> Start:
    try:
        return Start(text)
    except ValueError:
        known = ", ".join(Start)
        raise BadInput(f"{text[:40]!r} is not a start position; known: {known}", field="start") from None
