"""Step by step: what is captured when, who sends what, and what happens between two steps."""

from dataclasses import replace

import pytest

from tests.support.topic_pipes import SMALL, Client, MakePublisherHarness, PublisherHarness, small
from yirangmq.core.errors import WrongState
from yirangmq.core.topic_filter import make_filter
from yirangmq.core.topics import NewRecord, Start, SubscriberState
from yirangmq.protocols.feed import FeedDialect
from yirangmq.topics.live import FROM_FIRST
from yirangmq.topics.ports import CatchupPacing, TopicSettings
from yirangmq.topics.subscribers import MAX_WAITING_REQUESTS
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind
from yirangmq.wire.messages import frame

ANSWER = frame(FrameKind.CONFIRMED, 3, messages.Confirmed(1))


def told(client: Client, kind: FrameKind) -> list[object]:
    return [value for one, value in client.said if one is kind]


def test_catchup_target_is_the_last_record_on_disk_when_it_is_requested(stage: PublisherHarness) -> None:
    """And not what comes between the request and the worker's first step."""
    stage.fill(10)
    client = stage.client()
    client.follow()
    stage.fill(5)
    stage.settle(client)
    [response] = told(client, FrameKind.RECOVERY_RESPONSE)
    [complete] = told(client, FrameKind.RECOVERY_COMPLETE)
    assert (response.start, response.end, response.count) == (1, 10, 10)  # type: ignore[attr-defined]
    assert complete.sequence == complete.sent == 10  # type: ignore[attr-defined]
    assert client.sequences == list(range(1, 16))


def test_catchup_sends_records_committed_between_the_last_read_of_the_worker_and_going_live(
    stage: PublisherHarness,
) -> None:
    stage.fill(10)
    client = stage.client()
    client.follow()
    stage.publish(NewRecord("a", b"asked for before the worker is done"))
    for _ in range(10):
        stage.work(0)
        client.read(1 << 20)
    assert client.subscriber.run is not None
    assert client.subscriber.run.cursor == 10
    stage.turning.run_once()  # first the commit, then the take-over
    client.read(1 << 20)
    assert client.sequences == list(range(1, 12))
    assert client.subscriber.state is SubscriberState.ONLINE


def test_catchup_reads_from_the_log_the_records_that_no_longer_fit_in_the_tail(stage: PublisherHarness) -> None:
    """The worker is done, but before the loop hears of it more is committed than is kept at hand."""
    stage.fill(10)
    client = stage.client()
    client.follow()
    stage.publish(NewRecord("a", b"x" * 2000))
    for _ in range(10):
        stage.work(0)
        client.read(1 << 20)
    stage.turning.run_once()
    assert client.subscriber.run is not None
    stage.settle(client)
    assert client.sequences == list(range(1, 12))
    assert [state for _, state in stage.trace] == ["online", "recovering", "catching_up", "online"]


def test_lag_moves_a_subscriber_to_catchup_from_the_log_and_back_to_live(stage: PublisherHarness) -> None:
    client = stage.client(capacity=200)
    client.follow(start=Start.NEW)
    stage.fill(100)
    assert client.subscriber.state is SubscriberState.RECOVERY_NEEDED
    assert len(client.pipe.waiting) <= stage.settings.buffer_bytes
    stage.settle(client)
    assert client.sequences == list(range(1, 101))
    assert [state for _, state in stage.trace] == ["online", "recovery_needed", "recovering", "catching_up", "online"]


def test_lag_of_a_subscriber_with_a_filter_counts_only_records_that_match_it(make_stage: MakePublisherHarness) -> None:
    stage = make_stage(small(workers=1, lag_limit=20))
    alarms: list[int] = []
    stage.publisher.lag_listeners.append(lambda one, lag: alarms.append(lag))
    lag_of = stage.publisher.ensure_open().lifecycle.lag_of
    client = stage.client(capacity=100)
    client.follow(make_filter(["b"]), Start.NEW)
    stage.fill(30, topic="b")
    [lagging] = [n for n, (_, state) in enumerate(stage.trace) if state == "recovery_needed"]
    assert lagging
    unsent = lag_of(client.subscriber)
    assert unsent == 30 - client.subscriber.sent
    stage.fill(500, topic="a")
    stage.turning.advance(1)
    assert (lag_of(client.subscriber), alarms) == (unsent, [])
    stage.fill(21, topic="b")
    stage.turning.advance(1)
    assert alarms == [lag_of(client.subscriber)] == [unsent + 21]
    stage.settle(client)
    assert (len(client.records), lag_of(client.subscriber)) == (51, 0)


def test_lag_of_a_subscriber_with_a_filter_that_asks_for_a_recovery_counts_what_it_is_to_be_sent(
    stage: PublisherHarness,
) -> None:
    """The worker counts it when the recovery begins."""
    stage.fill(100, topic="a")
    stage.fill(10, topic="b")
    lag_of = stage.publisher.ensure_open().lifecycle.lag_of
    client = stage.client(capacity=100)
    client.follow(make_filter(["b"]), Start.NEW)
    stage.publisher.recover(client.subscriber, 0, "", 7)
    assert lag_of(client.subscriber) == 0
    stage.fill(5, topic="b")
    assert lag_of(client.subscriber) == 5
    assert client.subscriber.run is not None
    while client.subscriber.run.announced is None:
        stage.work()
        client.read(100)
    assert lag_of(client.subscriber) == 15 - client.subscriber.run.sent
    stage.settle(client)
    assert (len(client.records), lag_of(client.subscriber)) == (15, 0)


def test_catchup_of_a_stalled_subscriber_delays_no_other_even_with_one_worker(make_stage: MakePublisherHarness) -> None:
    stage = make_stage(small(workers=1))
    stage.fill(200)
    stalled = stage.client(capacity=100)
    stalled.follow()
    others = [stage.client(), stage.client()]
    for other in others:
        other.follow(make_filter(["a"]))
    stage.settle(*others)
    assert [other.sequences for other in others] == [list(range(1, 201))] * 2
    assert stalled.subscriber.state is SubscriberState.RECOVERING
    stage.settle(stalled, *others)
    assert stalled.sequences == list(range(1, 201))


def test_catchup_worker_serves_its_subscribers_in_turn(make_stage: MakePublisherHarness) -> None:
    stage = make_stage(small(workers=1))
    stage.fill(200)
    clients = [stage.client() for _ in range(3)]
    for client in clients:
        client.follow()
    for _ in range(5):
        stage.work()
    for client in clients:
        client.read(1 << 20)
    counts = [len(client.records) for client in clients]
    assert min(counts) > 0
    assert max(counts) - min(counts) <= 1
    assert max(counts) < 200


def test_catchup_workers_are_assigned_in_turn(make_stage: MakePublisherHarness) -> None:
    stage = make_stage(small(workers=3))
    stage.fill(5)
    clients = [stage.client() for _ in range(7)]
    for client in clients:
        client.follow()
    assert [worker.started for worker in stage.publisher.ensure_open().lifecycle.workers] == [3, 2, 2]
    for number in range(3):
        stage.work(number)
    stage.turning.run_once()
    assert all(client.subscriber.state is SubscriberState.ONLINE for client in clients)


def test_stall_timeout_disconnects_subscribers_that_read_nothing_in_catchup_or_lagging(
    make_stage: MakePublisherHarness,
) -> None:
    stage = make_stage(replace(small(workers=1), pacing=CatchupPacing(700, 60.0, threaded=False, live_rate_limit=0)))
    stage.fill(100)
    recovering, lagging = stage.client(capacity=100), stage.client(capacity=100)
    recovering.follow()
    lagging.follow(start=Start.NEW)
    stage.fill(100)
    stage.work()
    assert [one.subscriber.state for one in (recovering, lagging)] == [
        SubscriberState.RECOVERING,
        SubscriberState.RECOVERY_NEEDED,
    ]
    stage.turning.advance(59)
    stage.work()
    assert recovering.pipe.is_open
    assert lagging.pipe.is_open
    stage.turning.advance(2)
    stage.work()
    stage.turning.run_once()
    assert (recovering.pipe.cuts, lagging.pipe.cuts) == (["stalled"], ["stalled"])
    assert stage.publisher.ensure_open().lifecycle.subscribers == {}


def test_catchup_worker_needs_one_wake_up_for_any_number_of_subscribers(make_stage: MakePublisherHarness) -> None:
    """The public implementation takes one task for each byte it is woken with, and leaves others lying."""
    stage = make_stage(small(workers=1))
    stage.fill(3)
    clients = [stage.client() for _ in range(200)]
    for client in clients:
        client.follow()
    stage.work()
    stage.turning.run_once()
    assert {client.subscriber.state for client in clients} == {SubscriberState.ONLINE}


def test_catchup_of_a_subscriber_that_disconnects_is_released_and_keeps_no_records(stage: PublisherHarness) -> None:
    stage.fill(100)
    client = stage.client(capacity=100)
    client.follow()
    stage.work(0)
    stage.work(1)
    run = client.subscriber.run
    assert run is not None
    client.pipe.close()
    assert client.subscriber.state is SubscriberState.OFFLINE
    for _ in range(3):
        stage.work(0)
        stage.work(1)
        stage.turning.run_once()
    assert stage.publisher.ensure_open().lifecycle.is_idle
    assert stage.publisher.ensure_open().feed.tail.first == 0, "nothing is kept for nobody"


def test_catchup_lets_answers_through_only_between_frames(stage: PublisherHarness) -> None:
    """What the loop has to say while a worker has the line is said between two frames, never inside one."""
    stage.fill(40, size=600)
    client = stage.client(capacity=100)
    client.follow()
    for _ in range(200):
        stage.work(0)
        stage.work(1)
        client.pipe.send(ANSWER)
        client.read(77)
    stage.settle(client)
    assert client.sequences == list(range(1, 41))
    assert len(told(client, FrameKind.CONFIRMED)) == 200


def test_progress_frame_reports_the_end_of_the_log_to_a_filtered_subscriber(stage: PublisherHarness) -> None:
    client = stage.client()
    client.follow(make_filter(["b"]), Start.NEW, progress_seconds=1.0)
    stage.fill(20)
    stage.fill(3, topic="b")
    stage.fill(20)
    stage.turning.advance(2)
    stage.settle(client)
    [said] = told(client, FrameKind.PROGRESS)
    assert (said.sequence, said.sent, said.last) == (43, 3, 43)  # type: ignore[attr-defined]


def test_progress_frames_report_the_position_of_a_long_catchup(make_stage: MakePublisherHarness) -> None:
    stage = make_stage(
        TopicSettings(workers=1, pacing=CatchupPacing(300_000, threaded=False, live_rate_limit=0)),
        SMALL._replace(segment_bytes=1 << 20),
    )
    stage.fill(400, size=3000)
    client = stage.client()
    client.follow(make_filter(["nothing", "a"]))
    for _ in range(5):
        stage.turning.now += 2
        stage.work()
        client.read(1 << 20)
    assert len(told(client, FrameKind.PROGRESS)) >= 3
    stage.settle(client)
    assert client.sequences == list(range(1, 401))


def test_catchup_with_nothing_to_send_is_answered_with_a_count_of_zero(stage: PublisherHarness) -> None:
    client = stage.client()
    client.follow()
    assert told(client, FrameKind.RECOVERY_RESPONSE) == []
    stage.fill(2)
    stage.publisher.recover(client.subscriber, 2, "", 9)
    stage.settle(client)
    [response] = told(client, FrameKind.RECOVERY_RESPONSE)
    [complete] = told(client, FrameKind.RECOVERY_COMPLETE)
    assert (response.start, response.end, response.count) == (3, 2, 0)  # type: ignore[attr-defined]
    assert (complete.sequence, complete.sent) == (2, 0)  # type: ignore[attr-defined]
    assert client.sequences == [1, 2]


def test_catchup_reads_during_publishing_do_not_disturb_the_writer(stage: PublisherHarness) -> None:
    """The public store shares one file position: ten puts, read the third, two more, and four are unreadable."""
    stage.fill(10)
    reader = stage.publisher.ensure_open().feed.log.reader()
    assert next(iter(reader.records(3))).sequence == 3
    stage.fill(2)
    assert [record.sequence for record in reader.records(1)] == list(range(1, 13))
    client = stage.client()
    client.follow()
    stage.settle(client)
    assert client.sequences == list(range(1, 13))


def test_unsubscribe_while_waiting_for_a_catchup_worker_allows_a_new_subscription(stage: PublisherHarness) -> None:
    """The worker that was to have its line finds that it is no longer wanted."""
    client = stage.client(capacity=200)
    client.follow(start=Start.NEW)
    stage.fill(100)
    assert client.subscriber.is_detaching
    over: list[bool] = []
    assert stage.publisher.unsubscribe(client.subscriber, lambda: over.append(True))
    assert over == [True]
    old = len(client.records)
    client.follow(start=Start.NEW)
    stage.settle(client)
    stage.fill(3)
    stage.settle(client)
    started = [n for n, (kind, _) in enumerate(client.said) if kind is FrameKind.TOPIC_SUBSCRIBED]
    assert len(started) == 2
    assert client.sequences[old:][-3:] == [101, 102, 103]
    assert len(set(client.sequences)) == len(client.sequences)
    assert client.subscriber.state is SubscriberState.ONLINE
    assert client.subscriber.recoveries == 0


def responses(client: Client) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in told(client, FrameKind.RECOVERY_RESPONSE)]  # type: ignore[attr-defined]


def completes(client: Client) -> list[int]:
    return [one.sequence for one in told(client, FrameKind.RECOVERY_COMPLETE)]  # type: ignore[attr-defined]


def after_response(client: Client, place: int) -> list[int]:
    """The sequences that came after that RECOVERY_RESPONSE."""
    return [record.sequence for record in client.records[client.begun[place] :]]


def test_recovery_request_of_a_lagging_subscriber_takes_the_place_of_the_unasked_recovery(
    stage: PublisherHarness,
) -> None:
    """P-14: the subscriber waits for a worker, and one response answers both what it missed and what it asks for."""
    stage.fill(20)
    client = stage.client(capacity=200)
    client.follow(start=Start.NEW)
    stage.fill(30)
    assert client.subscriber.state is SubscriberState.RECOVERY_NEEDED
    stage.publisher.recover(client.subscriber, 3, "", 7)
    stage.settle(client)
    assert responses(client) == [(4, 50)]
    assert completes(client) == [50]
    assert after_response(client, 0) == list(range(4, 51))


def test_recovery_request_during_an_unasked_recovery_breaks_it_off_at_the_next_frame(stage: PublisherHarness) -> None:
    """P-14: the unasked recovery gets no completion, so the next completion is that of the answer."""
    stage.fill(20)
    client = stage.client(capacity=200)
    client.follow(start=Start.NEW)
    stage.fill(60)
    while not responses(client):
        stage.work()
        client.read(150)
    assert client.subscriber.state is SubscriberState.RECOVERING
    stage.publisher.recover(client.subscriber, 0, "", 7)
    stage.settle(client)
    unasked, asked = responses(client)
    assert unasked[0] > 21
    assert asked == (1, 80)
    assert completes(client) == [80]
    assert after_response(client, 1) == list(range(1, 81))


def test_recovery_request_for_all_is_not_answered_by_the_unasked_recovery_that_is_on_its_way(
    stage: PublisherHarness,
) -> None:
    """P-14: without request numbers the start of the response shows which one is the answer, also if nothing was sent
    before the subscriber lagged."""
    stage.fill(20)
    client = stage.client(5000, FeedDialect(("a",), 1))
    client.follow(make_filter(["a"]), Start.NEW)
    stage.publish(*(NewRecord("a", b"x" * 300) for _ in range(20)))
    stage.turning.run_once()
    assert client.subscriber.state is SubscriberState.RECOVERING
    for _ in range(4):
        stage.work()
    client.answers.ask(0, None)
    stage.publisher.recover(client.subscriber, FROM_FIRST, "", 0)
    stage.settle(client)
    assert [one.start for one in client.answers.found] == [21, 21, 1]
    assert client.answers.faults(lambda first, last: [*range(first, last + 1)], 40) == []


def test_recovery_request_for_all_names_a_sequence_of_before_the_subscription_if_none_of_that_is_kept(
    stage: PublisherHarness,
) -> None:
    """P-14: a start above that could be the start of a recovery that was not asked for."""
    stage.fill(100)
    log = stage.publisher.ensure_open().feed.log
    client = stage.client(5000, FeedDialect(("a",), 1))
    client.follow(make_filter(["a"]), Start.NEW)
    stage.fill(200)
    assert log.trim(250).first > 101
    client.answers.ask(0, None)
    stage.publisher.recover(client.subscriber, FROM_FIRST, "", 0)
    stage.settle(client)
    answer = client.answers.found[-1]
    assert (answer.start, answer.end, answer.sequences) == (100, 300, [*range(log.first, 301)])
    assert client.answers.faults(lambda first, last: [*range(first, last + 1)], 300, first=log.first) == []


def test_recovery_request_during_an_asked_recovery_is_answered_after_it(stage: PublisherHarness) -> None:
    """P-14: requests that wait together are one recovery, from the lowest sequence of any."""
    stage.fill(50)
    client = stage.client(capacity=200)
    client.follow()
    while len(client.records) < 5:
        stage.work()
        client.read(150)
    stage.publisher.recover(client.subscriber, 30, "", 7)
    stage.publisher.recover(client.subscriber, 10, "", 8)
    stage.fill(5)
    stage.settle(client)
    assert responses(client) == [(1, 50), (11, 55), (11, 55)]
    assert completes(client) == [50, 55, 55]
    assert after_response(client, 0)[:50] == list(range(1, 51))
    assert after_response(client, 2) == list(range(11, 56))


def test_recovery_request_while_catching_up_is_answered(stage: PublisherHarness) -> None:
    """P-14: the recovery before it is complete; what follows it gives way."""
    stage.fill(20)
    client = stage.client(capacity=200)
    client.follow()
    while len(client.records) < 5:
        stage.work()
        client.read(150)
    stage.fill(40)
    while not completes(client):
        stage.work()
        client.read(150)
    stage.turning.run_once()
    assert client.subscriber.state is SubscriberState.CATCHING_UP
    stage.publisher.recover(client.subscriber, 2, "", 7)
    last = stage.publisher.ensure_open().feed.log.last
    stage.settle(client)
    assert len(responses(client)) == len(completes(client)) == 2
    assert responses(client)[1] == (3, last)
    assert after_response(client, 1) == list(range(3, last + 1))
    assert stage.trace[-1] == (client.subscriber.number, "online")


def test_recovery_request_whose_records_are_retired_while_it_waits_is_refused_and_delivery_goes_on(
    stage: PublisherHarness,
) -> None:
    stage.fill(100)
    client = stage.client(capacity=200)
    client.follow(start=Start.SEQUENCE, at=80)
    while len(client.records) < 3:
        stage.work()
        client.read(150)
    stage.publisher.recover(client.subscriber, 0, "", 7)
    log = stage.publisher.ensure_open().feed.log
    assert log.trim(70).first > 1
    stage.settle(client)
    [refusal] = told(client, FrameKind.ERROR)
    assert refusal.code == "retired"  # type: ignore[attr-defined]
    stage.fill(3)
    stage.settle(client)
    assert client.sequences == list(range(80, 104))
    assert client.subscriber.state is SubscriberState.ONLINE


def test_recovery_requests_beyond_the_bound_are_refused_with_wrong_state(stage: PublisherHarness) -> None:
    stage.fill(50)
    client = stage.client(capacity=200)
    client.follow()
    for request in range(MAX_WAITING_REQUESTS):
        stage.publisher.recover(client.subscriber, 10, "", request)
    with pytest.raises(WrongState, match="wait for an answer"):
        stage.publisher.recover(client.subscriber, 10, "", MAX_WAITING_REQUESTS)
    stage.publisher.recover(client.subscriber, 5, "", 3)
    stage.settle(client)
    assert responses(client) == [(1, 50), *[(6, 50)] * MAX_WAITING_REQUESTS]


def test_recovery_requests_that_wait_at_an_unsubscribe_are_refused(stage: PublisherHarness) -> None:
    stage.fill(50)
    client = stage.client(capacity=200)
    client.follow()
    stage.work()
    stage.publisher.recover(client.subscriber, 10, "", 7)
    over: list[bool] = []
    stage.publisher.unsubscribe(client.subscriber, lambda: over.append(True))
    stage.settle(client)
    [refusal] = told(client, FrameKind.ERROR)
    assert (refusal.code, over) == ("wrong_state", [True])  # type: ignore[attr-defined]
