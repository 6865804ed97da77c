"""Server-Sent Events: told as they happen, resumed where a reader left off, and never silently incomplete."""

from tests.support.http_api import Line, Told, Web
from yirangmq.observe.events import FOLLOWER_TIMEOUT_MS, MAX_EVENTS

MESSAGES = "/v1/queues/mail/messages"


def follow(web: Web, target: str = "/v1/events", **headers: str) -> Line:
    line = web.ask("GET", target, **headers)
    assert (line.status, line.headers["content-type"]) == (200, "text/event-stream")
    return line


def rest(web: Web, milliseconds: int = 50) -> None:
    web.server.turns.advance(milliseconds)


def names(events: list[Told]) -> list[str]:
    return [event.name or event.about["event"] for event in events]


def test_what_happens_is_told(web: Web) -> None:
    line = follow(web)
    [hello] = line.outlet.told()
    assert (hello.name, hello.about) == ("hello", {"last": 0})
    rest(web)
    web.good("POST", MESSAGES, [1, 2])
    [event] = line.outlet.told()
    assert (event.name, event.about["event"], event.about["queue"], event.about["count"]) == (
        "",
        "published",
        "mail",
        2,
    )
    assert event.id.endswith("-1")


def test_nothing_is_missed_from_the_first_moment_on(web: Web) -> None:
    line = follow(web)
    web.good("POST", MESSAGES, 1)
    rest(web)
    assert names(line.outlet.told()) == ["hello", "published"]


def test_what_happens_within_a_short_while_travels_together(web: Web) -> None:
    line = follow(web)
    rest(web)
    for number in range(5):
        web.good("POST", MESSAGES, number)
    assert names(line.outlet.told()) == ["hello", "published"]
    rest(web)
    assert names(line.outlet.told()) == ["published"] * 4


def test_a_reader_resumes_where_it_left_off(web: Web) -> None:
    line = follow(web)
    rest(web)
    web.good("POST", MESSAGES, 1)
    last = line.outlet.told()[-1].id
    line.leave()
    assert web.api.open_streams == 0
    web.good("POST", MESSAGES, 2)
    web.good("POST", "/v1/queues/mail/lease")
    for again in (follow(web, last_event_id=last), follow(web, f"/v1/events?after={last}")):
        rest(web)
        assert names(again.outlet.told()) == ["hello", "published", "leased"]


def test_one_queue_and_some_kinds(web: Web) -> None:
    one = follow(web, "/v1/queues/mail/events")
    some = follow(web, "/v1/events?kind=leased,died")
    rest(web)
    web.good("POST", MESSAGES, 1)
    web.good("POST", "/v1/queues/other/messages", 1)
    leased = web.good("POST", "/v1/queues/mail/lease")["messages"][0]["lease"]["leaseId"]
    web.good("POST", "/v1/queues/mail/nack", {"leases": [leased], "reason": "REJECTED"})
    rest(web)
    assert names(one.outlet.told()) == ["hello", "published", "leased", "nacked", "died"]
    assert names(some.outlet.told()) == ["hello", "leased", "died"]


def test_a_kind_that_is_none_is_refused(web: Web) -> None:
    assert web.refused("GET", "/v1/events?kind=born") == (400, "bad_input", "kind")


def test_a_reader_that_comes_too_late_is_told_of_the_gap(web: Web) -> None:
    line = follow(web)
    rest(web)
    last = line.outlet.told()[-1].id
    line.leave()
    for number in range(MAX_EVENTS + 10):
        web.good("POST", MESSAGES, number)
    again = follow(web, last_event_id=last)
    rest(web)
    told = again.outlet.told()
    assert names(told[:3]) == ["hello", "gap", "published"]
    assert told[1].about == {"missed": 10}
    assert len(told) == 2 + MAX_EVENTS


def test_a_memory_that_nobody_followed_is_a_gap_too(web: Web) -> None:
    line = follow(web)
    last = line.outlet.told()[-1].id
    line.leave()
    web.server.clock.advance(FOLLOWER_TIMEOUT_MS + 1_000)
    web.good("POST", MESSAGES, 1)
    again = follow(web, last_event_id=last)
    rest(web)
    assert [(one.name, one.about.get("missed")) for one in again.outlet.told()] == [("hello", None), ("gap", 1)]


def test_a_quiet_hour_loses_nothing_for_one_who_listens(web: Web) -> None:
    line = follow(web)
    rest(web)
    web.server.clock.advance(3_600_000)
    web.good("POST", MESSAGES, 1)
    assert names(line.outlet.told()) == ["hello", "published"]


def test_the_numbers_of_another_server_are_a_gap_of_unknown_size(web: Web) -> None:
    for last in ("abc-5", "nonsense", web_id(web, 99)):
        told = follow(web, last_event_id=last).outlet.told()
        assert names(told) == ["gap", "hello"], last
        assert told[0].about == {"missed": None}
    assert names(follow(web, "/v1/events?after=").outlet.told()) == ["hello"]


def web_id(web: Web, number: int) -> str:
    """An id of this server, whatever its number."""
    return follow(web).outlet.told()[0].id.partition("-")[0] + f"-{number}"


def test_a_slow_reader_costs_nothing_and_loses_nothing_silently(web: Web) -> None:
    line = follow(web)
    rest(web)
    line.outlet.told()
    line.outlet.has_room = False
    web.good("POST", MESSAGES, 0)
    rest(web)
    assert names(line.outlet.told()) == ["published"]
    for number in range(MAX_EVENTS + 5):
        web.good("POST", MESSAGES, number)
    rest(web)
    assert line.outlet.data == b""
    line.outlet.has_room = True
    stream = line.response.stream if line.response else None
    assert stream is not None
    stream.drained()
    told = line.outlet.told()
    assert (told[0].name, told[0].about, len(told)) == ("gap", {"missed": 5}, 1 + MAX_EVENTS)


def test_a_reader_that_is_told_nothing_still_knows_where_it_stands(web: Web) -> None:
    line = follow(web, "/v1/events?kind=died")
    rest(web)
    line.outlet.told()
    for number in range(MAX_EVENTS // 4):
        web.good("POST", MESSAGES, number)
    assert line.outlet.data.endswith(f"-{MAX_EVENTS // 4}\n\n".encode())
    assert line.outlet.told() == []


def test_a_stopping_server_says_goodbye(web: Web) -> None:
    line = follow(web)
    web.api.stop()
    assert names(line.outlet.told()) == ["hello", "bye"]
    assert line.outlet.is_ended
    assert web.api.open_streams == 0
    web.good("POST", MESSAGES, 1)
