"""A SQLite file written by another version: an older one is brought up to date, a newer one is refused untouched."""

import contextlib
from pathlib import Path

import apsw
import pytest

from tests.support.sqlite import open_sqlite
from yirangmq.core.errors import StoreBusy, StoreDamaged, StoreTooNew
from yirangmq.stores.sqlite.connection import APPLICATION_ID, steps
from yirangmq.stores.sqlite.store import SqliteStore

NEWEST = steps()[-1][0]
MESSAGE = "seq, queue, id, rank, published_at, available_at, expires_at, header, payload"
READY = "queue, rank, place, seq, attempt, leases, expires_at, changed_at, consumer, reason, repeats"


def _made(path: Path, version: int) -> apsw.Connection:
    """A file as the release with that schema made it."""
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for number, sql in steps():
        if number <= version:
            db.execute(sql)
    db.execute(f"PRAGMA user_version = {version}")
    return db


@pytest.mark.parametrize("version", range(1, NEWEST))
def test_schema_of_an_older_file_is_migrated_with_all_its_messages(tmp_path: Path, version: int) -> None:
    path = tmp_path / "queue.db"
    db = _made(path, version)
    db.execute("INSERT INTO queue (n, name, ready, published) VALUES (1, 'mail', 1, 1)")
    db.execute(f"INSERT INTO message ({MESSAGE}) VALUES (1, 1, 'm1', 5, 1000, 1000, 0, '', '7')")
    db.execute("INSERT INTO name VALUES (1, 'm1', 1, 1)")
    columns, values = (f"{READY}, target, grp, size", ", 0, 0, 1") if version >= 3 else (READY, "")
    db.execute(f"INSERT INTO ready ({columns}) VALUES (1, 5, 1, 1, 0, 0, 0, 1000, '', '', 0{values})")
    if version >= 3:
        db.execute("UPDATE queue SET bytes = 1")
    db.execute("UPDATE sequence SET last = 1")
    db.close()
    with open_sqlite(path) as queues:
        assert list(queues.check()) == []
        queues.publish("mail", "again")
        assert [delivery.value() for delivery in queues.lease("mail", 9)] == [7, "again"]
    db = apsw.Connection(str(path))
    assert (db.pragma("user_version"), db.pragma("journal_mode")) == (NEWEST, "wal")
    assert ("m1", "leased") in list(db.execute("SELECT messageId, state FROM messages"))
    db.close()


def test_schema_newer_than_supported_is_refused_and_the_file_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    with open_sqlite(path) as queues:
        queues.publish("mail", 1)
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA user_version = {NEWEST + 1}")
    db.close()
    content = path.read_bytes()
    with pytest.raises(StoreTooNew, match=f"schema {NEWEST + 1}.*upgrade yirangmq"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_schema_of_another_program_is_refused_and_the_file_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)")
    db.close()
    content = path.read_bytes()
    with pytest.raises(StoreDamaged, match="another program"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_schema_migration_that_is_interrupted_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "queue.db"
    _made(path, NEWEST).close()
    broken = [*steps(), (NEWEST + 1, "CREATE TABLE half (a); CREATE TABLE half (a);")]
    monkeypatch.setattr("yirangmq.stores.sqlite.connection.steps", lambda: broken)
    with pytest.raises(apsw.SQLError):
        SqliteStore(path)
    db = apsw.Connection(str(path))
    assert db.pragma("user_version") == NEWEST
    assert db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").fetchone() == (0,)
    db.close()


def test_schema_creation_survives_another_process_creating_the_file_between_any_two_statements(tmp_path: Path) -> None:
    """Their whole opening comes between two statements of ours; while ours writes, theirs is told to wait."""
    moment = 0
    is_before_the_end = True
    while is_before_the_end:
        path = tmp_path / f"{moment}.db"
        is_before_the_end = _opened_around(path, moment)
        with open_sqlite(path) as queues:
            queues.publish("mail", 1)
        moment += 1
    assert moment > 20, "there are more statements than that"


def _opened_around(path: Path, moment: int) -> bool:
    """Open a store while somebody else opens it before our statement of that number; whether there is such a one."""
    left = [moment]

    def look(cursor: apsw.Cursor, sql: str, values: object) -> bool:
        left[0] -= 1
        if left[0] == -1:
            apsw.connection_hooks.remove(watch)
            with contextlib.suppress(StoreBusy):
                SqliteStore(path, durability="os", busy_seconds=0).close()
        return True

    def watch(db: apsw.Connection) -> None:
        db.set_exec_trace(look)

    apsw.connection_hooks.append(watch)
    try:
        SqliteStore(path, durability="os").close()
    finally:
        if watch in apsw.connection_hooks:
            apsw.connection_hooks.remove(watch)
    return left[0] < 0
