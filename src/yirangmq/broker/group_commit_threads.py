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

from yirangmq.broker.admission.admission import AdmissionControl, NeedsCheck, Verdicts
from yirangmq.broker.admission.workers import InlineChecks
from yirangmq.broker.commit_jobs import MAX_CHECK_ROUNDS, MAX_PER_COMMIT, CommitJob, Job, JobRunner, no_processor
from yirangmq.broker.event_buffer import EventBuffer
from yirangmq.core.errors import HookFailed, StoreError
from yirangmq.core.ports import Store, Transaction

Answer = TypeVar("Answer")
WaitingThread = tuple[Job, threading.Event]
"""The job of a waiting thread. The event is set when the job is done, or when the thread becomes the leader."""


class CommitterPort(Protocol):
    """Committer port: runs work in a commit. ``ThreadedGroupCommitter`` implements it here,
    ``admin.registry.CrossThreadCommitter`` in a server."""

    def run(self, work: Callable[[Transaction], Answer]) -> Answer: ...

    def read(self, work: Callable[[Transaction], Answer]) -> Answer: ...


class ThreadedGroupCommitter:
    """Group commit for threads. One instance per store and process; thread-safe.

    ``run`` returns when the work is durable, or raises its error. ``event_buffer`` buffers the events of the work,
    which are published after each commit. ``admission`` is the admission control of the operations, if the work
    publishes."""

    def __init__(
        self, store: Store, event_buffer: EventBuffer | None = None, admission: AdmissionControl | None = None
    ) -> None:
        self._store = store
        self._own = InlineChecks(admission) if admission is not None else None
        if admission is not None:
            admission.can_wait = True
        self._event_buffer = EventBuffer() if event_buffer is None else event_buffer
        self._guard = threading.Lock()
        self._runner = JobRunner(store, self._event_buffer, admission)
        self._waiting: deque[WaitingThread] = deque()
        self._leader: Job | None = None
        """The job whose thread commits or is about to; None if there is no leader."""

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Run ``work`` in a commit. It decides before it writes: if it raises a ``QueueError``, it changed nothing."""
        job = Job(work)
        self._commit_and_wait(job)
        verdicts: Verdicts = {}
        for _ in range(MAX_CHECK_ROUNDS):
            if type(job.value) is not NeedsCheck or self._own is None:
                break
            verdicts = {**verdicts, **self._own.verdicts(job.value)}  # outside of the commit: no other caller waits
            job = Job(work)
            self._runner.known_verdicts[job] = verdicts
            try:
                self._commit_and_wait(job)
            finally:
                del self._runner.known_verdicts[job]
        if job.error is not None:
            raise job.error
        if type(job.value) is NeedsCheck:
            raise no_processor(job.value)
        answer: Answer = job.value
        return answer

    def dry_run(self, needed: NeedsCheck) -> Verdicts:
        """Dry run: check messages without storing them; return the verdicts."""
        if self._own is None:
            raise HookFailed("processors cannot be tried here", field="processor")
        return self._own.verdicts(needed)

    def close(self) -> None:
        """Stop the processes in which hooks ran."""
        if self._own is not None:
            self._own.close()

    def _commit_and_wait(self, job: Job) -> None:
        """Commit a job: as the leader, or by waiting for the leader. Return when the job is durable or has failed.

        If messages must be checked first, the job's value is an ``NeedsCheck``. A thread that is interrupted at any
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

    def _hand_over(self, job: Job, gathered: Sequence[WaitingThread]) -> None:
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
        gathered: list[WaitingThread] = []
        batch: list[CommitJob] = [own]
        try:
            with self._guard:
                if self._waiting:
                    line = [*self._waiting]
                    rest = deque(line[MAX_PER_COMMIT - 1 :])
                    gathered, self._waiting = line[: MAX_PER_COMMIT - 1], rest  # no signal is handled in between
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

    def _commit(self, batch: list[CommitJob]) -> None:
        """Commit the batch in one transaction. If the store or a bug fails it, commit each job alone, so that none can
        fail the others."""
        needing_check = self._runner.needing_check
        try:
            self._runner.commit(batch)
            self._event_buffer.publish()
        except Exception as error:
            self._fail(batch, error)
            if len(batch) > 1:
                for job in batch:
                    self._commit_one(job)
        finally:
            if needing_check:
                for job, needed in needing_check.items():
                    job.value = needed
                needing_check.clear()

    def _commit_one(self, job: CommitJob) -> None:
        self._runner.reset([job])
        try:
            self._runner.commit([job])
            self._event_buffer.publish()
        except Exception as error:
            self._fail([job], error)

    def _fail(self, batch: Sequence[CommitJob], error: Any) -> None:
        """Set the error of all jobs. Callers get it unchanged, whether it is a ``QueueError`` or not."""
        for job in batch:
            job.error = error


def _interrupted() -> StoreError:
    return StoreError("interrupted before it was confirmed")
