"""Samples of the queues' numbers over the last minutes, hour, day and week."""

from typing import Any

from tests.support.http_api import Web
from tests.support.session import Server
from yirangmq.core.errors import StoreError
from yirangmq.observe.trends import METRICS, RANGES, SAMPLE_MS, Trends
from yirangmq.stores.memory import MemoryTransaction


def row(queue: str, ready: int = 0, age: float | None = None, **totals: int) -> dict[str, Any]:
    counted = {"published": 0, "acked": 0, "failed": 0} | totals
    return {
        "queue": queue, "ready": ready, "delayed": 1, "leased": 2, "dead": 3, "headAgeSec": age, "totals": counted,
    }  # fmt: skip


def test_trends_return_samples_in_order_with_none_where_a_value_is_missing() -> None:
    trends = Trends()
    trends.add([row("mail", 4, published=4)], 1_000)
    trends.add([row("mail", 5, 1.5, published=2**50), row("new", 9)], 6_000)
    told = trends.document()
    assert told["at"] == ["1970-01-01T00:00:01.000+00:00", "1970-01-01T00:00:06.000+00:00"]
    assert list(told["queues"]) == ["mail", "new"]
    assert tuple(told["queues"]["mail"]) == METRICS
    assert told["queues"]["mail"]["waiting"] == [5, 6]
    assert told["queues"]["mail"]["ageSec"] == [None, 1.5]
    assert told["queues"]["mail"]["published"] == [4, 2**50]
    assert told["queues"]["new"]["waiting"] == [None, 10]
    assert trends.document("new")["queues"].keys() == {"new"}


def test_trends_of_a_deleted_queue_are_no_longer_returned() -> None:
    trends = Trends()
    trends.add([row("mail"), row("old")], 1_000)
    trends.add([row("mail")], 6_000)
    assert trends.document()["queues"].keys() == {"mail"}
    nothing = Trends().document()
    assert (nothing["at"], nothing["queues"]) == ([], {})
    assert not any(nothing["all"].values())


def test_trends_drop_old_samples_and_sample_many_queues_less_often() -> None:
    trends = Trends()
    for number in range(RANGES["minutes"].slots + 5):
        trends.add([row("mail", number)], number * SAMPLE_MS)
    assert trends.document()["queues"]["mail"]["waiting"] == list(range(6, RANGES["minutes"].slots + 6))
    last = (RANGES["minutes"].slots + 4) * SAMPLE_MS
    assert not trends.is_due(last + SAMPLE_MS - 1)
    assert trends.is_due(last + SAMPLE_MS)
    trends.add([row(f"q{number}") for number in range(1_000)], last + SAMPLE_MS)
    assert not trends.is_due(last + 3 * SAMPLE_MS)
    assert trends.is_due(last + 5 * SAMPLE_MS)


def test_trends_drop_later_samples_when_the_clock_is_set_back() -> None:
    trends = Trends()
    for now in (10_000, 15_000, 20_000):
        trends.add([row("mail")], now)
    assert trends.is_due(12_000)
    trends.add([row("mail")], 12_000)
    assert trends.document()["at"] == ["1970-01-01T00:00:10.000+00:00", "1970-01-01T00:00:12.000+00:00"]


def tick(server: Server) -> None:
    """A sample is taken in slices, each in a turn of its own."""
    server.observing.tick(server.desk)
    server.turns.turn()
    while server.observing.is_sampling:
        server.turns.advance(0)


def test_trends_are_sampled_by_the_server_and_returned_over_http(monkeypatch: Any) -> None:
    web = Web()
    server: Server = web.server
    web.good("POST", "/v1/queues/mail/messages", ["a", "b", "c"])
    tick(server)
    web.good("POST", "/v1/queues/mail/lease", {"max": 2})
    tick(server)
    server.turns.advance(SAMPLE_MS)
    tick(server)
    told = web.good("GET", "/v1/trends?queue=mail")["queues"]["mail"]
    assert (told["waiting"], told["leased"], told["published"]) == ([3, 1], [0, 2], [3, 3])
    assert web.good("GET", "/v1/trends?queue=other")["queues"] == {}

    def refuse(transaction: Any, after: str = "", limit: int | None = None, prefix: str = "") -> None:
        raise StoreError("no disk")

    server.turns.advance(SAMPLE_MS)
    with monkeypatch.context() as broken:
        broken.setattr(MemoryTransaction, "queues", refuse)
        tick(server)
    assert len(web.good("GET", "/v1/trends")["at"]) == 2


def test_trends_of_an_hour_keep_the_highest_gauges_and_the_latest_totals_of_each_slot() -> None:
    trends = Trends()
    for second, ready, published in ((0, 1, 10), (5, 90, 20), (25, 3, 30), (30, 4, 40)):
        trends.add([row("mail", ready, ready / 10, published=published)], 600_000 + second * 1000)
    hour = trends.document("mail", "hour")
    assert hour["range"] == "hour"
    assert hour["at"] == ["1970-01-01T00:10:25.000+00:00", "1970-01-01T00:10:30.000+00:00"]
    assert hour["queues"]["mail"]["waiting"] == [91, 5]
    assert hour["queues"]["mail"]["ageSec"] == [9.0, 0.4]
    assert hour["queues"]["mail"]["published"] == [30, 40]
    assert hour["all"]["waiting"] == [91, 5]


def test_trends_of_a_week_have_a_bounded_number_of_slots_and_begin_with_the_oldest() -> None:
    trends = Trends()
    slot_ms, slots = RANGES["week"]
    for number in range(slots + 3):
        trends.add([row("mail", number)], 1 + number * slot_ms)
    week = trends.document("mail", "week")["queues"]["mail"]
    assert week["waiting"] == list(range(4, slots + 4))
    assert {len(column) for column in week.values()} == {slots}
    assert len(trends.document("mail", "day")["at"]) == RANGES["day"].slots


def test_trends_of_a_queue_begin_with_none_where_the_queue_is_newer_than_the_range() -> None:
    trends = Trends()
    trends.add([row("mail", 1)], 60_000)
    trends.add([row("mail", 1), row("late", 7)], 120_000)
    assert trends.document("late", "hour")["queues"]["late"]["waiting"] == [None, 8]


def test_trends_over_http_have_a_range_and_can_leave_out_the_single_queues() -> None:
    web = Web()
    server: Server = web.server
    web.good("POST", "/v1/queues/mail/messages", ["a", "b"])
    tick(server)
    told = web.good("GET", "/v1/trends?range=week&onlyTotals=true")
    assert (told["range"], told["queues"], told["all"]["waiting"]) == ("week", {}, [2])
    assert web.refused("GET", "/v1/trends?range=year") == (400, "bad_input", "range")
