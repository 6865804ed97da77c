"""Redo log of the server's SQLite store, ``queue.db-redo``: format, replay after a crash, and append.

A record is what one commit changed: the statements it executed, with their values (docs/sqlite.md)::

    head  <IIQI: bytes of the body, CRC-32 of all that follows, generation, number of the record
    body  marshal (version 2) of: new statements, changes, whether statement numbers restart;
          a change is: number of the statement, whether it is for many rows, values or rows

A statement is written once and has a number from then on.

The file is a ring of 1 MiB: a record that does not fit before the end stands at the beginning. Its length never
changes, so a sync writes nothing but the record. The table ``redo`` in the SQLite file holds the mark: generation,
number and offset of the first record that counts. A SQLite commit that contains records moves the mark in the same
transaction, which voids them: they may be overwritten. Records count as long as each is whole and has the mark's
generation and the next number.

While a server holds ``flock`` on the file, no other process replays it. ``append`` returns False where it has no room
or the file cannot be created (retried after 60 s); the store then lets SQLite commit."""

import contextlib
import marshal
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import apsw

from yirangmq.core.errors import StoreDamaged
from yirangmq.fsio.disk import Disk
from yirangmq.fsio.lock import try_lock, unlock
from yirangmq.fsio.permissions import access_in

# -- format and replay -------------------------------------------------------------------------------------------------

Made = tuple[str, bool, Any]
"""A statement, whether it was for many rows, and its values or rows."""
RING_SINCE = 7
"""The step of the schema that has marks."""
HEAD = struct.Struct("<IIQI")
"""Bytes of the body, checksum of all behind it, generation, number of the record."""
_CHECKED = struct.Struct("<QI")


def redo_path(path: Path) -> Path:
    return Path(f"{path}-redo")


class Mark(NamedTuple):
    """From where on records count."""

    generation: int
    number: int = 0
    at: int = 0
    """Where it stands, unless it did not fit there."""


def new_generation() -> int:
    return int.from_bytes(os.urandom(8)) >> 2


def mark_of(db: apsw.Connection) -> Mark:
    rows: list[Any] = db.execute("SELECT * FROM redo").fetchall()  # before schema 7 the generation alone
    if not rows:
        raise StoreDamaged("the generation is missing; see 'yirangmq check' and 'yirangmq repair'")
    mark = Mark(*rows[0])
    if mark.at < 0 or mark.number < 0:
        raise StoreDamaged(f"{mark} is no mark; see 'yirangmq check' and 'yirangmq repair'")
    return mark


def put_mark(db: apsw.Connection, mark: Mark) -> None:
    """Inside a transaction."""
    db.execute("UPDATE redo SET generation = ?, number = ?, at = ?", mark)


def bodies(data: bytes, mark: Mark) -> Iterator[bytes]:
    """Of all records that count, as far as they are whole."""
    generation, number, at = mark
    while True:
        body = _body_at(data, at, generation, number)
        if body is None and at:
            at = 0
            body = _body_at(data, at, generation, number)
        if body is None:
            return
        yield body
        at, number = at + HEAD.size + len(body), number + 1


def _body_at(data: bytes, at: int, generation: int, number: int) -> bytes | None:
    begin = at + HEAD.size
    if begin > len(data):
        return None
    length, expected, of, numbered = HEAD.unpack_from(data, at)
    if of != generation or numbered != number or not length or begin + length > len(data):
        return None
    body = data[begin : begin + length]
    return body if checksum(generation, number, body) == expected else None


def checksum(generation: int, number: int, body: bytes) -> int:
    from zlib import crc32  # a server at rest does without

    return crc32(body, crc32(_CHECKED.pack(generation, number)))


def read(data: bytes, mark: Mark) -> Iterator[Made]:
    """What the records that count changed, in order."""
    for commit in commits(data, mark):
        yield from commit


def commits(data: bytes, mark: Mark) -> Iterator[list[Made]]:
    statements: list[str] = []
    for body in bodies(data, mark):
        new, changes, *anew = marshal.loads(body)
        if anew == [True]:
            statements = []
        statements += new
        yield [(statements[number], is_many, values) for number, is_many, values in changes]


def make_again(db: apsw.Connection, made: Iterable[Made]) -> None:
    for statement, is_many, values in made:
        if is_many:
            db.executemany(statement, values)
        else:
            db.execute(statement, values).fetchall()


def make_again_if(db: apsw.Connection, place: Path, mark: Mark | None) -> int:
    """As far as it fits to what is left of a damaged file, whose mark may not be known; how many commits do not."""
    try:
        data = place.read_bytes()
    except FileNotFoundError:
        return 0
    lost = 0
    for commit in commits(data, _first(data) if mark is None else mark):
        db.execute("SAVEPOINT one")
        try:
            make_again(db, commit)
        except apsw.Error:
            lost += 1
            db.execute("ROLLBACK TO one")
        db.execute("RELEASE one")
    return lost


def _first(data: bytes) -> Mark:
    """What was written to the beginning last."""
    return Mark(*HEAD.unpack_from(data)[2:4]) if len(data) >= HEAD.size else Mark(0)


def take_in(db: apsw.Connection, path: Path) -> None:
    """What a server that did not stop in good order left beside the file. Whoever holds the file at this moment lives:
    it is that server, or somebody who takes this in before changing anything, and nobody waits for it."""
    place = redo_path(path)
    if not _is_left(place, mark_of(db)):
        return
    try:
        db.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return
    try:
        if not is_held(place):
            take_in_here(db, place)
            db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def has_left(db: apsw.Connection, path: Path) -> bool:
    """Whether a server that is gone has left changes that are not in the file."""
    place = redo_path(path)
    return _is_left(place, mark_of(db)) and not is_held(place)


def take_in_here(db: apsw.Connection, place: Path) -> bool:
    """The same inside a transaction that may write, where nobody holds it; whether there was something."""
    mark = mark_of(db)
    if not _is_left(place, mark):
        return False
    try:
        make_again(db, read(place.read_bytes(), mark))
    except apsw.ConstraintError as error:
        raise StoreDamaged(f"{place} does not fit to the store: {error}; see 'yirangmq repair'") from error
    if db.pragma("user_version") < RING_SINCE:
        db.execute("UPDATE redo SET generation = ?", (new_generation(),))
    else:
        put_mark(db, Mark(new_generation()))
    return True


def is_held(place: Path) -> bool:
    """A server that lives appends to it while SQLite commits beside it."""
    with asking(place) as is_free:
        return not is_free


@contextlib.contextmanager
def asking(place: Path) -> Iterator[bool]:
    """For so long no server begins to hold it; whether none did before."""
    try:
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield True
        return
    try:
        try:
            is_free = try_lock(fd, shared=True)
        except OSError:  # where there are no such locks nobody holds one
            is_free = True
        yield is_free
    finally:
        os.close(fd)


def _is_left(place: Path, mark: Mark) -> bool:
    """A look at the first record tells."""
    try:
        with place.open("rb") as file:
            for at in (mark.at, 0):
                file.seek(at)
                if _first(file.read(HEAD.size)) == Mark(mark.generation, mark.number):
                    return True
    except FileNotFoundError:
        pass
    return False


# -- append ------------------------------------------------------------------------------------------------------------

BYTES = 1024 * 1024
"""Of the whole file: half of it for what SQLite commits, large enough that most commits need no page; half for what
comes meanwhile."""
BLOCK = 65536
PAUSE_SECONDS = 60.0
"""After a file could not be made."""
MARSHAL = 2
"""A version of the format that every Python reads."""


def _encode(content: tuple[list[str], list[tuple[int, bool, Any]], bool]) -> bytes:
    """By the standard library: a server at rest, which commits a little, does without loading another one."""
    try:
        return marshal.dumps(content, MARSHAL)
    except ValueError:  # a kind of text that is not quite one, as the state of a message is
        return marshal.dumps(_plain(content), MARSHAL)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, str) else value


class RedoFile:
    """The file of a server: records are appended, read back, and given up as SQLite takes them in."""

    def __init__(
        self, path: Path, mark: Mark, disk: Disk | None = None, size: int = BYTES, *, sync: bool = True
    ) -> None:
        """The file is made when it is first needed. ``sync``: False leaves records to the system to write."""
        self.path = redo_path(path)
        self._disk = disk or Disk()
        self._disk.access = access_in(path.parent)
        self._size = size
        self._sync = sync
        self._fd = -1
        self._not_before = 0.0
        self._statements: dict[str, int] = {}
        self.begin(mark)

    def begin(self, mark: Mark) -> None:
        """All that was appended is in the SQLite file, which has this mark now."""
        self._statements.clear()
        self.mark = mark
        """From where on records are not in the SQLite file."""
        self.number, self._at = mark.number, mark.at
        """Of the next record."""
        self._is_around = False
        """The next record stands before those that are not in the SQLite file, having come around to the beginning."""
        self._marked_around = False
        """It has come around since ``next``."""
        self.is_in_doubt = False
        """Something was refused that may count after a crash: a record, or a commit of SQLite's."""

    @property
    def is_made(self) -> bool:
        """Something was appended since the store was opened."""
        return self._fd >= 0

    @property
    def count(self) -> int:
        """Records that are not in the SQLite file."""
        return self.number - self.mark.number

    @property
    def room(self) -> int:
        """Bytes that are left for a record."""
        if self._is_around:
            return self.mark.at - self._at
        return max(self._size - self._at, self.mark.at)

    @property
    def is_half_full(self) -> bool:
        used = self._at - self.mark.at
        return (used + self._size if self._is_around else used) >= self._size // 2

    def next(self) -> Mark:
        """For a commit of SQLite that has all there is, while more is appended behind it."""
        self._statements.clear()  # whoever begins to read here knows none of them
        self._marked_around = False
        return Mark(self.mark.generation, self.number, self._at)

    def taken_in(self, mark: Mark) -> None:
        """That commit is on disk."""
        self.mark = mark
        self._is_around = self._marked_around

    def _place(self, length: int) -> int:
        """Where a record of this length can be written; -1: nowhere."""
        if self._at + length <= (self.mark.at if self._is_around else self._size):
            return self._at
        return 0 if not self._is_around and length <= self.mark.at else -1

    def append(self, made: Sequence[Made], meanwhile: Callable[[], None]) -> bool:
        """On disk when it returns; False if there is no room for it. ``meanwhile`` is called while the disk writes; if
        it fails, or the disk does, the record is void, or in doubt."""
        body, new = self._body(made)
        at = self._place(HEAD.size + len(body))
        if at == 0 and self._at:
            self._statements.clear()  # so that the file can be read from its beginning
            body, new = self._body(made)
            at = self._place(HEAD.size + len(body))
        if at < 0 or (self._fd < 0 and not self._open()):
            return False
        generation, number, disk = self.mark.generation, self.number, self._disk
        head = HEAD.pack(len(body), checksum(generation, number, body), generation, number)
        self.is_in_doubt = True
        try:
            disk.write_at(self._fd, head + body, at)
            if self._sync:
                disk.begin_sync(self._fd, at, len(head) + len(body))
            meanwhile()
            if self._sync:
                disk.fdatasync(self._fd)
        except BaseException:
            self._make_void(at)
            raise
        self.is_in_doubt = False
        if at < self._at:
            self._is_around = self._marked_around = True
        self._at = at + len(head) + len(body)
        self.number = number + 1
        self._statements.update(new)
        return True

    def _make_void(self, begin: int) -> None:
        """A record that was refused: whoever opens the store after a crash at this moment must not find it."""
        with contextlib.suppress(OSError):
            self._disk.write_at(self._fd, bytes(HEAD.size), begin)
            if self._sync:
                self._disk.fdatasync(self._fd)
            self.is_in_doubt = False

    def _body(self, made: Sequence[Made]) -> tuple[bytes, dict[str, int]]:
        """Each statement is written out once, and then has a number; and those that are new. A record for which none is
        known begins anew to count them."""
        known, changes = self._statements, []
        new: dict[str, int] = {}
        for statement, is_many, values in made:
            number = known.get(statement)
            if number is None:
                number = new.setdefault(statement, len(known) + len(new))
            changes.append((number, is_many, values))
        return _encode(([*new], changes, not known)), new

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
                self._disk.fsync_folder(str(self.path.parent.absolute()))  # who made it may not have come so far
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
        return chain.from_iterable(islice(commits(self.path.read_bytes(), self.mark), self.count))

    def hold(self) -> bool:
        """Until ``let_go``, or this process ends, nobody takes in what is appended, whatever SQLite allows. False if
        somebody waits to write."""
        try:
            return try_lock(self._fd)
        except OSError:
            return False

    def let_go(self) -> None:
        """Never fails. Where the lock cannot be released, the file is closed, which releases it; the next record opens
        it again."""
        if self._fd >= 0:
            try:
                unlock(self._fd)
            except OSError:
                self.leave()

    def leave(self) -> None:
        """The file is not ours any more: with the next record another one is made."""
        fd, self._fd = self._fd, -1  # first: a number that was closed may be another file's soon
        if fd >= 0:
            with contextlib.suppress(OSError):
                self._disk.close(fd)

    def close(self) -> None:
        """It goes, unless there is something in it that is nowhere else."""
        self.leave()
        with contextlib.suppress(OSError):  # what is in it is void, whether it goes or not
            if not self.count and self.path.exists():
                self._disk.unlink(str(self.path))
