"""The recovery workers: a few threads, each serving many clients by turns, chosen round robin. A client that does not
read is polled, not waited for. Threads begin with the first recovery.

Knows: runs and when they can go on. Does not know: what they send, the loop."""

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Collection

from yirangmq.core.errors import QueueError
from yirangmq.topics.courtesy import STEP, Courtesy
from yirangmq.topics.run import Outcome, Run
from yirangmq.topics.stage import Pace

LOOK_SECONDS = 1.0
"""How often stalled clients are looked for."""

Ended = Callable[[Run, Outcome], None]


class Worker:
    """One thread. ``ended`` is called from it, with a run that it has let go of."""

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
        """By the number of the descriptor that is polled; a run owns its descriptor, so no other has that number."""
        self._sleeping: list[Run] = []
        """Those without a descriptor, until they are woken."""
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
        """Look at everything anew. One wake-up is enough for any number of reasons."""
        if self._bell >= 0:
            try:
                os.write(self._bell, b"!")
            except BlockingIOError:  # it has not heard the last ones yet
                return

    def stop(self) -> None:
        """Ends the thread; runs that are under way are closed where they are."""
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
        """It was stopped, and does nothing any more."""
        return self._bell < 0

    # -- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._is_stopping:
            self.turn(self._patience())

    def turn(self, seconds: float | None) -> None:
        """Wait so long for something to do, then give everybody who can go on a turn."""
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
        """Seconds to wait for something to happen; None: for ever."""
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
        except Exception as error:  # a fault of ours in one recovery must not end the others
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
    """The pool. ``call`` runs something on the loop's thread, soon."""

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
            except RuntimeError:  # the loop has ended: nobody is left to tell
                run.close()

        return tell

    def resize(self, count: int) -> None:
        """So many from now on. Those that are too many end what they are at, and are let go of by ``rest``."""
        while len(self.workers) < count:
            self.workers.append(Worker(f"recovery-{len(self.workers)}", self._ended, self._pace, self._courtesy))
        self._retired += self.workers[count:]
        del self.workers[count:]

    def rest(self, busy: Collection[Worker]) -> None:
        """Those that are not needed any more and have nothing left to do go."""
        for worker in [worker for worker in self._retired if worker not in busy]:
            self._retired.remove(worker)
            worker.stop()

    def choose(self) -> Worker:
        """The next one in turn."""
        worker = self.workers[self._next % len(self.workers)]
        self._next += 1
        return worker

    def stop(self) -> None:
        for worker in (*self.workers, *self._retired):
            worker.stop()
