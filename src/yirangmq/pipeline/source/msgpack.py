"""MessagePack subset of the log: headers of a frame (map of strings to strings), and a segment's index."""

import struct
from collections.abc import Mapping

from yirangmq.pipeline.source.errors import SourceError

MAX_TEXT_BYTES = 65_535
"""Upper bound of a frame's headers, of its key and of a single header, in bytes."""


def read_map(view: memoryview, at: int) -> dict[str, str]:
    first = view[at]
    if first & 0xF0 == 0x80:
        count, at = first & 0x0F, at + 1
    elif first == 0xDE:
        count, at = struct.unpack_from(">H", view, at + 1)[0], at + 3
    else:
        raise SourceError("the headers of a record cannot be read")
    found: dict[str, str] = {}
    for _ in range(count):
        name, at = read_text(view, at)
        found[name], at = read_text(view, at)
    return found


def read_text(view: memoryview, at: int) -> tuple[str, int]:
    first = view[at]
    if first & 0xE0 == 0xA0:
        size, at = first & 0x1F, at + 1
    elif first == 0xD9:
        size, at = view[at + 1], at + 2
    elif first == 0xDA:
        size, at = struct.unpack_from(">H", view, at + 1)[0], at + 3
    else:
        raise SourceError("a text of a record cannot be read")
    return str(view[at : at + size], "utf-8", "replace"), at + size


def read_count(view: memoryview, at: int) -> tuple[int, int]:
    """Return the number of elements of an array, and the offset of the first element."""
    first = view[at]
    if first & 0xF0 == 0x90:
        return first & 0x0F, at + 1
    if first == 0xDC:
        return struct.unpack_from(">H", view, at + 1)[0], at + 3
    if first == 0xDD:
        return struct.unpack_from(">I", view, at + 1)[0], at + 5
    raise SourceError("the index of a segment cannot be read")


def read_whole(view: memoryview, at: int) -> tuple[int, int]:
    first = view[at]
    if first < 0x80:
        return first, at + 1
    for sign, form, size in ((0xCC, ">B", 1), (0xCD, ">H", 2), (0xCE, ">I", 4), (0xCF, ">Q", 8)):
        if first == sign:
            return struct.unpack_from(form, view, at + 1)[0], at + 1 + size
    raise SourceError("the index of a segment cannot be read")


def write_map(values: Mapping[str, str]) -> bytes:
    """Encode the map; an empty map is encoded as no bytes."""
    if not values:
        return b""
    count = len(values)
    parts = [bytes((0x80 | count,)) if count < 16 else struct.pack(">BH", 0xDE, count)]
    for name, value in values.items():
        parts += (_text(name), _text(value))
    return b"".join(parts)


def _text(value: str) -> bytes:
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise SourceError("a header is not valid text") from None
    if len(raw) < 32:
        return bytes((0xA0 | len(raw),)) + raw
    if len(raw) < 256:
        return bytes((0xD9, len(raw))) + raw
    if len(raw) <= MAX_TEXT_BYTES:
        return struct.pack(">BH", 0xDA, len(raw)) + raw
    raise SourceError(f"a header has {len(raw)} bytes, at most {MAX_TEXT_BYTES}")
