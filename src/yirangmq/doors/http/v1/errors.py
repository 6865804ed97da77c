"""The one table from an error's code to the status of its answer, and the one shape that errors have here."""

from typing import Any

from yirangmq.core.errors import NotActive, QueueError, QuotaExceeded, Retired, StoreBusy
from yirangmq.doors.http.exchange import Headers, Response
from yirangmq.doors.http.guard import CHALLENGE, UNKNOWN
from yirangmq.format.json_codec import dumps
from yirangmq.wire.messages import failed

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
"""From ``QueueError.code``; a test sees that every error has its line."""

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
                "field": {"type": "string", "description": "which part of the request is at fault"},
                "retryAfterSec": {"type": "number", "description": "asking again after so long may help"},
                "asked": {"type": "integer", "description": "of a record that is no longer kept: its sequence …"},
                "first": {"type": "integer", "description": "… and the one that the log begins with now"},
                "active": {
                    "type": "object",
                    "description": "of a standby: the active node of the pair, and where clients reach it",
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
    """``{"code", "message", "field"?, "retryAfterSec"?, "asked"?, "first"?}``, the field not repeated."""
    code, text, field = (told := failed(error)).code, told.text, told.field
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
    """``status``, where HTTP has one that says more than the code's."""
    after = retry_after(error)
    if after is not None:
        headers += (("retry-after", str(max(1, round(after + 0.5)))),)
    if error.code == "not_allowed" and error.field == UNKNOWN:
        status, headers = 401, (*headers, CHALLENGE)
    chosen = STATUS_OF.get(error.code, 500) if status is None else status
    return Response(chosen, dumps({"error": document(error)}), JSON + headers)
