"""Cursors in one small file that can be read with ``cat``: each line is a checksum and a JSON document, the latest line
for a name counts. The file is made anew when it holds far more lines than cursors.

    5a1c09e2 {"cursors":[{"name":"billing","epoch":"…","sequence":42,"filter":"trades.*","atNs":1768296060123456789}]}
    91b3c0de {"dropped":"billing"}

A line is synced before ``put`` returns. A last line that is not whole was never confirmed and is cut off. One process
writes. Knows: the file. Does not know: what the cursors point at."""

import errno
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from yirangmq.core.errors import BadInput, StoreError
from yirangmq.core.topics import Cursor
from yirangmq.format.json_codec import dumps, loads
from yirangmq.fsio.disk import Disk
from yirangmq.fsio.errors import translated
from yirangmq.fsio.permissions import access_in

ROOM = 64 * 1024
"""A file no larger than this is never made anew."""
TIMES = 8
"""How many times as large as its cursors need the file may become."""
FIELDS = {"name": "name", "epoch": "epoch", "sequence": "sequence", "filter": "filter", "atNs": "at_ns"}


class FileCursors:
    """``notes`` say what was found and done while opening, in words."""

    def __init__(self, path: Path, *, disk: Disk | None = None) -> None:
        self._path = path
        self._disk = disk or Disk()
        self._disk.access = access_in(path.parent)
        self._turn = threading.Lock()
        self._cursors: dict[str, Cursor] = {}
        self._fd = -1
        self._size = self._size_when_new = 0
        self._broken = ""
        self.notes: list[str] = []
        with translated(path):
            self._open()

    def get(self, name: str) -> Cursor | None:
        return self._cursors.get(name)

    def all(self) -> list[Cursor]:
        with self._turn:
            return sorted(self._cursors.values())

    def put(self, cursors: Sequence[Cursor]) -> None:
        with self._turn:
            self._append({"cursors": [_shown(cursor) for cursor in cursors]})
            self._cursors.update({cursor.name: cursor for cursor in cursors})
            self._make_anew_if_long()

    def drop(self, name: str) -> bool:
        with self._turn:
            if name not in self._cursors:
                return False
            self._append({"dropped": name})
            del self._cursors[name]
            return True

    def close(self) -> None:
        with self._turn:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                with suppress(OSError):  # every line was synced when it was confirmed
                    self._disk.close(fd)

    # -- the file -------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        path = str(self._path)
        temp = self._temp()
        if os.path.lexists(temp):
            self._disk.unlink(temp)
        is_new = not os.path.lexists(path)
        self._fd = self._disk.open_write(path) if is_new else self._disk.open_update(path)
        self._disk.fsync(self._fd)
        self._disk.fsync_folder(str(self._path.parent))  # also for whoever made it and was killed before this
        self._read()

    def _read(self) -> None:
        """A bad line between others leaves an older cursor: records come again, none is lost."""
        data = self._path.read_bytes()
        at = good = bad = 0
        while at < len(data):
            end = data.find(b"\n", at) + 1
            document = _document(data[at : end - 1]) if end else None
            if document is not None and self._applied(document):
                good = end
            elif end:
                bad += 1
            at = end or len(data)
        self._size, self._size_when_new = good, len(self._lines())
        if good < len(data):  # cut off on its way
            self._disk.truncate(str(self._path), good)
        self._disk.fdatasync(self._fd)  # a killed writer may have left it to the system to write
        if bad > data[good:].count(b"\n"):
            self._set_aside(data)

    def _set_aside(self, data: bytes) -> None:
        """Keep what was damaged for a person to see, and go on with a file that is not."""
        aside = f"{self._path}.damaged"
        if not os.path.lexists(aside):
            fd = self._disk.open_write(aside)
            try:
                self._disk.write(fd, data)
                self._disk.fsync(fd)
            finally:
                self._disk.close(fd)
        self.notes.append(f"some of {self._path} does not hold what was written; a copy is {aside}")
        self._make_anew()

    def _applied(self, document: Any) -> bool:
        try:
            if "dropped" in document:
                self._cursors.pop(document["dropped"], None)
                return True
            read = [Cursor(**{FIELDS[name]: value for name, value in one.items()}) for one in document["cursors"]]
        except (TypeError, KeyError, AttributeError):
            return False
        self._cursors.update({cursor.name: cursor for cursor in read})
        return True

    def _append(self, document: dict[str, Any]) -> None:
        line = _line(document)
        if self._fd < 0:
            raise StoreError(f"{self._path} takes no more: it is closed; open it again")
        with translated(self._path):
            if self._broken:
                self._mend()
            try:
                self._disk.write_at(self._fd, line, self._size)
                self._disk.fdatasync(self._fd)
            except OSError:
                self._take_back()
                raise
        self._size += len(line)

    def _take_back(self) -> None:
        """Nobody can say what is on disk now; a line that was refused must not come back."""
        try:
            self._disk.truncate(str(self._path), self._size)
            self._disk.fdatasync(self._fd)
        except OSError as error:
            self._broken = f"a sync failed ({error.strerror})"

    def _mend(self) -> None:
        """After an error nobody knows what is in the file; a new one holds exactly what was confirmed."""
        self._make_anew()
        if self._broken:
            raise OSError(errno.EIO, self._broken)

    def _make_anew_if_long(self) -> None:
        if self._size <= max(ROOM, TIMES * self._size_when_new):
            return
        try:
            self._make_anew()
        except OSError:
            pass  # the long file is as good; the next put tries again

    def _make_anew(self) -> None:
        lines = self._lines()
        temp = self._temp()
        if os.path.lexists(temp):
            self._disk.unlink(temp)
        fd = self._disk.open_write(temp)
        try:
            self._disk.write(fd, lines)
            self._disk.fsync(fd)
            self._disk.rename(temp, str(self._path))
        except OSError:
            self._disk.close(fd)
            raise
        old, self._fd = self._fd, fd
        self._size = self._size_when_new = len(lines)
        with suppress(OSError):
            self._disk.close(old)
        try:
            self._disk.fsync_folder(str(self._path.parent))
            self._broken = ""
        except OSError as error:
            self._broken = f"a sync failed ({error.strerror})"

    def _lines(self) -> bytes:
        return b"".join(_line({"cursors": [_shown(cursor)]}) for cursor in self._cursors.values())

    def _temp(self) -> str:
        return f"{self._path}.new"


def _shown(cursor: Cursor) -> dict[str, Any]:
    return {name: getattr(cursor, field) for name, field in FIELDS.items()}


def _line(document: dict[str, Any]) -> bytes:
    text = dumps(document)
    return b"%08x %s\n" % (crc32(text), text)


def _document(line: bytes) -> Any:
    """None: it is no whole line of ours."""
    checksum, _, text = line.partition(b" ")
    try:
        return loads(text) if checksum == b"%08x" % crc32(text) else None
    except BadInput:
        return None
