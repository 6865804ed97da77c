"""Every form in which messages may come in, and what is refused of each."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_api import Web
from yirangmq.admin.health import StoreDisk
from yirangmq.core.errors import StoreFull

MESSAGES = "/v1/queues/mail/messages"


def waiting(web: Web, state: str = "ready") -> list[Any]:
    """The envelopes of a state."""
    return [one["message"] for one in web.good("GET", f"{MESSAGES}?state={state}")["messages"]]


def test_an_envelope_is_taken_as_it_is(web: Web) -> None:
    envelope = {
        "messageId": "a",
        "type": "letter",
        "attributes": {"priority": 3},
        "note": [1],
        "payload": {"to": "ann"},
    }
    answer = web.good("POST", MESSAGES, envelope)
    assert answer["messages"] == [{"messageId": "a", "duplicate": False}]
    [stored] = waiting(web)
    assert stored == {**envelope, "timestamp": stored["timestamp"], "queue": "mail"}


def test_a_bare_payload_is_wrapped_and_keeps_its_own_text(web: Web) -> None:
    text = b'{ "n" : 1e400, "x": "\\u00e9" }'
    web.good("POST", MESSAGES, text, content_type="application/json")
    [look] = web.good("GET", MESSAGES)["messages"]
    assert web.ask("GET", f"{MESSAGES}/{look['messageId']}/payload").body == text


def test_an_array_is_many_messages_in_order(web: Web) -> None:
    answer = web.good("POST", MESSAGES, [{"n": 1}, {"messageId": "b", "payload": 2}, 3, [4]])
    assert (answer["stored"], len(answer["messages"])) == (4, 4)
    assert [one["payload"] for one in waiting(web)] == [{"n": 1}, 2, 3, [4]]


def test_lines_are_many_messages(web: Web) -> None:
    body = b'{"n": 1}\n\n{"messageId": "b", "payload": 2}\r\n3'
    web.good("POST", MESSAGES, body, content_type="application/x-ndjson; charset=utf-8")
    assert [one["payload"] for one in waiting(web)] == [{"n": 1}, 2, 3]


def test_any_bytes_pass_untouched(web: Web) -> None:
    body = bytes(range(256))
    [receipt] = web.good("POST", MESSAGES, body, content_type="image/png")["messages"]
    [stored] = waiting(web)
    assert stored["contentType"] == "image/png"
    assert base64.b64decode(stored["payloadBase64"]) == body
    line = web.ask("GET", f"{MESSAGES}/{receipt['messageId']}/payload")
    assert (line.body, line.headers["content-type"]) == (body, "image/png")


def test_headers_describe_a_message_of_any_type(web: Web) -> None:
    headers = {
        "x_mq_message_id": "h-1",
        "x_mq_priority": "2",
        "x_mq_delay": "1.5",
        "x_mq_ttl": "60",
        "x_mq_type": "letter",
        "x_mq_version": "3",
        "x_mq_attributes": '{"site": "north"}',
        "x_mq_trace_id": "t",
        "x_mq_deduplication_key": "k",
        "x_mq_group_id": "g",
        "x_mq_target_consumer_id": "worker-1",
    }
    web.good("POST", MESSAGES, b"[1, 2]", content_type="application/json", **headers)
    [look] = web.good("GET", f"{MESSAGES}?state=delayed")["messages"]
    message = look["message"]
    assert (look["messageId"], look["priority"], message["payload"]) == ("h-1", 2, [1, 2])
    assert message["attributes"] == {"site": "north", "priority": 2}
    assert (message["type"], message["version"], message["traceId"]) == ("letter", 3, "t")
    assert message["deduplicationKey"] == "k"
    assert (message["groupId"], message["targetConsumerId"]) == ("g", "worker-1")
    assert look["availableAt"] == look["dueAt"] == "2026-01-13T09:21:01.500+00:00"
    assert look["expiresAt"] == "2026-01-13T09:22:00.000+00:00"


def test_what_curl_sends_by_itself_is_json_where_it_looks_like_it(web: Web) -> None:
    web.good("POST", MESSAGES, b'{"to": "ann"}', content_type="application/x-www-form-urlencoded")
    web.good("POST", MESSAGES, b"to=ann", content_type="application/x-www-form-urlencoded")
    first, second = waiting(web)
    assert first["payload"] == {"to": "ann"}
    assert base64.b64decode(second["payloadBase64"]) == b"to=ann"


def test_delay_and_ttl_for_all_and_for_one(web: Web) -> None:
    web.good("POST", f"{MESSAGES}?delaySec=5&ttlSec=50", [1, {"payload": 2, "delaySec": 7, "ttlSec": 70}])
    first, second = web.good("GET", f"{MESSAGES}?state=delayed")["messages"]
    assert (first["availableAt"][17:19], first["expiresAt"][14:19]) == ("05", "21:50")
    assert (second["availableAt"][17:19], second["expiresAt"][14:19]) == ("07", "22:10")
    assert second["message"]["payload"] == 2
    assert "delaySec" not in second["message"]


def test_a_payload_that_speaks_of_delays_is_a_payload(web: Web) -> None:
    web.good("POST", MESSAGES, {"delaySec": 5})
    assert [one["payload"] for one in waiting(web)] == [{"delaySec": 5}]


def test_a_second_message_with_a_known_id_or_key_is_a_duplicate(web: Web) -> None:
    web.good("POST", MESSAGES, {"messageId": "a", "deduplicationKey": "k", "payload": 1})
    answer = web.good("POST", MESSAGES, [{"messageId": "a", "payload": 1}, {"deduplicationKey": "k", "payload": 2}])
    assert answer["messages"] == [{"messageId": "a", "duplicate": True}, {"messageId": "a", "duplicate": True}]
    assert (answer["stored"], answer["duplicates"]) == (0, 2)


def test_what_does_not_fit_its_schema_is_named(web: Web) -> None:
    schema = {"type": "object", "required": ["to"]}
    web.good("PUT", "/v1/queues/mail/policy", {"schemas": {"letter": {"*": schema}}})
    answer = web.good("POST", MESSAGES, [{"type": "letter", "payload": {"to": 1}}, {"type": "letter", "payload": {}}])
    assert (answer["stored"], answer["refused"]) == (1, 1)
    assert "to" in answer["messages"][1]["refused"]


@pytest.mark.parametrize(
    ("body", "kind", "field"),
    [
        (b"{", "application/json", "document"),
        (b"[1,", "application/json", "body"),
        (b"[]", "application/json", "messages"),
        (b"\xff", "application/json", "document"),
        (b'["\xff"]', "application/json", "body"),
        (b"", "application/json", "document"),
        (b"", "", "body"),
        (b"\n\n", "application/x-ndjson", "messages"),
        (b"1\n{\n", "application/x-ndjson", "messages[1].document"),
        (b'[1, {"payload": 1, "type": 5}]', "application/json", "messages[1].type"),
        (b'{"payload": 1, "messageId": "../x"}', "application/json", "messageId"),
        (b'{"payload": 1, "queue": "other", "type": "t"}', "application/json", "queue"),
        (b'{"payload": 1, "delaySec": "soon"}', "application/json", "delaySec"),
        (b'{"payload": 1, "ttlSec": -1}', "application/json", "ttlSec"),
    ],
)
def test_what_cannot_be_read_names_its_place_and_stores_nothing(web: Web, body: bytes, kind: str, field: str) -> None:
    headers = {"content_type": kind} if kind else {}
    assert web.refused("POST", MESSAGES, body, **headers) == (400, "bad_input", field)
    assert web.good("GET", "/v1/queues")["queues"] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x_mq_priority", "-1"),
        ("x_mq_priority", "first"),
        ("x_mq_delay", "nan"),
        ("x_mq_ttl", "0"),
        ("x_mq_message_id", "a/b"),
        ("x_mq_attributes", "[]"),
        ("x_mq_version", "1.5"),
        ("x_mq_type", ""),
    ],
)
def test_a_header_that_says_nonsense_is_named(web: Web, name: str, value: str) -> None:
    status, code, field = web.refused("POST", MESSAGES, b"1", content_type="text/plain", **{name: value})
    assert (status, code, str(field).lower().replace("-", "_")) == (400, "bad_input", name)


def test_one_bad_message_refuses_the_batch(web: Web) -> None:
    web.good("PUT", "/v1/queues/mail/policy", {"maxBytes": 10})
    assert web.refused("POST", MESSAGES, [1, "x" * 20])[:2] == (413, "too_large")
    assert waiting(web) == []


def test_a_full_queue_says_when_to_come_back(web: Web) -> None:
    web.good("PUT", "/v1/queues/mail/policy", {"quota": {"maxMessages": 1}})
    web.good("POST", MESSAGES, 1)
    line = web.ask("POST", MESSAGES, 2)
    error = line.document["error"]
    assert (line.status, error["code"]) == (429, "quota_exceeded")
    assert error["retryAfterSec"] > 0
    assert int(line.headers["retry-after"]) >= error["retryAfterSec"]


def test_a_disk_that_is_low_stops_publishing_and_nothing_else(tmp_path: Path) -> None:
    disk = StoreDisk(tmp_path, 0)
    web = Web(disk=disk)
    web.good("POST", MESSAGES, 1)
    disk.full = StoreFull("no room")
    assert web.refused("POST", MESSAGES, 2) == (507, "store_full", None)
    assert len(web.good("POST", "/v1/queues/mail/lease")["messages"]) == 1


def test_a_name_that_is_none_is_refused(web: Web) -> None:
    assert web.refused("POST", "/v1/queues/a%2Fb/messages", 1) == (400, "bad_input", "queue")
    assert web.refused("POST", "/v1/queues/%ff/messages", 1) == (400, "bad_input", "path")
    assert web.refused("POST", "/v1/queues/.hidden/messages", 1) == (400, "bad_input", "queue")


def test_more_than_a_call_may_bring(web: Web) -> None:
    assert web.refused("POST", MESSAGES, json.dumps([1] * 10_001).encode(), content_type="application/json") == (
        400,
        "bad_input",
        "messages",
    )
