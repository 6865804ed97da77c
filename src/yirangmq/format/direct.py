"""Much at once, past the system's page cache: to find pages for it takes longer than to write it, and they push out
those that somebody reads. Where a file system cannot do that, it is written and read like everything else.

Knows: files, and memory that begins with a page. Does not know: what is in them, who syncs them."""

import errno
import fcntl
import os
from collections import deque
from contextlib import suppress
from mmap import mmap
from pathlib import Path

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
