"""MessagePack codec for values of SQLite: msgspec if the process has loaded it, otherwise plain Python.

Both make the same bytes. Importing msgspec takes 2 MB of memory, which an idle server with a few commits saves; a
device without msgspec reads and writes the same files. Values are None, booleans, integers of 64 bits, floating-point
numbers, strings, bytes, and sequences of these."""

import struct
import sys
from collections.abc import Callable
from typing import Any

_FLOAT = struct.Struct(">Bd")
_HEADS: dict[int, struct.Struct] = {0: struct.Struct(">BB"), 1: struct.Struct(">BH"), 2: struct.Struct(">BI")}
_INTEGERS = (
    (0xCC, 0, 0xFF, ">BB"),
    (0xCD, 0, 0xFFFF, ">BH"),
    (0xCE, 0, 0xFFFF_FFFF, ">BI"),
    (0xCF, 0, 0xFFFF_FFFF_FFFF_FFFF, ">BQ"),
    (0xD0, -0x80, -1, ">Bb"),
    (0xD1, -0x8000, -1, ">Bh"),
    (0xD2, -0x8000_0000, -1, ">Bi"),
    (0xD3, -0x8000_0000_0000_0000, -1, ">Bq"),
)
"""First byte, range and layout of the integers that do not fit into one byte; the first that fits is used."""
_FIXED = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I"}
"""Layout of the length of byte strings, strings and arrays."""


def is_msgspec_loaded() -> bool:
    return sys.modules.get("msgspec") is not None


def fast_encoder() -> Callable[[Any], bytes]:
    """Return the encoder of msgspec."""
    from msgspec import msgpack

    return msgpack.Encoder(enc_hook=_plain).encode


def _plain(value: object) -> str:
    """Convert a value that msgspec does not know: a subclass of str."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be packed")


def pack(value: Any) -> bytes:
    """Encode a value in plain Python."""
    parts: list[bytes] = []
    _pack(value, parts)
    return b"".join(parts)


def _pack(value: Any, parts: list[bytes]) -> None:
    if value is None:
        parts.append(b"\xc0")
    elif isinstance(value, bool):
        parts.append(b"\xc3" if value else b"\xc2")
    elif isinstance(value, int):
        parts.append(_integer(value))
    elif isinstance(value, float):
        parts.append(_FLOAT.pack(0xCB, value))
    elif isinstance(value, str):
        data = value.encode()
        parts.append(bytes((0xA0 | len(data),)) if len(data) < 32 else _head(0xD9, 0, len(data)))
        parts.append(data)
    elif isinstance(value, bytes | bytearray | memoryview):
        parts.append(_head(0xC4, 0, len(value)))
        parts.append(bytes(value))
    elif isinstance(value, list | tuple):
        parts.append(bytes((0x90 | len(value),)) if len(value) < 16 else _head(0xDC, 1, len(value)))
        for one in value:
            _pack(one, parts)
    else:
        raise TypeError(f"a {type(value).__name__} cannot be packed")


def _integer(value: int) -> bytes:
    if -32 <= value < 128:
        return bytes((value & 0xFF,))
    for first, low, high, layout in _INTEGERS:
        if low <= value <= high:
            return struct.pack(layout, first, value)
    raise OverflowError(f"{value} has more than 64 bits")


def _head(first: int, smallest: int, length: int) -> bytes:
    """Return the head of a sequence: ``first`` is its first byte with the smallest length field."""
    size = max(smallest, 0 if length < 0x100 else 1 if length < 0x10000 else 2)
    return _HEADS[size].pack(first + size - smallest, length)


def unpack(data: bytes) -> Any:
    """Decode a value. Raise ``ValueError`` for bytes that are no such value."""
    if is_msgspec_loaded():
        from msgspec import msgpack

        return msgpack.decode(data)
    try:
        value, end = _unpack(data, 0)
    except (IndexError, struct.error) as error:
        raise ValueError(f"MessagePack is cut off: {error}") from None
    if end != len(data):
        raise ValueError(f"MessagePack has {len(data) - end} bytes behind its end")
    return value


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    first, at = data[at], at + 1
    if first < 0x80:
        return first, at
    if first >= 0xE0:
        return first - 0x100, at
    if first in _CONSTANTS:
        return _CONSTANTS[first], at
    if first == 0xCB:
        return struct.unpack_from(">d", data, at)[0], at + 8
    for known, _, _, layout in _INTEGERS:
        if first == known:
            _, value = struct.unpack_from(layout, data, at - 1)
            return value, at - 1 + struct.calcsize(layout)
    if first in _FIXED:
        [length] = struct.unpack_from(_FIXED[first], data, at)
        at += struct.calcsize(_FIXED[first])
    elif first & 0xE0 == 0xA0:
        first, length = 0xD9, first & 0x1F
    elif first & 0xF0 == 0x90:
        first, length = 0xDC, first & 0x0F
    else:
        raise ValueError(f"MessagePack has a value that begins with {first:#x}")
    if first >= 0xDC:
        return _unpack_items(data, at, length)
    end = at + length
    if end > len(data):
        raise IndexError(end)
    return (data[at:end].decode() if first >= 0xD9 else data[at:end]), end


_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def _unpack_items(data: bytes, at: int, length: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(length):
        value, at = _unpack(data, at)
        found.append(value)
    return found, at
