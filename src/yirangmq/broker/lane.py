"""The writer lane: all that callers ask for while one commit is under way becomes the next one.

There is no writer thread. A caller that finds the lane free becomes its leader: it takes everybody's waiting work into
one transaction, syncs once, hands out the replies, and passes the lead on. One caller pays one sync and no thread
switch; a hundred share one."""

import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol, TypeVar

from yirangmq.broker.gate import Gate, Uncleared, Verdicts
from yirangmq.broker.happenings import Happenings
from yirangmq.broker.lines import OwnLine
from yirangmq.broker.relief import relieve
from yirangmq.core.errors import HookFailed, QueueError, StoreError, StoreFull
from yirangmq.core.ports import Store, Transaction

Answer = TypeVar("Answer")
MOST_PER_COMMIT = 1000
"""Past this a commit only gets later, not cheaper."""
MOST_ROUNDS = 100
"""How often work may need messages looked at: once for each queue that it goes to."""


class Way(Protocol):
    """How work reaches the store: ``Lane`` here, ``broker.pages.DeskLane`` inside a server."""

    def run(self, work: Callable[[Transaction], Answer]) -> Answer: ...

    def read(self, work: Callable[[Transaction], Answer]) -> Answer: ...


class _Job:
    __slots__ = ("cleared", "error", "lead", "uncleared", "value", "wake", "work")

    def __init__(self, work: Callable[[Transaction], Any], cleared: Verdicts | None = None) -> None:
        self.work = work
        self.cleared = cleared
        self.uncleared: Uncleared | None = None
        self.value: Any = None
        self.error: BaseException | None = None
        self.lead = False
        self.wake: threading.Event | None = None


class Lane:
    """One per store and process. ``run`` returns when the work is on disk, or raises what went wrong. ``happened``:
    what the work tells of itself, passed on after each commit. ``gate``: that of the verbs, where work publishes."""

    def __init__(self, store: Store, happened: Happenings | None = None, gate: Gate | None = None) -> None:
        self._store = store
        self._gate = gate
        self._own = OwnLine(gate) if gate is not None else None
        if gate is not None:
            gate.can_wait = True
        self._happened = Happenings() if happened is None else happened
        self._guard = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._busy = False

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        """``work`` decides before it writes: if it raises one of our errors it has changed nothing."""
        job = self._done(_Job(work))
        for _ in range(MOST_ROUNDS):
            if job.uncleared is None or self._own is None:
                break
            found = self._own.verdicts(job.uncleared)  # outside of the lane: nobody else waits for it
            job = self._done(_Job(work, {**(job.cleared or {}), **found}))
        if job.error is not None:
            raise job.error
        if job.uncleared is not None:
            raise HookFailed(f"the processor of queue {job.uncleared.queue!r} cannot run here", field="processor")
        answer: Answer = job.value
        return answer

    def look_at(self, needed: Uncleared) -> Verdicts:
        """Messages that are not to be stored."""
        if self._own is None:
            raise HookFailed("processors cannot be tried here", field="processor")
        return self._own.verdicts(needed)

    def close(self) -> None:
        """Processes in which hooks ran are ended."""
        if self._own is not None:
            self._own.close()

    def _done(self, job: _Job) -> _Job:
        with self._guard:
            if self._busy:
                job.wake = threading.Event()
                self._waiting.append(job)
            else:
                self._busy = job.lead = True
        if job.wake is not None:
            self._await_turn(job, job.wake)
        if job.lead:
            self._lead(job)
        return job

    def _await_turn(self, job: _Job, wake: threading.Event) -> None:
        try:
            wake.wait()
        except BaseException:  # this thread is being stopped: the lane must not wait for it
            with self._guard:
                heir = None
                if job in self._waiting:
                    self._waiting.remove(job)
                elif job.lead:
                    heir = self._pass_on()
            if heir is not None and heir.wake is not None:
                heir.wake.set()
            raise

    def _pass_on(self) -> _Job | None:
        """With the guard held: the next in line leads, or the lane is free."""
        if not self._waiting:
            self._busy = False
            return None
        heir = self._waiting.popleft()
        heir.lead = True
        return heir

    def read(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Work that changes nothing: no place in the lane, no sync."""
        with self._store.transaction(write=False) as transaction:
            return work(transaction)

    def _lead(self, own: _Job) -> None:
        batch = [own]
        try:
            with self._guard:
                while self._waiting and len(batch) < MOST_PER_COMMIT:
                    batch.append(self._waiting.popleft())
            self._commit(batch)
        finally:
            with self._guard:
                heir = self._pass_on()
            for job in [*batch, heir] if heir is not None else batch:
                if job.wake is not None and job is not own:
                    job.wake.set()

    def _commit(self, batch: list[_Job]) -> None:
        """All in one transaction; if the store or a bug stops it, each alone, so that one cannot fail the others."""
        try:
            self._repeated(batch)
        except Exception as error:
            for job in batch:
                job.error = error
            if len(batch) > 1:
                for job in batch:
                    self._alone(job)
        except BaseException:
            for job in batch:
                job.error = _interrupted()
            raise

    def _repeated(self, batch: list[_Job]) -> None:
        """A second time if there was no space and the store had some reserved."""
        try:
            self._transact(batch)
        except StoreFull as error:
            if not relieve(self._store, error):
                raise
            for job in batch:
                job.error = job.uncleared = None
            self._transact(batch)

    def _transact(self, batch: list[_Job]) -> None:
        """One transaction; what happened in it is told once it is on disk, and forgotten if it never gets there."""
        try:
            begun = perf_counter()
            with self._store.transaction() as transaction:
                for job in batch:
                    self._perform(job, transaction)
                worked = perf_counter()
        except BaseException:
            self._happened.forget()
            raise
        self._happened.committed(len(batch), worked - begun, perf_counter() - worked)
        self._happened.tell()

    def _alone(self, job: _Job) -> None:
        try:
            job.error = job.uncleared = None
            self._repeated([job])
        except Exception as error:
            job.error = error
        except BaseException:
            job.error = _interrupted()
            raise

    def _perform(self, job: _Job, transaction: Transaction) -> None:
        if self._gate is not None:
            self._gate.cleared = job.cleared
        try:
            job.value = job.work(transaction)
        except StoreError:
            raise
        except QueueError as error:
            job.error = error
        except Uncleared as needed:
            job.uncleared = needed


def _interrupted() -> StoreError:
    return StoreError("interrupted before it was confirmed")
