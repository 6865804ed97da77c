"""Clocks that a test sets. ``WallClock`` is the wall clock of another process, set while it runs: libfaketime, which
``make faketime`` fetches; the clocks that count from boot stay those of the machine."""

import os
import time
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / ".tools" / "faketime" / "libfaketimeMT.so.1"
HOUR = 3600
START_NS = 1_768_296_060_000_000_000


class WallClock:
    """``env`` is for the process; ``set`` moves its wall clock to so many seconds from the real one."""

    def __init__(self, folder: Path, seconds: int = 0) -> None:
        if not LIBRARY.exists():
            text = "no libfaketime here; `make faketime` fetches it"
            if os.environ.get("CI"):
                pytest.fail(text)
            pytest.skip(text)
        self._file = folder / "wall-clock"
        self.seconds = 0
        self.set(seconds)
        self.env = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_NO_CACHE": "1",
        }

    def set(self, seconds: int) -> None:
        self.seconds = seconds
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{seconds:+d}\n")
        draft.replace(self._file)

    def now(self) -> float:
        """What it shows."""
        return time.time() + self.seconds


class MillisecondClock:
    """Milliseconds that the test sets."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


class NanosecondClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = START_NS

    def __call__(self) -> int:
        return self.now

    def advance(self, nanoseconds: int) -> None:
        self.now += nanoseconds
