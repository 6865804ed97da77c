"""What the frames say: each body is one MessagePack array, its members in the order given here.

Payloads are bytes and pass untouched; headers are the JSON text of the envelope's other members."""

from typing import Any

import msgspec

from yirangmq.core.errors import BadInput, QueueError, every_error
from yirangmq.wire import feeds
from yirangmq.wire.frames import HEAD, VERSION, Kind, encode


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The first frame of a client."""

    client: str
    token: str = ""


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    server: str
    node: str
    durability: str
    max_frame: int
    role: str = ""
    """Of a node of a pair: ACTIVE or STANDBY."""
    term: int = 0
    """Rises with every takeover."""


class Outgoing(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message to be published; times in milliseconds. (It can hold no cycle, so nobody need look for one.)"""

    payload: bytes
    is_json: bool
    header: str = ""
    id: str = ""
    delay_ms: int = 0
    ttl_ms: int = 0


class Publish(msgspec.Struct, array_like=True, frozen=True):
    queue: str
    messages: list[Outgoing]


class Stored(msgspec.Struct, array_like=True, frozen=True):
    """The ids in the order of the messages; which of them were there before; which failed their schema, and why."""

    ids: list[str]
    duplicates: list[int] = []
    refused: dict[int, str] = {}


class Lease(msgspec.Struct, array_like=True, frozen=True):
    queue: str
    limit: int
    wait_ms: int = 0
    span_ms: int | None = None
    consumer: str = ""


class Incoming(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message in a consumer's hands."""

    lease: str
    id: str
    attempt: int
    until: int
    published_at: int
    header: str
    payload: bytes
    is_json: bool


class Deliver(msgspec.Struct, array_like=True, frozen=True):
    """``policy`` is the queue's policy as JSON text; sent with the first delivery of a request and when it changed."""

    queue: str
    messages: list[Incoming]
    policy: str = ""


class Subscribe(msgspec.Struct, array_like=True, frozen=True):
    """Push messages of a queue to me, at most ``credit`` unsettled at a time. ``held`` are leases from an earlier
    connection that are still unsettled, and until when: they count."""

    queue: str
    credit: int
    span_ms: int | None = None
    consumer: str = ""
    held: dict[str, int] = {}


class Cancel(msgspec.Struct, array_like=True, frozen=True):
    subscription: int


class Settle(msgspec.Struct, array_like=True, frozen=True):
    """Ack, and release: these leases."""

    leases: list[str]
    consumer: str | None = None


class Nack(msgspec.Struct, array_like=True, frozen=True):
    leases: list[str]
    reason: str
    text: str = ""
    delay_ms: int | None = None
    consumer: str | None = None


class Extend(msgspec.Struct, array_like=True, frozen=True):
    leases: list[str]
    span_ms: int | None = None
    consumer: str | None = None


class Settled(msgspec.Struct, array_like=True, frozen=True):
    """Which leases did not settle, by their place in the request: (code, text)."""

    errors: dict[int, tuple[str, str]] = {}


class Call(msgspec.Struct, array_like=True, frozen=True):
    """Any other verb, by name, with named values."""

    method: str
    values: dict[str, Any] = {}


class Result(msgspec.Struct, array_like=True, frozen=True):
    value: Any


class Failed(msgspec.Struct, array_like=True, frozen=True):
    code: str
    text: str
    field: str | None = None


class Empty(msgspec.Struct, array_like=True, frozen=True):
    """Nothing to say: ping, pong, bye."""


BODIES: dict[Kind, type[msgspec.Struct]] = {
    Kind.HELLO: Hello,
    Kind.WELCOME: Welcome,
    Kind.PUBLISH: Publish,
    Kind.STORED: Stored,
    Kind.LEASE: Lease,
    Kind.DELIVER: Deliver,
    Kind.ACK: Settle,
    Kind.NACK: Nack,
    Kind.EXTEND: Extend,
    Kind.SETTLED: Settled,
    Kind.SUBSCRIBE: Subscribe,
    Kind.CANCEL: Cancel,
    Kind.CALL: Call,
    Kind.RESULT: Result,
    Kind.ERROR: Failed,
    Kind.PING: Empty,
    Kind.PONG: Empty,
    Kind.BYE: Empty,
    Kind.RELEASE: Settle,
    **feeds.FEED_BODIES,
}
_encoder = msgspec.msgpack.Encoder()
_encode = _encoder.encode
_decoders = {int(kind): msgspec.msgpack.Decoder(body) for kind, body in BODIES.items()}
_errors = {error.code: error for error in every_error()}


def frame(kind: Kind, request: int, body: msgspec.Struct) -> bytes:
    return encode(kind, request, _encode(body))


def write_frame(buffer: bytearray, kind: Kind, request: int, body: msgspec.Struct) -> None:
    """A frame in place of what the buffer held; its memory is used again."""
    _encoder.encode_into(body, buffer, HEAD.size)
    HEAD.pack_into(buffer, 0, len(buffer) - HEAD.size, VERSION, kind, 0, request)


def large_frame(kind: Kind, request: int, body: msgspec.Struct, size: int) -> bytearray:
    """A frame of about so many bytes, written where it stays."""
    buffer = bytearray(HEAD.size + size)
    write_frame(buffer, kind, request, body)
    return buffer


def read(kind: int, body: bytes | memoryview) -> Any:
    """The value of a frame's body, or ``BadInput`` naming what is wrong with it."""
    decoder = _decoders.get(kind)
    if decoder is None:
        raise BadInput(f"{kind} is not a known kind of frame", field="kind")
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"a {Kind(kind).name} frame that cannot be read: {error}", field="body") from None


def failed(error: QueueError) -> Failed:
    text = str(error)
    prefix = f"{error.field}: "
    return Failed(error.code, text.removeprefix(prefix) if error.field else text, error.field)


def error_of(code: str, text: str, field: str | None = None) -> QueueError:
    """The error a code stands for; one we do not know is still an error."""
    kind = _errors.get(code, QueueError)
    return kind(text, field=field)
