"""Content of a message file: the envelope as one JSON document, plus a member ``yirangmq`` for the store.

The file is readable with ``cat``. The member ``yirangmq`` holds the additional facts needed to return exactly what was
sent. A file that was dropped into the inbox is kept unchanged, without that member. A content is never changed in
place: new content is written to a new file.

This module also encodes failure files and the lines of ``results.jsonl``."""

import base64
import binascii
from typing import Any, NamedTuple

from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import RANK_LAST, Envelope, Message, MessageFailure, Reason, with_traceback
from yirangmq.format.delivery import failure_document
from yirangmq.format.envelope import iso, read
from yirangmq.format.json_codec import dumps, loads, members
from yirangmq.stores.files.names import OMITTED, FileRow

STORE_MEMBER = "yirangmq"
"""Name of the store's member. If a producer's envelope has a member of this name, its whole header is kept inside the
store's member."""
FORMAT = 1
_SPACE = b" \t\n\r"
_PARSED_MEMBERS = ('"timestamp"', '"deduplicationKey"', f'"{STORE_MEMBER}"')
"""A header that contains none of these texts has none of these members, so it is not parsed."""
_NOT_HEADER = frozenset({"messageId", "queue", "payload", "payloadBase64", STORE_MEMBER})


class UnreadableContent(Exception):
    """The bytes on disk are neither a message written by the store nor a valid dropped file; the text says why."""


def write_envelope(envelope: Envelope) -> bytes:
    queue, id, _, published, _, _, key, header, payload, is_json, *_ = envelope
    own = _own(envelope)
    given = loads(header.encode()) if any(name in header for name in _PARSED_MEMBERS) else {}
    if key != given.get("deduplicationKey"):
        own["deduplicationKey"] = key
    if STORE_MEMBER in given:
        own["header"], given, header = header, {}, ""
    stamp = "" if "timestamp" in given else f',"timestamp":"{iso(published)}"'
    rest = f",{header[1:-1]}" if len(header) > 2 else ""
    head = f'{{"messageId":"{id}"{stamp},"queue":"{queue}"{rest}'.encode()
    if not is_json:
        return b'%s,"payloadBase64":"%s","%s":%s}\n' % (
            head,
            base64.b64encode(payload),
            STORE_MEMBER.encode(),
            dumps(own),
        )
    if payload.strip(_SPACE) != payload:
        inner = payload.strip(_SPACE)
        begin = payload.index(inner)
        own["around"] = [payload[:begin].decode(), payload[begin + len(inner) :].decode()]
    return b'%s,"payload":%s,"%s":%s}\n' % (head, payload, STORE_MEMBER.encode(), dumps(own))


def _own(envelope: Envelope) -> dict[str, Any]:
    """Return the store's member: facts missing in the envelope, and fields that a long file name omits."""
    own = {"format": FORMAT, "publishedAt": envelope.published_at}
    if envelope.available_at != envelope.published_at:
        own["availableAt"] = envelope.available_at
    if envelope.expires_at:
        own["expiresAt"] = envelope.expires_at
    if envelope.rank != RANK_LAST:
        own["rank"] = envelope.rank
    if envelope.group:
        own["group"] = envelope.group
    if envelope.target:
        own["target"] = envelope.target
    return own


def read_envelope(text: bytes, message: Message, written_at: int) -> Envelope:
    """Return the envelope as it was sent. Raise ``UnreadableContent`` if the bytes are damaged.

    ``written_at``: modification time of the file in ms, the only known time of a dropped file."""
    try:
        parts = members(text)
        if parts is None or STORE_MEMBER not in parts:
            return read_dropped(text, message.queue, message.id, written_at)._replace(
                rank=message.rank, expires_at=message.expires_at, group=message.group, target=message.target
            )
        return _from_parts(parts, message)
    except QueueError as error:
        raise UnreadableContent(str(error)) from None


def _from_parts(parts: dict[str, bytes], message: Message) -> Envelope:
    own = loads(parts[STORE_MEMBER])
    if not isinstance(own, dict) or own.get("format") != FORMAT or not isinstance(own.get("publishedAt"), int):
        raise UnreadableContent(f"its member {STORE_MEMBER!r} is not ours")
    if loads(parts.get("messageId", b"null")) != message.id:
        raise UnreadableContent(f"it contains another message than {message.id!r}")
    header = own.get("header") or _header(parts)
    key = own["deduplicationKey"] if "deduplicationKey" in own else _plain_key(parts)
    payload, is_json = _payload(parts, own)
    published: int = own["publishedAt"]
    return Envelope(
        message.queue,
        message.id,
        message.rank,
        published,
        own.get("availableAt", published),
        own.get("expiresAt", 0),
        key,
        header,
        payload,
        is_json,
        message.group,
        message.target,
    )


def fill_from_content(row: FileRow, text: bytes) -> FileRow | None:
    """Fill in the fields of a card that its name leaves to the content (``is_vague``).

    If the content is unreadable, return the card with size 0, or None if the name omits more than the size."""
    message = row.message
    is_short = message.group == OMITTED
    try:
        size = read_envelope(text, message, 0).size
        rank, group, target = _lasting(text, message) if is_short else (message.rank, message.group, message.target)
    except (UnreadableContent, QueueError):
        return None if is_short else row._replace(message=message._replace(size=0))
    return row._replace(message=message._replace(rank=rank, group=group, target=target, size=size))


def _lasting(text: bytes, message: Message) -> tuple[int, int, int]:
    """Return rank, group and target as the store wrote them, or as given in a dropped file."""
    parts = members(text)
    if parts is not None and STORE_MEMBER in parts:
        own = loads(parts[STORE_MEMBER])
        return own.get("rank", RANK_LAST), own.get("group", 0), own.get("target", 0)
    sent = read_dropped(text, message.queue, message.id, 0)
    return sent.rank, sent.group, sent.target


def _header(parts: dict[str, bytes]) -> str:
    """Return the header members as given. A timestamp before ``queue`` was added by the store and is removed."""
    names = list(parts)
    ours = "timestamp" in parts and "queue" in parts and names.index("timestamp") < names.index("queue")
    kept = [b"%s:%s" % (dumps(name), raw) for name, raw in parts.items() if name not in _NOT_HEADER]
    if ours:
        kept = kept[1:]
    return (b"{%s}" % b",".join(kept)).decode() if kept else ""


def _plain_key(parts: dict[str, bytes]) -> str | None:
    key: str | None = loads(parts["deduplicationKey"]) if "deduplicationKey" in parts else None
    return key


def _payload(parts: dict[str, bytes], own: dict[str, Any]) -> tuple[bytes, bool]:
    if "payload" in parts:
        before, after = own.get("around", ("", ""))
        return before.encode() + parts["payload"] + after.encode(), True
    try:
        return base64.b64decode(loads(parts["payloadBase64"]), validate=True), False
    except (KeyError, TypeError, binascii.Error) as error:
        raise UnreadableContent(f"its payload cannot be read: {error}") from None


def read_dropped(text: bytes, queue: str, fallback_id: str, written_at: int) -> Envelope:
    """Parse a dropped file: an envelope, a bare payload, or a message file of the store that was put back by hand."""
    parts = members(text)
    if parts is None or STORE_MEMBER not in parts or "messageId" not in parts:
        return read(queue, text, fallback_id, written_at)
    own = loads(parts.pop(STORE_MEMBER))
    if isinstance(own, dict) and "header" in own:
        raise BadInput(
            f"an envelope that has the member {STORE_MEMBER!r} itself cannot be moved back by hand",
            field=STORE_MEMBER,
        )
    text = b"{%s}" % b",".join(b"%s:%s" % (dumps(name), raw) for name, raw in parts.items())
    envelope = read(queue, text, fallback_id, written_at)
    published = own.get("publishedAt") if isinstance(own, dict) else None
    return envelope._replace(published_at=published, available_at=published) if isinstance(published, int) else envelope


class FailureOrigin(NamedTuple):
    """Facts for a failure file besides the failure: message id, source queue and dead-letter queue."""

    message_id: str
    source: str
    dead_letters: str


def write_failure(failure: MessageFailure, origin: FailureOrigin) -> bytes:
    why = failure_document(failure)
    routing = {"sourceQueue": origin.source, "dlqQueue": origin.dead_letters}
    own = {"format": FORMAT, "failedAt": failure.failed_at}
    return dumps({"messageId": origin.message_id, "failure": why, "routing": routing, STORE_MEMBER: own}) + b"\n"


def read_failure(text: bytes) -> MessageFailure:
    try:
        document = loads(text)
        why, own = document["failure"], document[STORE_MEMBER]
        reason = str(Reason(why["reasonCode"]))
        whole = with_traceback(why["reasonMessage"], why.get("traceback", ""))
        return MessageFailure(reason, whole, int(own["failedAt"]), int(why["attempt"]), why["consumerId"] or "")
    except (QueueError, KeyError, TypeError, ValueError) as error:
        raise UnreadableContent(f"not a failure: {error}") from None


def write_results(messages: list[Message]) -> bytes:
    """Return one line per acknowledged message, for external tools. The file names hold the same facts."""
    return b"".join(
        dumps(
            {
                "messageId": message.id,
                "ackedAt": iso(message.changed_at),
                "attempt": message.attempt,
                "consumerId": message.consumer or None,
            }
        )
        + b"\n"
        for message in messages
    )
