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


def test_sse_sends_hello_and_then_events(web: Web) -> None:
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


def test_sse_misses_no_event_after_the_request(web: Web) -> None:
    line = follow(web)
    web.good("POST", MESSAGES, 1)
    rest(web)
    assert names(line.outlet.told()) == ["hello", "published"]


def test_sse_sends_the_first_event_at_once_and_the_following_ones_together(web: Web) -> None:
    line = follow(web)
    rest(web)
    for number in range(5):
        web.good("POST", MESSAGES, number)
    assert names(line.outlet.told()) == ["hello", "published"]
    rest(web)
    assert names(line.outlet.told()) == ["published"] * 4


def test_sse_resumes_after_the_last_event_id(web: Web) -> None:
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


def test_sse_filters_by_queue_and_by_kind(web: Web) -> None:
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


def test_sse_unknown_kind_is_rejected(web: Web) -> None:
    assert web.refused("GET", "/v1/events?kind=born") == (400, "bad_input", "kind")


def test_sse_reports_a_gap_when_events_beyond_the_capacity_were_missed(web: Web) -> None:
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


def test_sse_reports_a_gap_when_the_event_buffer_was_not_followed(web: Web) -> None:
    line = follow(web)
    last = line.outlet.told()[-1].id
    line.leave()
    web.server.clock.advance(FOLLOWER_TIMEOUT_MS + 1_000)
    web.good("POST", MESSAGES, 1)
    again = follow(web, last_event_id=last)
    rest(web)
    assert [(one.name, one.about.get("missed")) for one in again.outlet.told()] == [("hello", None), ("gap", 1)]


def test_sse_loses_no_event_after_a_quiet_hour(web: Web) -> None:
    line = follow(web)
    rest(web)
    web.server.clock.advance(3_600_000)
    web.good("POST", MESSAGES, 1)
    assert names(line.outlet.told()) == ["hello", "published"]


def test_sse_event_id_of_another_server_is_a_gap_of_unknown_size(web: Web) -> None:
    for last in ("abc-5", "nonsense", web_id(web, 99)):
        told = follow(web, last_event_id=last).outlet.told()
        assert names(told) == ["gap", "hello"], last
        assert told[0].about == {"missed": None}
    assert names(follow(web, "/v1/events?after=").outlet.told()) == ["hello"]


def web_id(web: Web, number: int) -> str:
    """An id of this server, whatever its number."""
    return follow(web).outlet.told()[0].id.partition("-")[0] + f"-{number}"


def test_sse_backpressure_stops_sending_and_reports_missed_events_as_a_gap(web: Web) -> None:
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


def test_sse_sends_event_ids_to_a_reader_whose_filter_matches_nothing(web: Web) -> None:
    line = follow(web, "/v1/events?kind=died")
    rest(web)
    line.outlet.told()
    for number in range(MAX_EVENTS // 4):
        web.good("POST", MESSAGES, number)
    assert line.outlet.data.endswith(f"-{MAX_EVENTS // 4}\n\n".encode())
    assert line.outlet.told() == []


def test_sse_sends_bye_when_the_server_stops(web: Web) -> None:
    line = follow(web)
    web.api.stop()
    assert names(line.outlet.told()) == ["hello", "bye"]
    assert line.outlet.is_ended
    assert web.api.open_streams == 0
    web.good("POST", MESSAGES, 1)
