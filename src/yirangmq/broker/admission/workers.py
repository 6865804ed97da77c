"""Check workers: a pool of threads and hook processes per queue, for checks outside of a transaction.

Each queue has its own pool, so that a slow processor delays no other queue. Results are delivered on the committer's
thread, for each queue in the order of the requests. A thread that is idle for ``IDLE_SECONDS`` ends with its process.
When too much waits for a queue (``MOST_WAITING``, ``MOST_BYTES``), further requests are refused.

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
"""A thread with nothing to do for so long ends, and its process with it."""
MOST_WAITING = 10_000
MOST_BYTES = 64 * 1024 * 1024
"""What may wait in the line of one queue, but for a single request that is larger; more is refused."""
Cleared = Callable[[Verdicts, QueueError | None], None]


class Clearing(Protocol):
    """How a desk has messages looked at."""

    def clear(self, needed: Uncleared, done: Cleared) -> None:
        """``done`` is called on the desk's thread, those of one queue in the order in which they were asked for."""

    def is_busy(self, queue: str) -> bool: ...


class CheckTask:
    __slots__ = ("done", "error", "is_over", "needed", "size", "verdicts")

    def __init__(self, needed: Uncleared, done: Cleared) -> None:
        self.needed = needed
        self.done = done
        self.size = sum(len(envelope.payload) for envelope in needed.envelopes)
        self.verdicts: Verdicts = {}
        self.error: QueueError | None = None
        self.is_over = False


class Line:
    """Of one queue. ``order`` is the desk's thread's alone, the rest is guarded by ``bell``."""

    def __init__(self) -> None:
        self.order: deque[CheckTask] = deque()
        self.bell = threading.Condition()
        self.tasks: deque[CheckTask] = deque()
        self.judges: set[Judge] = set()  # loaded when the first one is needed
        self.idle = 0

    @property
    def messages(self) -> int:
        return sum(len(task.needed.envelopes) for task in self.order)

    @property
    def size(self) -> int:
        return sum(task.size for task in self.order)


class Lines:
    """``call`` runs something on the desk's thread, soon, from any other."""

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
            if line.idle >= len(line.tasks):  # one that was rung for still counts as idle until it has its task
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
            except RuntimeError:  # the loop is closed: nobody waits any more
                break
        judge.close()

    def _next(self, line: Line, judge: "Judge") -> CheckTask | None:
        """None: there was nothing to do for long, and this thread is no longer counted."""
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
        """On the desk's thread: what is at the head of the line and known is told."""
        task.is_over = True
        while line.order and line.order[0].is_over:
            first = line.order.popleft()
            first.done(first.verdicts, first.error)

    def processes(self) -> dict[str, list[int]]:
        """By queue, the processes in which its hooks run now."""
        found = {queue: [judge.process.pid for judge in [*line.judges]] for queue, line in self._lines.items()}
        return {queue: [pid for pid in pids if pid is not None] for queue, pids in found.items() if any(pids)}

    def close(self) -> None:
        """Hooks that run are cut off; who waits is told no more."""
        self._is_closed = True
        for line in self._lines.values():
            with line.bell:
                judges = [*line.judges]
                line.bell.notify_all()
            for judge in judges:
                judge.close()


class OwnLine:
    """For a store of one's own: whoever asks waits, and delays nobody but those who ask for the same queue."""

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
