"""Publishing to topics and following them, by either face, over real sockets and a real log."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.client.parts import SILENCE, Connect
from tests.client.topic_parts import TOPIC_FACES, InLoopTopics, Tampering, silent_until
from tests.support.credentials import certificate, server_context
from tests.support.server import RunningServer
from tests.support.server_process import until
from tests.support.topic_server import SMALL
from tests.support.wait import PATIENCE
from yirangmq.client import session as client_feed
from yirangmq.client import topic_connection
from yirangmq.client.connect import connect
from yirangmq.client.values import Event, LostRecords, Missing, Moved, NewEpoch
from yirangmq.core.errors import (
    BadInput,
    NotActive,
    NotFound,
    Replaced,
    Retired,
    StoreDamaged,
    TooLarge,
    Unreachable,
    WrongEpoch,
)
from yirangmq.core.topics import NewRecord, SubscriberState
from yirangmq.protocols.native import topics as server_side
from yirangmq.stores.log.log import SegmentLog
from yirangmq.stores.memory import MemoryStore
from yirangmq.topics.ports import TopicSettings
from yirangmq.wire import messages as wire_feeds
from yirangmq.wire.frames import Frame, FrameKind
from yirangmq.wire.records import KIND, read_body

SOON = 0.05
"""Seconds between two tries to connect, in these tests."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    made = RunningServer(MemoryStore(), tmp_path, topics=TopicSettings(masked=("a", "b", "c"))).start()
    yield made
    made.stop()


@pytest.fixture(params=TOPIC_FACES)
def connecting(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda address, **options: stack.enter_context(
            TOPIC_FACES[request.param](address, **{"consumer": "tester", "timeout": 10} | options)
        )


@pytest.fixture
def topics(server: RunningServer, connecting: Connect) -> Any:
    """Of a client of that server, by either face."""
    return connecting(server.unix).topics


def fill(topics: Any, count: int, *names: str) -> None:
    """Records 1 to count, their payload their number, their topics by turns."""
    names = names or ("a", "b")
    topics.publish_many([(names[n % len(names)], n + 1) for n in range(count)])


def sequences(subscription: Any, count: int) -> list[int]:
    """So many, as they come."""
    found: list[int] = []
    while len(found) < count:
        record = subscription.next(PATIENCE)
        assert record is not None, found
        found.append(record.sequence)
    return found


def states(events: list[Event]) -> list[str]:
    return [str(one.after) for one in events if isinstance(one, Moved)]


def test_topic_wire_modules_are_shared_by_client_and_server() -> None:
    assert vars(topic_connection)["messages"] is vars(server_side)["messages"] is wire_feeds
    assert vars(client_feed)["read_body"] is read_body
    assert client_feed.RECORD == KIND


# -- publishing -------------------------------------------------------------------------------------------------------


def test_topic_publish_receipt_has_sequence_and_topic_sequence(topics: Any) -> None:
    one = topics.publish("a", {"n": 1}, key="k", headers={"h": "v"})
    two = topics.publish("b", b"\x00")
    assert [(one.sequence, one.topic_sequence), (two.sequence, two.topic_sequence)] == [(1, 1), (2, 1)]
    page = topics.read()
    assert [(record.topic, record.key, dict(record.headers), record.value()) for record in page.records] == [
        ("a", "k", {"h": "v"}, {"n": 1}),
        ("b", None, {}, b"\x00"),
    ]
    assert (page.epoch, page.first, page.last, page.next) == (one.epoch, 1, 2, 3)


def test_topic_publish_many_numbers_records_in_order(topics: Any) -> None:
    given = [("ab"[n % 2], b"%d" % n) if n % 3 else NewRecord("ab"[n % 2], b"%d" % n, "k") for n in range(1000)]
    receipts = topics.publish_many(iter(given))
    assert [one.sequence for one in receipts] == list(range(1, 1001))
    assert [one.topic_sequence for one in receipts] == [n // 2 + 1 for n in range(1000)]
    records = [record for start in range(1, 1001, 100) for record in topics.read(sequence=start).records]
    assert [record.payload for record in records] == [b"%d" % n for n in range(1000)]
    assert [record.topic_sequence for record in records] == [one.topic_sequence for one in receipts]


@pytest.mark.parametrize(
    ("records", "field"),
    [
        ([("a", b""), ("a b", b"")], "topic"),
        ([("a", b"", 5)], "key"),
        ([("a", b"", None, {"h": 1})], "headers"),
        ([("a", object())], "payload"),
        ([("a",)], "records[0]"),
        (["ab"], "records[0]"),
    ],
)
def test_topic_publish_many_checks_a_list_before_anything_is_sent(topics: Any, records: list[Any], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        topics.publish_many(records)
    assert caught.value.field == field
    assert topics.list()["topics"] == []


def test_topic_publish_of_a_record_too_large_is_refused_with_the_receipts_before_it(topics: Any) -> None:
    with pytest.raises(TooLarge):
        topics.publish("a", bytes(17 << 20))
    with pytest.raises(TooLarge) as caught:
        topics.publish_many(iter([("a", b"fits")] * 600 + [("a", bytes(17 << 20))]))
    assert len([one for one in caught.value.receipts if one is not None]) == topics.list()["last"] > 0


def test_topic_publish_with_a_lost_answer_is_repeated_and_marked_resent(
    connecting: Connect, tampering: Tampering
) -> None:
    topics = connecting(tampering.address).topics
    assert not topics.publish("a", 1).resent
    lost: list[FrameKind] = []

    def lose_first(frame: Frame) -> list[Frame]:
        if frame.kind == FrameKind.TOPIC_STORED and not lost:
            lost.append(FrameKind(frame.kind))
            raise ConnectionError
        return [frame]

    tampering.tamper = lose_first
    receipt = topics.publish("a", 2)
    assert (receipt.resent, receipt.sequence) == (True, 3)
    assert [one.value() for one in topics.read().records] == [1, 2, 2]


# -- where it begins --------------------------------------------------------------------------------------------------


def test_topic_subscription_starts_at_the_end_the_beginning_or_a_sequence(topics: Any) -> None:
    fill(topics, 10)
    with topics.subscribe() as new, topics.subscribe(start="beginning") as old, topics.subscribe(sequence=8) as later:
        fill(topics, 2)
        assert sequences(new, 2) == [11, 12]
        assert sequences(old, 12) == list(range(1, 13))
        assert sequences(later, 5) == list(range(8, 13))


def test_topic_subscription_and_read_start_at_a_time(topics: Any) -> None:
    def later() -> float:
        """A moment of which the clock of the log can tell that it is another one."""
        began = time.time()
        until(lambda: time.time() > began + 0.001)
        return time.time()

    fill(topics, 5)
    middle = later()
    later()
    fill(topics, 5)
    with topics.subscribe(time=middle) as one, topics.subscribe(time=datetime.fromtimestamp(middle, UTC)) as other:
        assert sequences(one, 5) == sequences(other, 5) == list(range(6, 11))
    assert topics.read(time=middle, limit=1).records[0].sequence == 6


def test_filter_of_a_topic_subscription_works_by_names_patterns_and_mask(topics: Any) -> None:
    fill(topics, 9, "a", "b", "c.d")
    for wanted, mask, found in [
        ("a", 0, [1, 4, 7]),
        (["a", "c.*"], 0, [1, 3, 4, 6, 7, 9]),
        ("c.+", 2, [2, 3, 5, 6, 8, 9]),
    ]:
        with topics.subscribe(wanted, mask=mask, start="beginning") as subscription:
            assert sequences(subscription, len(found)) == found


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"topics": "["}, "topics"),
        ({"topics": None}, "topics"),
        ({"topics": 7}, "topics"),
        ({"topics": b"trades"}, "topics"),
        ({"topics": ["trades", None]}, "topics"),
        ({"mask": -1}, "mask"),
        ({"name": ""}, None),
        ({"name": "a/b"}, "name"),
        ({"start": "sequence"}, "start"),
        ({"sequence": 0}, "sequence"),
        ({"sequence": 1, "time": 1}, "time"),
        ({"time": -1}, "time"),
        ({"confirm": "never"}, "confirm"),
        ({"new_epoch": "ignore"}, "new_epoch"),
        ({"name": "n", "cursor_file": "f"}, "cursor_file"),
        ({"idle": -1}, "idle"),
    ],
)
def test_topic_subscription_options_that_are_invalid_are_refused_by_name(
    topics: Any, given: dict[str, Any], field: str | None
) -> None:
    if field is None:
        topics.subscribe(**given)
        return
    with pytest.raises(BadInput) as caught:
        topics.subscribe(**given)
    assert caught.value.field == field


def test_topic_read_of_no_topics_at_all_is_refused_by_name(topics: Any) -> None:
    with pytest.raises(BadInput, match="topics: must be a name or a pattern, or a list of them, not NoneType"):
        topics.read(None)


def test_topic_subscription_at_a_sequence_beyond_the_log_is_refused(topics: Any) -> None:
    fill(topics, 3)
    with pytest.raises(BadInput) as caught:
        topics.subscribe(sequence=5).connect()
    assert caught.value.field == "at"


# -- taking -----------------------------------------------------------------------------------------------------------


def test_topic_subscription_batches_contain_all_records_and_end_after_the_idle_time(topics: Any) -> None:
    fill(topics, 1000)
    with topics.subscribe(start="beginning", idle=SILENCE) as subscription:
        found = [record.sequence for batch in subscription.batches() for record in batch]
    assert found == list(range(1, 1001))
    assert subscription.state is SubscriberState.OFFLINE


def test_topic_subscription_run_calls_back_for_each_record(topics: Any) -> None:
    fill(topics, 50)
    found: list[int] = []
    with topics.subscribe("a", start="beginning", idle=SILENCE) as subscription:
        subscription.run(lambda record: found.append(record.value()))
    assert found == list(range(1, 51, 2))


def test_topic_subscription_reports_its_sequence_state_epoch_and_lag(topics: Any) -> None:
    fill(topics, 100)
    events: list[Event] = []
    with topics.subscribe(start="beginning", on_event=events.append) as subscription:
        assert sequences(subscription, 100)[-1] == subscription.sequence == 100
        fill(topics, 1)
        assert sequences(subscription, 1) == [101]
        assert subscription.state is SubscriberState.ONLINE
        assert subscription.epoch == topics.list()["epoch"]
        [row] = topics.subscribers()
        assert (row["state"], row["sequence"], row["lag"]) == ("online", 101, 0)
    assert states(events) == ["connected", "online", "recovering", "online", "offline"]


def test_topic_subscription_close_from_another_thread_ends_the_loop(server: RunningServer) -> None:
    with connect(server.unix, timeout=PATIENCE) as client:
        subscription = client.topics.subscribe(progress=0)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(subscription))
        thread.start()
        until(lambda: subscription.state is SubscriberState.ONLINE)
        subscription.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert found == []


def test_backpressure_bounds_the_memory_of_a_slow_topic_reader(server: RunningServer) -> None:
    """Over asyncio, where the loop would read on while the program does something else."""
    with InLoopTopics(server.unix, timeout=PATIENCE) as client:
        client.topics.publish_many(("a", bytes(100_000)) for _ in range(300))
        with client.topics.subscribe(start="beginning") as subscription:
            way = subscription.target._topic_connection
            assert sequences(subscription, 1) == [1]
            until(lambda: way.transport._is_paused, what="a loop that reads no more")
            most = way.inbox.size
            for n in range(2, 301):
                most = max(most, way.inbox.size)
                assert sequences(subscription, 1) == [n]
            assert client_feed.HIGH_WATER_MARK < most < 2 * client_feed.HIGH_WATER_MARK


# -- durable ----------------------------------------------------------------------------------------------------------


def test_cursor_of_a_named_subscription_continues_after_the_records_done(topics: Any) -> None:
    fill(topics, 10)
    with topics.subscribe(name="ledger", start="beginning") as subscription:
        assert sequences(subscription, 4) == [1, 2, 3, 4]
    with topics.subscribe(name="ledger") as subscription:
        assert sequences(subscription, 3) == [4, 5, 6]  # nobody asked for more after 4
        subscription.confirm()
    with topics.subscribe(name="ledger") as subscription:
        assert sequences(subscription, 4) == [7, 8, 9, 10]
        assert subscription.next(0.05) is None
    with topics.subscribe(name="ledger") as subscription:
        assert subscription.next(0.05) is None
        fill(topics, 1)
        assert sequences(subscription, 1) == [11]
    with topics.subscribe(name="ledger", resume=False, start="beginning") as subscription:
        assert sequences(subscription, 1) == [1]


def test_cursor_of_a_filter_without_matches_advances_to_the_end(topics: Any) -> None:
    fill(topics, 10)
    with topics.subscribe("nothing", name="idler", start="beginning") as subscription:
        while subscription.lag:
            assert subscription.next(0.05) is None
        assert subscription.next(0.05) is None

    def kept() -> list[tuple[str, int]]:
        return [(row["state"], row["confirmed"]) for row in topics.subscribers()]

    until(lambda: kept() == [("offline", 10)])
    topics.drop_subscriber("idler", dry_run=True)
    assert kept() == [("offline", 10)]
    topics.drop_subscriber("idler")
    assert topics.subscribers() == []
    for dry_run in (True, False):
        with pytest.raises(NotFound):
            topics.drop_subscriber("idler", dry_run=dry_run)


def test_cursor_is_not_advanced_past_a_callback_that_fails(topics: Any) -> None:
    fill(topics, 10)

    def fail_at_four(record: Any) -> None:
        if record.sequence == 4:
            raise ArithmeticError

    with pytest.raises(ArithmeticError), topics.subscribe(name="n", start="beginning") as subscription:
        subscription.run(fail_at_four)
    with topics.subscribe(name="n") as subscription:
        assert sequences(subscription, 1) == [4]


def test_cursor_with_confirm_before_advances_before_delivery(topics: Any) -> None:
    fill(topics, 10)
    with topics.subscribe(name="n", start="beginning", confirm="before") as subscription:
        assert sequences(subscription, 3) == [1, 2, 3]
        assert topics.subscribers()[0]["confirmed"] == 3
    with topics.subscribe(name="n") as subscription:
        assert sequences(subscription, 1) == [4]


def test_cursor_with_manual_confirm_advances_to_the_confirmed_sequence(topics: Any) -> None:
    fill(topics, 10)
    with topics.subscribe(name="n", start="beginning", confirm="manual") as subscription:
        assert sequences(subscription, 8) == list(range(1, 9))
        subscription.confirm(5)
    with topics.subscribe(name="n") as subscription:
        assert sequences(subscription, 1) == [6]


def test_cursor_file_continues_a_subscription_and_a_damaged_file_is_refused(topics: Any, tmp_path: Path) -> None:
    fill(topics, 10)
    file = tmp_path / "cursor"
    with topics.subscribe("a", start="beginning", cursor_file=file) as subscription:
        assert sequences(subscription, 3) == [1, 3, 5]
    with topics.subscribe("a", cursor_file=file) as subscription:
        assert sequences(subscription, 3) == [5, 7, 9]
        assert subscription.next(0.05) is None
    fill(topics, 1)
    with topics.subscribe("a", cursor_file=file) as subscription:
        assert sequences(subscription, 1) == [11]
    assert topics.subscribers() == []
    file.write_text("no cursor")
    with pytest.raises(StoreDamaged):
        topics.subscribe("a", cursor_file=file)


def test_topic_subscription_name_in_use_is_taken_over_by_the_second_subscriber(
    server: RunningServer, connecting: Connect, topics: Any
) -> None:
    fill(topics, 3)
    with topics.subscribe(name="n", start="beginning", reconnect=SOON, confirm="manual") as first:
        assert sequences(first, 3) == [1, 2, 3]
        first.confirm(1)
        with topics.subscribe(name="n") as second:
            with pytest.raises(Replaced):
                first.next(PATIENCE)
            assert sequences(second, 2) == [2, 3]
            fill(topics, 1)
            assert sequences(second, 1) == [4]


# -- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "ledger"])
@pytest.mark.parametrize("wanted", [(), "a"])
def test_reconnect_of_a_topic_subscription_delivers_every_record_once(
    server: RunningServer, topics: Any, name: str, wanted: Any
) -> None:
    found: list[int] = []
    events: list[Event] = []
    with topics.subscribe(wanted, start="beginning", name=name, reconnect=SOON, on_event=events.append) as subscription:
        for n in range(6):
            fill(topics, 20)
            found += sequences(subscription, 7)
            if n % 2:
                server.cut()
        found += sequences(subscription, (60 if wanted else 120) - len(found))
    assert found == list(range(1, 121, 2 if wanted else 1))
    assert states(events).count("offline") >= 2


def test_reconnect_of_a_topic_subscription_continues_after_a_server_restart(server: RunningServer, topics: Any) -> None:
    fill(topics, 10)
    with topics.subscribe(start="beginning", reconnect=SOON, name="n") as subscription:
        assert sequences(subscription, 5) == [1, 2, 3, 4, 5]
        server.stop()
        assert sequences(subscription, 5) == [6, 7, 8, 9, 10]
        silent_until(subscription, SubscriberState.OFFLINE)
        server.start()
        fill(topics, 3)
        assert sequences(subscription, 3) == [11, 12, 13]


def test_reconnect_of_a_topic_subscription_does_not_wait_for_a_server_never_reached(
    server: RunningServer, topics: Any
) -> None:
    server.stop()
    with pytest.raises(Unreachable):
        topics.subscribe(reconnect=SOON).connect()
    with pytest.raises(Unreachable):
        topics.subscribe(reconnect=SOON).next(PATIENCE)
    server.start()


class OffDuty:
    is_on = False
    accepts_new = False

    def refusal(self) -> NotActive:
        return NotActive("this is the standby")


def test_failover_of_a_pair_moves_a_topic_subscription_to_the_active_server(
    server: RunningServer, connecting: Connect, tmp_path: Path
) -> None:
    """As a pair does: the one that is not active says so, whoever follows goes on with the other."""
    (tmp_path / "other").mkdir()
    other = RunningServer(MemoryStore(), tmp_path / "other", topics=TopicSettings()).start()
    try:
        assert server.topics is not None
        assert other.topics is not None
        other.topics.guard = OffDuty()
        fill(connecting(server.unix).topics, 3)
        topics = connecting(f"{other.unix},{server.unix}").topics
        with topics.subscribe(start="beginning", reconnect=SOON, new_epoch="follow") as subscription:
            assert sequences(subscription, 3) == [1, 2, 3]
            server.topics.guard, other.topics.guard = other.topics.guard, server.topics.guard
            server.cut()
            fill(connecting(other.unix).topics, 2)
            assert sequences(subscription, 2) == [1, 2]
    finally:
        other.stop()


def test_reconnect_of_a_topic_subscription_waits_for_a_feed_that_is_not_active(
    server: RunningServer, connecting: Connect, topics: Any
) -> None:
    fill(topics, 3)
    with topics.subscribe(start="beginning", reconnect=SOON) as subscription:
        assert sequences(subscription, 3) == [1, 2, 3]
        assert server.topics is not None
        guard, server.topics.guard = server.topics.guard, OffDuty()
        server.cut()
        silent_until(subscription, SubscriberState.OFFLINE)
        server.topics.guard = guard
        fill(topics, 1)
        assert sequences(subscription, 1) == [4]


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_topic_publish_and_subscription_work_over_tcp_and_tls(connecting: Connect, tmp_path: Path, kind: str) -> None:
    is_tls = kind == "tls"
    tls = server_context(tmp_path) if is_tls else None
    made = RunningServer(MemoryStore(), tmp_path, tls=tls, token="sesame", topics=TopicSettings()).start()
    try:
        trust = f"&ca={certificate(tmp_path)[0]}" if is_tls else ""
        topics = connecting(f"{made.tcp}?token=sesame{trust}").topics
        sizes = (0, 1, 4064, 4065, 1 << 20)
        topics.publish_many([("a", bytes(size)) for size in sizes])
        with topics.subscribe("a", start="beginning", name="n", reconnect=SOON) as subscription:
            assert [len(subscription.next(PATIENCE).payload) for _ in sizes] == list(sizes)
            made.cut()
            topics.publish_many([("a", bytes(size)) for size in sizes])
            assert [len(subscription.next(PATIENCE).payload) for _ in sizes] == list(sizes)
    finally:
        made.stop()


def test_retention_error_of_a_topic_subscription_names_the_asked_and_the_first_kept_sequence(
    server: RunningServer, topics: Any, tmp_path: Path
) -> None:
    topics.publish_many([("a", bytes(1000))] * 1000)
    server.stop()
    with SegmentLog(tmp_path / "topics", SMALL) as log:
        first = log.trim(900).first
    server.start()
    with pytest.raises(Retired) as caught:
        topics.subscribe(sequence=5).connect()
    assert (caught.value.asked, caught.value.first) == (5, first)


def lose(folder: Path) -> None:
    """All that was ever published."""
    for file in (folder / "topics").glob("*.log"):
        file.unlink()
    for file in (folder / "topics").glob("spare*"):
        file.unlink()


def test_epoch_change_raises_in_a_topic_subscription(server: RunningServer, topics: Any, tmp_path: Path) -> None:
    fill(topics, 5)
    with topics.subscribe(start="beginning", reconnect=SOON, name="n") as subscription:
        assert sequences(subscription, 5) == [1, 2, 3, 4, 5]
        subscription.confirm()
        server.stop()
        lose(tmp_path)
        server.start()
        fill(topics, 2)
        with pytest.raises(WrongEpoch):
            subscription.next(PATIENCE)


def test_epoch_change_is_followed_by_a_topic_subscription_if_asked(
    server: RunningServer, topics: Any, tmp_path: Path
) -> None:
    fill(topics, 5)
    events: list[Event] = []
    terms = {"start": "beginning", "reconnect": SOON, "name": "n", "new_epoch": "follow", "on_event": events.append}
    with topics.subscribe(**terms) as subscription:
        assert sequences(subscription, 5) == [1, 2, 3, 4, 5]
        before = subscription.epoch
        server.stop()
        lose(tmp_path)
        server.start()
        fill(topics, 2)
        assert sequences(subscription, 2) == [1, 2]
        assert NewEpoch(before, subscription.epoch) in events
    with topics.subscribe(name="n") as subscription:
        assert sequences(subscription, 1) == [2]


# -- a line that is not to be trusted ---------------------------------------------------------------------------------


def is_record(frame: Frame, sequence: int) -> bool:
    return int(frame.kind) == KIND and read_body(frame.body).sequence == sequence


def once_at(sequence: int, instead: Callable[[Frame], list[Frame]]) -> Callable[[Frame], list[Frame]]:
    """That record, the first time it passes."""
    seen: list[int] = []

    def tamper(frame: Frame) -> list[Frame]:
        if not seen and is_record(frame, sequence):
            seen.append(sequence)
            return instead(frame)
        return [frame]

    return tamper


@pytest.mark.parametrize("name", ["", "n"])
@pytest.mark.parametrize("wanted", [(), ["a", "c"]])
def test_gap_recovery_resends_a_record_lost_in_transit(
    connecting: Connect, tampering: Tampering, name: str, wanted: Any
) -> None:
    topics = connecting(tampering.address).topics
    events: list[Event] = []
    tampering.tamper = once_at(9, lambda frame: [])
    terms = {"start": "beginning", "name": name, "progress": 0.05, "reconnect": SOON, "on_event": events.append}
    with topics.subscribe(wanted, **terms) as subscription:
        fill(topics, 8)
        topics.publish("c", "only this")
        fill(topics, 6)
        expected = [1, 3, 5, 7, 9, 10, 12, 14] if wanted else list(range(1, 16))
        assert sorted(sequences(subscription, len(expected))) == expected
        assert subscription.next(0.2) is None
    assert [one for one in events if isinstance(one, Missing)]


def test_duplicate_record_is_dropped_and_counted(connecting: Connect, tampering: Tampering) -> None:
    topics = connecting(tampering.address).topics
    tampering.tamper = once_at(3, lambda frame: [frame, frame])
    with topics.subscribe(progress=0) as subscription:
        fill(topics, 6)
        assert sequences(subscription, 6) == [1, 2, 3, 4, 5, 6]
        assert subscription.duplicates == 1


def test_damaged_record_in_transit_is_sent_again(connecting: Connect, tampering: Tampering) -> None:
    topics = connecting(tampering.address).topics
    tampering.tamper = once_at(3, lambda frame: [frame._replace(body=bytes(frame.body[:-1]) + b"!")])
    with topics.subscribe(reconnect=SOON) as subscription:
        fill(topics, 6)
        assert sequences(subscription, 6) == [1, 2, 3, 4, 5, 6]


def test_damaged_record_that_never_arrives_intact_raises_store_damaged(
    connecting: Connect, tampering: Tampering
) -> None:
    topics = connecting(tampering.address).topics

    def always(frame: Frame) -> list[Frame]:
        return [frame._replace(body=bytes(frame.body[:-1]) + b"!")] if is_record(frame, 3) else [frame]

    tampering.tamper = always
    with topics.subscribe(reconnect=SOON) as subscription:
        fill(topics, 6)
        assert sequences(subscription, 2) == [1, 2]
        with pytest.raises(StoreDamaged):
            subscription.next(PATIENCE)


def test_lost_records_of_the_log_are_reported_to_the_subscriber(
    server: RunningServer, topics: Any, tmp_path: Path
) -> None:
    for _ in range(10):  # each its own frame, so that the log has several files
        topics.publish_many([("a", bytes(1000))] * 30)
    server.stop()
    middle = sorted((tmp_path / "topics").glob("*.log"))[1]
    middle.unlink()
    server.start()
    events: list[Event] = []
    with topics.subscribe(start="beginning", on_event=events.append) as subscription:
        [(first, last)] = [(one.first, one.last) for one in events if isinstance(one, LostRecords)] or subscription.lost
        found = sequences(subscription, 300 - (last - first + 1))
    assert found == [*range(1, first), *range(last + 1, 301)]
    assert first == int(middle.stem)
