"""The content of a message as HTTP has it, a media type and bytes, to and from an envelope. Bytes are kept as they are,
and so is the type, whatever it says."""

from functools import lru_cache

from yirangmq.core.errors import BadInput
from yirangmq.core.message import Envelope, new_envelope
from yirangmq.format.envelope import JSON_TYPE, MAX_TEXT
from yirangmq.format.jsontext import dumps, loads, members

BYTES_TYPE = "application/octet-stream"
SHORT = 200
"""Characters of a header that is kept with what comes of it; most have none, or a priority."""


def check_type(media_type: str) -> str:
    if len(media_type) > MAX_TEXT:
        raise BadInput(f"has {len(media_type)} characters, at most {MAX_TEXT}", field="content-type")
    return media_type


def with_content(envelope: Envelope, media_type: str, payload: bytes) -> Envelope:
    """Other content for the same envelope; its other members stay. "" is no type."""
    is_json = says_json(media_type) and is_plain_json(payload)
    said = "" if is_json and media_type == JSON_TYPE else media_type
    header = _with_type(envelope.header, said) if len(envelope.header) <= SHORT else _retyped(envelope.header, said)
    return new_envelope((*envelope[:7], header, payload, is_json, *envelope[10:]))


def _retyped(header: str, media_type: str) -> str:
    members = loads(header.encode()) if header else {}
    members.pop("contentType", None)
    members.pop("payloadSha256", None)  # that of the content before (format.digest)
    if media_type:
        members["contentType"] = media_type
    return dumps(members).decode() if members else ""


_with_type = lru_cache(maxsize=256)(_retyped)


def type_of(envelope: Envelope) -> str:
    said = loads(envelope.header.encode()).get("contentType") if '"contentType"' in envelope.header else None
    return str(said) if said else JSON_TYPE if envelope.is_json else BYTES_TYPE


@lru_cache(maxsize=256)
def says_json(media_type: str) -> bool:
    kind = media_type.partition(";")[0].strip().lower()
    return kind == JSON_TYPE or kind.endswith("+json")


def is_plain_json(payload: bytes) -> bool:
    """One document with no space around it, so that it can stand in an envelope and come out of it to the byte."""
    try:
        return members(b'{"payload":%s}' % payload) == {"payload": payload}
    except BadInput:
        return False
