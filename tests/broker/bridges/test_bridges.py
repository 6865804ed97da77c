"""Topics feed queues: each record once, in order, as it was; what cannot go on waits in the log or says why."""

import pytest

from tests.broker.bridges.parts import BridgeServer, MakeHouse
from tests.support.topic_pipes import small
from yirangmq.admin.bridges import BridgeMethods
from yirangmq.broker import bridge_worker
from yirangmq.core.bridges import MAX_GROUP_CHARS, BridgeCursor, read_new
from yirangmq.core.errors import BadInput, NotFound, Retired, StoreFull, WrongState
from yirangmq.core.events import MessagesPublished
from yirangmq.core.topics import NewRecord, Retention, Start
from yirangmq.format.envelope import header_of

PAYLOADS = (b"", b"\x00", b"hello", b'{"b": 1,  "a": [2.50]}', b' {"a":1}\n', b"\xff\xfe" * 2000, b"x" * 70_000)


def numbered(count: int, topic: str = "orders", begin: int = 0, key: str | None = None) -> list[NewRecord]:
    return [NewRecord(topic, b"%d" % n, key) for n in range(begin, begin + count)]


def payloads(house: BridgeServer, queue: str) -> list[bytes]:
    return [one.envelope.payload for one in house.take(queue)]


def test_bridge_turns_a_record_into_a_message_with_the_same_bytes(house: BridgeServer) -> None:
    house.add("b", "mail", "orders")
    house.publish(*(NewRecord("orders", payload) for payload in PAYLOADS))
    house.settle()
    assert payloads(house, "mail") == list(PAYLOADS)


def test_bridge_continues_at_its_cursor_after_stop_and_start(house: BridgeServer) -> None:
    """As at a node of a pair that stood by and is active again."""
    house.add("b", "mail", "orders")
    house.publish(*numbered(2))
    house.settle()
    house.bridges.stop()
    house.publish(*numbered(2, begin=2))
    house.settle()
    assert payloads(house, "mail") == [b"0", b"1"]
    house.start()
    house.settle()
    house.publish(*numbered(1, begin=4))
    house.settle()
    assert payloads(house, "mail") == [b"2", b"3", b"4"]
    assert house.row("b")["delivered"] == 5


def test_bridge_that_is_stopped_delivers_nothing_and_retains_the_log_it_needs(house: BridgeServer) -> None:
    house.add("b", "mail", "orders")
    house.bridges.stop()
    house.bridges.load()
    house.publish(*numbered(2))
    house.settle()
    assert payloads(house, "mail") == []
    epoch = house.row("b")["epoch"]
    assert house.bridges.floor(epoch, 2**60) == 1
    house.start()
    house.settle()
    assert payloads(house, "mail") == [b"0", b"1"]


def test_bridge_puts_key_headers_and_sequences_into_the_envelope(house: BridgeServer) -> None:
    house.add("b", "mail")
    house.publish(NewRecord("orders", b"{}", "ann", {"priority": "no number", "서울": "x"}), NewRecord("t", b"1"))
    house.settle()
    first, second = (header_of(one.envelope) for one in house.take("mail"))
    epoch = house.row("b")["epoch"]
    assert first.pop("timestamp").startswith("2026-01-13T09:2")
    assert first == {
        "messageId": f"{epoch}-1",
        "queue": "mail",
        "attributes": {
            "topic": "orders",
            "sequence": 1,
            "topicSequence": 1,
            "key": "ann",
            "headers": {"priority": "no number", "서울": "x"},
        },
        "groupId": "ann",
    }
    assert "groupId" not in second
    assert second["attributes"] == {"topic": "t", "sequence": 2, "topicSequence": 1}


def test_bridge_delivers_records_of_the_same_key_one_at_a_time(house: BridgeServer) -> None:
    house.add("b", "mail")
    house.publish(*numbered(3, key="ann"), *numbered(1, begin=9, key="bob"))
    house.settle()
    operations = house.desk.operations
    got = house.told(house.desk.submit, lambda t: operations.lease(t, "mail", 10, None, "c"))
    assert [one.envelope.payload for one in got] == [b"0", b"9"]


def test_bridge_without_groups_delivers_records_of_a_key_together(make_house: MakeHouse) -> None:
    house = make_house()
    house.add("b", "mail", groups=False)
    house.publish(*numbered(3, key="ann"))
    house.settle()
    assert house.counts("mail").ready == 3


def test_bridge_with_a_key_longer_than_a_group_id_still_groups_its_records(make_house: MakeHouse) -> None:
    house = make_house()
    house.add("b", "mail")
    house.publish(NewRecord("t", b"1", "k" * (MAX_GROUP_CHARS + 1)), NewRecord("t", b"2", "k" * (MAX_GROUP_CHARS + 1)))
    house.settle()
    counts = house.counts("mail")
    assert (counts.ready, counts.held) == (1, 1)
    assert payloads(house, "mail") == [b"1", b"2"]


def test_bridge_per_queue_gives_each_consumer_group_its_own_copy_of_matching_records(house: BridgeServer) -> None:
    house.add("a", "billing", "orders.*")
    house.add("b", "audit")
    house.publish(NewRecord("orders.new", b"1"), NewRecord("trades", b"2"), NewRecord("orders.eu.new", b"3"))
    house.settle()
    assert payloads(house, "billing") == [b"1", b"3"]
    assert payloads(house, "audit") == [b"1", b"2", b"3"]


def test_bridges_to_the_same_queue_deliver_a_record_once(house: BridgeServer) -> None:
    house.add("a", "all", "orders")
    house.add("b", "all", "orders", "trades")
    house.publish(*numbered(50), *numbered(50, "trades", 100))
    house.settle()
    assert sorted(map(int, payloads(house, "all"))) == [*range(50), *range(100, 150)]


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_bridge_delivers_each_record_once_when_the_server_is_killed_between_any_two_steps(
    kind: str, make_house: MakeHouse
) -> None:
    """The log and the queue share no transaction; the cursor and the messages do."""
    house = make_house(kind)
    house.add("b", "mail", "orders")
    published = 0
    for steps in range(12):
        for n in range(published, published + 6, 2):
            house.publish(*numbered(2, begin=n))
        published += 6
        house.settle_published()
        for _ in range(steps):
            house.stage.turning.step()
        house.kill()
    house.settle()
    assert payloads(house, "mail") == [b"%d" % n for n in range(published)]
    assert house.row("b")["lag"] == 0


def test_bridge_commit_that_is_cut_off_leaves_neither_messages_nor_cursor(make_house: MakeHouse) -> None:
    house = make_house("sqlite")
    house.add("b", "mail")
    house.publish(*numbered(5))
    house.settle_published()
    house.crash_in_next_commit()
    house.settle()
    assert payloads(house, "mail") == [b"0", b"1", b"2", b"3", b"4"]


def test_bridge_commits_single_records_together_without_delaying_the_first(make_house: MakeHouse) -> None:
    house = make_house()
    house.add("b", "mail")
    house.later(1)
    counts: list[int] = []
    house.desk.operations.event_buffer.add_listener(
        lambda events: counts.extend(event.count for event in events if isinstance(event, MessagesPublished))
    )
    for n in range(20):
        house.publish(*numbered(1, begin=n))
        house.stage.turning.run_once()
    assert counts == [1]
    house.settle()
    assert counts == [1, 19]


def test_bridge_added_while_the_server_starts_runs_only_once(make_house: MakeHouse) -> None:
    house = make_house("sqlite")
    new = read_new({"name": "b", "queue": "mail"})
    house.bridges.add(new, lambda row, error: None)
    while not house.bridges.rows():
        assert house.stage.turning.step()
    house.start()
    house.publish(*numbered(5))
    house.settle()
    assert payloads(house, "mail") == [b"0", b"1", b"2", b"3", b"4"]


def test_bridge_continues_from_a_cursor_that_was_moved_from_outside(house: BridgeServer) -> None:
    row = house.add("b", "mail")
    moved = BridgeCursor(row["epoch"], 2, 7)
    house.publish(*numbered(2))
    house.settle_published()
    house.told(house.desk.submit, lambda transaction: bridge_worker.write_cursor(transaction, "b", moved))
    house.publish(*numbered(3, begin=2))
    house.settle()
    had = payloads(house, "mail")
    assert had[-3:] == [b"2", b"3", b"4"]
    assert house.row("b")["lag"] == 0
    house.publish(*numbered(1, begin=5))
    house.settle()
    assert payloads(house, "mail") == [b"5"]


def test_bridge_skips_records_of_other_topics_and_saves_its_cursor(house: BridgeServer) -> None:
    house.add("b", "mail", "orders")
    house.publish(*numbered(30, "trades"))
    house.settle()
    assert (house.row("b")["sequence"], house.row("b")["lag"]) == (30, 0)
    house.later(2)
    house.kill()
    assert (house.row("b")["sequence"], house.row("b")["lag"]) == (30, 0)
    assert payloads(house, "mail") == []


def test_bridge_starts_at_the_end_the_beginning_a_sequence_or_a_time_as_configured(make_house: MakeHouse) -> None:
    house = make_house()
    house.publish(*numbered(3))
    house.settle()
    house.later(10)
    at = house.stage.turning.now_ns()
    house.publish(*numbered(2, begin=3))
    house.settle()
    house.add("new", "n")
    house.add("all", "a", start="beginning")
    house.add("late", "l", start="sequence", at=3)
    house.add("time", "t", start="time", at=at)
    house.publish(*numbered(1, begin=5))
    house.settle()
    found = {queue: payloads(house, queue) for queue in "nalt"}
    assert found["n"] == [b"5"]
    assert found["a"] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert found["l"] == [b"2", b"3", b"4", b"5"]
    assert found["t"] == [b"3", b"4", b"5"]


def test_bridge_waits_while_its_queue_is_full_and_delivers_the_rest_from_the_log_later(house: BridgeServer) -> None:
    house.add("b", "mail")
    house.policy("mail", '{"quota": {"maxMessages": 3}}')
    house.publish(*numbered(10))
    house.settle()
    assert house.counts("mail").ready == 3
    assert (house.row("b")["state"], house.row("b")["lag"]) == ("waiting", 7)
    assert "mail" in house.row("b")["reason"]
    seen = []
    for _ in range(10):
        seen += payloads(house, "mail")
        house.later(1)
    assert seen == [b"%d" % n for n in range(10)]
    assert (house.row("b")["state"], house.row("b")["reason"]) == ("running", "")


def test_bridge_waits_while_the_disk_is_full_and_continues_later(make_house: MakeHouse) -> None:
    house = make_house()
    house.add("b", "mail")
    house.full = StoreFull("3 MiB left")
    house.publish(*numbered(2))
    house.settle()
    assert (house.row("b")["state"], house.row("b")["reason"]) == ("waiting", "3 MiB left")
    house.full = None
    house.later(1)
    assert payloads(house, "mail") == [b"0", b"1"]


def test_bridge_turns_a_record_too_large_for_its_queue_into_a_dead_letter(house: BridgeServer) -> None:
    house.add("b", "mail")
    house.policy("mail", '{"maxBytes": 10}')
    house.publish(NewRecord("t", b"1"), NewRecord("t", b"x" * 11), NewRecord("t", b"2"))
    house.settle()
    assert payloads(house, "mail") == [b"1", b"2"]
    assert house.counts("mail").dead == 1
    assert (house.row("b")["delivered"], house.row("b")["refused"]) == (3, 1)


def test_bridge_turns_a_record_refused_by_a_processor_into_a_dead_letter(house: BridgeServer) -> None:
    house.add("b", "mail")
    house.policy("mail", '{"processor": {"integrity": "sha256", "checks": [{"check": "length", "max": 1}]}}')
    house.publish(NewRecord("t", b"1"), NewRecord("t", b"22"), NewRecord("t", b"3"))
    house.settle()
    assert payloads(house, "mail") == [b"1", b"3"]
    assert house.counts("mail").dead == 1
    assert (house.row("b")["state"], house.row("b")["refused"]) == ("running", 1)


def test_bridge_pause_survives_a_restart_and_resume_continues_at_the_cursor(house: BridgeServer) -> None:
    house.add("b", "mail")
    house.publish(*numbered(2))
    house.settle()
    assert house.told(house.bridges.pause, "b")["state"] == "paused"
    house.publish(*numbered(2, begin=2))
    house.settle()
    house.kill()
    assert (house.row("b")["state"], house.row("b")["lag"]) == ("paused", 2)
    assert payloads(house, "mail") == [b"0", b"1"]
    house.resume("b")
    assert payloads(house, "mail") == [b"2", b"3"]


def test_bridge_that_is_removed_stays_removed_after_a_restart_and_its_messages_stay(house: BridgeServer) -> None:
    house.add("b", "mail")
    house.publish(*numbered(2))
    house.settle()
    house.told(house.bridges.remove, "b")
    house.publish(*numbered(2, begin=2))
    house.settle()
    house.kill()
    assert house.bridges.rows() == []
    assert payloads(house, "mail") == [b"0", b"1"]
    with pytest.raises(NotFound):
        house.row("b")


def test_bridge_added_again_is_unchanged_and_another_of_the_same_name_is_rejected(make_house: MakeHouse) -> None:
    house = make_house()
    first = house.add("b", "mail", "orders")
    assert house.add("b", "mail", "orders") == first
    with pytest.raises(WrongState, match="another bridge 'b'"):
        house.add("b", "mail", "trades")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"queue": "q"}, "name"),
        ({"name": "b"}, "queue"),
        ({"name": "b", "queue": "q", "topics": "orders"}, "topics"),
        ({"name": "b", "queue": "q", "topics": ["or ders*"]}, "topics"),
        ({"name": "b", "queue": "q", "start": "late"}, "start"),
        ({"name": "b", "queue": "q", "start": "sequence"}, "at"),
        ({"name": "b", "queue": "q", "at": 3}, "at"),
        ({"name": "b", "queue": "q", "toppics": []}, "toppics"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bridge_definition_that_is_invalid_is_rejected_with_its_field(given: dict[str, object], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_new(given)
    assert caught.value.field == field


# -- the log under it -------------------------------------------------------------------------------------------------


def keeping_little(**more: object) -> dict[str, object]:
    return {"settings": small(retention=Retention(None, 1), cursor_seconds=100.0, **more)}


def test_bridge_retains_the_log_segments_it_still_needs(make_house: MakeHouse) -> None:
    house = make_house(**keeping_little())
    house.add("b", "mail")
    house.full = StoreFull("no room")
    for _ in range(60):
        house.publish(NewRecord("t", b"x" * 500))
        house.settle()
    assert house.trim() == 1
    house.full = None
    house.later(1)
    assert house.row("b")["lag"] == 0
    assert house.trim() > 1


def test_bridge_that_is_paused_retains_the_log_for_a_limited_time_and_then_reports_the_gap(
    make_house: MakeHouse,
) -> None:
    house = make_house(**keeping_little())
    house.add("b", "mail")
    house.told(house.bridges.pause, "b")
    for n in range(60):
        house.publish(NewRecord("t", b"%d" % n + b"x" * 500))
        house.settle()
    assert house.trim() == 1
    house.later(101)
    first = house.trim()
    assert first > 1
    row = house.resume("b")
    house.settle()
    assert house.row("b")["state"] == "stopped"
    assert f"begins at {first}" in house.row("b")["reason"]
    house.resume("b", Start.BEGINNING)
    assert row["name"] == "b"
    assert len(payloads(house, "mail")) == 60 - first + 1


def test_bridge_start_at_a_retired_sequence_is_rejected_when_it_is_added(make_house: MakeHouse) -> None:
    house = make_house(**keeping_little())
    for _ in range(60):
        house.publish(NewRecord("t", b"x" * 500))
        house.settle()
    assert house.trim() > 2
    with pytest.raises(Retired):
        house.add("b", "mail", start="sequence", at=2)
    assert house.bridges.rows() == []


def test_bridge_stops_with_a_reason_when_its_log_was_replaced_by_a_new_log(make_house: MakeHouse) -> None:
    house = make_house("sqlite")
    house.add("b", "mail")
    house.publish(*numbered(3))
    house.settle()
    house.lose_log()
    house.publish(*numbered(5, begin=10))
    house.settle()
    row = house.row("b")
    assert row["state"] == "stopped"
    assert "it is a new log" in row["reason"]
    house.resume("b", Start.BEGINNING)
    assert payloads(house, "mail") == [b"0", b"1", b"2", b"10", b"11", b"12", b"13", b"14"]


# -- settings and events ----------------------------------------------------------------------------------------------


def test_bridge_from_the_settings_is_created_then_updated_and_keeps_its_cursor(make_house: MakeHouse) -> None:
    house = make_house("sqlite")
    house.start(read_new({"name": "b", "queue": "mail", "topics": ["orders"]}))
    house.settle()
    house.publish(*numbered(2), *numbered(2, "trades", 5))
    house.settle()
    house.kill()
    house.start(read_new({"name": "b", "queue": "mail", "topics": ["orders", "trades"], "start": "beginning"}))
    house.settle()
    house.publish(*numbered(1, "trades", 7))
    house.settle()
    assert payloads(house, "mail") == [b"0", b"1", b"7"]


def test_bridge_of_the_events_topic_delivers_queue_events_without_feeding_itself(make_house: MakeHouse) -> None:
    house = make_house(events="happenings")
    house.add("watch", "watched", "happenings")
    house.add("b", "mail", "orders")
    house.publish(*numbered(2, key="ann"))
    house.settle()
    assert len(house.take("mail")) == 2
    house.settle()
    last = house.stage.publisher.ensure_open().feed.log.last
    told = [one.envelope for one in house.take("watched")]
    house.settle()
    assert house.stage.publisher.ensure_open().feed.log.last == last
    kinds = [header_of(one)["attributes"]["headers"]["event"] for one in told]
    assert kinds == ["published", "leased", "acked", "leased", "acked"]
    assert {header_of(one)["groupId"] for one in told} == {"mail"}
    assert all(b'"queue":"mail"' in one.payload for one in told)


def test_events_topic_counts_missed_events_and_reports_them_in_a_later_record(
    make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yirangmq.admin.bridges.MAX_PENDING_EVENTS", 1)
    house = make_house(events="happenings")
    house.add("b", "mail", "orders")
    house.add("c", "post", "orders")
    house.publish(*numbered(1))
    house.settle()
    assert house.events.missed == 2  # both queues were fed in one commit, and one event may wait
    assert len(house.take("mail")) == 1
    house.settle()
    told = [record.payload for record in house.stage.publisher.ensure_open().feed.log.reader().records(1)]
    assert any(b'"missed":2' in payload for payload in told)


# -- what is told of them ---------------------------------------------------------------------------------------------


def test_health_bridge_is_degraded_while_it_waits_and_metrics_count_it(make_house: MakeHouse) -> None:
    house = make_house()
    calls = BridgeMethods(house.bridges, lag_limit=3)
    house.add("b", "mail")
    assert calls.reasons() == []
    house.full = StoreFull("3 MiB left")
    house.publish(*numbered(5))
    house.settle()
    [reason] = calls.reasons()
    assert reason == ("degraded", "bridge", "bridge b is waiting: 3 MiB left")
    assert calls.facts() == [{"name": "b", "queue": "mail", "state": "waiting", "lag": 5}]
    samples = calls.samples()
    assert samples["yirangmq_bridge_lag"] == [({"bridge": "b"}, 5)]
    assert samples["yirangmq_bridge_running"] == [({"bridge": "b"}, 0.0)]
    house.full = None
    house.later(1)
    assert calls.reasons() == []
    assert calls.samples()["yirangmq_bridge_records_total"] == [({"bridge": "b"}, 5)]


def test_bridge_status_is_empty_on_a_server_without_topics() -> None:
    calls = BridgeMethods(None)
    assert (calls.facts(), calls.reasons(), calls.samples()) == (None, [], {})
