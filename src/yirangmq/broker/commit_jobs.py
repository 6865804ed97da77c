"""Parts of a group commit: jobs and their runner, store probe, lock wait, admission outside transactions.

Both committers use the jobs and the runner: ``broker.group_commit`` on the event loop and
``broker.group_commit_threads`` for threads. They decide which jobs form a batch and how callers are answered. Probe,
lock wait and admission serve the event loop's committer only, on its thread.

Store probe: whether the store can be written now. A commit that changed something within ``FRESH_SECONDS`` proves it.
Otherwise the probe writes a note through the group commit, synced like any request. An answer comes within
``PROBE_SECONDS``, even if the store does not respond. Concurrent callers share a probe.

Reserved space: a commit that found no space is repeated once, if the store can release space that it had reserved
(``stores.reserve``).

Lock wait: the event loop never sleeps for a lock. If another process holds the store's lock (``StoreBusy``), a timer
retries the commit. Its requests wait in order of arrival, each until its deadline. An expired request is refused with
``store_busy`` and never runs again, so it stores nothing later.

Admission: a job whose messages need hooks or long checks stops and waits for ``broker.admission.workers``. Then it runs
again from the beginning, with the verdicts."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from yirangmq.broker.admission.admission import AdmissionControl, NeedsCheck, Verdicts
from yirangmq.broker.admission.workers import CheckPort, OnChecked
from yirangmq.broker.event_buffer import EventBuffer
from yirangmq.core.backoff import Backoff
from yirangmq.core.errors import HookFailed, QueueError, StoreBusy, StoreError, StoreFull
from yirangmq.core.ports import Store, Transaction

if TYPE_CHECKING:
    from yirangmq.broker.group_commit import GroupCommitter


# -- store probe -------------------------------------------------------------------------------------------------------

PROBE_SECONDS = 0.5
"""Upper bound of the wait of a health request for the store, in seconds."""
FRESH_SECONDS = 1.0
"""A commit of at most this age, in seconds, proves that the store can be written."""
RETRY_SECONDS = 1.0
"""Seconds after a failed commit until the store is probed and waiting consumers are served again."""
NOTE = "health/probe"
"""Key of the note that a probe writes. All stores keep notes alike and commit them like any other change."""


class Probed(NamedTuple):
    """Result of a store probe. ``error``: why the store cannot be written, None if it can be. ``is_late``: the store
    did not respond in time."""

    error: QueueError | None = None
    is_late: bool = False


class StoreProbe:
    """Store probe: whether the event loop's committer can write the store now. Loop thread only."""

    def __init__(self, committer: "GroupCommitter", seconds: Callable[[], float]) -> None:
        self._committer = committer
        self._seconds = seconds
        self._wrote_at = float("-inf")
        self._will_retry = False
        """A commit failed and a retry is scheduled. There is a single timer, however many commits fail."""
        self.last_error: Exception | None = None
        """Error of the latest commit that wrote something, until a commit succeeds; None if it did not fail."""
        self._asked: list[Callable[[Probed], None]] = []
        self._is_under_way = False
        self.is_written = False
        """The open transaction has written a probe."""
        self.error: QueueError | None = None
        """Error of the latest probe; None if it succeeded."""

    def wrote(self, at: float) -> None:
        """Record that a commit that changed something is durable: the store can be written. A commit without changes
        writes nothing and proves nothing."""
        self._wrote_at, self.last_error, self.is_written = at, None, False

    def failed(self, error: Exception) -> None:
        """Record a failed commit and schedule a retry."""
        self.last_error, self.is_written = error, False
        if not self._will_retry:
            self._will_retry = True
            self._committer.later(RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        """Serve waiting consumers and timers again, and probe whether the store can be written."""
        self._will_retry = False
        if self.last_error is not None:
            self.start()
        self._committer.plan()

    def request(self, done: Callable[[Probed], None]) -> None:
        """Check whether the store can be written; call ``done`` once, now or within ``PROBE_SECONDS``."""
        committer = self._committer
        if not committer.guard.is_on:
            done(Probed(committer.guard.refusal()))
            return
        if self.last_error is None and self._seconds() - self._wrote_at < FRESH_SECONDS:
            done(Probed())
            return
        if committer.seconds_busy > PROBE_SECONDS:
            done(Probed(is_late=True))
            return
        self._asked.append(done)
        committer.later(PROBE_SECONDS, lambda: self._give_up(done))
        self.start()

    def start(self) -> None:
        """Add a probe to the next commit, unless one is in flight."""
        if not self._is_under_way:
            self._is_under_way = True
            self._committer.submit(self.write, self._done)

    def write(self, transaction: Transaction) -> None:
        write_probe(transaction, self._committer.now_ms())
        self.is_written = True

    def _done(self, value: Any, error: QueueError | None) -> None:
        self._is_under_way = False
        self.error = error
        asked, self._asked = self._asked, []
        for done in asked:
            done(Probed(error))

    def _give_up(self, done: Callable[[Probed], None]) -> None:
        if done in self._asked:
            self._asked.remove(done)
            done(Probed(is_late=True))


def write_probe(transaction: Transaction, now_ms: int) -> None:
    transaction.set_note(NOTE, str(now_ms))


# -- reserved space ----------------------------------------------------------------------------------------------------


def relieve(store: Store, error: BaseException) -> bool:
    """Release reserved space after this error; return True if the failed work may be repeated now.

    Publishing succeeds again only if the store has free space inside its files. Work that fails again is refused."""
    if not isinstance(error, StoreFull):
        return False
    offered: Callable[[], bool] | None = getattr(store, "relieve", None)  # not every store has a reserve
    return offered is not None and offered()


# -- jobs and their runner ---------------------------------------------------------------------------------------------

MAX_PER_COMMIT = 1000
"""Jobs in one commit. More would delay the first reply and save nothing per job."""
MAX_CHECK_ROUNDS = 100
"""Upper bound of the rounds in which a job stops for checks outside of the transaction: one round per queue."""
Done = Callable[[Any, QueueError | None], None]
"""(value, error): the reply, called when the commit is durable or has failed."""
RunInThread = Callable[[Callable[[], Any], Done], None]
"""Runs work on another thread, then ``done(value, error)`` on the loop thread."""


class CommitJob(Protocol):
    """A job as a committer runs it: ``Job``, or an object of a protocol handler that implements this interface.
    ``requests`` is the number of client requests that it represents."""

    value: Any
    error: QueueError | None
    requests: int

    def work(self, transaction: Transaction, /) -> Any: ...

    def done(self, value: Any, error: QueueError | None, /) -> None: ...


def no_reply(value: Any, error: QueueError | None) -> None:
    """``done`` of a job whose submitter reads ``value`` and ``error`` itself, or needs neither."""


class Job:
    """A job of one request. ``work`` decides before it writes: if it raises a ``QueueError`` it has changed nothing."""

    __slots__ = ("done", "error", "requests", "value", "work")

    def __init__(self, work: Callable[[Transaction], Any], done: Done = no_reply) -> None:
        self.work = work
        self.done = done
        self.value: Any = None
        self.error: Any = None
        """``QueueError | None``. The committer for threads also keeps other exceptions here, to raise them again."""
        self.requests = 1


class LongJob(Job):
    """A long job: it is committed separately, on the thread of ``run_in_thread``."""

    __slots__ = ("run_in_thread",)

    def __init__(self, work: Callable[[Transaction], Any], done: Done, run_in_thread: RunInThread) -> None:
        super().__init__(work, done)
        self.run_in_thread = run_in_thread


class JobRunner:
    """Runs jobs in transactions of a store. Used by one thread at a time."""

    def __init__(
        self,
        store: Store,
        event_buffer: EventBuffer,
        admission: AdmissionControl | None,
        seconds: Callable[[], float] = perf_counter,
    ) -> None:
        self._store = store
        self._event_buffer = event_buffer
        self._admission = admission
        self._seconds = seconds
        self.known_verdicts: dict[CommitJob, Verdicts] = {}
        """Verdicts of checks outside of the transaction, for jobs that run again."""
        self.needing_check: dict[CommitJob, NeedsCheck] = {}
        """Jobs that stopped because messages must be checked first. The committer removes them."""

    def run(self, jobs: Iterable[CommitJob], transaction: Transaction) -> int:
        """Run all jobs in this transaction; return the number of requests. A refused job keeps its error and does not
        affect the others; a ``StoreError`` ends the transaction."""
        admission, known_verdicts = self._admission, self.known_verdicts
        requests = 0
        for job in jobs:
            if admission is not None:
                admission.known_verdicts = known_verdicts.get(job) if known_verdicts else None
            try:
                job.value = job.work(transaction)
            except StoreError:
                raise
            except QueueError as error:
                job.error = error
            except NeedsCheck as needed:
                self.needing_check[job] = needed
            requests += job.requests
        return requests

    def commit(self, jobs: list[CommitJob]) -> bool:
        """Run the jobs in a new transaction; return True if messages changed. If the store is full but has reserved
        space, the transaction is repeated once."""
        try:
            return self._commit(jobs)
        except StoreFull as error:
            if not relieve(self._store, error):
                raise
            self.reset(jobs)
            return self._commit(jobs)

    def _commit(self, jobs: list[CommitJob]) -> bool:
        """Run one transaction. Its events are ready to be published on return, and dropped on an error."""
        try:
            begun = self._seconds()
            with self._store.transaction() as transaction:
                requests = self.run(jobs, transaction)
                worked = self._seconds()
        except BaseException:
            self._event_buffer.forget()
            raise
        return self._event_buffer.committed(requests, worked - begun, self._seconds() - worked)

    def reset(self, jobs: Iterable[CommitJob]) -> None:
        """Prepare jobs to run again after their transaction was rolled back."""
        for job in jobs:
            job.error = None
            self.needing_check.pop(job, None)


def reply_error(error: Exception) -> QueueError:
    """Convert any error to the ``QueueError`` that the caller gets."""
    return error if isinstance(error, QueueError) else QueueError(f"{type(error).__name__}: {error}")


def no_processor(needed: NeedsCheck) -> HookFailed:
    return HookFailed(f"the processor of queue {needed.queue!r} cannot run here", field="processor")


# -- lock wait ---------------------------------------------------------------------------------------------------------

BUSY_SECONDS = 5.0
"""Default deadline of a request, in seconds from the first attempt to commit it."""
BACKOFF = Backoff(first=0.0015, limit=0.0375, jitter=1 / 3)
"""Seconds between two attempts: 1 to 2 ms after the first attempt, 25 to 50 ms at most. That is far below the delay
that people notice after a lock is released."""
RETRY_AFTER = 1
"""Seconds after which a refused client should try again."""


class LockWaitGroup(NamedTuple):
    """Requests that found the lock taken at the same moment."""

    deadline: float
    jobs: list[CommitJob]


class LockWait:
    """Lock wait: jobs that wait while another process holds the store's lock. Loop thread only.

    A request waits at most ``seconds``. ``retry`` is called when the timer has set ``is_due``: the next commit tries
    the lock."""

    def __init__(
        self, seconds: float, later: Callable[[float, Callable[[], None]], Any], retry: Callable[[], None]
    ) -> None:
        self.seconds = seconds
        self._later = later
        self._retry = retry
        self.since: float | None = None
        """When the lock was first found taken, in seconds of the committer's clock; None if it is free."""
        self.refused = 0
        """Requests refused since then."""
        self._groups: list[LockWaitGroup] = []
        self._long: dict[LongJob, float] = {}
        self._tries = 0
        self._is_timed = False
        self.is_due = False
        """The timer has expired. Until then commits do not try the lock."""

    @property
    def jobs(self) -> list[CommitJob]:
        """Jobs that wait for the next commit, in order of arrival."""
        return [task for group in self._groups for task in group.jobs]

    def add(self, jobs: list[CommitJob], long: Iterable[LongJob], now: float) -> None:
        """Add jobs that found the lock taken; their deadline counts from ``now``."""
        self.since = now if self.since is None else self.since
        if jobs:
            self._groups.append(LockWaitGroup(now + self.seconds, jobs))
        for job in long:
            self._long.setdefault(job, now + self.seconds)

    def expired(self, now: float) -> list[CommitJob]:
        """Remove and return the jobs whose deadline has passed. The caller removes ``LongJob`` jobs from their
        queue."""
        found: list[CommitJob] = [job for job, deadline in self._long.items() if deadline <= now]
        for job in found:
            del self._long[job]  # type: ignore[arg-type]
        while self._groups and self._groups[0].deadline <= now:
            found += self._groups.pop(0).jobs
        self.refused += len(found)
        return found

    def start_timer(self) -> None:
        if not self._is_timed:
            self._is_timed = True
            self._later(self._pause(), self._on_timer)

    def _on_timer(self) -> None:
        self._is_timed, self.is_due = False, True
        self._retry()

    def _pause(self) -> float:
        """Seconds until the next attempt."""
        self._tries += 1
        return BACKOFF.delay(self._tries, random.random())

    def free(self) -> None:
        """Clear the wait: a transaction has got the lock."""
        if self.since is not None:
            self.since = None
            self.refused = self._tries = 0
            self._groups.clear()
            self._long.clear()

    def refusal(self) -> StoreBusy:
        return StoreBusy(
            f"the store was locked for over {self.seconds:g} s, by another process or a long commit of this server; "
            f"nothing was stored, try again in {RETRY_AFTER} s"
        )


# -- admission outside of the transaction ------------------------------------------------------------------------------


class AdmissionCommitter(Protocol):
    """The part of ``broker.group_commit.GroupCommitter`` that deferred admission uses."""

    def enlist(self, job: CommitJob, /) -> None:
        """Add a job to the next commit."""

    def answer(self, job: CommitJob, /) -> None:
        """Pass the value or the error to the caller of a job."""

    def flush(self) -> None:
        """Send buffered responses."""

    def report(self, error: Exception, /) -> None:
        """Report an error that reaches no caller."""


class DeferredAdmission:
    """Admission control outside of the transaction: jobs whose messages need checks by workers. Loop thread only."""

    def __init__(self, admission: AdmissionControl, runner: JobRunner, committer: AdmissionCommitter) -> None:
        self._admission = admission
        self._runner = runner
        self._committer = committer
        self._workers: CheckPort | None = None
        self.rounds: dict[CommitJob, int] = {}
        """Rounds of checks per job that is being checked or was checked."""

    def use(self, workers: CheckPort) -> None:
        """Set the workers. Without workers, jobs that need them are refused."""
        self._workers = workers
        self._admission.can_wait = True
        self._admission.is_busy = workers.is_busy

    def defer(self, job: CommitJob, needed: NeedsCheck) -> None:
        """Let the job wait until its messages are checked; if they cannot be, answer it with an error."""
        self.rounds[job] = self.rounds.get(job, 0) + 1
        if self._workers is None or self.rounds[job] > MAX_CHECK_ROUNDS:
            job.error = no_processor(needed)
            self._committer.answer(job)
            return
        try:
            self._workers.clear(needed, partial(self._checked, job))
        except Exception as error:
            self._committer.report(error)
            job.error = HookFailed(f"the processor of queue {needed.queue!r} failed: {error}", field="processor")
            self._committer.answer(job)

    def _checked(self, job: CommitJob, verdicts: Verdicts, error: QueueError | None) -> None:
        if error is not None:
            job.error = error
            self._committer.answer(job)
            self._committer.flush()
            return
        self._runner.known_verdicts.setdefault(job, {}).update(verdicts)
        self._committer.enlist(job)

    def forget(self, job: CommitJob) -> None:
        """Drop the state of a job that is answered."""
        self.rounds.pop(job, None)
        self._runner.known_verdicts.pop(job, None)

    def dry_run(self, needed: NeedsCheck, done: OnChecked) -> None:
        """Check messages without storing them; ``done`` receives the verdicts."""
        if self._workers is None:
            if needed.chain.hooks:
                raise HookFailed("hooks cannot be run here", field="processor")
            done(self._admission.check_without_hooks(needed), None)
            return

        def checked(verdicts: Verdicts, error: QueueError | None) -> None:
            done(verdicts, error)
            self._committer.flush()

        self._workers.clear(needed, checked)
