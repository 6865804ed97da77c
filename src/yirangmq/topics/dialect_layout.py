"""The six frames of the public layout, byte by byte: little-endian, no length, no version, no checksum. The first four
bytes say which frame it is and so how long; only a topic message has a length of its own.

    TOPI  32+n  0 magic  4 topic  8 global_seq  12 topic_seq  16 timestamp (u64, ns)  24 data_size  28 payload  +4 zeros
    SUBS  80    0 magic  4 client_id  8 topic_mask  12 last_seq  16 client_name[64]
    SUOK  16    0 magic  4 result  8 approved_topics  12 current_seq
    RECR  16    0 magic  4 client_id  8 topic_mask  12 last_seq
    RECS  20    0 magic  4 result  8 start_seq  12 end_seq  16 total_messages
    RECC  16    0 magic  4 total_sent  8 timestamp (u64, ns)

Sans-IO. ``docs/feed.md`` says how they are used; tests hold their bytes still."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from yirangmq.core.errors import TooLarge

TOPI, SUBS, SUOK = 0x544F5049, 0x53554253, 0x53554F4B
RECR, RECS, RECC = 0x52454352, 0x52454353, 0x52454343
MOST = 2**32 - 1
TRAILER = bytes(4)
"""What the layout's own alignment leaves after a payload; a reader takes it, and finds zeros."""
PAYLOAD_FROM = 28
_TOPI = struct.Struct("<IIIIQI")
_SUBS = struct.Struct("<IIII64s")
_FOUR = struct.Struct("<IIII")
_RECS = struct.Struct("<IIIII")
_RECC = struct.Struct("<IIQ")
_MAGIC = struct.Struct("<I")


class TopicMessage(NamedTuple):
    topic: int
    global_seq: int
    topic_seq: int
    timestamp: int
    payload: bytes


class Subscription(NamedTuple):
    """``last_seq`` is whatever lay in the sender's memory: never to be used. Nor is the name's last byte."""

    client_id: int
    topic_mask: int
    last_seq: int
    name: str


class SubscriptionOk(NamedTuple):
    """``result``: 0, or 1 if it was refused."""

    result: int
    approved_topics: int
    current_seq: int


class RecoveryRequest(NamedTuple):
    client_id: int
    topic_mask: int
    last_seq: int


class RecoveryResponse(NamedTuple):
    result: int
    start_seq: int
    end_seq: int
    total_messages: int


class RecoveryComplete(NamedTuple):
    total_sent: int
    timestamp: int


Message = TopicMessage | Subscription | SubscriptionOk | RecoveryRequest | RecoveryResponse | RecoveryComplete


def encode(message: Message) -> bytes:
    if isinstance(message, TopicMessage):
        return topic_message(*message)
    if isinstance(message, Subscription):
        client_id, mask, last, name = message
        return _SUBS.pack(SUBS, client_id, mask, last, name.encode()[:63])
    if isinstance(message, SubscriptionOk):
        return _FOUR.pack(SUOK, *message)
    if isinstance(message, RecoveryRequest):
        return _FOUR.pack(RECR, *message)
    if isinstance(message, RecoveryResponse):
        return _RECS.pack(RECS, *message)
    return _RECC.pack(RECC, *message)


def topic_message(topic: int, global_seq: int, topic_seq: int, timestamp: int, payload: bytes | memoryview) -> bytes:
    """Refused where a sequence has no room: the layout has 32 bits, and a number that began anew would be a lie."""
    if global_seq > MOST or topic_seq > MOST:
        raise TooLarge(f"sequence {global_seq} has no room in this layout, which ends at {MOST}", field="sequence")
    head = _TOPI.pack(TOPI, topic, global_seq, topic_seq, timestamp, len(payload))
    return b"".join((head, payload, TRAILER))


class Scanner:
    """Feed it any split of a stream, take whole messages out. Four bytes that begin no frame are passed over, as this
    layout has it. ``largest``: bytes of a payload past which the stream is not followed."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._buffer = bytearray()
        self.passed = 0
        """Bytes that belonged to no frame."""

    @property
    def held(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Message]:
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= _MAGIC.size:
                size = self._size(at)
                if size is None or len(self._buffer) - at < size:
                    break
                if not size:
                    at += _MAGIC.size
                    self.passed += _MAGIC.size
                    continue
                message = _decode(self._buffer, at, size)
                at += size
                yield message
        finally:
            del self._buffer[:at]

    def _size(self, at: int) -> int | None:
        """Of the frame that begins there; 0: none does; None: too little has come to say."""
        [magic] = _MAGIC.unpack_from(self._buffer, at)
        if magic != TOPI:
            return _SIZES.get(magic, 0)
        if len(self._buffer) - at < PAYLOAD_FROM:
            return None
        size: int = _TOPI.unpack_from(self._buffer, at)[5]
        if size > self._largest:
            raise TooLarge(f"a payload of {size} bytes, at most {self._largest}", field="data_size")
        return PAYLOAD_FROM + size + len(TRAILER)


_SIZES = {SUBS: _SUBS.size, SUOK: _FOUR.size, RECR: _FOUR.size, RECS: _RECS.size, RECC: _RECC.size}


def _decode(data: bytearray, at: int, size: int) -> Message:
    [magic] = _MAGIC.unpack_from(data, at)
    if magic == TOPI:
        _, topic, global_seq, topic_seq, timestamp, length = _TOPI.unpack_from(data, at)
        begin = at + PAYLOAD_FROM
        return TopicMessage(topic, global_seq, topic_seq, timestamp, bytes(data[begin : begin + length]))
    if magic == SUBS:
        _, client_id, mask, last, name = _SUBS.unpack_from(data, at)
        return Subscription(client_id, mask, last, name[:63].split(b"\0")[0].decode("utf-8", "replace"))
    if magic == RECS:
        return RecoveryResponse(*_RECS.unpack_from(data, at)[1:])
    if magic == RECC:
        return RecoveryComplete(*_RECC.unpack_from(data, at)[1:])
    members = _FOUR.unpack_from(data, at)[1:]
    return SubscriptionOk(*members) if magic == SUOK else RecoveryRequest(*members)
