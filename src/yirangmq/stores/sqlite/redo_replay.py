"""Replay of the redo log ``queue.db-redo`` after a crash: redo position, leftover records, locks.

The table ``redo`` in the SQLite file holds the redo position: generation, number and offset of the first valid record.
A SQLite commit that contains records moves the position in the same transaction, which voids them: they may be
overwritten. Records are valid as long as each is complete and has the generation of the position and the next number;
the first other one ends the log (torn tail).

While a server holds ``flock`` on the file, no other process replays it."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apsw

from yirangmq.core.errors import StoreDamaged
from yirangmq.fsio.lock import try_lock
from yirangmq.stores.sqlite.redo_format import HEAD, ReadStatement, RedoPosition, commits, first_position, read

RING_SINCE = 7
"""Schema version that added number and offset of the redo position."""


def redo_path(path: Path) -> Path:
    return Path(f"{path}-redo")


def new_generation() -> int:
    """Return a random number that no earlier record has."""
    return int.from_bytes(os.urandom(8)) >> 2


def read_position(db: apsw.Connection) -> RedoPosition:
    """Read the redo position. Raise ``StoreDamaged`` if it is missing or invalid."""
    rows: list[Any] = db.execute("SELECT * FROM redo").fetchall()  # before schema 7 the row is the generation
    if not rows:
        raise StoreDamaged("the generation is missing; see 'yirangmq check' and 'yirangmq repair'")
    position = RedoPosition(*rows[0])
    if position.at < 0 or position.number < 0:
        raise StoreDamaged(f"{position} is not a redo position; see 'yirangmq check' and 'yirangmq repair'")
    return position


def write_position(db: apsw.Connection, position: RedoPosition) -> None:
    """Write the redo position; the caller provides the transaction."""
    db.execute("UPDATE redo SET generation = ?, number = ?, at = ?", position)


def replay(db: apsw.Connection, logged: Iterable[ReadStatement]) -> None:
    """Replay statements; the caller provides the transaction."""
    for statement, is_many, values in logged:
        if is_many:
            db.executemany(statement, values)
        else:
            db.execute(statement, values).fetchall()


def replay_fitting(db: apsw.Connection, redo_file: Path, position: RedoPosition | None) -> int:
    """Replay the commits that fit the salvaged rows of a damaged file; its redo position may be lost. Return the
    number of commits that did not fit."""
    try:
        data = redo_file.read_bytes()
    except FileNotFoundError:
        return 0
    lost = 0
    for commit in commits(data, first_position(data) if position is None else position):
        db.execute("SAVEPOINT one")
        try:
            replay(db, commit)
        except apsw.Error:
            lost += 1
            db.execute("ROLLBACK TO one")
        db.execute("RELEASE one")
    return lost


def replay_leftover(db: apsw.Connection, path: Path) -> None:
    """Replay the redo log that a killed server left beside the file. If another process holds SQLite's write lock or
    the lock on the log, return without waiting: it is the live server, or a process that replays the log before it
    changes anything."""
    redo_file = redo_path(path)
    if not _has_records(redo_file, read_position(db)):
        return
    try:
        db.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return
    try:
        if not is_locked(redo_file):
            replay_in_transaction(db, redo_file)
            db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def has_leftover(db: apsw.Connection, path: Path) -> bool:
    """Return True if a server that has ended left changes that are not in the SQLite file."""
    redo_file = redo_path(path)
    return _has_records(redo_file, read_position(db)) and not is_locked(redo_file)


def replay_in_transaction(db: apsw.Connection, redo_file: Path) -> bool:
    """Replay the log inside a writing transaction of the caller, while no process holds the lock on it. Return False if
    there was nothing to replay."""
    position = read_position(db)
    if not _has_records(redo_file, position):
        return False
    try:
        replay(db, read(redo_file.read_bytes(), position))
    except apsw.ConstraintError as error:
        raise StoreDamaged(f"{redo_file} does not match the store: {error}; see 'yirangmq repair'") from error
    if db.pragma("user_version") < RING_SINCE:
        db.execute("UPDATE redo SET generation = ?", (new_generation(),))
    else:
        write_position(db, RedoPosition(new_generation()))
    return True


def is_locked(redo_file: Path) -> bool:
    """Return True if a live server holds the log: it appends records during a background commit of SQLite."""
    with shared_lock(redo_file) as is_free:
        return not is_free


@contextlib.contextmanager
def shared_lock(redo_file: Path) -> Iterator[bool]:
    """Take a shared lock on the log while the block runs, so that no server can lock it. Yield False if one has it
    locked."""
    try:
        fd = os.open(redo_file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield True
        return
    try:
        try:
            is_free = try_lock(fd, shared=True)
        except OSError:  # a file system without locks: no server can hold one
            is_free = True
        yield is_free
    finally:
        os.close(fd)


def _has_records(redo_file: Path, position: RedoPosition) -> bool:
    """Return True if the log has valid records. Only the first header is read."""
    try:
        with redo_file.open("rb") as file:
            for at in (position.at, 0):
                file.seek(at)
                if first_position(file.read(HEAD.size)) == RedoPosition(position.generation, position.number):
                    return True
    except FileNotFoundError:
        pass
    return False
