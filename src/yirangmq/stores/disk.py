"""Every call by which the files store and the log change a disk, and nothing else. One object, so that a test can
stand in its place: to record what is written, synced and renamed, or to let the disk be full.

Knows: system calls. Does not know: messages, folders' meanings. Errors pass as ``OSError``."""

import ctypes
import errno
import os
from collections.abc import Callable

from yirangmq.format.direct import write_at
from yirangmq.format.permissions import OWNER, Access, make_folder, open_file

HONEST_SYNCFS = (5, 8)
"""From this Linux on ``syncfs`` tells of write errors; before it, only ``fsync`` does."""


class Disk:
    """Paths are absolute strings; a file open for writing is its descriptor."""

    access: Access = OWNER
    """Modes of what is made; a store sets it when it knows its folder."""

    def __init__(self) -> None:
        self._syncfs = find_syncfs()

    @property
    def has_syncfs(self) -> bool:
        """Whether one call can make everything durable and says so if it cannot."""
        return self._syncfs is not None

    def open_write(self, path: str, *, append: bool = False) -> int:
        """A new file, which must not exist yet; with ``append`` the end of one that may."""
        kind = os.O_APPEND if append else os.O_EXCL
        return open_file(path, os.O_WRONLY | kind, self.access)

    def write(self, fd: int, data: bytes) -> None:
        """All of it; the system may take it in parts."""
        done = os.write(fd, data)
        while done < len(data):
            done += os.write(fd, data[done:])

    def open_update(self, path: str) -> int:
        """A file that exists, to be written anywhere in it."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write_at(self, fd: int, data: bytes, offset: int) -> None:
        """All of it, there; the file grows where it must. Much at once goes past the system's page cache."""
        write_at(fd, data, offset)

    def reserve(self, fd: int, offset: int, length: int) -> None:
        """Room for so much, or an error before any of it is written. Where nobody can say, nothing is promised."""
        try:
            os.posix_fallocate(fd, offset, length)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise

    def truncate(self, path: str, size: int) -> None:
        os.truncate(path, size)

    def close(self, fd: int) -> None:
        os.close(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def begin_sync(self, fd: int, offset: int, length: int) -> None:
        """Let the disk begin to write this part, so that ``fdatasync`` has less to wait for. Nothing is promised.
        (Whoever does not need pages any more has them written: that is what Linux makes of it.)"""
        try:  # once a commit, where ``suppress`` would be three calls
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass

    def fsync_file(self, path: str) -> None:
        """Make a file durable that somebody else wrote."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def fsync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def syncfs(self, path: str) -> None:
        """Make everything on the file system of ``path`` durable: contents and names, everybody's."""
        if self._syncfs is None:
            raise OSError("this system has no syncfs")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._syncfs(fd)
        finally:
            os.close(fd)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        make_folder(path, self.access)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)


def find_syncfs() -> Callable[[int], None] | None:
    system = os.uname()
    numbers = system.release.split("-")[0].split(".")[:2]
    if system.sysname != "Linux" or not all(number.isdecimal() for number in numbers):
        return None
    if tuple(int(number) for number in numbers) < HONEST_SYNCFS:
        return None
    try:
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None

    def syncfs(fd: int) -> None:
        if call(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    return syncfs
