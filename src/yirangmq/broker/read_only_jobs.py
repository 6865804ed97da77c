"""Jobs that run in a read-only transaction: while another process holds the store's lock, and on a standby.

Jobs that only read get their value; nothing is changed. The committer answers them."""

from yirangmq.broker.commit_jobs import JobRunner, Task, reply_error
from yirangmq.broker.sealed import NeedsWrite, read_only, sealed
from yirangmq.core.active_guard import Duty
from yirangmq.core.errors import StoreBusy
from yirangmq.core.ports import Store


def run_reads(store: Store, runner: JobRunner, jobs: list[Task]) -> list[Task]:
    """Runs what can be run without the write lock; returns the jobs that need it, untouched. All of them, if the store
    cannot be read either."""
    rest: list[Task] = []
    try:
        with store.transaction(write=False) as transaction:
            view = read_only(transaction)
            for job in jobs:
                job.error = None
                try:
                    runner.run([job], view)
                except NeedsWrite:
                    rest.append(job)
                if runner.uncleared.pop(job, None) is not None:
                    rest.append(job)
    except Exception:
        return jobs
    return rest


def run_on_standby(store: Store, runner: JobRunner, jobs: list[Task], duty: Duty) -> bool:
    """Jobs that would change something are refused with the name of the active node. False: the store is busy, and
    nothing came of it."""
    try:
        with store.transaction(write=False) as transaction:
            runner.run(jobs, sealed(transaction, duty))
            for job in runner.uncleared:
                job.error = duty.refusal()
    except StoreBusy:
        runner.reset(jobs)
        return False
    except Exception as error:
        for job in jobs:
            job.error = reply_error(error)
    return True
