"""Changes that are on disk but not yet in the SQLite file: ``queue.db-redo``, beside it (docs/sqlite.md).

A record is what one commit changed: the statements that did it, with their values. Records follow each other in a ring:
where the next one does not fit before the end of the file, it stands at the beginning. Each carries a generation, and
its number in it. The SQLite file says which generation counts, and from which record on and where: a commit of SQLite
that takes records in changes that, so that they are void with the same stroke, and can be written over. The file keeps
its length: a sync has nothing to write but the record.

Knows: what records look like, which of them count, how changes are made again, who may do so. Does not know: what the
statements mean, when to commit; how records are appended is ``sqlite_ring``."""

import contextlib
import marshal
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from yirangmq.core.errors import StoreDamaged
from yirangmq.fsio.lock import try_lock

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
