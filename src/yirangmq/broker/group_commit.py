"""Group commit on the event loop.

All jobs submitted during a loop iteration run in a single store transaction with a single fsync; waiting consumers are
served in the same transaction. Replies are sent after the commit is durable. Under load (``CROWD``) the next commit
waits up to ``TURNS_TO_GATHER`` loop iterations for more jobs.

If the store fails a batch, each job is committed alone, so that no job can fail the others. A long job has a commit of
its own on another thread; other jobs wait until it is durable. While another process holds the store's lock, reads are
answered and other jobs wait (``broker.commit_jobs``). On a standby, reads are answered and everything else is refused.
If the node loses its active role during a commit, the batch is refused, so that clients retry at the active node.

Independent of asyncio: ``soon`` runs a callback after the current loop iteration, ``later`` after some seconds. Not
thread-safe: loop thread only."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NoReturn, TypeVar

from yirangmq.broker.admission.admission import Uncleared
from yirangmq.broker.admission.workers import Cleared, Clearing
from yirangmq.broker.commit_jobs import (
    BUSY_SECONDS,
    MOST_PER_COMMIT,
    Aside,
    BusyWait,
    DeferredAdmission,
    Done,
    Job,
    JobRunner,
    Long,
    StoreProbe,
    Task,
    no_reply,
    relieve,
    reply_error,
)
from yirangmq.broker.operations import Verbs
from yirangmq.broker.read_only_jobs import run_on_standby, run_reads
from yirangmq.broker.settle import Leases
from yirangmq.broker.waiting_consumers import Served, Serving, Taker
from yirangmq.core.active_guard import Always, Duty, check
from yirangmq.core.errors import QueueError, StoreBusy, StoreError, Unavailable
from yirangmq.core.ports import Clock, Store, Transaction
from yirangmq.format.delivery import Delivery

Answer = TypeVar("Answer")
CROWD = 4
"""Requests in a commit from which on the next one waits a little for more."""
TURNS_TO_GATHER = 3
"""Turns of the loop, each some millionths of a second: whoever was just answered may ask again in them."""
LONGEST_SLEEP = 60.0
"""Timers stand still while the machine is suspended; what fell due meanwhile is late by this at most."""


class Desk:
    """Used from one thread, the loop's. It has at most 29 attributes: CPython 3.11 looks those of an instance with
    more up in its dict, which takes longer."""

    def __init__(
        self,
        store: Store,
        verbs: Verbs,
        clock: Clock,
        soon: Callable[[Callable[[], None]], Any],
        later: Callable[[float, Callable[[], None]], Any],
        seconds: Callable[[], float] = perf_counter,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        """``busy_seconds``: how long a request waits for a lock that another process holds."""
        self.verbs = verbs
        self._store = store
        self._clock = clock
        self._soon = soon
        self.later = later
        self._seconds = seconds
        self._jobs: deque[Task] = deque()
        self._long: deque[Long] = deque()
        self._is_away = False
        """A long commit is being made on another thread."""
        self.busy = BusyWait(busy_seconds, later, self.plan)
        """Requests that wait while another process holds the store's lock."""
        self.serving = Serving(verbs, clock, later, self.plan)
        self._planned = False
        self._crowd = self._to_pass = 0
        """Requests of the latest commit; turns of the loop before the next."""
        self._alarm_at: int | None = None
        self.before_commit: list[Callable[[], None]] = []
        """Called when there is a commit anyway: what could have waited for another one joins it."""
        self.on_taken: list[Callable[[], None]] = []
        """Hooks that run when the jobs of the next commit have been taken, before its transaction begins: whatever
        collects requests into an enlisted job closes it here, so that a transaction that never begins leaves no job
        open."""
        self.after_commit: list[Callable[[], None]] = []
        """Called when answers were given: they may leave."""
        self.is_answering = False
        """Answers are being given, and ``after_commit`` follows in this same turn of the loop."""
        self.probe = StoreProbe(self, seconds)
        self.duty: Duty = Always()
        """Whether anything may be changed or handed out now."""
        self._runner = JobRunner(store, verbs.happened, verbs.gate, seconds)
        self._admission = DeferredAdmission(verbs.gate, self._runner, self)

    def clear_by(self, clearing: Clearing) -> None:
        """Who looks at messages that queues' processors want looked at outside of a transaction."""
        self._admission.use(clearing)

    def look_at(self, needed: Uncleared, done: Cleared) -> None:
        """Messages that are not to be stored."""
        self._admission.dry_run(needed, done)

    def submit(self, work: Callable[[Transaction], Answer], done: Callable[[Any, QueueError | None], None]) -> None:
        """``work`` joins the next commit; ``done(value, error)`` is called when that is on disk, or refused."""
        self.enlist(Job(work, done))

    def submit_long(self, work: Callable[[Transaction], Answer], done: Done, aside: Aside) -> None:
        """The same for work that takes long: it has a commit of its own, on the thread of ``aside``. The loop goes on
        meanwhile; what is asked of this desk waits until the commit is on disk."""
        self.enlist(Long(work, done, aside))

    def enlist(self, job: Task) -> None:
        if isinstance(job, Long):
            self._long.append(job)
        else:
            self._jobs.append(job)
        self.plan()

    def read(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Work that changes nothing, now."""
        with self._store.transaction(write=False) as transaction:
            return work(transaction)

    def wait(self, taker: Taker) -> None:
        """Serve this consumer as soon as its queue has something, in order of arrival."""
        check(self.duty)
        self.serving.wait(taker)

    def leave(self, taker: Taker) -> None:
        """It no longer waits, and takes nothing."""
        self.serving.leave(taker)

    def waiting(self, queue: str) -> list[Taker]:
        """Who waits for messages of this queue, who is next first."""
        return list(self.serving.takers.get(queue, ()))

    def hungry(self, queue: str) -> None:
        """A consumer of this queue can take more now."""
        self.serving.wake(queue)

    def news(self) -> None:
        """Somebody else may have changed the store: look again for all who wait."""
        self.serving.wake_all()

    @property
    def is_idle(self) -> bool:
        """Nothing is asked for that is not answered."""
        if self.busy.since is not None:
            return False
        return not (self._jobs or self._planned or self._admission.rounds or self._long or self._is_away)

    def plan(self) -> None:
        """A commit is due: it is made when the current turn of the loop is over."""
        if not self._planned:
            self._planned = True
            self._to_pass = TURNS_TO_GATHER if self._crowd >= CROWD else 0
            self._soon(self._next if self._to_pass else self._turn)

    def _next(self) -> None:
        """Where many ask, who is about to ask joins them: a commit costs nearly the same for all of them."""
        if self._to_pass:
            self._to_pass -= 1
            self._soon(self._next)
        else:
            self._turn()

    def _turn(self) -> None:
        """One commit for all that wait, then everybody's answer; then work that takes long, one at a time."""
        if not self._is_away:
            for hook in self.before_commit:  # as ``_run_hooks``, without a call
                try:
                    hook()
                except Exception as error:
                    self.report(error)
        self._planned = False
        if self._is_away:
            return
        batch = self._next_batch()
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
            batch = self.busy.tasks + batch
        is_on = self.duty.is_on
        served = self._commit(batch) if is_on else self._look(batch)
        if served is None:
            self._wait_for_lock(batch)
            return
        if self.busy.since is not None:
            self.busy.free()
            if isinstance(self.probe.trouble, StoreBusy):
                self.probe.trouble = None
        if is_on and not self.duty.is_on:
            served = self._too_late(batch)
        self.is_answering = True
        try:
            self._answer_batch(batch, served)
        finally:
            self.flush()
            self._run_hooks((self.verbs.happened.tell,))
            if self._long:
                self._go(self._long.popleft())
            elif self._jobs:
                self.plan()

    def _next_batch(self) -> list[Task]:
        jobs = self._jobs
        if len(jobs) > MOST_PER_COMMIT:
            return [jobs.popleft() for _ in range(MOST_PER_COMMIT)]
        batch = [*jobs]
        jobs.clear()
        return batch

    def _answer_batch(self, batch: list[Task], served: Served) -> None:
        uncleared = self._runner.uncleared
        if uncleared:
            self._runner.uncleared = {}
        for job in batch:
            if uncleared and job in uncleared and job.error is None:
                self._admission.defer(job, uncleared[job])
            else:
                self.answer(job)
        for taker, deliveries in served:
            try:
                is_taken = taker.take(deliveries)
            except Exception as error:
                self.report(error)
                is_taken = False
            if not is_taken:
                self._put_back(deliveries)

    def _go(self, job: Long) -> None:
        self._is_away = True
        if not self.duty.is_on:
            self._back(job, self.duty.refusal())
            return
        try:
            job.aside(lambda: self._alone(job), lambda _, error: self._back(job, error))
        except Exception as error:  # no thread could be started
            self._back(job, Unavailable(f"cannot start long work: {error}"))

    def _back(self, job: Long, error: QueueError | None) -> None:
        """Who waits for what it brought is served by the next commit."""
        self._is_away = False
        needed = self._runner.uncleared.pop(job, None)
        if isinstance(job.error, StoreBusy):
            job.error = None
            self._long.appendleft(job)
            self._wait_for_lock([])
            return
        if isinstance(job.error, StoreError):
            self.probe.failed(job.error)
        job.error = job.error or error or (None if self.duty.is_on else self.duty.refusal())
        if needed is not None and job.error is None:
            self._admission.defer(job, needed)
        else:
            self.answer(job)
        self.flush()
        self._run_hooks((self.verbs.happened.tell,))
        self.plan()

    def flush(self) -> None:
        self.is_answering = False
        self._run_hooks(self.after_commit)

    def _run_hooks(self, hooks: Sequence[Callable[[], None]]) -> None:
        """An error in one hook is reported to the event loop and keeps no other hook from running."""
        for hook in hooks:
            try:
                hook()
            except Exception as error:
                self.report(error)

    def report(self, error: Exception) -> None:
        """The event loop's exception handler gets it, after this turn."""
        self._soon(partial(_throw, error))

    # -- another process holds the store's lock -----------------------------------------------------------------

    def _wait_for_lock(self, batch: list[Task]) -> None:
        """Nothing of the batch is done. Requests that only read are answered where the store can be read without the
        lock; the others wait, until the timer has got the lock or their deadline has passed."""
        busy, now = self.busy, self._seconds()
        held = set(busy.tasks) if busy.since is not None else ()
        busy.hold(self._not_read([job for job in batch if job not in held]), self._long, now)
        self.is_answering = True
        try:
            for job in busy.expired(now):
                if isinstance(job, Long):
                    self._long.remove(job)
                job.error = self.probe.trouble = busy.refusal()
                self.answer(job)
        finally:
            self.flush()
        busy.start_timer()
        if self._jobs:
            self.plan()

    def _not_read(self, batch: list[Task]) -> list[Task]:
        """Requests that only read are answered from a transaction without the write lock; the others are returned."""
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
        """The transaction was rolled back."""
        self.verbs.happened.forget()
        self.verbs.dispatching.attending.doubt()
        self.verbs.touched.clear()
        self.probe.is_written = False

    def _look(self, batch: list[Task]) -> Served | None:
        """A standby: reads are answered, nothing is changed and no consumer is served. None: the store is busy."""
        if not run_on_standby(self._store, self._runner, batch, self.duty):
            return None
        self.verbs.happened.forget()
        self.serving.hungry.clear()
        self.verbs.touched.clear()
        return []

    def _too_late(self, batch: list[Task]) -> Served:
        """Duty ended while this was being written, as when the process was frozen: nobody is told that it was done, so
        that they ask the active node, with the same ids. Leases that nobody got lapse by themselves."""
        for job in batch:
            job.error = job.error or self.duty.refusal()
        return []

    def awake(self) -> None:
        """Duty has begun, or ended: what time has brought meanwhile is done, and who waits is served."""
        self._alarm_at = None
        if self.duty.is_on:
            self.resume_time()
            self.submit(self.verbs.sweep, no_reply)
            self.news()

    def resume_time(self) -> None:
        """Go by the store time on record, which another node, or this one before a restart, may have moved on."""
        try:
            self.read(self.verbs.store_time.resume)
        except QueueError:
            self.verbs.store_time.renew()  # the store is in trouble; the clock goes on as it is

    def answer(self, job: Task) -> None:
        """A fault in one answer is reported by whoever runs us, and takes no other answer with it."""
        if self._admission.rounds:
            self._admission.forget(job)
        try:
            job.done(job.value, job.error)
        except Exception as error:
            self.report(error)

    def _commit(self, batch: list[Task], *, is_second: bool = False) -> Served | None:
        """All in one transaction; if the store stops it, each alone, so that one cannot fail the others. None: another
        process holds the store's lock, and nothing was done."""
        happened = self.verbs.happened
        try:
            begun = self._seconds()
            with self._store.transaction() as transaction:
                requests = self._runner.run(batch, transaction)
                served = self.serving.serve(transaction)
                self._set_alarm(transaction)
                worked = self._seconds()
            requests = self._crowd = requests + len(served)
            ended = self._seconds()
            if happened.committed(requests, worked - begun, ended - worked) or self.probe.is_written:
                self.probe.wrote(ended)
            return served
        except StoreBusy:
            self._forget()
            self._runner.reset(batch)
            self.serving.hungry.update(self.serving.takers)
            return None
        except Exception as error:
            happened.forget()
            self.verbs.dispatching.attending.doubt()
            if not is_second and relieve(self._store, error):
                self._runner.reset(batch)
                return self._commit(batch, is_second=True)
            self.probe.failed(error)
            if len(batch) == 1:
                batch[0].error = reply_error(error)
            else:
                for job in batch:
                    self._alone(job)
            self.serving.hungry.update(self.serving.takers)
            return []

    @property
    def trouble(self) -> Exception | None:
        """Why the latest commit that wrote something failed, until one succeeds; None if it did not."""
        return self.probe.trouble

    @property
    def seconds_busy(self) -> float:
        """Since another process was found to hold the store's lock; 0: none does."""
        return 0.0 if self.busy.since is None else self._seconds() - self.busy.since

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def _alone(self, job: Task) -> None:
        """A commit for one job: the shared one failed, or it is a long one, on another thread."""
        self._runner.reset([job])
        try:
            if self._runner.commit([job]) or self.probe.is_written:
                self.probe.wrote(self._seconds())
        except Exception as error:
            job.error = reply_error(error)

    def _put_back(self, deliveries: Sequence[Delivery]) -> None:
        leases = Leases([delivery.lease_id for delivery in deliveries])
        self.submit(lambda transaction: self.verbs.release(transaction, leases, None), no_reply)

    def _set_alarm(self, transaction: Transaction) -> None:
        """Wake when time next has something to do."""
        due = transaction.next_due(before=self._alarm_at)
        if due is None:
            return
        self._alarm_at = due
        seconds = max(0.0, (due - self._clock.now_ms()) / 1000)
        self.later(min(seconds, LONGEST_SLEEP), lambda: self._ring(due))

    def _ring(self, due: int) -> None:
        if self._alarm_at == due and self.duty.is_on:
            self._alarm_at = None
            self.submit(self.verbs.sweep, no_reply)


def _throw(error: Exception) -> NoReturn:
    raise error
