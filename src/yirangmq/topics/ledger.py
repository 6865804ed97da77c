"""Cursors of durable subscribers: confirmations that come while one is being written are written together, next.

Knows: cursors and where they are kept. Does not know: subscribers, the log."""

from collections.abc import Callable, Sequence
from functools import partial

from yirangmq.core.errors import QueueError
from yirangmq.core.topics import Cursor, Cursors
from yirangmq.fsio.background import Aside

Told = Callable[[QueueError | None], None]


class Ledger:
    """Used from the loop's thread. What it knows of a cursor is on disk."""

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
        """``tell(error)`` once it is on disk, or refused."""
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
    """The first sequence that somebody still needs: a cursor holds the log while its subscriber is connected, or was
    heard of since ``oldest_ns``; never one of another epoch. None: nobody needs anything."""
    needed = [
        cursor.sequence + 1
        for cursor in cursors
        if cursor.epoch == epoch and (cursor.at_ns >= oldest_ns or cursor.name in connected)
    ]
    return min(needed, default=None)
