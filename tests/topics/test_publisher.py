"""The publish path: one commit a turn, each publisher's own answer, the same bytes for all; and a log that refuses."""

import errno
import threading
from pathlib import Path

import pytest

from tests.support.faulty_disk import UnwillingDisk
from tests.support.topic_pipes import SMALL, MakePublisherHarness, PublisherHarness, small
from yirangmq.core.errors import BadInput, StoreError, StoreFull, TooLarge, Unavailable
from yirangmq.core.topic_filter import make_filter
from yirangmq.core.topics import Cursors, KnownPositions, Log, NewRecord, PublisherState, Start, SubscriberState
from yirangmq.stores.cursors import open_cursors
from yirangmq.stores.log.log import SegmentLog
from yirangmq.topics.ports import TopicSettings
from yirangmq.topics.publisher import LogOpeners, Publisher
from yirangmq.wire.frames import MAX_FRAME


def test_group_commit_stores_all_publishes_of_one_turn_in_one_commit(stage: PublisherHarness) -> None:
    for number in range(5):
        stage.publish(NewRecord("a", b"%d" % number), NewRecord("b", b"x"))
    assert stage.stored == []
    stage.turning.run_once()
    assert stage.publisher.ensure_open().feed.commits == 1
    answers = [(one.first, one.last, one.topics) for one in stage.stored if one]
    assert answers == [(2 * n + 1, 2 * n + 2, {"a": n + 1, "b": n + 1}) for n in range(5)]
    assert len({one.at_ns for one in stage.stored if one}) == 1


def test_group_commit_is_split_at_its_size_limit(stage: PublisherHarness) -> None:
    for _ in range(5):
        stage.publish(NewRecord("a", b"x" * 400))
    stage.publish(NewRecord("a", b"x" * 5000))
    stage.turning.run_once()
    assert stage.publisher.ensure_open().feed.commits == 4
    assert [one.first for one in stage.stored if one] == [1, 2, 3, 4, 5, 6]


def test_group_commit_with_an_invalid_publish_stores_the_others(stage: PublisherHarness) -> None:
    stage.publish(NewRecord("a", b"1"))
    stage.publish(NewRecord("a", b"2"), NewRecord("no/slash", b"2"))
    stage.publish(NewRecord("a", b"3"))
    stage.turning.run_once()
    assert [one and one.first for one in stage.stored] == [1, None, 2]
    [error] = stage.errors
    assert (type(error), error.field) == (BadInput, "topic")
    assert str(stage.publisher.state) == PublisherState.ONLINE


@pytest.mark.parametrize(
    ("record", "kind", "field"),
    [
        (NewRecord("", b""), BadInput, "topic"),
        (NewRecord("a", b"", "k" * 70_000), TooLarge, "key"),
        (NewRecord("a", b"", None, {"h": "v" * 70_000}), TooLarge, "headers"),
        (NewRecord("a", b"x" * MAX_FRAME), TooLarge, "payload"),
    ],
)
def test_topic_record_that_is_invalid_is_refused_with_its_field(
    stage: PublisherHarness, record: NewRecord, kind: type[BadInput], field: str
) -> None:
    stage.publish(record)
    stage.turning.run_once()
    [error] = stage.errors
    assert (type(error), error.field) == (kind, field)
    assert stage.publisher.ensure_open().feed.log.last == 0


@pytest.mark.parametrize("count", [0, 10_001])
def test_topic_publish_of_no_record_or_too_many_is_refused(stage: PublisherHarness, count: int) -> None:
    with pytest.raises(BadInput) as caught:
        stage.publish(*[NewRecord("a", b"")] * count)
    assert caught.value.field == "records"


def test_fan_out_sends_the_same_bytes_to_subscribers_with_equal_filters(stage: PublisherHarness) -> None:
    clients = [stage.client() for _ in range(4)]
    filters = [make_filter(["a"])] * 2 + [make_filter(["a", "b"])] * 2
    sent: list[bytes] = []
    for client, filter in zip(clients, filters, strict=True):
        client.follow(filter, Start.NEW)
        client.pipe.send = sent.append  # type: ignore[method-assign,assignment]
    stage.publish(NewRecord("a", b"1"), NewRecord("b", b"2"), NewRecord("a", b"3"))
    stage.turning.run_once()
    assert len(sent) == 4
    assert len({id(data) for data in sent}) == 2


def test_group_commit_callback_that_fails_does_not_affect_the_other_publishes(stage: PublisherHarness) -> None:
    def broken(stored: object, error: object) -> None:
        raise RuntimeError("of one publisher only")

    stage.publisher.publish([NewRecord("a", b"")], broken)
    stage.publish(NewRecord("a", b""))
    with pytest.raises(RuntimeError):
        stage.turning.run_once()
    assert [one and one.first for one in stage.stored] == [2]


# -- a log that refuses -----------------------------------------------------------------------------------------------


def test_full_disk_puts_the_publisher_in_error_until_there_is_space_and_sends_nothing_unstored(
    make_stage: MakePublisherHarness,
) -> None:
    disk = UnwillingDisk()
    stage = make_stage(disk=disk)
    client = stage.client()
    client.follow(start=Start.NEW)
    disk.start(lambda number, name: errno.ENOSPC if name == "write_at" else 0)
    for _ in range(3):
        stage.publish(NewRecord("a", b"x"))
        stage.turning.run_once()
    assert {type(error) for error in stage.errors} == {StoreFull}
    assert str(stage.publisher.state) == PublisherState.ERROR
    assert "space" in stage.publisher.reason
    disk.start(lambda number, name: 0)
    stage.publish(NewRecord("a", b"y"))
    stage.settle(client)
    assert str(stage.publisher.state) == PublisherState.ONLINE
    assert stage.states == ["starting", "listening", "online", "error", "starting", "listening", "online"]
    assert [record.payload for record in client.records] == [b"y"], "nothing was sent that is not on disk"
    assert client.sequences == [1]


def test_fsync_that_fails_disconnects_subscribers_and_the_log_is_opened_again(make_stage: MakePublisherHarness) -> None:
    disk = UnwillingDisk()
    stage = make_stage(log=SMALL._replace(durability="full"), disk=disk)
    stage.publish(NewRecord("a", b"1"))
    stage.turning.run_once()
    client = stage.client()
    client.follow()
    stage.settle(client)
    disk.start(lambda number, name: errno.EIO if name == "fdatasync" else 0)
    stage.publish(NewRecord("a", b"lost"))
    stage.turning.run_once()
    disk.start(lambda number, name: 0)
    assert [type(error) for error in stage.errors] == [StoreError]
    assert isinstance(client.pipe.error, Unavailable)
    assert client.subscriber.state is SubscriberState.OFFLINE
    stage.publish(NewRecord("a", b"2"))
    stage.turning.run_once()
    assert str(stage.publisher.state) == PublisherState.ONLINE
    again = stage.client()
    again.follow()
    stage.settle(again)
    assert [record.payload for record in again.records] == [b"1", b"2"]
    assert again.sequences == [1, 2]


# -- starting ---------------------------------------------------------------------------------------------------------


class Opened:
    """Counts what is open."""

    def __init__(self, folder: Path, fails: str) -> None:
        self._folder = folder
        self._fails = fails
        self.logs: list[SegmentLog] = []

    def log(self, known: KnownPositions) -> Log:
        if self._fails == "log":
            raise StoreError("no log")
        self.logs.append(SegmentLog(self._folder, SMALL))
        return self.logs[-1]

    def cursors(self) -> Cursors:
        if self._fails == "cursors":
            raise StoreError("no cursors")
        return open_cursors(f"file:{self._folder}/cursors")


@pytest.mark.parametrize("fails", ["log", "cursors"])
def test_publisher_start_that_fails_is_an_error_leaks_nothing_and_is_retried_later(tmp_path: Path, fails: str) -> None:
    stage = PublisherHarness(tmp_path / "other", small())
    ensure_open = Opened(tmp_path / "topics", fails)
    threads = threading.active_count()
    publisher = Publisher(
        LogOpeners(ensure_open.log, ensure_open.cursors, lambda: True),
        stage.turning.loop(),
        small(),
        stage.publisher.executor,
    )
    publisher.start()
    assert str(publisher.state) == PublisherState.ERROR
    assert publisher.reason == f"no {fails}"
    publisher.mark_listening()
    publisher.mark_online()
    assert str(publisher.state) == PublisherState.ERROR, "it does not get online by listening"
    for _ in range(2):
        with pytest.raises(StoreError):
            publisher.publish([NewRecord("a", b"")], lambda stored, error: None)
    assert len(ensure_open.logs) == (fails == "cursors"), "who asks again at once is told the same, without another try"
    for log in ensure_open.logs:
        with pytest.raises(Unavailable):
            log.append([NewRecord("a", b"")])
    ensure_open._fails = ""
    stage.turning.advance(2)
    publisher.publish([NewRecord("a", b"")], lambda stored, error: None)
    stage.turning.run_once()
    assert str(publisher.state) == PublisherState.ONLINE
    assert threading.active_count() <= threads
    publisher.close()
    stage.close()


def test_publisher_that_failed_is_in_error_and_closes(stage: PublisherHarness) -> None:
    publisher = Publisher(
        LogOpeners(lambda known: stage.publisher.ensure_open().feed.log, lambda: open_cursors("file:x"), lambda: False),
        stage.turning.loop(),
        TopicSettings(),
    )
    publisher.start()
    publisher.fail(StoreError("disk I/O error"))
    assert str(publisher.state) == PublisherState.ERROR
    publisher.close()
    assert not publisher.is_open


def test_publisher_opens_its_log_only_when_first_needed(make_stage: MakePublisherHarness, tmp_path: Path) -> None:
    threads = threading.active_count()
    stage = make_stage()
    assert not stage.publisher.is_open
    assert not (tmp_path / "topics").exists()
    assert stage.states == ["starting", "listening", "online"]
    assert threading.active_count() <= threads
    stage.publish(NewRecord("a", b""))
    assert stage.publisher.is_open


def test_publisher_that_stops_answers_pending_and_refuses_new_publishes(stage: PublisherHarness) -> None:
    stage.publish(NewRecord("a", b""))
    stage.publisher.stop()
    with pytest.raises(Unavailable):
        stage.publish(NewRecord("a", b""))
    idle = [stage.publisher.is_idle]
    stage.turning.run_once()
    assert [*idle, stage.publisher.is_idle] == [False, True]
    assert [one and one.first for one in stage.stored] == [1]
    stage.publisher.close()
    with pytest.raises(Unavailable):
        stage.publisher.ensure_open()
