"""Record frames in bulk: heads as numpy columns, parts as Arrow arrays, checksums of one or many frames.

The frame is described in docs/log.md. Records are not processed singly, except for checksums and for headers that
differ.

CRC-32 comes from isal where that package is installed, and from zlib otherwise; isal uses the processor's CRC
instructions. For many frames of the same size a single CRC-32 over all of them is compared with the value that follows
from the stored checksums."""

import struct
from itertools import pairwise
from struct import unpack_from
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from yirangmq.pipeline.source.errors import SourceError
from yirangmq.pipeline.source.msgpack import read_map
from yirangmq.pipeline.source.options import MAP, arrow_type

try:
    from isal.isal_zlib import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32

if TYPE_CHECKING:
    import numpy
    import pyarrow

    Numbers = numpy.ndarray[Any, Any]


# -- frames ------------------------------------------------------------------------------------------------------------

HEAD = 48
"""Bytes before the topic."""
LENGTH_FROM = 12
CRC_FROM = 16
SIGNATURE = bytes((1, 20, 0, 0, 0, 0, 0, 0))
HEAD_COLUMNS = [
    ("length", ">u4"), ("sign", ">u8"), ("crc", ">u4"), ("sequence", ">u8"), ("topic_sequence", ">u8"),
    ("at_ns", ">u8"), ("marks", ">u2"), ("topic_size", ">u2"), ("key_size", ">u2"), ("headers_size", ">u2"),
]  # fmt: skip
HAS_KEY = 1
MAX_FRAME_BYTES = (16 << 20) + LENGTH_FROM
MIN_EQUAL_FRAMES = 16
"""Minimum number of consecutive frames of one size for which a search with one numpy operation is faster than a
walk."""
MAX_WALK = 4096
MAX_COMPARED_HEADER = 512
"""Upper bound of the header size, in bytes, up to which the headers of many frames are compared in one operation."""


class FrameRun(NamedTuple):
    """Run of whole frames in a buffer.

    ``starts`` holds the offset of each frame, ``end`` the offset after the last one. ``step`` is the size of all frames
    if they are equal in size and adjacent. It is 0 if they are not, or if that is not known."""

    buffer: "bytes | memoryview"
    starts: "Numbers"
    end: int
    step: int = 0

    @property
    def last(self) -> int:
        """The sequence of the last frame."""
        number: int = unpack_from(">Q", self.buffer, int(self.starts[-1]) + CRC_FROM)[0]
        return number


def find_frames(buffer: "bytes | memoryview") -> FrameRun:
    """Return the run of whole frames at the beginning of the buffer.

    Only the beginning of one more frame may follow; ``SourceError`` for anything else."""
    run = find_frames_by_length(buffer)
    if len(buffer) - run.end >= HEAD and not _size_at(buffer, run.end):
        raise SourceError("the data contains an invalid record; run 'yirangmq log check'")
    return run


def find_frames_by_length(buffer: "bytes | memoryview") -> FrameRun:
    """Return the run of frames at the beginning of the buffer, found by their lengths alone.

    The contents are not checked. Consecutive frames of one size are found with one numpy operation."""
    import numpy as np

    raw = np.frombuffer(buffer, np.uint8)
    found: list[Any] = []
    at, end, steps, step = 0, len(raw), MIN_EQUAL_FRAMES, 0
    while end - at >= HEAD and (size := _size_at(buffer, at)):
        same = _equal_sized_count(raw, at, size) if (end - at) // size >= MIN_EQUAL_FRAMES else 0
        if same >= MIN_EQUAL_FRAMES:
            found.append(np.arange(at, at + same * size, size, dtype=np.int64))
            at, steps, step = at + same * size, MIN_EQUAL_FRAMES, size
            continue
        starts, at = _step(buffer, at, steps)
        if not starts:
            break
        found.append(np.array(starts, dtype=np.int64))
        steps = min(2 * steps, MAX_WALK)
    if len(found) == 1:
        return FrameRun(buffer, found[0], at, step)
    return FrameRun(buffer, np.concatenate(found) if found else np.empty(0, np.int64), at)


def _size_at(buffer: "bytes | memoryview", at: int) -> int:
    """Return the size of the frame that begins at ``at``, in bytes, or 0 if no frame begins like that."""
    size: int = unpack_from(">I", buffer, at)[0] + LENGTH_FROM
    return size if HEAD <= size <= MAX_FRAME_BYTES else 0


def _equal_sized_count(raw: "Numbers", at: int, size: int) -> int:
    """Return the number of consecutive frames of this size."""
    import numpy as np

    count = (len(raw) - at) // size
    lengths: Numbers = np.ndarray((count,), ">u4", raw, at, (size,))
    differ = (lengths != lengths[0]).nonzero()[0]
    return int(differ[0]) if len(differ) else count


def _step(buffer: "bytes | memoryview", at: int, most: int) -> tuple[list[int], int]:
    starts: list[int] = []
    end = len(buffer)
    while len(starts) < most and end - at >= HEAD and (size := _size_at(buffer, at)):
        after = at + size
        if after > end:
            break
        starts.append(at)
        at = after
    return starts, at


def gather(buffer: "bytes | memoryview", begin: "Numbers", size: int) -> "Numbers":
    """Return ``size`` bytes from each of these offsets, one row per offset."""
    import numpy as np

    if not len(begin) or not size:
        return np.empty((len(begin), size), np.uint8)
    everywhere: Numbers = np.ndarray((len(buffer) - size + 1,), f"V{size}", buffer, 0, (1,))
    return everywhere[begin].view(np.uint8).reshape(-1, size)


def heads_of(buffer: memoryview, starts: "Numbers") -> "Numbers":
    return gather(buffer, starts, HEAD).view(HEAD_COLUMNS).reshape(-1)


class FrameColumns:
    """The frame heads of a run as numpy columns."""

    def __init__(self, run: FrameRun) -> None:
        import numpy as np

        self.buffer = memoryview(run.buffer)
        self.starts = run.starts
        self._step = run.step
        heads = heads_of(self.buffer, self.starts)
        if not (heads["sign"] == int.from_bytes(SIGNATURE)).all():
            raise SourceError("the data contains an invalid record; run 'yirangmq log check'")

        def column(name: str) -> "Numbers":
            return heads[name].astype(np.int64)

        self.ends = self.starts + column("length") + LENGTH_FROM
        self.sequence = column("sequence")
        self.topic_sequence = column("topic_sequence")
        self.at_ns = column("at_ns")
        self.has_key = (column("marks") & HAS_KEY).astype(bool)
        self.topic_size = column("topic_size")
        self.key_size = column("key_size")
        self.headers_size = column("headers_size")
        self._parts = self.topic_size + self.key_size + self.headers_size + HEAD
        self._payload_from = self.starts + self._parts
        if (self._payload_from > self.ends).any():
            raise SourceError("the parts of a record are longer than the record; run 'yirangmq log check'")
        self._sums = column("crc")
        self._topics: tuple[Numbers, list[str]] | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def verify(self, sums: "BulkChecksums | None" = None) -> None:
        """Compare each frame with its checksum; ``SourceError`` names the first damaged record."""
        if (
            sums is not None
            and self._step
            and sums.all_match(self.buffer[int(self.starts[0]) :], self._step, self._sums)
        ):
            return
        row = self.first_damaged()
        if row < len(self):
            raise SourceError(f"record {self.sequence[row]} is damaged: its checksum differs; run 'yirangmq log check'")

    def first_damaged(self) -> int:
        """Return the row of the first frame with a wrong checksum, or the number of rows if all are sound."""
        buffer, wanted = self.buffer, self._sums.tolist()
        parts = zip((self.starts + CRC_FROM).tolist(), self.ends.tolist(), strict=True)
        sums = [crc32(buffer[begin:end]) for begin, end in parts]
        if sums == wanted:
            return len(sums)
        return next(row for row, (sum, stored) in enumerate(zip(sums, wanted, strict=True)) if sum != stored)

    def select(self, rows: "Numbers | slice") -> "FrameColumns":
        """Return these rows only."""
        made = object.__new__(FrameColumns)
        made.buffer, made._step = self.buffer, 0
        for name in ("starts", "ends", "sequence", "topic_sequence", "at_ns", "has_key", "topic_size", "key_size",
                     "headers_size", "_parts", "_payload_from", "_sums"):  # fmt: skip
            setattr(made, name, getattr(self, name)[rows])
        made._topics = None if self._topics is None else (self._topics[0][rows], self._topics[1])
        return made

    # -- parts as arrays ----------------------------------------------------------------------------------------------

    def topics(self) -> "tuple[Numbers, list[str]]":
        """Return the index of the topic of each frame, and the list of topics."""
        if self._topics is None:
            self._topics = self._find_topics()
        return self._topics

    def _find_topics(self) -> "tuple[Numbers, list[str]]":
        import numpy as np

        codes = np.zeros(len(self), np.int32)
        names: list[str] = []
        sizes = _sizes(self.topic_size)
        if self._step and len(sizes) == 1 and sizes[0]:
            each = self._even(HEAD, sizes[0]).tobytes()
            name = each[: sizes[0]]
            if each == name * len(self):
                return codes, [name.decode("utf-8", "replace")]
        for size in sizes:
            rows = (self.topic_size == size).nonzero()[0]
            letters = gather(self.buffer, self.starts[rows] + HEAD, size)
            first = letters[0].tobytes()
            if letters.tobytes() == first * len(rows):
                found = [first]
                codes[rows] = len(names)
            else:
                unique, which = np.unique(letters.view(f"S{size}").reshape(-1), return_inverse=True)
                found = [bytes(one) for one in unique]
                codes[rows] = which.astype(np.int32) + len(names)
            names += [one.decode("utf-8", "replace") for one in found]
        return codes, names

    def _slices(self, begin: "Numbers", end: "Numbers") -> "pyarrow.Array[Any]":
        """Return parts of the buffer as an Arrow array.

        The parts and the gaps between them form one long array, of which every second element is taken. That is one
        copy, into memory of Arrow's that the next batch reuses."""
        import numpy as np
        import pyarrow as pa

        if not len(begin):
            return pa.array([], pa.binary())
        edges = np.empty(2 * len(begin), np.int32)
        edges[0::2] = begin
        edges[1::2] = end
        both = pa.BinaryArray.from_buffers(
            pa.binary(), 2 * len(begin) - 1, [None, pa.py_buffer(edges), pa.py_buffer(self.buffer)]
        )
        return both.take(pa.array(np.arange(0, 2 * len(begin) - 1, 2)))

    def _even(self, begin: int, size: int) -> "Numbers":
        """Return ``size`` bytes at offset ``begin`` of each frame, as a view. All frames must have one size."""
        import numpy as np

        return np.ndarray((len(self),), f"V{size}", self.buffer, int(self.starts[0]) + begin, (self._step,))

    def _even_slices(self, begin: int, size: int) -> "pyarrow.Array[Any]":
        """Return ``size`` bytes at offset ``begin`` of each frame as an Arrow array, with one copy. All frames must
        have one size."""
        import numpy as np
        import pyarrow as pa

        count = len(self)
        made = pa.allocate_buffer(count * size)
        np.copyto(np.frombuffer(cast("Any", made), f"V{size}"), self._even(begin, size))
        bounds = np.arange(count + 1, dtype=np.int32) * np.int32(size)
        return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), made])

    def keys(self) -> "pyarrow.Array[Any]":
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.has_key.any():
            return pa.nulls(len(self), pa.string())
        begin = self.starts + HEAD + self.topic_size
        try:
            found = self._slices(begin, begin + self.key_size).cast(pa.string())
        except pa.ArrowInvalid:
            raise SourceError("the key of a record is not text; run 'yirangmq log check'") from None
        return found if self.has_key.all() else pc.if_else(pa.array(self.has_key), found, pa.scalar(None, pa.string()))

    def payloads(self) -> "pyarrow.Array[Any]":
        if self._step and len(parts := _sizes(self._parts)) == 1 and parts[0] < self._step:
            return self._even_slices(parts[0], self._step - parts[0])
        return self._slices(self._payload_from, self.ends)

    def headers(self) -> list[dict[str, str]]:
        """Return the headers of each frame; identical header bytes are parsed once."""
        codes, found = self._header_codes()
        return [found[code] for code in codes.tolist()]

    def header_maps(self) -> "pyarrow.Array[Any]":
        import pyarrow as pa

        codes, found = self._header_codes()
        maps = pa.array([list(one.items()) for one in found], arrow_type(MAP))
        return maps.take(pa.array(codes))

    def _header_codes(self) -> "tuple[Numbers, list[dict[str, str]]]":
        """Return the index of the headers of each frame, and the list of parsed headers.

        Consecutive frames with the same header bytes are parsed once."""
        import numpy as np

        codes = np.zeros(len(self), np.int64)
        known: dict[bytes, int] = {}
        found: list[dict[str, str]] = []
        begin = self._payload_from - self.headers_size
        for size in _sizes(self.headers_size):
            rows = (self.headers_size == size).nonzero()[0]
            for first, last in self._alike_runs(begin[rows], size):
                start = int(begin[rows[first]])
                raw = bytes(self.buffer[start : start + size])
                code = known.get(raw)
                if code is None:
                    code = known[raw] = len(found)
                    found.append(_headers_of(raw))
                codes[rows[first:last]] = code
        return codes, found

    def _alike_runs(self, begin: "Numbers", size: int) -> "list[tuple[int, int]]":
        """Return the row ranges in which the ``size`` bytes at these offsets are the same."""
        import numpy as np

        if not size:
            return [(0, len(begin))]
        if size > MAX_COMPARED_HEADER:
            return [(row, row + 1) for row in range(len(begin))]
        letters = gather(self.buffer, begin, size)
        edges = np.flatnonzero((letters[1:] != letters[:-1]).any(axis=1)) + 1
        bounds = [0, *edges.tolist(), len(begin)]
        return list(pairwise(bounds))


def _sizes(found: "Numbers") -> list[int]:
    """Return the distinct values; usually there is one."""
    import numpy as np

    return [int(found[0])] if len(found) and (found == found[0]).all() else np.unique(found).tolist()


def _headers_of(raw: bytes) -> dict[str, str]:
    try:
        return read_map(memoryview(raw), 0) if raw else {}
    except (IndexError, struct.error):
        raise SourceError("the headers of a record end too early; run 'yirangmq log check'") from None


# -- one checksum for many frames --------------------------------------------------------------------------------------

FRAMES_PER_CHECK = 512
"""Number of frames that one checksum covers."""
MIN_FRAMES_TO_PREPARE, MAX_PREPARED_FRAME = 16 * FRAMES_PER_CHECK, 1 << 12
"""Minimum number of frames of one size, and maximum size of a frame in bytes, for which the preparation pays. The
preparation takes about as long as checking that many frames one by one."""


class BulkChecksums:
    """Bulk checksum verification of adjacent frames of one size.

    One CRC-32 covers many frames. CRC-32 is linear: the checksum of a concatenation follows from those of its parts,
    and each bit of those contributes independently. The expected checksum is the xor of one number for each set bit in
    the stored checksums. These numbers depend on the frame size and on the frame's position counted from the end. They
    are computed once per size."""

    def __init__(self) -> None:
        self._prefix = b""
        """Bytes before the checksum: length and signature, the same in all frames of a size."""
        self._size = self._seen = 0
        self._numbers: Any = None
        self._constants: list[int] = []

    def all_match(self, data: memoryview, size: int, stored: "Numbers") -> bool:
        """Return True if all frames are sound. False means a difference, or that the verifier is not prepared.

        ``stored`` holds the checksum that each frame stores."""
        if not self._is_prepared(bytes(data[:LENGTH_FROM]), size, len(stored)):
            return False
        for begin in range(0, len(stored), FRAMES_PER_CHECK):
            some = stored[begin : begin + FRAMES_PER_CHECK]
            if crc32(data[begin * size : (begin + len(some)) * size]) != self._expected(some):
                return False
        return True

    def _is_prepared(self, prefix: bytes, size: int, count: int) -> bool:
        if prefix != self._prefix:
            self._prefix, self._size, self._seen, self._numbers = prefix, size, 0, None
        if self._numbers is None and self._seen >= MIN_FRAMES_TO_PREPARE and size <= MAX_PREPARED_FRAME:
            self._prepare()
        self._seen += count
        return self._numbers is not None

    def _prepare(self) -> None:
        import numpy as np

        empty = self._frame(0)
        row = [empty, *(self._frame(1 << bit) ^ empty for bit in reversed(range(32)))]
        constant = empty
        numbers, self._constants = row[1:], [0, empty]
        zeros = bytes(self._size)
        of_zeros = crc32(zeros)
        for _ in range(FRAMES_PER_CHECK - 1):
            # The contributions of a frame that is one position further from the end.
            row = [crc32(zeros, one) ^ of_zeros for one in row]
            constant ^= row[0]
            numbers += row[1:]
            self._constants.append(constant)
        self._numbers = np.array(numbers, np.uint32)

    def _frame(self, stored: int) -> int:
        """Return the CRC-32 of a whole sound frame that stores this checksum."""
        rest = bytes(self._size - CRC_FROM)
        return crc32(rest, crc32(self._prefix + stored.to_bytes(4))) ^ crc32(rest) ^ stored

    def _expected(self, stored: "Numbers") -> int:
        import numpy as np

        bits = np.unpackbits(stored[::-1].astype(">u4").view(np.uint8)).astype(np.uint32)
        made: int = np.bitwise_xor.reduce(bits * self._numbers[: len(bits)]).item()
        return made ^ self._constants[len(stored)]
