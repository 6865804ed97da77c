"""Durable cursors of topic subscribers, in a file of JSON lines or in a SQLite file.

A URL selects the storage: ``file:PATH`` or ``sqlite:PATH``. ``ValidatedCursors`` validates each cursor before it is
stored.

``FileCursors`` is for one process. A line is a CRC-32 in hex and a JSON document; the last line for a name counts::

    5a1c09e2 {"cursors":[{"name":"billing","epoch":"…","sequence":42,"filter":"trades.*","atNs":1768296060123456789}]}
    91b3c0de {"dropped":"billing"}

``put`` and ``drop`` return after an fdatasync. An incomplete last line was never confirmed and is cut off at open. A
damaged line between others leaves an older cursor: records are redelivered, none is lost. A copy of the damaged file
is kept as ``PATH.damaged``. The file is rewritten once it exceeds 64 KiB and 8 times its size after the last rewrite.

``SqliteCursors`` allows several processes: WAL, ``synchronous=FULL``, a busy timeout of 5 s."""

import errno
import os
import re
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import apsw

from yirangmq.core.errors import BadInput, StoreDamaged, StoreError
from yirangmq.core.topics import MAX_SEQUENCE, Cursor, Cursors, check_subscriber
from yirangmq.format.json_codec import dumps, loads
from yirangmq.fsio.disk import Disk
from yirangmq.fsio.errors import os_errors_translated
from yirangmq.fsio.permissions import access_in
from yirangmq.stores.sqlite.connection import make_file, sqlite_errors_translated

# -- file of JSON lines ------------------------------------------------------------------------------------------------

MIN_REWRITE_BYTES = 64 * 1024
"""Minimum size in bytes before the file is rewritten: 64 KiB."""
REWRITE_FACTOR = 8
"""Growth factor, relative to the size after the last rewrite, at which the file is rewritten."""
FIELDS = {"name": "name", "epoch": "epoch", "sequence": "sequence", "filter": "filter", "atNs": "at_ns"}


class FileCursors:
    """Cursors in a file of JSON lines, for one process. Thread-safe.

    ``notes`` are messages about faults found and repaired while opening."""

    def __init__(self, path: Path, *, disk: Disk | None = None) -> None:
        self._path = path
        self._disk = disk or Disk()
        self._disk.access = access_in(path.parent)
        self._lock = threading.Lock()
        self._cursors: dict[str, Cursor] = {}
        self._fd = -1
        self._size = self._size_when_new = 0
        self._broken = ""
        self.notes: list[str] = []
        with os_errors_translated(path):
            self._open()

    def get(self, name: str) -> Cursor | None:
        return self._cursors.get(name)

    def all(self) -> list[Cursor]:
        with self._lock:
            return sorted(self._cursors.values())

    def put(self, cursors: Sequence[Cursor]) -> None:
        with self._lock:
            self._append({"cursors": [_shown(cursor) for cursor in cursors]})
            self._cursors.update({cursor.name: cursor for cursor in cursors})
            self._rewrite_if_long()

    def drop(self, name: str) -> bool:
        with self._lock:
            if name not in self._cursors:
                return False
            self._append({"dropped": name})
            del self._cursors[name]
            return True

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                with suppress(OSError):  # every line was synced when it was confirmed
                    self._disk.close(fd)

    # -- file -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        path = str(self._path)
        temp = self._temp()
        if os.path.lexists(temp):
            self._disk.unlink(temp)
        is_new = not os.path.lexists(path)
        self._fd = self._disk.open_write(path) if is_new else self._disk.open_update(path)
        self._disk.fsync(self._fd)
        self._disk.fsync_folder(str(self._path.parent))  # a process killed before its sync may have created it
        self._read()

    def _read(self) -> None:
        """Load the cursors. A bad line between others leaves an older cursor: records are redelivered, none is lost."""
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
        if good < len(data):  # torn tail
            self._disk.truncate(str(self._path), good)
        self._disk.fdatasync(self._fd)  # a killed writer may have left lines unsynced
        if bad > data[good:].count(b"\n"):
            self._quarantine(data)

    def _quarantine(self, data: bytes) -> None:
        """Keep a copy of the damaged file for inspection, and rewrite the file with the cursors that were read."""
        damaged_copy = f"{self._path}.damaged"
        if not os.path.lexists(damaged_copy):
            fd = self._disk.open_write(damaged_copy)
            try:
                self._disk.write(fd, data)
                self._disk.fsync(fd)
            finally:
                self._disk.close(fd)
        self.notes.append(f"{self._path} is damaged in part; a copy is {damaged_copy}")
        self._rewrite()

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
            raise StoreError(f"{self._path} is closed; open it again")
        with os_errors_translated(self._path):
            if self._broken:
                self._rewrite_after_error()
            try:
                self._disk.write_at(self._fd, line, self._size)
                self._disk.fdatasync(self._fd)
            except OSError:
                self._undo_append()
                raise
        self._size += len(line)

    def _undo_append(self) -> None:
        """Truncate a line after its write or sync failed: it was refused and must not reappear."""
        try:
            self._disk.truncate(str(self._path), self._size)
            self._disk.fdatasync(self._fd)
        except OSError as error:
            self._broken = f"a sync failed ({error.strerror})"

    def _rewrite_after_error(self) -> None:
        """Rewrite the file after an error: its content is unknown, the new file holds exactly the confirmed cursors."""
        self._rewrite()
        if self._broken:
            raise OSError(errno.EIO, self._broken)

    def _rewrite_if_long(self) -> None:
        if self._size <= max(MIN_REWRITE_BYTES, REWRITE_FACTOR * self._size_when_new):
            return
        try:
            self._rewrite()
        except OSError:
            pass  # the long file is still valid; the next put tries again

    def _rewrite(self) -> None:
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
    """Parse a line. Return None if it is incomplete or its checksum is wrong."""
    checksum, _, text = line.partition(b" ")
    try:
        return loads(text) if checksum == b"%08x" % crc32(text) else None
    except BadInput:
        return None


# -- SQLite file -------------------------------------------------------------------------------------------------------

APPLICATION_ID = 0x79724D43
"""``application_id`` of the database: "yrMC"."""
BUSY_MS = 5_000
TABLE = """
CREATE TABLE IF NOT EXISTS cursor (
    name TEXT PRIMARY KEY, epoch TEXT NOT NULL, sequence INTEGER NOT NULL, filter TEXT NOT NULL, at_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID
"""
HALF, WHOLE = 2**63, 2**64
"""SQLite's integers are signed, sequences and times are unsigned: values from 2^63 are stored minus 2^64."""


class SqliteCursors:
    """Cursors in a SQLite database, for several processes. Thread-safe."""

    def __init__(self, path: Path, *, vfs: str | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        with sqlite_errors_translated(None, path):
            if vfs is None:
                make_file(path)
            self._db = apsw.Connection(str(path), vfs=vfs)
        try:
            with sqlite_errors_translated(self._db, path):
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        db = self._db
        db.set_busy_timeout(BUSY_MS)
        if db.pragma("application_id") != APPLICATION_ID:
            if db.execute("SELECT 1 FROM sqlite_schema").fetchone():
                raise StoreDamaged(f"{self._path} is an SQLite database of another program; use another file")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; {TABLE}; COMMIT")
        db.execute("PRAGMA synchronous = FULL")

    def get(self, name: str) -> Cursor | None:
        rows = self._rows("SELECT * FROM cursor WHERE name = ?", (name,))
        return rows[0] if rows else None

    def all(self) -> list[Cursor]:
        return self._rows("SELECT * FROM cursor ORDER BY name")

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Cursor]:
        with self._lock, sqlite_errors_translated(self._db, self._path):
            rows: list[Any] = self._db.execute(query, values).fetchall()
        return [Cursor(name, epoch, number % WHOLE, text, at_ns % WHOLE) for name, epoch, number, text, at_ns in rows]

    def put(self, cursors: Sequence[Cursor]) -> None:
        rows = [(c.name, c.epoch, _signed(c.sequence), c.filter, _signed(c.at_ns)) for c in cursors]
        with self._lock, sqlite_errors_translated(self._db, self._path), self._db:
            self._db.executemany("INSERT OR REPLACE INTO cursor VALUES (?, ?, ?, ?, ?)", rows)

    def drop(self, name: str) -> bool:
        found: list[Any] = []
        with self._lock, sqlite_errors_translated(self._db, self._path), self._db:
            found = self._db.execute("DELETE FROM cursor WHERE name = ? RETURNING 1", (name,)).fetchall()
        return bool(found)

    def close(self) -> None:
        with self._lock:
            self._db.close()


def _signed(number: int) -> int:
    return number - WHOLE if number >= HALF else number


# -- opening by URL, and input checks ----------------------------------------------------------------------------------

EPOCH = re.compile("[0-9a-f]{32}")
SURROGATES = re.compile("[\ud800-\udfff]")
"""Surrogate code points, which cannot be encoded as UTF-8."""
MAX_FILTER_CHARS = 16_384
SCHEMES = ("file", "sqlite")


def open_cursors(url: str) -> Cursors:
    """Open the cursors at a URL: ``file:PATH`` is a file of JSON lines, ``sqlite:PATH`` a database."""
    scheme, _, place = url.partition(":")
    if scheme not in SCHEMES or not place:
        raise BadInput(f"{url!r} is not a store of cursors; use file:PATH or sqlite:PATH", field="cursors")
    return ValidatedCursors(FileCursors(Path(place)) if scheme == "file" else SqliteCursors(Path(place)))


class CursorStorage(Protocol):
    """Storage of cursors: ``FileCursors`` or ``SqliteCursors``. Input is validated by ``ValidatedCursors``."""

    def get(self, name: str) -> Cursor | None: ...

    def all(self) -> Sequence[Cursor]: ...

    def put(self, cursors: Sequence[Cursor]) -> None: ...

    def drop(self, name: str) -> bool: ...

    def close(self) -> None: ...


class ValidatedCursors:
    """Cursors (``core.topics.Cursors``) that validate their input before the storage is called."""

    def __init__(self, place: CursorStorage) -> None:
        self._storage = place

    def get(self, name: str) -> Cursor | None:
        return self._storage.get(check_subscriber(name))

    def all(self) -> Sequence[Cursor]:
        return self._storage.all()

    def put(self, cursors: Sequence[Cursor]) -> None:
        for cursor in cursors:
            check_cursor(cursor)
        if cursors:
            self._storage.put(cursors)

    def drop(self, name: str) -> bool:
        return self._storage.drop(check_subscriber(name))

    def floor(self) -> int | None:
        return floor_of(self._storage.all())

    def close(self) -> None:
        self._storage.close()


def check_cursor(cursor: Cursor) -> None:
    """Validate a cursor. Raises ``BadInput`` with the field's name."""
    name, epoch, sequence, text, at_ns = cursor
    check_subscriber(name)
    _check_epoch(epoch)
    _check_number(sequence, "sequence")
    _check_filter(text)
    _check_number(at_ns, "atNs")


def _check_epoch(epoch: Any) -> None:
    if not isinstance(epoch, str) or not EPOCH.fullmatch(epoch):
        raise BadInput(f"must be 32 hexadecimal digits, not {epoch!r}", field="epoch")


def _check_number(value: Any, field: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SEQUENCE:
        raise BadInput(f"must be a whole number from 0 to {MAX_SEQUENCE}, not {value!r}", field=field)


def _check_filter(text: Any) -> None:
    if not isinstance(text, str) or len(text) > MAX_FILTER_CHARS or SURROGATES.search(text):
        raise BadInput(f"must be text of at most {MAX_FILTER_CHARS} characters", field="filter")


def floor_of(cursors: Iterable[Cursor]) -> int | None:
    """Return the lowest next sequence of all cursors, or None if there are none."""
    return min((cursor.sequence + 1 for cursor in cursors), default=None)
