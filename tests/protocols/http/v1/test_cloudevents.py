"""CloudEvents over HTTP: structured, in batches and in headers, in and out."""

from typing import Any

from tests.support.http_api import Web

MESSAGES = "/v1/queues/mail/messages"
EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "time": "2018-04-05T17:31:00Z", "data": {"n": 1}}


def taken(web: Web) -> list[Any]:
    line = web.ask("POST", "/v1/queues/mail/lease", {"max": 10}, accept="application/cloudevents+json")
    assert line.headers["content-type"] == "application/cloudevents-batch+json"
    found: list[Any] = line.document
    return found


def test_cloudevents_structured_event_round_trips(web: Web) -> None:
    [receipt] = web.good("POST", MESSAGES, EVENT, content_type="application/cloudevents+json")["messages"]
    line = web.ask("GET", f"{MESSAGES}/{receipt['messageId']}", accept="application/cloudevents+json")
    assert line.headers["content-type"] == "application/cloudevents+json"
    assert line.document == EVENT
    [event] = taken(web)
    assert (event.pop("mqleaseid"), event.pop("mqattempt")) == ("1-1", 1)
    assert event == EVENT


def test_cloudevents_batch_reports_a_repeated_event_as_a_duplicate(web: Web) -> None:
    batch = [EVENT, {**EVENT, "id": "2"}, EVENT]
    answer = web.good("POST", MESSAGES, batch, content_type="application/cloudevents-batch+json; charset=utf-8")
    assert [one["duplicate"] for one in answer["messages"]] == [False, False, True]
    assert [event["id"] for event in taken(web)] == ["1", "2"]


def test_cloudevents_event_in_headers_is_accepted(web: Web) -> None:
    headers = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t", "ce_subject": "%C3%A9t%C3%A9"}
    web.good("POST", MESSAGES, b"\xff\xd8", content_type="image/jpeg", **headers)
    [event] = taken(web)
    assert (event["subject"], event["datacontenttype"], event["data_base64"]) == ("été", "image/jpeg", "/9g=")


def test_cloudevents_form_of_a_plain_message_has_the_queue_as_its_source(web: Web) -> None:
    web.good(
        "POST", MESSAGES, {"messageId": "m", "type": "letter", "attributes": {"site": "north"}, "payload": {"n": 1}}
    )
    [event] = taken(web)
    assert (event["id"], event["source"], event["type"]) == ("m", "urn:yirangmq:queue:mail", "letter")
    assert (event["site"], event["data"]) == ("north", {"n": 1})


def test_cloudevents_leased_event_can_be_published_again_unchanged(web: Web) -> None:
    web.good("POST", MESSAGES, EVENT, content_type="application/cloudevents+json")
    [event] = taken(web)
    answer = web.good("POST", "/v1/queues/other/messages", event, content_type="application/cloudevents+json")
    line = web.ask(
        "GET",
        f"/v1/queues/other/messages/{answer['messages'][0]['messageId']}",
        accept="application/cloudevents+json",
    )
    assert line.document == EVENT


def test_cloudevents_invalid_event_is_rejected_with_its_place_and_stores_nothing(web: Web) -> None:
    refused = web.refused("POST", MESSAGES, [EVENT, {}], content_type="application/cloudevents-batch+json")
    assert refused == (400, "bad_input", "messages[1].specversion")
    assert web.refused("POST", MESSAGES, b"{}", content_type="application/cloudevents+json")[2] == "specversion"
    assert web.refused("POST", MESSAGES, b"", ce_specversion="1.0") == (400, "bad_input", "id")
    assert web.good("GET", "/v1/queues")["queues"] == []


def test_cloudevents_event_is_delayed_by_delay_sec(web: Web) -> None:
    web.good("POST", f"{MESSAGES}?delaySec=5", EVENT, content_type="application/cloudevents+json")
    assert taken(web) == []
    web.server.turns.advance(5_000)
    assert len(taken(web)) == 1
