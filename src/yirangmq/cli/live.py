"""Live views on a terminal: keys from stdin, the screen, and the signals that change or end the view.

``Keyboard`` reads keys without echo. ``live_terminal`` restores the terminal at the end, also after SIGTERM and while
the program is suspended with Ctrl-Z. A change of the size wakes ``Keyboard.wait``."""

import codecs
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from yirangmq.cli import output
from yirangmq.cli.output import Screen

# -- keys --------------------------------------------------------------------------------------------------------------

ESCAPE_SECONDS = 0.05
"""Time within which the bytes of an escape sequence follow each other, in seconds."""
NAMES = {
    "\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x15": "ctrl-u",
    "\x03": "ctrl-c", "\x0c": "ctrl-l",
}  # fmt: skip
SEQUENCES = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end",
    "1~": "home", "7~": "home", "4~": "end", "8~": "end", "5~": "page-up", "6~": "page-down",
}  # fmt: skip
"""Names of escape sequences, by what follows ``ESC [`` or ``ESC O``."""


def keys_of(text: str) -> list[str]:
    """Return the names of the keys in the characters of a terminal. Unknown escape sequences are left out."""
    found: list[str] = []
    at = 0
    while at < len(text):
        if text[at] == "\x1b" and text[at + 1 : at + 2] in ("[", "O"):
            end = at + 2
            while end < len(text) and (text[end].isdigit() or text[end] == ";"):
                end += 1
            name = SEQUENCES.get(text[at + 2 : end + 1])
            found += [name] if name else []
            at = end + 1
            continue
        found.append(NAMES.get(text[at], text[at]))
        at += 1
    return found


class Keyboard:
    """Keys of the terminal that stdin is. Not active if ``is_used`` is False, or if stdin is not a terminal."""

    def __init__(self, *, is_used: bool) -> None:
        self.is_active = is_used and sys.stdin.isatty()
        self._fd = sys.stdin.fileno() if self.is_active else -1
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._wake: tuple[int, int] | None = None
        self._former_wakeup = -1

    def __enter__(self) -> "Keyboard":
        if self.is_active:
            self._saved = termios.tcgetattr(self._fd)
            self._wake = os.pipe()
            for end in self._wake:
                os.set_blocking(end, False)
            self._former_wakeup = signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
            self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._wake is not None:
            self.give_back()
            signal.set_wakeup_fd(self._former_wakeup)
            for end in self._wake:
                os.close(end)

    def take(self) -> None:
        """Read single keys without echo. Ctrl-C and Ctrl-Z remain signals."""
        if self.is_active:
            tty.setcbreak(self._fd, termios.TCSADRAIN)  # keeps keys that were pressed before

    def give_back(self) -> None:
        if self.is_active:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)

    def wait(self, seconds: float) -> None:
        """Wait for a key, a signal, or until the time is over."""
        if self._wake is None:
            time.sleep(seconds)
            return
        ready, _, _ = select.select([self._fd, self._wake[0]], [], [], max(0, seconds))
        if self._wake[0] in ready:
            os.read(self._wake[0], 4096)

    def pressed(self) -> list[str]:
        """Return the keys that were pressed since the last call. A closed terminal counts as ``q``."""
        text = ""
        while self.is_active and select.select([self._fd], [], [], ESCAPE_SECONDS if _is_partial(text) else 0)[0]:
            data = os.read(self._fd, 4096)
            if not data:
                return [*keys_of(text), "q"]
            text += self._decoder.decode(data)
        return keys_of(text)


def _is_partial(text: str) -> bool:
    """Return True if more bytes of an escape sequence may follow."""
    start = text.rfind("\x1b")
    return start >= 0 and (start == len(text) - 1 or (text[start + 1] in "[O" and text[-1] in "[O;0123456789"))


class LineEditor:
    """Text that is typed into one line. ``press`` returns None when Enter or Escape ends it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def press(self, key: str) -> "LineEditor | None":
        if key in ("enter", "escape"):
            return None
        if key == "backspace":
            self.text = self.text[:-1]
        elif key == "ctrl-u":
            self.text = ""
        elif len(key) == 1 and key.isprintable():
            self.text += key
        return self


# -- screen ------------------------------------------------------------------------------------------------------------

HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
OPEN, CLOSE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""The alternate screen, without cursor and without line wrapping; and back."""
USUAL_SIZE = (80, 24)


class LiveTerminal:
    """The terminal of a live view. ``whole``: the view has a screen of its own; otherwise lines scroll as usual."""

    def __init__(self, screen: Screen, keyboard: Keyboard, *, whole: bool) -> None:
        self._screen = screen
        self._keyboard = keyboard
        self._whole = whole

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines; the usual size if they are unknown."""
        found = os.get_terminal_size(sys.stdout.fileno())
        return found.columns or USUAL_SIZE[0], found.lines or USUAL_SIZE[1]

    def draw(self, lines: list[str]) -> None:
        """Draw the whole screen, without clearing it first, so that it does not flicker."""
        text = HOME + "\n".join(f"{line}{CLEAR_LINE}" for line in lines) + CLEAR_BELOW
        self._screen.write(text.encode("utf-8", "backslashreplace"))
        self._screen.flush()

    def open(self) -> None:
        self._keyboard.take()
        if self._whole:
            self._screen.write(OPEN.encode())
            self._screen.flush()

    def close(self) -> None:
        self._screen.write(CLOSE.encode() if self._whole else f"\r{CLEAR_LINE}".encode())
        self._screen.flush()
        self._keyboard.give_back()


@contextmanager
def live_terminal(screen: Screen, keyboard: Keyboard, *, whole: bool) -> Iterator[LiveTerminal]:
    """Open a live view. SIGTERM ends it, Ctrl-Z suspends it, a change of the size wakes ``keyboard.wait``."""
    terminal = LiveTerminal(screen, keyboard, whole=whole)

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(output.TERMINATED)

    def suspend(number: int, frame: FrameType | None) -> None:
        terminal.close()
        os.kill(os.getpid(), signal.SIGSTOP)  # stops here until SIGCONT
        terminal.open()

    handlers = {signal.SIGTERM: end, signal.SIGTSTP: suspend, signal.SIGWINCH: lambda number, frame: None}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    terminal.open()
    try:
        yield terminal
    finally:
        terminal.close()
        for number, handler in before.items():
            signal.signal(number, handler)
