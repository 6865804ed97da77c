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

from yirangmq.core.errors import QueueError, StoreDamaged
from yirangmq.core.topics import FileRange, LogReader, RecordFrames
from yirangmq.topics.ports import CatchupOutput, CatchupPacing, CatchupRange, CatchupResult, EncodedRecords, Recovering

# -- one catch-up ------------------------------------------------------------------------------------------------------

MAX_PIECE_BYTES = 4 << 20
"""Maximum size in bytes of a range sent between two checks for control messages."""
PROGRESS_SECONDS = 1.0
UNASKED = (0,)
"""Request number in the messages of a recovery that answers no request."""


class Catchup:
    """Catch-up of one client. Created on the loop's thread, then used by one worker thread.

    ``cancel`` and ``give_way`` may be called from any thread."""

    def __init__(
        self,
        task: CatchupRange,
        reader: LogReader,
        output: CatchupOutput,
        *,
        deferred: Callable[[], bytes],
        can_take_over: Callable[[int], bool],
        completed: Callable[["Catchup"], None],
        times: Callable[[], tuple[float, int]],
    ) -> None:
        """``deferred`` removes and returns the bytes that the loop has deferred for this client. ``can_take_over`` is
        true if the loop can take over after the given sequence. ``completed`` is called when the target is reached.
        ``times`` returns a monotonic time in seconds and the wall-clock time in nanoseconds since 1970."""
        self.task = task
        self.output = output
        self.cursor = task.after
        self.sent = 0
        self.announced: int | None = None
        """Number of records up to the target, once they are counted."""
        self.taken = 0
        """Bytes that the client's socket accepted."""
        self.error: QueueError | None = None
        self._moved_at, _ = times()
        self.is_cancelled = False
        self.is_abandoned = False
        self._gives_way = False
        self._reader = reader
        self._wanted = None if task.filter.is_all else task.filter.wants
        self._deferred = deferred
        self._can_take_over = can_take_over
        self._completed = completed
        self._times = times
        self._progress_sent_at = self._moved_at
        self._unsent = memoryview(b"")
        self._piece: FileRange | None = None
        self._left = 0
        self._parts: Iterator[FileRange | RecordFrames] | None = None
        self._goal = task.target
        self._is_announced = False
        self._is_complete = False

    # -- from the loop's thread -----------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop at the start of the next frame."""
        self.is_cancelled = True

    def give_way(self) -> None:
        """Stop for a recovery that the subscriber asks for: after the completion of this one, or at the start of the
        next frame if this one answers no request."""
        self._gives_way = True

    def abandon(self) -> None:
        """Stop immediately, even inside a frame: the client is gone."""
        self.is_abandoned = True

    def close(self) -> None:
        """Close the reader and the output. Called by the last thread that holds the catch-up."""
        self._drop_parts()
        self._reader.close()
        self.output.close()

    # -- on the worker --------------------------------------------------------------------------------------------

    def step(self, budget: int) -> CatchupResult:
        """Send up to about ``budget`` bytes, without blocking."""
        try:
            while budget > 0:
                if self.is_abandoned:
                    return CatchupResult.GONE
                if self._left or self._unsent:
                    budget -= self._push(budget)
                elif not self._prepare():
                    return CatchupResult.DONE
                else:
                    budget -= 1  # a read of the log costs budget too, so that the loop ends
        except BlockingIOError:
            return CatchupResult.BLOCKED
        except QueueError as error:
            self.error = error
            return CatchupResult.FAILED
        except OSError:
            return CatchupResult.GONE
        return CatchupResult.MORE

    def idle_seconds(self) -> float:
        """Return the seconds since the client last accepted bytes."""
        return self._times()[0] - self._moved_at

    def _push(self, most: int) -> int:
        if self._unsent:
            count = self.output.send(self._unsent[:most])
            self._unsent = self._unsent[count:]
        else:
            count = self._push_file(most)
        self._moved_at, _ = self._times()
        self.taken += count
        return count

    def _push_file(self, most: int) -> int:
        piece = self._piece
        if piece is None:
            raise StoreDamaged("there is nothing to send")
        offset = piece.offset + piece.length - self._left
        count = self.output.send_file(piece.file, offset, min(self._left, most))
        if count == 0:
            raise StoreDamaged(f"the log ends inside a record after sequence {self.cursor}")
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
        deferred = self._deferred()
        if deferred:
            self._unsent = memoryview(deferred)
            return True
        if self.is_cancelled or (self._gives_way and (self._is_complete or not self.task.requests)):
            return False
        if not self._is_announced:
            self._announce()
            return True
        if self._prepare_progress():
            return True
        return self._next_part() or self._extend_goal()

    def _announce(self) -> None:
        """Set up the message that announces the catch-up: its range, the number of records, and the gaps."""
        task = self.task
        self._is_announced = True
        start, stop = task.after + 1, task.target + 1
        count = self._reader.count(start, stop, self._wanted) if task.is_counted or self._wanted is None else None
        self.announced = count
        gaps = [gap for gap in self._reader.gaps() if gap.last >= start and gap.first < stop]
        about = Recovering(task.announced_start or start, task.target, count, gaps)
        self._unsent = memoryview(b"".join(task.dialect.recovering(one, about) for one in task.requests or UNASKED))

    def _prepare_progress(self) -> bool:
        now, at_ns = self._times()
        if now - self._progress_sent_at < PROGRESS_SECONDS:
            return False
        self._progress_sent_at = now
        words = self.task.dialect.progress(self.cursor, self.sent, self._reader.refresh(), at_ns)
        self._unsent = memoryview(words)
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
        if isinstance(part, FileRange):
            self._piece, self._left = part, part.length
        else:
            self._unsent = memoryview(self.task.dialect.records(EncodedRecords(part.data, part.records)))
            self._reach(part.last, part.records)
        return True

    def _open_parts(self, start: int, stop: int) -> Iterator[FileRange | RecordFrames]:
        if self.task.dialect.sends_stored:
            return iter(self._reader.parts(start, stop, self._wanted, MAX_PIECE_BYTES))
        return iter(self._reader.frames(start, stop, self._wanted))

    def _drop_parts(self) -> None:
        """Close the open segment."""
        parts, self._parts, self._piece = self._parts, None, None
        close = getattr(parts, "close", None)
        if close is not None:
            close()

    def _extend_goal(self) -> bool:
        """At the goal, report completion once. Then set a new goal at the end of the log.

        Return False if the loop can take over."""
        if not self._is_complete:
            self._is_complete = True
            _, at_ns = self._times()
            task = self.task
            frames = (task.dialect.complete(one, task.target, self.sent, at_ns) for one in task.requests or UNASKED)
            self._unsent = memoryview(b"".join(frames))
            self._completed(self)
            return True
        if self._can_take_over(self.cursor):
            return False
        self._goal = self._reader.refresh()
        return True


# -- rate limiter ------------------------------------------------------------------------------------------------------

LIVE_SECONDS = 0.25
"""Time in seconds after a live record during which more live records are expected."""
THROTTLED_STEP_BYTES = 256 * 1024
"""Bytes sent to one client at a time while throttling, so that the next client waits for no more than this."""


class CatchupRateLimiter:
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
    def is_throttling(self) -> bool:
        return self._seconds() < self._live_until

    def wait(self) -> float:
        """Return the seconds until catch-up may send again."""
        now = self._seconds()
        return max(0.0, self._free_at - now) if now < self._live_until else 0.0

    def sent(self, size: int) -> None:
        """Account for ``size`` bytes that catch-up has sent."""
        if size and self.rate and self.is_throttling:
            with self._lock:
                self._free_at = max(self._free_at, self._seconds()) + size / self.rate


# -- workers -----------------------------------------------------------------------------------------------------------

STALL_CHECK_SECONDS = 1.0
"""Interval in seconds between two checks for stalled clients."""

EndedCallback = Callable[[Catchup, CatchupResult], None]


class CatchupWorker:
    """Worker thread that serves many catch-ups round robin.

    ``on_ended`` is called on the worker's thread, with a run that the worker no longer uses. The loop wakes the thread
    through a self-pipe."""

    def __init__(
        self, name: str, on_ended: EndedCallback, pacing: CatchupPacing, rate_limiter: CatchupRateLimiter
    ) -> None:
        self._name = name
        self._pacing = pacing
        self._rate_limiter = rate_limiter
        self._on_ended = on_ended
        self._inbox: deque[Catchup] = deque()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._poll = select.poll()
        self._wake_read_fd, self._wake_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._wake_read_fd, select.POLLIN)
        self._ready: deque[Catchup] = deque()
        self._blocked: dict[int, Catchup] = {}
        """Runs by the descriptor that is polled. A run owns its descriptor, so the number is unique."""
        self._sleeping: list[Catchup] = []
        """Runs without a descriptor, until ``wake`` is called."""
        self.runs = 0
        self.started = 0

    # -- from the loop's thread -----------------------------------------------------------------------------------

    def add(self, run: Catchup) -> None:
        self.started += 1
        self._inbox.append(run)
        if self._thread is None and self._pacing.threaded:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Write to the self-pipe, so that the thread checks all runs again. Wake-ups coalesce."""
        if self._wake_write_fd >= 0:
            try:
                os.write(self._wake_write_fd, b"!")
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
        os.close(self._wake_read_fd)
        os.close(self._wake_write_fd)
        self._wake_write_fd = -1

    @property
    def is_over(self) -> bool:
        """True after ``stop``."""
        return self._wake_write_fd < 0

    # -- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._is_stopping:
            self.run_once(self._poll_timeout())

    def run_once(self, seconds: float | None) -> None:
        """Wait up to ``seconds`` for an event, then run one step of each run that can send."""
        self._poll_events(seconds)
        self._accept_new()
        for _ in range(len(self._ready)):
            if self._rate_limiter.wait():
                break
            self._run_step(self._ready.popleft())
        self._count()

    def _count(self) -> None:
        self.runs = len(self._ready) + len(self._blocked) + len(self._sleeping)

    def _poll_timeout(self) -> float | None:
        """Return the timeout of the next poll in seconds, or None to wait without a limit."""
        if self._inbox:
            return 0
        if self._ready:
            return self._rate_limiter.wait()
        return STALL_CHECK_SECONDS if self._blocked or self._sleeping else None

    def _poll_events(self, seconds: float | None) -> None:
        for number, _ in self._poll.poll(None if seconds is None else seconds * 1000):
            if number == self._wake_read_fd:
                self._drain_wake_pipe()
            else:
                self._poll.unregister(number)
                self._ready.append(self._blocked.pop(number))

    def _drain_wake_pipe(self) -> None:
        try:
            while os.read(self._wake_read_fd, 4096):
                continue
        except BlockingIOError:
            self._ready += self._sleeping
            self._sleeping.clear()

    def _accept_new(self) -> None:
        while self._inbox:
            self._ready.append(self._inbox.popleft())
        self._count()
        lost = [run for run in (*self._blocked.values(), *self._sleeping) if run.is_abandoned or self._is_stalled(run)]
        for run in lost:
            if run in self._sleeping:
                self._sleeping.remove(run)
            else:
                number = run.output.fileno()
                self._poll.unregister(number)
                del self._blocked[number]
            self._end(run, CatchupResult.GONE if run.is_abandoned else CatchupResult.STALLED)

    def _is_stalled(self, run: Catchup) -> bool:
        return run.idle_seconds() > self._pacing.stall_seconds

    def _run_step(self, run: Catchup) -> None:
        before, rate_limiter = run.taken, self._rate_limiter
        try:
            outcome = run.step(THROTTLED_STEP_BYTES if rate_limiter.is_throttling else self._pacing.budget)
        except Exception as error:  # a defect that one catch-up triggers must not end the others
            run.error = QueueError(f"{type(error).__name__}: {error}")
            outcome = CatchupResult.FAILED
        rate_limiter.sent(run.taken - before)
        if outcome is CatchupResult.MORE:
            self._ready.append(run)
        elif outcome is CatchupResult.BLOCKED:
            self._await_writable(run)
        else:
            self._end(run, outcome)

    def _await_writable(self, run: Catchup) -> None:
        number = run.output.fileno()
        if number < 0:
            self._sleeping.append(run)
        else:
            self._blocked[number] = run
            self._poll.register(number, select.POLLOUT)

    def _end(self, run: Catchup, outcome: CatchupResult) -> None:
        if outcome in (CatchupResult.GONE, CatchupResult.STALLED):
            run.close()
        self._on_ended(run, outcome)


class CatchupPool:
    """Pool of catch-up workers. Loop thread only.

    ``call`` schedules a function on the loop's thread, from any thread."""

    def __init__(
        self,
        workers: int,
        on_ended: EndedCallback,
        call: Callable[[Callable[[], None]], object],
        pacing: CatchupPacing,
        rate_limiter: CatchupRateLimiter,
    ) -> None:
        self._call = call
        self._rate_limiter = rate_limiter
        self._on_ended = self._on_loop_thread(on_ended)
        self._pacing = pacing
        self._next = 0
        self._retired: list[CatchupWorker] = []
        self.workers: list[CatchupWorker] = []
        self.resize(workers)

    def _on_loop_thread(self, on_ended: EndedCallback) -> EndedCallback:
        def report_end(run: Catchup, outcome: CatchupResult) -> None:
            try:
                self._call(lambda: on_ended(run, outcome))
            except RuntimeError:  # the loop is closed
                run.close()

        return report_end

    def resize(self, count: int) -> None:
        """Set the number of workers. Surplus workers finish their catch-ups; ``stop_surplus`` then stops
        them."""
        while len(self.workers) < count:
            self.workers.append(
                CatchupWorker(f"recovery-{len(self.workers)}", self._on_ended, self._pacing, self._rate_limiter)
            )
        self._retired += self.workers[count:]
        del self.workers[count:]

    def stop_surplus(self, busy: Collection[CatchupWorker]) -> None:
        """Stop the surplus workers that are not in ``busy``."""
        for worker in [worker for worker in self._retired if worker not in busy]:
            self._retired.remove(worker)
            worker.stop()

    def choose(self) -> CatchupWorker:
        """Return the next worker, round robin."""
        worker = self.workers[self._next % len(self.workers)]
        self._next += 1
        return worker

    def stop(self) -> None:
        for worker in (*self.workers, *self._retired):
            worker.stop()
