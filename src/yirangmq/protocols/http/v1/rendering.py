"""Rendering of the native HTTP API: status and shape of errors, records, deliveries and messages as JSON.

The status of an error follows from its code, by one table. Messages and records are encoded directly to bytes: a JSON
payload is embedded with its original text, any other payload as base64."""

import base64
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from yirangmq.core.errors import BadInput, NotActive, QueueError, QuotaExceeded, Retired, StoreBusy
from yirangmq.format.delivery import MessageDelivery, MessageView, failure_document
from yirangmq.format.envelope import as_json, iso
from yirangmq.format.json_codec import dumps, loads
from yirangmq.protocols.http.auth import CHALLENGE, UNKNOWN
from yirangmq.protocols.http.types import Headers, Response
from yirangmq.wire.messages import failed, unpack

# -- errors ------------------------------------------------------------------------------------------------------------

JSON: Headers = (("content-type", "application/json"),)

STATUS_OF: dict[str, int] = {
    "internal_error": 500,
    "bad_input": 400,
    "too_large": 413,
    "packed_body": 415,
    "bad_policy": 400,
    "bad_filter": 400,
    "unfit": 400,
    "hook_failed": 503,
    "payload_damaged": 500,
    "not_found": 404,
    "retired": 410,
    "wrong_state": 409,
    "lease_lost": 409,
    "lease_expired": 409,
    "lease_mismatch": 409,
    "not_allowed": 403,
    "tls_failed": 502,
    "misdirected": 421,
    "unavailable": 503,
    "cannot_listen": 503,
    "replaced": 409,
    "not_active": 503,
    "unreachable": 502,
    "timed_out": 408,
    "quota_exceeded": 429,
    "store_error": 503,
    "store_full": 507,
    "store_read_only": 503,
    "store_damaged": 500,
    "store_too_new": 500,
    "store_busy": 503,
    "wrong_epoch": 409,
    "missing_extra": 501,
}
"""HTTP status by ``QueueError.code``; a test checks that every error is listed."""

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"type": "string", "enum": sorted(STATUS_OF)},
                "message": {"type": "string"},
                "field": {"type": "string", "description": "member or parameter of the request that is wrong"},
                "retryAfterSec": {"type": "number", "description": "seconds after which a retry may succeed"},
                "asked": {"type": "integer", "description": "sequence of a requested record that is no longer kept"},
                "first": {"type": "integer", "description": "first sequence of the log"},
                "active": {
                    "type": "object",
                    "description": "of a standby: name and address of the active node of the pair",
                    "required": ["node", "addresses"],
                    "properties": {
                        "node": {"type": "string"},
                        "addresses": {"type": "array", "items": {"type": "string"}},
                    },
                },
            },
        }
    },
}


def document(error: QueueError) -> dict[str, Any]:
    """Return ``{"code", "message", "field"?, "retryAfterSec"?, "asked"?, "first"?}``.

    The message does not repeat the field."""
    code, text, field = (failure := failed(error)).code, failure.text, failure.field
    about: dict[str, Any] = {"code": code, "message": text}
    if field is not None:
        about["field"] = field
    after = retry_after(error)
    if after is not None:
        about["retryAfterSec"] = after
    if isinstance(error, NotActive) and error.active:
        about["active"] = {"node": error.active, "addresses": error.addresses}
    if isinstance(error, Retired):
        about |= {"asked": error.asked, "first": error.first}
    return about


def retry_after(error: QueueError) -> float | None:
    return error.retry_after if isinstance(error, QuotaExceeded | StoreBusy) else None


def refuse(error: QueueError, status: int | None = None, headers: Headers = ()) -> Response:
    """Return the response for an error. ``status`` overrides the status of the error's code."""
    after = retry_after(error)
    if after is not None:
        headers += (("retry-after", str(max(1, round(after + 0.5)))),)
    if error.code == "not_allowed" and error.field == UNKNOWN:
        status, headers = 401, (*headers, CHALLENGE)
    chosen = STATUS_OF.get(error.code, 500) if status is None else status
    return Response(chosen, dumps({"error": document(error)}), JSON + headers)


# -- records -----------------------------------------------------------------------------------------------------------

SECOND = 1_000_000_000


def shown_record(record: Sequence[Any]) -> bytes:
    """Encode one record, whose members are in the order of ``core.topics.Record``, as JSON."""
    sequence, topic_sequence, at_ns, topic, key, headers, payload = record
    about = {
        "sequence": sequence,
        "topicSequence": topic_sequence,
        "at": iso_ns(at_ns),
        "topic": topic,
        "key": key,
        "headers": dict(headers),
    }
    return b"%s,%s}" % (dumps(about)[:-1], _payload(payload))


def _payload(payload: bytes) -> bytes:
    try:
        loads(payload)
    except BadInput:
        return b'"payloadBase64":"%s"' % base64.b64encode(payload)
    return b'"payload":%s' % payload


def on_one_line(text: bytes) -> bytes:
    """Return the same JSON on one line: a line break in it can only be between values."""
    return text.replace(b"\r", b" ").replace(b"\n", b" ")


def iso_ns(at_ns: int) -> str:
    """Format a time in ns since 1970 as ISO 8601 with nanoseconds."""
    seconds, rest = divmod(at_ns, SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}+00:00"


# -- messages ----------------------------------------------------------------------------------------------------------


def delivery(one: MessageDelivery, ahead: int) -> bytes:
    """Encode a leased message. The wall clock is ``ahead`` ms ahead of store time."""
    message = one.message
    lease = {
        "leaseId": one.lease_id,
        "leaseUntil": iso(message.due_at + ahead),
        "consumerId": message.consumer,
        "attempt": message.attempt,
    }
    return b'{"lease":%s,"message":%s}' % (dumps(lease), as_json(one.envelope))


def decode_views(page: Any) -> tuple[list[MessageView], str]:
    """Decode a page of a named method: its messages and the cursor of the next page."""
    parts, cursor = unpack(page)
    return [MessageView(*one) for one in parts], cursor


def listing(queue: str, found: Iterable[MessageView], cursor: str) -> bytes:
    """Encode a page of messages."""
    messages = b",".join(map(shown, found))
    end = dumps(cursor or None)
    return b'{"queue":%s,"messages":[%s],"cursor":%s}' % (dumps(queue), messages, end)


def shown(view: MessageView) -> bytes:
    """Encode the state of a message, its latest failure and its envelope."""
    return _join_envelope(_message_row(view), view)


def encode_with_history(view: MessageView) -> bytes:
    """Like ``shown``, with the message's history as far as it is stored."""
    return _join_envelope({**_message_row(view), "history": _history(view)}, view)


def _join_envelope(row: dict[str, Any], view: MessageView) -> bytes:
    sent = b"null" if view.envelope is None else as_json(view.envelope)
    return b'%s,"message":%s}' % (dumps(row)[:-1], sent)


def _message_row(view: MessageView) -> dict[str, Any]:
    message, sent = view.message, view.envelope
    return view.row() | {
        "leases": message.leases,
        "publishedAt": None if sent is None else iso(sent.published_at),
        "availableAt": None if sent is None else iso(sent.available_at),
        "expiresAt": iso(message.expires_at) if message.expires_at else None,
        "bytes": None if sent is None else len(sent.payload),
        "dlqQueue": view.rules.dlq.queue,
        "failure": None if view.failure is None else failure_document(view.failure),
    }


def _history(view: MessageView) -> list[dict[str, Any]]:
    """Return the history in order of time. The store keeps the first step, the latest failure and the latest change."""
    message, sent = view.message, view.envelope
    steps: list[dict[str, Any]] = []
    if sent is not None:
        steps.append({"at": iso(sent.published_at), "what": "published"})
        if sent.available_at > sent.published_at:
            steps.append({"at": iso(sent.available_at), "what": "available"})
    if view.failure is not None:
        failed = failure_document(view.failure)
        failed.pop("traceback", None)
        steps.append({"at": failed.pop("failedAt"), "what": "failed", **failed})
    now = {"at": iso(message.changed_at), "what": message.state.value, "attempt": message.attempt}
    if message.consumer:
        now["consumerId"] = message.consumer
    steps.append(now)
    return sorted(steps, key=lambda step: str(step["at"]))
