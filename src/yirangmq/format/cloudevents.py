"""CloudEvents 1.0 to envelopes and back, with nothing lost in either direction.

``docs/http.md`` has the table. Attributes of an event that have no member in an envelope are kept in the member
``cloudEvent``. Members of an envelope that have no attribute in an event become extension attributes that begin with
``mq``. Source and id together identify an event, and its message: the same event is stored once.

Both modes are here: structured (an event in JSON) and binary (attributes as headers). ``protocols.http`` reads the HTTP
headers."""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.message import Envelope
from yirangmq.core.validation import kind
from yirangmq.format.envelope import NOT_IN_HEADER, header_of
from yirangmq.format.envelope import read as read_envelope
from yirangmq.format.json_codec import dumps, loads, members

VERSION = "1.0"
SOURCE_PREFIX = "urn:yirangmq:queue:"
"""Prefix of the source of an event that was published as a plain message. Its id is the message id."""
NO_TYPE = "yirangmq.message"
"""Event type of a message without a type. CloudEvents requires one."""
NAME = re.compile(r"[a-z0-9]{1,20}")
EVENT_ATTRIBUTES = ("specversion", "id", "source", "type", "time", "subject", "datacontenttype", "dataschema")
CORE = frozenset({*EVENT_ATTRIBUTES, "data"})
MEMBERS = {"mqversion": "version", "mqtraceid": "traceId", "mqdeduplicationkey": "deduplicationKey"}
"""Extension attributes and the envelope members they map to. Other members are JSON text in ``mqattributes`` and
``mqmembers``."""
STORED_TYPES: dict[str, type] = {
    **dict.fromkeys(("specversion", "id", "source", "subject", "dataschema"), str),
    "noData": bool,
}
"""Members of ``cloudEvent`` and their types."""
DELIVERY_ATTRIBUTES = frozenset({"mqleaseid", "mqattempt"})
"""Extension attributes of a lease. They are ignored when an event is published again: it is the same event."""
JSON_TYPE = "application/json"
MAX_TEXT = 1024


# -- an event comes in ------------------------------------------------------------------------------------------------


def read(queue: str, text: bytes, now: int, delay: float = 0, ttl: float | None = None) -> Envelope:
    """Parse an event in structured mode (JSON)."""
    parts = members(text)
    if parts is None:
        raise BadInput("must be a JSON object", field="event")
    data, coded = parts.pop("data", None), parts.pop("data_base64", None)
    attributes = {name: loads(raw) for name, raw in parts.items()}
    given = attributes.get("datacontenttype")
    if coded is not None:
        if data is not None:
            raise BadInput("give data or data_base64, not both", field="data_base64")
        return _envelope(queue, attributes, _decoded(coded), False, now, delay, ttl)
    if data is None:
        return _envelope(queue, attributes, None, False, now, delay, ttl)
    if is_json_type(given) or not isinstance(value := loads(data), str):
        return _envelope(queue, attributes, data, True, now, delay, ttl)
    return _envelope(queue, attributes, value.encode(), False, now, delay, ttl)


def read_many(queue: str, texts: list[bytes], now: int, delay: float = 0, ttl: float | None = None) -> list[Envelope]:
    return [read(queue, text, now, delay, ttl) for text in texts]


def read_binary(
    queue: str,
    attributes: Mapping[str, str],
    content_type: str | None,
    body: bytes,
    now: int,
    delay: float = 0,
    ttl: float | None = None,
) -> Envelope:
    """Parse an event in binary mode: the attributes are headers without ``ce-``, the data is the body."""
    given: dict[str, Any] = dict(attributes)
    if content_type:
        given["datacontenttype"] = content_type
    elif not body:
        return _envelope(queue, given, None, False, now, delay, ttl)
    return _envelope(queue, given, body, is_json_type(content_type) and _is_json(body), now, delay, ttl)


def is_json_type(content_type: object) -> bool:
    """Return True if the media type is JSON. None counts too: an event without ``datacontenttype`` has JSON data."""
    if content_type is None:
        return True
    base = str(content_type).partition(";")[0].strip().lower()
    return base in (JSON_TYPE, "text/json") or base.endswith("+json")


def _is_json(body: bytes) -> bool:
    try:
        loads(body)
    except BadInput:
        return False
    return True


def _decoded(coded: bytes) -> bytes:
    try:
        return base64.b64decode(loads(coded), validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise BadInput(f"is not Base64: {error}", field="data_base64") from None


def _envelope(
    queue: str,
    attributes: dict[str, Any],
    payload: bytes | None,
    is_json: bool,
    now: int,
    delay: float,
    ttl: float | None,
) -> Envelope:
    given = {name: value for name, value in attributes.items() if value is not None}
    id, source = _check_attributes(given)
    if is_json and source.startswith(SOURCE_PREFIX) and given.get("datacontenttype") == JSON_TYPE:
        del given["datacontenttype"]  # added when this message was shown as an event
    header = _header(given, payload is None)
    own = id if source.startswith(SOURCE_PREFIX) else message_id(source, id)
    head = dumps({"messageId": own, **header})[:-1]
    coded = payload or b""
    document = b'%s,"payload":%s}' % (head, coded) if is_json else _coded(head, coded)
    return read_envelope(queue, document, own, now, delay=delay, ttl=ttl)


def _coded(head: bytes, payload: bytes) -> bytes:
    return b'%s,"payloadBase64":"%s"}' % (head, base64.b64encode(payload))


def _check_attributes(given: dict[str, Any]) -> tuple[str, str]:
    if given.get("specversion") != VERSION:
        raise BadInput(f"must be {VERSION!r}, not {given.get('specversion')!r}", field="specversion")
    for name in ("id", "source", "type"):
        if name not in given:
            raise BadInput("is needed", field=name)
    for name, value in given.items():
        if name in EVENT_ATTRIBUTES and (not isinstance(value, str) or not value):
            raise BadInput(f"must be a text, not {kind(value) if value != '' else 'empty'}", field=name)
        if not NAME.fullmatch(name) or name == "data":
            raise BadInput("attributes have names of 1 to 20 small letters and digits", field=name[:60])
        if not isinstance(value, str | bool | int):
            raise BadInput(f"must be a text, a whole number or a boolean, not {kind(value)}", field=name)
    for name in ("id", "source"):
        if len(given[name]) > MAX_TEXT:
            raise BadInput(f"has at most {MAX_TEXT} characters", field=name)
    return given["id"], given["source"]


def message_id(source: str, id: str) -> str:
    """Return the id of an event's message. It depends on source and id, so the same event is stored once."""
    mark = hashlib.sha256(f"{source}\n{id}".encode()).hexdigest()[:32]
    readable = id if len(id) <= 60 and validation.IDENTIFIER.fullmatch(id) else "event"
    return f"{readable}.{mark}"


def _header(given: dict[str, Any], is_empty: bool) -> dict[str, Any]:
    """Return the header members of the envelope."""
    header: dict[str, Any] = _object(given.pop("mqmembers", None), "mqmembers")
    if not header.keys().isdisjoint(NOT_IN_HEADER):
        raise BadInput(
            f"has a member that is not allowed in a header: one of {', '.join(NOT_IN_HEADER)}", field="mqmembers"
        )
    attributes = _object(given.pop("mqattributes", None), "mqattributes")
    event: dict[str, Any] = {}
    for name, value in given.items():
        if name in MEMBERS:
            header[MEMBERS[name]] = value
        elif name not in EVENT_ATTRIBUTES and name not in DELIVERY_ATTRIBUTES:
            attributes[name] = value
        elif name in STORED_TYPES:
            event[name] = value
    _take_envelope_members(header, given)
    if attributes:
        header["attributes"] = attributes
    if is_empty:
        event["noData"] = True
    if not given["source"].startswith(SOURCE_PREFIX) or len(event) > 3:
        header["cloudEvent"] = event
    return header


def _take_envelope_members(header: dict[str, Any], given: dict[str, Any]) -> None:
    if not (given["source"].startswith(SOURCE_PREFIX) and given["type"] == NO_TYPE):
        header["type"] = given["type"]
    if "time" in given:
        header["timestamp"] = given["time"]
    if "datacontenttype" in given:
        header["contentType"] = given["datacontenttype"]


def _object(text: object, field: str) -> dict[str, Any]:
    if text is None:
        return {}
    value = loads(text.encode()) if isinstance(text, str) else None
    if not isinstance(value, dict):
        raise BadInput("must be the JSON text of an object", field=field)
    return value


# -- a message goes out -----------------------------------------------------------------------------------------------


def attributes_of(envelope: Envelope) -> dict[str, Any]:
    """Return the attributes of a message shown as an event."""
    header = header_of(envelope)
    event = _event_of(header)
    shown: dict[str, Any] = {
        "specversion": VERSION,
        "id": header.pop("messageId"),
        "source": SOURCE_PREFIX + header.pop("queue"),
    }
    shown["type"] = header.get("type") or NO_TYPE
    shown["time"] = header.pop("timestamp")
    if header.get("type") != NO_TYPE:
        header.pop("type", None)
    if event is not None:
        del header["cloudEvent"]
        shown |= {name: value for name, value in event.items() if name != "noData"}
    given = header.get("contentType") or (JSON_TYPE if envelope.is_json and event is None else None)
    if given is not None:
        shown["datacontenttype"] = given
    if event is not None or given != JSON_TYPE:
        header.pop("contentType", None)
    return shown | _extensions(header)


def _event_of(header: dict[str, Any]) -> dict[str, Any] | None:
    """Return the stored member ``cloudEvent``; None if the message was not published as an event.

    A producer can write this member itself, so its names and types are checked."""
    event = header.get("cloudEvent")
    if not isinstance(event, dict) or not event.keys() >= {"id", "source"}:
        return None
    is_ours = all(name in STORED_TYPES and isinstance(value, STORED_TYPES[name]) for name, value in event.items())
    return event if is_ours else None


def _extensions(header: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    attributes = header.pop("attributes", None) or {}
    for outside, inside in MEMBERS.items():
        value = header.get(inside)
        if _is_simple(value):
            shown[outside] = header.pop(inside)
    rest = {name: value for name, value in attributes.items() if not _fits(name, value)}
    shown |= {name: value for name, value in attributes.items() if name not in rest}
    if rest:
        shown["mqattributes"] = dumps(rest).decode()
    if header:
        shown["mqmembers"] = dumps(header).decode()
    return shown


def _is_simple(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return -(2**31) <= value < 2**31
    return isinstance(value, str | bool)


def _fits(name: str, value: object) -> bool:
    return bool(NAME.fullmatch(name)) and name not in CORE and not name.startswith("mq") and _is_simple(value)


def content_type(envelope: Envelope) -> str | None:
    """Return the media type of the payload; None if it is unknown."""
    given: str | None = header_of(envelope).get("contentType")
    return given or (JSON_TYPE if envelope.is_json else None)


def as_json(envelope: Envelope, more: Mapping[str, Any] | None = None) -> bytes:
    """Return the event in JSON with the payload's own text. ``more`` has further extension attributes."""
    shown = attributes_of(envelope)
    event = _event_of(header_of(envelope))
    head = dumps({**shown, **(more or {})})[:-1]
    if envelope.is_json:
        return b'%s,"data":%s}' % (head, envelope.payload)
    if event is not None and event.get("noData"):
        return head + b"}"
    text = _text(envelope.payload, shown.get("datacontenttype"))
    if text is not None:
        return b'%s,"data":%s}' % (head, dumps(text))
    return b'%s,"data_base64":"%s"}' % (head, base64.b64encode(envelope.payload))


def _text(payload: bytes, content_type: str | None) -> str | None:
    """Return the payload as a string if its media type is text or XML; None if it is not, or is not UTF-8."""
    base = (content_type or "").partition(";")[0].strip().lower()
    if not (base.startswith("text/") or base.endswith("xml")) or is_json_type(base):
        return None
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
