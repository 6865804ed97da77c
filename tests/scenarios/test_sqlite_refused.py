"""SQLite on a disk that fails once, at any single write or sync: the caller hears of it, nothing of the call has
happened, and the next one works. (For the files store: tests/stores/files/test_refused.py.)"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from yirangmq.broker.queues import Queues
from yirangmq.core.errors import StoreError, StoreFull
from yirangmq.core.ports import Store
from yirangmq.crashtest.workload import Snapshot, take_snapshot, wrong_counts
from yirangmq.fsio.disk import Disk
from yirangmq.stores.sqlite.server_store import open_served_store
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.testing import CountingIds, ManualClock

MOST_CALLS = 200


class Fuse:
    """Blows at the n-th call from now; 0 is never."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.left = 0

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(self.code, os.strerror(self.code))


class FailingVfs(apsw.VFS):
    def __init__(self, fuse: Fuse) -> None:
        super().__init__("failing", "unix")
        self._fuse = fuse

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "FailingFile":
        return FailingFile(name, flags, self._fuse)


class FailingFile(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int], fuse: Fuse) -> None:
        super().__init__("unix", name, flags)
        self._fuse = fuse

    def _step(self, error: type[apsw.Error]) -> None:
        try:
            self._fuse.step()
        except OSError as cause:
            raise (apsw.FullError if cause.errno == errno.ENOSPC else error)(str(cause)) from None

    def xWrite(self, data: Any, offset: int) -> None:
        self._step(apsw.IOError)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._step(apsw.IOError)
        super().xSync(flags)


class FailingDisk(Disk):
    def __init__(self, fuse: Fuse) -> None:
        super().__init__()
        self._fuse = fuse

    def write_at(self, fd: int, data: bytes, offset: int) -> None:
        self._fuse.step()
        super().write_at(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)  # it is there, and nobody knows
        self._fuse.step()


@contextmanager
def opened(folder: Path, fuse: Fuse, kind: str) -> Iterator[Store]:
    vfs = FailingVfs(fuse)
    try:
        if kind == "served":
            store: Store = open_served_store(folder / "store", vfs="failing", disk=FailingDisk(fuse), seconds=None)
        else:
            store = SqliteStore(folder / "store", vfs="failing")
        yield store
        store.close()
    finally:
        vfs.unregister()


Act = Callable[[Queues, list[str]], object]
VERBS: dict[str, Act] = {
    "publish": lambda queues, _: queues.publish_many("work", [b"new" * 100] * 8),
    "publish one": lambda queues, _: queues.publish("work", b"new"),
    "publish to a new queue": lambda queues, _: queues.publish("another", b"new"),
    "lease": lambda queues, _: queues.lease("work", 3),
    "ack": lambda queues, leases: queues.ack_many(leases),
    "nack": lambda queues, leases: queues.nack_many(leases, text="it did not work"),
    "set a policy": lambda queues, _: queues.set_policy("work", {"retry": {"limit": 7}}),
}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", ["sqlite", "served"])
def test_fault_injection_at_any_disk_call_leaves_nothing_of_the_refused_operation(
    kind: str, verb: str, code: int, tmp_path: Path
) -> None:
    fuse = Fuse(code)
    with opened(tmp_path, fuse, kind) as store:
        queues = Queues(store, ManualClock(), CountingIds(), "tester")
        queues.publish_many("work", [b"%d" % number for number in range(12)])
        leases = [delivery.lease_id for delivery in queues.lease("work", 4)]
        before = take_snapshot(store)
        number = 1
        while error := refusal(fuse, number, lambda: VERBS[verb](queues, leases)):
            assert isinstance(error, StoreFull) == (code == errno.ENOSPC), error
            unharmed(store, before)
            number += 1
        assert 1 < number < MOST_CALLS
        changed = take_snapshot(store)
        assert changed != before
        assert wrong_counts(changed) == []
    with opened(tmp_path, Fuse(0), kind) as store:
        assert take_snapshot(store) == changed


def refusal(fuse: Fuse, number: int, act: Callable[[], object]) -> StoreError | None:
    """What the caller hears when the disk fails at this call; None: there were not so many."""
    fuse.left = number if number < MOST_CALLS else 0
    try:
        act()
        return None
    except StoreError as error:
        return error
    finally:
        fuse.left = 0


def unharmed(store: Store, before: Snapshot) -> None:
    found = take_snapshot(store)
    assert found.twice == ()
    assert found.entries == before.entries
    assert wrong_counts(found) == []
    assert list(store.check(repair=False)) == []


def test_background_commit_that_fails_between_two_calls_loses_no_message_and_reuses_no_number(tmp_path: Path) -> None:
    """As when a server's time to commit comes while its disk is full: what was confirmed stays, and no number that was
    given out is given out again."""
    fuse = Fuse(errno.ENOSPC)
    with opened(tmp_path, fuse, "served") as store:
        assert isinstance(store, SqliteStore)
        queues = Queues(store, ManualClock(), CountingIds(), "tester")
        sent = [queues.publish("work", b"first").id, queues.publish("work", b"second").id]
        fuse.left = 1
        assert not store.commit_pending()
        sent += [queues.publish("work", b"third").id, *(one.id for one in queues.publish_many("work", [b"x"] * 3))]
        found = take_snapshot(store)
        assert sorted(one[1] for one in found.entries) == sorted(sent), found.entries
        assert wrong_counts(found) == []
        assert store.commit_pending()
    with opened(tmp_path, Fuse(0), "sqlite") as store:
        assert take_snapshot(store) == found


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_redo_log_write_that_fails_drops_only_its_own_publish_with_and_without_a_crash(
    code: int, tmp_path: Path
) -> None:
    """At every call of the disk, with others in the file of changes before it; then with and without a crash."""
    for number in range(1, 4):
        fuse, home, left = Fuse(code), tmp_path / f"{number}", tmp_path / f"{number} left"
        home.mkdir()
        with opened(home, fuse, "served") as store:
            queues = Queues(store, ManualClock(), CountingIds(), "tester")
            sent = [queues.publish("work", b"before").id for _ in range(3)]
            error = refusal(fuse, number, partial(queues.publish, "work", b"refused"))
            assert (error is None) == (number == 3), "one write, one sync"
            sent += [f"{sent[0][:-1]}4"] if error is None else []
            shutil.copytree(home, left)
            sent_later = [queues.publish("work", b"after").id for _ in range(3)]
            assert [one[1] for one in take_snapshot(store).entries] == [*sent, *sent_later]
            assert list(store.check(repair=False)) == []
        for place, ids in ((home, [*sent, *sent_later]), (left, sent)):
            with opened(place, Fuse(0), "served") as store:
                assert [one[1] for one in take_snapshot(store).entries] == ids
                assert list(store.check(repair=False)) == []


def test_redo_log_keeps_no_statement_of_a_commit_that_does_not_fit_and_fails(tmp_path: Path) -> None:
    """What was refused has given no number to a statement that the next record would refer to."""
    store = open_served_store(tmp_path / "store", redo_bytes=16384, seconds=None)
    queues = Queues(store, ManualClock(), CountingIds(), "tester")
    sent = [queues.publish("work", b"x").id for _ in range(2)]
    failing = [True]
    store.file.db.set_commit_hook(lambda: bool(failing and failing.pop()))
    with pytest.raises(apsw.ConstraintError):
        queues.publish_many("work", [b"y" * 10_000, b"z" * 10_000])
    sent += [one.id for one in queues.publish_many("work", [b"y", b"z"])]
    shutil.copytree(tmp_path, left := tmp_path.with_name("left"))
    with pytest.raises(ZeroDivisionError), store.transaction():
        raise ZeroDivisionError
    sent_later = [queues.publish("work", b"x").id]
    assert [one[1] for one in take_snapshot(store).entries] == [*sent, *sent_later]
    store.close()
    for place, ids in ((tmp_path, [*sent, *sent_later]), (left, sent)):
        with opened(place, Fuse(0), "sqlite") as found:
            assert [one[1] for one in take_snapshot(found).entries] == ids


def test_sqlite_file_that_may_not_grow_refuses_a_large_message_and_serves_the_rest(tmp_path: Path) -> None:
    store = open_served_store(tmp_path / "store", seconds=None)
    queues = Queues(store, ManualClock(), CountingIds(), "tester")
    sent = [queues.publish("work", b"x").id for _ in range(5)]
    store.file.db.pragma("max_page_count", store.file.db.pragma("page_count"))
    with pytest.raises(StoreFull):
        queues.publish("work", b"y" * 100_000)
    assert queues.counts("work").ready == 5
    assert [one.id for one in queues.lease("work", 2)] == sent[:2]
    store.file.db.pragma("max_page_count", 10**8)
    sent += [queues.publish("work", b"x").id for _ in range(3)]
    assert sorted(one[1] for one in take_snapshot(store).entries) == sorted(sent)
    assert list(store.check(repair=False)) == []
    store.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_background_commit_that_failed_keeps_later_confirmed_messages_through_a_crash(
    code: int, tmp_path: Path
) -> None:
    """Of a commit that SQLite could not sync all may be in its log nevertheless, and count after a crash."""
    number, is_refused = 1, True
    while is_refused:
        fuse, home, left = Fuse(code), tmp_path / f"{number}", tmp_path / f"{number} left"
        home.mkdir()
        with opened(home, fuse, "served") as store:
            assert isinstance(store, SqliteStore)
            queues = Queues(store, ManualClock(), CountingIds(), "tester")
            sent = [queues.publish("work", b"before").id for _ in range(3)]
            fuse.left = number
            is_refused = not store.commit_pending()
            fuse.left = 0
            sent += [queues.publish("work", b"after").id for _ in range(3)]
            shutil.copytree(home, left)
        with opened(left, Fuse(0), "served") as store:
            assert [one[1] for one in take_snapshot(store).entries] == sent
            assert list(store.check(repair=False)) == []
        number += 1
    assert number > 3, "there are writes and a sync"
