"""SQLite connections: pragmas, schema migration, busy handler, and translation of SQLite's errors.

Opening replays a redo log that a killed server left, before a migration changes the tables. A migration is one
transaction over the numbered steps in ``schema/*.sql``; a newer schema and the file of another program are refused.

The busy handler sleeps 0.5 to 10 ms at random, so that waiting processes do not retry in step."""

import errno
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import apsw

from yirangmq.core.errors import StoreBusy, StoreDamaged, StoreError, StoreFull, StoreReadOnly, StoreTooNew
from yirangmq.fsio.errors import as_store_error, unwritable
from yirangmq.fsio.permissions import open_file
from yirangmq.stores.sqlite.redo_replay import has_leftover, redo_path, replay_leftover

APPLICATION_ID = 0x79724D51
"""SQLite application id of a store: "yrMQ"."""
PAGE_SIZE = 16384
"""Page size of a new file, in bytes; an existing file keeps its page size."""
CHECKPOINT_BYTES = 8 * 1024 * 1024
"""Length of the WAL, in bytes, at which it is checkpointed: small enough for short commits, large enough that a page
written many times is copied once (docs/decisions/0002-sqlite.md)."""
CACHE_KIB = 8192
STATEMENTS = 4096
"""Slots of the cache of prepared statements. ``executemany`` uses one slot per row, so with a small number every batch
prepares all statements again."""
REDO_SINCE = 6
"""Schema version that added the table ``redo``."""
MIN_SLEEP_SECONDS = 0.0005
MAX_SLEEP_SECONDS = 0.01
"""Bounds of one sleep of the busy handler, in seconds."""
DAMAGED_SCHEMA = ("no such", "malformed")
"""Parts of the errors that SQLite raises for valid statements when the schema in the file is damaged."""
SYNCHRONOUS = {"full": "FULL", "os": "NORMAL"}


def open_connection(
    path: Path, durability: str, busy_seconds: float, vfs: str | None = None, page_size: int = PAGE_SIZE
) -> apsw.Connection:
    """Open a writing connection: create the file if needed, replay a leftover redo log, and migrate the schema."""
    if durability not in SYNCHRONOUS:
        raise StoreError(f"durability must be one of {', '.join(SYNCHRONOUS)}, not {durability!r}")
    if vfs is None:
        make_file(path)
    db = apsw.Connection(str(path), vfs=vfs, statementcachesize=STATEMENTS)
    set_busy_handler(db, busy_seconds)
    # Without stable plans SQLite plans a query again for each bound value: 11 µs instead of 1 for the smallest query.
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    try:
        with sqlite_errors_translated(db, path):
            _prepare_schema(db, path, busy_seconds, page_size)
            db.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
            db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            db.execute(f"PRAGMA wal_autocheckpoint = {checkpoint_pages(db)}")
            db.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        db.close()
        raise
    return db


def set_busy_handler(db: apsw.Connection, busy_seconds: float) -> None:
    """Set how long SQLite sleeps and retries while another process holds the lock; 0: raise ``BusyError``
    immediately."""
    db.set_busy_handler(BusyHandler(busy_seconds) if busy_seconds > 0 else None)


def open_read_connection(uri: str, path: Path) -> apsw.Connection:
    """Open a connection that writes nothing, not even the index of the WAL.

    Raise ``StoreReadOnly`` or ``StoreDamaged`` if it could not show every confirmed message: the schema is not the
    current one, a redo log has not been replayed, or the file belongs to another program."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    db = apsw.Connection(uri, flags=flags, statementcachesize=STATEMENTS)
    try:
        _refuse_foreign(db, path)
        if db.pragma("user_version") != steps()[-1][0]:
            raise StoreReadOnly(f"{path} has an earlier schema")
        if has_leftover(db, path):
            raise StoreReadOnly(f"{redo_path(path)} has changes that are not in the file yet")
        db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        db.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        db.close()
        raise
    return db


def make_file(path: Path) -> None:
    """Create an empty file, which is a valid new database. SQLite creates ``-wal`` and ``-shm`` with its mode."""
    if not path.exists():
        with suppress(OSError):  # SQLite reports the cause when it opens the file
            os.close(open_file(path, os.O_RDWR))


def checkpoint_pages(db: apsw.Connection) -> int:
    return int(CHECKPOINT_BYTES // db.pragma("page_size"))


class BusyHandler:
    """Busy handler: sleep and retry until ``seconds`` have passed. The sleeps are random, so that waiting processes do
    not retry in step."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._until = now + self._seconds
        if now >= self._until:
            return False
        time.sleep(random.uniform(MIN_SLEEP_SECONDS, min(MAX_SLEEP_SECONDS, MIN_SLEEP_SECONDS * (tries + 2))))
        return True


def _prepare_schema(db: apsw.Connection, path: Path, busy_seconds: float, page_size: int) -> None:
    """Turn WAL on, replay a leftover redo log, and migrate the schema. SQLite does not call the busy handler when WAL
    is turned on, so this function retries."""
    busy_handler = BusyHandler(busy_seconds)
    tries = 0
    while True:
        try:
            _refuse_foreign(db, path)
            if db.pragma("user_version") == 0:
                db.execute(f"PRAGMA page_size = {page_size}")
            if db.pragma("journal_mode") != "wal":
                db.execute("PRAGMA journal_mode = WAL")
            if REDO_SINCE <= db.pragma("user_version") <= steps()[-1][0]:
                db.set_busy_handler(None)
                replay_leftover(db, path)  # before a migration changes the tables its records need
                set_busy_handler(db, busy_seconds)
            migrate(db, path)
            return
        except (apsw.BusyError, apsw.LockedError):
            if not busy_handler(tries):
                raise
            tries += 1


@cache
def steps() -> tuple[tuple[int, str], ...]:
    """Return the numbered steps of the schema, each with its SQL."""
    files = sorted(Path(__file__).with_name("schema").glob("*.sql"))
    return tuple([(int(entry.name[:3]), entry.read_text()) for entry in files])


def _refuse_foreign(db: apsw.Connection, path: Path) -> None:
    """Raise ``StoreDamaged`` for the database of another program, before anything in it is changed. Tables are read
    before the application id: another process may be creating the store, which commits both together."""
    if db.execute("SELECT 1 FROM sqlite_schema").fetchone() and db.pragma("application_id") != APPLICATION_ID:
        raise StoreDamaged(f"{path} is an SQLite database of another program; use another file")


def migrate(db: apsw.Connection, path: Path) -> None:
    """Migrate an older file in one transaction. Raise an error for a newer schema and for a foreign file."""
    newest = steps()[-1][0]
    if db.pragma("user_version") == newest and db.pragma("application_id") == APPLICATION_ID:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        found = db.pragma("user_version")
        if found > newest:
            raise StoreTooNew(
                f"{path} has schema {found}, this version knows up to {newest}; upgrade yirangmq to open it"
            )
        _refuse_foreign(db, path)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for number, sql in steps():
            if number > found:
                db.execute(sql)
                db.execute(f"PRAGMA user_version = {number}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


@contextmanager
def sqlite_errors_translated(db: apsw.Connection | None, path: Path) -> Iterator[None]:
    """Raise errors of SQLite and of the system as ``StoreError``; other errors pass unchanged."""
    try:
        yield
    except Exception as error:
        ours = translation(error, db, path)
        if ours is None:
            raise
        raise ours from error


def translation(error: BaseException, db: apsw.Connection | None, path: Path) -> StoreError | None:
    """Translate an error of SQLite or of the system to a ``StoreError``. Return None for any other error."""
    match error:
        case apsw.FullError() | apsw.IOError():
            return _of_disk(error, db.system_errno if db is not None else 0, path)
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return unwritable(path, error)
        case apsw.CantOpenError():
            if _is_on_read_only_disk(path):
                return unwritable(path, "its disk is read-only")
            if path.parent.is_dir() and not os.access(path.parent, os.W_OK, effective_ids=True):
                return unwritable(path, f"this user may not write to {path.parent.absolute()}")
            return StoreError(f"{path} cannot be opened: {error}; does its folder exist, and may you write there?")
        case apsw.CorruptError() | apsw.NotADBError() | UnicodeDecodeError():
            return _damaged(error, path)
        case apsw.SQLError() if any(words in str(error) for words in DAMAGED_SCHEMA):
            return _damaged(error, path)
        case apsw.NoMemError():
            return StoreError(f"{path}: SQLite found no memory; free some and try again: nothing was stored")
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return StoreBusy(f"{path} is held by another process; try again")
        case apsw.ConnectionClosedError():
            return StoreError(f"{path} was closed")
        case OSError():  # raised by the redo log and its lock
            return as_store_error(error, path)
        case _:
            return None


def _of_disk(error: BaseException, code: int, path: Path) -> StoreError:
    if isinstance(error, apsw.FullError) or code in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"no space left for {path}; free some and try again: nothing was stored")
    if code == errno.EROFS:
        return unwritable(path, "its disk is read-only now")
    return StoreError(f"{path}: {error} (system error {code})")


def _damaged(error: BaseException, path: Path) -> StoreDamaged:
    return StoreDamaged(f"{path} is damaged: {error}; see 'yirangmq check' and 'yirangmq repair'")


def _is_on_read_only_disk(path: Path) -> bool:
    try:
        return bool(os.statvfs(path.parent).f_flag & os.ST_RDONLY)
    except OSError:
        return False
