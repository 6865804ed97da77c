"""Format of the redo log ``queue.db-redo``: records, and the reader of the format before it (docs/redo-log.md).

A record holds the changes of one commit: statement numbers (``stores.sqlite.statements``) with their values::

    head  <IIQI: bytes of the body, CRC-32 of all that follows, generation, number of the record
    body  one byte, the format (1), then MessagePack: an array of changes;
          a change is an array: number of the statement, whether it is for many rows, values or rows

The records of versions before 0.2 have a body in Python's marshal format with the text of the statements. Its first
byte is 0x28 or 0x5b. This version reads them, so that a server of such a version may be killed and replaced; it writes
none."""

import marshal
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from yirangmq.core.errors import StoreTooNew
from yirangmq.stores.sqlite.statements import STATEMENTS

LoggedStatement = tuple[int, bool, Any]
"""Number of a statement, whether it was executed for many rows, and its values or rows."""
ReadStatement = tuple[str, bool, Any]
"""Text of a statement, whether it is for many rows, and its values or rows."""
HEAD = struct.Struct("<IIQI")
"""Header of a record: bytes of the body, checksum of all that follows, generation, number of the record."""
FORMAT = b"\x01"
"""First byte of a body: the version of its format."""
MARSHAL = (b"(", b"[")
"""First bytes of a body in the format of versions before 0.2: a tuple, or a list."""
_CHECKED = struct.Struct("<QI")
"""The part of the header that the checksum covers: generation and number."""


class RedoPosition(NamedTuple):
    """Position in the redo log: the first record that is not in the SQLite file."""

    generation: int
    number: int = 0
    at: int = 0
    """Offset of the record in bytes; if it did not fit there, it is at offset 0."""


def record(generation: int, number: int, body: bytes) -> bytes:
    """Build a record with its header."""
    from zlib import crc32  # an idle server does not load it

    checksum = crc32(body, crc32(_CHECKED.pack(generation, number)))
    return HEAD.pack(len(body), checksum, generation, number) + body


def bodies(data: bytes, position: RedoPosition) -> Iterator[bytes]:
    """Yield the bodies of the valid records, up to the first incomplete one."""
    generation, number, at = position
    while True:
        body = _body_at(data, at, generation, number)
        if body is None and at:
            at = 0
            body = _body_at(data, at, generation, number)
        if body is None:
            return
        yield body
        at, number = at + HEAD.size + len(body), number + 1


def _body_at(data: bytes, at: int, generation: int, number: int) -> bytes | None:
    from zlib import crc32

    start = at + HEAD.size
    if start > len(data):
        return None
    length, expected, of, numbered = HEAD.unpack_from(data, at)
    if of != generation or numbered != number or not length or start + length > len(data):
        return None
    checked = memoryview(data)[start - _CHECKED.size : start + length]
    return data[start : start + length] if crc32(checked) == expected else None


def commits(data: bytes, position: RedoPosition) -> Iterator[list[ReadStatement]]:
    """Yield the statements of each valid record, in order. Raise ``StoreTooNew`` for a record of a newer version."""
    texts: list[str] = []
    for body in bodies(data, position):
        if body.startswith(FORMAT):
            yield _decode(body)
        elif body.startswith(MARSHAL):
            yield _decode_marshal(body, texts)
        else:
            raise StoreTooNew(
                f"the redo log has records of format {body[0]}, this version knows format {FORMAT[0]}; "
                "upgrade yirangmq to open the store"
            )


def read(data: bytes, position: RedoPosition) -> Iterator[ReadStatement]:
    """Yield the statements of all valid records, in order."""
    for commit in commits(data, position):
        yield from commit


def _decode(body: bytes) -> list[ReadStatement]:
    from yirangmq.format.messagepack import unpack  # only after a crash

    try:
        return [(STATEMENTS[number], is_many, values) for number, is_many, values in unpack(body[1:])]
    except KeyError as error:
        raise StoreTooNew(
            f"the redo log has statement {error}, which this version does not know; upgrade yirangmq to open the store"
        ) from None


def _decode_marshal(body: bytes, texts: list[str]) -> list[ReadStatement]:
    """Decode a record of a version before 0.2: new statement texts, changes, and whether the numbers of the texts
    restart. ``texts``: the texts of the records before it, which this function updates."""
    new, changes, *starts_table = marshal.loads(body)
    if starts_table == [True]:
        texts.clear()
    texts += new
    return [(texts[number], is_many, values) for number, is_many, values in changes]


def first_position(data: bytes) -> RedoPosition:
    """Return the position in the first header of ``data``."""
    return RedoPosition(*HEAD.unpack_from(data)[2:4]) if len(data) >= HEAD.size else RedoPosition(0)
