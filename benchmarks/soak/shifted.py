"""``yirangmq`` with a clock that is ahead by as many milliseconds as a file says: ``python -m benchmarks.soak.shifted``
with the words of a command. Whoever holds the file moves the time of all servers at once."""

import mmap
import os
import struct
import sys
from pathlib import Path

from yirangmq.cli.main import run
from yirangmq.clock import SystemClock

VARIABLE = "YIRANGMQ_SHIFT_FILE"
FORM = struct.Struct("<q")


class Shift:
    """The file, at both ends."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(FORM.pack(0))
        self._file = path.open("r+b")
        self._bytes = mmap.mmap(self._file.fileno(), FORM.size)

    @property
    def ms(self) -> int:
        found: int = FORM.unpack_from(self._bytes)[0]
        return found

    def set(self, ms: int) -> None:
        FORM.pack_into(self._bytes, 0, ms)

    def close(self) -> None:
        self._bytes.close()
        self._file.close()


def main() -> int:
    shift, now_ms, wall_ms = Shift(Path(os.environ[VARIABLE])), SystemClock.now_ms, SystemClock.wall_ms
    SystemClock.now_ms = lambda self: now_ms(self) + shift.ms  # type: ignore[method-assign]
    SystemClock.wall_ms = lambda self: wall_ms(self) + shift.ms  # type: ignore[method-assign]
    return run()


if __name__ == "__main__":
    sys.exit(main())
