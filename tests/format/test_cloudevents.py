"""CloudEvents and envelopes: each becomes the other and comes back whole."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.core.errors import BadInput
from yirangmq.core.message import Envelope
from yirangmq.format import cloudevents
from yirangmq.format.envelope import NewMessage, build, header_of
from yirangmq.format.envelope import read as read_envelope

NOW = 1_768_296_060_000
EVENT = {
    "specversion": "1.0",
    "type": "com.example.someevent",
    "source": "/mycontext",
    "subject": "cluster-7",
    "id": "A234-1234-1234",
    "time": "2018-04-05T17:31:00Z",
    "comexampleextension1": "value",
    "comexampleothervalue": 5,
    "comexampleflag": True,
    "dataschema": "https://example.com/schema",
    "datacontenttype": "application/vnd.example+json",
    "data": {"appinfoA": "abc", "appinfoB": 123, "appinfoC": True},
}


def read(event: dict[str, Any]) -> Envelope:
    return cloudevents.read("mail", json.dumps(event).encode(), NOW)


def written(envelope: Envelope) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(cloudevents.as_json(envelope))
    return event


def without(event: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in names}


def test_cloudevent_attributes_are_mapped_to_the_members_of_an_envelope() -> None:
    envelope = read(EVENT)
    header = header_of(envelope)
    assert (header["type"], header["timestamp"]) == (EVENT["type"], EVENT["time"])
    assert header["attributes"] == {
        "comexampleextension1": "value",
        "comexampleothervalue": 5,
        "comexampleflag": True,
    }
    assert header["contentType"] == EVENT["datacontenttype"]
    assert header["cloudEvent"] == {
        name: EVENT[name] for name in ("specversion", "source", "subject", "id", "dataschema")
    }
    assert json.loads(envelope.payload) == EVENT["data"]
    assert envelope.is_json


@pytest.mark.parametrize(
    "event",
    [
        EVENT,
        without(EVENT, "data"),
        without(EVENT, "data", "datacontenttype"),
        without(EVENT, "subject", "dataschema", "comexampleflag"),
        without(EVENT, "time"),
        {**without(EVENT, "data"), "data_base64": base64.b64encode(bytes(range(256))).decode()},
        {**without(EVENT, "data"), "data_base64": ""},
        {**EVENT, "data": None},
        {**EVENT, "data": "a text"},
        {**EVENT, "id": "ö / ?", "source": "urn:x:y"},
        {**EVENT, "id": "x" * 1000},
        {**EVENT, "source": "urn:yirangmq:queue:mail", "id": "m-1"},
        {**EVENT, "priority": 3},
    ],
)
def test_cloudevent_round_trips_through_an_envelope(event: dict[str, Any]) -> None:
    back = written(read(event))
    if "time" not in event:
        assert back.pop("time") == "2026-01-13T09:21:00.000+00:00"
    assert back == event


def test_cloudevent_data_without_a_content_type_is_json() -> None:
    envelope = read({**without(EVENT, "datacontenttype"), "data": "a text"})
    assert (envelope.payload, envelope.is_json) == (b'"a text"', True)
    assert written(envelope)["data"] == "a text"


def test_cloudevent_text_data_becomes_the_bytes_of_the_text() -> None:
    """In JSON the data of an event of text is a string; the payload is the text's bytes."""
    event = {**EVENT, "datacontenttype": "text/plain; charset=utf-8", "data": "héllo"}
    envelope = read(event)
    assert (envelope.payload, envelope.is_json) == ("héllo".encode(), False)
    assert written(envelope) == event


def test_cloudevent_base64_data_declared_as_text_but_not_utf8_passes_unchanged() -> None:
    event = {**without(EVENT, "data"), "datacontenttype": "text/plain", "data_base64": "/w=="}
    assert written(read(event)) == event


def test_cloudevent_json_data_keeps_its_exact_text() -> None:
    text = json.dumps(without(EVENT, "data"))[:-1] + ', "data": { "n" : 1e400 }}'
    envelope = cloudevents.read("mail", text.encode(), NOW)
    assert envelope.payload == b'{ "n" : 1e400 }'
    assert b'"data":{ "n" : 1e400 }}' in cloudevents.as_json(envelope)


def test_cloudevent_message_id_is_derived_from_source_and_id_together() -> None:
    ids = {
        read({**EVENT, "source": source, "id": id}).id
        for source, id in [("/a", "1"), ("/b", "1"), ("/a", "2"), ("/a", "1")]
    }
    assert len(ids) == 3
    assert read(EVENT).id.startswith("A234-1234-1234.")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"specversion": None}, "specversion"),
        ({"id": None}, "id"),
        ({"id": ""}, "id"),
        ({"source": 5}, "source"),
        ({"source": "x" * 1025}, "source"),
        ({"type": "x" * 256}, "type"),
        ({"time": "yesterday"}, "timestamp"),
        ({"Extension": 1}, "Extension"),
        ({"ext": 1.5}, "ext"),
        ({"ext": {}}, "ext"),
        ({"priority": "high"}, "attributes.priority"),
        ({"data_base64": "AA=="}, "data_base64"),
        ({"mqmembers": "[]"}, "mqmembers"),
        ({"mqmembers": '{"payload": 1}'}, "mqmembers"),
        ({"mqattributes": 5}, "mqattributes"),
    ],
)
def test_cloudevent_with_an_invalid_attribute_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        read({**EVENT, **change})
    assert caught.value.field == field


def test_cloudevent_with_invalid_base64_is_refused() -> None:
    with pytest.raises(BadInput, match="Base64"):
        read({**without(EVENT, "data"), "data_base64": "?"})


@pytest.mark.parametrize("text", [b"[]", b"1", b"{", b"\xff"])
def test_cloudevent_that_is_not_a_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(BadInput):
        cloudevents.read("mail", text, NOW)


def test_cloudevent_in_binary_mode_is_read_from_headers_and_body() -> None:
    attributes = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "ext": "5"}
    json_event = cloudevents.read_binary("mail", attributes, "application/json", b'{"a": 1}', NOW)
    assert (json_event.is_json, json_event.payload) == (True, b'{"a": 1}')
    assert written(json_event)["ext"] == "5"
    broken = cloudevents.read_binary("mail", attributes, "application/json", b"{", NOW)
    assert (broken.is_json, broken.payload) == (False, b"{")
    raw = cloudevents.read_binary("mail", attributes, "image/png", b"\xff", NOW)
    assert (raw.is_json, raw.payload, written(raw)["datacontenttype"]) == (False, b"\xff", "image/png")
    assert "data" not in written(cloudevents.read_binary("mail", attributes, None, b"", NOW))


# -- the other way round --------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
messages = st.builds(
    NewMessage,
    payload=json_values | st.binary(max_size=20),
    id=st.none() | st.from_regex(r"[a-z0-9-]{1,20}", fullmatch=True),
    type=st.none() | st.text(min_size=1, max_size=20),
    version=st.none() | st.integers(0, 2**53),
    attributes=st.dictionaries(
        (st.text(max_size=25) | st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True)).filter(
            lambda name: name != "priority"
        ),
        json_values,
        max_size=4,
    ),
    trace_id=st.none() | st.text(min_size=1, max_size=20),
    deduplication_key=st.none() | st.text(min_size=1, max_size=20),
    priority=st.none() | st.integers(0, 2**53 - 1),
    content_type=st.none() | st.just("text/plain"),
    timestamp=st.none() | st.just("2026-01-13T10:21:00+09:00"),
)


@given(messages)
def test_cloudevent_of_a_message_round_trips_to_the_same_message(new: NewMessage) -> None:
    sent = build("mail", new, "given", NOW)
    back = cloudevents.read("mail", cloudevents.as_json(sent), NOW)
    assert (back.id, back.rank, back.dedup_key) == (sent.id, sent.rank, sent.dedup_key)
    assert (back.payload, back.is_json) == (sent.payload, sent.is_json)
    assert header_of(back) == header_of(sent)


@pytest.mark.parametrize(
    "more",
    [
        {"note": {"a": [1]}, "groupId": "g"},
        {"type": "yirangmq.message"},
        {"cloudEvent": 5},
        {"cloudEvent": {"id": "x", "source": 5}},
        {"cloudEvent": {"id": "x", "source": "/s", "data": "y"}},
        {"contentType": "application/json"},
        {"contentType": "application/json; charset=utf-8"},
        {"type": None, "attributes": None, "timestamp": None},
    ],
)
def test_cloudevent_of_a_message_keeps_members_of_any_kind(more: dict[str, Any]) -> None:
    text = json.dumps({"messageId": "m", **more, "payload": 1})
    sent = read_envelope("mail", text.encode(), "x", NOW)
    back = cloudevents.read("mail", cloudevents.as_json(sent), NOW)
    given = {name: value for name, value in header_of(sent).items() if value is not None}
    assert header_of(back) == given
