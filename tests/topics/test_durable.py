"""Durable subscribers: where they go on, what they hold back, and what they are told when it is gone."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.segment_log import cut_tail, make_log
from tests.support.topic_pipes import Client, MakePublisherHarness, PublisherHarness, small
from yirangmq.core.errors import BadInput, QueueError, Retired, Unavailable, WrongEpoch, WrongState
from yirangmq.core.topic_filter import make_filter
from yirangmq.core.topics import Cursor, Retention, Start, SubscriberState
from yirangmq.protocols.feed import FeedDialect
from yirangmq.topics.cursors import MAX_MARKS, SentMarks, retention_floor
from yirangmq.wire.frames import FrameKind

DAY = 86400.0


def confirm(stage: PublisherHarness, client: Client, sequence: int) -> tuple[int, QueueError | None]:
    told: list[tuple[int, QueueError | None]] = []
    stage.publisher.confirm(client.subscriber, sequence, lambda reached, error: told.append((reached, error)))
    stage.turning.run_once()
    [answer] = told
    return answer


def follows(stage: PublisherHarness, name: str = "ledger", start: Start = Start.BEGINNING, **more: Any) -> Client:
    client = stage.client()
    client.follow(start=start, name=name, **more)
    stage.settle(client)
    return client


def subscribed(client: Client) -> object:
    return next(value for kind, value in client.said if kind is FrameKind.TOPIC_SUBSCRIBED)


def test_cursor_resumes_a_named_subscriber_after_its_last_confirmed_record(stage: PublisherHarness) -> None:
    stage.fill(20, size=300)
    client = follows(stage)
    assert client.sequences == list(range(1, 21))
    assert confirm(stage, client, 12) == (12, None)
    client.pipe.close()
    stage.fill(3, size=300)
    again = follows(stage, start=Start.NEW)
    assert again.sequences == list(range(13, 24))
    assert subscribed(again).resumed  # type: ignore[attr-defined]


def test_cursor_is_stored_with_start_and_filter_when_a_named_subscriber_subscribes(stage: PublisherHarness) -> None:
    stage.fill(5, size=300)
    client = stage.client()
    client.follow(name="ledger", start=Start.NEW)
    stage.turning.run_once()
    [cursor] = stage.publisher.ensure_open().cursor_committer.all()
    assert (cursor.name, cursor.sequence, cursor.filter) == ("ledger", 5, "*")


def test_cursor_never_moves_back(stage: PublisherHarness) -> None:
    stage.fill(20, size=300)
    client = follows(stage)
    confirm(stage, client, 12)
    assert confirm(stage, client, 3) == (12, None)
    client.pipe.close()
    assert follows(stage).sequences[0] == 13


def test_cursor_confirmations_of_one_turn_are_all_answered_and_the_highest_is_stored(stage: PublisherHarness) -> None:
    stage.fill(20, size=300)
    clients = [follows(stage, f"n{n}") for n in range(3)]
    heard: list[int] = []
    for number, client in enumerate(clients):
        for sequence in range(10 + number):
            stage.publisher.confirm(client.subscriber, sequence, lambda reached, error: heard.append(reached))
    stage.turning.run_once()
    assert len(heard) == 33
    assert [cursor.sequence for cursor in stage.publisher.ensure_open().cursor_committer.all()] == [9, 10, 11]


def test_cursor_confirmation_without_a_subscriber_name_is_refused(stage: PublisherHarness) -> None:
    stage.fill(2, size=300)
    client = stage.client()
    with pytest.raises(WrongState):
        confirm(stage, client, 1)
    client.follow()
    with pytest.raises(WrongState):
        confirm(stage, client, 1)


@pytest.mark.parametrize("sequence", [-1, 3])
def test_cursor_confirmation_of_a_sequence_never_sent_is_refused(stage: PublisherHarness, sequence: int) -> None:
    stage.fill(2, size=300)
    client = follows(stage)
    with pytest.raises(BadInput) as caught:
        confirm(stage, client, sequence)
    assert caught.value.field == "sequence"


def test_subscriber_name_used_again_disconnects_the_earlier_subscriber(stage: PublisherHarness) -> None:
    stage.fill(5, size=300)
    first = follows(stage)
    second = follows(stage)
    assert isinstance(first.pipe.error, Unavailable)
    assert first.subscriber.state is SubscriberState.OFFLINE
    assert second.subscriber.state is SubscriberState.ONLINE
    stage.fill(1, size=300)
    stage.settle(second)
    assert second.sequences[-1] == 6


def test_subscriber_name_used_again_cuts_off_the_catchup_of_the_earlier_subscriber(stage: PublisherHarness) -> None:
    stage.fill(50, size=300)
    first = stage.client(capacity=100)
    first.follow(name="ledger")
    stage.turning.run_once()
    stage.work(0)
    assert first.subscriber.run is not None
    second = follows(stage)
    assert first.pipe.cuts == ["replaced"]
    assert second.sequences == list(range(1, 51))


# -- lag --------------------------------------------------------------------------------------------------------------


def test_lag_of_a_durable_subscriber_counts_what_it_has_not_confirmed(stage: PublisherHarness) -> None:
    stage.fill(20)
    client = follows(stage)
    other = stage.client()
    other.follow(start=Start.BEGINNING)
    stage.settle(other)
    lag_of = stage.publisher.ensure_open().lifecycle.lag_of
    assert (len(client.records), lag_of(client.subscriber)) == (20, 20)
    assert (len(other.records), lag_of(other.subscriber)) == (20, 0), "not durable: what it was not sent"
    confirm(stage, client, 12)
    assert lag_of(client.subscriber) == 8
    stage.fill(3)
    assert lag_of(client.subscriber) == 11
    confirm(stage, client, 23)
    assert lag_of(client.subscriber) == 0


def test_lag_of_a_durable_subscriber_with_a_filter_counts_only_records_that_match_it(stage: PublisherHarness) -> None:
    client = follows(stage, filter=make_filter(["b"]), start=Start.NEW)
    lag_of = stage.publisher.ensure_open().lifecycle.lag_of
    stage.fill(10, topic="b")  # 1 to 10
    assert lag_of(client.subscriber) == 10
    stage.fill(100, topic="a")
    stage.fill(10, topic="b")  # 111 to 120
    assert lag_of(client.subscriber) == 20
    confirm(stage, client, 4)
    assert lag_of(client.subscriber) == 16
    confirm(stage, client, 120)
    assert lag_of(client.subscriber) == 0
    stage.publisher.recover(client.subscriber, 115, "", 7)
    stage.settle(client)
    assert lag_of(client.subscriber) == 0, "records sent again that are confirmed are not counted"


def test_sent_marks_are_bounded_and_begin_again_where_records_are_sent_again() -> None:
    marks = SentMarks(100, 7)
    for n in range(1, 10 * MAX_MARKS):
        marks.add(100 + 10 * n, 7 + n)
        assert len(marks._sequences) <= MAX_MARKS
    last = 10 * MAX_MARKS - 1
    assert [marks.after(100 + 10 * n) for n in (0, 5, last)] == [last, last - 5, 0]
    marks.confirm(100 + 10 * (last - 3))
    assert marks.after(100 + 10 * (last - 3)) == 3
    marks.add(100 + 10 * (last - 1), 7 + last)
    assert marks.after(100 + 10 * (last - 3)) == 2
    marks.add(100 + 10 * last, 7 + last + 1)
    assert marks.after(100 + 10 * (last - 3)) == 3


@pytest.mark.parametrize("wanted", [["b"], ["b", "c*"]])
def test_lag_of_a_disconnected_subscriber_counts_the_records_that_match_its_filter(
    stage: PublisherHarness, wanted: list[str]
) -> None:
    client = follows(stage, filter=make_filter(wanted), start=Start.NEW)
    client.pipe.close()
    stage.fill(200, topic="a")
    stage.fill(7, topic="b")
    lags = partial(stage.publisher.cursor_lags, stage.publisher.ensure_open().cursor_committer.all())
    assert lags() == {"ledger": 207}, "not counted yet"
    stage.turning.run_once()
    assert lags() == {"ledger": 7}
    stage.fill(50, topic="a")
    stage.fill(2, topic="b")
    assert lags() == {"ledger": 9}
    assert lags() == {"ledger": 9}
    stage.turning.run_once()
    assert stage.publisher.ensure_open().lifecycle.is_idle


@pytest.mark.parametrize(("text", "lag"), [("*", 30), ("in my own words!", 30), ("b", 10), ("mask=2", 10), ("", 30)])
def test_lag_of_a_cursor_whose_text_is_no_filter_is_that_of_the_whole_log(
    make_stage: MakePublisherHarness, text: str, lag: int
) -> None:
    stage = make_stage(small(masked=("a", "b")))
    stage.fill(20, topic="a")
    stage.fill(10, topic="b")
    epoch = stage.publisher.ensure_open().feed.log.epoch
    cursors = [Cursor("x", epoch, 0, text, 0), Cursor("y", "f" * 32, 99, text, 0)]
    stage.publisher.cursor_lags(cursors)
    stage.turning.run_once()
    assert stage.publisher.cursor_lags(cursors) == {"x": lag, "y": 30}


# -- another feed -----------------------------------------------------------------------------------------------------


def test_epoch_of_a_lost_log_is_refused_until_the_subscriber_starts_over(
    make_stage: MakePublisherHarness, tmp_path: Path
) -> None:
    """The public publisher begins again at 1, and its subscribers take everything for duplicates."""
    stage = make_stage()
    stage.fill(20, size=300)
    client = follows(stage)
    confirm(stage, client, 20)
    epoch = stage.publisher.ensure_open().feed.log.epoch
    cursors = (tmp_path / "topics" / "cursors").read_bytes()
    stage.close()
    shutil.rmtree(tmp_path / "topics")
    (tmp_path / "topics").mkdir()
    (tmp_path / "topics" / "cursors").write_bytes(cursors)
    losses: list[str] = []
    stage = make_stage(on_loss=losses.append)
    stage.fill(3, size=300)
    [loss] = losses
    assert "the log is lost, with records at least up to 20, which subscriber ledger has confirmed" in loss
    for asking in ({"name": "ledger"}, {"epoch": epoch, "start": Start.SEQUENCE, "at": 2}):
        with pytest.raises(WrongEpoch, match=epoch):
            stage.client().follow(**asking)
    assert follows(stage, resume=False).sequences == [1, 2, 3]
    assert follows(stage).sequences == [1, 2, 3], "its cursor is of the new feed now"


def test_lost_tail_that_a_subscriber_has_confirmed_is_told_to_all_who_know_the_epoch(
    make_stage: MakePublisherHarness, tmp_path: Path
) -> None:
    """P-30: the sequence it has confirmed is not given to another record in the same epoch."""
    stage = make_stage()
    stage.fill(5)
    confirm(stage, follows(stage), 5)
    log = stage.publisher.ensure_open().feed.log
    epoch, gone = log.epoch, log.topics()["a"].topic_sequence
    stage.close()
    cut_tail(tmp_path / "topics")
    losses: list[str] = []
    stage = make_stage(on_loss=losses.append)
    stage.fill(2)
    [loss] = losses
    assert "at least up to 5, which subscriber ledger has confirmed" in loss
    for asking in ({"name": "ledger"}, {"epoch": epoch, "start": Start.SEQUENCE, "at": 6}):
        with pytest.raises(WrongEpoch, match=epoch):
            stage.client().follow(**asking)
    client = follows(stage, resume=False)
    assert client.sequences == [1, 2, 3, 4, 6, 7]
    assert client.records[-2].topic_sequence == gone + 1
    [subscribed] = [value for kind, value in client.said if kind is FrameKind.TOPIC_SUBSCRIBED]
    assert subscribed.gaps == [(5, 5)]
    public = stage.client(dialect=FeedDialect(("a",), 1))
    public.follow(start=Start.NEW)
    stage.publisher.recover(public.subscriber, 5, "", 0)
    stage.settle(public)
    assert public.sequences == [6, 7], "a protocol without epochs misses none of the new records"


def test_lost_tail_that_no_durable_reader_knows_is_told_to_a_subscriber_that_has_seen_more(
    make_stage: MakePublisherHarness, tmp_path: Path
) -> None:
    stage = make_stage()
    stage.fill(5)
    epoch = stage.publisher.ensure_open().feed.log.epoch
    stage.close()
    cut_tail(tmp_path / "topics")
    stage = make_stage()
    with pytest.raises(WrongEpoch, match="records of this epoch are lost"):
        stage.client().follow(start=Start.SEQUENCE, at=6, epoch=epoch)
    with pytest.raises(BadInput, match="from 1 to 5"):
        stage.client().follow(start=Start.SEQUENCE, at=6)


def test_catchup_request_with_another_epoch_is_refused_and_the_subscriber_stays_live(stage: PublisherHarness) -> None:
    stage.fill(3, size=300)
    client = follows(stage)
    with pytest.raises(WrongEpoch):
        stage.publisher.recover(client.subscriber, 1, "f" * 32, 1)
    assert client.subscriber.state is SubscriberState.ONLINE


def test_sequence_beyond_2_to_the_32_is_delivered_confirmed_and_resumed(
    make_stage: MakePublisherHarness, tmp_path: Path
) -> None:
    make_log(tmp_path / "topics", 2**32 - 3, {"a": 2**32 - 2})
    stage = make_stage()
    live = follows(stage, "live", Start.NEW)
    stage.fill(6, size=300)
    late = follows(stage, "late")
    stage.settle(live, late)
    for client in (live, late):
        assert client.sequences == list(range(2**32 - 3, 2**32 + 3))
        assert [one.topic_sequence for one in client.records] == list(range(2**32 - 1, 2**32 + 5))
    confirm(stage, late, 2**32 + 1)
    late.pipe.close()
    assert follows(stage, "late").sequences == [2**32 + 2]


# -- retention --------------------------------------------------------------------------------------------------------


def test_retention_keeps_the_records_a_durable_subscriber_has_not_confirmed(make_stage: MakePublisherHarness) -> None:
    stage = make_stage(small(retention=Retention(age_ns=1), cursor_seconds=7 * DAY))
    stage.fill(100, size=300)
    client = follows(stage)
    confirm(stage, client, 40)
    stage.turning.advance(60)
    first = stage.publisher.ensure_open().feed.log.first
    assert 1 < first <= 41, "whole segments go"
    client.pipe.close()
    stage.turning.advance(DAY)
    assert stage.publisher.ensure_open().feed.log.first == first
    assert follows(stage).sequences == list(range(41, 101))


def test_retention_ignores_a_subscriber_offline_too_long_and_its_return_reports_both_sequences(
    make_stage: MakePublisherHarness,
) -> None:
    stage = make_stage(small(retention=Retention(age_ns=1), cursor_seconds=7 * DAY))
    stage.fill(100, size=300)
    client = follows(stage)
    confirm(stage, client, 40)
    client.pipe.close()
    stage.turning.advance(8 * DAY)
    stage.turning.advance(60)
    first = stage.publisher.ensure_open().feed.log.first
    assert first > 41
    again = stage.client()
    again.follow(name="ledger")
    stage.turning.run_once()
    assert isinstance(again.error, Retired)
    assert (again.error.asked, again.error.first) == (41, first)
    assert again.subscriber.state is SubscriberState.CONNECTED
    again.follow(name="ledger", resume=False)
    stage.settle(again)
    assert again.sequences == list(range(first, 101))


def test_retention_keeps_the_records_of_a_connected_subscriber_however_long_it_is_idle(
    make_stage: MakePublisherHarness,
) -> None:
    stage = make_stage(small(retention=Retention(age_ns=1), cursor_seconds=7 * DAY))
    stage.fill(100, size=300)
    client = follows(stage)
    confirm(stage, client, 40)
    for _ in range(30):
        stage.turning.advance(DAY)
    client.pipe.close()
    stage.turning.advance(2 * DAY)
    assert stage.publisher.ensure_open().feed.log.first <= 41
    assert follows(stage).sequences[0] == 41


def test_retention_that_passes_a_reader_ends_its_catchup_with_both_sequences_in_the_error(
    make_stage: MakePublisherHarness,
) -> None:
    stage = make_stage(small(retention=Retention(age_ns=1)))
    stage.fill(100, size=300)
    client = stage.client(capacity=100)
    client.follow()
    stage.work(0)
    stage.turning.advance(60)
    first = stage.publisher.ensure_open().feed.log.first
    assert first > 50
    for _ in range(500):
        stage.work(0)
        client.read(1 << 20)
        stage.turning.run_once()
    assert isinstance(client.pipe.error, Retired)
    assert client.pipe.error.first == first
    assert client.pipe.error.asked == client.sequences[-1] + 1
    assert client.sequences == list(range(1, len(client.records) + 1))


def test_retention_floor_counts_recent_or_connected_cursors_of_the_same_epoch() -> None:
    from yirangmq.core.topics import Cursor

    ours, other = "a" * 32, "b" * 32
    cursors = [
        Cursor("old", ours, 5, "*", 10),
        Cursor("new", ours, 9, "*", 100),
        Cursor("foreign", other, 1, "*", 100),
    ]
    assert retention_floor(cursors, ours, 50, frozenset()) == 10
    assert retention_floor(cursors, ours, 50, frozenset({"old"})) == 6
    assert retention_floor(cursors, ours, 0, frozenset()) == 6
    assert retention_floor([], ours, 0, frozenset()) is None


def test_cursor_takes_the_filter_of_the_next_subscription_and_keeps_its_sequence(stage: PublisherHarness) -> None:
    stage.fill(4, size=300)
    client = follows(stage)
    confirm(stage, client, 2)
    client.pipe.close()
    follows(stage, filter=make_filter(["b"]))
    [cursor] = stage.publisher.ensure_open().cursor_committer.all()
    assert (cursor.sequence, cursor.filter) == (2, "b")
