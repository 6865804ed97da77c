"""The envelope and what is made of it, held still by golden files."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden_files import golden
from yirangmq.core.errors import BadInput, QueueError, TooLarge
from yirangmq.core.message import RANK_LAST, Envelope, Message, MessageFailure, Reason
from yirangmq.core.policy import read_policy
from yirangmq.core.states import State
from yirangmq.format import delivery
from yirangmq.format.delivery import MessageDelivery, MessageView
from yirangmq.format.envelope import (
    MAX_HEADER,
    NewMessage,
    as_json,
    build,
    header_of,
    is_envelope,
    iso,
    members_of,
    payload_value,
    read,
)

NOW = 1_768_267_260_000
QUEUE = "telemetry"
EXAMPLE = golden("envelope-example.json")


def taken(text: bytes, **options: Any) -> Envelope:
    return read(QUEUE, text, "fallback", NOW, **options)


# -- the published example --------------------------------------------------------------------------------------------


def test_envelope_example_is_read_to_the_last_member() -> None:
    envelope = taken(EXAMPLE)
    assert envelope.id == "9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71"
    assert envelope.queue == QUEUE
    assert envelope.rank == 3
    assert envelope.dedup_key == "device-001:1705112460"
    assert (envelope.published_at, envelope.available_at, envelope.expires_at) == (NOW, NOW, 0)
    assert envelope.payload == b'{\n    "temp": 36.1,\n    "rpm": 1200\n  }'
    assert envelope.is_json


def test_envelope_example_is_written_as_it_was_read() -> None:
    written = as_json(taken(EXAMPLE))
    assert json.loads(written) == json.loads(EXAMPLE)
    assert list(json.loads(written)) == list(json.loads(EXAMPLE))
    assert as_json(taken(written)) == written


def test_envelope_built_from_values_equals_the_example() -> None:
    new = NewMessage(
        payload={"temp": 36.1, "rpm": 1200},
        id="9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71",
        timestamp="2026-01-13T10:21:00+09:00",
        type="sensor.reading",
        version=1,
        attributes={"deviceId": "device-001"},
        priority=3,
        trace_id="trace-1234",
        deduplication_key="device-001:1705112460",
    )
    built = build(QUEUE, new, "fallback", NOW)
    assert json.loads(as_json(built)) == json.loads(EXAMPLE)
    assert built._replace(payload=b"") == taken(EXAMPLE)._replace(payload=b"")


def test_dead_letter_record_has_exactly_the_documented_shape() -> None:
    row = Message(1, QUEUE, "m", State.DEAD, 3, 1, 1, 1, 0, 0, NOW, "consumer-01", Reason.VALIDATION_ERROR, 1, True)
    failure = MessageFailure(
        "VALIDATION_ERROR", "missing required field: payload.temp", NOW + 252_000, 1, "consumer-01"
    )
    rules = read_policy({}, QUEUE)
    record = delivery.dead_letter_record(row, taken(EXAMPLE), failure, rules)
    assert json.loads(record) == json.loads(golden("deadletter-example.json"))
    assert taken(EXAMPLE).payload in record
    assert MessageView(row, taken(EXAMPLE), failure, rules).record() == json.loads(record)


def test_dead_letter_record_holds_the_reason_and_the_last_failure() -> None:
    row = Message(1, QUEUE, "m", State.DEAD, 3, 1, 4, 4, 0, 0, NOW, "", Reason.POISON, 4, True)
    failure = MessageFailure("HANDLER_ERROR", "again", NOW, 4, "")
    record = json.loads(
        delivery.dead_letter_record(row, taken(b"1"), failure, read_policy({"dlq": {"queue": "grave"}}, QUEUE))
    )
    assert record["failure"] == {
        "reasonCode": "POISON",
        "reasonMessage": "again",
        "failedAt": iso(NOW),
        "attempt": 4,
        "consumerId": None,
    }
    assert record["routing"] == {"sourceQueue": QUEUE, "dlqQueue": "grave"}


def test_delivery_json_has_message_lease_and_policy() -> None:
    row = Message(5, QUEUE, "m", State.LEASED, 3, 5, 2, 3, NOW + 30_000, 0, NOW, "consumer-01", "", 0, True)
    delivery = MessageDelivery(row, taken(EXAMPLE), read_policy({}, QUEUE))
    assert json.loads(delivery.as_json()) == {
        "message": json.loads(EXAMPLE),
        "lease": {"leaseId": "5-3", "leaseUntil": iso(NOW + 30_000), "consumerId": "consumer-01", "attempt": 2},
        "policy": json.loads(golden("policy-default.json")),
    }
    assert delivery.header["traceId"] == "trace-1234"
    assert delivery.value() == {"temp": 36.1, "rpm": 1200}


def test_dead_letter_record_is_missing_for_a_message_without_content() -> None:
    row = Message(1, QUEUE, "m", State.DONE, RANK_LAST, 1, 1, 1, 0, 0, NOW, "", "", 0, False)
    look = MessageView(row, None, None, read_policy({}, QUEUE))
    assert look.record() is None
    assert look.row()["priority"] is None
    assert look.row()["dueAt"] is None


# -- bare payloads ----------------------------------------------------------------------------------------------------

BARE = [
    b"1",
    b"null",
    b'"text"',
    b"[]",
    b"{}",
    b'{"temp":36.1}',
    b'{"payload":1}',
    b'{"type":"t","value":1}',
    b'{"type":"t","payload":1}',
    b'{"type":"t","version":1,"attributes":{"priority":0},"traceId":"t","groupId":"g","payload":{"a":1}}',
    b'{"timestamp":"yesterday","deduplicationKey":"","targetConsumerId":7,"payload":1}',
    b'{"messageId":"x"}',
    b'{"payloadBase64":"AA==","type":"t"}',
    b'{"messageId":"x","data":{"payload":1}}',
    b' \n{"temp" : 1}\t',
]


@pytest.mark.parametrize("text", BARE)
def test_envelope_is_built_around_any_json_that_is_not_an_envelope(text: bytes) -> None:
    envelope = taken(text)
    assert envelope.payload == text.strip()
    assert (envelope.id, envelope.header, envelope.rank, envelope.is_json) == ("fallback", "", RANK_LAST, True)
    assert json.loads(as_json(envelope)) == {
        "messageId": "fallback",
        "timestamp": iso(NOW),
        "queue": QUEUE,
        "payload": json.loads(text),
    }


def test_envelope_needs_message_id_and_payload_and_nothing_else() -> None:
    """The rule of every protocol, command and store; a null id is assigned."""
    envelope = taken(b'{"messageId":"m","payload":1}')
    assert (envelope.id, envelope.header, envelope.payload) == ("m", "", b"1")
    assert taken(b'{"messageId":null,"payload":1}').id == "fallback"
    for text, expected in (
        (b'{"messageId":"m","payload":1,"mine":2}', True),
        (b'{"messageId":"m","payloadBase64":"AA=="}', True),
        (b'{"messageId":"m"}', False),
        (b'{"payload":1,"type":"t","timestamp":"2026-01-13T10:21:00Z"}', False),
        (b"[]", False),
    ):
        assert is_envelope(members_of(text)) is expected, text


def test_envelope_or_payload_may_be_forced() -> None:
    envelope = taken(b'{"traceId":"t","payload":1}', read_as="envelope")
    assert (envelope.id, envelope.header, envelope.payload) == ("fallback", '{"traceId":"t"}', b"1")
    whole = b'{"messageId":"m","payload":1}'
    assert (taken(whole, read_as="payload").id, taken(whole, read_as="payload").payload) == ("fallback", whole)
    for text in (b"1", b'{"messageId":"m"}'):
        with pytest.raises(BadInput, match="is not an envelope") as caught:
            taken(text, read_as="envelope")
        assert caught.value.field == "document"
    with pytest.raises(BadInput, match="must be one of envelope, payload") as caught:
        taken(b"1", read_as="text")
    assert caught.value.field == "as"


def test_envelope_keeps_unknown_members() -> None:
    text = b'{"messageId":"m","payload":1,"x-custom":{"deep":[1,null]},"queueing":true,"contentType":"x/y"}'
    assert json.loads(as_json(taken(text))) == json.loads(text) | {"timestamp": iso(NOW), "queue": QUEUE}


def test_envelope_json_carries_bytes_as_base64() -> None:
    data = bytes(range(256))
    text = json.dumps({"messageId": "m", "payloadBase64": base64.b64encode(data).decode()}).encode()
    envelope = taken(text)
    assert (envelope.payload, envelope.is_json) == (data, False)
    assert payload_value(envelope) == data
    assert json.loads(as_json(envelope))["payloadBase64"] == base64.b64encode(data).decode()
    assert as_json(taken(as_json(envelope))) == as_json(envelope)


def test_new_message_takes_its_payload_by_position_and_everything_else_by_name() -> None:
    assert NewMessage("text", id="m-1") == NewMessage(payload="text", id="m-1")
    with pytest.raises(TypeError, match="positional"):
        NewMessage("text", "m-1")  # type: ignore[call-arg]


def test_envelope_payload_bytes_stay_bytes_unless_the_content_type_is_json() -> None:
    assert not build(QUEUE, NewMessage(payload=b"{}"), "f", NOW).is_json
    assert build(QUEUE, NewMessage(payload=b"{ }", content_type="application/json"), "f", NOW).payload == b"{ }"
    assert build(QUEUE, NewMessage(payload=bytearray(b"x")), "f", NOW).payload == b"x"
    other = build(QUEUE, NewMessage(payload=b"x", content_type="text/plain"), "f", NOW)
    assert header_of(other)["contentType"] == "text/plain"


def test_envelope_delay_and_time_to_live_count_from_now() -> None:
    envelope = taken(b"1", delay=1.5, ttl=60)
    assert (envelope.available_at, envelope.expires_at) == (NOW + 1_500, NOW + 60_000)


@pytest.mark.parametrize(("priority", "rank"), [(None, RANK_LAST), (0, 0), (3, 3), (2**53 - 1, 2**53 - 1)])
def test_priority_is_converted_to_a_rank(priority: int | None, rank: int) -> None:
    text = json.dumps({"messageId": "m", "attributes": {"priority": priority}, "payload": 1}).encode()
    assert taken(text).rank == rank
    assert build(QUEUE, NewMessage(payload=1, priority=priority), "f", NOW).rank == rank


# -- what is refused --------------------------------------------------------------------------------------------------

MARK = '"messageId":"m","payload":1'
BAD: list[tuple[bytes | str, type[QueueError], str]] = [
    (b"", BadInput, "document"),
    (b"{", BadInput, "document"),
    (b"nul", BadInput, "document"),
    (b'{"a":1} x', BadInput, "document"),
    (b"\xff\xfe", BadInput, "document"),
    (b'{"messageId":"m","payload":"\xff"}', BadInput, "document"),
    (b'{"messageId":"m","payload":01}', BadInput, "document"),
    ('{"messageId":7,"payload":1}', BadInput, "messageId"),
    ('{"messageId":"","payload":1}', BadInput, "messageId"),
    ('{"messageId":"a/b","payload":1}', BadInput, "messageId"),
    ('{"messageId":"../m","payload":1}', BadInput, "messageId"),
    (f'{{"messageId":"{"m" * 101}","payload":1}}', BadInput, "messageId"),
    (f'{{{MARK},"queue":"other"}}', BadInput, "queue"),
    (f'{{{MARK},"queue":7}}', BadInput, "queue"),
    (f'{{{MARK},"timestamp":"yesterday"}}', BadInput, "timestamp"),
    (f'{{{MARK},"timestamp":"2026-01-13T10:21:00"}}', BadInput, "timestamp"),
    (f'{{{MARK},"timestamp":1768267260}}', BadInput, "timestamp"),
    (f'{{{MARK},"type":7}}', BadInput, "type"),
    (f'{{{MARK},"type":""}}', BadInput, "type"),
    (f'{{{MARK},"type":"{"t" * 256}"}}', BadInput, "type"),
    (f'{{{MARK},"version":"1"}}', BadInput, "version"),
    (f'{{{MARK},"version":-1}}', BadInput, "version"),
    (f'{{{MARK},"version":true}}', BadInput, "version"),
    (f'{{{MARK},"version":1.5}}', BadInput, "version"),
    (f'{{{MARK},"attributes":[]}}', BadInput, "attributes"),
    (f'{{{MARK},"attributes":{{"priority":-1}}}}', BadInput, "attributes.priority"),
    (f'{{{MARK},"attributes":{{"priority":"high"}}}}', BadInput, "attributes.priority"),
    (f'{{{MARK},"traceId":{{}}}}', BadInput, "traceId"),
    (f'{{{MARK},"deduplicationKey":""}}', BadInput, "deduplicationKey"),
    (f'{{{MARK},"deduplicationKey":1}}', BadInput, "deduplicationKey"),
    (f'{{{MARK},"contentType":1}}', BadInput, "contentType"),
    (f'{{{MARK},"payloadBase64":"AA=="}}', BadInput, "payloadBase64"),
    ('{"messageId":"m","payloadBase64":"%"}', BadInput, "payloadBase64"),
    ('{"messageId":"m","payloadBase64":"A"}', BadInput, "payloadBase64"),
    ('{"messageId":"m","payloadBase64":7}', BadInput, "payloadBase64"),
    ('{"messageId":"m","payloadBase64":"é"}', BadInput, "payloadBase64"),
    (f'{{{MARK},"attributes":{{"a":"{"x" * MAX_HEADER}"}}}}', TooLarge, "attributes"),
    (f'{{{MARK},"traceId":1e400}}', BadInput, "traceId"),
]


@pytest.mark.parametrize(("text", "error", "field"), BAD, ids=[repr(text)[:60] for text, _, _ in BAD])
def test_envelope_that_is_broken_is_refused_by_field(text: bytes | str, error: type[QueueError], field: str) -> None:
    with pytest.raises(error) as caught:
        taken(text.encode() if isinstance(text, str) else text)
    assert caught.value.field == field


OPTIONS = [{"delay": -1}, {"delay": "1"}, {"delay": float("nan")}, {"ttl": 0}, {"ttl": -1}, {"ttl": "1"}, {"ttl": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_envelope_times_that_are_impossible_are_refused_by_field(options: dict[str, Any]) -> None:
    [field] = options
    with pytest.raises(BadInput) as caught:
        taken(b"1", **options)
    assert caught.value.field == field
    with pytest.raises(BadInput) as caught:
        build(QUEUE, NewMessage(payload=1, **options), "f", NOW)
    assert caught.value.field == field


NEW: list[tuple[dict[str, Any], str]] = [
    ({"id": ""}, "messageId"),
    ({"id": 7}, "messageId"),
    ({"type": 7}, "type"),
    ({"version": "1"}, "version"),
    ({"priority": -1}, "attributes.priority"),
    ({"priority": 1.5}, "attributes.priority"),
    ({"trace_id": ""}, "traceId"),
    ({"deduplication_key": "k" * 256}, "deduplicationKey"),
    ({"timestamp": "now"}, "timestamp"),
    ({"payload": object()}, "payload"),
    ({"payload": float("nan")}, "payload"),
    ({"payload": b"{", "content_type": "application/json"}, "payload"),
    ({"payload": b'"\xff"', "content_type": "application/json"}, "payload"),
    ({"attributes": {"a": object()}}, "attributes"),
    ({"attributes": {"a": float("inf")}}, "attributes"),
    ({"attributes": 7}, "attributes"),
    ({"attributes": None}, "attributes"),
    ({"delay": "soon"}, "delay"),
    ({"delay": ""}, "delay"),
]


@pytest.mark.parametrize(("members", "field"), NEW, ids=[f"{n}-{field}" for n, (_, field) in enumerate(NEW)])
def test_new_message_that_is_broken_is_refused_by_field(members: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        build(QUEUE, NewMessage(**{"payload": 1, **members}), "f", NOW)
    assert caught.value.field == field


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_envelope_of_any_text_is_read_or_refused_as_bad_input(text: bytes) -> None:
    for document in (text, b'{"messageId":"m","payload":%s}' % text, b'{"type":%s,"payload":1}' % text):
        try:
            envelope = taken(document)
        except BadInput:
            continue
        assert json.loads(as_json(envelope))["queue"] == QUEUE
        envelope.payload.decode()
