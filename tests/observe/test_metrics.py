"""Numbers from events: a scripted run on a clock that the test holds, and every number that must come of it."""

from collections.abc import Iterator

import pytest

from yirangmq.broker import queries
from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.broker.queues import Queues
from yirangmq.core.events import GroupCommitted, MessagesPublished
from yirangmq.observe.metrics import Histogram, Metrics, MinuteWindow, no_rates, window_seconds
from yirangmq.observe.prometheus import METRICS, Samples, page
from yirangmq.testing import ManualClock, open_for_test

SECOND = 1_000


@pytest.fixture
def metrics(clock: ManualClock) -> Metrics:
    return Metrics(clock)


@pytest.fixture
def queues(clock: ManualClock, metrics: Metrics) -> Iterator[Queues]:
    with open_for_test(clock=clock) as queues:
        queues.add_listener(metrics.on_events)
        yield queues


def samples(queues: Queues, metrics: Metrics) -> dict[str, float]:
    """The page, read back: name with labels, and its number."""
    rows = queues.read(lambda transaction: queries.rows(transaction, None, queues.now_ms()))
    lines = page(metrics, rows, {}).splitlines()
    parts = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in parts}


def play(queues: Queues, clock: ManualClock) -> None:
    """Twenty seconds in a queue's life. Ten come in; six are done after 2 s each, one fails and is tried again, one is
    rejected, one holder says nothing, one is never taken."""
    queues.set_policy("mail", {"visibilityTimeoutSec": 10, "retry": {"initialDelaySec": 100, "maxDelaySec": 100}})
    queues.publish_many("mail", [b"0123456789"] * 10)
    clock.advance(3 * SECOND)
    leases = [delivery.lease_id for delivery in queues.lease("mail", 9)]
    clock.advance(2 * SECOND)
    queues.ack(leases[:6])
    queues.nack(leases[6], "HANDLER_ERROR")
    queues.nack(leases[7], "REJECTED")
    clock.advance(8 * SECOND)  # the ninth lease lapses
    queues.sweep()
    clock.advance(7 * SECOND)


def test_metrics_of_backlog_leases_and_dead_letters_match_the_store(
    queues: Queues, metrics: Metrics, clock: ManualClock
) -> None:
    play(queues, clock)
    queues.lease("mail")
    found = samples(queues, metrics)
    assert found['yirangmq_queue_backlog{queue="mail"}'] == 2
    assert found['yirangmq_queue_ready{queue="mail"}'] == 1
    assert found['yirangmq_queue_delayed{queue="mail"}'] == 1
    assert found['yirangmq_queue_leased{queue="mail"}'] == 1
    assert found['yirangmq_queue_dead{queue="mail"}'] == 1
    assert found['yirangmq_queue_done{queue="mail"}'] == 6
    assert found['yirangmq_queue_oldest_age_seconds{queue="mail"}'] == 20
    assert found['yirangmq_queue_paused{queue="mail"}'] == 0
    queues.pause("mail")
    assert samples(queues, metrics)['yirangmq_queue_paused{queue="mail"}'] == 1


def test_metrics_rates_failure_rate_and_mean_times_match_the_run(
    queues: Queues, metrics: Metrics, clock: ManualClock
) -> None:
    play(queues, clock)
    assert metrics.rates() == {
        "mail": {
            "publishedPerSec": 10 / 20,
            "leasedPerSec": 9 / 20,
            "ackedPerSec": 6 / 20,
            "failedPerSec": 3 / 20,
            "diedPerSec": 1 / 20,
            "failureRate": round(3 / 9, 6),
            "meanProcessingSec": 2.0,
            "meanWaitSec": 3.0,
        }
    }


def test_metrics_counters_match_the_run(queues: Queues, metrics: Metrics, clock: ManualClock) -> None:
    play(queues, clock)
    DeadLetters(queues).redrive("mail", all=True)
    queues.release([delivery.lease_id for delivery in queues.lease("mail", 1)])
    [held] = queues.lease("mail")
    queues.extend(held.lease_id)
    queues.drop("mail", [held.id])
    found = samples(queues, metrics)
    expected = {
        'yirangmq_published_total{queue="mail"}': 10,
        'yirangmq_acked_total{queue="mail"}': 6,
        'yirangmq_failed_total{queue="mail"}': 3,
        'yirangmq_dropped_total{queue="mail"}': 1,
        'yirangmq_redriven_total{queue="mail"}': 1,
        'yirangmq_published_bytes_total{queue="mail"}': 100,
        'yirangmq_leased_total{queue="mail"}': 11,
        'yirangmq_nacked_total{queue="mail",reason="HANDLER_ERROR"}': 1,
        'yirangmq_nacked_total{queue="mail",reason="REJECTED"}': 1,
        'yirangmq_released_total{queue="mail"}': 1,
        'yirangmq_extended_total{queue="mail"}': 1,
        'yirangmq_lapsed_total{queue="mail"}': 1,
        'yirangmq_died_total{queue="mail",reason="REJECTED"}': 1,
        'yirangmq_gone_total{queue="mail",why="asked"}': 1,
    }
    assert {name: found[name] for name in expected} == expected


def test_metrics_times_are_counted_in_histogram_buckets(queues: Queues, metrics: Metrics, clock: ManualClock) -> None:
    play(queues, clock)
    found = samples(queues, metrics)
    work = 'yirangmq_processing_seconds_bucket{queue="mail",le="%s"}'
    assert [found[work % bound] for bound in ("1", "2.5", "5", "+Inf")] == [0, 6, 6, 6]
    assert found['yirangmq_processing_seconds_sum{queue="mail"}'] == 12
    assert found['yirangmq_processing_seconds_count{queue="mail"}'] == 6
    wait = 'yirangmq_wait_seconds_bucket{queue="mail",le="%s"}'
    assert [found[wait % bound] for bound in ("2.5", "5", "+Inf")] == [0, 9, 9]
    assert found['yirangmq_wait_seconds_sum{queue="mail"}'] == 27


def test_metrics_processing_time_of_an_extended_lease_counts_from_its_start(
    queues: Queues, metrics: Metrics, clock: ManualClock
) -> None:
    queues.publish("mail", 1)
    [held] = queues.lease("mail")
    for _ in range(4):
        clock.advance(20 * SECOND)
        queues.extend(held.lease_id)
    queues.ack(held.lease_id)
    assert metrics.rates()["mail"]["meanProcessingSec"] == 80


def test_metrics_of_commits_count_requests_messages_and_times(metrics: Metrics) -> None:
    metrics.on_events([MessagesPublished("mail", 3, 30), GroupCommitted(2, 3, 0.0004, 0.002)])
    metrics.on_events([MessagesPublished("mail", 60, 600), GroupCommitted(1, 60, 0.004, 0.0001)])
    metrics.on_events([GroupCommitted(1, 0, 1.0, 1.0)])  # changed nothing, synced nothing
    lines = page(metrics, [], {}).splitlines()
    for line in (
        'yirangmq_commit_requests_bucket{le="1"} 1',
        'yirangmq_commit_requests_bucket{le="2"} 2',
        'yirangmq_commit_messages_bucket{le="2"} 0',
        'yirangmq_commit_messages_bucket{le="5"} 1',
        'yirangmq_commit_messages_bucket{le="100"} 2',
        "yirangmq_commit_messages_sum 63",
        'yirangmq_commit_work_seconds_bucket{le="0.0005"} 1',
        'yirangmq_commit_sync_seconds_bucket{le="0.0001"} 1',
        'yirangmq_commit_sync_seconds_bucket{le="0.0025"} 2',
        "yirangmq_commit_sync_seconds_count 2",
    ):
        assert line in lines, line


# -- the last minute --------------------------------------------------------------------------------------------------


def test_metrics_rates_are_those_of_the_last_minute(queues: Queues, metrics: Metrics, clock: ManualClock) -> None:
    queues.publish_many("mail", [1] * 60)
    clock.advance(59 * SECOND)
    assert metrics.rates()["mail"]["publishedPerSec"] == round(60 / 59, 3)
    clock.advance(SECOND)
    assert metrics.rates()["mail"] == no_rates()
    queues.publish_many("mail", [1] * 118)
    assert metrics.rates()["mail"]["publishedPerSec"] == 2.0


def test_metrics_rates_of_a_server_just_started_are_divided_by_its_age(
    queues: Queues, metrics: Metrics, clock: ManualClock
) -> None:
    queues.publish_many("mail", [1] * 30)
    assert metrics.rates()["mail"]["publishedPerSec"] == 30
    clock.advance(10 * SECOND)
    assert metrics.rates()["mail"]["publishedPerSec"] == 3


def test_metrics_means_of_nothing_are_none() -> None:
    assert {name: value for name, value in no_rates().items() if value is None} == {
        "failureRate": None,
        "meanProcessingSec": None,
        "meanWaitSec": None,
    }


def test_metrics_rate_window_keeps_sixty_seconds() -> None:
    minute = MinuteWindow()
    for second in range(200):
        minute.add(second * SECOND, seen=1)
        minute.add(second * SECOND + 500, seen=1)
    assert minute.sums(199 * SECOND) == {"seen": 120}
    assert minute.sums(229 * SECOND) == {"seen": 60}
    assert minute.sums(300 * SECOND) == {}


def test_metrics_rate_window_is_as_long_as_it_can_be() -> None:
    assert window_seconds(1_000_500, 0) == 59.5
    assert window_seconds(1_010_000, 1_000_000) == 10
    assert window_seconds(1_000_001, 1_000_000) == 1


def test_metrics_histogram_counts_values_up_to_each_bound() -> None:
    histogram = Histogram((1, 5, 10))
    histogram.observe_all([1, 2, 5, 6, 11])
    assert histogram.observe_all([7, 9]) == 16
    assert histogram.observe_all([-5, 0]) == 0
    histogram.observe(0)
    histogram.observe(1)
    assert (histogram.counts, histogram.total) == ([5, 7, 10, 11], 42)


# -- the page ---------------------------------------------------------------------------------------------------------


def test_metrics_with_a_value_all_have_help_and_type(queues: Queues, metrics: Metrics, clock: ManualClock) -> None:
    play(queues, clock)
    rows = queues.read(lambda transaction: queries.rows(transaction, None, queues.now_ms()))
    server: dict[str, Samples] = {
        "yirangmq_info": [({"version": "0.1", "node": 'a "b"\\c'}, 1)],
        "yirangmq_connections": [({}, 2)],
    }
    text = page(metrics, rows, server)
    assert text.endswith("\n")
    assert 'yirangmq_info{version="0.1",node="a \\"b\\"\\\\c"} 1\n' in text
    names: list[str] = []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            names.append(line.split()[2])
            assert line == f"# HELP {names[-1]} {METRICS[names[-1]][1]}"
        elif line.startswith("# TYPE "):
            assert line == f"# TYPE {names[-1]} {METRICS[names[-1]][0]}"
        else:
            assert line.startswith(names[-1])
    assert len(names) == len(set(names))


def test_metrics_of_a_deleted_queue_are_forgotten(queues: Queues, metrics: Metrics) -> None:
    queues.publish("mail", 1)
    queues.publish("post", 1)
    queues.delete_queue("mail")
    assert list(metrics.rates()) == ["post"]
    queues.publish("mail", 1)
    open_for_test(store=queues._store).delete_queue("mail")  # by another process
    assert not [name for name in samples(queues, metrics) if "mail" in name]
    assert list(metrics.rates()) == ["post"]
