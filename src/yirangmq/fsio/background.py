"""Background executors: blocking work in threads, its result delivered on the caller's event loop.

``BackgroundExecutor`` adds three things to a pool of ``concurrent.futures``. The pool is created for the first work, so
that an idle server has no thread. Rejected work is never run later, although the pool queues work before it starts a
thread. An event loop gets the result as ``done(value, error)`` through its ``call_soon_threadsafe``.

The executor of an event loop runs reads of the log, writes of cursors and retention, by default in one thread and in
order. For work that is mostly Python it shortens the interpreter's switch interval from 5 ms to 0.5 ms while work runs.
The loop and the work then wait less for each other."""

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
"""Schedules a function on the loop's thread. Raises ``RuntimeError`` if the loop is closed."""


class BackgroundExecutor:
    """Executor of blocking work that creates its pool on demand.

    ``make_pool`` is for example ``partial(ThreadPoolExecutor, 1, "name")``. A pool with one thread runs work in the
    order of submission. Submit from one thread at a time."""

    def __init__(self, make_pool: Callable[[], Executor]) -> None:
        self._make_pool = make_pool
        self._pool: Executor | None = None
        self._is_stopped = False

    def submit(self, work: Callable[[], Value]) -> "Future[Value]":
        """Submit work to the pool.

        Raise ``Unavailable`` after ``stop``, or if no thread can be started. ``work`` is not run then."""
        if self._is_stopped:
            raise Unavailable("the server is stopping")
        try:
            if self._pool is None:
                self._pool = self._make_pool()
            return self._pool.submit(work)
        except RuntimeError as error:
            self._drop_pool()
            raise Unavailable(f"no thread for this work: {error}; try again") from None

    def _drop_pool(self) -> None:
        """Discard the pool. It queues work before it starts a thread, so it could still run the rejected work later."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def run(self, work: Callable[[], Value], call: Call, done: Done) -> None:
        """Run work and call ``done(value, error)`` on the loop's thread.

        ``done`` runs before this method returns if ``work`` is rejected, and never if ``stop`` cancels it. An exception
        that is not a ``QueueError`` becomes one."""
        try:
            future = self.submit(partial(_outcome, work))
        except Unavailable as error:
            done(None, error)
            return
        future.add_done_callback(partial(self._deliver, call, done))

    def _deliver(self, call: Call, done: Done, future: "Future[tuple[Any, QueueError | None]]") -> None:
        if not future.cancelled():
            value, error = future.result()
        elif not self._is_stopped:
            value, error = None, Unavailable("no thread for this work; try again")
        else:
            return
        try:
            call(partial(done, value, error))
        except RuntimeError:  # the loop is closed
            return

    def drain(self) -> None:
        """Wait for the work submitted so far. Only correct for a pool with one thread."""
        if self._pool is not None and not self._is_stopped:
            self.submit(_nothing).result()

    def stop(self, *, wait: bool = True, cancel: bool = True) -> None:
        """Reject new work and shut the pool down.

        With ``wait`` block until running work has ended. With ``cancel`` drop queued work; otherwise it still runs."""
        self._is_stopped = True
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=cancel)


def _outcome(work: Callable[[], Value]) -> tuple[Value | None, QueueError | None]:
    try:
        return work(), None
    except QueueError as error:
        return None, error
    except Exception as error:
        return None, QueueError(f"{type(error).__name__}: {error}")


def _nothing() -> None:
    """Do nothing. In a pool with one thread it completes after all earlier work."""


# -- the interpreter's switch interval ---------------------------------------------------------------------------------

SWITCH_SECONDS = 0.0005
"""Switch interval in seconds while ``SwitchInterval`` is in use: a running thread releases the GIL to a waiting one
after it. Python's default is ten times as long."""


class SwitchInterval:
    """Switch interval of this process, shortened while at least one caller has requested it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._usual = 0.0

    def shorten(self) -> None:
        with self._lock:
            if not self._users:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH_SECONDS)
            self._users += 1

    def restore(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                sys.setswitchinterval(self._usual)


_switch_interval = SwitchInterval()


# -- the executor of an event loop -------------------------------------------------------------------------------------


class LoopExecutor:
    """Executor of an event loop. Used from the loop's thread; ``call`` schedules a function there from any thread.

    ``shorten_switch`` shortens the switch interval while work runs. Use it for work that is mostly Python: after I/O,
    the loop and the work then wait less for the GIL."""

    def __init__(
        self, call: Call, make_pool: Callable[[], Executor] | None = None, *, shorten_switch: bool = False
    ) -> None:
        self._call = call
        self._shorten_switch = shorten_switch
        self._under_way = 0
        self._executor = BackgroundExecutor(make_pool or partial(ThreadPoolExecutor, 1, "topics"))

    def run(self, work: Callable[[], Value], done: Done) -> None:
        """Run work and call ``done(value, error)`` on the loop's thread, in the order of submission."""
        if self._shorten_switch:
            self._under_way += 1
            _switch_interval.shorten()
            done = partial(self._finish, done)
        self._executor.run(work, self._call, done)

    def _finish(self, done: Done, value: Any, error: QueueError | None) -> None:
        self._restore(min(1, self._under_way))
        done(value, error)

    def _restore(self, count: int) -> None:
        self._under_way -= count
        for _ in range(count):
            _switch_interval.restore()

    def stop(self) -> None:
        """Wait for running work and cancel queued work."""
        self._executor.stop()
        self._restore(self._under_way)
