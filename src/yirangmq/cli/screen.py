"""Where a command's words go: results to stdout, notes and errors to stderr, each for people or for programs.
Does not know: queues, commands."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from yirangmq.core.errors import QueueError
from yirangmq.format.json_codec import dumps

if TYPE_CHECKING:
    from yirangmq.cli.table import Column

PROGRAM = "yirangmq"


class Screen:
    """One per run. With ``json`` every document is one line, and what is meant for people is left out."""

    def __init__(self, *, json: bool) -> None:
        self.json = json

    @property
    def is_terminal(self) -> bool:
        return sys.stdout.isatty()

    @property
    def shows_progress(self) -> bool:
        return not self.json and sys.stderr.isatty()

    def document(self, value: dict[str, Any]) -> None:
        """A result for programs."""
        self.line(dumps(value))

    def line(self, text: bytes) -> None:
        """JSON text as one line. A line break inside JSON text can only stand between its parts, so a space will do."""
        self.write(text.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")

    def write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)

    def say(self, text: str = "") -> None:
        """A result for people."""
        self.write(text.encode("utf-8", "backslashreplace") + b"\n")

    def table(self, columns: "Sequence[Column]", rows: Sequence[Sequence[object]]) -> None:
        from yirangmq.cli.table import render

        width = os.get_terminal_size(sys.stdout.fileno()).columns if self.is_terminal else None
        for line in render(columns, rows, width):
            self.say(line)

    def answer(self, value: dict[str, Any], text: str) -> None:
        """One result, for whoever asked."""
        if self.json:
            self.document({"ok": True, **value})
        else:
            self.say(text)

    def note(self, text: str) -> None:
        """Something a person should know, beside the result."""
        if not self.json:
            print(f"{PROGRAM}: note: {text}", file=sys.stderr)

    def problem(self, error: QueueError) -> None:
        if self.json:
            value = {"ok": False, "code": error.code, "error": str(error), "field": error.field}
            print(dumps(value).decode(), file=sys.stderr)
        else:
            print(f"{PROGRAM}: {error.code}: {error}", file=sys.stderr)

    def flush(self) -> None:
        sys.stdout.flush()
