"""Long methods in threads of their own. Knows: when they begin and end. Does not know: what they do, asyncio."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from yirangmq.broker.group_commit import Desk
from yirangmq.broker.pages import DeskLane
from yirangmq.core.errors import QueueError, Unavailable
from yirangmq.core.ports import Clock, Ids, Store
from yirangmq.fsio.background import BackgroundExecutor, Call

if TYPE_CHECKING:
    from yirangmq.broker.queues import Queues

Given = Mapping[str, Any]
Done = Callable[[Any, QueueError | None], None]
PagedMethod = Callable[["Queues", Given], Any]
THREADS = 2
"""Long methods at work at the same time; the others wait their turn."""


class Pages:
    """Used from the desk's thread; ``call`` runs something there, soon, from any other."""

    def __init__(self, store: Store, desk: Desk, clock: Clock, ids: Ids, call: Call) -> None:
        self._lane = DeskLane(desk, call)
        self._parts = (store, clock, ids)
        self._verbs = desk.verbs
        self._made: Queues | None = None
        self._call = call
        self._executor = BackgroundExecutor(partial(ThreadPoolExecutor, THREADS, "pages"))
        self._running = 0

    @property
    def is_idle(self) -> bool:
        return self._running == 0

    def start(self, method: PagedMethod, given: Given, done: Done) -> None:
        if self._lane.is_stopping:
            done(None, Unavailable("the server is stopping"))
            return
        self._running += 1
        self._executor.run(lambda: method(self._queues(), given), self._call, partial(self._end, done))

    def _queues(self) -> "Queues":
        if self._made is None:
            from yirangmq.broker.queues import Queues  # a server that nobody asks for anything long does without

            self._made = Queues(*self._parts, "server", self._lane, verbs=self._verbs)
        return self._made

    def _end(self, done: Done, value: Any, error: QueueError | None) -> None:
        self._running -= 1
        done(value, error)

    def stop(self) -> None:
        """The page on the desk is the last one; whoever waits is told that we are stopping."""
        self._lane.stop()
        self._executor.stop(wait=False, cancel=False)
