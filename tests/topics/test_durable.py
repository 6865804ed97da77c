"""Durable subscribers: where they go on, what they hold back, and what they are told when it is gone."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.segment_log import make_log
from tests.support.topic_pipes import Client, MakePublisherHarness, PublisherHarness, small
from yirangmq.core.errors import BadInput, QueueError, Retired, Unavailable, WrongEpoch, WrongState
from yirangmq.core.topic_filter import make_filter
from yirangmq.core.topics import Retention, Start, SubscriberState
from yirangmq.topics.cursors import retention_floor
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


def test_a_name_goes_on_after_what_it_has_confirmed(stage: PublisherHarness) -> None:
    stage.fill(20, size=300)
    client = follows(stage)
    assert client.sequences == list(range(1, 21))
    assert confirm(stage, client, 12) == (12, None)
    client.pipe.close()
    stage.fill(3, size=300)
    again = follows(stage, start=Start.NEW)
    assert again.sequences == list(range(13, 24))
    assert subscribed(again).resumed  # type: ignore[attr-defined]


def test_a_name_is_written_down_before_it_is_told_that_it_follows(stage: PublisherHarness) -> None:
    stage.fill(5, size=300)
    client = stage.client()
    client.follow(name="ledger", start=Start.NEW)
    stage.turning.run_once()
    [cursor] = stage.publisher.ensure_open().cursor_committer.all()
    assert (cursor.name, cursor.sequence, cursor.filter) == ("ledger", 5, "*")


def test_a_cursor_never_goes_back(stage: PublisherHarness) -> None:
    stage.fill(20, size=300)
    client = follows(stage)
    confirm(stage, client, 12)
    assert confirm(stage, client, 3) == (12, None)
    client.pipe.close()
    assert follows(stage).sequences[0] == 13


def test_confirmations_that_come_together_are_written_together(stage: PublisherHarness) -> None:
    stage.fill(20, size=300)
    clients = [follows(stage, f"n{n}") for n in range(3)]
    heard: list[int] = []
    for number, client in enumerate(clients):
        for sequence in range(10 + number):
            stage.publisher.confirm(client.subscriber, sequence, lambda reached, error: heard.append(reached))
    stage.turning.run_once()
    assert len(heard) == 33
    assert [cursor.sequence for cursor in stage.publisher.ensure_open().cursor_committer.all()] == [9, 10, 11]


def test_who_has_no_name_confirms_nothing(stage: PublisherHarness) -> None:
    stage.fill(2, size=300)
    client = stage.client()
    with pytest.raises(WrongState):
        confirm(stage, client, 1)
    client.follow()
    with pytest.raises(WrongState):
        confirm(stage, client, 1)


@pytest.mark.parametrize("sequence", [-1, 3])
def test_what_has_not_come_cannot_be_confirmed(stage: PublisherHarness, sequence: int) -> None:
    stage.fill(2, size=300)
    client = follows(stage)
    with pytest.raises(BadInput) as caught:
        confirm(stage, client, sequence)
    assert caught.value.field == "sequence"


def test_a_name_is_in_one_place_the_latest(stage: PublisherHarness) -> None:
    stage.fill(5, size=300)
    first = follows(stage)
    second = follows(stage)
    assert isinstance(first.pipe.error, Unavailable)
    assert first.subscriber.state is SubscriberState.OFFLINE
    assert second.subscriber.state is SubscriberState.ONLINE
    stage.fill(1, size=300)
    stage.settle(second)
    assert second.sequences[-1] == 6


def test_a_name_that_recovers_is_cut_off_where_it_is(stage: PublisherHarness) -> None:
    stage.fill(50, size=300)
    first = stage.client(capacity=100)
    first.follow(name="ledger")
    stage.turning.run_once()
    stage.work(0)
    assert first.subscriber.run is not None
    second = follows(stage)
    assert first.pipe.cuts == ["replaced"]
    assert second.sequences == list(range(1, 51))


# -- another feed -----------------------------------------------------------------------------------------------------


def test_a_log_that_was_lost_is_another_feed(make_stage: MakePublisherHarness, tmp_path: Path) -> None:
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
    stage = make_stage()
    stage.fill(3, size=300)
    for asking in ({"name": "ledger"}, {"epoch": epoch, "start": Start.SEQUENCE, "at": 2}):
        with pytest.raises(WrongEpoch, match=epoch):
            stage.client().follow(**asking)
    assert follows(stage, resume=False).sequences == [1, 2, 3]
    assert follows(stage).sequences == [1, 2, 3], "its cursor is of the new feed now"


def test_a_recovery_of_another_feed_is_refused(stage: PublisherHarness) -> None:
    stage.fill(3, size=300)
    client = follows(stage)
    with pytest.raises(WrongEpoch):
        stage.publisher.recover(client.subscriber, 1, "f" * 32, 1)
    assert client.subscriber.state is SubscriberState.ONLINE


def test_2_to_the_32_is_no_boundary(make_stage: MakePublisherHarness, tmp_path: Path) -> None:
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


def test_the_log_keeps_what_a_durable_subscriber_needs(make_stage: MakePublisherHarness) -> None:
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


def test_one_that_is_away_for_too_long_holds_nothing_back_and_is_told_both_numbers(
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


def test_one_that_is_connected_holds_the_log_however_quiet_it_is(make_stage: MakePublisherHarness) -> None:
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


def test_retention_that_passes_a_reader_is_told_to_it_with_both_numbers(make_stage: MakePublisherHarness) -> None:
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


def test_which_cursors_count() -> None:
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


def test_a_filter_may_change_with_the_next_subscription(stage: PublisherHarness) -> None:
    stage.fill(4, size=300)
    client = follows(stage)
    confirm(stage, client, 2)
    client.pipe.close()
    follows(stage, filter=make_filter(["b"]))
    [cursor] = stage.publisher.ensure_open().cursor_committer.all()
    assert (cursor.sequence, cursor.filter) == (2, "b")
