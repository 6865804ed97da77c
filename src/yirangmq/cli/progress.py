"""Progress of long work on stderr: a bar with rate and remaining time on a terminal, lines for a log.

The bar appears after half a second. A thread redraws it, so that it also shows how long one long step takes, such as a
call to a server."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from yirangmq.cli.arguments import format_duration

QUIET_SECONDS = 0.5
"""Delay before the bar appears, in seconds; shorter work shows no bar."""
STEP_SECONDS = 0.2
"""Interval between two drawings of the bar, in seconds."""
MIN_STEP = 0.05
WIDTH = 20
"""Width of the bar, in characters; less on a narrow terminal."""
MIN_BAR = 5
SPINNER = "|/-\\"
RATE_AFTER = 1.0
"""Time after which rate and remaining time are shown, in seconds: earlier ones are guesses."""


class ProgressBar:
    """Progress bar on stderr. Without a total it shows a count, or only the time since the beginning.

    Use: ``with ProgressBar("importing", total, shown=…) as show: … show(done, count)``. ``total`` and ``done`` have one
    unit; ``count`` is what the user counts, in ``unit``, if that is another one."""

    def __init__(self, label: str, total: int | None = None, *, shown: bool, unit: str = "") -> None:
        self._label = label
        self._unit = unit
        self._total = total
        self._done: int | None = None
        self._count: int | None = None
        self._detail = ""
        self._began = time.monotonic()
        self._phase_began = self._began
        self._next = self._began + QUIET_SECONDS
        self._shown = shown
        self._drawn = False
        self._steps = 0
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "ProgressBar":
        if self._shown:
            if time.monotonic() >= self._next:
                self._draw()
            self._thread = threading.Thread(target=self._redraw, name="progress", daemon=True)
            self._thread.start()
        return self

    @property
    def is_shown(self) -> bool:
        return self._shown

    def __call__(self, done: int, count: int | None = None, detail: str = "") -> None:
        """Report how much is done."""
        self._done, self._count, self._detail = done, count, detail
        if self._shown and time.monotonic() >= self._next:
            self._draw()

    def update(self, phase: str, done: int, total: int) -> None:
        """Report the progress of work that has several phases, each with its own total; 0 is an unknown one."""
        if phase != self._detail:
            self._phase_began = time.monotonic()
        self._total = total or None
        self(done, None, phase)

    def print(self, write: Callable[[], None]) -> None:
        """Run ``write``, which prints a line of its own, without mixing it with the bar."""
        with self._lock:
            self._clear()
            write()

    def _redraw(self) -> None:
        self._is_over.wait(QUIET_SECONDS)
        while not self._is_over.is_set():
            if time.monotonic() >= self._next:
                self._draw()
            self._is_over.wait(max(STEP_SECONDS, MIN_STEP))

    def _draw(self) -> None:
        with self._lock:
            self._next = time.monotonic() + STEP_SECONDS
            sys.stderr.write(f"\r\x1b[K{self.text(_columns())}")
            sys.stderr.flush()
            self._drawn = True

    def text(self, columns: int) -> str:
        """Return the bar as one line that fits into so many columns."""
        now = time.monotonic()
        seconds, done = now - self._phase_began, self._done or 0
        count = done if self._count is None else self._count
        parts = [self._detail] if self._detail else []
        if self._done is not None and (count or self._total):
            of = f" of {self._total:,}" if self._total and self._count is None else ""
            parts.append(f"{count:,}{of}{' ' + self._unit if self._unit else ''}")
            if seconds >= RATE_AFTER and count:
                parts.append(f"{count / seconds:,.0f}/s" if count >= 10 * seconds else f"{count / seconds:.1f}/s")
        share = min(1.0, done / self._total) if self._total else None
        if share and seconds >= RATE_AFTER:
            parts.append(f"{format_duration(seconds * (1 - share) / share)} left")
        elif share is None:
            parts.append(format_duration(now - self._began) or "")
        tail = "  ".join(parts)
        if share is None:
            self._steps += 1
            return f"{self._label} {SPINNER[self._steps % len(SPINNER)]} {tail}"[: columns - 1]
        width = max(MIN_BAR, min(WIDTH, columns - len(self._label) - len(tail) - 12))
        filled = round(share * width)
        return f"{self._label} [{'#' * filled}{'.' * (width - filled)}] {share:4.0%}  {tail}"[: columns - 1]

    def _clear(self) -> None:
        if self._drawn:
            self._drawn = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()
            self._clear()


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80


@contextmanager
def polled(show: ProgressBar, read: Callable[[], int], seconds: float) -> Iterator[None]:
    """Report ``read()`` to a bar every ``seconds``, in a thread, during a call that reports nothing itself.

    An error of ``read`` ends the reports; the call itself has its own."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(seconds):
            try:
                show(read())
            except Exception:  # such as a lost connection
                return

    thread = threading.Thread(target=run, name="progress-poll", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


LINE_SECONDS = 10.0
"""Interval between progress lines, in seconds."""


class ProgressLines:
    """Progress of long work as lines on stderr, for a log or a pipe: at the start of the work, then every 10 s."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._next = time.monotonic()

    def update(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LINE_SECONDS
            print(f"{self._label}: {done:,}/{total:,} {phase}", file=sys.stderr, flush=True)
