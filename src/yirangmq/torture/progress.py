"""A bar on a terminal; silence where there is none. Knows: one line of text. Does not know: what is being done."""

import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TextIO

WIDTH = 30
EVERY_SECONDS = 0.1


class Bar(AbstractContextManager["Bar"]):
    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream = stream
        self._title = title
        self._is_shown = stream.isatty()
        self._next = 0.0

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._is_shown or (now < self._next and done < total):
            return
        self._next = now + EVERY_SECONDS
        full = WIDTH * done // max(total, 1)
        bar = "#" * full + "-" * (WIDTH - full)
        self._stream.write(f"\r{self._title} [{bar}] {done}/{total}")
        self._stream.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._stream.write("\r\033[K")
            self._stream.flush()
