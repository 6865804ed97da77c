"""A progress bar on stderr, for work that takes long and only where a person watches."""

import sys
import time
from types import TracebackType

QUIET_SECONDS = 0.5
"""Work that is over sooner shows no bar."""
STEP_SECONDS = 0.1
WIDTH = 30


class Progress:
    """``with Progress("importing", total, shown=…) as show: … show(done)``. Without a total it counts."""

    def __init__(self, label: str, total: int | None, *, shown: bool) -> None:
        self._label = label
        self._total = total
        self._shown = shown
        self._next = time.monotonic() + QUIET_SECONDS
        self._drawn = False

    def __enter__(self) -> "Progress":
        return self

    def __call__(self, done: int, text: str = "") -> None:
        if not self._shown:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + STEP_SECONDS
        self._drawn = True
        sys.stderr.write(f"\r\x1b[K{self._line(done, text)}")
        sys.stderr.flush()

    def part(self, done: int, total: int) -> None:
        """For work that finds out its total on the way."""
        self._total = total
        self(done, f"{done:,}/{total:,}")

    def _line(self, done: int, text: str) -> str:
        detail = f"  {text}" if text else ""
        if not self._total:
            return f"{self._label} {done:,}{detail}"
        share = min(1.0, done / self._total)
        filled = round(share * WIDTH)
        return f"{self._label} [{'#' * filled}{'.' * (WIDTH - filled)}] {share:4.0%}{detail}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
