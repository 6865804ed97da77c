"""Feed protocol: codec of six public frames.

The frames are little-endian, without length, version or checksum. The first four bytes identify the frame and thereby
its size; only a topic message has a size field:

    TOPI  32+n  0 magic  4 topic  8 global_seq  12 topic_seq  16 timestamp (u64, ns)  24 data_size  28 payload  +4 zeros
    SUBS  80    0 magic  4 client_id  8 topic_mask  12 last_seq  16 client_name[64]
    SUOK  16    0 magic  4 result  8 approved_topics  12 current_seq
    RECR  16    0 magic  4 client_id  8 topic_mask  12 last_seq
    RECS  20    0 magic  4 result  8 start_seq  12 end_seq  16 total_messages
    RECC  16    0 magic  4 total_sent  8 timestamp (u64, ns)

The codec is sans-IO; golden tests fix its bytes. ``docs/feed.md`` specifies the requests and the answers of the
server."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from yirangmq.core.errors import TooLarge

TOPI, SUBS, SUOK = 0x544F5049, 0x53554253, 0x53554F4B
RECR, RECS, RECC = 0x52454352, 0x52454353, 0x52454343
MAX_SEQUENCE = 2**32 - 1
"""Largest sequence: the layout has 32 bits."""
TRAILER = bytes(4)
"""Padding after a payload, from the layout's alignment. Readers consume it; it is always zeros."""
PAYLOAD_OFFSET = 28
"""Offset of the payload in a topic message, in bytes."""
_TOPI = struct.Struct("<IIIIQI")
_SUBS = struct.Struct("<IIII64s")
_FOUR = struct.Struct("<IIII")
_RECS = struct.Struct("<IIIII")
_RECC = struct.Struct("<IIQ")
_MAGIC = struct.Struct("<I")


class FeedTopicMessage(NamedTuple):
    topic: int
    global_seq: int
    topic_seq: int
    timestamp: int
    payload: bytes


class FeedSubscribe(NamedTuple):
    """SUBS frame. ``last_seq`` is uninitialised memory of the sender and must never be used; so is the last byte of the
    name."""

    client_id: int
    topic_mask: int
    last_seq: int
    name: str


class FeedSubscribeOk(NamedTuple):
    """SUOK frame. ``result``: 0, or 1 if the subscription was refused."""

    result: int
    approved_topics: int
    current_seq: int


class FeedRecoveryRequest(NamedTuple):
    client_id: int
    topic_mask: int
    last_seq: int


class FeedRecoveryResponse(NamedTuple):
    result: int
    start_seq: int
    end_seq: int
    total_messages: int


class FeedRecoveryComplete(NamedTuple):
    total_sent: int
    timestamp: int


FeedMessage = (
    FeedTopicMessage
    | FeedSubscribe
    | FeedSubscribeOk
    | FeedRecoveryRequest
    | FeedRecoveryResponse
    | FeedRecoveryComplete
)


def encode(message: FeedMessage) -> bytes:
    if isinstance(message, FeedTopicMessage):
        return topic_message(*message)
    if isinstance(message, FeedSubscribe):
        client_id, mask, last, name = message
        return _SUBS.pack(SUBS, client_id, mask, last, name.encode()[:63])
    if isinstance(message, FeedSubscribeOk):
        return _FOUR.pack(SUOK, *message)
    if isinstance(message, FeedRecoveryRequest):
        return _FOUR.pack(RECR, *message)
    if isinstance(message, FeedRecoveryResponse):
        return _RECS.pack(RECS, *message)
    return _RECC.pack(RECC, *message)


def topic_message(topic: int, global_seq: int, topic_seq: int, timestamp: int, payload: bytes | memoryview) -> bytes:
    """Encode a TOPI frame.

    Raise ``TooLarge`` if a sequence exceeds the layout's 32 bits: a number that wrapped around would be wrong."""
    if global_seq > MAX_SEQUENCE or topic_seq > MAX_SEQUENCE:
        raise TooLarge(
            f"sequence {global_seq} has no room in this layout, which ends at {MAX_SEQUENCE}", field="sequence"
        )
    head = _TOPI.pack(TOPI, topic, global_seq, topic_seq, timestamp, len(payload))
    return b"".join((head, payload, TRAILER))


class FeedDecoder:
    """Stream decoder, sans-IO: any split of the bytes in, whole messages out.

    Four bytes that begin no frame are skipped, as this protocol specifies."""

    def __init__(self, max_payload: int) -> None:
        """``max_payload``: maximum size of a payload, in bytes; a larger one raises ``TooLarge``."""
        self._max_payload = max_payload
        self._buffer = bytearray()
        self.skipped = 0
        """Skipped bytes, which belonged to no frame."""

    @property
    def held(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[FeedMessage]:
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= _MAGIC.size:
                size = self._size(at)
                if size is None or len(self._buffer) - at < size:
                    break
                if not size:
                    at += _MAGIC.size
                    self.skipped += _MAGIC.size
                    continue
                message = _decode(self._buffer, at, size)
                at += size
                yield message
        finally:
            del self._buffer[:at]

    def _size(self, at: int) -> int | None:
        """Return the size of the frame that starts at ``at``, in bytes; 0 if no frame starts there; None if more bytes
        are needed to decide."""
        [magic] = _MAGIC.unpack_from(self._buffer, at)
        if magic != TOPI:
            return _SIZES.get(magic, 0)
        if len(self._buffer) - at < PAYLOAD_OFFSET:
            return None
        size: int = _TOPI.unpack_from(self._buffer, at)[5]
        if size > self._max_payload:
            raise TooLarge(f"a payload of {size} bytes, at most {self._max_payload}", field="data_size")
        return PAYLOAD_OFFSET + size + len(TRAILER)


_SIZES = {SUBS: _SUBS.size, SUOK: _FOUR.size, RECR: _FOUR.size, RECS: _RECS.size, RECC: _RECC.size}


def _decode(data: bytearray, at: int, size: int) -> FeedMessage:
    [magic] = _MAGIC.unpack_from(data, at)
    if magic == TOPI:
        _, topic, global_seq, topic_seq, timestamp, length = _TOPI.unpack_from(data, at)
        start = at + PAYLOAD_OFFSET
        return FeedTopicMessage(topic, global_seq, topic_seq, timestamp, bytes(data[start : start + length]))
    if magic == SUBS:
        _, client_id, mask, last, name = _SUBS.unpack_from(data, at)
        return FeedSubscribe(client_id, mask, last, name[:63].split(b"\0")[0].decode("utf-8", "replace"))
    if magic == RECS:
        return FeedRecoveryResponse(*_RECS.unpack_from(data, at)[1:])
    if magic == RECC:
        return FeedRecoveryComplete(*_RECC.unpack_from(data, at)[1:])
    members = _FOUR.unpack_from(data, at)[1:]
    return FeedSubscribeOk(*members) if magic == SUOK else FeedRecoveryRequest(*members)
