"""The desk as a lane: long work in a thread of its own, one page at a time on the desk, so that nobody waits for more
than one page of it.

Knows: the desk, how to reach its thread. Does not know: what the work is, asyncio."""

from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic, sleep
from typing import Any, TypeVar

from yirangmq.broker.group_commit import Desk
from yirangmq.core.errors import QueueError, StoreBusy, Unavailable
from yirangmq.core.ports import Transaction

PAUSE_SECONDS = 0.05
"""Between two attempts to read while another process holds the store's lock."""
Answer = TypeVar("Answer")


class DeskLane:
    """``broker.group_commit_threads.Way`` for threads other than the desk's. ``call`` runs something on the desk's
    thread, soon."""

    def __init__(self, desk: Desk, call: Callable[[Callable[[], None]], Any]) -> None:
        self._desk = desk
        self._call = call
        self.is_stopping = False

    def stop(self) -> None:
        """What is on the desk ends as usual; the next page is refused."""
        self.is_stopping = True

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        """One page in the desk's next commit; returns when it is on disk."""

        def begin(future: "Future[Answer]") -> None:
            def done(value: Any, error: QueueError | None) -> None:
                self._desk.news()
                future.set_exception(error) if error is not None else future.set_result(value)

            self._desk.submit(work, done)

        return self._asked(begin)

    def read(self, work: Callable[[Transaction], Answer]) -> Answer:
        """One page that changes nothing. While another process holds the store's lock, this thread tries again for as
        long as a request waits."""
        until = monotonic() + self._desk.busy.seconds
        while True:
            try:
                return self._read(work)
            except StoreBusy:
                if monotonic() >= until or self.is_stopping:
                    raise
            sleep(PAUSE_SECONDS)

    def _read(self, work: Callable[[Transaction], Answer]) -> Answer:
        def begin(future: "Future[Answer]") -> None:
            try:
                future.set_result(self._desk.read(work))
            except BaseException as error:
                future.set_exception(error)

        return self._asked(begin)

    def _asked(self, begin: Callable[["Future[Answer]"], None]) -> Answer:
        if self.is_stopping:
            raise Unavailable("the server is stopping; what was done so far stays, ask again for the rest")
        future: Future[Answer] = Future()
        self._call(lambda: begin(future))
        return future.result()
