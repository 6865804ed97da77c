"""Changes that are on disk but not yet in the SQLite file: ``queue.db-redo``, beside it (docs/sqlite.md).

A record is what one commit changed: the statements that did it, with their values. Records follow each other from the
beginning of the file, and each carries the generation that the SQLite file had when it was written. A commit of SQLite
that takes them in gives that file another generation, at random, so that all of them are void at once and the next one
is written over the first. The file keeps its length: a sync has nothing to write but the record.

Knows: records, generations, how changes are made again. Does not know: what the statements mean, when to commit."""

import contextlib
import marshal
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from time import monotonic
from typing import Any

import apsw

from yirangmq.core.errors import StoreDamaged
from yirangmq.stores.disk import Disk

Made = tuple[str, bool, Any]
"""A statement, whether it was for many rows, and its values or rows."""
BYTES = 512 * 1024
"""Of the whole file: large enough that most commits need no page, small enough that nobody waits long for SQLite's."""
BLOCK = 65536
PAUSE_SECONDS = 60.0
"""After a file could not be made."""
_HEAD = struct.Struct("<IIQI")
"""Bytes of the body, checksum of all behind it, generation, number of the record."""
_CHECKED = struct.Struct("<QI")
MARSHAL = 2
"""A version of the format that every Python reads."""


def _encode(content: tuple[list[str], list[tuple[int, bool, Any]]]) -> bytes:
    """By the standard library: a server at rest, which commits a little, does without loading another one."""
    try:
        return marshal.dumps(content, MARSHAL)
    except ValueError:  # a kind of text that is not quite one, as the state of a message is
        return marshal.dumps(_plain(content), MARSHAL)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, str) else value


def redo_path(path: Path) -> Path:
    return Path(f"{path}-redo")


def new_generation() -> int:
    return int.from_bytes(os.urandom(8)) >> 2


def generation_of(db: apsw.Connection) -> int:
    row = db.execute("SELECT generation FROM redo").fetchone()
    if row is None:
        raise StoreDamaged("the generation is missing; see 'yirangmq check' and 'yirangmq repair'")
    return int(row[0])


def bodies(data: bytes, generation: int) -> Iterator[bytes]:
    """Of all records of one generation, as far as they are whole."""
    begin = number = 0
    while begin + _HEAD.size <= len(data):
        length, checksum, of, numbered = _HEAD.unpack_from(data, begin)
        end = begin + _HEAD.size + length
        if of != generation or numbered != number or not length or end > len(data):
            return
        body = data[begin + _HEAD.size : end]
        if _checksum(generation, number, body) != checksum:
            return
        yield body
        begin, number = end, number + 1


def _checksum(generation: int, number: int, body: bytes) -> int:
    from zlib import crc32  # a server at rest does without

    return crc32(body, crc32(_CHECKED.pack(generation, number)))


class RedoFile:
    """The file of a server: records are appended, read back, and given up all at once."""

    def __init__(
        self, path: Path, generation: int, disk: Disk | None = None, size: int = BYTES, *, sync: bool = True
    ) -> None:
        """The file is made when it is first needed. ``sync``: False leaves records to the system to write."""
        self.path = redo_path(path)
        self._disk = disk or Disk()
        self._size = size
        self._sync = sync
        self._fd = -1
        self._not_before = 0.0
        self._statements: dict[str, int] = {}
        self.begin(generation)

    def begin(self, generation: int) -> None:
        """All that was appended is in the SQLite file, which has this generation now."""
        self.generation = generation
        self.count = self.used = 0
        self.is_in_doubt = False
        """Something was refused that may count after a crash: a record, or a commit of SQLite's."""
        self._statements.clear()

    @property
    def is_made(self) -> bool:
        """Something was appended since the store was opened."""
        return self._fd >= 0

    @property
    def room(self) -> int:
        """Bytes that are left for records."""
        return self._size - self.used

    def append(self, made: Sequence[Made], meanwhile: Callable[[], None]) -> bool:
        """On disk when it returns; False if there is no room for it. ``meanwhile`` is called while the disk writes; if
        it fails, or the disk does, the record is void, or in doubt."""
        body, new = self._body(made)
        begin, end = self.used, self.used + _HEAD.size + len(body)
        if end > self._size or (self._fd < 0 and not self._open()):
            return False
        generation, count, disk = self.generation, self.count, self._disk
        head = _HEAD.pack(len(body), _checksum(generation, count, body), generation, count)
        self.is_in_doubt = True
        try:
            disk.write_at(self._fd, head + body, begin)
            if self._sync:
                disk.begin_sync(self._fd, begin, end - begin)
            meanwhile()
            if self._sync:
                disk.fdatasync(self._fd)
        except BaseException:
            self._make_void(begin)
            raise
        self.is_in_doubt = False
        self.used = end
        self.count = count + 1
        self._statements.update(new)
        return True

    def _make_void(self, begin: int) -> None:
        """A record that was refused: whoever opens the store after a crash at this moment must not find it."""
        with contextlib.suppress(OSError):
            self._disk.write_at(self._fd, bytes(_HEAD.size), begin)
            if self._sync:
                self._disk.fdatasync(self._fd)
            self.is_in_doubt = False

    def _body(self, made: Sequence[Made]) -> tuple[bytes, dict[str, int]]:
        """Each statement is written out once in a generation, and then has a number; and those that are new."""
        known, changes = self._statements, []
        new: dict[str, int] = {}
        for statement, is_many, values in made:
            number = known.get(statement)
            if number is None:
                number = new.setdefault(statement, len(known) + len(new))
            changes.append((number, is_many, values))
        return _encode(([*new], changes)), new

    def _open(self) -> bool:
        """False where it cannot be made: then there is no room, and for a while nobody tries again."""
        if monotonic() < self._not_before:
            return False
        try:
            self._fd = self._opened()
        except OSError:
            self._not_before = monotonic() + PAUSE_SECONDS
            with contextlib.suppress(OSError):
                self._disk.unlink(str(self.path))
            return False
        return True

    def _opened(self) -> int:
        path = str(self.path)
        if self.path.exists():
            if self.path.stat().st_size == self._size:
                return self._disk.open_update(path)
            self._disk.unlink(path)
        fd = self._disk.open_write(path)
        try:
            for begin in range(0, self._size, BLOCK):
                self._disk.write(fd, bytes(min(BLOCK, self._size - begin)))
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)
        self._disk.fsync_folder(str(self.path.parent.absolute()))
        return self._disk.open_update(path)

    def made(self) -> Iterator[Made]:
        """All that was appended, and nothing that was refused."""
        if not self.count:
            return iter(())
        return chain.from_iterable(islice(commits(self.path.read_bytes(), self.generation), self.count))

    def close(self) -> None:
        """It goes, unless there is something in it that is nowhere else."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
        if not self.count and self.path.exists():
            self._disk.unlink(str(self.path))


def read(data: bytes, generation: int) -> Iterator[Made]:
    """What the records of a generation changed, in order."""
    for commit in commits(data, generation):
        yield from commit


def commits(data: bytes, generation: int) -> Iterator[list[Made]]:
    statements: list[str] = []
    for body in bodies(data, generation):
        new, changes = marshal.loads(body)
        statements += new
        yield [(statements[number], is_many, values) for number, is_many, values in changes]


def make_again(db: apsw.Connection, made: Iterable[Made]) -> None:
    for statement, is_many, values in made:
        if is_many:
            db.executemany(statement, values)
        else:
            db.execute(statement, values).fetchall()


def make_again_if(db: apsw.Connection, place: Path, generation: int | None) -> int:
    """As far as it fits to what is left of a damaged file, whose generation may not be known; how many commits do
    not."""
    try:
        data = place.read_bytes()
    except FileNotFoundError:
        return 0
    lost = 0
    for commit in commits(data, _first(data) if generation is None else generation):
        db.execute("SAVEPOINT one")
        try:
            make_again(db, commit)
        except apsw.Error:
            lost += 1
            db.execute("ROLLBACK TO one")
        db.execute("RELEASE one")
    return lost


def _first(data: bytes) -> int:
    """The generation of what was written last."""
    return int(_HEAD.unpack_from(data)[2]) if len(data) >= _HEAD.size else 0


def take_in(db: apsw.Connection, path: Path) -> None:
    """What a server that did not stop in good order left beside the file. Whoever holds the file at this moment lives:
    it is that server, or somebody who takes this in before changing anything, and nobody waits for it."""
    place = redo_path(path)
    if not _is_left(place, generation_of(db)):
        return
    try:
        db.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return
    try:
        take_in_here(db, place)
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def take_in_here(db: apsw.Connection, place: Path) -> bool:
    """The same inside a transaction that may write; whether there was something."""
    generation = generation_of(db)
    if not _is_left(place, generation):
        return False
    try:
        make_again(db, read(place.read_bytes(), generation))
    except apsw.ConstraintError as error:
        raise StoreDamaged(f"{place} does not fit to the store: {error}; see 'yirangmq repair'") from error
    db.execute("UPDATE redo SET generation = ?", (new_generation(),))
    return True


def _is_left(place: Path, generation: int) -> bool:
    """A look at the first record tells."""
    try:
        with place.open("rb") as file:
            head = file.read(_HEAD.size)
    except FileNotFoundError:
        return False
    return _first(head) == generation
