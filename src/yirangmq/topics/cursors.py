"""Cursors of durable subscribers, with group commit, and the start position of a subscription.

Confirmations that arrive during a write are written together in the next one. A cached cursor is always on disk. Loop
thread only; writes run in the background executor.

A start is given as new, beginning, a sequence, or a time. Finding a time in the log may wait for the disk; the other
starts need no read."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from yirangmq.core.errors import BadInput, QueueError, WrongEpoch
from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import MOST_SEQUENCE, Cursor, Cursors, Log, Start
from yirangmq.fsio.background import Aside

Told = Callable[[QueueError | None], None]


# -- cursors -----------------------------------------------------------------------------------------------------------


class Ledger:
    """Group commit of cursors, with a cache of all of them. Loop thread only.

    A cursor enters the cache when it is on disk."""

    def __init__(self, cursors: Cursors, aside: Aside) -> None:
        self._cursors = cursors
        self._aside = aside
        self._known = {cursor.name: cursor for cursor in cursors.all()}
        self._waiting: dict[str, Cursor] = {}
        self._tell: list[Told] = []
        self._is_writing = False

    def get(self, name: str) -> Cursor | None:
        return self._known.get(name)

    def all(self) -> Sequence[Cursor]:
        return [self._known[name] for name in sorted(self._known)]

    def put(self, cursor: Cursor, tell: Told) -> None:
        """Write a cursor in the next group. ``tell(error)`` is called when it is on disk, or refused."""
        self._waiting[cursor.name] = cursor
        self._tell.append(tell)
        self._write()

    def drop(self, name: str, tell: Callable[[bool, QueueError | None], None]) -> None:
        def dropped(was_there: bool | None, error: QueueError | None) -> None:
            if error is None:
                self._known.pop(name, None)
            tell(bool(was_there), error)

        self._waiting.pop(name, None)
        self._aside.run(partial(self._cursors.drop, name), dropped)

    def _write(self) -> None:
        if self._is_writing or not self._tell:
            return
        self._is_writing = True
        cursors, tell = list(self._waiting.values()), self._tell
        self._waiting, self._tell = {}, []
        self._aside.run(partial(self._cursors.put, cursors), partial(self._written, cursors, tell))

    def _written(self, cursors: Sequence[Cursor], tell: list[Told], value: None, error: QueueError | None) -> None:
        self._is_writing = False
        if error is None:
            self._known |= {cursor.name: cursor for cursor in cursors}
        try:
            for told in tell:
                told(error)
        finally:
            self._write()

    def close(self) -> None:
        self._cursors.close()


def floor_of(cursors: Sequence[Cursor], epoch: str, oldest_ns: int, connected: frozenset[str]) -> int | None:
    """Return the first sequence that retention must keep for durable subscribers, or None if they need none.

    A cursor of this epoch counts while its subscriber is connected, or if it was written since ``oldest_ns``. Cursors
    of other epochs do not count."""
    needed = [
        cursor.sequence + 1
        for cursor in cursors
        if cursor.epoch == epoch and (cursor.at_ns >= oldest_ns or cursor.name in connected)
    ]
    return min(needed, default=None)


# -- start of a subscription -------------------------------------------------------------------------------------------

MOST_PROGRESS_SECONDS = 3600.0


class Ask(NamedTuple):
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
            f"{whose} is of epoch {epoch[:40]}, and the feed is of epoch {log.epoch}: it began anew", field="epoch"
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


def begins_at(log: Log, ask: Ask) -> int:
    """Return the first sequence of a subscription. A start by time reads the log, and so may block."""
    if ask.start is Start.NEW:
        return log.last + 1
    if ask.start is Start.BEGINNING:
        return log.first
    if ask.start is Start.TIME:
        if not 0 <= ask.at <= MOST_SEQUENCE:
            raise BadInput(f"must be nanoseconds since 1970, not {ask.at}", field="at")
        reader = log.reader()
        try:
            return max(reader.sequence_at(ask.at), log.first)
        finally:
            reader.close()
    if not 1 <= ask.at <= log.last + 1:
        raise BadInput(f"must be a sequence from 1 to {log.last + 1}, not {ask.at}", field="at")
    return ask.at


def read_start(text: str) -> Start:
    try:
        return Start(text)
    except ValueError:
        known = ", ".join(Start)
        raise BadInput(f"{text[:40]!r} is no place to begin; known: {known}", field="start") from None
