"""File change notification across processes: inotify, or polling every 50 ms where inotify is missing.

Without an inotify event ``wait`` returns after 1 s at most, and the caller checks the files again."""

import ctypes
import os
import select
import time
from collections.abc import Sequence
from pathlib import Path

IN_MODIFY = 0x002
IN_CLOSE_WRITE = 0x008
IN_MOVED_TO = 0x080
IN_CREATE = 0x100
WATCHED = IN_MODIFY | IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE
POLL_SECONDS = 0.05
"""Polling interval where inotify is missing."""
MAX_WAIT_SECONDS = 1.0
"""Maximum wait for an inotify event, because a watch may miss changes."""


class FileWatch:
    """Watch for changes of files or folders. Spurious wake-ups are allowed; a lost one costs ``MAX_WAIT_SECONDS``.

    The watch is created by the first ``wait``, which returns immediately. Earlier changes are not lost, because the
    caller then checks the files. Without a call of ``wait`` there is no watch: closing one alone takes the kernel some
    milliseconds."""

    def __init__(self, paths: Sequence[Path], mask: int = WATCHED) -> None:
        self._paths = paths
        self._mask = mask
        self._is_started = False
        self._fd = -1
        self._poll: select.poll | None = None

    def _start(self) -> None:
        self._is_started = True
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            added = [libc.inotify_add_watch(self._fd, os.fsencode(path), self._mask) >= 0 for path in self._paths]
        except (OSError, AttributeError):
            return
        if self._fd >= 0 and all(added):
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN)

    def wait(self, timeout: float) -> None:
        if not self._is_started:
            self._start()
        elif self._poll is None:
            time.sleep(max(0.0, min(timeout, POLL_SECONDS)))
        elif self._poll.poll(max(0.0, min(timeout, MAX_WAIT_SECONDS)) * 1000):
            self._drain()

    def _drain(self) -> None:
        try:
            while os.read(self._fd, 65536):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._poll = None
