"""A program in a real pseudo-terminal of a given size: what it printed, keys for it, and its screen as a user sees it.

The screen is kept by a small terminal: characters, line feeds, and the control sequences that the command line uses."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from tests.support.wait import PATIENCE
from yirangmq.cli.table import measure

PART = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


class Terminal:
    """A command in a pseudo-terminal. Use: ``with Terminal("status", columns=80) as terminal: …``"""

    def __init__(self, *command: str, columns: int = 80, lines: int = 24, env: Mapping[str, str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        self._set_size(theirs, columns, lines)
        usual = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "yirangmq", *command], stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True, env={**usual, "TERM": "xterm", "LC_ALL": "C.UTF-8", **(env or {})},
        )  # fmt: skip
        self._theirs = theirs
        self._seen = b""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        os.close(self._ours)

    @property
    def output(self) -> str:
        """Everything that was printed so far, with control sequences."""
        return self._seen.decode("utf-8", "replace")

    def wait_for(self, text: str, count: int = 1) -> str:
        """Wait until ``text`` was printed ``count`` times."""
        return self._until(lambda: self.output.count(text) >= count, text)

    def wait_for_screen(self, text: str, *, gone: str = "") -> list[str]:
        """Wait until the screen has ``text``, and not ``gone``; return its lines."""

        def is_shown() -> bool:
            shown = "\n".join(self.screen())
            return text in shown and not (gone and gone in shown)

        self._until(is_shown, text)
        return self.screen()

    def _until(self, is_so: Callable[[], bool], what: str) -> str:
        end = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < end, f"{what!r} was not printed: {self.output!r}"
            self._read(1.0)
        return self.output

    def wait(self) -> int:
        """Wait until the command ends, and return its exit code."""
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end, f"the command did not end: {self.output!r}"
            self._read(0.05)
        while self._read(0):
            pass
        return self.process.wait()

    def _read(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        self._seen += os.read(self._ours, 65536)
        return True

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Set the size, and send the signal that the kernel sends to the processes of a controlling terminal."""
        self._set_size(self._ours, columns, lines)
        self.process.send_signal(signal.SIGWINCH)

    def is_in_line_mode(self) -> bool:
        """Whether the terminal echoes and reads lines, as a shell expects it."""
        flags = termios.tcgetattr(self._theirs)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    @staticmethod
    def _set_size(fd: int, columns: int, lines: int) -> None:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def screen(self) -> list[str]:
        """The lines that a user sees, without colours and trailing spaces."""
        rows, at, column = [""], 0, 0
        text = self.output
        for found in PART.finditer(text):
            values, letter, back, feed, plain = found.groups()
            if letter == "H":
                at = column = 0
            elif letter == "K":
                rows[at] = rows[at][:column]
            elif letter == "J":
                rows = [""] if values == "2" else rows[: at + 1]
                at = min(at, len(rows) - 1)
            elif letter in ("h", "l") and values == "?1049":
                rows, at, column = [""], 0, 0
            elif back:
                column = 0
            elif feed:
                at += 1
                rows += [""] * (at + 1 - len(rows))
            elif plain:
                rows[at] = rows[at][:column].ljust(column) + plain + rows[at][column + len(plain) :]
                column += len(plain)
        return [row.rstrip() for row in rows]

    def widest(self) -> int:
        return max(map(measure, self.screen()))
