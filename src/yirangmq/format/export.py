"""Export format: one JSON document per line, written and parsed with a check of every field.

A file has an opening line, a line per queue with its policy, a line per message, and a closing line. Without the
closing line the file is truncated. A message line has the envelope, the state and the latest failure. Sequence numbers
and positions of the old store are left out. ``docs/transfer.md`` documents the format."""

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.message import (
    MAX_TRACEBACK,
    RANK_LAST,
    Envelope,
    Message,
    MessageFailure,
    bounded_failure_text,
    check_reason,
    with_traceback,
)
from yirangmq.core.states import State
from yirangmq.core.validation import Fields
from yirangmq.format.delivery import failure_document
from yirangmq.format.envelope import HeaderMembers, check_header, iso
from yirangmq.format.json_codec import dumps, loads, members

FORMAT = 1
STATES = tuple(state.value for state in State if state is not State.DROPPED)
MAX_INTEGER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ExportOpening:
    """Opening line of an export."""

    exported_at: int


@dataclass(frozen=True, slots=True)
class ExportQueue:
    """Opening line of a queue. ``policy`` is the document as it was set; None if the queue uses the defaults."""

    queue: str
    policy: dict[str, Any] | None
    messages: int


@dataclass(frozen=True, slots=True)
class ExportMessage:
    """Line of a message: its envelope, state and latest failure, without the numbers of the old store."""

    message: Message
    envelope: Envelope
    failure: MessageFailure | None


@dataclass(frozen=True, slots=True)
class ExportClosing:
    """Closing line. An export without it is truncated."""

    messages: int


ExportLine = ExportOpening | ExportQueue | ExportMessage | ExportClosing


# -- writing --------------------------------------------------------------------------------------------------------


def write(line: ExportLine) -> bytes:
    """Format one line, with its line feed."""
    match line:
        case ExportOpening(exported_at):
            return _line({"kind": "export", "format": FORMAT, "exportedAt": iso(exported_at)})
        case ExportQueue(queue, policy, count):
            return _line({"kind": "queue", "queue": queue, "policy": policy, "messages": count})
        case ExportClosing(count):
            return _line({"kind": "end", "messages": count})
        case ExportMessage(message, envelope, failure):
            return _write_message(message, envelope, failure)


def _line(document: dict[str, Any]) -> bytes:
    return dumps(document) + b"\n"


def _write_message(message: Message, envelope: Envelope, failure: MessageFailure | None) -> bytes:
    row = {
        "kind": "message",
        "queue": message.queue,
        "messageId": message.id,
        "state": message.state.value,
        "rank": None if envelope.rank == RANK_LAST else envelope.rank,
        "attempt": message.attempt,
        "leases": message.leases,
        "repeats": message.repeats,
        "changedAt": iso(message.changed_at),
        "dueAt": _or_null(message.due_at),
        "expiresAt": _or_null(message.expires_at),
        "consumerId": message.consumer or None,
        "reasonCode": message.reason or None,
        "failure": None if failure is None else failure_document(failure),
        "sent": {
            "publishedAt": iso(envelope.published_at),
            "availableAt": iso(envelope.available_at),
            "expiresAt": _or_null(envelope.expires_at),
        },
    }
    header = envelope.header or "null"
    return b'%s,"header":%s,%s}\n' % (dumps(row)[:-1], header.encode(), _payload(envelope))


def _payload(envelope: Envelope) -> bytes:
    """Format the payload member.

    JSON is embedded as it is. JSON with a line break or surrounding space becomes a JSON string, so that neither is
    lost. Other bytes become Base64."""
    payload = envelope.payload
    if not envelope.is_json:
        return b'"payloadBase64":"%s"' % base64.b64encode(payload)
    if b"\n" in payload or b"\r" in payload or payload.strip() != payload:
        return b'"payloadText":%s' % dumps(payload.decode())
    return b'"payload":%s' % payload


def _or_null(moment: int) -> str | None:
    return iso(moment) if moment else None


# -- reading --------------------------------------------------------------------------------------------------------


def read(text: bytes) -> ExportLine:
    """Parse one line. Raise ``BadInput`` that names the field if it is malformed."""
    parts = members(text)
    if parts is None:
        raise BadInput("must be a JSON object", field="document")
    kind = loads(parts.pop("kind", b"null"))
    reader = READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise BadInput(f"{kind!r} is not one of {', '.join(READERS)}", field="kind")
    return reader(parts)


def _read_opening(parts: dict[str, bytes]) -> ExportLine:
    fields = _fields(parts)
    version = fields.whole("format", 0, least=1, most=MAX_INTEGER)
    if version > FORMAT:
        raise BadInput(f"{version} is newer than this version knows ({FORMAT}); upgrade yirangmq", field="format")
    opening = ExportOpening(_instant(fields, "exportedAt"))
    fields.done()
    return opening


def _read_queue(parts: dict[str, bytes]) -> ExportLine:
    fields = _fields(parts)
    queue = validation.check_queue(fields.take("queue", None))
    policy = fields.take("policy", None)
    if policy is not None and not isinstance(policy, dict):
        raise BadInput("must be an object or null", field="policy")
    line = ExportQueue(queue, policy, fields.whole("messages", 0, least=0, most=MAX_INTEGER))
    fields.done()
    return line


def _read_closing(parts: dict[str, bytes]) -> ExportLine:
    fields = _fields(parts)
    closing = ExportClosing(fields.whole("messages", -1, least=0, most=MAX_INTEGER))
    fields.done()
    return closing


def _read_message(parts: dict[str, bytes]) -> ExportLine:
    payload, is_json = _take_payload(parts)
    header, facts = _take_header(parts)
    fields = _fields(parts)
    queue = validation.check_queue(fields.take("queue", None))
    id = validation.check_id(fields.take("messageId", None))
    given = fields.take("rank", None if facts.rank == RANK_LAST else facts.rank)
    rank = RANK_LAST if given is None else validation.check_priority(given, "rank") or 0
    sent = fields.inner("sent")
    envelope = Envelope(
        queue,
        id,
        rank,
        _instant(sent, "publishedAt"),
        _instant(sent, "availableAt"),
        _instant(sent, "expiresAt", needed=False),
        facts.key,
        header,
        payload,
        is_json,
        facts.group,
        facts.target,
    )
    sent.done()
    failure = _read_failure(fields)
    message = _read_state(fields, envelope)
    fields.done()
    return ExportMessage(message, envelope, failure)


READERS: dict[str, Callable[[dict[str, bytes]], ExportLine]] = {
    "export": _read_opening,
    "queue": _read_queue,
    "message": _read_message,
    "end": _read_closing,
}


def _read_state(fields: Fields, envelope: Envelope) -> Message:
    """Parse the state of a message. ``seq`` and ``place`` are 0: the importing store assigns them."""
    state = State(fields.choice("state", "", STATES))
    return Message(
        0,
        envelope.queue,
        envelope.id,
        state,
        envelope.rank,
        0,
        fields.whole("attempt", 0, least=0, most=MAX_INTEGER),
        fields.whole("leases", 0, least=0, most=MAX_INTEGER),
        _instant(fields, "dueAt", needed=False),
        _instant(fields, "expiresAt", needed=False),
        _instant(fields, "changedAt"),
        _consumer(fields),
        _reason(fields),
        fields.whole("repeats", 0, least=0, most=MAX_INTEGER),
        True,
        envelope.group,
        envelope.target,
        envelope.size,
    )


def _read_failure(fields: Fields) -> MessageFailure | None:
    given = fields.take("failure", None)
    if given is None:
        return None
    part = Fields(given, fields.name("failure"))
    text = with_traceback(_text(part, "reasonMessage"), _text(part, "traceback"))
    failure = MessageFailure(
        _reason(part),
        bounded_failure_text(text, MAX_TRACEBACK),
        _instant(part, "failedAt"),
        part.whole("attempt", 0, least=0, most=MAX_INTEGER),
        _consumer(part),
    )
    part.done()
    return failure


def _text(part: Fields, key: str) -> str:
    text = part.take(key, "")
    if not isinstance(text, str):
        raise BadInput("must be a string", field=part.name(key))
    return text


def _fields(parts: dict[str, bytes]) -> Fields:
    return Fields({key: loads(raw) for key, raw in parts.items()})


def _instant(fields: Fields, key: str, *, needed: bool = True) -> int:
    given = fields.take(key, None)
    if given is None and not needed:
        return 0
    try:
        moment = datetime.fromisoformat(given if isinstance(given, str) else "")
    except ValueError:
        raise BadInput(f"must be ISO 8601 with an offset, not {given!r}", field=fields.name(key)) from None
    if moment.tzinfo is None:
        raise BadInput(f"has no offset from UTC: {given!r}", field=fields.name(key))
    return round(moment.timestamp() * 1000)


def _consumer(fields: Fields) -> str:
    given = fields.take("consumerId", None)
    return "" if given is None else validation.check_consumer(given, fields.name("consumerId"))


def _reason(fields: Fields) -> str:
    given = fields.take("reasonCode", None)
    return "" if given is None else check_reason(given, fields.name("reasonCode")).value


def _take_header(parts: dict[str, bytes]) -> tuple[str, HeaderMembers]:
    """Return the exact text of the header and the members of it that the broker uses."""
    text = parts.pop("header", b"null")
    header = loads(text)
    if header is None:
        return "", HeaderMembers()
    if not isinstance(header, dict):
        raise BadInput("must be an object or null", field="header")
    return text.decode(), check_header(header)


def _take_payload(parts: dict[str, bytes]) -> tuple[bytes, bool]:
    given = [key for key in ("payload", "payloadText", "payloadBase64") if key in parts]
    if len(given) != 1:
        raise BadInput("give one of payload, payloadText and payloadBase64", field="payload")
    raw = parts.pop(given[0])
    if given == ["payload"]:
        return raw, True
    text = loads(raw)
    if not isinstance(text, str):
        raise BadInput("must be a string", field=given[0])
    try:
        if given == ["payloadText"]:
            loads(text.encode())
            return text.encode(), True
        return base64.b64decode(text, validate=True), False
    except (BadInput, binascii.Error, ValueError) as error:
        says = "JSON text" if given == ["payloadText"] else "Base64"
        raise BadInput(f"is not {says}: {error}", field=given[0]) from None
