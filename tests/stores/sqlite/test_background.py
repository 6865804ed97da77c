"""SQLite commits aside while a server goes on: what is confirmed meanwhile is as safe as before, and nobody else comes
between."""

import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.support.sqlite import OrderedIds, after_a_kill, ids, plain, redo_of, served
from tests.support.wait import PATIENCE, until
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import StoreBusy, StoreError
from yirangmq.stores.sqlite import committer
from yirangmq.stores.sqlite.commit_phase import Phase
from yirangmq.stores.sqlite.connection import BusyHandler
from yirangmq.stores.sqlite.redo_format import RedoPosition, commits
from yirangmq.stores.sqlite.redo_log import RedoLog
from yirangmq.stores.sqlite.redo_replay import is_locked
from yirangmq.stores.sqlite.server_store import open_served_store
from yirangmq.stores.sqlite.statements import STATEMENTS
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.testing import open_for_test

SMALL = 16 * 1024


def opened(store: SqliteStore) -> Queues:
    return open_for_test(store=store, ids=OrderedIds())


@pytest.fixture
def store(home: Path) -> Iterator[SqliteStore]:
    logged = served(home, redo_bytes=SMALL)
    yield logged
    logged.close()


@pytest.fixture
def queues(store: SqliteStore) -> Queues:
    return opened(store)


def is_away(store: SqliteStore) -> bool:
    return redo_of(store).background is not None


def until_away(store: SqliteStore, queues: Queues) -> list[str]:
    """Publish until SQLite has gone to commit; without a thread it comes back when it is asked something."""
    sent = []
    while not is_away(store):
        sent.append(queues.publish("q", b"x" * 500).id)
    return sent


def test_background_commit_keeps_messages_published_meanwhile_durable(
    home: Path, tmp_path: Path, store: SqliteStore, queues: Queues
) -> None:
    sent = until_away(store, queues)
    sent += [queues.publish("q", b"meanwhile").id for _ in range(5)]
    assert is_away(store)
    assert ids(plain(after_a_kill(home, tmp_path / "before"))) == sent
    redo_of(store).run_background_commit()
    assert ids(plain(after_a_kill(home, tmp_path / "committed"))) == sent
    sent += [queues.publish("q", b"after it").id for _ in range(2)]
    assert not is_away(store)
    assert ids(plain(after_a_kill(home, tmp_path / "after"))) == sent
    assert ids(store) == sent
    assert list(queues.check(repair=False)) == []


def test_redo_log_holds_publish_lease_and_ack_until_a_background_commit_begins(home: Path, tmp_path: Path) -> None:
    """Where nothing waits in line: all of a message's life is told to SQLite later."""
    store = served(home, redo_bytes=SMALL)
    with opened(store) as queues:
        life = 0
        while not is_away(store):
            queues.publish("q", b"x" * 500)
            queues.ack([one.lease_id for one in queues.lease("q", 1)])
            life += 1
        done = queues.counts("q").done
        assert done == life


@pytest.mark.parametrize("seed", range(8))
def test_background_commit_loses_no_confirmed_message_after_a_kill_at_any_moment(
    home: Path, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    store = served(home, redo_bytes=SMALL)
    around = 0
    with opened(store) as queues:
        sent: list[str] = []
        for step in range(150):
            sent.append(queues.publish("q", b"x" * chance.choice([0, 10, 900, 3000])).id)
            if chance.random() < 0.05 and len(sent) > 3:
                gone = queues.lease("q", 2)
                queues.ack([one.lease_id for one in gone])
                sent = sent[len(gone) :]
            if chance.random() < 0.2:
                redo_of(store).run_background_commit()
            if chance.random() < 0.05:
                redo_of(store).commit_in_background()
            around += redo_of(store).log._has_wrapped
            if chance.random() < 0.2:
                left = after_a_kill(home, tmp_path / f"left-{step}")
                found = plain(left) if chance.random() < 0.5 else served(left, redo_bytes=SMALL)
                assert ids(found) == sent
                assert list(found.check(repair=False)) == []
                found.close()
                shutil.rmtree(left)
        assert around
        assert ids(store) == sent


@pytest.mark.parametrize("how", ["its commit", "its next transaction"])
@pytest.mark.parametrize("asked_by", ["a look", "a change", "who begins"])
def test_background_commit_that_fails_loses_no_message(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, asked_by: str
) -> None:
    store = served(home, redo_bytes=SMALL)
    with opened(store) as queues:
        sent = until_away(store, queues)
        sent.append(queues.publish("q", b"meanwhile").id)
        real = store.file.execute_commit

        def refuse() -> None:
            monkeypatch.undo()
            if how == "its next transaction":
                real()
            raise apsw.FullError("no space")

        monkeypatch.setattr(store.file, "execute_commit", refuse)
        if asked_by == "a look":
            with pytest.raises(StoreError):
                queues.counts("q")
        elif asked_by == "a change":
            with pytest.raises(StoreError):
                queues.set_policy("q", {"retry": {"limit": 3}})
        else:
            redo_of(store).run_background_commit()
        assert ids(plain(after_a_kill(home, tmp_path / "left"))) == sent
        sent.append(queues.publish("q", b"later").id)
        assert ids(store) == sent
        assert ids(plain(after_a_kill(home, tmp_path / "later"))) == sent
        assert list(queues.check(repair=False)) == []
    assert ids(plain(home)) == sent


def test_background_commit_lets_no_other_process_write_before_its_next_transaction(
    home: Path, store: SqliteStore
) -> None:
    """They would take in what is there, and what comes after it would be void."""
    queues = opened(store)
    sent = until_away(store, queues)
    other = SqliteStore(home / "queue.db", durability="os", busy_seconds=0.05)
    store.file.db.execute("COMMIT")  # as the thread does; SQLite itself would let anybody in now
    assert is_locked(home / "queue.db-redo")
    sent.append(queues.publish("q", b"meanwhile").id)
    with pytest.raises(StoreBusy), other.transaction() as transaction:
        transaction.set_note("theirs", "1")
    with pytest.raises(StoreBusy), SqliteStore(home / "queue.db", busy_seconds=0.05).transaction():
        pass
    store.file.db.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy), other.transaction():
        pass
    store.file.db.execute("ROLLBACK")
    background = redo_of(store).background
    assert background is not None
    background.is_committed = background.has_ended = True
    background.error = apsw.BusyError("somebody else was first")
    assert ids(store) == sent
    assert store.commit_pending()
    assert not is_locked(home / "queue.db-redo")
    with other.transaction() as transaction:
        transaction.set_note("theirs", "1")
    assert ids(other) == sent
    other.close()


def test_background_commit_lets_a_waiting_writer_in_after_it_settles(
    home: Path, store: SqliteStore, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = until_away(store, queues)
    tried = 0

    class Counted(BusyHandler):
        def __call__(self, tries: int) -> bool:
            nonlocal tried
            tried += 1
            return super().__call__(tries)

    monkeypatch.setattr(committer, "BusyHandler", Counted)
    store.file.db.execute("COMMIT")
    other = SqliteStore(home / "queue.db", durability="os", busy_seconds=30)
    written = threading.Event()

    def write() -> None:
        with other.transaction() as transaction:
            transaction.set_note("theirs", "1")
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    until(lambda: tried > 3, what="it tries again and again")
    assert not written.is_set()
    store.file.db.execute("BEGIN IMMEDIATE")
    background = redo_of(store).background
    assert background is not None
    background.is_committed = background.has_ended = True
    assert ids(store) == sent
    store.commit_pending()
    assert written.wait(PATIENCE)
    thread.join()
    with store.transaction() as transaction:
        assert transaction.note("theirs") == "1"
    other.close()


def test_background_commit_on_its_thread_loses_none_of_many_small_commits(home: Path) -> None:
    store = open_served_store(home / "queue.db", durability="os", redo_bytes=SMALL, seconds=0.005)
    sent = []
    with opened(store) as queues:
        for number in range(1500):
            sent.append(queues.publish("q", b"x" * (number % 700)).id)
            if number % 100 == 0:
                queues.counts("q")
                assert store.used_bytes() > 0
        assert ids(store) == sent
        until(lambda: not redo_of(store).log.count and redo_of(store).phase is Phase.CLOSED)
    assert ids(plain(home)) == sent


def test_background_commit_of_an_idle_server_lets_another_process_write(home: Path) -> None:
    store = open_served_store(home / "queue.db", durability="os", redo_bytes=SMALL, seconds=0.02)
    other = SqliteStore(home / "queue.db", durability="os", busy_seconds=20)
    with opened(store) as queues:
        for _ in range(60):
            queues.publish("q", b"x" * 500)
        with other.transaction() as transaction:
            transaction.set_note("theirs", "1")
        with store.transaction(write=False) as transaction:
            assert transaction.note("theirs") == "1"
    other.close()


# -- the file -----------------------------------------------------------------------------------------------------


def logged(number: int, size: int = 100) -> list[Any]:
    return [(1 + number % 3, False, (number, b"x" * size))]


@pytest.mark.parametrize("seed", range(20))
def test_redo_log_ring_returns_its_records_until_sqlite_has_them(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    mark = RedoPosition(5)
    file = RedoLog(tmp_path / "queue.db", mark, size=4096, sync=False)
    waiting: list[int] = []
    ahead: tuple[RedoPosition, int] | None = None
    refused = number = 0
    for _ in range(600):
        if file.append(logged(number, chance.randrange(600)), lambda: None):
            waiting.append(number)
            number += 1
        else:
            refused += 1
            assert waiting
        if ahead is None and chance.random() < 0.3:
            ahead = file.start_commit(), len(waiting)
        elif ahead is not None and chance.random() < 0.4:
            file.void_before(ahead[0])
            del waiting[: ahead[1]]
            ahead = None
        data = file.path.read_bytes()
        assert [values[0] for _, _, values in file.logged()] == waiting
        for counted, begin in ((file.position, 0), *([ahead] if ahead else [])):
            found = [one for commit in commits(data, counted) for one in commit]
            assert [values[0] for _, _, values in found] == waiting[begin:]
            assert [statement for statement, _, _ in found] == [STATEMENTS[logged(n)[0][0]] for n in waiting[begin:]]
    assert refused
    assert number > 100


# -- what went wrong once -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["its commit", "its next transaction"])
def test_background_commit_that_failed_is_recovered_by_a_used_bytes_query(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    store = served(home, redo_bytes=SMALL)
    with opened(store) as queues:
        sent = until_away(store, queues)
        real = store.file.execute_commit

        def refuse() -> None:
            monkeypatch.undo()
            if how == "its next transaction":
                real()
            else:
                store.file.db.execute("ROLLBACK")  # as SQLite does where the disk is full
            raise apsw.FullError("no space")

        monkeypatch.setattr(store.file, "execute_commit", refuse)
        assert store.used_bytes() > 0
        sent += [queues.publish("q", b"later").id for _ in range(3)]
        assert ids(plain(after_a_kill(home, tmp_path / "left"))) == sent
    assert ids(plain(home)) == sent


def test_redo_log_after_a_salvage_is_written_to_an_existing_file(home: Path, tmp_path: Path) -> None:
    store = served(home, redo_bytes=SMALL)
    with opened(store) as queues:
        sent = [queues.publish("q", b"x" * 100).id for _ in range(30)]
        store.commit_pending()
        store.file.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [root] = next(store.file.db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'note'"))
        size = store.file.db.pragma("page_size")
        with (home / "queue.db").open("r+b") as file:
            file.seek((root - 1) * size)
            file.write(b"\xff" * 200)
        store.file.db.close()
        store.file.reopen()
        redo_of(store).resume()
        assert [finding.kind for finding in queues.check(repair=True)] == ["salvaged"]
        sent += [queues.publish("q", b"later").id for _ in range(5)]
        assert ids(plain(after_a_kill(home, tmp_path / "left"))) == sent


def refuse_to_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_background_commit_whose_thread_cannot_start_fails_no_publish(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_served_store(home / "queue.db", durability="os", redo_bytes=SMALL)

    with opened(store) as queues:
        monkeypatch.setattr(threading.Thread, "start", refuse_to_start)
        sent = [queues.publish("q", b"x" * 500).id for _ in range(100)]
        monkeypatch.undo()
        sent += [queues.publish("q", b"x" * 500).id for _ in range(100)]
        assert ids(store) == sent
        assert list(queues.check(repair=False)) == []
    assert ids(plain(home)) == sent


def test_checkpoint_whose_thread_cannot_start_fails_no_large_commit(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_served_store(home / "queue.db", durability="os")
    with opened(store) as queues:
        checkpointer = redo_of(store).checkpointer
        assert checkpointer is not None
        checkpointer._max_pages = 1  # SQLite's log is long enough to be copied at once
        monkeypatch.setattr(threading.Thread, "start", refuse_to_start)
        sent = [receipt.id for _ in range(5) for receipt in queues.publish_many("q", [b"x" * 500] * 100)]
        monkeypatch.undo()
        sent += [receipt.id for receipt in queues.publish_many("q", [b"x" * 500] * 100)]
        assert ids(store) == sent
    assert ids(plain(home)) == sent


def test_redo_log_append_interrupted_after_the_write_reuses_no_sequence(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = served(home, redo_bytes=SMALL)
    with opened(store) as queues:
        sent = [queues.publish("q", b"x").id for _ in range(3)]

        log = redo_of(store).log
        append = log.append

        def stop(*given: Any) -> None:
            assert append(*given)
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(log, "append", stop)
        with pytest.raises(KeyboardInterrupt):
            queues.publish("q", b"x")
        more = [queues.publish("q", b"x").id for _ in range(3)]
        found = ids(store)
        assert found[:3] + found[-3:] == sent + more
        assert len(found) == 7
        assert list(queues.check(repair=False)) == []


@pytest.mark.parametrize("error", [apsw.FullError("once"), KeyboardInterrupt()])
def test_deferred_statements_are_executed_once_even_if_a_read_is_interrupted(home: Path, error: BaseException) -> None:
    store = served(home, redo_bytes=SMALL)
    with opened(store) as queues:
        sent = until_away(store, queues)
        sent.append(queues.publish("q", b"meanwhile").id)
        waiting = [statement for statement, _ in redo_of(store).recorder._deferred]
        assert len(waiting) > 2
        seen = []

        def trace(cursor: object, statement: str, bindings: object) -> bool:
            seen.append(statement)
            if statement == waiting[1]:
                store.file.db.set_exec_trace(None)
                raise error
            return True

        store.file.db.set_exec_trace(trace)
        with pytest.raises((StoreError, KeyboardInterrupt)):
            queues.counts("q")
        assert waiting[0] in seen
        assert queues.counts("q").ready == len(sent)
        sent.append(queues.publish("q", b"innocent").id)
        assert ids(store) == sent
        assert list(queues.check(repair=False)) == []


def test_background_commit_thread_continues_after_an_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_served_store(home / "queue.db", durability="os", redo_bytes=SMALL, seconds=0.02)
    refused = []

    def refuse(path: Path) -> bytes:
        refused.append(path)
        raise OSError(24, "Too many open files")

    def fail() -> None:
        with store.transaction():
            raise ZeroDivisionError

    with opened(store) as queues:
        monkeypatch.setattr(Path, "read_bytes", refuse)
        queues.publish("q", b"x")
        with pytest.raises(ZeroDivisionError):
            fail()  # so that the record has to be read back
        until(lambda: bool(refused))
        monkeypatch.undo()
        until(lambda: not redo_of(store).log.count)
        assert len(ids(store)) == 1


def test_background_commit_lets_a_waiting_writer_in_under_steady_load(home: Path) -> None:
    store = open_served_store(home / "queue.db", durability="os", redo_bytes=SMALL, seconds=0.05)
    other = SqliteStore(home / "queue.db", durability="os", busy_seconds=20)
    over = threading.Event()
    with opened(store) as queues:

        def load() -> None:
            while not over.is_set():
                queues.publish("q", b"x" * 100)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            for number in range(10):
                with other.transaction() as transaction:
                    transaction.set_note("theirs", str(number))
        finally:
            over.set()
            thread.join()
        with store.transaction(write=False) as transaction:
            assert transaction.note("theirs") == "9"
        assert list(queues.check(repair=False)) == []
    other.close()
