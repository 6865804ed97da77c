"""Background executor: work that may wait for the disk runs in threads of its own, and its outcome comes back to the
caller's thread.

The pool is one of ``concurrent.futures``. What is added to it: it is made for the first work, work that is refused is
never run, and an event loop gets the outcome as ``done(value, error)`` by way of its ``call_soon_threadsafe``."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar

from yirangmq.core.errors import QueueError, Unavailable

Value = TypeVar("Value")
Done = Callable[[Any, QueueError | None], None]
Call = Callable[[Callable[[], None]], object]
"""Runs a function on the loop's thread, soon; raises ``RuntimeError`` when the loop is closed."""


class BackgroundExecutor:
    """``make_pool``: ``partial(ThreadPoolExecutor, 1, "name")``. Work of a pool with one thread runs in the order in
    which it was submitted. Submit from one thread at a time."""

    def __init__(self, make_pool: Callable[[], Executor]) -> None:
        self._make_pool = make_pool
        self._pool: Executor | None = None
        self._is_stopped = False

    def submit(self, work: Callable[[], Value]) -> "Future[Value]":
        """``Unavailable`` after ``stop``, and where no thread can be started; ``work`` is not run then."""
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
        """A pool queues work before it starts a thread: with it goes the refused work, lest it be run later."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def run(self, work: Callable[[], Value], call: Call, done: Done) -> None:
        """``done`` runs on the loop's thread; before this returns if ``work`` is refused, never if ``stop`` cancels it.
        An exception that is not a ``QueueError`` becomes one."""
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
        """Returns when the work submitted so far has ended, where there is one thread."""
        if self._pool is not None and not self._is_stopped:
            self.submit(_nothing).result()

    def stop(self, *, wait: bool = True, cancel: bool = True) -> None:
        """``wait`` for the work that is running. ``cancel`` the work that has not begun; else it is done first."""
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
    """Its turn comes when all work before it has ended."""
