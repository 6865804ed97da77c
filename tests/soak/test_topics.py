"""The short form of ``make soak-topics``: some of its runs, and that it would notice."""

import pytest

from benchmarks.soak.judge import Seen, judge
from benchmarks.soak.topics import MODULES, process_run, stage_run
from tests.support.worker_processes import crew
from yirangmq.core.topic_filter import ALL, make_filter
from yirangmq.core.topics import SubscriberState
from yirangmq.topics.live import Subscriber
from yirangmq.topics.subscribers import SubscriberLifecycle

STEPS = 60
"""Seeds of the runs without processes."""
PROCESSES = 3


def one(sequence: int, topic: str = "a") -> Seen:
    return Seen(sequence, topic, sequence, 0)


def test_topic_soak_judge_counts_every_kind_of_fault() -> None:
    truth = {n: one(n, "ab"[n % 2]) for n in range(1, 7)}
    assert judge(truth, ALL, [*truth.values()]) == (6, 0, 0, 0, 0)
    assert judge(truth, make_filter(["a"]), [truth[2], truth[4], truth[6]]).is_good
    assert judge(truth, make_filter(["a"]), [truth[2], truth[6]]) == (3, 1, 0, 0, 0)
    assert judge(truth, make_filter(["a"]), [truth[2], truth[4], truth[4], truth[6]]) == (3, 0, 1, 0, 0)
    assert judge(truth, make_filter(["a"]), [truth[4], truth[2], truth[6]]) == (3, 0, 0, 1, 0)
    assert judge(truth, make_filter(["a"]), [truth[2], truth[3], truth[4], truth[6]]) == (3, 0, 0, 0, 1)
    assert judge(truth, ALL, [truth[n] for n in range(1, 6)] + [one(6, "b")]) == (6, 0, 0, 0, 1)


def test_topic_soak_finds_no_gap_or_duplicate_when_a_part_is_killed_between_two_steps() -> None:
    """P-17, and P-14: in each run two subscribers ask for recoveries at any moment, once for each."""
    found = {seed: stage_run(seed) for seed in range(STEPS)}
    assert [seed for seed, verdicts in found.items() if not all(one.is_good for one in verdicts)] == []


def test_topic_soak_notices_a_log_that_forgets_its_subscribers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yirangmq.topics.subscribers.retention_floor", lambda *given: None)
    assert any(not one.is_good for seed in range(20) for one in stage_run(seed))


def test_topic_soak_notices_a_server_that_skips_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yirangmq.topics.publisher.resumed", lambda log, cursor: min(cursor.sequence + 2, log.last + 1))
    assert any(not one.is_good for seed in range(20) for one in stage_run(seed))


def test_topic_soak_notices_a_recovery_request_dropped_while_a_recovery_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """P-17: a subscriber that asks once and trusts the answer has a gap then."""
    recover = SubscriberLifecycle.recover

    def drop_unless_online(self: SubscriberLifecycle, subscriber: Subscriber, after: int, request: int) -> None:
        if subscriber.state is SubscriberState.ONLINE:
            recover(self, subscriber, after, request)

    monkeypatch.setattr(SubscriberLifecycle, "recover", drop_unless_online)
    assert any(not one.is_good for seed in range(20) for one in stage_run(seed))


@pytest.mark.process
def test_topic_soak_finds_no_gap_or_duplicate_when_any_process_is_killed() -> None:
    with crew(*MODULES) as team:
        for seed in range(PROCESSES):
            verdicts, troubles = process_run(seed, team)
            assert all(one.is_good for one in verdicts), (seed, verdicts, troubles)
