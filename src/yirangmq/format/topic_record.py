"""Topic records and cursors as JSON documents, and topic records as messages of a queue.

A JSON payload is embedded with its own text, any other as Base64. When a document is published again, the numbers that
the log assigned are ignored.

As a message a record keeps its payload's bytes. Topic, sequences, key and headers become attributes of the envelope;
the id is that of ``core.bridges``."""

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from yirangmq.core.bridges import group_of, message_id
from yirangmq.core.errors import BadInput
from yirangmq.core.message import RANK_LAST, Envelope
from yirangmq.core.topics import NO_HEADERS, Cursor, NewRecord, Record
from yirangmq.core.validation import line_of
from yirangmq.format.envelope import iso
from yirangmq.format.json_codec import dumps, loads, members

# -- JSON documents ----------------------------------------------------------------------------------------------------

NS = 1_000_000_000
GIVEN = frozenset({"topic", "key", "headers", "payload", "payloadBase64"})
NUMBERS = frozenset({"sequence", "topicSequence", "at", "atNs"})
"""Members that the log assigns. They are ignored when a record is published again."""


def as_json(record: Record) -> bytes:
    """Format a record as one line: a JSON payload as its own text, any other as Base64."""
    head = {
        "sequence": record.sequence,
        "topic": record.topic,
        "topicSequence": record.topic_sequence,
        "at": instant(record.at_ns),
        "atNs": record.at_ns,
        "key": record.key,
        "headers": dict(record.headers),
    }
    begin = dumps(head)[:-1]
    if is_json(record.payload):
        return b'%s,"payload":%s}' % (begin, record.payload)
    return b'%s,"payloadBase64":"%s"}' % (begin, base64.b64encode(record.payload))


def is_json(payload: bytes) -> bool:
    try:
        loads(payload)
    except BadInput:
        return False
    return True


def instant(at_ns: int) -> str:
    """Format ns since 1970 as ISO 8601 in UTC, to the nanosecond. Past the year 9999, return the number as text."""
    seconds, rest = divmod(at_ns, NS)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}+00:00"
    except (OverflowError, ValueError):
        return str(at_ns)


def from_json(text: bytes, topic: str | None = None) -> NewRecord:
    """Parse a document written by ``as_json`` for publishing again. The payload keeps its bytes.

    ``topic`` is used if the document has none. A document without a payload member is a bare payload."""
    parts = members(text)
    if parts is None or not ("payload" in parts or "payloadBase64" in parts):
        loads(text)
        return NewRecord(_topic(None, topic), text.strip())
    for name in sorted(parts.keys() - GIVEN - NUMBERS):
        raise BadInput(f"is not a member of a record; known: {', '.join(sorted(GIVEN))}", field=name)
    named = loads(parts["topic"]) if "topic" in parts else None
    key = loads(parts["key"]) if "key" in parts else None
    headers = loads(parts["headers"]) if "headers" in parts else None
    return NewRecord(_topic(named, topic), _payload(parts), key, NO_HEADERS if headers is None else headers)


def _topic(named: str | None, default: str | None) -> str:
    found = default if named is None else named
    if found is None:
        raise BadInput("is missing", field="topic")
    return found


def _payload(parts: Mapping[str, bytes]) -> bytes:
    if "payload" in parts:
        if "payloadBase64" in parts:
            raise BadInput("is given together with payload; give only one", field="payloadBase64")
        return parts["payload"].strip()
    return from_base64(parts["payloadBase64"])


def from_base64(text: bytes) -> bytes:
    """Decode the member ``payloadBase64``, given as JSON text."""
    written = loads(text)
    try:
        if not isinstance(written, str):
            raise ValueError
        return base64.b64decode(written, validate=True)
    except (ValueError, binascii.Error):
        raise BadInput("must be base64", field="payloadBase64") from None


def cursor_document(cursor: Cursor, lag: int) -> dict[str, Any]:
    """Return the document of a disconnected durable subscriber."""
    return {
        "subscriber": cursor.name,
        "name": cursor.name,
        "filter": cursor.filter,
        "sequence": cursor.sequence,
        "confirmed": cursor.sequence,
        "lag": lag,
        "heardAt": iso(cursor.at_ns // 1_000_000),
        "epoch": cursor.epoch,
    }


# -- messages ----------------------------------------------------------------------------------------------------------

SPACE = b" \t\r\n"
MILLISECOND = 1_000_000


def envelope_of(record: Record, queue: str, epoch: str, now: int, *, groups: bool) -> Envelope:
    """Build the message of a record. With ``groups`` the record's key becomes the message's group."""
    attributes: dict[str, Any] = {
        "topic": record.topic,
        "sequence": record.sequence,
        "topicSequence": record.topic_sequence,
    }
    if record.key is not None:
        attributes["key"] = record.key
    if record.headers:
        attributes["headers"] = dict(record.headers)
    header: dict[str, Any] = {"timestamp": iso(record.at_ns // MILLISECOND), "attributes": attributes}
    group = group_of(record.key) if groups else None
    if group is not None:
        header["groupId"] = group
    return Envelope(
        queue,
        message_id(epoch, record.sequence),
        RANK_LAST,
        now,
        now,
        0,
        None,
        dumps(header).decode(),
        record.payload,
        _is_json(record.payload),
        line_of(group or ""),
    )


def _is_json(payload: bytes) -> bool:
    """Return True if the payload is JSON without surrounding space, which the files store would not keep."""
    if not payload or payload[0] in SPACE or payload[-1] in SPACE:
        return False
    try:
        loads(payload)
    except BadInput:
        return False
    return True
