"""Disk space reserve for draining a full store, and trimming of history on a full disk.

``Reserve`` is a file beside the store with allocated blocks. Ack, nack, drop, purge and lease need a little space: WAL
pages, a folder, a journal line. When such a call fails on a full disk, the store deletes the reserve, repeats the call,
and allocates the reserve again as soon as there is space. Publishing never uses that space. Not thread-safe: used under
the store's lock.

``trim_history`` drops the content of acked messages before their archive policy does, up to ``limit`` of them. Their
ids are remembered for the tombstone window."""

import contextlib
import os
from pathlib import Path

from yirangmq.core.ports import Change, Transaction
from yirangmq.core.states import State
from yirangmq.fsio.permissions import open_file

# -- the reserve file --------------------------------------------------------------------------------------------------

SHARE = 8
"""Divisor: at most 1/8 of the file system is reserved ..."""
MIN_BYTES, MIN_SHARE_DIVISOR = 1024 * 1024, 4
"""... but at least 1 MiB, which SQLite needs to move pages at all, unless that exceeds a quarter of the file system."""
BLOCK = 4096
PARTS = 16
"""Granularity of a partial reserve: if the disk has no space for all of it, the largest multiple of 1/16 that fits."""


class Reserve:
    """Disk space reserve: a file with allocated blocks. ``size`` is in bytes; 0 reserves nothing.

    Not thread-safe: used under the store's lock."""

    def __init__(self, path: str, most: int) -> None:
        self._path = path
        self.size = _fitting(os.path.dirname(path) or ".", most)
        self.is_short = False
        """True if the reserve is missing or incomplete, as far as this process knows."""

    def make(self) -> None:
        """Allocate the reserve, or the part of it that fits, so that other programs do not use the remaining space."""
        if self.size and not self._is_complete():
            self.is_short = True
            for part in range(PARTS, 0, -1):
                if self._allocate(self.size * part // PARTS):
                    self.is_short = part < PARTS
                    return
        else:
            self.is_short = False

    def release(self) -> None:
        """Delete the reserve to free its space."""
        self.is_short = bool(self.size)
        self._remove()

    @property
    def is_held(self) -> bool:
        """True if the reserve file exists, complete or not."""
        return self.size > 0 and os.path.exists(self._path)

    def refresh(self) -> bool:
        """Check the file again: another process may have released it. Return True if it is missing or incomplete."""
        self.is_short = bool(self.size) and not self._is_complete()
        return self.is_short

    def _is_complete(self) -> bool:
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
    return min(most, max(size // SHARE, min(MIN_BYTES, size // MIN_SHARE_DIVISOR))) // BLOCK * BLOCK


def sqlite_reserve(path: Path, most: int) -> Reserve:
    return Reserve(f"{path.absolute()}-reserve", most)


def files_reserve(root: str, most: int) -> Reserve:
    return Reserve(f"{root}/.reserve", most)


# -- trimming of history -----------------------------------------------------------------------------------------------

HISTORY_PARTS = (500, 50, 5)
"""Messages to trim in one transaction. The numbers are tried in this order, until one transaction fits on the disk."""


def trim_history(transaction: Transaction, limit: int) -> int:
    """Drop the content of up to ``limit`` acked messages. Return how many."""
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
