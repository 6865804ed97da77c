"""Endpoints of topics: publishing records, topics and subscribers, and reading by range; below ``/v1/topics``.

A body has one record or more: a JSON object with a payload, an array or lines of such objects, a bare payload, record
frames, or any bytes. All records of a call are stored or none, and they are on disk when it is answered. The log
assigns sequences and times; those in record frames are ignored."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from yirangmq.core.errors import BadInput, NotFound, QueueError
from yirangmq.core.topic_filter import MAX_PATTERNS
from yirangmq.core.topics import MAX_SEQUENCE, NO_HEADERS, NewRecord
from yirangmq.format.envelope import JSON_TYPE
from yirangmq.format.json_codec import dumps, loads, members
from yirangmq.format.topic_record import from_base64
from yirangmq.protocols.http.types import Request
from yirangmq.protocols.http.v1.endpoint import (
    LIMIT,
    BodyContent,
    Endpoint,
    EndpointCall,
    Field,
    ValueType,
    text,
    whole,
)
from yirangmq.protocols.http.v1.log import check_start, log_of, topics_of
from yirangmq.protocols.http.v1.publish import FORM, LINES, elements
from yirangmq.protocols.http.v1.rendering import iso_ns, shown_record
from yirangmq.protocols.http.v1.schemas import COUNT, INSTANT, TEXT, items, ref, some, struct
from yirangmq.topics.live import PublishResult
from yirangmq.topics.ports import MAX_PER_PUBLISH
from yirangmq.wire.records import MAX_PART, RecordReader, check_record

# -- bodies to records -------------------------------------------------------------------------------------------------

FRAMES = "application/vnd.yirangmq.records"
BYTES = "application/octet-stream"
TYPE_HEADER = "content-type"
"""Record header with the content type of the body, if that is neither JSON nor plain bytes."""
HEADERS = (
    Field("X-MQ-Key", text(MAX_PART), "key of the record, if the body is one payload"),
    Field("X-MQ-Headers", text(MAX_PART), "headers of the record: a JSON object of strings"),
)
_named = frozenset(field.name.lower() for field in HEADERS)
_known = frozenset({"payload", "payloadBase64", "key", "headers"})


def read_records(topic: str, request: Request) -> list[NewRecord]:
    """Return the checked records of a body in order. ``BadInput`` names the offending field and record."""
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
    if not 0 < count <= MAX_PER_PUBLISH:
        raise BadInput(f"from 1 to {MAX_PER_PUBLISH} in one call, not {count}", field="records")


def _document(topic: str, one: bytes) -> NewRecord:
    """Parse one JSON document. An object with a payload is a record; any other document is a bare payload.

    The payload is stored with its original bytes."""
    try:
        parts = members(one)
        if parts is None or ("payload" not in parts and "payloadBase64" not in parts):
            loads(one)
            return _check_new_record(NewRecord(topic, one.strip()))
    except BadInput as error:
        raise BadInput(str(error), field="body") from None
    for name in sorted(parts.keys() - _known):
        raise BadInput(f"is not a member of a record; known: {', '.join(sorted(_known))}", field=name)
    key = loads(parts["key"]) if "key" in parts else None
    headers = loads(parts["headers"]) if "headers" in parts else None
    return _check_new_record(NewRecord(topic, _payload(parts), key, NO_HEADERS if headers is None else headers))


def _payload(parts: Mapping[str, bytes]) -> bytes:
    if "payload" in parts and "payloadBase64" in parts:
        raise BadInput("is given together with payload; give only one", field="payloadBase64")
    if "payload" in parts:
        loads(parts["payload"])
        return parts["payload"]
    return from_base64(parts["payloadBase64"])


def _described(topic: str, body: bytes, given: str, base: str, headers: Mapping[str, str]) -> NewRecord:
    """Build one record with the body as payload; key and headers come from the request headers."""
    header_values: dict[str, str] = {}
    if "x-mq-headers" in headers:
        header_values = _header_object(headers["x-mq-headers"])
    if given and base not in (JSON_TYPE, BYTES, FORM):
        header_values.setdefault(TYPE_HEADER, given)
    return _check_new_record(NewRecord(topic, body, headers.get("x-mq-key"), header_values or NO_HEADERS))


def _header_object(given: str) -> dict[str, str]:
    try:
        value = loads(given.encode("latin-1"))
    except (BadInput, UnicodeEncodeError):
        value = None
    if not isinstance(value, dict):
        raise BadInput("must be a JSON object of strings", field="X-MQ-Headers")
    return value


def _frames(topic: str, body: bytes) -> list[NewRecord]:
    """Parse record frames. Their sequences and times are ignored: the log assigns its own."""
    reader = RecordReader()
    found = [NewRecord(one.topic, one.payload, one.key, one.headers) for one in reader.feed(body)]
    if reader.held:
        raise BadInput(f"the last {reader.held} bytes are not a complete record", field="body")
    _check_count(len(found))
    for number, one in enumerate(found):
        if one.topic != topic:
            raise BadInput(f"is {one.topic!r}, but the path has {topic!r}", field=f"records[{number}].topic")
    return found


def _check_new_record(record: NewRecord) -> NewRecord:
    check_record(record)
    return record


# -- endpoints ---------------------------------------------------------------------------------------------------------

MILLISECOND = 1_000_000


def publish(call: EndpointCall) -> None:
    """Publish all records of a call or none. They are on disk when the call is answered."""
    topics = topics_of(call)
    call.context.check_capacity()
    topic = call.path["topic"]
    records = read_records(topic, call.request)
    topics.publish(records, call.done_callback(partial(_stored, call, topic, len(records))))


def _stored(call: EndpointCall, topic: str, count: int, stored: PublishResult | None) -> None:
    assert stored is not None
    call.reply(
        {
            "topic": topic,
            "epoch": stored.epoch,
            "first": stored.first,
            "last": stored.last,
            "topicSequence": stored.topics[topic],
            "stored": count,
            "at": iso_ns(stored.at_ns),
        }
    )


# -- reading -----------------------------------------------------------------------------------------------------------


def list_topics(call: EndpointCall) -> None:
    topics_of(call)
    may_see = call.may_see()
    call.call("topics", {}, lambda found: call.reply(_without_log(found, may_see)))


def _without_log(found: dict[str, Any], may_see: Callable[[str], bool]) -> dict[str, Any]:
    return {
        "state": found["state"],
        "epoch": found.get("epoch"),
        "first": found.get("first", 1),
        "last": found.get("last", 0),
        "gaps": found.get("gaps", []),
        "topics": [row for row in found["topics"] if may_see(row["topic"])],
    }


def list_subscribers(call: EndpointCall) -> None:
    topics_of(call)
    call.call("topic_subscribers", {}, lambda rows: call.reply({"subscribers": rows}))


def show_topic(call: EndpointCall) -> None:
    topics_of(call)
    topic = call.path["topic"]

    def reply(found: dict[str, Any]) -> None:
        for row in found["topics"]:
            if row["topic"] == topic:
                call.reply(row)
                return
        raise NotFound(f"there is no topic {topic!r}", field="topic")

    call.call("topics", {}, reply)


def read_page(call: EndpointCall) -> None:
    """Return a page of records of one topic, from a sequence or a time on. ``next`` is the start of the next page."""
    query = call.query()
    topic, start_values = call.path["topic"], start_of(query)
    log = log_of(call)
    if "start" in start_values:
        check_start(log, start_values["start"])
    given = {"topics": [topic], "limit": query["limit"]} | start_values

    def reply(page: dict[str, Any]) -> None:
        about = {"topic": topic, **{name: page[name] for name in ("epoch", "first", "last", "next")}}
        records = b",".join(shown_record(one) for one in page["records"])
        call.respond(b'%s,"records":[%s]}' % (dumps(about)[:-1], records))

    call.call("topic_read", given, reply)


def start_of(query: dict[str, Any]) -> dict[str, int]:
    """Return the start of a range as arguments of the named methods: ``start``, ``at_ns``, or none."""
    if "fromSeq" in query and "fromTime" in query:
        raise BadInput("is given together with fromSeq; give only one", field="fromTime")
    if "fromTime" in query:
        return {"at_ns": query["fromTime"]}
    return {"start": query["fromSeq"]} if "fromSeq" in query else {}


# -- declarations -----------------------------------------------------------------------------------------------------


def _check_instant(value: object, field: str) -> int:
    """Convert milliseconds since 1970 or an ISO 8601 time to ns since 1970. A time without a zone is UTC."""
    if isinstance(value, int):
        return whole(0, MAX_SEQUENCE // MILLISECOND).check(value, field) * MILLISECOND  # type: ignore[no-any-return]
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        raise BadInput(f"must be a time such as 2026-01-13T09:21:00Z, not {str(value)[:60]!r}", field=field) from None
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
    return max(0, since // timedelta(microseconds=1)) * 1000


def _parse_instant(written: str, field: str) -> object:
    return int(written) if written.isascii() and written.isdecimal() and len(written) < 20 else written


INSTANT_KIND = ValueType(
    {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_SEQUENCE // MILLISECOND},
               {"type": "string", "format": "date-time"}]}, _check_instant, _parse_instant,
)  # fmt: skip
FROM_SEQUENCE = Field("fromSeq", whole(1, MAX_SEQUENCE), "sequence in the log of the first record")
FROM_TIME = Field("fromTime", INSTANT_KIND, "time of the first record: milliseconds since 1970 or ISO 8601")
TOPICS = Field("topics", text(16_000), f"names and patterns, separated by commas; up to {MAX_PATTERNS} patterns")
BODY = BodyContent(
    {
        "application/json": {
            "description": "a record, a bare payload, or an array of them",
            "anyOf": [
                {"type": "array", "minItems": 1, "maxItems": MAX_PER_PUBLISH},
                {"type": ["object", "string", "number", "boolean", "null"]},
            ],
        },
        "application/x-ndjson": {"type": "string", "description": "a record or a bare payload per line"},
        FRAMES: {"type": "string", "format": "binary", "description": "record frames (docs/log.md)"},
        "*/*": {"description": "any bytes: the payload of one record"},
    },
    "messages to publish",
)
ONE = "/v1/topics/{topic}"
REFUSALS = ("not_found", "store_error", "store_damaged")
SUBSCRIBER = struct(
    ("confirmed", "sent", "recoveries", "peer", "heardAt", "epoch"),
    subscriber=TEXT, name=TEXT, state=TEXT, filter=TEXT, sequence=COUNT, confirmed=some(COUNT), lag=COUNT, sent=COUNT,
    recoveries=COUNT, peer=TEXT, heardAt=INSTANT, epoch=TEXT,
)  # fmt: skip
PUBLISHED = struct(topic=TEXT, epoch=TEXT, first=COUNT, last=COUNT, topicSequence=COUNT, stored=COUNT, at=INSTANT)
PAGE = struct(topic=TEXT, epoch=TEXT, first=COUNT, last=COUNT, next=COUNT, records=items(ref("Record")))


def endpoints(max_body: int) -> tuple[Endpoint, ...]:
    return (
        Endpoint("GET", "/v1/topics", "List topics with their counts", list_topics, "topics", "list",
                 struct(("epoch",), state=TEXT, first=COUNT, last=COUNT, gaps=items(items(COUNT)),
                       topics=items(ref("Topic"))), refusals=REFUSALS, is_filtered=True),
        Endpoint("GET", "/v1/subscribers", "List subscribers, durable ones that are offline included",
                 list_subscribers, "topics", "look", struct(subscribers=items(SUBSCRIBER)), refusals=("not_found",)),
        Endpoint("GET", ONE, "Show a topic", show_topic, "topics", "list", ref("Topic"), refusals=REFUSALS),
        Endpoint("POST", f"{ONE}/records", "Publish one record or many", publish, "topics", "publish", PUBLISHED,
                 content=BODY, headers=HEADERS, max_body=max_body, refusals=(*REFUSALS, "store_full")),
        Endpoint("GET", f"{ONE}/records", "List records of a topic", read_page, "topics", "follow", PAGE,
                 query=(FROM_SEQUENCE, FROM_TIME, LIMIT), refusals=(*REFUSALS, "retired")),
    )  # fmt: skip
