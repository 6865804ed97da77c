"""The wall clock of one process, set by a test while the process runs: libfaketime, which ``make faketime`` fetches.
The clocks that count from boot stay those of the machine."""

import os
import time
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / ".tools" / "faketime" / "libfaketimeMT.so.1"
HOUR = 3600


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
