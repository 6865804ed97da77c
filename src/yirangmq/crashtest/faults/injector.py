"""Fault injector, and the two places where it acts: Python's system calls, and a SQLite VFS.

``Injector`` counts the I/O calls that an error applies to and decides which fail. It is thread-safe: a server's
background threads do I/O too.

``SystemCalls`` replaces functions of ``os``, ``fcntl`` and ``io`` while its block runs, for files below one folder. It
therefore sees all calls, with or without ``fsio.disk``: those of a store, its locks, cursors and alerts. It does not
see calls inside C libraries. It needs ``/proc``.

``FaultingVfs`` fails SQLite's I/O calls. SQLite locks a WAL on its shared-memory file, which bypasses the methods of an
apsw VFS. A write lock of another process is therefore tested with a real lock (``targets.StoreTarget.locked``). A
failed allocation is simulated by the result SQLITE_IOERR_NOMEM of a method: apsw's ``fault_inject`` needs a debug
build."""

import builtins
import errno
import fcntl
import io
import os
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import apsw

from yirangmq.fsio import disk

# -- injector ----------------------------------------------------------------------------------------------------------

_CHANGES = ("write", "pwrite", "truncate", "mkdir", "rename", "open", "link", "allocate")
_SYNCS = ("fsync", "fdatasync", "syncfs")
_READS = ("read", "stat", "list")
_SQLITE_WRITES = ("xWrite", "xSync")

APPLIES: dict[str, frozenset[str]] = {
    "EIO": frozenset(
        {*_CHANGES, *_SYNCS, *_READS, "unlink", "rmdir", "close", "flock"}
        | {*_SQLITE_WRITES, "xRead", "xTruncate", "xFileSize", "xDelete", "xAccess", "xOpen"}
    ),
    "ENOSPC": frozenset((*_CHANGES, *_SYNCS, *_SQLITE_WRITES)),
    "EDQUOT": frozenset((*_CHANGES, *_SYNCS, *_SQLITE_WRITES)),
    "EMFILE": frozenset(("open", "list", "xOpen")),
    "EINTR": frozenset(("open", "read", "write", "pwrite", "flock", *_SYNCS)),
    "BUSY": frozenset(("xLock",)),
    "CORRUPT": frozenset(("xRead",)),
    "NOMEM": frozenset(("xRead", "xOpen", "xWrite")),
}
"""Calls that can fail, by error. Names that begin with x are methods of SQLite's VFS."""
LOCKED = "LOCKED"
"""Pseudo error: no call fails, but another connection holds SQLite's write lock."""
SYSTEM_ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EMFILE", "EINTR")
SQLITE_ERRORS = ("EIO", "ENOSPC", "EMFILE", "BUSY", "CORRUPT", "NOMEM", LOCKED)


class Fired(NamedTuple):
    """A call that the injector failed, and its path."""

    call: str
    where: str


class Injector:
    """Fault injector: counts the calls that an error applies to and decides which fail. Thread-safe.

    ``arm`` sets the error, the first failing call (counted from 1) and the number of failing calls (None: until
    ``disarm``). While the injector is not armed, nothing is counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._applies: frozenset[str] = frozenset()
        self._first = 0
        self._last: int | None = 0
        self._count = 0
        self._names: Counter[str] | None = None
        self.error = ""
        self.is_armed = False
        self.fired: list[Fired] = []

    def count(self) -> None:
        """Count the calls without failing any, until ``counted``."""
        with self._lock:
            self._names = Counter()
            self.is_armed = True

    def counted(self) -> dict[str, int]:
        """Stop counting. Return the number of calls that each error applies to."""
        with self._lock:
            names, self._names, self.is_armed = self._names or Counter(), None, False
        return {error: sum(names[call] for call in calls) for error, calls in APPLIES.items()}

    def arm(self, error: str, first: int, length: int | None = 1) -> None:
        with self._lock:
            self.error, self._applies = error, APPLIES[error]
            self._first, self._last = first, None if length is None else first + length - 1
            self._count = 0
            self.fired = []
            self.is_armed = True

    def disarm(self) -> int:
        """Stop failing calls. Return the number of calls that the error applied to since ``arm``."""
        with self._lock:
            self.is_armed = False
            return self._count

    def must_fail(self, call: str, where: str) -> bool:
        """Count a call. Return True if it must fail."""
        if not self.is_armed:
            return False
        with self._lock:
            if self._names is not None:
                self._names[call] += 1
                return False
            if call not in self._applies:
                return False
            self._count += 1
            if self._count < self._first or (self._last is not None and self._count > self._last):
                return False
            self.fired.append(Fired(call, where))
            return True

    @property
    def number(self) -> int:
        """Error number of the injected error."""
        found: int = getattr(errno, self.error, errno.EIO)
        return found


# -- Python's system calls ---------------------------------------------------------------------------------------------

BY_PATH = {
    "open": "open", "stat": "stat", "lstat": "stat", "listdir": "list", "scandir": "list", "unlink": "unlink",
    "remove": "unlink", "rmdir": "rmdir", "mkdir": "mkdir", "rename": "rename", "replace": "rename", "link": "link",
    "symlink": "link", "truncate": "truncate",
}  # fmt: skip
BY_DESCRIPTOR = {
    "read": "read", "pread": "read", "preadv": "read", "readv": "read", "fstat": "stat", "ftruncate": "truncate",
    "posix_fallocate": "allocate",
}  # fmt: skip
"""These calls fail before they do anything."""
WRITES = {"write": "write", "pwrite": "pwrite"}
"""These calls write half of the bytes, then fail: a short write followed by an error."""
AFTERWARDS = {"fsync": "fsync", "fdatasync": "fdatasync", "close": "close"}
"""These calls complete, then fail: the worst case, because the caller cannot know the state of the disk."""


class SystemCalls:
    """Replaces Python's system calls on files below a folder: ``with SystemCalls(injector, folder): …``"""

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

    def _replace(self, owner: Any, name: str, injected: Any) -> None:
        self._originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, injected)

    # -- the calls --------------------------------------------------------------------------------------------------

    def _by_path(self, original: Callable[..., Any], call: str, *given: Any, **named: Any) -> Any:
        if self._injector.is_armed and given:
            where = self._path(given[0], named.get("dir_fd"))
            if where and self._injector.must_fail(call, where):
                raise self._error(where)
        return original(*given, **named)

    def _by_descriptor(self, original: Callable[..., Any], call: str, *given: Any, **named: Any) -> Any:
        if self._injector.is_armed:
            where = self._path_of(given[0])
            if where and self._injector.must_fail(call, where):
                raise self._error(where)
        return original(*given, **named)

    def _half(self, original: Callable[..., Any], call: str, fd: int, data: Any, *given: Any) -> Any:
        if self._injector.is_armed:
            where = self._path_of(fd)
            if where and self._injector.must_fail(call, where):
                original(fd, memoryview(data)[: len(data) // 2], *given)
                raise self._error(where)
        return original(fd, data, *given)

    def _afterwards(self, original: Callable[..., Any], call: str, fd: Any) -> Any:
        if not self._injector.is_armed:
            return original(fd)
        where = self._path_of(fd if isinstance(fd, int) else fd.fileno())
        result = original(fd)
        if where and self._injector.must_fail(call, where):
            raise self._error(where)
        return result

    def _opened(self, original: Callable[..., Any], file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        where = self._path(file) if self._injector.is_armed and not isinstance(file, int) else ""
        if where and self._injector.must_fail("open", where):
            raise self._error(where)
        if where and "r" in mode and self._injector.must_fail("read", where):
            raise self._error(where)
        return original(file, mode, *given, **named)

    def _found_syncfs(self, original: Callable[[], Callable[[int], None] | None]) -> Callable[[int], None] | None:
        found = original()
        return None if found is None else partial(self._afterwards, found, "syncfs")

    # -- paths ------------------------------------------------------------------------------------------------------

    def _path(self, path: Any, dir_fd: int | None = None) -> str:
        """Return the path if it is below the folder, otherwise ""."""
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
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - runs at each call while armed, so it avoids Path
    except OSError:
        return ""


# -- SQLite's VFS ------------------------------------------------------------------------------------------------------

BASE = "unix"
EXTENDED = {
    "xRead": apsw.SQLITE_IOERR_READ,
    "xWrite": apsw.SQLITE_IOERR_WRITE,
    "xSync": apsw.SQLITE_IOERR_FSYNC,
    "xTruncate": apsw.SQLITE_IOERR_TRUNCATE,
    "xFileSize": apsw.SQLITE_IOERR_FSTAT,
    "xDelete": apsw.SQLITE_IOERR_DELETE,
    "xAccess": apsw.SQLITE_IOERR_ACCESS,
}


class FaultingVfs(apsw.VFS):
    """SQLite VFS with fault injection: ``with FaultingVfs(name, injector): …``. Open connections with that name."""

    def __init__(self, name: str, injector: Injector) -> None:
        super().__init__(name, BASE)
        self._injector = injector

    def __enter__(self) -> "FaultingVfs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unregister()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "FaultingFile":
        if self._injector.must_fail("xOpen", _text(name)):
            raise injected(self._injector, "xOpen")
        return FaultingFile(name, flags, self._injector)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if self._injector.must_fail("xDelete", filename):
            raise injected(self._injector, "xDelete")
        super().xDelete(filename, syncdir)

    def xAccess(self, pathname: str, flags: int) -> bool:
        if self._injector.must_fail("xAccess", pathname):
            raise injected(self._injector, "xAccess")
        return super().xAccess(pathname, flags)


class FaultingFile(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int], injector: Injector) -> None:
        super().__init__(BASE, name, flags)
        self._injector = injector
        self._name = _text(name)

    def _check(self, call: str) -> None:
        if self._injector.is_armed and self._injector.must_fail(call, self._name):
            raise injected(self._injector, call)

    def xRead(self, amount: int, offset: int) -> bytes:
        self._check("xRead")
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:
        """Write, or write half of the data and fail."""
        if self._injector.is_armed and self._injector.must_fail("xWrite", self._name):
            super().xWrite(bytes(data)[: len(data) // 2], offset)
            raise injected(self._injector, "xWrite")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        """Sync, then possibly fail: the caller cannot know the state of the disk."""
        super().xSync(flags)
        self._check("xSync")

    def xTruncate(self, newsize: int) -> None:
        self._check("xTruncate")
        super().xTruncate(newsize)

    def xFileSize(self) -> int:
        self._check("xFileSize")
        return super().xFileSize()

    def xLock(self, level: int) -> None:
        self._check("xLock")
        super().xLock(level)


def injected(injector: Injector, call: str) -> apsw.Error:
    """Build the error as SQLite expects it.

    A failed allocation is SQLITE_IOERR_NOMEM, as in SQLite's unix VFS. After a plain SQLITE_NOMEM SQLite would continue
    with pages that it could not read back."""
    error = injector.error
    if error in ("ENOSPC", "EDQUOT"):
        return apsw.FullError("injected: no space left")
    if error == "BUSY":
        return apsw.BusyError("injected: locked")
    if error == "CORRUPT":
        return apsw.CorruptError("injected: malformed")
    if error == "EMFILE" or (call == "xOpen" and error != "NOMEM"):
        return apsw.CantOpenError("injected: cannot open")
    failed: Any = apsw.IOError("injected: disk I/O error")
    failed.extendedresult = apsw.SQLITE_IOERR_NOMEM if error == "NOMEM" else EXTENDED.get(call, apsw.SQLITE_IOERR)
    raised: apsw.Error = failed
    return raised


def _text(name: str | apsw.URIFilename | None) -> str:
    return (name.filename() if isinstance(name, apsw.URIFilename) else name) or ""
