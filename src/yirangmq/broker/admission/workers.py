"""Check workers: a pool of threads and hook processes per queue, for checks outside a transaction.

Each queue has its own pool, so that a slow processor does not delay other queues. Results are delivered on the
committer's thread, for each queue in the order of the requests. A thread that is idle for ``IDLE_SECONDS`` ends with
its process. When too many messages or bytes wait for a queue (``MAX_WAITING``, ``MAX_WAITING_BYTES``), further requests
are refused.

Without an event loop there is no pool: the calling thread runs the checks, and only callers of the same queue wait for
each other."""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from yirangmq.broker.admission.admission import AdmissionControl, NeedsCheck, Verdicts
from yirangmq.core.errors import HookFailed, QueueError

if TYPE_CHECKING:
    from yirangmq.broker.admission.hooks import Checker

IDLE_SECONDS = 60.0
"""Idle time after which a thread and its hook process end, in seconds."""
MAX_WAITING = 10_000
"""Upper bound of messages that wait for the checks of one queue; further requests are refused."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Upper bound of payload bytes that wait for the checks of one queue; a single larger request is accepted."""
OnChecked = Callable[[Verdicts, QueueError | None], None]


class CheckPort(Protocol):
    """Port of the committer to the check workers."""

    def clear(self, needed: NeedsCheck, done: OnChecked) -> None:
        """Check messages. ``done`` runs on the committer's thread, for each queue in the order of the requests."""

    def is_busy(self, queue: str) -> bool: ...


class CheckTask:
    """One request to the check workers."""

    __slots__ = ("done", "error", "is_over", "needed", "size", "verdicts")

    def __init__(self, needed: NeedsCheck, done: OnChecked) -> None:
        self.needed = needed
        self.done = done
        self.size = sum(len(envelope.payload) for envelope in needed.envelopes)
        self.verdicts: Verdicts = {}
        self.error: QueueError | None = None
        self.is_over = False


class CheckPool:
    """Requests and worker threads of one queue.

    ``order`` has the unanswered requests and is used by the committer's thread only. ``condition`` guards the other
    attributes."""

    def __init__(self) -> None:
        self.order: deque[CheckTask] = deque()
        self.condition = threading.Condition()
        self.tasks: deque[CheckTask] = deque()
        self.judges: set[Checker] = set()  # one per thread; the class is imported on first use
        self.idle = 0

    @property
    def messages(self) -> int:
        return sum(len(task.needed.envelopes) for task in self.order)

    @property
    def size(self) -> int:
        return sum(task.size for task in self.order)


class CheckWorkers:
    """Check workers of all queues. ``call`` schedules a function on the committer's thread, from any thread.

    ``clear`` and ``is_busy`` are for the committer's thread."""

    def __init__(self, admission: AdmissionControl, call: Callable[[Callable[[], None]], Any]) -> None:
        self._admission = admission
        self._call = call
        self._lines: dict[str, CheckPool] = {}
        self._is_closed = False

    def is_busy(self, queue: str) -> bool:
        pool = self._lines.get(queue)
        return pool is not None and bool(pool.order)

    def clear(self, needed: NeedsCheck, done: OnChecked) -> None:
        pool = self._lines.setdefault(needed.queue, CheckPool())
        if self._is_closed:
            done({}, HookFailed("the server is stopping", field="processor"))
            return
        if pool.order and (pool.messages + len(needed.envelopes) > MAX_WAITING or pool.size > MAX_WAITING_BYTES):
            text = f"the processor of queue {needed.queue!r} has too many waiting for it; try again later"
            done({}, HookFailed(text, field="processor"))
            return
        task = CheckTask(needed, done)
        pool.order.append(task)
        with pool.condition:
            pool.tasks.append(task)
            if pool.idle >= len(pool.tasks):  # a notified thread counts as idle until it takes its task
                pool.condition.notify()
            elif len(pool.judges) < needed.chain.workers:
                checker = _new_checker(self._admission)
                pool.judges.add(checker)
                name = f"processor-{needed.queue[:40]}"
                threading.Thread(target=self._work, args=(pool, checker), name=name, daemon=True).start()

    def _work(self, pool: CheckPool, checker: "Checker") -> None:
        while (task := self._next(pool, checker)) is not None:
            try:
                task.verdicts = checker.verdicts(task.needed)
            except QueueError as error:
                task.error = error
            except Exception as error:
                task.error = QueueError(f"{type(error).__name__}: {error}")
            try:
                self._call(partial(self._over, pool, task))
            except RuntimeError:  # the event loop is closed: no caller is left
                break
        checker.close()

    def _next(self, pool: CheckPool, checker: "Checker") -> CheckTask | None:
        """Return the next task, or None if the thread was idle for ``IDLE_SECONDS`` or the pool closes.

        After None the thread ends; it no longer counts as a worker."""
        with pool.condition:
            if not pool.tasks and not self._is_closed:
                pool.idle += 1
                pool.condition.wait_for(lambda: pool.tasks or self._is_closed, IDLE_SECONDS)
                pool.idle -= 1
            if pool.tasks and not self._is_closed:
                return pool.tasks.popleft()
            pool.judges.discard(checker)
            return None

    def _over(self, pool: CheckPool, task: CheckTask) -> None:
        """Deliver the finished requests at the head of the queue. Committer's thread only."""
        task.is_over = True
        while pool.order and pool.order[0].is_over:
            first = pool.order.popleft()
            first.done(first.verdicts, first.error)

    def processes(self) -> dict[str, list[int]]:
        """Return the process ids of the hook processes, by queue."""
        found = {queue: [checker.process.pid for checker in [*pool.judges]] for queue, pool in self._lines.items()}
        return {queue: [pid for pid in pids if pid is not None] for queue, pids in found.items() if any(pids)}

    def close(self) -> None:
        """Kill running hooks. Waiting requests get no answer."""
        self._is_closed = True
        for pool in self._lines.values():
            with pool.condition:
                judges = [*pool.judges]
                pool.condition.notify_all()
            for checker in judges:
                checker.close()


class InlineChecks:
    """Checks without an event loop, on the calling thread. One lock per queue serializes callers of the same queue."""

    def __init__(self, admission: AdmissionControl) -> None:
        self._admission = admission
        self._guard = threading.Lock()
        self._judges: dict[str, tuple[threading.Lock, Checker]] = {}

    def verdicts(self, needed: NeedsCheck) -> Verdicts:
        with self._guard:
            if needed.queue not in self._judges:
                self._judges[needed.queue] = threading.Lock(), _new_checker(self._admission)
            lock, checker = self._judges[needed.queue]
        with lock:
            return checker.verdicts(needed)

    def close(self) -> None:
        with self._guard:
            judges = [checker for _, checker in self._judges.values()]
            self._judges.clear()
        for checker in judges:
            checker.close()


def _new_checker(admission: AdmissionControl) -> "Checker":
    from yirangmq.broker.admission.hooks import Checker

    return Checker(admission)
