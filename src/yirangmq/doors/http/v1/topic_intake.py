"""From the body of a request to the records it brings to a topic: one or many, bare payloads, frames, or any bytes.

Knows: content types, headers, the forms of a record. Does not know: the feed."""

from collections.abc import Callable, Mapping

from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.topics import NO_HEADERS, NewRecord
from yirangmq.doors.http.exchange import Request
from yirangmq.doors.http.v1.fields import Field, text
from yirangmq.doors.http.v1.intake import FORM, LINES, elements
from yirangmq.format.envelope import JSON_TYPE
from yirangmq.format.json_codec import loads, members
from yirangmq.format.topic_record import from_base64
from yirangmq.topics.ports import MOST_PER_PUBLISH
from yirangmq.wire.records import MOST_PART, RecordReader, check_record

FRAMES = "application/vnd.yirangmq.records"
BYTES = "application/octet-stream"
TYPE_HEADER = "content-type"
"""The header of a record whose payload is neither JSON nor plain bytes."""
HEADERS = (
    Field("X-MQ-Key", text(MOST_PART), "the key of the one record that the body is the payload of"),
    Field("X-MQ-Headers", text(MOST_PART), "its headers: a JSON object of strings"),
)
_named = frozenset(field.name.lower() for field in HEADERS)
_known = frozenset({"payload", "payloadBase64", "key", "headers"})


def read_records(topic: str, request: Request) -> list[NewRecord]:
    """Checked, in order; ``BadInput`` names what is wrong, and in which of them."""
    headers, body = request.headers, request.body
    given = headers.get("content-type", "")
    base = given.partition(";")[0].strip().lower()
    if base == FRAMES:
        return _frames(topic, body)
    if not _named.isdisjoint(headers):
        return [_described(topic, body, given, base, headers)]
    if base == JSON_TYPE or (base == FORM and body[:1] in (b"{", b"[")):
        if body.lstrip()[:1] == b"[":
            return _each(topic, elements(body), _document)
        return [_document(topic, body)]
    if base in LINES:
        return _each(topic, [line for line in body.splitlines() if line.strip()], _document)
    if not given and not body:
        raise BadInput("is empty: send a record", field="body")
    return [_described(topic, body, given, base, {})]


def _each(topic: str, texts: list[bytes], make: Callable[[str, bytes], NewRecord]) -> list[NewRecord]:
    _check_count(len(texts))
    made: list[NewRecord] = []
    try:
        for one in texts:
            made.append(make(topic, one))
    except QueueError as error:
        where = f"records[{len(made)}]"
        words = str(error).removeprefix(f"{error.field}: ") if error.field else str(error)
        raise type(error)(words, field=f"{where}.{error.field}" if error.field else where) from None
    return made


def _check_count(count: int) -> None:
    if not 0 < count <= MOST_PER_PUBLISH:
        raise BadInput(f"from 1 to {MOST_PER_PUBLISH} in one call, not {count}", field="records")


def _document(topic: str, one: bytes) -> NewRecord:
    """An object with a payload is a record, whose payload is stored with the very bytes it has; anything else is a
    bare payload."""
    try:
        parts = members(one)
        if parts is None or ("payload" not in parts and "payloadBase64" not in parts):
            loads(one)
            return _checked(NewRecord(topic, one.strip()))
    except BadInput as error:
        raise BadInput(str(error), field="body") from None
    for name in sorted(parts.keys() - _known):
        raise BadInput(f"is not a member of a record; known: {', '.join(sorted(_known))}", field=name)
    key = loads(parts["key"]) if "key" in parts else None
    headers = loads(parts["headers"]) if "headers" in parts else None
    return _checked(NewRecord(topic, _payload(parts), key, NO_HEADERS if headers is None else headers))


def _payload(parts: Mapping[str, bytes]) -> bytes:
    if "payload" in parts and "payloadBase64" in parts:
        raise BadInput("stands beside payload; give one of them", field="payloadBase64")
    if "payload" in parts:
        loads(parts["payload"])
        return parts["payload"]
    return from_base64(parts["payloadBase64"])


def _described(topic: str, body: bytes, given: str, base: str, headers: Mapping[str, str]) -> NewRecord:
    """One record, told by headers; its payload is the body."""
    told: dict[str, str] = {}
    if "x-mq-headers" in headers:
        told = _header_object(headers["x-mq-headers"])
    if given and base not in (JSON_TYPE, BYTES, FORM):
        told.setdefault(TYPE_HEADER, given)
    return _checked(NewRecord(topic, body, headers.get("x-mq-key"), told or NO_HEADERS))


def _header_object(given: str) -> dict[str, str]:
    try:
        value = loads(given.encode("latin-1"))
    except (BadInput, UnicodeEncodeError):
        value = None
    if not isinstance(value, dict):
        raise BadInput("must be a JSON object of strings", field="X-MQ-Headers")
    return value


def _frames(topic: str, body: bytes) -> list[NewRecord]:
    """Their numbers and times are not kept: the log gives its own."""
    reader = RecordReader()
    found = [NewRecord(one.topic, one.payload, one.key, one.headers) for one in reader.feed(body)]
    if reader.held:
        raise BadInput(f"the last {reader.held} bytes are no whole record", field="body")
    _check_count(len(found))
    for number, one in enumerate(found):
        if one.topic != topic:
            raise BadInput(f"is {one.topic!r}, the path says {topic!r}", field=f"records[{number}].topic")
    return found


def _checked(record: NewRecord) -> NewRecord:
    check_record(record)
    return record
