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


def test_publish_stores_an_envelope_unchanged(web: Web) -> None:
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


def test_publish_of_a_bare_json_payload_keeps_its_text(web: Web) -> None:
    text = b'{ "n" : 1e400, "x": "\\u00e9" }'
    web.good("POST", MESSAGES, text, content_type="application/json")
    [look] = web.good("GET", MESSAGES)["messages"]
    assert web.ask("GET", f"{MESSAGES}/{look['messageId']}/payload").body == text


def test_publish_of_an_array_stores_many_messages_in_order(web: Web) -> None:
    answer = web.good("POST", MESSAGES, [{"n": 1}, {"messageId": "b", "payload": 2}, 3, [4]])
    assert (answer["stored"], len(answer["messages"])) == (4, 4)
    assert [one["payload"] for one in waiting(web)] == [{"n": 1}, 2, 3, [4]]


def test_publish_of_ndjson_stores_one_message_per_line(web: Web) -> None:
    body = b'{"n": 1}\n\n{"messageId": "b", "payload": 2}\r\n3'
    web.good("POST", MESSAGES, body, content_type="application/x-ndjson; charset=utf-8")
    assert [one["payload"] for one in waiting(web)] == [{"n": 1}, 2, 3]


def test_publish_of_any_bytes_stores_them_unchanged(web: Web) -> None:
    body = bytes(range(256))
    [receipt] = web.good("POST", MESSAGES, body, content_type="image/png")["messages"]
    [stored] = waiting(web)
    assert stored["contentType"] == "image/png"
    assert base64.b64decode(stored["payloadBase64"]) == body
    line = web.ask("GET", f"{MESSAGES}/{receipt['messageId']}/payload")
    assert (line.body, line.headers["content-type"]) == (body, "image/png")


def test_publish_headers_set_the_members_of_the_envelope(web: Web) -> None:
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


def test_publish_with_the_form_type_of_curl_is_read_as_json_if_it_parses(web: Web) -> None:
    web.good("POST", MESSAGES, b'{"to": "ann"}', content_type="application/x-www-form-urlencoded")
    web.good("POST", MESSAGES, b"to=ann", content_type="application/x-www-form-urlencoded")
    first, second = waiting(web)
    assert first["payload"] == {"to": "ann"}
    assert base64.b64decode(second["payloadBase64"]) == b"to=ann"


def test_publish_delay_and_ttl_apply_to_all_messages_unless_a_message_has_its_own(web: Web) -> None:
    web.good(
        "POST", f"{MESSAGES}?delaySec=5&ttlSec=50", [1, {"messageId": "m", "payload": 2, "delaySec": 7, "ttlSec": 70}]
    )
    first, second = web.good("GET", f"{MESSAGES}?state=delayed")["messages"]
    assert (first["availableAt"][17:19], first["expiresAt"][14:19]) == ("05", "21:50")
    assert (second["availableAt"][17:19], second["expiresAt"][14:19]) == ("07", "22:10")
    assert second["message"]["payload"] == 2
    assert "delaySec" not in second["message"]


def test_publish_of_a_bare_payload_with_a_delay_member_is_not_delayed(web: Web) -> None:
    web.good("POST", MESSAGES, {"delaySec": 5})
    assert [one["payload"] for one in waiting(web)] == [{"delaySec": 5}]


LOOKS_LIKE_ONE = {"type": "order", "delaySec": 60, "payload": {"x": 1}}
"""A user's document that has members of an envelope, and no ``messageId``."""


def test_publish_without_message_id_takes_the_whole_document_as_payload(web: Web) -> None:
    web.good("POST", MESSAGES, LOOKS_LIKE_ONE)
    web.good("POST", MESSAGES, [LOOKS_LIKE_ONE])
    assert [one["payload"] for one in waiting(web)] == [LOOKS_LIKE_ONE] * 2
    assert all("type" not in one for one in waiting(web))


def test_publish_as_envelope_or_as_payload_is_forced_by_the_query(web: Web) -> None:
    web.good("POST", f"{MESSAGES}?as=envelope", {"type": "order", "payload": {"x": 1}})
    web.good("POST", f"{MESSAGES}?as=payload", [{"messageId": "m", "payload": 1}])
    first, second = waiting(web)
    assert (first["type"], first["payload"]) == ("order", {"x": 1})
    assert second["payload"] == {"messageId": "m", "payload": 1}
    assert web.refused("POST", f"{MESSAGES}?as=envelope", [1]) == (400, "bad_input", "messages[0].document")
    assert web.refused("POST", f"{MESSAGES}?as=text", {"n": 1}) == (400, "bad_input", "as")
    dry = web.good("POST", "/v1/queues/mail/check?as=envelope", {"type": "order", "payload": "12345"})
    assert dry["messages"][0]["bytes"] == 7


def test_dedup_reports_a_known_id_or_key_as_a_duplicate(web: Web) -> None:
    web.good("POST", MESSAGES, {"messageId": "a", "deduplicationKey": "k", "payload": 1})
    answer = web.good(
        "POST", MESSAGES, [{"messageId": "a", "payload": 1}, {"messageId": "b", "deduplicationKey": "k", "payload": 2}]
    )
    assert answer["messages"] == [{"messageId": "a", "duplicate": True}, {"messageId": "a", "duplicate": True}]
    assert (answer["stored"], answer["duplicates"]) == (0, 2)


def test_json_schema_mismatch_is_rejected_by_name_and_the_rest_is_stored(web: Web) -> None:
    schema = {"type": "object", "required": ["to"]}
    web.good("PUT", "/v1/queues/mail/policy", {"schemas": {"letter": {"*": schema}}})
    letters = [{"type": "letter", "payload": {"to": 1}}, {"type": "letter", "payload": {}}]
    answer = web.good("POST", f"{MESSAGES}?as=envelope", letters)
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
        (b'[1, {"messageId": "m", "payload": 1, "type": 5}]', "application/json", "messages[1].type"),
        (b'{"payload": 1, "messageId": "../x"}', "application/json", "messageId"),
        (b'{"messageId": "m", "payload": 1, "queue": "other"}', "application/json", "queue"),
        (b'{"messageId": "m", "payload": 1, "delaySec": "soon"}', "application/json", "delaySec"),
        (b'{"messageId": "m", "payload": 1, "ttlSec": -1}', "application/json", "ttlSec"),
    ],
)
def test_publish_of_an_invalid_body_is_rejected_with_its_place_and_stores_nothing(
    web: Web, body: bytes, kind: str, field: str
) -> None:
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
def test_publish_with_an_invalid_header_is_rejected_by_name(web: Web, name: str, value: str) -> None:
    status, code, field = web.refused("POST", MESSAGES, b"1", content_type="text/plain", **{name: value})
    assert (status, code, str(field).lower().replace("-", "_")) == (400, "bad_input", name)


def test_publish_of_a_batch_with_a_message_too_large_stores_nothing(web: Web) -> None:
    web.good("PUT", "/v1/queues/mail/policy", {"maxBytes": 10})
    assert web.refused("POST", MESSAGES, [1, "x" * 20])[:2] == (413, "too_large")
    assert waiting(web) == []


def test_quota_exceeded_is_answered_429_with_retry_after(web: Web) -> None:
    web.good("PUT", "/v1/queues/mail/policy", {"quota": {"maxMessages": 1}})
    web.good("POST", MESSAGES, 1)
    line = web.ask("POST", MESSAGES, 2)
    error = line.document["error"]
    assert (line.status, error["code"]) == (429, "quota_exceeded")
    assert error["retryAfterSec"] > 0
    assert int(line.headers["retry-after"]) >= error["retryAfterSec"]


def test_full_disk_rejects_publish_with_507_while_leasing_continues(tmp_path: Path) -> None:
    disk = StoreDisk(tmp_path, 0)
    web = Web(disk=disk)
    web.good("POST", MESSAGES, 1)
    disk.full = StoreFull("no room")
    assert web.refused("POST", MESSAGES, 2) == (507, "store_full", None)
    assert len(web.good("POST", "/v1/queues/mail/lease")["messages"]) == 1


def test_queue_name_invalid_is_rejected(web: Web) -> None:
    assert web.refused("POST", "/v1/queues/a%2Fb/messages", 1) == (400, "bad_input", "queue")
    assert web.refused("POST", "/v1/queues/%ff/messages", 1) == (400, "bad_input", "path")
    assert web.refused("POST", "/v1/queues/.hidden/messages", 1) == (400, "bad_input", "queue")


def test_publish_of_more_than_10000_messages_is_rejected(web: Web) -> None:
    assert web.refused("POST", MESSAGES, json.dumps([1] * 10_001).encode(), content_type="application/json") == (
        400,
        "bad_input",
        "messages",
    )
