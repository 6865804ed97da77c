"""Something long, part by part: while one part is written the next is read aside.

Knows: turns. Does not know: what a part is, where it goes. Used from one thread, the loop's."""

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from yirangmq.broker.commit_jobs import Aside, Done
from yirangmq.core.errors import QueueError

Part = TypeVar("Part")


class ByParts(Generic[Part]):
    """``write(part, done)`` for each, one after the other; ``over(error)`` when nothing is under way any more."""

    def __init__(
        self,
        parts: Iterator[Part],
        aside: Aside,
        write: Callable[[Part, Done], None],
        over: Callable[[QueueError | None], None],
    ) -> None:
        self._parts = parts
        self._aside = aside
        self._write = write
        self._over = over
        self._ready: Part | None = None
        self._is_reading = self._is_writing = False
        self._error: QueueError | None = None

    def begin(self) -> None:
        self._is_reading = True
        self._aside(lambda: next(self._parts, None), self._read)

    def _read(self, part: Part | None, error: QueueError | None) -> None:
        self._is_reading = False
        self._ready, self._error = part, self._error or error
        self._go_on()

    def _written(self, _: Any, error: QueueError | None) -> None:
        self._is_writing = False
        self._error = self._error or error
        self._go_on()

    def _go_on(self) -> None:
        if self._is_writing or self._is_reading:
            return
        part, self._ready = self._ready, None
        if part is None or self._error is not None:
            self._over(self._error)
            return
        self._is_writing = True
        self.begin()
        try:
            self._write(part, self._written)
        except QueueError as error:
            self._written(None, error)
