"""Catch-up (recovery): sending history from the log to one client, its rate limiter, and its workers.

A catch-up sends the records up to its target and reports that it is complete. It then sends newer records until the
loop can take over from its position. It works in steps that never block, and it always ends with a whole frame.

While live records are sent, the rate limiter bounds all catch-up together to ``rate`` bytes/s. Otherwise it would take
processors and network from the subscribers that are up to date.

A worker is a thread that serves many catch-ups round robin; it polls a client that does not read. The pool assigns
clients to workers in turn. Threads start with the first catch-up."""

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import NamedTuple

from yirangmq.core.errors import QueueError, StoreDamaged
from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import Frames, LogReader, Piece
from yirangmq.topics.ports import Batch, Dialect, Outlet, Pace, Recovering

# -- one catch-up ------------------------------------------------------------------------------------------------------

PIECE = 4 << 20
"""Maximum size in bytes of a range sent between two checks for control messages."""
PROGRESS_SECONDS = 1.0


class Outcome(Enum):
    """Result of one step of a catch-up."""

    MORE = "it can go on at once"
    BLOCKED = "the client must read first"
    DONE = "nothing is left, or it was asked to stop"
    GONE = "the client is not there any more"
    STALLED = "the client has taken nothing for too long"
    FAILED = "the log cannot give what is needed"


class Task(NamedTuple):
    """Range of a catch-up: the matching records after ``after`` up to ``target``, then those published meanwhile.

    ``request``: number of the request that this answers. ``is_counted``: announce the number of records first."""

    filter: Filter
    dialect: Dialect
    after: int
    target: int
    request: int = 0
    is_counted: bool = True


class Run:
    """Catch-up of one client. Created on the loop's thread, then used by one worker thread.

    ``cancel`` may be called from any thread."""

    def __init__(
        self,
        task: Task,
        reader: LogReader,
        outlet: Outlet,
        *,
        owed: Callable[[], bytes],
        is_near: Callable[[int], bool],
        completed: Callable[["Run"], None],
        times: Callable[[], tuple[float, int]],
    ) -> None:
        """``owed`` removes and returns the bytes that the loop has deferred for this client. ``is_near`` is true if
        the loop can take over after the given sequence. ``completed`` is called when the target is reached.
        ``times`` returns a monotonic time in seconds and the wall-clock time in nanoseconds since 1970."""
        self.task = task
        self.outlet = outlet
        self.cursor = task.after
        self.sent = 0
        self.taken = 0
        """Bytes that the client's socket accepted."""
        self.error: QueueError | None = None
        self._moved_at, _ = times()
        self.is_cancelled = False
        self.is_abandoned = False
        self._reader = reader
        self._wanted = None if task.filter.is_all else task.filter.wants
        self._owed = owed
        self._is_near = is_near
        self._completed = completed
        self._times = times
        self._told_at = self._moved_at
        self._rest = memoryview(b"")
        self._piece: Piece | None = None
        self._left = 0
        self._parts: Iterator[Piece | Frames] | None = None
        self._goal = task.target
        self._is_announced = False
        self._is_complete = False

    # -- from the loop's thread -----------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop at the start of the next frame."""
        self.is_cancelled = True

    def abandon(self) -> None:
        """Stop immediately, even inside a frame: the client is gone."""
        self.is_abandoned = True

    def close(self) -> None:
        """Close the reader and the outlet. Called by the last thread that holds the run."""
        self._drop_parts()
        self._reader.close()
        self.outlet.close()

    # -- on the worker --------------------------------------------------------------------------------------------

    def step(self, budget: int) -> Outcome:
        """Send up to about ``budget`` bytes, without blocking."""
        try:
            while budget > 0:
                if self.is_abandoned:
                    return Outcome.GONE
                if self._left or self._rest:
                    budget -= self._push(budget)
                elif not self._prepare():
                    return Outcome.DONE
                else:
                    budget -= 1  # a read of the log costs budget too, so that the loop ends
        except BlockingIOError:
            return Outcome.BLOCKED
        except QueueError as error:
            self.error = error
            return Outcome.FAILED
        except OSError:
            return Outcome.GONE
        return Outcome.MORE

    def still_for(self) -> float:
        """Return the seconds since the client last accepted bytes."""
        return self._times()[0] - self._moved_at

    def _push(self, most: int) -> int:
        if self._rest:
            count = self.outlet.send(self._rest[:most])
            self._rest = self._rest[count:]
        else:
            count = self._push_file(most)
        self._moved_at, _ = self._times()
        self.taken += count
        return count

    def _push_file(self, most: int) -> int:
        piece = self._piece
        if piece is None:
            raise StoreDamaged("there is no piece to send")
        offset = piece.offset + piece.length - self._left
        count = self.outlet.send_file(piece.file, offset, min(self._left, most))
        if count == 0:
            raise StoreDamaged(f"the log ends in the middle of what follows sequence {self.cursor}")
        self._left -= count
        if not self._left:
            self._reach(piece.last, piece.last - piece.first + 1)
        return count

    def _reach(self, sequence: int, count: int) -> None:
        self.cursor = sequence
        self.sent += count

    # -- between two frames ---------------------------------------------------------------------------------------

    def _prepare(self) -> bool:
        """Set up what to send next: deferred bytes, a control message or records. Return False if none are left."""
        owed = self._owed()
        if owed:
            self._rest = memoryview(owed)
            return True
        if self.is_cancelled:
            return False
        if not self._is_announced:
            self._announce()
            return True
        if self._tell_progress():
            return True
        return self._next_part() or self._go_on()

    def _announce(self) -> None:
        """Set up the message that announces the catch-up: its range, the number of records, and the gaps."""
        task = self.task
        self._is_announced = True
        start, stop = task.after + 1, task.target + 1
        count = self._reader.count(start, stop, self._wanted) if task.is_counted or self._wanted is None else None
        gaps = [gap for gap in self._reader.gaps() if gap.last >= start and gap.first < stop]
        self._rest = memoryview(task.dialect.recovering(task.request, Recovering(start, task.target, count, gaps)))

    def _tell_progress(self) -> bool:
        now, at_ns = self._times()
        if now - self._told_at < PROGRESS_SECONDS:
            return False
        self._told_at = now
        words = self.task.dialect.progress(self.cursor, self.sent, self._reader.refresh(), at_ns)
        self._rest = memoryview(words)
        return bool(words)

    def _next_part(self) -> bool:
        """Set up the next part of the range up to the goal. Return False if the goal is reached."""
        if self.cursor >= self._goal:
            self._drop_parts()
            return False
        if self._parts is None:
            self._parts = self._open_parts(self.cursor + 1, self._goal + 1)
        part = next(self._parts, None)
        if part is None:
            self._drop_parts()
            self.cursor = self._goal  # the remaining records do not match the filter, or are lost
            return False
        if isinstance(part, Piece):
            self._piece, self._left = part, part.length
        else:
            self._rest = memoryview(self.task.dialect.records(Batch(part.data, part.records)))
            self._reach(part.last, part.records)
        return True

    def _open_parts(self, start: int, stop: int) -> Iterator[Piece | Frames]:
        if self._wanted is None and self.task.dialect.sends_stored:
            return iter(self._reader.pieces(start, stop, size=PIECE))
        return iter(self._reader.frames(start, stop, self._wanted))

    def _drop_parts(self) -> None:
        """Close the open segment."""
        parts, self._parts, self._piece = self._parts, None, None
        close = getattr(parts, "close", None)
        if close is not None:
            close()

    def _go_on(self) -> bool:
        """At the goal, report completion once. Then set a new goal at the end of the log.

        Return False if the loop can take over."""
        if not self._is_complete:
            self._is_complete = True
            _, at_ns = self._times()
            task = self.task
            self._rest = memoryview(task.dialect.complete(task.request, task.target, self.sent, at_ns))
            self._completed(self)
            return True
        if self._is_near(self.cursor):
            return False
        self._goal = self._reader.refresh()
        return True


# -- rate limiter ------------------------------------------------------------------------------------------------------

LIVE_SECONDS = 0.25
"""Time in seconds after a live record during which more live records are expected."""
STEP = 256 * 1024
"""Bytes sent to one client at a time while throttling, so that the next client waits for no more than this."""


class Courtesy:
    """Rate limiter: bounds all catch-up together to ``rate`` bytes/s while live records are sent; 0 is no limit.

    ``live`` is called on the loop's thread, the other methods on any thread."""

    def __init__(self, rate: int, seconds: Callable[[], float]) -> None:
        self.rate = rate
        self._seconds = seconds
        self._lock = threading.Lock()
        self._live_until = 0.0
        self._free_at = 0.0

    def live(self) -> None:
        """Note that a live record is sent: throttle for the next ``LIVE_SECONDS``."""
        if self.rate:
            self._live_until = self._seconds() + LIVE_SECONDS

    @property
    def is_asked(self) -> bool:
        return self._seconds() < self._live_until

    def wait(self) -> float:
        """Return the seconds until catch-up may send again."""
        now = self._seconds()
        return max(0.0, self._free_at - now) if now < self._live_until else 0.0

    def sent(self, size: int) -> None:
        """Account for ``size`` bytes that catch-up has sent."""
        if size and self.rate and self.is_asked:
            with self._lock:
                self._free_at = max(self._free_at, self._seconds()) + size / self.rate


# -- workers -----------------------------------------------------------------------------------------------------------

LOOK_SECONDS = 1.0
"""Interval in seconds between two checks for stalled clients."""

Ended = Callable[[Run, Outcome], None]


class Worker:
    """Worker thread that serves many catch-ups round robin.

    ``ended`` is called on the worker's thread, with a run that the worker no longer uses. The loop wakes the thread
    through a self-pipe."""

    def __init__(self, name: str, ended: Ended, pace: Pace, courtesy: Courtesy) -> None:
        self._name = name
        self._pace = pace
        self._courtesy = courtesy
        self._ended = ended
        self._inbox: deque[Run] = deque()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._poll = select.poll()
        self._ear, self._bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._ear, select.POLLIN)
        self._ready: deque[Run] = deque()
        self._blocked: dict[int, Run] = {}
        """Runs by the descriptor that is polled. A run owns its descriptor, so the number is unique."""
        self._sleeping: list[Run] = []
        """Runs without a descriptor, until ``wake`` is called."""
        self.runs = 0
        self.begun = 0

    # -- from the loop's thread -----------------------------------------------------------------------------------

    def add(self, run: Run) -> None:
        self.begun += 1
        self._inbox.append(run)
        if self._thread is None and self._pace.threaded:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Write to the self-pipe, so that the thread checks all runs again. Wake-ups coalesce."""
        if self._bell >= 0:
            try:
                os.write(self._bell, b"!")
            except BlockingIOError:  # the pipe is full of earlier wake-ups
                return

    def stop(self) -> None:
        """End the thread, and close unfinished runs at their positions."""
        self._is_stopping = True
        if self._thread is not None:
            self.wake()
            self._thread.join()
        for run in [*self._inbox, *self._ready, *self._sleeping, *self._blocked.values()]:
            run.close()
        os.close(self._ear)
        os.close(self._bell)
        self._bell = -1

    @property
    def is_over(self) -> bool:
        """True after ``stop``."""
        return self._bell < 0

    # -- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._is_stopping:
            self.turn(self._patience())

    def turn(self, seconds: float | None) -> None:
        """Wait up to ``seconds`` for an event, then run one step of each run that can send."""
        self._listen(seconds)
        self._take_in()
        for _ in range(len(self._ready)):
            if self._courtesy.wait():
                break
            self._serve(self._ready.popleft())
        self._count()

    def _count(self) -> None:
        self.runs = len(self._ready) + len(self._blocked) + len(self._sleeping)

    def _patience(self) -> float | None:
        """Return the timeout of the next poll in seconds, or None to wait without a limit."""
        if self._inbox:
            return 0
        if self._ready:
            return self._courtesy.wait()
        return LOOK_SECONDS if self._blocked or self._sleeping else None

    def _listen(self, seconds: float | None) -> None:
        for number, _ in self._poll.poll(None if seconds is None else seconds * 1000):
            if number == self._ear:
                self._hear_bell()
            else:
                self._poll.unregister(number)
                self._ready.append(self._blocked.pop(number))

    def _hear_bell(self) -> None:
        try:
            while os.read(self._ear, 4096):
                continue
        except BlockingIOError:
            self._ready += self._sleeping
            self._sleeping.clear()

    def _take_in(self) -> None:
        while self._inbox:
            self._ready.append(self._inbox.popleft())
        self._count()
        lost = [run for run in (*self._blocked.values(), *self._sleeping) if run.is_abandoned or self._is_stalled(run)]
        for run in lost:
            if run in self._sleeping:
                self._sleeping.remove(run)
            else:
                number = run.outlet.fileno()
                self._poll.unregister(number)
                del self._blocked[number]
            self._end(run, Outcome.GONE if run.is_abandoned else Outcome.STALLED)

    def _is_stalled(self, run: Run) -> bool:
        return run.still_for() > self._pace.stall_seconds

    def _serve(self, run: Run) -> None:
        before, courtesy = run.taken, self._courtesy
        try:
            outcome = run.step(STEP if courtesy.is_asked else self._pace.budget)
        except Exception as error:  # a defect that one catch-up triggers must not end the others
            run.error = QueueError(f"{type(error).__name__}: {error}")
            outcome = Outcome.FAILED
        courtesy.sent(run.taken - before)
        if outcome is Outcome.MORE:
            self._ready.append(run)
        elif outcome is Outcome.BLOCKED:
            self._park(run)
        else:
            self._end(run, outcome)

    def _park(self, run: Run) -> None:
        number = run.outlet.fileno()
        if number < 0:
            self._sleeping.append(run)
        else:
            self._blocked[number] = run
            self._poll.register(number, select.POLLOUT)

    def _end(self, run: Run, outcome: Outcome) -> None:
        if outcome in (Outcome.GONE, Outcome.STALLED):
            run.close()
        self._ended(run, outcome)


class Recovery:
    """Pool of catch-up workers. Loop thread only.

    ``call`` schedules a function on the loop's thread, from any thread."""

    def __init__(
        self,
        workers: int,
        ended: Ended,
        call: Callable[[Callable[[], None]], object],
        pace: Pace,
        courtesy: Courtesy,
    ) -> None:
        self._call = call
        self._courtesy = courtesy
        self._ended = self._pass_on(ended)
        self._pace = pace
        self._next = 0
        self._retired: list[Worker] = []
        self.workers: list[Worker] = []
        self.resize(workers)

    def _pass_on(self, ended: Ended) -> Ended:
        def tell(run: Run, outcome: Outcome) -> None:
            try:
                self._call(lambda: ended(run, outcome))
            except RuntimeError:  # the loop is closed
                run.close()

        return tell

    def resize(self, count: int) -> None:
        """Set the number of workers. Surplus workers finish their runs; ``rest`` then stops them."""
        while len(self.workers) < count:
            self.workers.append(Worker(f"recovery-{len(self.workers)}", self._ended, self._pace, self._courtesy))
        self._retired += self.workers[count:]
        del self.workers[count:]

    def rest(self, busy: Collection[Worker]) -> None:
        """Stop the surplus workers that are not in ``busy``."""
        for worker in [worker for worker in self._retired if worker not in busy]:
            self._retired.remove(worker)
            worker.stop()

    def choose(self) -> Worker:
        """Return the next worker, round robin."""
        worker = self.workers[self._next % len(self.workers)]
        self._next += 1
        return worker

    def stop(self) -> None:
        for worker in (*self.workers, *self._retired):
            worker.stop()
