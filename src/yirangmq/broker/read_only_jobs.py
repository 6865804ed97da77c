"""Read-only execution of jobs: while another process holds the store's lock, and on a standby.

A wrapper of the transaction raises at every method of ``WRITE_METHODS``: writes, and reads that serve only to lease.
While the lock is held elsewhere, jobs that only read get their value and the others are returned untouched, to wait. On
a standby, jobs that would change something are refused with the name of the active node. The committer answers the
jobs."""

from collections.abc import Callable
from typing import Any, cast

from yirangmq.broker.commit_jobs import CommitJob, JobRunner, reply_error
from yirangmq.core.active_guard import ActiveGuard
from yirangmq.core.errors import StoreBusy
from yirangmq.core.ports import Store, Transaction

# -- read-only transaction ---------------------------------------------------------------------------------------------

WRITE_METHODS = frozenset(
    {
        "add",
        "delete_queue",
        "forget",
        "forget_keys",
        "free_keys",
        "heads",
        "hold_keys",
        "in_runs",
        "places",
        "rewrite",
        "set_note",
        "set_policy",
        "swap",
        "trim",
    }
)
"""Names of the ``Transaction`` methods that write, and of those whose reads serve only to lease messages."""


class NeedsWrite(BaseException):
    """Raised by the transaction of ``read_only``: the work would change the store.

    Not an ``Exception``, so that no work mistakes it for the error of a single message and continues."""


class _ReadOnlyTransaction:
    """Read-only wrapper of a transaction: methods in ``WRITE_METHODS`` raise ``refusal()``."""

    def __init__(self, transaction: Transaction, refusal: Callable[[], BaseException]) -> None:
        self._transaction = transaction
        self._refusal = refusal

    def __getattr__(self, name: str) -> Any:
        if name in WRITE_METHODS:
            raise self._refusal()
        return getattr(self._transaction, name)


def standby_view(transaction: Transaction, guard: ActiveGuard) -> Transaction:
    """Return a read-only view for a standby: changes are refused with the name of the active node."""
    return cast("Transaction", _ReadOnlyTransaction(transaction, guard.refusal))


def read_only(transaction: Transaction) -> Transaction:
    """Return a read-only view for a transaction without the write lock: changes raise ``NeedsWrite``."""
    return cast("Transaction", _ReadOnlyTransaction(transaction, NeedsWrite))


# -- running jobs ------------------------------------------------------------------------------------------------------


def run_reads(store: Store, runner: JobRunner, jobs: list[CommitJob]) -> list[CommitJob]:
    """Run the jobs that need no write lock; return the others untouched. Return all if the store cannot be read
    either."""
    rest: list[CommitJob] = []
    try:
        with store.transaction(write=False) as transaction:
            view = read_only(transaction)
            for job in jobs:
                job.error = None
                try:
                    runner.run([job], view)
                except NeedsWrite:
                    rest.append(job)
                if runner.needing_check.pop(job, None) is not None:
                    rest.append(job)
    except Exception:
        return jobs
    return rest


def run_on_standby(store: Store, runner: JobRunner, jobs: list[CommitJob], guard: ActiveGuard) -> bool:
    """Run jobs on a standby. Jobs that would change something are refused with the name of the active node.

    Return False if the store is busy; then no job has run."""
    try:
        with store.transaction(write=False) as transaction:
            runner.run(jobs, standby_view(transaction, guard))
            for job in runner.needing_check:
                job.error = guard.refusal()
    except StoreBusy:
        runner.reset(jobs)
        return False
    except Exception as error:
        for job in jobs:
            job.error = reply_error(error)
    return True
