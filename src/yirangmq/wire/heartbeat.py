"""Heartbeat datagram of a failover pair: ``core.failover.PeerHeartbeat`` as bytes with an HMAC-SHA256 tag.

Only a holder of the shared key can make the tag. The layout is in docs/pair.md: magic, version, tag, JSON body, at most
1,200 bytes, so that it fits one packet of any network. Members that a later version adds are ignored. Replayed
heartbeats are detected by ``core.failover_node``."""

import hmac
from dataclasses import MISSING, Field, fields, replace
from hashlib import sha256
from typing import Any, get_type_hints

import msgspec

from yirangmq.core.errors import BadInput, NotAllowed
from yirangmq.core.failover import PeerHeartbeat

MAGIC = b"YRHB"
VERSION = 1
TAG_BYTES = 32
HEAD = len(MAGIC) + 1 + TAG_BYTES
MAX_BYTES = 1200
"""Maximum size of a datagram in bytes: it fits one packet of any network."""
MAX_TEXT = 200


def _field(one: "Field[Any]") -> Any:
    kind = get_type_hints(PeerHeartbeat)[one.name]
    return (one.name, kind) if one.default is MISSING else (one.name, kind, one.default)


_Body: Any = msgspec.defstruct("_Body", map(_field, fields(PeerHeartbeat)), frozen=True, rename="camel")
"""The members of a ``PeerHeartbeat`` in their order, in camel case as in our JSON. Members that a later version adds
are ignored."""
_decode = msgspec.json.Decoder(_Body).decode


def write(heartbeat: PeerHeartbeat, key: bytes) -> bytes:
    rounded = replace(heartbeat, load=replace(heartbeat.load, cpu=round(heartbeat.load.cpu, 3)))
    body = msgspec.json.encode(_Body(**_members(rounded)))
    data = MAGIC + bytes([VERSION]) + _tag(body, key) + body
    if len(data) > MAX_BYTES:
        raise BadInput(f"a heartbeat of {len(data)} bytes, at most {MAX_BYTES}", field="heartbeat")
    return data


def read(data: bytes, key: bytes) -> PeerHeartbeat:
    """Verify and decode a heartbeat. Raise ``NotAllowed`` if the tag does not match the key, ``BadInput`` if the
    datagram is not a heartbeat."""
    if not HEAD < len(data) <= MAX_BYTES or not data.startswith(MAGIC):
        raise BadInput("not a heartbeat", field="heartbeat")
    if data[len(MAGIC)] != VERSION:
        raise BadInput(f"version {data[len(MAGIC)]}, this node has {VERSION}", field="heartbeat")
    body = data[HEAD:]
    if not hmac.compare_digest(data[HEAD - TAG_BYTES : HEAD], _tag(body, key)):
        raise NotAllowed("a heartbeat with another key", field="heartbeat")
    try:
        found = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}", field="heartbeat") from None
    _check(found)
    return PeerHeartbeat(**_members(found))


def _members(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in _Body.__struct_fields__}


def _check(found: Any) -> None:
    for name, value in _members(found).items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            raise BadInput(f"longer than {MAX_TEXT}", field=name)
        if type(value) is int and not 0 <= value < 2**63:
            raise BadInput(f"{value} is out of bounds", field=name)
    if not found.node or not found.boot:
        raise BadInput("is missing", field="node" if not found.node else "boot")


def _tag(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, MAGIC + bytes([VERSION]) + body, sha256)
