"""Batches of input lines: from a file, or from a program that writes them slowly.

A batch is passed on when it is full, when the input ends, when no more input comes for ``QUIET_SECONDS``, or
``LINGER_SECONDS`` after its first line was read, whichever is first. So a slow program's line waits a few milliseconds,
and many lines of a quick one share a commit. The last line needs no line end. A line without one is not passed on
before the input ends."""

import select
import time
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from yirangmq.core.errors import TooLarge

MAX_PER_BATCH = 1000
BYTES_PER_BATCH = 4 * 1024 * 1024
BYTES_PER_READ = 1024 * 1024
QUIET_SECONDS = 0.002
LINGER_SECONDS = 0.02
"""Longest wait for more lines, in seconds. With a commit it stays within the 50 ms that docs/cli.md states."""


class InputLine(NamedTuple):
    number: int
    """Counts from 1 in its input."""
    text: bytes
    """Without the line end."""


def line_batches(stream: BinaryIO, max_line_bytes: int, name: str = "") -> Iterator[list[InputLine]]:
    """Yield the lines of a stream in batches. Empty lines are counted and skipped.

    ``name`` stands in the error of a line that is too long. The stream must be buffered, as ``open`` and stdin are."""
    waiter = _InputWaiter(stream)
    batch: list[InputLine] = []
    size, until = 0, 0.0
    for lines in _read_lines(stream, max_line_bytes, name, waiter):
        for line in lines:
            if not batch:
                until = time.monotonic() + LINGER_SECONDS
            batch.append(line)
            size += len(line.text)
            if len(batch) >= MAX_PER_BATCH or size >= BYTES_PER_BATCH:
                yield batch
                batch, size = [], 0
        if batch and not waiter.has_more(min(QUIET_SECONDS, until - time.monotonic())):
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read_lines(stream: BinaryIO, max_line_bytes: int, name: str, waiter: "_InputWaiter") -> Iterator[list[InputLine]]:
    """Yield the complete lines of each read, and at the end the line that has no line end."""
    number, pieces, pending = 0, list[bytes](), 0
    while data := stream.read1(BYTES_PER_READ):  # type: ignore[attr-defined]  # every buffered stream has it
        first, *others = data.split(b"\n")
        pieces.append(first)
        pending += len(first)
        whole: list[bytes] = []
        if others:
            whole = [b"".join(pieces), *others[:-1]]
            pieces, pending = [others[-1]], len(others[-1])
        if max(pending, *map(len, whole), 0) > max_line_bytes:
            where = f"{name}: a" if name else "a"
            raise TooLarge(f"{where} line after line {number} is longer than {max_line_bytes} bytes", field="file")
        yield _numbered(number, whole)
        number += len(whole)
    waiter.is_at_end = True
    yield _numbered(number, [b"".join(pieces)])


def _numbered(number: int, texts: list[bytes]) -> list[InputLine]:
    lines = [InputLine(number + at, text.rstrip(b"\r")) for at, text in enumerate(texts, 1)]
    return [line for line in lines if line.text.strip()]


class _InputWaiter:
    """Waits for input. A stream without a file descriptor always has more."""

    def __init__(self, stream: BinaryIO) -> None:
        self.is_at_end = False
        self._poll = select.poll()
        try:
            self._poll.register(stream.fileno(), select.POLLIN)
            self._is_waitable = True
        except (OSError, ValueError):
            self._is_waitable = False

    def has_more(self, seconds: float) -> bool:
        """Return True if a read would not block within ``seconds``: also at the end, not once the seconds are over."""
        if not self._is_waitable or self.is_at_end:
            return True
        return seconds > 0 and bool(self._poll.poll(seconds * 1000))
