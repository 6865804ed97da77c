"""Work that may have to wait for the disk, off the loop's thread: a look into the log, cursors, retention.

Knows: a thread, and the way back. Does not know: what the work is. The thread begins with the first work."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

from yirangmq.core.errors import QueueError
from yirangmq.fsio.background import BackgroundExecutor, Call, Done, Value

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
        self._executor = BackgroundExecutor(hire or partial(ThreadPoolExecutor, 1, "topics"))

    def run(self, work: Callable[[], Value], done: Done) -> None:
        """``done(value, error)`` on the loop's thread, in the order of the works."""
        if self._gives_way:
            self._under_way += 1
            _turns.ask()
            done = partial(self._home, done)
        self._executor.run(work, self._call, done)

    def _home(self, done: Done, value: Any, error: QueueError | None) -> None:
        self._rest(min(1, self._under_way))
        done(value, error)

    def _rest(self, count: int) -> None:
        self._under_way -= count
        for _ in range(count):
            _turns.rest()

    def stop(self) -> None:
        """Returns when the work under way is done; what has not begun never does."""
        self._executor.stop()
        self._rest(self._under_way)
