"""Following a log without a server: what is there, then what comes, seen by looking again and again; and how far it has
come, kept in a file or under a name. Knows: a view of the log. Does not know: connections."""

import time
from types import TracebackType
from typing import Protocol

from yirangmq.client.cursors import CursorFile, Place
from yirangmq.client.values import TopicRecord
from yirangmq.core.errors import WrongEpoch
from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import Cursor, Cursors
from yirangmq.stores.log.readonly import SegmentView
from yirangmq.topics.adapters import PageLimits, read_page

POLL_SECONDS = 0.2
"""How often a log without a server is looked at."""
BATCH_LIMITS = PageLimits(records=1000)


class Keeping(Protocol):
    """How far a subscriber has come, kept."""

    @property
    def is_alone(self) -> bool:
        """Nobody can publish while it is held, so that nothing more will come."""

    def get(self) -> Place | None: ...

    def put(self, sequence: int) -> None: ...

    def close(self) -> None: ...


class InFile:
    is_alone = False

    def __init__(self, file: CursorFile, epoch: str) -> None:
        self._file = file
        self._epoch = epoch

    def get(self) -> Place | None:
        return self._file.read()

    def put(self, sequence: int) -> None:
        self._file.write(Place(self._epoch, sequence))

    def close(self) -> None:
        """Nothing is open."""


class UnderName:
    """In the place where a server looks for it."""

    is_alone = True

    def __init__(self, cursors: Cursors, cursor: Cursor) -> None:
        self._cursors = cursors
        self._cursor = cursor

    def get(self) -> Place | None:
        found = self._cursors.get(self._cursor.name)
        return None if found is None else Place(found.epoch, found.sequence)

    def put(self, sequence: int) -> None:
        self._cursors.put([self._cursor._replace(sequence=sequence, at_ns=time.time_ns())])

    def close(self) -> None:
        self._cursors.close()


def following(
    view: SegmentView, filter: Filter, sequence: int, keeping: Keeping | None, *, resume: bool
) -> "LocalSubscription":
    """From where it was, if that is known and wanted; else from ``sequence`` on."""
    try:
        found = keeping.get() if keeping is not None and resume else None
        if found is not None and found.epoch != view.epoch:
            raise WrongEpoch(f"what was followed is of the epoch {found.epoch}, this log of {view.epoch}")
        if found is None and keeping is not None:
            keeping.put(sequence - 1)
        return LocalSubscription(view, filter, sequence if found is None else found.sequence + 1, keeping)
    except BaseException:
        if keeping is not None:
            keeping.close()
        raise


class LocalSubscription:
    def __init__(self, view: SegmentView, filter: Filter, sequence: int, keeping: Keeping | None) -> None:
        self._view = view
        self._filter = filter
        self._next = sequence
        self._keeping = keeping

    def __enter__(self) -> "LocalSubscription":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeping is not None:
            self._keeping.close()

    def next_batch(self, wait: float | None = None) -> list[TopicRecord]:
        until = None if wait is None else time.monotonic() + wait
        while True:
            page = read_page(self._view.reader(), self._filter, self._next, BATCH_LIMITS)
            self._next = page.last + 1
            if page.records:
                return [TopicRecord(*one) for one in page.records]
            is_alone = self._keeping is not None and self._keeping.is_alone
            if is_alone or (until is not None and time.monotonic() >= until):
                return []
            time.sleep(POLL_SECONDS)
            self._view.refresh()

    def confirm(self, sequence: int) -> None:
        if self._keeping is not None:
            self._keeping.put(sequence)
