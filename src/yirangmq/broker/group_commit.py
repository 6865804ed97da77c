"""Group commit on the event loop.

All jobs submitted during a loop iteration run in a single store transaction with a single fsync; waiting consumers are
served in the same transaction. Replies are sent after the commit is durable. Under load (``LOAD_THRESHOLD``) the next
commit waits up to ``GATHER_ITERATIONS`` loop iterations for more jobs. For threads: ``broker.group_commit_threads``.

If the store fails a batch, each job is committed alone, so that no job can fail the others. A long job is committed
separately on another thread; other jobs wait until it is durable. While another process holds the store's lock, reads
are answered and other jobs wait (``broker.commit_jobs``). On a standby, reads are answered and everything else is
refused. If the node loses its active role during a commit, the batch is refused, so that clients retry at the active
node.

Independent of asyncio: ``soon`` runs a callback after the current loop iteration, ``later`` after a delay in seconds.
Not thread-safe: loop thread only."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NoReturn, TypeVar

from yirangmq.broker.admission.admission import NeedsCheck
from yirangmq.broker.admission.workers import CheckPort, OnChecked
from yirangmq.broker.commit_jobs import (
    BUSY_SECONDS,
    MAX_PER_COMMIT,
    CommitJob,
    DeferredAdmission,
    Done,
    Job,
    JobRunner,
    LockWait,
    LongJob,
    RunInThread,
    StoreProbe,
    no_reply,
    relieve,
    reply_error,
)
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.expiry_sweeper import sweep
from yirangmq.broker.read_only_jobs import run_on_standby, run_reads
from yirangmq.broker.settle import Leases, release
from yirangmq.broker.waiting_consumers import Served, Waiter, WaitingConsumers
from yirangmq.core.active_guard import ActiveGuard, AlwaysActive, check
from yirangmq.core.errors import QueueError, StoreBusy, StoreError, Unavailable
from yirangmq.core.ports import Clock, Store, Transaction
from yirangmq.format.delivery import MessageDelivery

Answer = TypeVar("Answer")
LOAD_THRESHOLD = 4
"""Requests per commit from which on the next commit waits up to ``GATHER_ITERATIONS`` loop iterations for more."""
GATHER_ITERATIONS = 3
"""Loop iterations, each a few µs: clients that were just answered can send their next request in them."""
MAX_TIMER_SECONDS = 60.0
"""Upper bound of a timer, in seconds. Timers stop while the machine is suspended, so work that fell due meanwhile is
late by this at most."""


class GroupCommitter:
    """Group commit on the event loop, with a wait list of consumers. Loop thread only.

    An error in a hook is reported to the event loop; the other hooks still run.

    It has at most 29 attributes: CPython 3.11 looks up the attributes of an instance with more in its dict, which is
    slower."""

    def __init__(
        self,
        store: Store,
        context: TransactionContext,
        clock: Clock,
        soon: Callable[[Callable[[], None]], Any],
        later: Callable[[float, Callable[[], None]], Any],
        seconds: Callable[[], float] = perf_counter,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        """``busy_seconds``: how long a request waits while another process holds the store's lock, in seconds."""
        self.context = context
        self._store = store
        self._clock = clock
        self._soon = soon
        self.later = later
        self._seconds = seconds
        self._jobs: deque[CommitJob] = deque()
        self._long: deque[LongJob] = deque()
        self._is_running_long_job = False
        """True while a long job is committed on another thread."""
        self.busy = LockWait(busy_seconds, later, self.plan)
        """Jobs that wait while another process holds the store's lock."""
        self.waiting_consumers = WaitingConsumers(context, clock, later, self.plan)
        self._planned = False
        self._crowd = self._to_pass = 0
        """Requests in the latest commit; loop iterations to wait before the next commit."""
        self._alarm_at: int | None = None
        self.before_commit: list[Callable[[], None]] = []
        """Hooks that run just before a commit that is already scheduled. Use them to piggyback non-urgent work."""
        self.on_taken: list[Callable[[], None]] = []
        """Hooks that run when the jobs of the next commit have been taken, before its transaction begins. A component
        that collects requests into an enlisted job closes the job here, so that a transaction that never begins leaves
        no job open."""
        self.after_commit: list[Callable[[], None]] = []
        """Hooks that run after the jobs are answered: connections send their buffered responses."""
        self.is_answering = False
        """True while jobs are answered; ``after_commit`` follows in the same loop iteration."""
        self.probe = StoreProbe(self, seconds)
        self.guard: ActiveGuard = AlwaysActive()
        """Active guard: whether messages may be changed or leased now."""
        self._runner = JobRunner(store, context.event_buffer, context.admission, seconds)
        self._admission = DeferredAdmission(context.admission, self._runner, self)

    def set_check_workers(self, clearing: CheckPort) -> None:
        """Set the workers that check messages outside of a transaction, if the queue's processor requires it."""
        self._admission.use(clearing)

    def dry_run(self, needed: NeedsCheck, done: OnChecked) -> None:
        """Dry run: check messages without storing them; ``done`` receives the verdicts."""
        self._admission.dry_run(needed, done)

    def submit(self, work: Callable[[Transaction], Answer], done: Callable[[Any, QueueError | None], None]) -> None:
        """Run ``work`` in the next commit; call ``done(value, error)`` when the commit is durable or has failed."""
        self.enlist(Job(work, done))

    def submit_long(self, work: Callable[[Transaction], Answer], done: Done, run_in_thread: RunInThread) -> None:
        """Run long work in a separate commit, on the thread of ``run_in_thread``. The event loop continues meanwhile.
        Other jobs wait until that commit is durable."""
        self.enlist(LongJob(work, done, run_in_thread))

    def enlist(self, job: CommitJob) -> None:
        """Add a job to the next commit and schedule the commit."""
        if isinstance(job, LongJob):
            self._long.append(job)
        else:
            self._jobs.append(job)
        self.plan()

    def read(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Run read-only work now, without a commit."""
        with self._store.transaction(write=False) as transaction:
            return work(transaction)

    def add_waiter(self, waiter: Waiter) -> None:
        """Add a consumer to the wait list. It is served as soon as its queue has a message, in order of arrival."""
        check(self.guard)
        self.waiting_consumers.add_waiter(waiter)

    def remove_waiter(self, waiter: Waiter) -> None:
        """Remove a consumer from the wait list; it gets no more messages."""
        self.waiting_consumers.remove_waiter(waiter)

    def waiting(self, queue: str) -> list[Waiter]:
        """Return the consumers that wait for messages of this queue, the next one first."""
        return list(self.waiting_consumers.waiters.get(queue, ()))

    def notify_capacity(self, queue: str) -> None:
        """Notify that a consumer of this queue has capacity again."""
        self.waiting_consumers.wake(queue)

    def notify_external_change(self) -> None:
        """Notify that another process or thread may have changed the store: serve all waiting consumers again."""
        self.waiting_consumers.wake_all()

    @property
    def is_idle(self) -> bool:
        """True if no job is pending or unanswered."""
        if self.busy.since is not None:
            return False
        return not (self._jobs or self._planned or self._admission.rounds or self._long or self._is_running_long_job)

    def plan(self) -> None:
        """Schedule a commit after the current loop iteration."""
        if not self._planned:
            self._planned = True
            self._to_pass = GATHER_ITERATIONS if self._crowd >= LOAD_THRESHOLD else 0
            self._soon(self._next if self._to_pass else self._run_commit)

    def _next(self) -> None:
        """Wait for more requests under load: a commit costs nearly the same for all of them."""
        if self._to_pass:
            self._to_pass -= 1
            self._soon(self._next)
        else:
            self._run_commit()

    def _run_commit(self) -> None:
        """Commit all waiting jobs in one transaction, answer them, then start the next long job, one at a time."""
        if not self._is_running_long_job:
            for hook in self.before_commit:
                try:
                    hook()
                except Exception as error:
                    self.report(error)
        self._planned = False
        if self._is_running_long_job:
            return
        jobs = self._jobs
        if len(jobs) > MAX_PER_COMMIT:
            batch = [jobs.popleft() for _ in range(MAX_PER_COMMIT)]
        else:
            batch = [*jobs]
            jobs.clear()
        for hook in self.on_taken:
            try:
                hook()
            except Exception as error:
                self.report(error)
        if self.busy.since is not None:
            if not self.busy.is_due:
                self._wait_for_lock(batch)
                return
            self.busy.is_due = False
            batch = self.busy.jobs + batch
        is_on = self.guard.is_on
        served = self._commit(batch) if is_on else self._run_read_only(batch)
        if served is None:
            self._wait_for_lock(batch)
            return
        if self.busy.since is not None:
            self.busy.free()
            if isinstance(self.probe.last_error, StoreBusy):
                self.probe.last_error = None
        if is_on and not self.guard.is_on:
            served = self._fail_fenced(batch)
        self.is_answering = True
        try:
            self._answer_batch(batch, served)
        finally:
            self.flush()
            self.context.event_buffer.publish()
            if self._long:
                self._start_long_job(self._long.popleft())
            elif self._jobs:
                self.plan()

    def _answer_batch(self, batch: list[CommitJob], served: Served) -> None:
        needing_check = self._runner.needing_check
        if needing_check:
            self._runner.needing_check = {}
        for job in batch:
            if needing_check and job in needing_check and job.error is None:
                self._admission.defer(job, needing_check[job])
            else:
                self.answer(job)
        for waiter, deliveries in served:
            try:
                is_taken = waiter.take(deliveries)
            except Exception as error:
                self.report(error)
                is_taken = False
            if not is_taken:
                self._put_back(deliveries)

    def _start_long_job(self, job: LongJob) -> None:
        self._is_running_long_job = True
        if not self.guard.is_on:
            self._finish_long_job(job, self.guard.refusal())
            return
        try:
            job.run_in_thread(lambda: self._commit_one(job), lambda _, error: self._finish_long_job(job, error))
        except Exception as error:  # no thread could be started
            self._finish_long_job(job, Unavailable(f"cannot start long work: {error}"))

    def _finish_long_job(self, job: LongJob, error: QueueError | None) -> None:
        """Completion of a long job. Consumers that wait for its messages are served by the next commit."""
        self._is_running_long_job = False
        needed = self._runner.needing_check.pop(job, None)
        if isinstance(job.error, StoreBusy):
            job.error = None
            self._long.appendleft(job)
            self._wait_for_lock([])
            return
        if isinstance(job.error, StoreError):
            self.probe.failed(job.error)
        job.error = job.error or error or (None if self.guard.is_on else self.guard.refusal())
        if needed is not None and job.error is None:
            self._admission.defer(job, needed)
        else:
            self.answer(job)
        self.flush()
        self.context.event_buffer.publish()
        self.plan()

    def flush(self) -> None:
        """Run the ``after_commit`` hooks: buffered responses are sent."""
        self.is_answering = False
        for hook in self.after_commit:
            try:
                hook()
            except Exception as error:
                self.report(error)

    def report(self, error: Exception) -> None:
        """Pass an error to the event loop's exception handler, after this loop iteration."""
        self._soon(partial(_throw, error))

    # -- another process holds the store's lock -----------------------------------------------------------------

    def _wait_for_lock(self, batch: list[CommitJob]) -> None:
        """Keep a batch that has not run. Read-only jobs are answered if the store can be read without the lock. The
        others wait until a timed retry gets the lock or their deadline passes."""
        busy, now = self.busy, self._seconds()
        held = set(busy.jobs) if busy.since is not None else ()
        busy.add(self._not_read([job for job in batch if job not in held]), self._long, now)
        self.is_answering = True
        try:
            for job in busy.expired(now):
                if isinstance(job, LongJob):
                    self._long.remove(job)
                job.error = self.probe.last_error = busy.refusal()
                self.answer(job)
        finally:
            self.flush()
        busy.start_timer()
        if self._jobs:
            self.plan()

    def _not_read(self, batch: list[CommitJob]) -> list[CommitJob]:
        """Answer read-only jobs from a transaction without the write lock; return the others."""
        if not batch:
            return batch
        rest = run_reads(self._store, self._runner, batch)
        self._forget()
        waiting = set(rest)
        for job in batch:
            if job not in waiting:
                self.answer(job)
        return rest

    def _forget(self) -> None:
        """Drop the state of a transaction that was rolled back."""
        self.context.event_buffer.forget()
        self.context.dispatch.membership.invalidate()
        self.context.wake_queues.clear()
        self.probe.is_written = False

    def _run_read_only(self, batch: list[CommitJob]) -> Served | None:
        """Run a batch on a standby: reads are answered, nothing is changed and no consumer is served.

        Return None if the store is busy."""
        if not run_on_standby(self._store, self._runner, batch, self.guard):
            return None
        self.context.event_buffer.forget()
        self.waiting_consumers.due_queues.clear()
        self.context.wake_queues.clear()
        return []

    def _fail_fenced(self, batch: list[CommitJob]) -> Served:
        """Refuse a batch: the node lost its active role during the commit, such as by a freeze of the process.

        Clients get no success, so they retry at the active node with the same ids. Leases that were not delivered
        expire."""
        for job in batch:
            job.error = job.error or self.guard.refusal()
        return []

    def on_role_change(self) -> None:
        """Handle a change of role. A node that became active sweeps due messages and serves waiting consumers."""
        self._alarm_at = None
        if self.guard.is_on:
            self.resume_time()
            self.submit(partial(sweep, self.context), no_reply)
            self.notify_external_change()

    def resume_time(self) -> None:
        """Continue from the recorded store time: another node, or this one before a restart, may have advanced it."""
        try:
            self.read(self.context.store_time.resume)
        except QueueError:
            self.context.store_time.renew()  # the store cannot be read; store time continues unchanged

    def answer(self, job: CommitJob) -> None:
        """Call ``done`` of a job. An error in it is reported to the event loop and does not affect other jobs."""
        if self._admission.rounds:
            self._admission.forget(job)
        try:
            job.done(job.value, job.error)
        except Exception as error:
            self.report(error)

    def _commit(self, batch: list[CommitJob], *, is_second: bool = False) -> Served | None:
        """Commit the batch in one transaction; if the store fails it, commit each job alone, so that none can fail the
        others.

        Return None if another process holds the store's lock; then nothing has run."""
        event_buffer = self.context.event_buffer
        try:
            begun = self._seconds()
            with self._store.transaction() as transaction:
                requests = self._runner.run(batch, transaction)
                if self.waiting_consumers.waiters:
                    served = self.waiting_consumers.serve(transaction)
                else:
                    served = []
                    self.context.wake_queues.clear()
                due = transaction.next_due(before=self._alarm_at)
                if due is not None:
                    self._set_alarm(due)
                worked = self._seconds()
            requests = self._crowd = requests + len(served)
            ended = self._seconds()
            if event_buffer.committed(requests, worked - begun, ended - worked) or self.probe.is_written:
                self.probe.wrote(ended)
            return served
        except StoreBusy:
            self._forget()
            self._runner.reset(batch)
            self.waiting_consumers.due_queues.update(self.waiting_consumers.waiters)
            return None
        except Exception as error:
            event_buffer.forget()
            self.context.dispatch.membership.invalidate()
            if not is_second and relieve(self._store, error):
                self._runner.reset(batch)
                return self._commit(batch, is_second=True)
            self.probe.failed(error)
            if len(batch) == 1:
                batch[0].error = reply_error(error)
            else:
                for job in batch:
                    self._commit_one(job)
            self.waiting_consumers.due_queues.update(self.waiting_consumers.waiters)
            return []

    @property
    def last_error(self) -> Exception | None:
        """Error of the latest commit that wrote something, until a commit succeeds; None if it did not fail."""
        return self.probe.last_error

    @property
    def seconds_busy(self) -> float:
        """Seconds since another process was found to hold the store's lock; 0 if none does."""
        return 0.0 if self.busy.since is None else self._seconds() - self.busy.since

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def _commit_one(self, job: CommitJob) -> None:
        """Commit one job: after the shared commit failed, or a long job on another thread."""
        self._runner.reset([job])
        try:
            if self._runner.commit([job]) or self.probe.is_written:
                self.probe.wrote(self._seconds())
        except Exception as error:
            job.error = reply_error(error)

    def _put_back(self, deliveries: Sequence[MessageDelivery]) -> None:
        leases = Leases([delivery.lease_id for delivery in deliveries])
        self.submit(lambda transaction: release(self.context, transaction, leases, None), no_reply)

    def _set_alarm(self, due: int) -> None:
        """Set a timer for the next message that falls due."""
        self._alarm_at = due
        seconds = max(0.0, (due - self._clock.now_ms()) / 1000)
        self.later(min(seconds, MAX_TIMER_SECONDS), lambda: self._ring(due))

    def _ring(self, due: int) -> None:
        if self._alarm_at == due and self.guard.is_on:
            self._alarm_at = None
            self.submit(partial(sweep, self.context), no_reply)


def _throw(error: Exception) -> NoReturn:
    raise error
