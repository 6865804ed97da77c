"""Record frame: a topic record as it is stored and sent, single and in bulk, with its CRC-32.

**The stored frame is the wire frame**: a segment's bytes are sent as they are. The first twelve bytes are a header of
``wire.frames``, so that a reader of those frames reads these too.

    0        4         5      6       8         12      16         24               32
    | length | version | kind | flags | request | crc32 | sequence | topic sequence | at (ns) |
      u32      u8 = 1    u8=20  u16=0   u32 = 0   u32     u64        u64              u64
    40      42           44         46             48
    | marks | topic size | key size | headers size | topic | key | headers | payload
      u16     u16          u16        u16            UTF-8   UTF-8  MessagePack map of strings, or nothing

Big-endian. ``length`` counts the bytes after the twelfth; the checksum covers all bytes after itself. ``docs/log.md``
has an example byte by byte; tests/golden pins it. Sans-IO.

With the extra ``[fast]`` the CRC-32 is computed by processor instructions: the same value, in a sixth of the time
for a record of 2,000 bytes. Bulk frames, as a pipeline sends them, are checked once when they arrive (``summarize``);
``read_bare`` and ``read_many`` read them later without repeating the checks."""

import struct
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from yirangmq.core.errors import BadInput, StoreDamaged, TooLarge
from yirangmq.core.topics import MAX_SEQUENCE, NO_HEADERS, NewRecord, Record, check_topic
from yirangmq.wire.frames import MAX_FRAME

try:
    from isal.isal_zlib import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32


# -- layout ------------------------------------------------------------------------------------------------------------

KIND = 20
"""Frame kind of a record in ``wire.frames``. Kinds 21 and 22 occur in segments only and are never sent."""
SIGN = bytes((1, KIND, 0, 0, 0, 0, 0, 0))
"""Signature of a record: version, kind, flags and request. Salvage finds records by these eight bytes."""
OUTER = struct.Struct(">I8sI")
"""Length, sign, checksum."""
INNER = struct.Struct(">QQQHHHH")
WHOLE = struct.Struct(">I8sIQQQHHHH")
LENGTH_FROM = 12
CRC_FROM = OUTER.size
HEAD = WHOLE.size
"""Size of the header in bytes: 48. The topic begins after it."""
HAS_KEY = 1
"""Bit of ``marks``: the record has a key, which may be empty."""
SYNCED = 2
"""Bit of ``marks``: when this frame was written, all bytes before it were on disk."""
MAX_PART = 2**16 - 1
PLAIN = MAX_FRAME - 2 * MAX_PART
"""Maximum payload in bytes that fits a frame with any topic and headers."""
MAX_RECORD = MAX_FRAME + LENGTH_FROM
BYTES: frozenset[type] = frozenset((bytes, memoryview))
"""Usual types of a payload; other types take the slower check."""
BULK_RECORDS = 64
"""Batch size from which on it is faster to check all records together."""

_pack_outer = OUTER.pack
_pack_inner = INNER.pack
_unpack = WHOLE.unpack_from
_unpack_body = struct.Struct(">IQQQHHHH").unpack_from
_encode_headers = msgspec.msgpack.Encoder(enc_hook=str).encode  # for subclasses of str; other types do not occur
_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode


class EncodedBatch(NamedTuple):
    """Consecutive frames; frame n begins at ``offsets[n]``. ``topics`` has the latest sequence of each topic in it."""

    data: bytes
    offsets: list[int]
    topics: dict[str, int]


class RecordHead(NamedTuple):
    """Header of a frame. ``size`` is that of the whole frame, in bytes."""

    size: int
    crc: int
    sequence: int
    topic_sequence: int
    at_ns: int
    marks: int
    topic_size: int
    key_size: int
    headers_size: int


# ``tuple.__new__`` takes half the time of the named tuple's constructor.
new_head = cast("Callable[[tuple[int, ...]], RecordHead]", partial(tuple.__new__, RecordHead))
new_record = cast("Callable[[tuple[Any, ...]], Record]", partial(tuple.__new__, Record))
RecordT = TypeVar("RecordT", bound=Record)
"""Result type of decoding: ``Record`` or a subclass."""


# -- checks of new records ---------------------------------------------------------------------------------------------


def check_record(record: NewRecord) -> None:
    """Check that a record can be encoded; raise ``BadInput`` with the field if not."""
    check_topic(record.topic)
    payload: object = record.payload
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise BadInput(f"must be bytes, not {type(payload).__name__}", field="payload")
    if isinstance(payload, memoryview) and not _is_flat(payload):
        raise BadInput("must be a contiguous view of bytes", field="payload")
    size = len(record.payload)
    if record.key is not None:
        size += _checked_key(record.key)
    if record.headers:
        size += len(_checked_headers(record.headers))
    if HEAD - LENGTH_FROM + len(record.topic) + size > MAX_FRAME:
        raise TooLarge(f"a record of {size} bytes, at most {MAX_FRAME} with its head", field="payload")


def check_batch(batch: Sequence[NewRecord], known: Container[str]) -> int:
    """Check the records of a batch; return the total size of their payloads in bytes. Topics in ``known`` are not
    checked again."""
    if not batch:
        raise BadInput("must hold at least one record", field="records")
    return _check_each(batch, known) if len(batch) < BULK_RECORDS else _check_many(batch, known)


def _check_many(batch: Sequence[NewRecord], known: Container[str]) -> int:
    """Check a large batch by column: records of one batch are mostly alike, so common parts are checked once.

    An unusual batch falls back to ``_check_each``."""
    topics, payloads, keys, headers = zip(*batch, strict=True)
    are_usual = {*map(type, topics)} == {str} and {*map(type, payloads)} <= BYTES
    if not are_usual or keys.count(None) < len(keys) or len({*map(id, headers)}) > 1:
        return _check_each(batch, known)
    if not all(_is_flat(one) for one in payloads if type(one) is memoryview):
        return _check_each(batch, known)
    sizes = [*map(len, payloads)]
    if max(sizes) > PLAIN:
        return _check_each(batch, known)
    if headers[0]:
        check_record(batch[0])
    for topic in dict.fromkeys(topics):
        if topic not in known:
            check_topic(topic)
    return sum(sizes)


def _check_each(batch: Sequence[NewRecord], known: Container[str]) -> int:
    size = 0
    same: Mapping[str, str] = NO_HEADERS  # records of one batch may share their headers
    for record in batch:
        topic, payload, key, headers = record
        if type(topic) is not str or type(payload) is not bytes or len(payload) > PLAIN or key is not None:
            check_record(record)
        elif headers and headers is not same:
            check_record(record)
            same = headers
        elif topic not in known:
            check_topic(topic)
        size += len(payload)
    return size


def _is_flat(view: memoryview) -> bool:
    """Return whether the view is one-dimensional contiguous bytes, so that its length is its size."""
    return view.ndim == 1 and view.itemsize == 1 and view.c_contiguous


def _checked_key(key: object) -> int:
    if not isinstance(key, str):
        raise BadInput(f"must be a string, not {type(key).__name__}", field="key")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise BadInput("is not valid text", field="key") from None
    if size > MAX_PART:
        raise TooLarge(f"{size} bytes, at most {MAX_PART}", field="key")
    return size


def _checked_headers(headers: object) -> bytes:
    if not isinstance(headers, Mapping):
        raise BadInput(f"must be names and strings, not {type(headers).__name__}", field="headers")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadInput(f"{str(name)[:60]!r} must be a string with a string", field="headers")
    try:
        data = _encode_headers(dict(headers))
    except (UnicodeEncodeError, msgspec.MsgspecError):
        raise BadInput("contain invalid text", field="headers") from None
    if len(data) > MAX_PART:
        raise TooLarge(f"{len(data)} bytes, at most {MAX_PART}", field="headers")
    return data


# -- single frames -----------------------------------------------------------------------------------------------------


def encode_batch(
    records: Sequence[NewRecord], sequence: int, at_ns: int, known: Mapping[str, int], *, synced: bool
) -> EncodedBatch:
    """Encode checked records as frames with sequences from ``sequence`` on. ``known`` has the latest sequence of each
    topic; it is not changed. ``synced`` marks the first frame."""
    if sequence + len(records) - 1 > MAX_SEQUENCE:
        raise TooLarge(f"sequences end at {MAX_SEQUENCE}", field="sequence")
    parts: list[bytes] = []
    offsets: list[int] = []
    topics: dict[str, int] = {}
    at = 0
    marks = SYNCED if synced else 0
    same, header_bytes = NO_HEADERS, b""
    current, name, number = "", b"", 0  # records of one batch mostly have the same topic
    tail, name_size, header_bytes_size = b"", 0, 0
    for topic, payload, key, headers in records:
        if topic != current or headers is not same:
            if topic != current:
                topics[current] = number
                current, name, number = topic, topic.encode(), topics.get(topic) or known.get(topic, 0)
            if headers is not same:
                same, header_bytes = headers, _encode_headers(dict(headers)) if headers else b""
            tail, name_size, header_bytes_size = name + header_bytes, len(name), len(header_bytes)
        number += 1
        if key is None:
            inner = _pack_inner(sequence, number, at_ns, marks, name_size, 0, header_bytes_size) + tail
        else:
            inner = _inner_with_key(sequence, number, at_ns, marks, name, key, header_bytes)
        size = CRC_FROM + len(inner) + len(payload)
        parts += (_pack_outer(size - LENGTH_FROM, SIGN, crc32(payload, crc32(inner))), inner, payload)
        offsets.append(at)
        at += size
        sequence += 1
        marks = 0
    topics[current] = number
    topics.pop("", None)
    return EncodedBatch(b"".join(parts), offsets, topics)


def _inner_with_key(
    sequence: int, number: int, at_ns: int, marks: int, name: bytes, key: str, header_bytes: bytes
) -> bytes:
    spelt = key.encode()
    head = _pack_inner(sequence, number, at_ns, marks | HAS_KEY, len(name), len(spelt), len(header_bytes))
    return b"".join((head, name, spelt, header_bytes))


def encode(record: Record, *, synced: bool = False) -> bytes:
    """Encode one record with the sequences that it has."""
    new = NewRecord(record.topic, record.payload, record.key, record.headers)
    known = {record.topic: record.topic_sequence - 1}
    return encode_batch([new], record.sequence, record.at_ns, known, synced=synced).data


def read_head(data: bytes | memoryview, at: int = 0) -> RecordHead | None:
    """Return the header of the frame that begins at ``at``; None if there is no frame. At least ``HEAD`` bytes must
    follow ``at``."""
    length, sign, crc, sequence, number, at_ns, marks, topic_size, key_size, headers_size = _unpack(data, at)
    size = length + LENGTH_FROM
    if sign != SIGN or not HEAD + topic_size + key_size + headers_size <= size <= MAX_RECORD:
        return None
    return new_head((size, crc, sequence, number, at_ns, marks, topic_size, key_size, headers_size))


def is_sound(data: bytes | memoryview, at: int, head: RecordHead) -> bool:
    """Return whether the checksum of the whole frame at ``at`` is correct."""
    return crc32(memoryview(data)[at + CRC_FROM : at + head.size]) == head.crc


def topic_at(data: bytes | memoryview, at: int, head: RecordHead) -> bytes:
    return bytes(data[at + HEAD : at + HEAD + head.topic_size])


def decode(data: bytes | memoryview, at: int, head: RecordHead) -> Record:
    """Decode the whole frame at ``at``. Raise ``StoreDamaged`` if its checksum differs."""
    return _decode(memoryview(data), at + HEAD, head)


def read_body(body: bytes | memoryview, make: Callable[[tuple[Any, ...]], RecordT] = new_record) -> RecordT:  # type: ignore[assignment]
    """Decode a frame body from ``wire.frames``: a record without its first twelve bytes."""
    if len(body) < HEAD - LENGTH_FROM:
        raise BadInput(f"a record of {len(body)} bytes, at least {HEAD - LENGTH_FROM}", field="body")
    head = new_head((len(body) + LENGTH_FROM, *_unpack_body(body)))
    if HEAD + head.topic_size + head.key_size + head.headers_size > head.size:
        raise BadInput(f"record {head.sequence} is longer than its frame", field="body")
    return _decode(memoryview(body), HEAD - LENGTH_FROM, head, make)


def _decode(
    data: memoryview,
    topic_from: int,
    head: RecordHead,
    make: Callable[[tuple[Any, ...]], RecordT] = new_record,  # type: ignore[assignment]
) -> RecordT:
    size, crc, sequence, number, at_ns, marks, topic_size, key_size, headers_size = head
    end = topic_from + size - HEAD
    if crc32(data[topic_from - INNER.size : end]) != crc:
        raise StoreDamaged(f"record {sequence} is damaged: its checksum differs")
    key_from = topic_from + topic_size
    headers_from = key_from + key_size
    payload_from = headers_from + headers_size
    try:
        topic = str(data[topic_from:key_from], "utf-8")
        key = str(data[key_from:headers_from], "utf-8") if marks & HAS_KEY else None
        headers = _decode_headers(data[headers_from:payload_from]) if headers_size else NO_HEADERS
    except (UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise BadInput(f"record {sequence} cannot be read: {error}", field="body") from None
    return make((sequence, number, at_ns, topic, key, headers, data[payload_from:end].tobytes()))


class RecordReader:
    """Record reader: accepts any split of a stream and yields whole records. After an error the stream cannot be
    resynchronized: close it."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._most = max_frame + LENGTH_FROM
        self._buffer = bytearray()
        self._need = HEAD

    @property
    def held(self) -> int:
        """Bytes of an unfinished record kept in memory."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> Iterator[Record]:
        """Yield the whole records received so far. A caller that stops early resumes with ``feed(b"")``."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._need:
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        view = memoryview(data)
        at, end = 0, len(view)
        self._need = HEAD
        try:
            while end - at >= HEAD:
                head = read_head(view, at)
                if head is None or head.size > self._most:
                    raise _refusal(view, at, self._most)
                if end - at < head.size:
                    self._need = head.size
                    break
                begin = at
                at += head.size
                yield _decode(view, begin + HEAD, head)
        finally:
            self._buffer += view[at:]


def _refusal(data: memoryview, at: int, most: int) -> BadInput:
    length, sign = struct.unpack_from(">I8s", data, at)
    if sign == SIGN and length + LENGTH_FROM > most:
        return TooLarge(f"a frame of {length} bytes, at most {most - LENGTH_FROM}", field="length")
    if sign == SIGN:
        return BadInput("its parts are longer than the frame", field="length")
    return BadInput(f"no record begins with {bytes(data[at : at + LENGTH_FROM]).hex(' ')}", field="kind")


# -- frames in bulk ----------------------------------------------------------------------------------------------------

new_new_record = cast("Callable[[tuple[Any, ...]], NewRecord]", partial(tuple.__new__, NewRecord))


class FrameSummary(NamedTuple):
    """Summary of consecutive frames: ``topics`` as encoded, ``largest`` in bytes of a whole frame. ``is_bare``: no
    record has headers, and every key is UTF-8 text."""

    records: int
    topics: frozenset[bytes]
    is_bare: bool
    largest: int


def summarize(data: bytes) -> FrameSummary:
    """Check consecutive frames and summarize them. Raise ``BadInput`` unless they are whole records with correct
    checksums."""
    at, count, end, largest, is_bare = 0, 0, len(data), 0, True
    view = memoryview(data)
    topics: set[bytes] = set()
    last = None
    while at < end:
        if end - at < HEAD:
            raise _no_record(at)
        length, sign, crc, _, _, _, marks, topic_size, key_size, headers_size = _unpack(data, at)
        body = at + HEAD + topic_size
        after = at + length + LENGTH_FROM
        is_whole = body + key_size + headers_size <= after <= end and sign == SIGN
        if not is_whole or crc32(view[at + CRC_FROM : after]) != crc:
            raise _no_record(at)
        topic = data[at + HEAD : body]
        if topic != last:
            topics.add(topic)
            last = topic
        if length > largest:
            largest = length
        if headers_size or (marks & HAS_KEY and is_bare and not _is_text(data[body : body + key_size])):
            is_bare = False
        count += 1
        at = after
    largest += LENGTH_FROM
    if largest > MAX_RECORD:
        raise BadInput(f"a record of {largest} bytes, at most {MAX_RECORD}", field="body")
    return FrameSummary(count, frozenset(topics), is_bare, largest)


def _no_record(at: int) -> BadInput:
    return BadInput(f"no whole record begins at byte {at}", field="body")


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_bare(data: memoryview, prefix: int, headers: Mapping[str, str]) -> list[NewRecord]:
    """Decode new records from checked bare frames, and give each ``headers``.

    ``prefix`` is the number of leading topic bytes that are not part of its name. Payloads are views of ``data``,
    without a copy."""
    at, end = 0, len(data)
    found: list[NewRecord] = []
    last, topic = b"", ""
    while at < end:
        length, _, _, _, _, _, marks, topic_size, key_size, _ = _unpack(data, at)
        key_from = at + HEAD + topic_size
        payload_from = key_from + key_size
        name = data[at + HEAD : key_from]
        if name != last:
            last, topic = name.tobytes(), str(name[prefix:], "utf-8")
        key = str(data[key_from:payload_from], "utf-8") if marks & HAS_KEY else None
        at += length + LENGTH_FROM
        found.append(new_new_record((topic, data[payload_from:at], key, headers)))
    return found


def read_many(data: bytes) -> list[Record]:
    """Decode consecutive frames that were checked before: no checksum is compared. Records with equal headers share
    one mapping. Raise ``BadInput`` if the data is not whole records."""
    at, end = 0, len(data)
    found: list[Record] = []
    topics: dict[bytes, str] = {}
    maps: dict[bytes, Mapping[str, str]] = {b"": NO_HEADERS}
    while at < end:
        head = read_head(data, at) if end - at >= HEAD else None
        if head is None or at + head.size > end:
            raise BadInput(f"no whole record begins at byte {at}", field="body")
        size, _, sequence, number, at_ns, marks, topic_size, key_size, headers_size = head
        key_from = at + HEAD + topic_size
        headers_from = key_from + key_size
        payload_from = headers_from + headers_size
        name, raw = data[at + HEAD : key_from], data[headers_from:payload_from]
        try:
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = name.decode()
            headers = maps.get(raw)
            if headers is None:
                headers = maps[raw] = _decode_headers(raw)
            key = data[key_from:headers_from].decode() if marks & HAS_KEY else None
        except (UnicodeDecodeError, msgspec.MsgspecError) as error:
            raise BadInput(f"record {sequence} cannot be read: {error}", field="body") from None
        at += size
        found.append(new_record((sequence, number, at_ns, topic, key, headers, data[payload_from:at])))
    return found
