"""Where Spark's Java process prints: into a file instead of between a command's own lines. What the data source has to
say to whoever watches stands in that file too, and is fetched from it.

Knows: file descriptors, a file. Does not know: Spark."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = b"yirangmq: "
"""How the lines of the data source begin (``source.errors.say``)."""
TAIL = 4000


class SparkLog:
    """``taking`` while the Java process is started: it keeps what it was given for as long as it lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    @contextmanager
    def taking(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [(number, os.dup(number)) for number in (1, 2)]
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._read = 0
        try:
            for number, _ in kept:
                os.dup2(file, number)
            yield
        finally:
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)
            os.close(file)

    def notes(self) -> list[str]:
        """What the data source said since the last look."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [
            line.removeprefix(MARK).decode("utf-8", "replace") for line in whole.splitlines() if line.startswith(MARK)
        ]

    def tail(self) -> str:
        """Its end, for somebody who looks for a reason."""
        try:
            return self.path.read_bytes()[-TAIL:].decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
