"""Disks that refuse: at one call, from one call on, or where space is needed. Played by the real disk otherwise."""

import errno
import os
from collections.abc import Callable
from typing import Any

from yirangmq.crashtest.backends import RecordingDisk
from yirangmq.fsio.disk import Disk

CHANGES = (
    "open_write",
    "open_update",
    "write",
    "write_at",
    "reserve",
    "truncate",
    "fsync",
    "fdatasync",
    "fsync_file",
    "fsync_folder",
    "syncfs",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
)
NEED_SPACE = ("open_write", "write", "write_at", "reserve", "mkdir")


class UnwillingDisk(Disk):
    """Remembers its calls; ``refuse`` is asked the number and the name of each, and says which error to raise."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.refused = 0
        self.refuse: Callable[[int, str], int] = willing
        for name in CHANGES:
            setattr(self, name, self._guarded(name, getattr(self, name)))

    def _guarded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            code = self.refuse(len(self.calls), name)
            if code:
                self.refused += 1
                raise OSError(code, os.strerror(code))
            return call(*arguments, **options)

        return guarded

    def start(self, refuse: Callable[[int, str], int]) -> None:
        self.calls = []
        self.refused = 0
        self.refuse = refuse


def willing(number: int, name: str) -> int:
    return 0


def full_once(at: int) -> Callable[[int, str], int]:
    """Somebody took the last space and gave it back."""
    return lambda number, name: errno.ENOSPC if number == at else 0


def full_from(at: int) -> Callable[[int, str], int]:
    """From one call on there is no space; what needs none still works."""
    return lambda number, name: errno.ENOSPC if number >= at and name in NEED_SPACE else 0


def dead_from(at: int) -> Callable[[int, str], int]:
    """From one call on nothing can be changed any more, not even back."""
    return lambda number, name: errno.EROFS if number >= at else 0


class ForgetsFolders(RecordingDisk):
    """Never syncs a folder: the commonest slip of all."""

    def fsync_folder(self, path: str) -> None:
        pass


class ForgetsContents(RecordingDisk):
    """Syncs names and leaves contents to luck."""

    def fsync(self, fd: int) -> None:
        pass

    fdatasync = fsync
