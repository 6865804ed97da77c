"""One checksum for many frames of one size. Knows: where in a frame its checksum stands, and of what it is. Does not
know: files, rows."""

from typing import TYPE_CHECKING, Any

from yirangmq.pipeline.source.checksum import crc32
from yirangmq.pipeline.source.frames import CRC_FROM, LENGTH_FROM

if TYPE_CHECKING:
    from yirangmq.pipeline.source.frames import Numbers

AT_ONCE = 512
"""Frames that are looked at together."""
WORTH_IT, LONGEST = 16 * AT_ONCE, 1 << 12
"""How many frames of a size must have come, and how long one may be, for the preparation to pay: it takes about as long
as to look at so many one by one."""


class EvenSums:
    """Whether frames of one size, one behind the other, hold what was written: by one checksum of all of them.

    The checksum of a whole follows from those of its parts, and each bit of those counts by itself. So the one that the
    whole should have is made of one number for each bit that is set in the checksums that were stored (by xor). These
    numbers depend on the size, and on the frame's place counted from the end; they are worked out once."""

    def __init__(self) -> None:
        self._prefix = b""
        """What stands before the checksum: length and sign, the same in all frames of a size."""
        self._size = self._seen = 0
        self._numbers: Any = None
        self._constants: list[int] = []

    def agree(self, data: memoryview, size: int, stored: "Numbers") -> bool:
        """False: they do not, or nobody looked. ``stored``: the checksum of each frame, as it says itself."""
        if not self._knows(bytes(data[:LENGTH_FROM]), size, len(stored)):
            return False
        for begin in range(0, len(stored), AT_ONCE):
            some = stored[begin : begin + AT_ONCE]
            if crc32(data[begin * size : (begin + len(some)) * size]) != self._expected(some):
                return False
        return True

    def _knows(self, prefix: bytes, size: int, count: int) -> bool:
        if prefix != self._prefix:
            self._prefix, self._size, self._seen, self._numbers = prefix, size, 0, None
        if self._numbers is None and self._seen >= WORTH_IT and size <= LONGEST:
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
        for _ in range(AT_ONCE - 1):
            row = [crc32(zeros, one) ^ of_zeros for one in row]  # what they count for one frame further from the end
            constant ^= row[0]
            numbers += row[1:]
            self._constants.append(constant)
        self._numbers = np.array(numbers, np.uint32)

    def _frame(self, stored: int) -> int:
        """The checksum of a whole frame that says this of itself, and says so rightly."""
        rest = bytes(self._size - CRC_FROM)
        return crc32(rest, crc32(self._prefix + stored.to_bytes(4))) ^ crc32(rest) ^ stored

    def _expected(self, stored: "Numbers") -> int:
        import numpy as np

        bits = np.unpackbits(stored[::-1].astype(">u4").view(np.uint8)).astype(np.uint32)
        made: int = np.bitwise_xor.reduce(bits * self._numbers[: len(bits)]).item()
        return made ^ self._constants[len(stored)]
