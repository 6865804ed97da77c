"""When to look where: for each stretch of time the folders in which something is due then.

One small text file per stretch, ``.index/due/<begin>-<seconds>``, a folder a line. Near times have stretches of a
second, far ones of an hour; when a long one begins, what is due later in it is noted again in short ones. A line may
be stale: the names in the folder decide. A line is written before the file it is about, so none is ever missing.

Part of the index (files_index.py): never synced. Knows: times and folders. Does not know: what is in them."""

import errno
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from yirangmq.fsio.permissions import access_in, open_file

NEAR_MS = 120_000
FAR_MS = 10_800_000
SECOND, MINUTE, HOUR = 1, 60, 3600


class Stretch(NamedTuple):
    """From ``begin`` on, in seconds since 1970, for so many seconds."""

    begin: int
    seconds: int

    @property
    def begin_ms(self) -> int:
        return self.begin * 1000

    @property
    def end_ms(self) -> int:
        return (self.begin + self.seconds) * 1000

    def holds(self, moment: int) -> bool:
        return self.begin_ms <= moment < self.end_ms


class Note(NamedTuple):
    """Something in this folder (queue and path below it) is due at this moment."""

    due_at: int
    folder: str


def stretch_of(due_at: int, now: int) -> Stretch:
    ahead = due_at - now
    seconds = SECOND if ahead < NEAR_MS else MINUTE if ahead < FAR_MS else HOUR
    return Stretch(due_at // 1000 // seconds * seconds, seconds)


class Calendar:
    """The folder ``.index/due``."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._access = access_in(folder)

    def stretches(self) -> list[Stretch]:
        """All there are, the earliest first; of those that begin together the shortest."""
        return sorted(Stretch(*map(int, name.split("-"))) for name in os.listdir(self._folder))

    def folders(self, stretch: Stretch) -> list[str]:
        """Where to look, each once, in the order noted."""
        try:
            with open(self._path(stretch)) as file:
                return [folder for folder in dict.fromkeys(file.read().splitlines()) if folder]
        except FileNotFoundError:
            return []

    def note(self, notes: Iterable[Note], now: int) -> None:
        lines: dict[Stretch, dict[str, None]] = {}
        for due_at, folder in notes:
            lines.setdefault(stretch_of(due_at, now), {})[folder] = None
        self.write(lines)

    def write(self, lines: Mapping[Stretch, Iterable[str]]) -> None:
        for stretch, folders in lines.items():
            fd = open_file(self._path(stretch), os.O_WRONLY | os.O_APPEND, self._access)
            try:
                _append(fd, "".join(f"\n{folder}" for folder in folders).encode())
            finally:
                os.close(fd)

    def strike(self, stretch: Stretch) -> None:
        """Nothing more is due in it."""
        try:
            os.unlink(self._path(stretch))
        except FileNotFoundError:
            pass

    def clear(self) -> None:
        for name in os.listdir(self._folder):
            os.unlink(f"{self._folder}/{name}")

    def _path(self, stretch: Stretch) -> str:
        return f"{self._folder}/{stretch.begin}-{stretch.seconds}"


def _append(fd: int, lines: bytes) -> None:
    """The line break comes first: what a full disk cut off does not swallow the next line."""
    if os.write(fd, lines) < len(lines):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
