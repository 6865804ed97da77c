"""Frame bodies of the native protocol: topics, queues, and listings of messages.

Each body is one MessagePack array with its members in the order given here. Payloads are bytes and pass unchanged;
headers are the JSON text of the envelope's other members. A topic record has a separate frame kind, and is sent as it
is stored (``wire.records``). A connection has one topic subscription at a time, because a stored frame has no field for
the number of a subscription.

A listing shows messages without leasing them, as the value of a RESULT frame. One page:

    {"looks": [[message, envelope, failure] …], "policies": {queue: document}, "cursor": text}

Message, envelope and failure are arrays of their members in the order of ``core.message``, or null. An empty cursor
ends the listing."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from yirangmq.core.errors import BadInput, QueueError, every_error
from yirangmq.core.message import Envelope, Message, MessageFailure
from yirangmq.core.policy import QueuePolicy, read_policy, show_policy
from yirangmq.core.states import State
from yirangmq.wire.frames import HEAD, VERSION, FrameKind

# -- topics ------------------------------------------------------------------------------------------------------------

MAX_GAPS = 1000
"""Maximum number of gaps in one reply; the latest ones are kept."""


class RecordBody(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A record to be published; the log assigns its sequence numbers and its time."""

    topic: str
    payload: bytes
    key: str | None = None
    headers: dict[str, str] = {}


class TopicPublish(msgspec.Struct, array_like=True, frozen=True):
    """Publish records atomically. They are consecutive in the log, in this order."""

    records: list[RecordBody]


class TopicStored(msgspec.Struct, array_like=True, frozen=True):
    """Reply to TOPIC_PUBLISH: the records are on disk with sequences ``first`` to ``last``. ``topics`` has the sequence
    of the last record in each topic."""

    epoch: str
    first: int
    last: int
    at_ns: int
    topics: dict[str, int]


class TopicSubscribe(msgspec.Struct, array_like=True, frozen=True):
    """Subscribe to topics: names and patterns, or a mask, or all topics if neither is given.

    The subscription starts at the cursor of ``name``, or at ``start``, with ``at`` as its sequence or time. ``epoch``
    is the epoch that ``at`` belongs to, if known."""

    topics: list[str] = []
    mask: int = 0
    name: str = ""
    start: str = "new"
    at: int = 0
    epoch: str = ""
    resume: bool = True
    progress_ms: int = 1000


class TopicSubscribed(msgspec.Struct, array_like=True, frozen=True):
    """Reply to TOPIC_SUBSCRIBE. ``next`` is the first sequence that is examined for this subscription. The log
    holds ``first`` to ``last`` now. ``gaps`` are lost sequences from ``next`` on. ``resumed``: it continues at the
    cursor of the name."""

    epoch: str
    next: int
    first: int
    last: int
    gaps: list[tuple[int, int]] = []
    resumed: bool = False


class TopicRecoveryRequest(msgspec.Struct, array_like=True, frozen=True):
    """Request catch-up: send all matching records after this sequence again."""

    after: int
    epoch: str = ""


class TopicRecoveryResponse(msgspec.Struct, array_like=True, frozen=True):
    """The matching records from ``start`` to ``end`` follow: ``count`` records, or null if they were not counted."""

    start: int
    end: int
    count: int | None
    gaps: list[tuple[int, int]] = []


class TopicRecoveryComplete(msgspec.Struct, array_like=True, frozen=True):
    """Catch-up is complete: all matching records up to ``sequence`` were sent, ``sent`` of them since the
    RECOVERY_RESPONSE."""

    sequence: int
    sent: int
    at_ns: int


class Confirm(msgspec.Struct, array_like=True, frozen=True):
    """Cursor update of a durable subscriber: it has processed everything up to ``sequence``."""

    sequence: int


class Confirmed(msgspec.Struct, array_like=True, frozen=True):
    """Reply to CONFIRM: ``sequence`` is on disk; it may have been there before."""

    sequence: int


class Unsubscribe(msgspec.Struct, array_like=True, frozen=True):
    """Stop sending records. The reply is RESULT true, or false if there was no subscription."""


class TopicProgress(msgspec.Struct, array_like=True, frozen=True):
    """All matching records up to ``sequence`` were sent, ``sent`` of them since the latest TOPIC_SUBSCRIBED or
    RECOVERY_RESPONSE. ``last`` is the last sequence of the feed."""

    sequence: int
    sent: int
    last: int
    at_ns: int


FEED_BODIES: dict[FrameKind, type[msgspec.Struct]] = {
    FrameKind.TOPIC_PUBLISH: TopicPublish,
    FrameKind.TOPIC_STORED: TopicStored,
    FrameKind.TOPIC_SUBSCRIBE: TopicSubscribe,
    FrameKind.TOPIC_SUBSCRIBED: TopicSubscribed,
    FrameKind.RECOVERY_REQUEST: TopicRecoveryRequest,
    FrameKind.RECOVERY_RESPONSE: TopicRecoveryResponse,
    FrameKind.RECOVERY_COMPLETE: TopicRecoveryComplete,
    FrameKind.CONFIRM: Confirm,
    FrameKind.CONFIRMED: Confirmed,
    FrameKind.UNSUBSCRIBE: Unsubscribe,
    FrameKind.PROGRESS: TopicProgress,
}


# -- connections and queues --------------------------------------------------------------------------------------------


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
    """Role of a node of a pair: ACTIVE or STANDBY."""
    term: int = 0
    """Term of the pair; it rises with every takeover."""


class OutgoingMessageBody(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message to be published; times in ms. It cannot be part of a reference cycle, so the garbage collector does not
    track it (``gc=False``)."""

    payload: bytes
    is_json: bool
    header: str = ""
    id: str = ""
    delay_ms: int = 0
    ttl_ms: int = 0


class Publish(msgspec.Struct, array_like=True, frozen=True):
    queue: str
    messages: list[OutgoingMessageBody]


class PublishReply(msgspec.Struct, array_like=True, frozen=True):
    """Reply to PUBLISH: ids in the order of the messages, indexes of duplicates, and refused messages by index with
    the reason."""

    ids: list[str]
    duplicates: list[int] = []
    refused: dict[int, str] = {}


class Lease(msgspec.Struct, array_like=True, frozen=True):
    queue: str
    limit: int
    wait_ms: int = 0
    span_ms: int | None = None
    consumer: str = ""


class DeliveredMessageBody(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A leased message, as delivered to its consumer."""

    lease: str
    id: str
    attempt: int
    until: int
    published_at: int
    header: str
    payload: bytes
    is_json: bool


class Deliver(msgspec.Struct, array_like=True, frozen=True):
    """Delivery of leased messages. ``policy`` is the queue's policy as JSON text; it is sent with the first delivery of
    a request and when it changed."""

    queue: str
    messages: list[DeliveredMessageBody]
    policy: str = ""


class Subscribe(msgspec.Struct, array_like=True, frozen=True):
    """Subscribe to a queue: the server pushes messages within a credit window of ``credit`` unsettled messages.

    ``held`` has unsettled leases from an earlier connection with the instants of their expiry; they use credit."""

    queue: str
    credit: int
    span_ms: int | None = None
    consumer: str = ""
    held: dict[str, int] = {}


class Cancel(msgspec.Struct, array_like=True, frozen=True):
    subscription: int


class Settle(msgspec.Struct, array_like=True, frozen=True):
    """Leases to ack or to release."""

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


class SettleReply(msgspec.Struct, array_like=True, frozen=True):
    """Reply to ACK, NACK, EXTEND and RELEASE: errors as (code, text) by the lease's index in the request."""

    errors: dict[int, tuple[str, str]] = {}


class Call(msgspec.Struct, array_like=True, frozen=True):
    """Call of any other method, by name, with named arguments."""

    method: str
    values: dict[str, Any] = {}


class Result(msgspec.Struct, array_like=True, frozen=True):
    value: Any


class ErrorBody(msgspec.Struct, array_like=True, frozen=True):
    code: str
    text: str
    field: str | None = None


class Empty(msgspec.Struct, array_like=True, frozen=True):
    """Empty body of PING, PONG and BYE."""


BODIES: dict[FrameKind, type[msgspec.Struct]] = {
    FrameKind.HELLO: Hello,
    FrameKind.WELCOME: Welcome,
    FrameKind.PUBLISH: Publish,
    FrameKind.STORED: PublishReply,
    FrameKind.LEASE: Lease,
    FrameKind.DELIVER: Deliver,
    FrameKind.ACK: Settle,
    FrameKind.NACK: Nack,
    FrameKind.EXTEND: Extend,
    FrameKind.SETTLED: SettleReply,
    FrameKind.SUBSCRIBE: Subscribe,
    FrameKind.CANCEL: Cancel,
    FrameKind.CALL: Call,
    FrameKind.RESULT: Result,
    FrameKind.ERROR: ErrorBody,
    FrameKind.PING: Empty,
    FrameKind.PONG: Empty,
    FrameKind.BYE: Empty,
    FrameKind.RELEASE: Settle,
    **FEED_BODIES,
}


# -- encoding and decoding ---------------------------------------------------------------------------------------------

_encoder = msgspec.msgpack.Encoder()
_encode = _encoder.encode
_decoders = {int(kind): msgspec.msgpack.Decoder(body) for kind, body in BODIES.items()}
_errors = {error.code: error for error in every_error()}


def frame(kind: FrameKind, request: int, body: msgspec.Struct) -> bytes:
    data = _encode(body)
    return HEAD.pack(len(data), VERSION, kind, 0, request) + data


def write_frame(buffer: bytearray, kind: FrameKind, request: int, body: msgspec.Struct) -> None:
    """Encode a frame into ``buffer``, replacing its contents and reusing its memory."""
    _encoder.encode_into(body, buffer, HEAD.size)
    HEAD.pack_into(buffer, 0, len(buffer) - HEAD.size, VERSION, kind, 0, request)


def large_frame(kind: FrameKind, request: int, body: msgspec.Struct, size: int) -> bytearray:
    """Encode a frame of about ``size`` bytes into a new buffer, without a further copy."""
    buffer = bytearray(HEAD.size + size)
    write_frame(buffer, kind, request, body)
    return buffer


def read(kind: int, body: bytes | memoryview) -> Any:
    """Decode a frame's body. Raise ``BadInput`` with the reason if it is malformed."""
    decoder = _decoders.get(kind)
    if decoder is None:
        raise BadInput(f"{kind} is not a known kind of frame", field="kind")
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"a {FrameKind(kind).name} frame that cannot be read: {error}", field="body") from None


def failed(error: QueueError) -> ErrorBody:
    text = str(error)
    prefix = f"{error.field}: "
    return ErrorBody(error.code, text.removeprefix(prefix) if error.field else text, error.field)


def error_of(code: str, text: str, field: str | None = None) -> QueueError:
    """Return the error for a code; ``QueueError`` if the code is unknown."""
    kind = _errors.get(code, QueueError)
    return kind(text, field=field)


# -- listings ----------------------------------------------------------------------------------------------------------

ViewParts = tuple[Message, Envelope | None, MessageFailure | None, QueuePolicy]
"""One listed message with envelope, failure and policy; ``format.delivery.MessageView`` is such a tuple."""


def pack(views: Iterable[ViewParts], cursor: str = "") -> dict[str, Any]:
    packed: list[list[Any]] = []
    policies: dict[str, Any] = {}
    for message, envelope, failure, policy in views:
        if message.queue not in policies:
            policies[message.queue] = show_policy(policy)
        packed.append([[*message], envelope and [*envelope], failure and [*failure]])
    return {"looks": packed, "policies": policies, "cursor": cursor}


def unpack(page: Any) -> tuple[list[ViewParts], str]:
    """Decode a page that ``pack`` encoded; raise ``BadInput`` if it is malformed."""
    try:
        policies = {queue: read_policy(document, queue) for queue, document in page["policies"].items()}
        return [_unpack_view(parts, policies) for parts in page["looks"]], page["cursor"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"a page of messages that cannot be read: {error}", field="value") from None


def _unpack_view(parts: Sequence[Any], policies: dict[str, QueuePolicy]) -> ViewParts:
    row, sent, failed = parts
    seq, queue, id, state, *rest = row
    message = Message(seq, queue, id, State(state), *rest)
    return message, sent and Envelope(*sent), failed and MessageFailure(*failed), policies[queue]
