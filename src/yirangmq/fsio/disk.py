"""Disk access: every call that changes a disk behind one object, direct I/O, and tolerant reads.

``Disk`` holds the calls by which the stores and the journal change a disk. A test or the fault injector stands in its
place, to record what is written, synced and renamed, or to let the disk be full. Errors pass as ``OSError``.

Reads and writes of 2 MiB or more bypass the page cache (``O_DIRECT``). Finding pages for so much data takes longer than
writing it, and evicts pages that other readers use. The unaligned ends go through the cache, and so does everything on
a file system without ``O_DIRECT``.

The reads by path expect other processes to change the folders at the same moment. A missing path is a result (False,
None, nothing), not an error. Every other error is raised, so that an unreadable file is never taken for a missing
one."""

import ctypes
import errno
import fcntl
import os
import stat
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from mmap import mmap
from pathlib import Path

from yirangmq.fsio.permissions import OWNER, Access, make_folder, open_file

# -- direct I/O --------------------------------------------------------------------------------------------------------

LARGE = 2 << 20
"""From so many bytes on."""
BLOCK = 4096
"""Where such a write may begin and end, in the file and in memory."""
CHUNK = 2 << 20
"""What is written is first copied to memory that begins with a page, so many bytes at a time."""
PAST_CACHE = getattr(os, "O_DIRECT", 0)

_spare: deque[mmap] = deque(maxlen=2)
"""Chunks nobody uses at present: to get memory from the system costs more than to copy to it."""
os.register_at_fork(after_in_child=_spare.clear)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """All of it, there; the file grows where it must."""
    view, done = memoryview(data), 0
    if len(view) >= LARGE:
        begin = -offset % BLOCK
        end = len(view) - (offset + len(view)) % BLOCK
        _write_plainly(fd, view[:begin], offset)
        done = begin + _write_past_cache(fd, view[begin:end], offset + begin)
    _write_plainly(fd, view[done:], offset + done)


def _write_plainly(fd: int, view: memoryview, offset: int) -> None:
    """The system may take it in parts."""
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)


def _write_past_cache(fd: int, view: memoryview, offset: int) -> int:
    """Whole blocks; how many bytes of them were written. What was not is for the other way, which says why it fails."""
    done = 0
    chunk = _take_chunk()
    if chunk is None:
        return done
    try:
        is_possible = _go_past_cache(fd, True)
        while is_possible and done < len(view):
            size = min(CHUNK, len(view) - done)
            chunk[:size] = view[done : done + size]
            with memoryview(chunk) as whole:
                written = os.pwrite(fd, whole[:size], offset + done)
            done += written - written % BLOCK
            is_possible = written == size
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        _go_past_cache(fd, False)
        _spare.append(chunk)
    return done


def _take_chunk() -> mmap | None:
    """None: there is no memory for it."""
    with suppress(IndexError):
        return _spare.pop()
    with suppress(OSError):
        return _memory(CHUNK)
    return None


class Place:
    """Memory to which files are read, one after the other."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def read(self, path: Path) -> memoryview:
        """All of a file; good until the next one is read to the same place."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if len(self._memory) < size:
                self._memory = memoryview(_memory(size))
            done = self._read_past_cache(fd, size) if size >= LARGE else 0
            while done < size:
                got = os.preadv(fd, [self._memory[done:size]], done)
                if not got:
                    break
                done += got
        finally:
            os.close(fd)
        return self._memory[:done]

    def _read_past_cache(self, fd: int, size: int) -> int:
        """How much of it could be read so."""
        try:
            return min(size, os.preadv(fd, [self._memory], 0)) if _go_past_cache(fd, True) else 0
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return 0
        finally:
            _go_past_cache(fd, False)


def _memory(size: int) -> mmap:
    """It begins with a page, and ends with one. It is shared with children, because Linux may read to the wrong place
    where memory of one's own is just being copied for a child; so a child must not use what its parent has."""
    return mmap(-1, -(-size // BLOCK) * BLOCK)


def _go_past_cache(fd: int, is_wanted: bool) -> bool:
    """Whether it does now."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~PAST_CACHE
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | PAST_CACHE if is_wanted else flags)
    except OSError:
        return False
    return is_wanted and bool(PAST_CACHE)


# -- calls that change a disk ------------------------------------------------------------------------------------------

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


# -- tolerant reads ----------------------------------------------------------------------------------------------------


def exists(path: str) -> bool:
    """As ``os.path.exists``, which takes every error for "no": here one that does not say so is raised, lest what
    cannot be seen be taken for gone."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def isdir(path: str) -> bool:
    """As ``os.path.isdir``, with the same care."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def subfolders(path: str) -> list[str]:
    """Names of the folders in a folder; hidden ones left out."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.name[0] != "." and entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_bytes(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def ends_whole(path: str) -> bool:
    """Whether a file of lines ends with a whole one; a power cut may have torn the last."""
    try:
        with open(path, "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return True
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except FileNotFoundError:
        return True


def read_all(fd: int, size: int) -> bytes:
    data = os.read(fd, size)
    while len(data) < size:
        more = os.read(fd, size - len(data))
        if not more:
            break
        data += more
    return data
