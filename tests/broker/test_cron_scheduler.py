"""Schedules: each tick is published once, while somebody runs; the clock is the test's."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.session import Client, Server
from yirangmq.broker.cron_scheduler import Scheduler
from yirangmq.core.errors import BadPolicy
from yirangmq.core.ports import Store
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import FailingStore, open_for_test

MINUTE = 60_000
START = "09:21:00"  # of ManualClock, 2026-01-13, a Tuesday


class ScheduleServer:
    """A server with its clock's hand, on a store that outlives it."""

    def __init__(self, store: Store | None = None, start: bool = True) -> None:
        self.store = store or MemoryStore()
        self.server = Server(self.store)
        self.client: Client = self.server.client()
        self.ticking = Scheduler(self.server.desk, self.server.clock)
        if start:
            self.ticking.start()

    def pass_time(self, milliseconds: int, step: int = 1_000) -> None:
        """As it goes: second by second."""
        for _ in range(milliseconds // step):
            self.server.turns.advance(step)

    def waiting(self, queue: str = "mail") -> list[str]:
        """Ids of the messages that are ready, in order."""
        with self.store.transaction(write=False) as transaction:
            return [message.id for message, _ in transaction.heads(queue, 1_000)]


def schedule(house: ScheduleServer, *schedules: dict[str, Any], queue: str = "mail", **more: Any) -> None:
    house.client.call("set_policy", queue=queue, document={"schedules": list(schedules), **more})


def tick(cron: str = "* * * * *", **changes: Any) -> dict[str, Any]:
    return {"name": "tick", "cron": cron, "message": {"hello": 1}} | changes


def test_schedule_publishes_a_tick_when_it_is_due() -> None:
    house = ScheduleServer()
    schedule(house, tick("*/2 * * * *"))
    house.pass_time(MINUTE - 1_000)
    assert house.waiting() == []
    house.pass_time(1_000)
    assert house.waiting() == ["tick-20260113T092200Z"]
    house.pass_time(4 * MINUTE)
    assert house.waiting() == [f"tick-20260113T09{minute}00Z" for minute in (22, 24, 26)]


def test_schedule_message_may_be_an_envelope_or_a_payload() -> None:
    house = ScheduleServer()
    envelope = {"type": "report", "payload": {"kind": "daily"}, "attributes": {"priority": 3}}
    schedule(house, tick(name="wrapped", message=[1, 2]), tick(name="whole", message=envelope))
    house.pass_time(MINUTE)
    first, second = house.client.lease("mail", 9)
    assert (first.id, bytes(first.payload)) == ("whole-20260113T092200Z", b'{"kind":"daily"}')
    assert '"type":"report"' in first.header
    assert (second.id, bytes(second.payload)) == ("wrapped-20260113T092200Z", b"[1,2]")


def test_schedule_message_with_a_payload_is_an_envelope_because_the_schedule_gives_its_id() -> None:
    house = ScheduleServer()
    schedule(house, tick(name="a", message={"payload": {"n": 1}}), tick(name="b", message={"type": "no payload"}))
    house.pass_time(MINUTE)
    first, second = house.client.lease("mail", 9)
    assert [bytes(one.payload) for one in (first, second)] == [b'{"n":1}', b'{"type":"no payload"}']


def test_schedule_publishes_no_tick_twice_after_a_restart() -> None:
    house = ScheduleServer()
    schedule(house, tick())
    house.pass_time(MINUTE)
    assert house.waiting() == ["tick-20260113T092200Z"]
    again = ScheduleServer(house.store, start=False)
    again.server.clock.advance(MINUTE - 500)  # as if the clock had been set back by half a second meanwhile
    again.ticking.start()
    again.pass_time(1_000)
    assert again.waiting() == ["tick-20260113T092200Z"]


def test_schedule_tick_is_published_once_by_two_servers() -> None:
    one = ScheduleServer()
    schedule(one, tick())
    other = ScheduleServer(one.store)
    one.pass_time(MINUTE)
    other.pass_time(MINUTE)
    assert one.waiting() == ["tick-20260113T092200Z"]


def test_schedule_skips_ticks_while_the_scheduler_is_stopped() -> None:
    house = ScheduleServer()
    schedule(house, tick())
    house.ticking.stop()
    house.pass_time(10 * MINUTE)
    assert house.waiting() == []
    house.ticking.start()
    house.pass_time(MINUTE)
    assert house.waiting() == ["tick-20260113T093200Z"]


def test_schedule_skips_ticks_long_past_after_the_machine_slept() -> None:
    house = ScheduleServer()
    schedule(house, tick("*/5 * * * *"))
    house.pass_time(3 * 60 * MINUTE + 30_000, step=3 * 60 * MINUTE + 30_000)  # to 12:21:30, in one step
    assert house.waiting() == []
    house.pass_time(4 * MINUTE)
    assert house.waiting() == ["tick-20260113T122500Z"]


def test_schedule_follows_the_wall_clock_when_it_is_set() -> None:
    """Forward: ticks skipped by over a minute are not made up for. Back: a tick that comes again is stored once."""
    house = ScheduleServer()
    schedule(house, tick("*/30 * * * *"))
    house.server.clock.set_wall(60 * MINUTE)  # 10:21
    house.pass_time(10 * MINUTE)
    assert house.waiting() == ["tick-20260113T103000Z"]
    house.server.clock.set_wall(-60 * MINUTE)  # 09:31
    house.pass_time(70 * MINUTE)
    assert house.waiting() == ["tick-20260113T103000Z", "tick-20260113T100000Z"]


def test_schedule_publishes_a_tick_that_is_slightly_late() -> None:
    house = ScheduleServer()
    schedule(house, tick("*/5 * * * *"))
    house.pass_time(4 * MINUTE + 50_000, step=4 * MINUTE + 50_000)
    assert house.waiting() == ["tick-20260113T092500Z"]


def test_schedule_set_in_the_last_second_before_a_tick_publishes_it() -> None:
    house = ScheduleServer(start=False)
    house.pass_time(3_000)  # so that the looks without a cause are not at full minutes
    house.ticking.start()
    house.pass_time(MINUTE - 3_500, step=500)
    schedule(house, tick())
    house.pass_time(500, step=500)
    assert house.waiting() == ["tick-20260113T092200Z"]


def test_schedule_set_by_another_process_is_found() -> None:
    house = ScheduleServer()
    open_for_test(store=house.store).set_policy("mail", {"schedules": [tick()]})
    house.pass_time(2 * MINUTE)
    assert house.waiting() == ["tick-20260113T092200Z", "tick-20260113T092300Z"]


def test_schedule_that_was_removed_fires_no_more() -> None:
    house = ScheduleServer()
    schedule(house, tick())
    house.pass_time(MINUTE)
    house.client.call("set_policy", queue="mail", document=None)
    house.pass_time(5 * MINUTE)
    assert house.waiting() == ["tick-20260113T092200Z"]


def test_schedule_tick_refused_by_its_queue_is_lost_and_harms_no_other_queue(caplog: pytest.LogCaptureFixture) -> None:
    house = ScheduleServer()
    schedule(house, tick(), quota={"maxMessages": 1})
    schedule(house, tick(), queue="post")
    house.pass_time(2 * MINUTE)
    assert house.waiting() == ["tick-20260113T092200Z"]
    assert len(house.waiting("post")) == 2
    assert caplog.messages.count("schedule_publish_rejected") == 1


def test_schedule_tick_passes_the_processor_of_its_queue(caplog: pytest.LogCaptureFixture) -> None:
    house = ScheduleServer()
    schedule(house, tick(), processor={"checks": [{"check": "length", "max": 0}]})
    schedule(house, tick(), queue="post", processor={"integrity": "sha256"})
    house.pass_time(MINUTE)
    assert (house.waiting(), len(house.waiting("post"))) == ([], 1)
    [record] = [one for one in caplog.records if one.getMessage() == "schedule_publish_rejected"]
    assert "check 'length'" in record.values["error"]  # type: ignore[attr-defined]


def test_schedule_tick_is_published_later_after_a_short_store_failure() -> None:
    store = FailingStore(MemoryStore())
    house = ScheduleServer(store)
    schedule(house, tick())
    house.pass_time(MINUTE - 1_000)
    store.fail_at(1)
    house.pass_time(1_000)
    assert house.waiting() == []
    house.pass_time(5_000)
    assert house.waiting() == ["tick-20260113T092200Z"]


def test_schedule_publishes_ticks_into_a_paused_queue() -> None:
    house = ScheduleServer()
    schedule(house, tick(), paused=True)
    house.pass_time(MINUTE)
    assert house.waiting() == ["tick-20260113T092200Z"]
    assert house.client.lease("mail") == []


def test_schedule_hours_are_those_of_its_time_zone() -> None:
    house = ScheduleServer()
    schedule(house, tick("30 18 * * *", timezone="Asia/Tokyo"))
    house.pass_time(9 * MINUTE)
    assert house.waiting() == ["tick-20260113T093000Z"]


# -- what cannot be kept ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"timezone": "Mars/Olympus"}, "schedules[0].timezone"),
        ({"timezone": "../etc/passwd"}, "schedules[0].timezone"),
        ({"timezone": "America"}, "schedules[0].timezone"),
        ({"message": {"messageId": "mine", "payload": 1}}, "schedules[0].message.messageId"),
        ({"message": {"type": 7, "payload": 1}}, "schedules[0].message.type"),
        ({"message": {"queue": "other", "type": "t", "payload": 1}}, "schedules[0].message.queue"),
    ],
)
def test_schedule_that_is_invalid_is_rejected_with_its_field(change: dict[str, Any], field: str) -> None:
    queues = open_for_test()
    with pytest.raises(BadPolicy) as caught:
        queues.set_policy("mail", {"schedules": [tick(**change)]})
    assert caught.value.field == field
    assert queues.queues() == []


def test_schedule_with_an_unknown_time_zone_stops_no_other_schedule() -> None:
    """A file edited by hand, or a store that came from another machine."""
    house = ScheduleServer()
    with house.store.transaction() as transaction:
        transaction.set_policy(
            "bad", '{"schedules": [{"name": "x", "cron": "* * * * *", "timezone": "No/Where", "message": 1}]}'
        )
    schedule(house, tick())
    house.pass_time(MINUTE)
    assert house.waiting() == ["tick-20260113T092200Z"]
    rows = house.client.call("schedules")
    assert [(row["queue"], row["nextAt"] is None, row["error"]) for row in rows] == [
        ("bad", True, "timezone: 'No/Where' is not a time zone of this machine"),
        ("mail", False, None),
    ]


# -- what is listed ---------------------------------------------------------------------------------------------------


def test_schedule_list_contains_the_next_time_of_each_schedule() -> None:
    house = ScheduleServer(start=False)
    schedule(house, tick("30 2 * * *", name="nightly", timezone="Europe/Berlin"), tick("0 12 * * fri", name="weekly"))
    schedule(house, tick(), queue="post")
    rows = house.client.call("schedules", queue="mail")
    assert rows == [
        {
            "queue": "mail",
            "name": "nightly",
            "cron": "30 2 * * *",
            "timezone": "Europe/Berlin",
            "nextAt": "2026-01-14T01:30:00.000+00:00",
            "nextLocal": "2026-01-14T02:30+01:00",
            "error": None,
        },
        {
            "queue": "mail",
            "name": "weekly",
            "cron": "0 12 * * fri",
            "timezone": "UTC",
            "nextAt": "2026-01-16T12:00:00.000+00:00",
            "nextLocal": "2026-01-16T12:00+00:00",
            "error": None,
        },
    ]
    assert [row["queue"] for row in house.client.call("schedules")] == ["mail", "mail", "post"]


def test_schedule_test_clock_starts_at_the_expected_time() -> None:
    now = datetime.fromtimestamp(ScheduleServer(start=False).server.clock.now_ms() / 1000, UTC)
    assert f"{now:%a %Y-%m-%d %H:%M:%S}" == f"Tue 2026-01-13 {START}"
