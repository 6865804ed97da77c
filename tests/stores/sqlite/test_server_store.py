"""SQLite as a server has it: small commits are on disk before they are in SQLite's file, and nothing tells the
difference but the time they take."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.support.sqlite import after_a_kill, ids, plain, redo_of, served
from tests.support.wait import until
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import NotFound, StoreBusy, StoreDamaged
from yirangmq.format.envelope import NewMessage
from yirangmq.fsio.disk import Disk
from yirangmq.stores.open import salvage_store
from yirangmq.stores.sqlite import connection
from yirangmq.stores.sqlite.connection import CHECKPOINT_BYTES
from yirangmq.stores.sqlite.redo_format import bodies
from yirangmq.stores.sqlite.redo_replay import read_position
from yirangmq.stores.sqlite.statements import JOIN_GROUP
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.testing import CountingIds, open_for_test

REDO = "queue.db-redo"


@pytest.fixture
def store(home: Path) -> Iterator[SqliteStore]:
    made = served(home)
    yield made
    made.close()


@pytest.fixture
def queues(store: SqliteStore) -> Queues:
    return open_for_test(store=store)


def test_redo_log_keeps_small_commits_out_of_the_wal(home: Path, store: SqliteStore, queues: Queues) -> None:
    queues.publish("q", b"first")
    before = (home / "queue.db-wal").stat().st_size
    sent = [queues.publish("q", b"x" * 500).id for _ in range(50)]
    assert (home / "queue.db-wal").stat().st_size == before
    assert ids(store)[1:] == sent


def test_redo_log_is_not_written_by_a_transaction_without_changes(
    home: Path, store: SqliteStore, queues: Queues
) -> None:
    queues.publish("q", b"x")
    before = (home / REDO).read_bytes()
    with store.transaction() as transaction:
        assert transaction.forget_keys(10**15, 100) == 0
        transaction.set_note("none", None)
    assert (home / REDO).read_bytes() == before


def test_close_leaves_one_database_file_with_every_message(home: Path) -> None:
    queues = open_for_test(store=served(home))
    sent = [queues.publish("q", b"x").id for _ in range(5)]
    assert (home / REDO).exists()
    queues.close()
    assert [entry.name for entry in home.iterdir()] == ["queue.db"]
    assert ids(plain(home)) == sent


@pytest.mark.parametrize("opener", [plain, served])
def test_redo_log_restores_every_commit_after_a_kill(home: Path, tmp_path: Path, queues: Queues, opener: Any) -> None:
    queues.publish_many("q", [b"a large commit"] * 100)
    first = queues.lease("q", 100)
    queues.ack([one.lease_id for one in first])
    queues.publish_many("q", [b"another"] * 3)
    queues.nack([one.lease_id for one in queues.lease("q", 1)], "REJECTED", "never")
    queues.set_policy("q", {"retry": {"limit": 7}})
    left = after_a_kill(home, tmp_path / "left")
    with open_for_test(store=opener(left)) as found:
        assert found.counts("q") == queues.counts("q")
        assert found.policy("q") == queues.policy("q")
        assert list(found.check(repair=False)) == []
        assert found.peek("q", 5) == queues.peek("q", 5)


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_redo_log_ignores_a_torn_or_corrupt_record(home: Path, tmp_path: Path, queues: Queues, damage: str) -> None:
    sent = [queues.publish("q", b"x" * 300).id for _ in range(3)]
    left = after_a_kill(home, tmp_path / "left")
    data = bytearray((left / REDO).read_bytes())
    end = len(data.rstrip(b"\0"))
    if damage == "cut":
        data[end - 100 :] = bytes(len(data) - end + 100)
    else:
        data[end - 100] ^= 1
    (left / REDO).write_bytes(data)
    assert ids(plain(left)) == sent[:2]


def test_redo_log_records_are_void_once_sqlite_has_committed_them(
    home: Path, tmp_path: Path, store: SqliteStore
) -> None:
    queues = open_for_test(store=store)
    queues.publish("q", b"x")
    kept = (home / REDO).read_bytes()
    store.commit_pending()
    queues.ack([one.lease_id for one in queues.lease("q", 1)])
    store.commit_pending()
    left = after_a_kill(home, tmp_path / "left")
    (left / REDO).write_bytes(kept)
    with open_for_test(store=plain(left)) as found:
        assert found.counts("q").ready == 0
        assert found.counts("q").done == 1


def test_redo_log_ignores_records_of_the_previous_generation(home: Path, tmp_path: Path, store: SqliteStore) -> None:
    """The file is written over from its beginning: behind the new records old ones still lie."""
    queues = open_for_test(store=store)
    sent = [queues.publish("q", b"x" * 100).id for _ in range(5)]
    store.commit_pending()
    sent.append(queues.publish("q", b"x" * 100).id)
    left = after_a_kill(home, tmp_path / "left")
    assert len(list(bodies((left / REDO).read_bytes(), read_position(store.file.db)))) == 1
    assert ids(plain(left)) == sent


def test_transaction_that_fails_loses_no_earlier_commit(home: Path, tmp_path: Path, store: SqliteStore) -> None:
    queues = open_for_test(store=store)
    sent = [queues.publish("q", b"x").id for _ in range(3)]

    def fail() -> None:
        with store.transaction() as transaction:
            transaction.set_policy("q", "{}")
            transaction.delete_queue("q")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert ids(store) == sent
    sent.append(queues.publish("q", b"x").id)
    assert ids(store) == sent
    assert ids(plain(after_a_kill(home, tmp_path / "left"))) == sent


def test_redo_log_records_only_the_executed_part_of_a_statement_that_failed(
    home: Path, tmp_path: Path, store: SqliteStore
) -> None:
    queues = open_for_test(store=store)
    queues.publish("q", b"x")
    with store.transaction() as transaction, pytest.raises(apsw.ConstraintError):
        redo_of(store).recorder.executemany(JOIN_GROUP, [(1, 2, 3, 4), (1, 2, 3, 5)])
    with store.transaction(write=False) as transaction:
        assert [found and found.seq for found in transaction.group_first("q", [2])] == [None]
    left = apsw.Connection(str(after_a_kill(home, tmp_path / "left") / "queue.db"))
    assert list(left.execute("SELECT queue, grp, place, seq FROM member")) == [(1, 2, 3, 4)]
    left.close()


class LittleRoom(Disk):
    """For a new file: some of it fits."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = self.left = 0

    def open_write(self, path: str, *, append: bool = False) -> int:
        self.tries, self.left = self.tries + 1, 3
        return super().open_write(path, append=append)

    def write(self, fd: int, data: bytes) -> None:
        self.left -= 1
        if not self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, data)


def test_redo_log_that_cannot_be_created_makes_sqlite_commit(home: Path, tmp_path: Path) -> None:
    disk = LittleRoom()
    store = served(home, disk=disk)
    queues = open_for_test(store=store)
    sent = [queues.publish("q", b"x").id for _ in range(5)]
    assert disk.tries == 1
    assert not (home / REDO).exists()
    assert ids(plain(after_a_kill(home, tmp_path / "left"))) == sent
    store.close()


def test_redo_log_that_is_full_makes_sqlite_commit(home: Path, tmp_path: Path) -> None:
    store = served(home, redo_bytes=4096)
    queues = open_for_test(store=store)
    sent = [queues.publish("q", b"x" * 300).id for _ in range(60)]
    assert (home / REDO).stat().st_size == 4096
    assert ids(plain(after_a_kill(home, tmp_path / "left"))) == sent
    store.close()


def test_redo_log_is_settled_after_its_delay_so_that_other_processes_can_read_and_write(home: Path) -> None:
    store = served(home, seconds=0.05)
    queues = open_for_test(store=store)
    sent = queues.publish("q", b"x").id
    other = SqliteStore(home / "queue.db", durability="os", busy_seconds=60)
    with open_for_test(store=other) as theirs:
        until(lambda: ids(other) == [sent])
        theirs.ack([one.lease_id for one in theirs.lease("q", 1)])
    assert queues.counts("q").ready == 0
    store.close()


def test_redo_log_with_pending_changes_refuses_other_writers_as_store_busy(home: Path, queues: Queues) -> None:
    other = SqliteStore(home / "queue.db", durability="os", busy_seconds=0)
    queues.publish("q", b"x")
    with pytest.raises(StoreBusy), other.transaction():
        pass
    other.close()


def test_checkpoint_runs_in_the_background_and_the_wal_stays_short(home: Path) -> None:
    store = served(home, seconds=0.05)
    queues = open_for_test(store=store)
    batch = [b"x" * 2000] * 500
    while (home / "queue.db-wal").stat().st_size < 1.1 * CHECKPOINT_BYTES:
        queues.publish_many("q", batch)
    until(lambda: (home / "queue.db").stat().st_size > CHECKPOINT_BYTES // 2, what="a copy that no commit makes")
    most = 4 * CHECKPOINT_BYTES

    def is_short() -> bool:
        queues.publish_many("q", batch)
        return (home / "queue.db-wal").stat().st_size < most and (home / "queue.db").stat().st_size > most

    until(is_short, what="a short log")
    store.close()


@pytest.mark.parametrize("how", ["open", "mend"])
def test_repair_of_a_damaged_file_applies_the_redo_log(home: Path, tmp_path: Path, how: str) -> None:
    store = served(home)
    queues = open_for_test(store=store)
    queues.publish_many("q", [b"x" * 2000] * 300)
    store.commit_pending()
    late = [queues.publish("q", b"late").id for _ in range(5)]
    left = after_a_kill(home, tmp_path / "left")
    store.close()
    path = left / "queue.db"
    db = apsw.Connection(str(path))
    db.execute("SELECT 1 FROM note").fetchall()
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    db.close()
    with path.open("r+b") as file:  # the last page of the messages, say
        file.seek(-3 * 16384, os.SEEK_END)
        file.write(os.urandom(16384))
    if how == "mend":
        with path.open("r+b") as file:
            file.seek(100)
            file.write(bytes(200))
        with pytest.raises(StoreDamaged):
            plain(left)
        salvage_store(f"sqlite:{path}")
    else:
        with open_for_test(store=plain(left)) as found:
            list(found.check(repair=True))
    with open_for_test(store=plain(left)) as found:
        assert set(late) <= set(ids(plain(left)))
        assert found.counts("q").ready > 200


@pytest.mark.parametrize("opener", [plain, served])
def test_dedup_finds_a_known_id_at_any_place_in_the_order_of_ids(home: Path, opener: Any) -> None:
    """Ids that come in order are not looked for; all others are, in whatever way what was there before came in."""
    with open_for_test(store=opener(home)) as queues:

        def publish(*ids: str) -> list[bool]:
            return [one.duplicate for one in queues.publish_many("q", [NewMessage(payload=1, id=id) for id in ids])]

        assert publish("m") == [False]
        assert publish("m") == [True]
        assert publish("a") == [False]
        assert publish("a") == publish("m") == [True]
        assert publish("x", "z", "n") == [False, False, False]
        assert [publish(id) for id in "amnxz"] == [[True]] * 5
        assert publish("zz") == [False]
        queues.ack([one.lease_id for one in queues.lease("q", 9)])
        assert [publish(id) for id in ("zz", "z", "m")] == [[True]] * 3, "they are remembered"
        queues.delete_queue("q")
        assert publish("b") == [False]
        assert [one.duplicate for one in queues.publish_many("r", [NewMessage(payload=1, id="b")])] == [False]
        assert publish("b") == [True]
    with open_for_test(store=opener(home)) as queues:
        assert publish("b") == [True]
        assert publish("c") == [False]


def test_publish_continues_beside_an_id_that_cannot_be_read(home: Path) -> None:
    with open_for_test(store=plain(home)) as queues:
        queues.publish("q", b"x")
        queues.publish("q", b"y")
    db = apsw.Connection(str(home / "queue.db"))
    for table in ("name", "message"):
        db.execute(f"UPDATE {table} SET id = CAST(x'6dff33' AS TEXT) WHERE id = 'm-2'")
    db.close()
    with open_for_test(store=plain(home), ids=CountingIds("z")) as queues:
        sent = queues.publish("q", b"z")
        assert not sent.duplicate
        assert queues.publish("q", NewMessage(payload=1, id=sent.id)).duplicate


def test_dedup_key_is_stored_for_each_message_when_the_window_is_zero(home: Path, queues: Queues) -> None:
    queues.set_policy("q", {"dedupWindowSec": 0})
    queues.publish_many("q", [NewMessage(payload=n, deduplication_key="k") for n in range(10)])
    queues.close()
    db = apsw.Connection(str(home / "queue.db"))
    assert list(db.execute("SELECT dedup_key, count(*) FROM message GROUP BY 1")) == [("k", 10)]
    db.close()


KINDS: dict[str, list[str | None]] = {"none": [None], "same": ["order"], "each its own": ["order", "bill", None]}


@pytest.mark.parametrize("number", [2, 7, 8, 63, 64, 65, 137])
@pytest.mark.parametrize("headers", KINDS)
def test_batch_of_any_size_is_stored_in_order_with_its_headers(queues: Queues, number: int, headers: str) -> None:
    """Messages that are alike go in by many; what differs, and what is left over, one by one."""
    kinds = KINDS[headers]
    sent = [NewMessage(payload={"n": n}, type=kinds[n % len(kinds)]) for n in range(number)]
    ids = [one.id for one in queues.publish_many("q", sent)]
    assert list(queues.check()) == []
    got = queues.lease("q", 500)
    assert [one.id for one in got] == ids
    found = [(one.value(), one.header.get("type")) for one in got]
    assert found == [({"n": n}, kinds[n % len(kinds)]) for n in range(number)]


def test_redo_log_of_a_killed_server_is_applied_by_a_program_that_had_the_file_open(home: Path, tmp_path: Path) -> None:
    """Both gave out numbers; the program saw nothing of the server's last commits in SQLite's file."""
    left = tmp_path / "left"
    store = served(home)
    queues = open_for_test(store=store)
    queues.publish("q", b"early")
    store.commit_pending()
    after_a_kill(home, left)
    other = plain(left)
    assert len(ids(other)) == 1
    late = [queues.publish("q", b"late").id for _ in range(3)]
    shutil.copy(home / REDO, left / REDO)
    theirs = open_for_test(store=other, ids=CountingIds("their"))
    sent = theirs.publish("q", b"theirs").id
    assert ids(other)[1:] == [*late, sent]
    theirs.close()
    store.close()


def test_open_of_a_store_held_by_a_server_does_not_wait(home: Path, queues: Queues) -> None:
    queues.publish("q", b"x")
    SqliteStore(home / "queue.db", durability="os", busy_seconds=60).close()


def test_read_that_fails_does_not_release_the_servers_write_lock(
    store: SqliteStore, queues: Queues, home: Path
) -> None:
    queues.publish("q", b"x")
    other = SqliteStore(home / "queue.db", durability="os", busy_seconds=0)
    with pytest.raises(NotFound):
        queues.show("q", "nobody")
    with pytest.raises(StoreBusy), other.transaction():
        pass  # the server has not let go of it
    other.close()


def test_redo_log_is_applied_before_a_schema_migration(
    home: Path, tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.transaction() as transaction:
        transaction.set_note("one", "1")
    left = after_a_kill(home, tmp_path / "left")
    later = [*connection.steps(), (99, "ALTER TABLE note ADD COLUMN more TEXT;")]
    monkeypatch.setattr(connection, "steps", lambda: later)
    with plain(left).transaction(write=False) as transaction:
        assert transaction.note("one") == "1"


def test_redo_log_of_the_previous_server_is_kept_when_a_server_starts_during_a_foreign_write(
    home: Path, tmp_path: Path
) -> None:
    store = served(home)
    sent = [open_for_test(store=store).publish("q", b"x").id]
    left = after_a_kill(home, tmp_path / "left")
    store.close()
    somebody = apsw.Connection(str(left / "queue.db"))
    somebody.execute("BEGIN IMMEDIATE")
    second = served(left)
    somebody.execute("ROLLBACK")
    somebody.close()
    queues = open_for_test(store=second, ids=CountingIds("second"))
    sent += [queues.publish("q", b"x").id for _ in range(3)]
    assert ids(second) == sent
    assert ids(plain(after_a_kill(left, tmp_path / "again"))) == sent
    second.close()
