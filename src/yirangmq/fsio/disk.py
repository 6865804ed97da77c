"""Disk access: every call that changes a disk behind one object, direct I/O, and tolerant reads.

``Disk`` has the calls by which the stores and the journal change a disk. A test or the crash-test recorder replaces it
to record writes, syncs and renames, or to simulate a full disk. Errors pass as ``OSError``.

Reads and writes of 2 MiB or more bypass the page cache (``O_DIRECT``). Allocating pages for that much data takes longer
than writing it, and evicts pages that other readers use. The unaligned ends go through the cache, and so does all I/O
on a file system without ``O_DIRECT``.

The reads by path allow for other processes that change the folders concurrently. A missing path is a result (False,
None or empty), not an error. Every other error is raised, so that an unreadable file is never taken for a missing
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

from yirangmq.fsio.permissions import OWNER, FileModes, make_folder, open_file

# -- direct I/O --------------------------------------------------------------------------------------------------------

LARGE = 2 << 20
"""Minimum bytes of a read or write that bypasses the page cache."""
BLOCK = 4096
"""Alignment of direct I/O in bytes, in the file and in memory."""
CHUNK = 2 << 20
"""Bytes per direct write. The data is first copied to page-aligned memory of this size."""
PAST_CACHE = getattr(os, "O_DIRECT", 0)

_spare: deque[mmap] = deque(maxlen=2)
"""Pool of idle chunks: allocating memory from the system costs more than copying to it."""
os.register_at_fork(after_in_child=_spare.clear)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all data at ``offset``. The file grows if necessary."""
    if len(data) < LARGE:
        done = os.pwrite(fd, data, offset)
        if done < len(data):
            _write_plainly(fd, memoryview(data)[done:], offset + done)
        return
    view = memoryview(data)
    begin = -offset % BLOCK
    end = len(view) - (offset + len(view)) % BLOCK
    _write_plainly(fd, view[:begin], offset)
    done = begin + _write_direct(fd, view[begin:end], offset + begin)
    _write_plainly(fd, view[done:], offset + done)


def _write_plainly(fd: int, view: memoryview, offset: int) -> None:
    """Write through the page cache; repeat after a short write."""
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)


def _write_direct(fd: int, view: memoryview, offset: int) -> int:
    """Write whole blocks with direct I/O. Return the number of bytes written.

    The caller writes the rest through the page cache, and that write reports the reason of a failure."""
    done = 0
    chunk = _take_chunk()
    if chunk is None:
        return done
    try:
        is_possible = _set_direct(fd, True)
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
        _set_direct(fd, False)
        _spare.append(chunk)
    return done


def _take_chunk() -> mmap | None:
    """Take a chunk from the pool or allocate one. Return None if there is no memory for it."""
    with suppress(IndexError):
        return _spare.pop()
    with suppress(OSError):
        return _memory(CHUNK)
    return None


class FileReadBuffer:
    """Reusable read buffer for files, one at a time."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def read(self, path: Path) -> memoryview:
        """Read a whole file. The result is valid until the next call of ``read``."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if len(self._memory) < size:
                self._memory = memoryview(_memory(size))
            done = self._read_direct(fd, size) if size >= LARGE else 0
            while done < size:
                got = os.preadv(fd, [self._memory[done:size]], done)
                if not got:
                    break
                done += got
        finally:
            os.close(fd)
        return self._memory[:done]

    def _read_direct(self, fd: int, size: int) -> int:
        """Read with direct I/O. Return the number of bytes read; 0 if direct I/O is not possible."""
        try:
            return min(size, os.preadv(fd, [self._memory], 0)) if _set_direct(fd, True) else 0
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return 0
        finally:
            _set_direct(fd, False)


def _memory(size: int) -> mmap:
    """Allocate page-aligned memory, rounded up to whole blocks.

    The mapping is shared with forked children: with private memory Linux may complete a direct read to the wrong page
    while the page is copied for a child. A child must therefore not use its parent's buffers."""
    return mmap(-1, -(-size // BLOCK) * BLOCK)


def _set_direct(fd: int, is_wanted: bool) -> bool:
    """Set or clear ``O_DIRECT`` on a descriptor. Return True if it is set afterwards."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~PAST_CACHE
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | PAST_CACHE if is_wanted else flags)
    except OSError:
        return False
    return is_wanted and bool(PAST_CACHE)


# -- calls that change a disk ------------------------------------------------------------------------------------------

MIN_SYNCFS_VERSION = (5, 8)
"""Lowest Linux version in which ``syncfs`` reports write errors. In older ones only ``fsync`` does."""


class Disk:
    """All calls that change a disk. Paths are absolute strings; an open file is its descriptor."""

    access: FileModes = OWNER
    """Modes of new files and folders. A store sets it when it knows its folder."""

    def __init__(self) -> None:
        self._syncfs = find_syncfs()

    @property
    def has_syncfs(self) -> bool:
        """True if ``syncfs`` is available and reports write errors."""
        return self._syncfs is not None

    def open_write(self, path: str, *, append: bool = False) -> int:
        """Create a file, which must not exist. With ``append`` open its end and create it if necessary."""
        kind = os.O_APPEND if append else os.O_EXCL
        return open_file(path, os.O_WRONLY | kind, self.access)

    def write(self, fd: int, data: bytes) -> None:
        """Write all data at the file position; repeat after a short write."""
        done = os.write(fd, data)
        while done < len(data):
            done += os.write(fd, data[done:])

    def open_update(self, path: str) -> int:
        """Open an existing file for writes at any offset."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write_at(self, fd: int, data: bytes, offset: int) -> None:
        """Write all data at ``offset``. The file grows if necessary. 2 MiB or more bypass the page cache."""
        write_at(fd, data, offset)

    def reserve(self, fd: int, offset: int, length: int) -> None:
        """Preallocate space, so that a full disk is an error before any data is written.

        On a file system without preallocation this does nothing."""
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
        """Start writeback of a range, so that ``fdatasync`` waits for less. Best effort; nothing is durable afterwards.

        Linux starts writeback of the dirty pages of a range given as ``POSIX_FADV_DONTNEED``."""
        try:  # runs once per commit; ``suppress`` would add three calls
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass

    def fsync_file(self, path: str) -> None:
        """Make the content of a file durable that another process or descriptor wrote."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def fsync_folder(self, path: str) -> None:
        """Sync a folder: make the names in it durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def syncfs(self, path: str) -> None:
        """Make the whole file system of ``path`` durable: contents and names, also of other processes."""
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
    if tuple(int(number) for number in numbers) < MIN_SYNCFS_VERSION:
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
    """Return True if the path exists.

    ``os.path.exists`` returns False for every error. This function raises all errors but a missing path, so that an
    unreadable path is not taken for a deleted one."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def isdir(path: str) -> bool:
    """Return True if the path is a folder. Errors are raised as in ``exists``."""
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
    """Return the names of the subfolders of a folder, except hidden ones."""
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


def ends_with_newline(path: str) -> bool:
    """Return True if a file of lines is empty or ends with a line feed. A power cut may leave a torn tail."""
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
