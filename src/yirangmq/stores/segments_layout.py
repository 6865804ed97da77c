"""What lies in a segment's file, in this order:

    head        96 bytes: whose log, which epoch, the first sequence
    state       one frame of kind 21: each topic's numbers before the first record here
    records     frames as they are sent (wire/records.py)
    index       one frame of kind 22, written when the segment is sealed: the topics' numbers after the last record,
                and every so often (sequence, time, offset)
    seal        64 bytes, the last of the file: the last sequence, the times, where the index begins

A segment in use ends in zeros, or in what lay in its file before it was used again; it has neither index nor seal.
Both can be made anew from the records. Sans-IO; ``docs/log.md`` draws it."""

import re
import struct
from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

import msgspec

from yirangmq.core.errors import StoreDamaged, StoreTooNew

VERSION = 1
SIGN = b"YRGMQLOG"
SEAL_SIGN = b"YRGMQEND"
STATE, INDEX = 21, 22
_HEAD = struct.Struct(">8sHHI16s16sQQQ24x")
_SEAL = struct.Struct(">8sHHIQQQQQ8x")
_FRAME = struct.Struct(">IBBHII")
HEAD_SIZE, SEAL_SIZE, FRAME_HEAD = _HEAD.size, _SEAL.size, _FRAME.size
CRC_FROM = 12
NAME = re.compile(r"([0-9]{20})\.log")
SPARE = "spare"
"""How the names of files begin that are prepared to become segments."""


class Head(NamedTuple):
    """``before``: the epoch of the segment before; another than ``epoch`` only where the feed began anew.
    ``begin``: where the first record lies."""

    epoch: bytes
    before: bytes
    first: int
    made_ns: int
    begin: int


class Seal(NamedTuple):
    """``end``: where the records end and the index begins."""

    first: int
    last: int
    first_ns: int
    last_ns: int
    end: int


class Topic(NamedTuple):
    """A topic's latest record, and the bytes of all its frames since the log began."""

    topic_sequence: int
    sequence: int
    at_ns: int
    size: int


State = dict[str, Topic]


class Mark(NamedTuple):
    """A record that can be found without walking: one of the sparse index."""

    sequence: int
    at_ns: int
    offset: int


class Summary(NamedTuple):
    state: State
    marks: list[Mark]


_pack = msgspec.msgpack.Encoder().encode
_read_state = msgspec.msgpack.Decoder(list[tuple[str, int, int, int, int]]).decode
_read_index = msgspec.msgpack.Decoder(tuple[list[tuple[str, int, int, int, int]], list[tuple[int, int, int]]]).decode


def file_name(first: int) -> str:
    return f"{first:020d}.log"


def first_of(name: str) -> int | None:
    """The first sequence of the segment of that name; None: it is no segment's name."""
    found = NAME.fullmatch(name)
    return int(found[1]) if found else None


def write_head(head: Head) -> bytes:
    fields = (head.epoch, head.before, head.first, head.made_ns, head.begin)
    return _HEAD.pack(SIGN, VERSION, 0, _crc(_HEAD.pack(SIGN, VERSION, 0, 0, *fields)), *fields)


def read_head(data: bytes) -> Head:
    """``StoreDamaged`` where this is none, ``StoreTooNew`` where it is of a later version."""
    if len(data) < HEAD_SIZE or data[:8] != SIGN:
        raise StoreDamaged("it does not begin as a segment does")
    _, version, _, crc, *fields = _HEAD.unpack_from(data)
    if crc != _crc(data[:HEAD_SIZE]):
        raise StoreDamaged("its head does not hold what was written")
    if version > VERSION:
        raise StoreTooNew(f"a segment of version {version}; this yirangmq knows {VERSION}")
    return Head(*fields)


def write_seal(seal: Seal) -> bytes:
    return _SEAL.pack(SEAL_SIGN, VERSION, 0, _crc(_SEAL.pack(SEAL_SIGN, VERSION, 0, 0, *seal)), *seal)


def read_seal(data: bytes) -> Seal | None:
    """From the last bytes of a file; None: it is not sealed, or not wholly."""
    if len(data) != SEAL_SIZE or data[:8] != SEAL_SIGN:
        return None
    _, version, _, crc, *fields = _SEAL.unpack(data)
    return Seal(*fields) if version == VERSION and crc == _crc(data) else None


def _crc(data: bytes) -> int:
    """Of all but the four bytes that hold it, in every version."""
    return crc32(data[CRC_FROM + 4 :], crc32(data[:CRC_FROM]))


def write_state(state: Mapping[str, Topic]) -> bytes:
    return _frame(STATE, _pack([(name, *topic) for name, topic in state.items()]))


def read_state(data: bytes) -> State:
    try:
        return {name: Topic(*numbers) for name, *numbers in _read_state(_body(STATE, data))}
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"the state of its topics cannot be read: {error}") from None


def write_index(summary: Summary) -> bytes:
    return _frame(INDEX, _pack(([(name, *topic) for name, topic in summary.state.items()], summary.marks)))


def read_index(data: bytes) -> Summary:
    try:
        topics, marks = _read_index(_body(INDEX, data))
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"its index cannot be read: {error}") from None
    return Summary({name: Topic(*numbers) for name, *numbers in topics}, [Mark(*mark) for mark in marks])


def _frame(kind: int, body: bytes) -> bytes:
    return _FRAME.pack(len(body) + 4, 1, kind, 0, 0, crc32(body)) + body


def _body(kind: int, data: bytes) -> bytes:
    what = "the state of its topics" if kind == STATE else "its index"
    if len(data) < FRAME_HEAD:
        raise StoreDamaged(f"{what} is cut off")
    length, version, found, flags, request, crc = _FRAME.unpack_from(data)
    body = data[FRAME_HEAD : length + FRAME_HEAD - 4]
    if (version, found, flags, request) != (1, kind, 0, 0) or len(body) != length - 4 or crc32(body) != crc:
        raise StoreDamaged(f"{what} does not hold what was written")
    return body
