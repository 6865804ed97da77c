"""Check workers: a pool of threads and hook processes per queue, for checks outside a transaction.

Each queue has its own pool, so that a slow processor does not delay other queues. Results are delivered on the
committer's thread, for each queue in the order of the requests. A thread that is idle for ``IDLE_SECONDS`` ends with
its process. When too many messages or bytes wait for a queue (``MOST_WAITING``, ``MOST_BYTES``), further requests are
refused.

Without an event loop there is no pool: the calling thread runs the checks, and only callers of the same queue wait for
each other."""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from yirangmq.broker.admission.admission import Gate, Uncleared, Verdicts
from yirangmq.core.errors import HookFailed, QueueError

if TYPE_CHECKING:
    from yirangmq.broker.admission.hooks import Judge

IDLE_SECONDS = 60.0
"""Idle time after which a thread and its hook process end, in seconds."""
MOST_WAITING = 10_000
"""Upper bound of messages that wait for the checks of one queue; further requests are refused."""
MOST_BYTES = 64 * 1024 * 1024
"""Upper bound of payload bytes that wait for the checks of one queue; a single larger request is accepted."""
Cleared = Callable[[Verdicts, QueueError | None], None]


class Clearing(Protocol):
    """Port of the committer to the check workers."""

    def clear(self, needed: Uncleared, done: Cleared) -> None:
        """Check messages. ``done`` runs on the committer's thread, for each queue in the order of the requests."""

    def is_busy(self, queue: str) -> bool: ...


class CheckTask:
    """One request to the check workers."""

    __slots__ = ("done", "error", "is_over", "needed", "size", "verdicts")

    def __init__(self, needed: Uncleared, done: Cleared) -> None:
        self.needed = needed
        self.done = done
        self.size = sum(len(envelope.payload) for envelope in needed.envelopes)
        self.verdicts: Verdicts = {}
        self.error: QueueError | None = None
        self.is_over = False


class Line:
    """Requests and worker threads of one queue.

    ``order`` has the unanswered requests and is used by the committer's thread only. ``bell`` guards the other
    attributes."""

    def __init__(self) -> None:
        self.order: deque[CheckTask] = deque()
        self.bell = threading.Condition()
        self.tasks: deque[CheckTask] = deque()
        self.judges: set[Judge] = set()  # one per thread; the class is imported on first use
        self.idle = 0

    @property
    def messages(self) -> int:
        return sum(len(task.needed.envelopes) for task in self.order)

    @property
    def size(self) -> int:
        return sum(task.size for task in self.order)


class Lines:
    """Check workers of all queues. ``call`` schedules a function on the committer's thread, from any thread.

    ``clear`` and ``is_busy`` are for the committer's thread."""

    def __init__(self, gate: Gate, call: Callable[[Callable[[], None]], Any]) -> None:
        self._gate = gate
        self._call = call
        self._lines: dict[str, Line] = {}
        self._is_closed = False

    def is_busy(self, queue: str) -> bool:
        line = self._lines.get(queue)
        return line is not None and bool(line.order)

    def clear(self, needed: Uncleared, done: Cleared) -> None:
        line = self._lines.setdefault(needed.queue, Line())
        if self._is_closed:
            done({}, HookFailed("the server is stopping", field="processor"))
            return
        if line.order and (line.messages + len(needed.envelopes) > MOST_WAITING or line.size > MOST_BYTES):
            text = f"the processor of queue {needed.queue!r} has too many waiting for it; try again later"
            done({}, HookFailed(text, field="processor"))
            return
        task = CheckTask(needed, done)
        line.order.append(task)
        with line.bell:
            line.tasks.append(task)
            if line.idle >= len(line.tasks):  # a notified thread counts as idle until it takes its task
                line.bell.notify()
            elif len(line.judges) < needed.chain.workers:
                judge = _judge(self._gate)
                line.judges.add(judge)
                name = f"processor-{needed.queue[:40]}"
                threading.Thread(target=self._work, args=(line, judge), name=name, daemon=True).start()

    def _work(self, line: Line, judge: "Judge") -> None:
        while (task := self._next(line, judge)) is not None:
            try:
                task.verdicts = judge.verdicts(task.needed)
            except QueueError as error:
                task.error = error
            except Exception as error:
                task.error = QueueError(f"{type(error).__name__}: {error}")
            try:
                self._call(partial(self._over, line, task))
            except RuntimeError:  # the event loop is closed: no caller is left
                break
        judge.close()

    def _next(self, line: Line, judge: "Judge") -> CheckTask | None:
        """Return the next task, or None if the thread was idle for ``IDLE_SECONDS`` or the pool closes.

        After None the thread ends; it no longer counts as a worker."""
        with line.bell:
            if not line.tasks and not self._is_closed:
                line.idle += 1
                line.bell.wait_for(lambda: line.tasks or self._is_closed, IDLE_SECONDS)
                line.idle -= 1
            if line.tasks and not self._is_closed:
                return line.tasks.popleft()
            line.judges.discard(judge)
            return None

    def _over(self, line: Line, task: CheckTask) -> None:
        """Deliver the finished requests at the head of the queue. Committer's thread only."""
        task.is_over = True
        while line.order and line.order[0].is_over:
            first = line.order.popleft()
            first.done(first.verdicts, first.error)

    def processes(self) -> dict[str, list[int]]:
        """Return the process ids of the hook processes, by queue."""
        found = {queue: [judge.process.pid for judge in [*line.judges]] for queue, line in self._lines.items()}
        return {queue: [pid for pid in pids if pid is not None] for queue, pids in found.items() if any(pids)}

    def close(self) -> None:
        """Kill running hooks. Waiting requests get no answer."""
        self._is_closed = True
        for line in self._lines.values():
            with line.bell:
                judges = [*line.judges]
                line.bell.notify_all()
            for judge in judges:
                judge.close()


class OwnLine:
    """Checks without an event loop, on the calling thread. One lock per queue serializes callers of the same queue."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._guard = threading.Lock()
        self._judges: dict[str, tuple[threading.Lock, Judge]] = {}

    def verdicts(self, needed: Uncleared) -> Verdicts:
        with self._guard:
            if needed.queue not in self._judges:
                self._judges[needed.queue] = threading.Lock(), _judge(self._gate)
            turn, judge = self._judges[needed.queue]
        with turn:
            return judge.verdicts(needed)

    def close(self) -> None:
        with self._guard:
            judges = [judge for _, judge in self._judges.values()]
            self._judges.clear()
        for judge in judges:
            judge.close()


def _judge(gate: Gate) -> "Judge":
    from yirangmq.broker.admission.hooks import Judge

    return Judge(gate)
