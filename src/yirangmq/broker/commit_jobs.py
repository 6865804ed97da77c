"""Jobs of a group commit, and how a batch of them runs in one transaction.

Both committers use this: the one on the event loop (``broker.desk``) and the one for threads (``broker.lane``). They
decide which jobs form a batch and how callers are answered."""

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, Protocol

from yirangmq.broker.gate import Gate, Uncleared, Verdicts
from yirangmq.broker.happenings import Happenings
from yirangmq.broker.relief import relieve
from yirangmq.core.errors import HookFailed, QueueError, StoreError, StoreFull
from yirangmq.core.ports import Store, Transaction

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
