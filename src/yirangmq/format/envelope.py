"""Envelope of a message: as JSON text, as content with a media type, and with the payload's SHA-256.

Between JSON text and ``Envelope`` the payload's text is kept to the byte, and unknown members are kept as they are.
``is_envelope`` is the rule for what a JSON document is; every protocol, command and store uses it.

HTTP gives content as bytes and a media type; both are kept as given. The digest is the header's member
``payloadSha256``. ``core.processor`` says which queues keep one."""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from yirangmq.core import validation
from yirangmq.core.errors import BadInput, TooLarge, Unfit
from yirangmq.core.message import RANK_LAST, Envelope, new_envelope
from yirangmq.core.validation import kind
from yirangmq.format.json_codec import dumps, loads, members

Answer = TypeVar("Answer")
ENVELOPE, PAYLOAD = READ_AS = ("envelope", "payload")
"""What a sender may say that a JSON document is. None: ``is_envelope`` decides."""
MAX_HEADER = 65_536
"""Maximum bytes of an envelope without its payload. Attributes are for routing, not for content."""
MAX_TEXT = 255
RESERVED_KEYS = "payload-sha256:"
"""Prefix of deduplication keys reserved for the queue itself (``broker.unique_payloads``)."""
JSON_TYPE = "application/json"


# -- new messages ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to publish. Only ``payload`` is required, by name or as the first argument. Bytes are stored unchanged,
    other values become JSON.

    ``delay`` and ``ttl`` are in seconds; None is no delay and no limit. ``priority`` 0 is first, None is last. Messages
    of one ``group`` are leased one at a time, in order. A message with a ``target`` is leased only to the consumer of
    that name."""

    payload: object
    _: KW_ONLY
    id: str | None = None
    type: str | None = None
    version: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    trace_id: str | None = None
    deduplication_key: str | None = None
    priority: int | None = None
    delay: float | None = 0
    ttl: float | None = None
    timestamp: str | None = None
    content_type: str | None = None
    group: str | None = None
    target: str | None = None


def build(queue: str, new: NewMessage, fallback_id: str, now: int) -> Envelope:
    """Validate a new message and build its envelope."""
    if isinstance(new.payload, bytes | bytearray | memoryview):
        payload, is_json = bytes(new.payload), new.content_type == JSON_TYPE
        if is_json:
            _named("payload", loads, payload)
    else:
        payload, is_json = _named("payload", dumps, new.payload), True
    if not isinstance(new.attributes, Mapping):
        raise BadInput(f"must be an object, not {kind(new.attributes)}", field="attributes")
    attributes = dict(new.attributes)
    if new.priority is not None:
        attributes["priority"] = new.priority
    header = {
        "timestamp": new.timestamp,
        "type": new.type,
        "version": new.version,
        "attributes": attributes or None,
        "traceId": new.trace_id,
        "deduplicationKey": new.deduplication_key,
        "contentType": None if is_json else new.content_type,
        "groupId": new.group,
        "targetConsumerId": new.target,
    }
    given = {key: value for key, value in header.items() if value is not None}
    identifier = fallback_id if new.id is None else validation.check_id(new.id)
    return _checked(queue, identifier, given, payload, is_json, now, new.delay, new.ttl)


def plain(queue: str, id: str, payload: bytes, now: int, *, is_json: bool = False) -> Envelope:
    """Build an envelope of a payload without other members. ``id`` and ``payload`` must already be valid."""
    return Envelope(queue, id, RANK_LAST, now, now, 0, None, "", payload, is_json)


def is_envelope(parts: Mapping[str, bytes] | None, read_as: str | None = None) -> bool:
    """Return True if a JSON document is an envelope, False if all of it is a payload.

    ``parts`` are its members, None if it is not an object. It is an envelope if it has both ``messageId`` and a payload
    (``payload``, or ``payloadBase64`` for bytes); other members do not count. ``read_as`` decides instead, if given;
    ``BadInput`` if it is ``envelope`` and the document has no payload."""
    if read_as not in (None, *READ_AS):
        raise BadInput(f"must be one of {', '.join(READ_AS)}, not {str(read_as)[:60]!r}", field="as")
    has_payload = parts is not None and ("payload" in parts or "payloadBase64" in parts)
    if read_as == ENVELOPE and not has_payload:
        raise BadInput("is not an envelope: it is not an object with payload or payloadBase64", field="document")
    if read_as is not None:
        return read_as == ENVELOPE
    return parts is not None and has_payload and "messageId" in parts


def read(
    queue: str,
    text: bytes,
    fallback_id: str,
    now: int,
    *,
    delay: float | None = 0,
    ttl: float | None = None,
    read_as: str | None = None,
) -> Envelope:
    """Parse a JSON document: as an envelope if it is one (``is_envelope``), otherwise as a bare payload."""
    if not isinstance(text, bytes):
        raise BadInput(f"must be the bytes of a JSON document, not {type(text).__name__}", field="document")
    parts = members_of(text)
    return read_members(queue, text, parts if is_envelope(parts, read_as) else None, fallback_id, now, delay, ttl)


def members_of(text: bytes) -> dict[str, bytes] | None:
    """Split the top level of a document into members with their raw text; None if it is not an object."""
    try:
        return members(text)
    except BadInput as error:
        raise BadInput(str(error), field="document") from None


def read_members(
    queue: str,
    text: bytes,
    parts: dict[str, bytes] | None,
    fallback_id: str,
    now: int,
    delay: float | None = 0,
    ttl: float | None = None,
) -> Envelope:
    """Build the envelope of a document from the members of an envelope; None for a bare payload. ``parts`` is
    modified."""
    if parts is None:
        return _checked(queue, fallback_id, {}, text.strip(), True, now, delay, ttl)
    payload, is_json = _take_payload(parts)
    given = {key: _named(key, loads, raw) for key, raw in parts.items()}
    said = given.pop("queue", queue)
    if said != queue:
        raise BadInput(f"is {said!r} in the envelope and {queue!r} in the call", field="queue")
    identifier = given.pop("messageId", None)
    checked = fallback_id if identifier is None else validation.check_id(identifier)
    return _checked(queue, checked, given, payload, is_json, now, delay, ttl)


def _named(field: str, work: Callable[[Any], Answer], value: Any) -> Answer:
    """Call ``work`` and add the field name to its ``BadInput``."""
    try:
        return work(value)
    except BadInput as error:
        raise BadInput(str(error), field=field) from None


def _take_payload(parts: dict[str, bytes]) -> tuple[bytes, bool]:
    coded = parts.pop("payloadBase64", None)
    if coded is None:
        return parts.pop("payload"), True
    if "payload" in parts:
        raise BadInput("give payload or payloadBase64, not both", field="payloadBase64")
    try:
        return base64.b64decode(loads(coded), validate=True), False
    except (binascii.Error, TypeError, ValueError) as error:
        raise BadInput(f"is not Base64: {error}", field="payloadBase64") from None


def _checked(
    queue: str,
    id: str,
    header: dict[str, Any],
    payload: bytes,
    is_json: bool,
    now: int,
    delay: float | None,
    ttl: float | None,
) -> Envelope:
    delay_ms = 0 if delay is None or delay == 0 else validation.check_milliseconds(delay, "delay")
    expires_at = now + validation.check_milliseconds(ttl, "ttl", least=0.001) if ttl is not None else 0
    if not header:
        return Envelope(queue, id, RANK_LAST, now, now + delay_ms, expires_at, None, "", payload, is_json)
    rank, key, group, target = check_header(header)
    text = _named("attributes", dumps, header)
    if len(text) > MAX_HEADER:
        raise TooLarge(
            f"the envelope without its payload has {len(text)} bytes, at most {MAX_HEADER}", field="attributes"
        )
    available = now + delay_ms
    return Envelope(queue, id, rank, now, available, expires_at, key, text.decode(), payload, is_json, group, target)


# -- headers -----------------------------------------------------------------------------------------------------------

NOT_IN_HEADER = ("messageId", "queue", "payload", "payloadBase64")
"""Members of an envelope that are not part of its header."""


def check_header_text(text: str) -> dict[str, Any]:
    """Parse and check a header given as JSON text, as it is sent on the wire."""
    if len(text) > MAX_HEADER:
        raise TooLarge(
            f"the envelope without its payload has {len(text)} characters, at most {MAX_HEADER}", field="header"
        )
    header = loads(text.encode())
    if not isinstance(header, dict):
        raise BadInput(f"must be an object, not {kind(header)}", field="header")
    for name in NOT_IN_HEADER:
        if name in header:
            raise BadInput(f"has the member {name}, which may not be in the header", field="header")
    return header


class HeaderMembers(NamedTuple):
    """Header members that the broker uses: rank, deduplication key, and the hashes of group and target."""

    rank: int = RANK_LAST
    key: str | None = None
    group: int = 0
    target: int = 0


def check_header(header: dict[str, Any]) -> HeaderMembers:
    """Check the types of the known members and return the ones that the broker uses."""
    for name in ("type", "traceId", "deduplicationKey", "contentType", "groupId"):
        value = header.get(name)
        if value is not None and (not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT):
            raise BadInput(f"must be a string of 1 to {MAX_TEXT} characters, not {_short(value)}", field=name)
    if str(header.get("deduplicationKey", "")).startswith(RESERVED_KEYS):
        raise BadInput(f"must not begin with {RESERVED_KEYS!r}, which is reserved", field="deduplicationKey")
    version = header.get("version")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
        raise BadInput(f"must be a whole number from 0, not {_short(version)}", field="version")
    if header.get("timestamp") is not None:
        _check_timestamp(header["timestamp"])
    target = header.get("targetConsumerId")
    if target is not None:
        validation.check_consumer(target, "targetConsumerId")
    rank = _rank(header.get("attributes"))
    return HeaderMembers(
        rank,
        header.get("deduplicationKey"),
        validation.line_of(header.get("groupId") or ""),
        validation.line_of(target or ""),
    )


def _rank(attributes: object) -> int:
    if attributes is None:
        return RANK_LAST
    if not isinstance(attributes, dict):
        raise BadInput(f"must be an object, not {kind(attributes)}", field="attributes")
    priority = validation.check_priority(attributes.get("priority"), "attributes.priority")
    return RANK_LAST if priority is None else priority


def _check_timestamp(value: object) -> None:
    try:
        moment = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise BadInput(f"must be ISO 8601 with an offset, not {_short(value)}", field="timestamp") from None
    if moment.tzinfo is None:
        raise BadInput(f"has no offset from UTC: {_short(value)}", field="timestamp")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# -- writing -----------------------------------------------------------------------------------------------------------


def iso(milliseconds: int) -> str:
    """Format an instant in ms since 1970 as ISO 8601 with offset, to the millisecond."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def with_timestamp(envelope: Envelope, ahead: int) -> Envelope:
    """Add the wall-clock time to the header if the producer gave no timestamp.

    ``published_at`` is store time; the wall clock is ``ahead`` ms ahead of it."""
    header = envelope.header
    if '"timestamp"' in header and loads(header.encode()).get("timestamp") is not None:
        return envelope
    stamp = f'{{"timestamp":"{iso(max(0, envelope.published_at + ahead))}"'
    return envelope._replace(header=f"{stamp},{header[1:]}" if len(header) > 2 else f"{stamp}}}")


def header_of(envelope: Envelope) -> dict[str, Any]:
    """Return the members of the envelope except the payload, as given. Id, queue and timestamp are always present."""
    header = loads(envelope.header.encode()) if envelope.header else {}
    stamp = header.pop("timestamp", None) or iso(envelope.published_at)
    return {"messageId": envelope.id, "timestamp": stamp, "queue": envelope.queue, **header}


def as_json(envelope: Envelope) -> bytes:
    """Return the whole envelope as JSON text. A JSON payload keeps its own text, any other becomes Base64."""
    head = dumps(header_of(envelope))[:-1]
    if envelope.is_json:
        return b'%s,"payload":%s}' % (head, envelope.payload)
    return b'%s,"payloadBase64":"%s"}' % (head, base64.b64encode(envelope.payload))


def payload_value(envelope: Envelope) -> Any:
    """Return the payload decoded from JSON, or its bytes if it is not JSON."""
    return loads(envelope.payload) if envelope.is_json else envelope.payload


# -- content and media type --------------------------------------------------------------------------------------------

BYTES_TYPE = "application/octet-stream"
SHORT = 200
"""Maximum characters of a header for which the result is cached. Most headers are empty or only have a priority."""


def check_type(media_type: str) -> str:
    if len(media_type) > MAX_TEXT:
        raise BadInput(f"has {len(media_type)} characters, at most {MAX_TEXT}", field="content-type")
    return media_type


def with_content(envelope: Envelope, media_type: str, payload: bytes) -> Envelope:
    """Replace the content of an envelope and keep its other members. The media type "" means none."""
    is_json = is_json_media_type(media_type) and is_plain_json(payload)
    said = "" if is_json and media_type == JSON_TYPE else media_type
    header = _with_type(envelope.header, said) if len(envelope.header) <= SHORT else _retyped(envelope.header, said)
    queue, id, rank, published_at, available_at, expires_at, key, _, _, _, group, target = envelope
    times = published_at, available_at, expires_at
    return new_envelope((queue, id, rank, *times, key, header, payload, is_json, group, target))


def _retyped(header: str, media_type: str) -> str:
    members = loads(header.encode()) if header else {}
    members.pop("contentType", None)
    members.pop("payloadSha256", None)  # the digest of the replaced content
    if media_type:
        members["contentType"] = media_type
    return dumps(members).decode() if members else ""


_with_type = lru_cache(maxsize=256)(_retyped)


def type_of(envelope: Envelope) -> str:
    said = loads(envelope.header.encode()).get("contentType") if '"contentType"' in envelope.header else None
    return str(said) if said else JSON_TYPE if envelope.is_json else BYTES_TYPE


@lru_cache(maxsize=256)
def is_json_media_type(media_type: str) -> bool:
    kind = media_type.partition(";")[0].strip().lower()
    return kind == JSON_TYPE or kind.endswith("+json")


def is_plain_json(payload: bytes) -> bool:
    """Return True if the payload is one JSON document without surrounding space.

    Such a payload can be embedded in an envelope and extracted again to the byte."""
    try:
        return members(b'{"payload":%s}' % payload) == {"payload": payload}
    except BadInput:
        return False


# -- digest of the payload ---------------------------------------------------------------------------------------------

DIGEST = "payloadSha256"
_KEY = f'"{DIGEST}"'
_BEGIN = f'{{"{DIGEST}":"'
_END = len(_BEGIN) + 64


def with_digest(envelope: Envelope) -> Envelope:
    """Add the digest of the payload. Raise ``Unfit`` if the sender gave a digest that does not match."""
    header, digest = envelope.header, sha256(envelope.payload).hexdigest()
    if _KEY in header:
        members = loads(header.encode())
        said = members.pop(DIGEST, digest)
        if said != digest:
            raise Unfit(f"is {_shortened(said)}, that of the payload is {digest}", field=DIGEST)
        header = dumps(members).decode() if members else ""
    header = f'{_BEGIN}{digest}",{header[1:]}' if header else f'{_BEGIN}{digest}"}}'
    if len(header) > MAX_HEADER:
        raise TooLarge(f"with its digest the envelope has more than {MAX_HEADER} bytes", field="attributes")
    return envelope._replace(header=header)


def digest_of(envelope: Envelope) -> str:
    """Return the stored digest, or "" if there is none. Raise ``BadInput`` if the header cannot be parsed."""
    header = envelope.header
    if header.startswith(_BEGIN):
        return header[len(_BEGIN) : _END]
    if _KEY not in header:
        return ""
    return str(loads(header.encode()).get(DIGEST, ""))


def digest_problem(envelope: Envelope) -> str:
    """Verify a stored payload against its digest. Return the problem; "" if it matches or no digest was stored."""
    try:
        kept = digest_of(envelope)
    except BadInput as error:
        return f"header: {error}"
    if not kept:
        return ""
    found = sha256(envelope.payload).hexdigest()
    return "" if found == kept else f"payload: its SHA-256 is {found}, it was stored with {_shortened(kept)}"


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= 64 else f"{text[:61]}..."
