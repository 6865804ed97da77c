"""Publish endpoint, ``POST /v1/queues/{queue}/messages``, and the formats of its body.

A body is one envelope, an array or lines of envelopes, a bare payload, CloudEvents, or any bytes described by ``X-MQ-``
headers. Content type and headers select the format. Errors name the invalid message, as ``messages[N]``.

An invalid message refuses its whole call, and no message of the call is stored. Calls that arrive together are
coalesced into one operation if no client can observe it: if they fail together, or the queue has a quota, they are
stored one by one."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from yirangmq.broker.operations import QueueOperations
from yirangmq.broker.settle import MAX_PER_CALL
from yirangmq.core.errors import BadInput, QueueError, StoreError
from yirangmq.core.message import Envelope
from yirangmq.core.ports import AddResult, Ids, Transaction
from yirangmq.format import cloudevents
from yirangmq.format.envelope import (
    JSON_TYPE,
    READ_AS,
    NewMessage,
    build,
    is_envelope,
    members_of,
    read_members,
)
from yirangmq.format.json_codec import loads
from yirangmq.protocols.http.server import RequestCoalescer
from yirangmq.protocols.http.types import Request, new_response
from yirangmq.protocols.http.v1.endpoint import (
    BATCH_TYPE,
    CONSUMER_ID,
    EVENT_TYPE,
    MESSAGE_ID,
    BodyContent,
    Endpoint,
    EndpointCall,
    Field,
    choice,
    parsed,
    read,
    seconds,
    text,
    whole,
)
from yirangmq.protocols.http.v1.rendering import JSON
from yirangmq.protocols.http.v1.schemas import COUNT, TEXT, items, ref, struct

# -- bodies to envelopes -----------------------------------------------------------------------------------------------

LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
FORM = "application/x-www-form-urlencoded"
"""Content type that curl sends with ``--data`` by default."""
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode

SHORT = text(255, 1)
HEADERS = (
    Field("X-MQ-Message-Id", MESSAGE_ID, "id of the message", key="id"),
    Field(
        "X-MQ-Priority",
        whole(0, 2**53 - 1),
        "priority: 0 is first, larger numbers later, no priority last",
        key="priority",
    ),
    Field("X-MQ-Delay", seconds(), "delay in seconds until the message may be leased", key="delay"),
    Field("X-MQ-Ttl", seconds(0.001), "seconds after which the message expires", key="ttl"),
    Field("X-MQ-Type", SHORT, "type of the message", key="type"),
    Field("X-MQ-Version", whole(0, 2**53 - 1), "version of the type", key="version"),
    Field("X-MQ-Attributes", text(), "attributes: a JSON object", key="attributes"),
    Field("X-MQ-Trace-Id", SHORT, "id of the trace", key="trace_id"),
    Field(
        "X-MQ-Deduplication-Key",
        SHORT,
        "deduplication key: a second message with this key is not stored",
        key="deduplication_key",
    ),
    Field(
        "X-MQ-Group-Id",
        SHORT,
        "id of the group: messages of a group are delivered one at a time, in order",
        key="group",
    ),
    Field("X-MQ-Target-Consumer-Id", CONSUMER_ID, "only this consumer may lease the message", key="target"),
)
"""With any of these headers, the body is the payload of one message, regardless of its content type."""
_names = {field.name.lower(): field.name for field in HEADERS}


class BodyParser(NamedTuple):
    """Parser of a request body to envelopes, with the values that all its messages share.

    ``delay`` and ``ttl`` are in seconds. ``read_as`` says what JSON documents are; None: ``is_envelope`` decides."""

    queue: str
    now: int
    ids: Ids
    delay: float
    ttl: float | None
    read_as: str | None

    def envelopes(self, request: Request) -> list[Envelope]:
        """Return the checked envelopes in order. ``BadInput`` names the offending field and message."""
        headers = request.headers
        given = headers.get("content-type", "")
        base = given.partition(";")[0].strip().lower()
        if not _names.keys().isdisjoint(headers):
            return [self._described(request.body, given, base, headers)]
        if base == JSON_TYPE or (base == FORM and request.body[:1] in (b"{", b"[")):
            return self._documents(request.body)
        if base in LINES:
            return self._each([line for line in request.body.splitlines() if line.strip()], self._document)
        if base == EVENT_TYPE:
            return [self._event(request.body, "")]
        if base == BATCH_TYPE:
            return self._each(elements(request.body), self._event)
        if "ce-specversion" in headers:
            return [self._binary_event(request.body, given, headers)]
        if not given and not request.body:
            raise BadInput("is empty: send a message", field="body")
        return [self._described(request.body, given, base, {})]

    # -- JSON -----------------------------------------------------------------------------------------------------

    def _documents(self, body: bytes) -> list[Envelope]:
        if body.lstrip()[:1] != b"[":
            return [self._document(body, self.ids.new(1)[0])]
        return self._each(elements(body), self._document)

    def _each(self, texts: list[bytes], make: Callable[[bytes, str], Envelope]) -> list[Envelope]:
        if not 0 < len(texts) <= MAX_PER_CALL:
            raise BadInput(f"from 1 to {MAX_PER_CALL} in one call, not {len(texts)}", field="messages")
        made: list[Envelope] = []
        try:
            for one, id in zip(texts, self.ids.new(len(texts)), strict=True):
                made.append(make(one, id))
        except QueueError as error:
            raise _with_position(error, len(made)) from None
        return made

    def _document(self, one: bytes, id: str) -> Envelope:
        """Parse an envelope or a bare payload.

        An envelope may also have ``delaySec`` and ``ttlSec``, which apply to the publish and are not stored."""
        parts = members_of(one)
        is_payload = self.read_as is None and (parts is None or "messageId" not in parts)
        if is_payload or not is_envelope(parts, self.read_as) or parts is None:
            return read_members(self.queue, one, None, id, self.now, self.delay, self.ttl)
        delay = _seconds(parts.pop("delaySec", None), "delaySec", self.delay) or 0
        ttl = _seconds(parts.pop("ttlSec", None), "ttlSec", self.ttl)
        return read_members(self.queue, one, parts, id, self.now, delay, ttl)

    # -- any bytes ------------------------------------------------------------------------------------------------

    def _described(self, body: bytes, given: str, base: str, headers: Mapping[str, str]) -> Envelope:
        """Build one message from the body and the envelope members in the headers."""
        texts = {_names[name]: value for name, value in headers.items() if name in _names}
        values = read(HEADERS, parsed(HEADERS, texts))
        attributes = values.pop("attributes", None)
        if attributes is not None:
            values["attributes"] = _attributes(attributes)
        values.setdefault("delay", self.delay)
        values.setdefault("ttl", self.ttl)
        content_type = JSON_TYPE if base == JSON_TYPE else given or None
        new = NewMessage(payload=body, content_type=content_type, **values)
        return build(self.queue, new, self.ids.new(1)[0], self.now)

    # -- events ---------------------------------------------------------------------------------------------------

    def _event(self, one: bytes, id: str) -> Envelope:
        return cloudevents.read(self.queue, one, self.now, self.delay, self.ttl)

    def _binary_event(self, body: bytes, given: str, headers: Mapping[str, str]) -> Envelope:
        attributes = {name[3:]: unquote(value) for name, value in headers.items() if name.startswith("ce-")}
        return cloudevents.read_binary(self.queue, attributes, given or None, body, self.now, self.delay, self.ttl)


def elements(body: bytes) -> list[bytes]:
    """Return the elements of a JSON array, each as its original text."""
    try:
        body.decode()  # the decoder does not check UTF-8 inside raw elements
        return [bytes(one) for one in _elements(body)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"must be a JSON array: {error}", field="body") from None


def _seconds(raw: bytes | None, field: str, default: float | None) -> float | None:
    if raw is None:
        return default
    value: float = seconds().check(loads(raw), field)
    return value


def _attributes(given: str) -> dict[str, Any]:
    try:
        value = loads(given.encode())
    except BadInput:
        value = None
    if not isinstance(value, dict):
        raise BadInput("must be a JSON object", field="X-MQ-Attributes")
    return value


def _with_position(error: QueueError, number: int) -> QueueError:
    where = f"messages[{number}]"
    words = str(error).removeprefix(f"{error.field}: ") if error.field else str(error)
    return type(error)(words, field=f"{where}.{error.field}" if error.field else where)


# -- endpoint ----------------------------------------------------------------------------------------------------------


class PublishEndpoint:
    """Publish endpoint with request coalescing: calls of one loop iteration are stored in one operation.

    Every call gets the same answer as if it had been stored separately. Loop thread only."""

    def __init__(self, operations: QueueOperations, coalescer: RequestCoalescer) -> None:
        self._operations = operations
        self._coalescer = coalescer
        self._work = self._store_all

    def publish(self, call: EndpointCall) -> None:
        """Publish the messages of a call. An invalid message refuses the whole call; then none is stored."""
        context = call.context
        context.check_capacity()
        given = call.query() if call.request.query else {}
        times = given.get("delay", 0), given.get("ttl")
        queue = call.path["queue"]
        parser = BodyParser(queue, context.clock.now_ms(), context.ids, *times, given.get("read_as"))
        self._coalescer.call(call, queue, parser.envelopes(call.request), self._work, answer)

    def _store_all(
        self, transaction: Transaction, queue: str, calls: Sequence[list[Envelope]]
    ) -> Sequence[list[AddResult] | QueueError]:
        if len(calls) > 1:
            self._operations.admission.clear(transaction, queue, [one for call in calls for one in call])
        if len(calls) > 1 and not transaction.policy(queue).quota.is_set:  # a quota may accept only some calls
            try:
                stored = iter(self._operations.publish(transaction, queue, [one for call in calls for one in call]))
                return [list(islice(stored, len(call))) for call in calls]
            except StoreError:
                raise
            except QueueError:
                pass  # one of the calls failed: store each one separately
        answers: list[list[AddResult] | QueueError] = []
        for call in calls:
            try:
                answers.append(self._operations.publish(transaction, queue, call))
            except StoreError:
                raise
            except QueueError as error:
                answers.append(error)
        return answers

    def endpoints(self, max_body: int) -> tuple[Endpoint, ...]:
        return (
            Endpoint("POST", "/v1/queues/{queue}/messages", "Publish one message or many", self.publish, "messages",
                     "publish", ANSWER, query=QUERY, content=BODY, headers=HEADERS, max_body=max_body,
                     is_coalesced=True, refusals=("quota_exceeded", "store_full")),
        )  # fmt: skip


def answer(call: EndpointCall, stored: list[AddResult]) -> None:
    """Answer with a receipt for each message, in order."""
    queue = call.path["queue"]
    if len(stored) == 1 and not stored[0].duplicate and not stored[0].refused:
        body = ONE_STORED % (queue.encode(), stored[0].id.encode())
        call.exchange.answer(new_response((200, body, JSON, None)))
        return
    receipts = [_receipt(id, is_duplicate, refused) for _, id, is_duplicate, refused in stored]
    duplicates = sum(one["duplicate"] for one in receipts)
    refused = sum("refused" in one for one in receipts)
    counted = {"stored": len(stored) - duplicates - refused, "duplicates": duplicates, "refused": refused}
    call.reply({"queue": queue, **counted, "messages": receipts})


def _receipt(id: str, is_duplicate: bool, refused: str) -> dict[str, Any]:
    receipt: dict[str, Any] = {"messageId": id, "duplicate": is_duplicate}
    return {**receipt, "refused": refused} if refused else receipt


ONE_STORED = b'{"queue":"%b","stored":1,"duplicates":0,"refused":0,"messages":[{"messageId":"%b","duplicate":false}]}'
"""Answer for one message. Names of queues and ids of messages have no character that JSON escapes."""
DOCUMENT_AS = Field(
    "as",
    choice(*READ_AS),
    "what each JSON document is; by default a document with messageId and payload is an envelope, any other a payload",
    key="read_as",
)
QUERY = (
    Field("delaySec", seconds(), "delay in seconds until the messages may be leased", key="delay"),
    Field("ttlSec", seconds(0.001), "seconds after which the messages expire", key="ttl"),
    DOCUMENT_AS,
)
EVENT = {
    "type": "object",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "minLength": 1, "maxLength": cloudevents.MAX_TEXT},
        "source": {"type": "string", "minLength": 1, "maxLength": cloudevents.MAX_TEXT},
        "type": {"type": "string", "minLength": 1, "maxLength": 255},
        "time": {"type": "string", "format": "date-time"},
        "subject": {"type": "string", "minLength": 1},
        "dataschema": {"type": "string", "minLength": 1},
        "datacontenttype": {"type": "string", "minLength": 1, "maxLength": 255},
        "data": {},
        "data_base64": {"type": "string", "contentEncoding": "base64", "pattern": "^[A-Za-z0-9+/]*={0,2}$"},
    },
    "propertyNames": {"pattern": "^([a-z0-9]{1,20}|data_base64)$"},
    "additionalProperties": {"type": ["string", "boolean", "integer", "null"]},
}
"""Schema of a CloudEvent. Further members are extension attributes."""
BODY = BodyContent(
    {
        "application/json": {
            "description": "an envelope (messageId and payload), a bare payload, or an array of them",
            "anyOf": [
                {"type": "array", "minItems": 1, "maxItems": MAX_PER_CALL},
                {"type": ["object", "string", "number", "boolean", "null"]},
            ],
        },
        "application/x-ndjson": {"type": "string", "description": "an envelope or a bare payload per line"},
        EVENT_TYPE: {**EVENT, "description": "a CloudEvent"},
        BATCH_TYPE: {**items(EVENT), "description": "CloudEvents"},
        "*/*": {"description": "any bytes: the payload of one message"},
    },
    "messages to publish",
)
ANSWER = struct(queue=TEXT, stored=COUNT, duplicates=COUNT, refused=COUNT, messages=items(ref("Receipt")))
