"""Messages as record frames: ``GET /v1/queues/{queue}/records``, a page at a time, payloads to the byte.

Made for pipelines, which read many. A frame's topic is the queue, its key the message id, its sequence the number in
the store; its headers are the message's card and the envelope's members, texts all of them. The cursor of what follows
is the header ``X-MQ-Cursor``, empty at the end."""

from collections.abc import Iterable
from typing import Any

from yirangmq.core.topics import NewRecord
from yirangmq.doors.http.v1 import shapes
from yirangmq.doors.http.v1.endpoint import Ask, Endpoint
from yirangmq.doors.http.v1.messages import PAGE
from yirangmq.format.delivery import Look
from yirangmq.format.envelope import header_of
from yirangmq.format.json_codec import dumps
from yirangmq.wire.records import encode_batch

TYPE = "application/vnd.yirangmq.records"
CURSOR_HEADER = "x-mq-cursor"


def list_records(ask: Ask) -> None:
    values = ask.values()
    method = "search" if values["filter"] else "peek"
    if method == "peek":
        del values["filter"]
    ask.call(method, values, lambda page: _answer(ask, page))


def _answer(ask: Ask, page: Any) -> None:
    found, cursor = shapes.looks(page)
    ask.respond(frames(found), (("content-type", TYPE), (CURSOR_HEADER, cursor)))


def frames(found: Iterable[Look]) -> bytes:
    """One after another, each with its message's number."""
    parts = []
    for look in found:
        record = NewRecord(look.message.queue, _payload(look), look.message.id, headers_of(look))
        at_ns = look.message.changed_at * 1_000_000
        parts.append(encode_batch([record], look.message.seq, at_ns, {}, synced=False).data)
    return b"".join(parts)


def _payload(look: Look) -> bytes:
    return b"" if look.envelope is None else look.envelope.payload


def headers_of(look: Look) -> dict[str, str]:
    """Those with nothing to say are left out. A member that is no text is its JSON."""
    told: dict[str, Any] = {name: value for name, value in look.card().items() if name not in ("messageId", "queue")}
    if look.envelope is not None:
        told["enqueuedAt"] = look.envelope.published_at
        told |= {name: value for name, value in header_of(look.envelope).items() if name not in ("messageId", "queue")}
        told["isJson"] = look.envelope.is_json
    if look.failure is not None:
        told["reasonMessage"] = look.failure.reason_message
        told["failedAt"] = look.failure.failed_at
    return {
        name: value if isinstance(value, str) else dumps(value).decode()
        for name, value in told.items()
        if value is not None and value != ""
    }


RECORD_ENDPOINTS = (
    Endpoint("GET", "/v1/queues/{queue}/records", "Messages of one state as record frames, without taking them",
             list_records, "messages", "look", {"type": "string", "format": "binary"}, query=PAGE,
             refusals=("bad_filter",), media=TYPE),
)  # fmt: skip
