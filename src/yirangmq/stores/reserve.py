"""Disk space reserve for draining a full store, and trimming of history on a full disk.

``Reserve`` is a file beside the store whose blocks are really allocated. Ack, nack, drop, purge and lease need a
little space: WAL pages, a folder, a journal line. When such a call finds none, the store deletes the reserve, repeats
the call, and allocates the reserve again as soon as there is room. Publishing never uses that space. Not thread-safe:
used under the store's lock.

``give_up_history`` drops the content of acked messages before their policy says so, up to ``limit`` of them. Their ids
stay remembered for the tombstone window."""

import contextlib
import os
from pathlib import Path

from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import State
from yirangmq.fsio.permissions import open_file

# -- the reserve file --------------------------------------------------------------------------------------------------

SHARE = 8
"""At most this part of the file system is reserved ..."""
LEAST, LEAST_SHARE = 1024 * 1024, 4
"""... but 1 MiB, with which SQLite's pages can be moved at all, if that is not more than a quarter of it."""
BLOCK = 4096
PARTS = 16
"""Where there is no room for all of it, as many of these parts as there is room for."""


class Reserve:
    """``size`` 0: nothing is reserved."""

    def __init__(self, path: str, most: int) -> None:
        self._path = path
        self.size = _fitting(os.path.dirname(path) or ".", most)
        self.is_short = False
        """It is not there, or not all of it, as far as this process knows."""

    def make(self) -> None:
        """All of it, or as much as there is room for: other programs must not take what is left of it."""
        if self.size and not self._is_there():
            self.is_short = True
            for part in range(PARTS, 0, -1):
                if self._allocate(self.size * part // PARTS):
                    self.is_short = part < PARTS
                    return
        else:
            self.is_short = False

    def release(self) -> None:
        """Give the space free."""
        self.is_short = bool(self.size)
        self._remove()

    @property
    def is_held(self) -> bool:
        """There is something to release."""
        return self.size > 0 and os.path.exists(self._path)

    def look(self) -> bool:
        """Whether it is not there: another process may have used it."""
        self.is_short = bool(self.size) and not self._is_there()
        return self.is_short

    def _is_there(self) -> bool:
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        return found.st_size >= self.size and found.st_blocks * 512 >= self.size

    def _allocate(self, size: int) -> bool:
        try:
            fd = open_file(self._path, os.O_RDWR)
            try:
                os.ftruncate(fd, 0)
                os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)
        except OSError:
            self._remove()
            return False
        return True

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def _fitting(folder: str, most: int) -> int:
    if most <= 0:
        return 0
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    size = found.f_blocks * found.f_frsize
    return min(most, max(size // SHARE, min(LEAST, size // LEAST_SHARE))) // BLOCK * BLOCK


def sqlite_reserve(path: Path, most: int) -> Reserve:
    return Reserve(f"{path.absolute()}-reserve", most)


def files_reserve(root: str, most: int) -> Reserve:
    return Reserve(f"{root}/.reserve", most)


# -- trimming of history -----------------------------------------------------------------------------------------------

HISTORY_PARTS = (500, 50, 5)
"""Messages that are given up in one transaction: as many as there is space for."""


def give_up_history(transaction: Transaction, limit: int) -> int:
    """How many messages lost their content."""
    changes: list[Change] = []
    for queue in transaction.queues():
        if len(changes) >= limit or not transaction.counts(queue).done:
            continue
        window = transaction.policy(queue).tombstone_ms
        cursor = ""
        while len(changes) < limit:
            page = transaction.scan(queue, State.DONE, limit, cursor)
            kept = [message for message in page.messages if message.body][: limit - len(changes)]
            changes += [Change(one, one._replace(body=False, due_at=one.changed_at + window)) for one in kept]
            cursor = page.cursor
            if not cursor:
                break
    transaction.swap(changes)
    return len(changes)
