"""SQLite's calls made to fail on demand: a VFS over the system's own.

SQLite takes the locks of a WAL on its shared-memory file, past the methods that a VFS of apsw has: that another process
holds the write lock is tested with a real lock (``targets.locked``). A failed allocation is what a method reports,
SQLITE_IOERR_NOMEM; apsw's own ``fault_inject`` exists only in its debug builds.

Knows: apsw's VFS. Does not know: when (``injector``), what the database means."""

from types import TracebackType
from typing import Any

import apsw

from yirangmq.torture.faults.injector import Injector

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
    """``with FaultingVfs(name, injector): …``; open connections with that name."""

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
        if self._injector.fails("xOpen", _text(name)):
            raise made(self._injector, "xOpen")
        return FaultingFile(name, flags, self._injector)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if self._injector.fails("xDelete", filename):
            raise made(self._injector, "xDelete")
        super().xDelete(filename, syncdir)

    def xAccess(self, pathname: str, flags: int) -> bool:
        if self._injector.fails("xAccess", pathname):
            raise made(self._injector, "xAccess")
        return super().xAccess(pathname, flags)


class FaultingFile(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int], injector: Injector) -> None:
        super().__init__(BASE, name, flags)
        self._injector = injector
        self._name = _text(name)

    def _check(self, call: str) -> None:
        if self._injector.is_armed and self._injector.fails(call, self._name):
            raise made(self._injector, call)

    def xRead(self, amount: int, offset: int) -> bytes:
        self._check("xRead")
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:
        """Half of it is written before it fails."""
        if self._injector.is_armed and self._injector.fails("xWrite", self._name):
            super().xWrite(bytes(data)[: len(data) // 2], offset)
            raise made(self._injector, "xWrite")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        """Done, and then it fails: the caller cannot know what is on disk."""
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


def made(injector: Injector, call: str) -> apsw.Error:
    """The error as SQLite knows it. A method reports a failed allocation as SQLITE_IOERR_NOMEM, as SQLite's own VFS
    does: after a bare SQLITE_NOMEM SQLite would go on with pages that it could not read back."""
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
