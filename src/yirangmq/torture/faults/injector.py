"""The injector: counts the I/O calls that an error applies to, and decides which of them fail.

Knows: names of calls and of errors. Does not know: how calls are intercepted (``system_calls``, ``sqlite_vfs``), what
is done with them. Thread-safe: a server's background threads do I/O too."""

import errno
import threading
from collections import Counter
from typing import NamedTuple

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
"""By error, the calls that can fail with it. Names that begin with x are methods of SQLite's VFS."""
LOCKED = "LOCKED"
"""No call fails, but another connection holds SQLite's write lock."""
SYSTEM_ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EMFILE", "EINTR")
SQLITE_ERRORS = ("EIO", "ENOSPC", "EMFILE", "BUSY", "CORRUPT", "NOMEM", LOCKED)


class Fired(NamedTuple):
    """A call that was made to fail."""

    call: str
    where: str


class Injector:
    """``arm`` chooses the error, the first call that fails, counted from 1 over the calls that it applies to, and how
    many fail from there on (None: until ``disarm``). While it is not armed nothing is counted."""

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
        """Let everything pass and count the calls, until ``counted``."""
        with self._lock:
            self._names = Counter()
            self.is_armed = True

    def counted(self) -> dict[str, int]:
        """By error, how many of the calls it applied to."""
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
        """How many calls the error applied to since ``arm``."""
        with self._lock:
            self.is_armed = False
            return self._count

    def fails(self, call: str, where: str) -> bool:
        """Whether this call is to fail; counts it."""
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
        """The error as an ``errno``."""
        found: int = getattr(errno, self.error, errno.EIO)
        return found
