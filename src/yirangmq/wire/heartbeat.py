"""The heartbeat's datagram: bytes ⇄ ``core.beat.Beat``, with a tag that only a holder of the shared key can make.

Knows: the layout (docs/pair.md) and the key handed in. Does not know: sockets, time, whether it was heard before."""

import hmac
from hashlib import sha256
from typing import Any

import msgspec

from yirangmq.core.beat import Beat, Load
from yirangmq.core.errors import BadInput, NotAllowed
from yirangmq.core.pairing import Role, Status

MAGIC = b"YRHB"
VERSION = 1
TAG_BYTES = 32
HEAD = len(MAGIC) + 1 + TAG_BYTES
MOST_BYTES = 1200
"""Fits one packet of any network."""
LONGEST_TEXT = 200


class _Load(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    cpu: float
    memory: int
    depth: int


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """In the order in which they are written. Members that a later version adds are passed over."""

    node: str
    boot: str
    sequence: int
    at: int
    running: int
    active: int
    role: Role
    status: Status
    term: int
    claim: int = 0
    grant: int = 0
    grantBoot: str = ""
    wish: bool = False
    address: str = ""
    heardBoot: str = ""
    heardSequence: int = 0
    heardAge: int = 0
    load: _Load = _Load(0.0, 0, 0)


_decode = msgspec.json.Decoder(_Body).decode
_NAMES = {
    "grantBoot": "grant_boot",
    "heardBoot": "heard_boot",
    "heardSequence": "heard_sequence",
    "heardAge": "heard_age",
}


def write(beat: Beat, key: bytes) -> bytes:
    load = _Load(round(beat.load.cpu, 3), beat.load.memory, beat.load.depth)
    members: dict[str, Any] = {
        name: getattr(beat, _NAMES.get(name, name)) for name in _Body.__struct_fields__ if name != "load"
    }
    body = msgspec.json.encode(_Body(**members, load=load))
    data = MAGIC + bytes([VERSION]) + _tag(body, key) + body
    if len(data) > MOST_BYTES:
        raise BadInput(f"a heartbeat of {len(data)} bytes, at most {MOST_BYTES}", field="heartbeat")
    return data


def read(data: bytes, key: bytes) -> Beat:
    """``NotAllowed`` if the tag is not that of this key, ``BadInput`` if it is no heartbeat at all."""
    if not HEAD < len(data) <= MOST_BYTES or not data.startswith(MAGIC):
        raise BadInput("not a heartbeat", field="heartbeat")
    if data[len(MAGIC)] != VERSION:
        raise BadInput(f"version {data[len(MAGIC)]}, this node speaks {VERSION}", field="heartbeat")
    body = data[HEAD:]
    if not hmac.compare_digest(data[HEAD - TAG_BYTES : HEAD], _tag(body, key)):
        raise NotAllowed("a heartbeat with another key", field="heartbeat")
    try:
        found = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}", field="heartbeat") from None
    _check(found)
    members = {_NAMES.get(name, name): getattr(found, name) for name in _Body.__struct_fields__ if name != "load"}
    return Beat(**members, load=Load(cpu=found.load.cpu, memory=found.load.memory, depth=found.load.depth))


def _check(found: _Body) -> None:
    for name in _Body.__struct_fields__:
        value = getattr(found, name)
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise BadInput(f"longer than {LONGEST_TEXT}", field=name)
        if type(value) is int and not 0 <= value < 2**63:
            raise BadInput(f"{value} is out of bounds", field=name)
    if not found.node or not found.boot:
        raise BadInput("is missing", field="node" if not found.node else "boot")


def _tag(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, MAGIC + bytes([VERSION]) + body, sha256)
