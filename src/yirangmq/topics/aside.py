"""Work that may have to wait for the disk, off the loop's thread: a look into the log, cursors, retention.

Knows: a thread, and the way back. Does not know: what the work is. The thread begins with the first work."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from yirangmq.core.errors import QueueError, Unavailable

Value = TypeVar("Value")
Done = Callable[[Any, QueueError | None], None]
Call = Callable[[Callable[[], None]], object]


SWITCH_SECONDS = 0.0005
"""After so long a thread gives way to another one that waits. Python's own measure is ten times that."""


class Turns:
    """How soon threads of this process change places: sooner while anybody asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = 0
        self._usual = 0.0

    def ask(self) -> None:
        with self._lock:
            if not self._asked:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH_SECONDS)
            self._asked += 1

    def rest(self) -> None:
        with self._lock:
            self._asked -= 1
            if not self._asked:
                sys.setswitchinterval(self._usual)


_turns = Turns()


class Aside:
    """Used from the loop's thread; ``call`` runs something there, soon, from any other. ``gives_way``: for work that is
    much Python, so that the loop need not wait for it, back from the disk or the network, nor it for the loop."""

    def __init__(self, call: Call, hire: Callable[[], Executor] | None = None, *, gives_way: bool = False) -> None:
        self._call = call
        self._gives_way = gives_way
        self._under_way = 0
        self._hire = hire or (lambda: ThreadPoolExecutor(1, thread_name_prefix="topics"))
        self._thread: Executor | None = None
        self._is_stopped = False

    def run(self, work: Callable[[], Value], done: Done) -> None:
        """``done(value, error)`` on the loop's thread, in the order of the works."""
        if self._is_stopped:
            done(None, Unavailable("the server is stopping"))
            return
        try:
            if self._thread is None:
                self._thread = self._hire()
            future = self._thread.submit(_outcome, work)
        except RuntimeError as error:  # no thread can be started now
            self._give_up(done, error)
            return
        if self._gives_way:
            done = partial(self._home, done)
        if self._gives_way:
            self._under_way += 1
            _turns.ask()
        future.add_done_callback(partial(self._bring, done))

    def _give_up(self, done: Done, error: RuntimeError) -> None:
        """The executor has queued the work before it asked for a thread: it goes, lest refused work be done later."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False, cancel_futures=True)
        done(None, Unavailable(f"no thread for this work: {error}; try again"))

    def _home(self, done: Done, value: Any, error: QueueError | None) -> None:
        self._rest(min(1, self._under_way))
        done(value, error)

    def _rest(self, count: int) -> None:
        self._under_way -= count
        for _ in range(count):
            _turns.rest()

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
        self._rest(self._under_way)


def _outcome(work: Callable[[], Value]) -> tuple[Value | None, QueueError | None]:
    try:
        return work(), None
    except QueueError as error:
        return None, error
    except Exception as error:
        return None, QueueError(f"{type(error).__name__}: {error}")
