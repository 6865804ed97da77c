"""Record frames by the thousand, as a pipeline brings them: looked through once when they come, and read later without
another look at what is known. Sans-IO."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from yirangmq.core.errors import BadInput
from yirangmq.core.topics import NO_HEADERS, NewRecord, Record
from yirangmq.wire.checksum import crc32
from yirangmq.wire.records import (
    CRC_FROM,
    HAS_KEY,
    HEAD,
    LENGTH_FROM,
    MOST_RECORD,
    SIGN,
    _unpack,
    new_record,
    read_head,
)

decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode
new_new_record = cast("Callable[[tuple[Any, ...]], NewRecord]", partial(tuple.__new__, NewRecord))


class Survey(NamedTuple):
    """What frames in a row hold: ``topics`` as they are spelt, ``largest`` in bytes of a whole frame. ``is_bare``: none
    has headers, and every key is text."""

    records: int
    topics: frozenset[bytes]
    is_bare: bool
    largest: int


def survey(data: bytes) -> Survey:
    """Whole and sound records, one after the other; ``BadInput`` if it is anything else."""
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
    if largest > MOST_RECORD:
        raise BadInput(f"a record of {largest} bytes, at most {MOST_RECORD}", field="body")
    return Survey(count, frozenset(topics), is_bare, largest)


def _no_record(at: int) -> BadInput:
    return BadInput(f"no whole record begins at byte {at}", field="body")


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_bare(data: memoryview, prefix: int, headers: Mapping[str, str]) -> list[NewRecord]:
    """Records to be appended, of frames that are known to be bare: these are their headers. ``prefix``: bytes of
    the topic that are not part of its name. Payloads are views of what was given: nothing is copied."""
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
    """Frames in a row whose bytes are known to be what was written: no checksum is compared. Those with the same
    headers share them. ``BadInput`` where it is not whole records."""
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
                headers = maps[raw] = decode_headers(raw)
            key = data[key_from:headers_from].decode() if marks & HAS_KEY else None
        except (UnicodeDecodeError, msgspec.MsgspecError) as error:
            raise BadInput(f"record {sequence} cannot be read: {error}", field="body") from None
        at += size
        found.append(new_record((sequence, number, at_ns, topic, key, headers, data[payload_from:at])))
    return found
