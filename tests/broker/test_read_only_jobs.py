"""Jobs in a read-only transaction: what they may do, and that a store that is busy leaves no trace on them."""

from tests.support.commit_jobs import refused, runner_on, unchecked
from yirangmq.broker.commit_jobs import CommitJob, Job
from yirangmq.broker.read_only_jobs import run_on_standby, run_reads
from yirangmq.core.active_guard import AlwaysActive
from yirangmq.core.errors import BadInput, NotActive, StoreBusy
from yirangmq.core.ports import Transaction
from yirangmq.stores.memory import MemoryStore


def count(transaction: Transaction) -> int:
    return transaction.counts("work").ready


def change(transaction: Transaction) -> None:
    transaction.set_note("a", "b")


def busy(transaction: Transaction) -> None:
    raise StoreBusy("locked")


def jobs_of(*works: object) -> list[CommitJob]:
    return [Job(work) for work in works]  # type: ignore[arg-type]


def test_read_only_jobs_run_while_the_store_is_locked_and_the_others_are_left() -> None:
    store = MemoryStore()
    runner = runner_on(store)
    jobs = jobs_of(count, change, refused, unchecked)
    assert run_reads(store, runner, jobs) == [jobs[1], jobs[3]]
    assert (jobs[0].value, type(jobs[2].error), runner.needing_check) == (0, BadInput, {})


def test_read_only_jobs_all_wait_where_the_store_cannot_be_read_either() -> None:
    store = MemoryStore()
    jobs = jobs_of(count, busy)
    assert run_reads(store, runner_on(store), jobs) == jobs


def test_read_only_jobs_of_a_standby_refuse_changes_and_checks() -> None:
    store = MemoryStore()
    jobs = jobs_of(count, change, unchecked)
    assert run_on_standby(store, runner_on(store), jobs, AlwaysActive())
    assert [type(job.error) for job in jobs] == [type(None), NotActive, NotActive]


def test_read_only_jobs_of_a_standby_run_again_from_the_beginning_after_a_busy_store() -> None:
    store = MemoryStore()
    runner = runner_on(store)
    jobs = jobs_of(refused, unchecked, busy)
    assert not run_on_standby(store, runner, jobs, AlwaysActive())
    assert ([job.error for job in jobs], runner.needing_check) == ([None] * 3, {})
