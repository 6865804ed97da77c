"""System calls of this process on files below one folder, made to fail on demand.

The functions of ``os``, ``fcntl`` and ``io`` that Python code calls are replaced while the ``with`` block lasts. So
every call counts, whether it goes through ``fsio.disk`` or not: of a store, its locks, cursors and alerts.
What C libraries do by themselves is not seen (SQLite has ``sqlite_vfs``).

Knows: which functions there are and how the system would fail them. Does not know: when (``injector``), what the files
mean. Needs ``/proc``."""

import builtins
import fcntl
import io
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from yirangmq.fsio import disk
from yirangmq.torture.faults.injector import Injector

BY_PATH = {
    "open": "open", "stat": "stat", "lstat": "stat", "listdir": "list", "scandir": "list", "unlink": "unlink",
    "remove": "unlink", "rmdir": "rmdir", "mkdir": "mkdir", "rename": "rename", "replace": "rename", "link": "link",
    "symlink": "link", "truncate": "truncate",
}  # fmt: skip
BY_DESCRIPTOR = {
    "read": "read", "pread": "read", "preadv": "read", "readv": "read", "fstat": "stat", "ftruncate": "truncate",
    "posix_fallocate": "allocate",
}  # fmt: skip
"""Fail before anything is done."""
WRITES = {"write": "write", "pwrite": "pwrite"}
"""Half of the bytes are written, then the call fails: as a short write followed by an error."""
AFTERWARDS = {"fsync": "fsync", "fdatasync": "fdatasync", "close": "close"}
"""Are done, then fail: the worst case, in which the caller cannot know what is on disk."""


class SystemCalls:
    """``with SystemCalls(injector, folder): …``"""

    def __init__(self, injector: Injector, folder: Path) -> None:
        self._injector = injector
        self._prefix = f"{folder.resolve()}/"
        self._originals: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> "SystemCalls":
        for name, call in BY_PATH.items():
            self._replace(os, name, partial(self._by_path, getattr(os, name), call))
        for name, call in BY_DESCRIPTOR.items():
            self._replace(os, name, partial(self._by_descriptor, getattr(os, name), call))
        for name, call in WRITES.items():
            self._replace(os, name, partial(self._half, getattr(os, name), call))
        for name, call in AFTERWARDS.items():
            self._replace(os, name, partial(self._afterwards, getattr(os, name), call))
        self._replace(fcntl, "flock", partial(self._by_descriptor, fcntl.flock, "flock"))
        opened = partial(self._opened, io.open)
        self._replace(io, "open", opened)
        self._replace(builtins, "open", opened)
        self._replace(disk, "find_syncfs", partial(self._found_syncfs, disk.find_syncfs))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, made: Any) -> None:
        self._originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, made)

    # -- the calls --------------------------------------------------------------------------------------------------

    def _by_path(self, original: Callable[..., Any], call: str, *given: Any, **named: Any) -> Any:
        if self._injector.is_armed and given:
            where = self._path(given[0], named.get("dir_fd"))
            if where and self._injector.fails(call, where):
                raise self._error(where)
        return original(*given, **named)

    def _by_descriptor(self, original: Callable[..., Any], call: str, *given: Any, **named: Any) -> Any:
        if self._injector.is_armed:
            where = self._path_of(given[0])
            if where and self._injector.fails(call, where):
                raise self._error(where)
        return original(*given, **named)

    def _half(self, original: Callable[..., Any], call: str, fd: int, data: Any, *given: Any) -> Any:
        if self._injector.is_armed:
            where = self._path_of(fd)
            if where and self._injector.fails(call, where):
                original(fd, memoryview(data)[: len(data) // 2], *given)
                raise self._error(where)
        return original(fd, data, *given)

    def _afterwards(self, original: Callable[..., Any], call: str, fd: Any) -> Any:
        if not self._injector.is_armed:
            return original(fd)
        where = self._path_of(fd if isinstance(fd, int) else fd.fileno())
        result = original(fd)
        if where and self._injector.fails(call, where):
            raise self._error(where)
        return result

    def _opened(self, original: Callable[..., Any], file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        where = self._path(file) if self._injector.is_armed and not isinstance(file, int) else ""
        if where and self._injector.fails("open", where):
            raise self._error(where)
        if where and "r" in mode and self._injector.fails("read", where):
            raise self._error(where)
        return original(file, mode, *given, **named)

    def _found_syncfs(self, original: Callable[[], Callable[[int], None] | None]) -> Callable[[int], None] | None:
        found = original()
        return None if found is None else partial(self._afterwards, found, "syncfs")

    # -- where ------------------------------------------------------------------------------------------------------

    def _path(self, path: Any, dir_fd: int | None = None) -> str:
        """The path if it is below the folder; "" if it is not."""
        if isinstance(path, int):
            return self._path_of(path)
        text = os.fsdecode(path)
        if not text.startswith("/"):
            text = f"{Path.cwd() if dir_fd is None else _target(dir_fd)}/{text}"
        return text if text.startswith(self._prefix) else ""

    def _path_of(self, fd: int) -> str:
        found = _target(fd)
        return found if found.startswith(self._prefix) else ""

    def _error(self, where: str) -> OSError:
        number = self._injector.number
        return OSError(number, os.strerror(number), where)


def _target(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - at each call while armed: no Path is made for it
    except OSError:
        return ""
