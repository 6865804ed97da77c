"""Large files that are written once, read once and then removed: past the system's cache, straight between a buffer of
ours and the disk. The cache would have to find memory for each page of them, which takes longer than writing them, and
would give up for them what others come back to.

Knows: what a disk asks of such a buffer. Does not know: what the files are. Where a file system will not have it, the
cache is used as ever. Errors pass as ``OSError``."""

import errno
import mmap
import os
import threading

LARGE = 1 << 20
"""Bytes from which on it is worth it."""
ROOM = 8 << 20
"""Bytes moved at once; the buffer is kept for the next file."""
BLOCK = 4096
"""A whole number of these is moved, from and to such a place."""
DIRECT = getattr(os, "O_DIRECT", 0)


class PastCache:
    def __init__(self) -> None:
        self._buffer: mmap.mmap | None = None
        self._turn = threading.Lock()
        self._is_refused = not DIRECT

    def write(self, path: str, data: bytes) -> None:
        """A file of these bytes, in place of one that may be there; on disk when this returns, its name not yet."""
        if len(data) >= LARGE and not self._is_refused:
            try:
                self._write(path, data, DIRECT)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._is_refused = True
        self._write(path, data, 0)

    def _write(self, path: str, data: bytes, way: int) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | way, 0o600)
        try:
            if way:
                self._move_out(handle, data)
            else:
                _write_all(handle, memoryview(data), 0)
            os.fsync(handle)
        finally:
            os.close(handle)

    def _move_out(self, handle: int, data: bytes) -> None:
        with self._turn:
            buffer = self._made()
            for begin in range(0, len(data), ROOM):
                part = data[begin : begin + ROOM] if len(data) > ROOM else data
                buffer[: len(part)] = part
                with memoryview(buffer) as view, view[: -(-len(part) // BLOCK) * BLOCK] as whole:
                    _write_all(handle, whole, begin)
        os.ftruncate(handle, len(data))

    def read(self, path: str) -> bytes:
        size = os.stat(path).st_size
        if size >= LARGE and not self._is_refused:
            try:
                return self._move_in(path, size)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        with open(path, "rb", buffering=0) as file:
            return file.readall()

    def _move_in(self, path: str, size: int) -> bytes:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | DIRECT)
        parts: list[bytes] = []
        try:
            with self._turn:
                buffer, at = self._made(), 0
                while at < size and (got := os.preadv(handle, [buffer], at)):
                    parts.append(buffer[:got])
                    at += got
        finally:
            os.close(handle)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _made(self) -> mmap.mmap:
        if self._buffer is None:
            self._buffer = mmap.mmap(-1, ROOM)
        return self._buffer


def _write_all(handle: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(handle, view[done:], offset + done)
