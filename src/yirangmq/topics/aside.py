"""Work that may have to wait for the disk, off the loop's thread: a look into the log, cursors, retention.

Knows: a thread, and the way back. Does not know: what the work is. The thread begins with the first work."""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from yirangmq.core.errors import QueueError, Unavailable

Value = TypeVar("Value")
Done = Callable[[Any, QueueError | None], None]
Call = Callable[[Callable[[], None]], object]


class Aside:
    """Used from the loop's thread; ``call`` runs something there, soon, from any other."""

    def __init__(self, call: Call, hire: Callable[[], Executor] | None = None) -> None:
        self._call = call
        self._hire = hire or (lambda: ThreadPoolExecutor(1, thread_name_prefix="topics"))
        self._thread: Executor | None = None
        self._is_stopped = False

    def run(self, work: Callable[[], Value], done: Done) -> None:
        """``done(value, error)`` on the loop's thread, in the order of the works."""
        if self._is_stopped:
            done(None, Unavailable("the server is stopping"))
            return
        if self._thread is None:
            self._thread = self._hire()
        future = self._thread.submit(_outcome, work)
        future.add_done_callback(partial(self._bring, done))

    def _bring(self, done: Done, future: "Future[tuple[Any, QueueError | None]]") -> None:
        if future.cancelled():
            return
        value, error = future.result()
        try:
            self._call(partial(done, value, error))
        except RuntimeError:  # the loop has ended: nobody is left to tell
            return

    def stop(self) -> None:
        """Returns when the work under way is done; what has not begun never does."""
        self._is_stopped = True
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)


def _outcome(work: Callable[[], Value]) -> tuple[Value | None, QueueError | None]:
    try:
        return work(), None
    except QueueError as error:
        return None, error
    except Exception as error:
        return None, QueueError(f"{type(error).__name__}: {error}")
