"""Packed payloads: payloads of messages published together, concatenated in one row of ``content``.

Such a message has an integer in its column ``payload`` (schema/005-content.sql): the offset shifted by 25 bits, the
length in 24 bits, and a last bit for JSON. A row holds up to 64 KiB; a payload over 16 KiB stays in its own message
row.

A row is deleted when no message refers to it any more. The payload of a message that will stay long, such as a dead
letter, is unpacked first. The column ``sizes`` serves salvage: it locates payloads if rows of ``message`` are lost."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from struct import iter_unpack, pack

from yirangmq.core.message import Envelope, is_json_of, payload_of
from yirangmq.stores.sqlite.cache import ContentRow
from yirangmq.stores.sqlite.statements import (
    ADD_CONTENT,
    LENGTH,
    SET_BYTES,
    SET_JSON,
    SWEEP,
    Statement,
    StatementExecutor,
    seq_statement,
)

NewRow = tuple[int, int, bytes, bytes]
"""A new row of ``content``: first and last message number, sizes, and the bytes."""

MAX_ROW_BYTES = 64 * 1024
"""Maximum length of a row, in bytes: the space that a few remaining messages can keep from being freed."""
MAX_PACKED_BYTES = 16 * 1024
"""Maximum length of a packed payload, in bytes. A larger one fills whole pages in its own row anyway."""
MAX_CACHED_ROWS = 4
"""Number of cached rows, so that reading messages one by one, or half a row at a time, reads the row once."""
MAX_SWEEP_GAP = 1000
"""Distance of two released message numbers up to which one sweep over both is cheaper than two sweeps."""
NOT_PACKED = (1 << 32) - 1
"""Entry in the column ``sizes`` for a message with its payload in its own row."""
OFFSET_SHIFT = 25
"""Shift of the offset in the integer of a packed payload; ``LENGTH`` masks the length. Its last bit is 1 for JSON."""
CONTENT_OF = Statement("SELECT first, last, data FROM content WHERE first <= ? ORDER BY first DESC LIMIT 1")
SELECT_PACKED = seq_statement("SELECT seq, payload FROM message WHERE typeof(payload) = 'integer' AND seq ")


def unpacked_payloads(envelopes: Sequence[Envelope]) -> list[str | bytes]:
    """Return the column ``payload`` of messages with unpacked payloads: TEXT is JSON, BLOB is other bytes."""
    return [envelope.payload.decode() if envelope.is_json else envelope.payload for envelope in envelopes]


def pack_payloads(first: int, envelopes: Sequence[Envelope]) -> tuple[list[int | str | bytes], list[NewRow]]:
    """Pack the payloads of messages numbered from ``first``. Return their column ``payload`` and the rows of
    ``content``."""
    payloads = [*map(payload_of, envelopes)]
    lengths = [*map(len, payloads)]
    if max(lengths, default=0) > MAX_PACKED_BYTES:
        return _laid_where_it_fits(first, envelopes)
    extents = [length << 1 | is_json for length, is_json in zip(lengths, map(is_json_of, envelopes), strict=True)]
    begins = [0, *accumulate(lengths)]
    column: list[int | str | bytes] = []
    rows: list[NewRow] = []
    low = 0
    while low < len(lengths):
        base = begins[low]
        high = bisect_right(begins, base + MAX_ROW_BYTES, low) - 1
        sizes = extents[low:high]
        column += [begin - base << OFFSET_SHIFT | extent for begin, extent in zip(begins[low:high], sizes, strict=True)]
        rows.append(_row(first + high - 1, sizes, payloads[low:high]))
        low = high
    return column, rows


def _laid_where_it_fits(first: int, envelopes: Sequence[Envelope]) -> tuple[list[int | str | bytes], list[NewRow]]:
    """Pack the payloads that are small enough; the others stay in their own rows."""
    column: list[int | str | bytes] = []
    rows: list[NewRow] = []
    parts: list[bytes] = []
    sizes: list[int] = []
    size = 0
    for seq, envelope in enumerate(envelopes, first):
        payload, is_json = envelope.payload, envelope.is_json
        length = len(payload)
        if length > MAX_PACKED_BYTES:
            column.append(payload.decode() if is_json else payload)
            sizes.append(NOT_PACKED)
            continue
        if size + length > MAX_ROW_BYTES:
            rows.append(_row(seq - 1, sizes, parts))
            sizes, parts, size = [], [], 0
        extent = length << 1 | is_json
        column.append(size << OFFSET_SHIFT | extent)
        sizes.append(extent)
        parts.append(payload)
        size += length
    if parts:
        rows.append(_row(first + len(envelopes) - 1, sizes, parts))
    return column, rows


def _row(last: int, sizes: list[int], parts: list[bytes]) -> NewRow:
    return last - len(sizes) + 1, last, pack(f"<{len(sizes)}I", *sizes), b"".join(parts)


def number_of(place: int, sizes: bytes) -> int | None:
    """Compute the column ``payload`` of the message at an index of a row of ``content``, for a message that lost its
    own row. Return None if its payload was not packed."""
    extents: list[int] = [extent for (extent,) in iter_unpack("<I", sizes[: 4 * place + 4])]
    if len(extents) <= place or extents[place] == NOT_PACKED:
        return None
    return sum(extent >> 1 for extent in extents[:place] if extent != NOT_PACKED) << OFFSET_SHIFT | extents[place]


def part(data: bytes, number: int) -> bytes | None:
    """Return the payload that ``number`` locates in ``data``, or None if ``data`` is too short."""
    begin = number >> OFFSET_SHIFT
    end = begin + (number >> 1 & LENGTH)
    return data[begin:end] if begin >= 0 and end <= len(data) else None


class Contents:
    """The table ``content`` inside a transaction: lookup, packing, unpacking, and deletion of unused rows."""

    def __init__(self, db: StatementExecutor, kept: list[ContentRow] | None = None) -> None:
        """``kept``: the rows read last. They stay valid across transactions: a packed payload never changes, and no
        message number is used twice."""
        self._db = db
        self._kept = [] if kept is None else kept
        self.unswept: list[tuple[int, int]] = []

    def row(self, seq: int) -> ContentRow | None:
        """Return the row that covers the number of a message, or None."""
        for row in self._kept:
            if row[0] <= seq <= row[1]:
                return row
        found: ContentRow | None = self._db.execute(CONTENT_OF, (seq,)).fetchone()
        if found is None or found[1] < seq:
            return None
        if len(self._kept) >= MAX_CACHED_ROWS:
            del self._kept[0]
        self._kept.append(found)
        return found

    def payload(self, seq: int, column: int | str | bytes) -> tuple[bytes, bool]:
        """Return the bytes of the column ``payload``, and whether they are JSON. Raise ``UnicodeDecodeError`` if text
        does not decode or the packed payload is missing, as apsw does for SQLite's own text."""
        if isinstance(column, str):
            return column.encode(), True
        if isinstance(column, bytes):
            return column, False
        body = self.bytes_of(seq, column)
        if body is None:
            raise missing(seq)
        if column & 1 and not body.isascii():
            body.decode()
        return body, column & 1 == 1

    def bytes_of(self, seq: int, number: int) -> bytes | None:
        row = self.row(seq)
        return None if row is None else part(row[2], number)

    # -- changes --------------------------------------------------------------------------------------------------

    def add(self, rows: Sequence[NewRow]) -> None:
        self._db.executemany(ADD_CONTENT, rows)

    def unpack(self, seqs: Sequence[int]) -> None:
        """Unpack the payloads of messages that stay longer than their neighbours."""
        texts: list[tuple[bytes, int]] = []
        others: list[tuple[bytes, int]] = []
        for seq, number in list(self._db.execute(*SELECT_PACKED.among(seqs))):
            body = self.bytes_of(seq, number)
            if body is not None:
                (texts if number & 1 else others).append((body, seq))
        self._db.executemany(SET_JSON, texts)
        self._db.executemany(SET_BYTES, others)
        for _, seq in (*texts, *others):
            self.removed(seq, seq)

    def removed(self, first: int, last: int) -> None:
        """Note that these messages no longer have packed payloads; ``sweep`` checks their rows."""
        self.unswept.append((first, last))

    def sweep(self) -> None:
        """Delete the rows that no message uses any more, among those noted by ``removed``."""
        low, high = (removed := sorted(self.unswept))[0]
        for first, last in removed:
            if first > high + MAX_SWEEP_GAP:
                self._db.execute(SWEEP, (low, high))
                low = first
            high = max(high, last)
        self._db.execute(SWEEP, (low, high))
        self.unswept.clear()


def missing(seq: int) -> UnicodeDecodeError:
    """Build the error for a packed payload that is not in its row."""
    return UnicodeDecodeError("content", b"", 0, 0, f"the payload of message {seq} is not there")
