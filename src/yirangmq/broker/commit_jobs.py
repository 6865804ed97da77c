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
``store_busy`` and never runs again, so nothing of it is stored later.

Admission: a job whose messages need hooks or long checks stops and waits for ``broker.admission.workers``. Then it runs
again from the beginning, with the verdicts."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from yirangmq.broker.admission.admission import Gate, Uncleared, Verdicts
from yirangmq.broker.admission.workers import Cleared, Clearing
from yirangmq.broker.event_buffer import Happenings
from yirangmq.core.backoff import Backoff
from yirangmq.core.errors import HookFailed, QueueError, StoreBusy, StoreError, StoreFull
from yirangmq.core.ports import Store, Transaction

if TYPE_CHECKING:
    from yirangmq.broker.group_commit import Desk


# -- store probe -------------------------------------------------------------------------------------------------------

PROBE_SECONDS = 0.5
"""How long a caller of health waits for the answer of the store."""
FRESH_SECONDS = 1.0
"""A commit that is no older proves that the store can be written."""
RETRY_SECONDS = 1.0
"""How long after a failed commit the store is probed, and waiting consumers are served again."""
NOTE = "health/probe"
"""What a probe writes: a note, which every store keeps in the same way and commits as everything else."""


class Probed(NamedTuple):
    """``error``: why the store cannot be written; None if it can be. ``is_late``: it has not answered in time."""

    error: QueueError | None = None
    is_late: bool = False


class StoreProbe:
    def __init__(self, committer: "Desk", seconds: Callable[[], float]) -> None:
        self._committer = committer
        self._seconds = seconds
        self._wrote_at = float("-inf")
        self._will_retry = False
        """A commit failed, and the next attempt is scheduled: one timer, however many fail."""
        self.trouble: Exception | None = None
        """Why the latest commit that wrote something failed, until one succeeds; None if it did not."""
        self._asked: list[Callable[[Probed], None]] = []
        self._is_under_way = False
        self.is_written = False
        """The transaction under way has written a probe."""
        self.error: QueueError | None = None
        """Of the latest probe."""

    def wrote(self, at: float) -> None:
        """A commit that changed something is on disk: the store can be written. (One that changes nothing writes
        nothing, and proves nothing.)"""
        self._wrote_at, self.trouble, self.is_written = at, None, False

    def failed(self, error: Exception) -> None:
        self.trouble, self.is_written = error, False
        if not self._will_retry:
            self._will_retry = True
            self._committer.later(RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        """Waiting consumers and timers are served again, and a probe finds out whether the store can be written."""
        self._will_retry = False
        if self.trouble is not None:
            self.begin()
        self._committer.plan()

    def ask(self, done: Callable[[Probed], None]) -> None:
        """``done`` is called once, now or within ``PROBE_SECONDS``."""
        committer = self._committer
        if not committer.duty.is_on:
            done(Probed(committer.duty.refusal()))
            return
        if self.trouble is None and self._seconds() - self._wrote_at < FRESH_SECONDS:
            done(Probed())
            return
        if committer.seconds_busy > PROBE_SECONDS:
            done(Probed(is_late=True))
            return
        self._asked.append(done)
        committer.later(PROBE_SECONDS, lambda: self._give_up(done))
        self.begin()

    def begin(self) -> None:
        """A probe joins the next commit, unless one is under way."""
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
    """Whether the work that failed with this error may be repeated now. Publishing is repeated only where the store
    has space inside itself; what is refused again is refused for good."""
    if not isinstance(error, StoreFull):
        return False
    offered: Callable[[], bool] | None = getattr(store, "relieve", None)  # not every store has a reserve
    return offered is not None and offered()


# -- jobs and their runner ---------------------------------------------------------------------------------------------

MOST_PER_COMMIT = 1000
"""Jobs in one commit. More would delay the first reply and save nothing per job."""
MOST_ROUNDS = 100
"""How often one job may stop for messages to be checked outside of the transaction: once for each of its queues."""
Done = Callable[[Any, QueueError | None], None]
"""(value, error): the reply, called when the commit is durable or has failed."""
Aside = Callable[[Callable[[], Any], Done], None]
"""Runs work on another thread, and ``done(value, error)`` on the loop's."""


class Task(Protocol):
    """What a committer runs: ``Job``, or an object of a protocol that is its own job. ``requests``: how many requests
    of clients it stands for."""

    value: Any
    error: QueueError | None
    requests: int

    def work(self, transaction: Transaction, /) -> Any: ...

    def done(self, value: Any, error: QueueError | None, /) -> None: ...


def no_reply(value: Any, error: QueueError | None) -> None:
    """``done`` of a job whose submitter reads ``value`` and ``error`` itself, or needs neither."""


class Job:
    """One request. ``work`` decides before it writes: where it raises a ``QueueError`` it has changed nothing."""

    __slots__ = ("done", "error", "requests", "value", "work")

    def __init__(self, work: Callable[[Transaction], Any], done: Done = no_reply) -> None:
        self.work = work
        self.done = done
        self.value: Any = None
        self.error: Any = None
        """``QueueError | None``. The committer for threads also keeps other exceptions here, to raise them again."""
        self.requests = 1


class Long(Job):
    """One request that takes long: it has a commit of its own, on the thread of ``aside``."""

    __slots__ = ("aside",)

    def __init__(self, work: Callable[[Transaction], Any], done: Done, aside: Aside) -> None:
        super().__init__(work, done)
        self.aside = aside


class JobRunner:
    """Runs jobs in transactions of one store. One thread at a time."""

    def __init__(
        self, store: Store, happened: Happenings, gate: Gate | None, seconds: Callable[[], float] = perf_counter
    ) -> None:
        self._store = store
        self._happened = happened
        self._gate = gate
        self._seconds = seconds
        self.cleared: dict[Task, Verdicts] = {}
        """Results of checks that were made outside of the transaction, for jobs that run again."""
        self.uncleared: dict[Task, Uncleared] = {}
        """Jobs that stopped because messages have to be checked first. The committer takes them out."""

    def run(self, jobs: Iterable[Task], transaction: Transaction) -> int:
        """All of them in this transaction; returns how many requests that is. A refused job keeps its error and harms
        no other; a ``StoreError`` ends the transaction."""
        gate, cleared = self._gate, self.cleared
        requests = 0
        for job in jobs:
            if gate is not None:
                gate.cleared = cleared.get(job) if cleared else None
            try:
                job.value = job.work(transaction)
            except StoreError:
                raise
            except QueueError as error:
                job.error = error
            except Uncleared as needed:
                self.uncleared[job] = needed
            requests += job.requests
        return requests

    def commit(self, jobs: list[Task]) -> bool:
        """The same in a transaction of their own; whether messages changed. Where the store has no space left, but
        some in reserve, it is repeated once."""
        try:
            return self._commit(jobs)
        except StoreFull as error:
            if not relieve(self._store, error):
                raise
            self.reset(jobs)
            return self._commit(jobs)

    def _commit(self, jobs: list[Task]) -> bool:
        """Events are ready to be told when this returns, and dropped where it raises."""
        try:
            begun = self._seconds()
            with self._store.transaction() as transaction:
                requests = self.run(jobs, transaction)
                worked = self._seconds()
        except BaseException:
            self._happened.forget()
            raise
        return self._happened.committed(requests, worked - begun, self._seconds() - worked)

    def reset(self, jobs: Iterable[Task]) -> None:
        """Their transaction was rolled back, and they will run again."""
        for job in jobs:
            job.error = None
            self.uncleared.pop(job, None)


def reply_error(error: Exception) -> QueueError:
    """What a caller is told of any error."""
    return error if isinstance(error, QueueError) else QueueError(f"{type(error).__name__}: {error}")


def no_processor(needed: Uncleared) -> HookFailed:
    return HookFailed(f"the processor of queue {needed.queue!r} cannot run here", field="processor")


# -- lock wait ---------------------------------------------------------------------------------------------------------

BUSY_SECONDS = 5.0
"""Default deadline of a request, from the first attempt to commit it."""
BACKOFF = Backoff(first=0.0015, limit=0.0375, jitter=1 / 3)
"""Seconds between two attempts: from 1 to 2 ms after the first one, from 25 to 50 ms at most, which is far below the
time in which people notice that a lock is free again."""
RETRY_AFTER = 1
"""Seconds after which a refused client should try again."""


class Group(NamedTuple):
    """Requests that found the lock taken at the same moment."""

    deadline: float
    tasks: list[Task]


class BusyWait:
    """``seconds``: how long a request waits. ``retry`` is called when ``is_due``: the next commit tries the lock."""

    def __init__(
        self, seconds: float, later: Callable[[float, Callable[[], None]], Any], retry: Callable[[], None]
    ) -> None:
        self.seconds = seconds
        self._later = later
        self._retry = retry
        self.since: float | None = None
        """When the lock was first found taken, in seconds of the committer's clock; None: the store is free."""
        self.refused = 0
        """Requests refused since then."""
        self._groups: list[Group] = []
        self._long: dict[Long, float] = {}
        self._tries = 0
        self._is_timed = False
        self.is_due = False
        """The timer has run out. Until then a commit leaves the lock alone."""

    @property
    def tasks(self) -> list[Task]:
        """All that wait for the next commit, in order of arrival."""
        return [task for group in self._groups for task in group.tasks]

    def hold(self, tasks: list[Task], long: Iterable[Long], now: float) -> None:
        """The lock is taken: these wait as well, from now on."""
        self.since = now if self.since is None else self.since
        if tasks:
            self._groups.append(Group(now + self.seconds, tasks))
        for job in long:
            self._long.setdefault(job, now + self.seconds)

    def expired(self, now: float) -> list[Task]:
        """Requests whose deadline has passed; they wait no longer. ``Long`` ones have to be taken from their queue."""
        found: list[Task] = [job for job, deadline in self._long.items() if deadline <= now]
        for job in found:
            del self._long[job]  # type: ignore[arg-type]
        while self._groups and self._groups[0].deadline <= now:
            found += self._groups.pop(0).tasks
        self.refused += len(found)
        return found

    def start_timer(self) -> None:
        if not self._is_timed:
            self._is_timed = True
            self._later(self._pause(), self._ring)

    def _ring(self) -> None:
        self._is_timed, self.is_due = False, True
        self._retry()

    def _pause(self) -> float:
        """Seconds until the next attempt."""
        self._tries += 1
        return BACKOFF.delay(self._tries, random.random())

    def free(self) -> None:
        """A transaction was begun: the lock is ours, and nothing waits for it any more."""
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


class Committer(Protocol):
    """What is needed of ``broker.group_commit.Desk``."""

    def enlist(self, job: Task, /) -> None:
        """It joins the next commit."""

    def answer(self, job: Task, /) -> None:
        """Its caller gets the value or the error."""

    def flush(self) -> None:
        """Answers leave."""

    def report(self, error: Exception, /) -> None:
        """An error that no caller is told."""


class DeferredAdmission:
    def __init__(self, gate: Gate, runner: JobRunner, committer: Committer) -> None:
        self._gate = gate
        self._runner = runner
        self._committer = committer
        self._workers: Clearing | None = None
        self.rounds: dict[Task, int] = {}
        """Jobs whose messages are being checked, or were, and how often."""

    def use(self, workers: Clearing) -> None:
        """Without workers, jobs that need them are refused."""
        self._workers = workers
        self._gate.can_wait = True
        self._gate.is_busy = workers.is_busy

    def defer(self, job: Task, needed: Uncleared) -> None:
        """The job waits until its messages are checked; where they cannot be, it is answered with the error."""
        self.rounds[job] = self.rounds.get(job, 0) + 1
        if self._workers is None or self.rounds[job] > MOST_ROUNDS:
            job.error = no_processor(needed)
            self._committer.answer(job)
            return
        try:
            self._workers.clear(needed, partial(self._checked, job))
        except Exception as error:
            self._committer.report(error)
            job.error = HookFailed(f"the processor of queue {needed.queue!r} failed: {error}", field="processor")
            self._committer.answer(job)

    def _checked(self, job: Task, verdicts: Verdicts, error: QueueError | None) -> None:
        if error is not None:
            job.error = error
            self._committer.answer(job)
            self._committer.flush()
            return
        self._runner.cleared.setdefault(job, {}).update(verdicts)
        self._committer.enlist(job)

    def forget(self, job: Task) -> None:
        """It is answered."""
        self.rounds.pop(job, None)
        self._runner.cleared.pop(job, None)

    def dry_run(self, needed: Uncleared, done: Cleared) -> None:
        """Check messages that are not to be stored."""
        if self._workers is None:
            if needed.chain.hooks:
                raise HookFailed("hooks cannot be run here", field="processor")
            done(self._gate.looked_at(needed), None)
            return

        def checked(verdicts: Verdicts, error: QueueError | None) -> None:
            done(verdicts, error)
            self._committer.flush()

        self._workers.clear(needed, checked)
