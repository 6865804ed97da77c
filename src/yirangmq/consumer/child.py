"""One run of a program: bytes to its stdin, the end of its stderr kept, an end put to it in time. Its stdout is ours,
and so is its stderr.

Knows: processes. Does not know: messages. The program and all it starts are one process group, so that stopping it
stops them too, and Ctrl-C at a terminal reaches the consumer alone."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

CHUNK = 65_536
TAIL = 1_500
"""Bytes of stderr that go with a failed message."""
STDERR = 2
LOOK_SECONDS = 0.5
QUICK_LOOK_SECONDS = 0.02
"""How often to look where the system cannot tell us that a process has ended."""


class Ended(NamedTuple):
    """``code`` is negative for a signal; ``stopped``: it was we who ended it."""

    code: int
    tail: bytes
    stopped: bool


class Child:
    """Started at once. ``wait`` is for one thread, ``stop`` for any."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], stdin: bytes) -> None:
        self._stdin = memoryview(stdin)
        self._tail = b""
        self._stop_at = float("inf")
        self._is_stopped = False
        self._process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0, bufsize=0
        )

    def stop(self, *, kill: bool = False) -> None:
        """Ask it to end, or make it; ``wait`` makes it if asking does not help."""
        self._is_stopped = True
        self._stop_at = time.monotonic()
        self._signal(signal.SIGKILL if kill else signal.SIGTERM)

    def wait(self, timeout: float | None, grace: float) -> Ended:
        """Until it has ended. After ``timeout`` seconds it is asked to end, ``grace`` seconds later it is made to."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            look = self._watch(selector, stack)
            while self._process.poll() is None:
                self._step(selector, min(look, self._patience(deadline, grace)))
            self._listen()
        return Ended(self._process.returncode, self._tail, self._is_stopped)

    def _patience(self, deadline: float, grace: float) -> float:
        """Stop it if it is time; how many seconds until the next thing has to be done."""
        now = time.monotonic()
        if now >= deadline and not self._is_stopped:
            self.stop()
        if now >= self._stop_at + grace:
            self._signal(signal.SIGKILL)
            return QUICK_LOOK_SECONDS
        return max(0.0, (self._stop_at + grace if self._is_stopped else deadline) - now)

    def _watch(self, selector: selectors.BaseSelector, stack: ExitStack) -> float:
        """Everything worth waking up for; how often to look besides."""
        for stream, event in (
            (self._process.stdin, selectors.EVENT_WRITE),
            (self._process.stderr, selectors.EVENT_READ),
        ):
            assert stream is not None
            stack.enter_context(stream)
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, event)
        try:
            end = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):
            return QUICK_LOOK_SECONDS
        stack.callback(os.close, end)
        selector.register(end, selectors.EVENT_READ)
        return LOOK_SECONDS

    def _step(self, selector: selectors.BaseSelector, seconds: float) -> None:
        for key, _ in selector.select(seconds):
            if key.fileobj is self._process.stdin and self._feed():
                selector.unregister(self._process.stdin)
                self._process.stdin.close()
            elif key.fileobj is self._process.stderr and self._listen():
                selector.unregister(self._process.stderr)

    def _feed(self) -> bool:
        """Some more of what it is to read; True when it has everything, or wants no more."""
        assert self._process.stdin is not None
        try:
            if self._stdin:
                self._stdin = self._stdin[os.write(self._process.stdin.fileno(), self._stdin[:CHUNK]) :]
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not self._stdin

    def _listen(self) -> bool:
        """What it has said on stderr goes to ours, and its end is kept; True when no more will come."""
        assert self._process.stderr is not None
        try:
            while data := os.read(self._process.stderr.fileno(), CHUNK):
                self._tail = (self._tail + data)[-TAIL:]
                with suppress(OSError):
                    os.write(STDERR, data)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
