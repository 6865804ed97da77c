"""Group commit for threads, with a leader and followers and no writer thread.

A caller that finds no leader becomes the leader. It takes all waiting jobs into a transaction, syncs once, returns the
results and passes the lead to the next waiting caller. Jobs that arrive during a commit form the next batch. A single
caller pays an fsync and no thread switch; a hundred callers share an fsync.

If the store fails a batch, each job is committed alone. A caller that is interrupted (Ctrl-C) leaves the wait list; if
it led, its batch fails unconfirmed. Admission checks run in the caller's thread outside of the commit. Reads neither
wait for a leader nor sync."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from yirangmq.broker.admission.admission import Gate, Uncleared, Verdicts
from yirangmq.broker.admission.workers import OwnLine
from yirangmq.broker.commit_jobs import MOST_PER_COMMIT, MOST_ROUNDS, Job, JobRunner, Task, no_processor
from yirangmq.broker.event_buffer import Happenings
from yirangmq.core.errors import HookFailed, StoreError
from yirangmq.core.ports import Store, Transaction

Answer = TypeVar("Answer")
Waiter = tuple[Job, threading.Event]
"""The job of a waiting thread. The event is set when the job is done, or when the thread becomes the leader."""


class Way(Protocol):
    """Committer port: runs work in a commit. ``Lane`` implements it here, ``admin.registry.DeskLane`` in a server."""

    def run(self, work: Callable[[Transaction], Answer]) -> Answer: ...

    def read(self, work: Callable[[Transaction], Answer]) -> Answer: ...


class Lane:
    """Group commit for threads. One instance per store and process; thread-safe.

    ``run`` returns when the work is durable, or raises its error. ``happened`` buffers the events of the work, which
    are published after each commit. ``gate`` is the admission control of the operations, if the work publishes."""

    def __init__(self, store: Store, happened: Happenings | None = None, gate: Gate | None = None) -> None:
        self._store = store
        self._own = OwnLine(gate) if gate is not None else None
        if gate is not None:
            gate.can_wait = True
        self._happened = Happenings() if happened is None else happened
        self._guard = threading.Lock()
        self._runner = JobRunner(store, self._happened, gate)
        self._waiting: deque[Waiter] = deque()
        self._leader: Job | None = None
        """The job whose thread commits or is about to; None if there is no leader."""

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Run ``work`` in a commit. It decides before it writes: if it raises a ``QueueError``, it changed nothing."""
        job = Job(work)
        self._done(job)
        verdicts: Verdicts = {}
        for _ in range(MOST_ROUNDS):
            if type(job.value) is not Uncleared or self._own is None:
                break
            verdicts = {**verdicts, **self._own.verdicts(job.value)}  # outside of the commit: no other caller waits
            job = Job(work)
            self._runner.cleared[job] = verdicts
            try:
                self._done(job)
            finally:
                del self._runner.cleared[job]
        if job.error is not None:
            raise job.error
        if type(job.value) is Uncleared:
            raise no_processor(job.value)
        answer: Answer = job.value
        return answer

    def look_at(self, needed: Uncleared) -> Verdicts:
        """Dry run: check messages without storing them; return the verdicts."""
        if self._own is None:
            raise HookFailed("processors cannot be tried here", field="processor")
        return self._own.verdicts(needed)

    def close(self) -> None:
        """Stop the processes in which hooks ran."""
        if self._own is not None:
            self._own.close()

    def _done(self, job: Job) -> None:
        """Commit a job: as the leader, or by waiting for the leader. Return when the job is durable or has failed.

        If messages must be checked first, the job's value is an ``Uncleared``. A thread that is interrupted at any
        point (Ctrl-C) leaves the wait list."""
        try:
            wake: threading.Event | None = None
            with self._guard:
                if self._leader is None:
                    self._leader = job
                else:
                    wake = threading.Event()
                    self._waiting.append((job, wake))
            if wake is not None:
                wake.wait()
            if self._leader is job:
                self._lead(job)
        except BaseException:
            self._leave(job)
            raise

    def _leave(self, job: Job) -> None:
        with self._guard:
            for waiter in self._waiting:
                if waiter[0] is job:
                    self._waiting.remove(waiter)
                    break
        self._hand_over(job, ())

    def _hand_over(self, job: Job, gathered: Sequence[Waiter]) -> None:
        """If ``job`` leads, make the first waiting job the leader, or leave no leader if none waits. Then wake the
        threads of ``gathered`` and the new leader's. Idempotent: a leader that is still in the wait list has not
        started and is woken again."""
        with self._guard:
            heir = self._waiting[0] if self._waiting else None
            if self._leader is job:
                self._leader = None if heir is None else heir[0]
            elif heir is not None and heir[0] is not self._leader:
                heir = None
        for _, wake in gathered:
            wake.set()
        if heir is not None:
            heir[1].set()

    def read(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Run read-only work: without waiting for the leader, and without a sync."""
        with self._store.transaction(write=False) as transaction:
            return work(transaction)

    def _lead(self, own: Job) -> None:
        """Commit as the leader. ``own`` is the first waiting job, or arrived when there was no leader."""
        gathered: list[Waiter] = []
        batch: list[Task] = [own]
        try:
            with self._guard:
                if self._waiting:
                    line = [*self._waiting]
                    rest = deque(line[MOST_PER_COMMIT - 1 :])
                    gathered, self._waiting = line[: MOST_PER_COMMIT - 1], rest  # no signal is handled in between
            if gathered:
                batch += [job for job, _ in gathered if job is not own]
            self._commit(batch)
        except BaseException:  # this thread is interrupted: no job of the batch is confirmed
            self._fail([own, *(job for job, _ in gathered)], _interrupted())
            raise
        finally:
            try:
                self._hand_over(own, gathered)
            except BaseException:
                self._hand_over(own, gathered)
                raise

    def _commit(self, batch: list[Task]) -> None:
        """Commit the batch in one transaction. If the store or a bug fails it, commit each job alone, so that none can
        fail the others."""
        uncleared = self._runner.uncleared
        try:
            self._runner.commit(batch)
            self._happened.tell()
        except Exception as error:
            self._fail(batch, error)
            if len(batch) > 1:
                for job in batch:
                    self._alone(job)
        finally:
            if uncleared:
                for job, needed in uncleared.items():
                    job.value = needed
                uncleared.clear()

    def _alone(self, job: Task) -> None:
        self._runner.reset([job])
        try:
            self._runner.commit([job])
            self._happened.tell()
        except Exception as error:
            self._fail([job], error)

    def _fail(self, batch: Sequence[Task], error: Any) -> None:
        """Set the error of all jobs. Callers get it unchanged, whether it is a ``QueueError`` or not."""
        for job in batch:
            job.error = error


def _interrupted() -> StoreError:
    return StoreError("interrupted before it was confirmed")
