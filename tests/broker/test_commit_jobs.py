"""Jobs of a group commit: what one of them does to the others, and what is left to the committer."""

import pytest

from tests.support.commit_jobs import refused, runner_on, unchecked
from yirangmq.broker.admission.admission import AdmissionControl
from yirangmq.broker.commit_jobs import CommitJob, Job
from yirangmq.core.errors import BadInput, StoreError, StoreFull
from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Transaction
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import FailingStore


class Reserve(FailingStore):
    """A store with space in reserve, once."""

    reserves = 1

    def relieve(self) -> bool:
        self.reserves -= 1
        return self.reserves >= 0


def note(transaction: Transaction) -> str:
    transaction.set_note("a", "b")
    return "noted"


def damaged(transaction: Transaction) -> None:
    raise StoreError("disk I/O error")


def test_job_that_is_refused_or_must_be_checked_first_harms_no_other() -> None:
    store = FailingStore(MemoryStore())
    runner = runner_on(store)
    jobs: list[CommitJob] = [Job(work) for work in (refused, unchecked, note)]
    runner.commit(jobs)
    assert [type(job.error) for job in jobs] == [BadInput, type(None), type(None)]
    assert list(runner.needing_check) == [jobs[1]]
    assert (jobs[2].value, store.commits) == ("noted", 1)
    runner.reset(jobs)
    assert ([job.error for job in jobs], runner.needing_check) == ([None] * 3, {})


def test_job_that_a_store_error_stops_ends_the_transaction() -> None:
    store = FailingStore(MemoryStore())
    runner = runner_on(store)
    last = Job(note)
    with pytest.raises(StoreError):
        runner.commit([Job(note), Job(damaged), last])
    assert (last.value, store.commits) == (None, 0)


def test_job_that_runs_again_finds_the_verdicts_on_its_messages_and_no_other_job_does() -> None:
    gate = AdmissionControl(Defaults())
    runner = runner_on(FailingStore(MemoryStore()), gate)
    jobs: list[CommitJob] = [Job(lambda transaction: gate.known_verdicts) for _ in range(2)]
    runner.known_verdicts[jobs[0]] = {}
    runner.commit(jobs)
    assert [job.value for job in jobs] == [{}, None]


@pytest.mark.parametrize("commit", [False, True], ids=["at the start", "at the commit"])
def test_job_batch_that_finds_no_space_is_repeated_once_with_the_reserve(commit: bool) -> None:
    store = Reserve(MemoryStore())
    runner = runner_on(store)
    store.fail_at(1, StoreFull("no space"), commit=commit)
    jobs: list[CommitJob] = [Job(note), Job(refused)]
    runner.commit(jobs)
    assert (store.commits, jobs[0].value, type(jobs[1].error)) == (1, "noted", BadInput)
    store.fail_at(1, StoreFull("no space"), commit=commit)
    with pytest.raises(StoreFull):
        runner.commit([Job(note)])
