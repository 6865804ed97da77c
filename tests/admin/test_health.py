"""Health of a server: each reason is brought about on real parts, shown, and gone when its cause is."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.support.locked_store import BUSY_SECONDS, Shared
from tests.support.loops import run_loop
from tests.support.session import Client, Server
from tests.support.topic_server import live
from yirangmq.admin.health import StoreDisk
from yirangmq.core.errors import NotActive, QueueError
from yirangmq.core.ports import Store
from yirangmq.fsio.disk import Disk as SystemCalls
from yirangmq.stores.files.store import FilesStore
from yirangmq.stores.memory import MemoryStore
from yirangmq.stores.sqlite.server_store import open_served_store
from yirangmq.testing import FailingStore
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind


class BrokenDisk(SystemCalls):
    """Every sync fails while ``error`` is set, as with a disk that is about to die."""

    error = 0

    def _fail(self) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))

    def fsync(self, fd: int) -> None:
        self._fail()
        super().fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self._fail()
        super().fdatasync(fd)

    def fsync_file(self, path: str) -> None:
        self._fail()
        super().fsync_file(path)

    def fsync_folder(self, path: str) -> None:
        self._fail()
        super().fsync_folder(path)

    def syncfs(self, path: str) -> None:
        self._fail()
        super().syncfs(path)


def opened(kind: str, folder: Path, disk: SystemCalls | None = None) -> Store:
    if kind == "files":
        return FilesStore(folder / "queues", disk=disk)
    return open_served_store(folder / "queue.db", disk=disk, seconds=None)


def told(client: Client) -> tuple[str, list[tuple[str, str]]]:
    found = client.call("health")
    return found["status"], [(reason["code"], reason["level"]) for reason in found["reasons"]]


WELL: tuple[str, list[tuple[str, str]]] = ("ok", [])


def publish(client: Client, payload: bytes = b"1") -> str:
    """The code of the error, if it was refused."""
    answer = client.ask(FrameKind.PUBLISH, messages.Publish("mail", [messages.OutgoingMessageBody(payload, False)]))
    return str(answer.value.code) if answer.kind is FrameKind.ERROR else ""


def test_health_ok_of_a_server_that_works(client: Client) -> None:
    assert client.call("health") == {"status": "ok", "reasons": []}


# -- the store --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_health_store_error_lasts_as_long_as_the_disk_fails(tmp_path: Path, kind: str) -> None:
    """Also where nothing is published, and whatever is only read meanwhile."""
    disk = BrokenDisk()
    store = opened(kind, tmp_path, disk)
    server = Server(store)
    client = server.client()
    assert publish(client) == ""
    assert told(client) == WELL
    disk.error = errno.EIO
    assert publish(client) == "store_error"
    for _ in range(5):
        assert client.call("counts", queue="mail")["ready"] == 1
        assert told(client) == ("fail", [("store_error", "fail")])
        server.turns.advance(1500)  # the server tries again by itself
    disk.error = 0
    assert told(client) == WELL
    assert publish(client) == ""
    disk.error = errno.EIO
    server.turns.advance(1500)
    assert told(client) == ("fail", [("store_error", "fail")]), "without a request that failed"
    disk.error = 0
    server.turns.advance(1500)
    assert server.desk.last_error is None, "a probe of its own has found out that the disk works again"
    assert told(client) == WELL
    store.close()


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_health_store_full_lasts_until_something_was_published(tmp_path: Path, kind: str) -> None:
    disk = BrokenDisk()
    store = opened(kind, tmp_path, disk)
    client = Server(store).client()
    assert publish(client) == ""
    disk.error = errno.ENOSPC
    assert publish(client) == "store_full"
    disk.error = 0
    assert told(client) == ("fail", [("store_full", "fail")]), "the probe has room, a message may not have"
    assert publish(client) == ""
    assert told(client) == WELL
    store.close()


def test_health_store_full_is_degraded_after_a_minute() -> None:
    store = FailingStore(MemoryStore())
    server = Server(store)
    client = server.client()
    store.fail_at(1)
    assert publish(client) == "store_full"
    for _ in range(2):
        assert told(client) == ("fail", [("store_full", "fail")])
    server.clock.advance(60_000)
    health = client.call("health")
    assert health["status"] == "degraded"
    assert health["reasons"][0]["text"].startswith("60 s ago a write was refused, and nothing was published since")
    client.publish("mail", b"1")
    assert told(client) == WELL


def test_health_store_full_of_a_probe_is_gone_with_the_next_probe() -> None:
    store = FailingStore(MemoryStore())
    client = Server(store).client()
    store.fail_at(1)
    assert told(client) == ("fail", [("store_full", "fail")])
    assert told(client) == WELL


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_health_store_read_only_while_the_file_system_is(tmp_path: Path, kind: str) -> None:
    disk = BrokenDisk()
    store = opened(kind, tmp_path, disk)
    server = Server(store)
    client = server.client()
    assert publish(client) == ""
    server.turns.advance(1500)
    disk.error = errno.EROFS
    assert told(client) == ("fail", [("store_read_only", "fail")])
    disk.error = 0
    assert told(client) == WELL
    store.close()


def test_health_store_damaged_of_a_broken_page(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    open_served_store(path, seconds=None).close()
    db = apsw.Connection(str(path))
    [(page,)] = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'note'")
    size = db.pragma("page_size")
    db.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    store = open_served_store(path, seconds=None)
    assert told(Server(store).client()) == ("fail", [("store_damaged", "fail")])
    store.close()


def test_health_internal_error_of_a_fault_without_a_code() -> None:
    store = FailingStore(MemoryStore())
    client = Server(store).client()
    store.fail_at(1, ZeroDivisionError("a planted fault"))
    assert told(client) == ("fail", [("internal_error", "fail")])
    assert told(client) == WELL


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_health_store_busy_is_reported_while_another_process_holds_the_lock(tmp_path: Path, kind: str) -> None:
    """Degraded while requests wait, fail once some were refused; the answer does not wait for the lock."""
    shared = Shared(kind, tmp_path)
    watcher = shared.server.client()

    def health() -> tuple[str, list[tuple[str, str]]]:
        number = watcher.send(FrameKind.CALL, messages.Call("health", {}))
        shared.pass_seconds(0.5)
        [answer] = watcher.heard(number)
        found = answer.value.value
        return found["status"], [(reason["code"], reason["level"]) for reason in found["reasons"]]

    assert told(watcher) == WELL
    shared.pass_seconds(1)
    with shared.locked():
        shared.begin_publish(b"1")
        assert health() == ("degraded", [("store_busy", "degraded")])
        shared.pass_seconds(BUSY_SECONDS)
        assert health() == ("fail", [("store_busy", "fail")])
        assert told(watcher) == ("fail", [("store_busy", "fail")]), "at once, when it is known"
    shared.pass_seconds(0.1)
    assert told(watcher) == WELL
    shared.store.close()


def test_health_store_slow_while_a_long_commit_is_under_way(server: Server, client: Client) -> None:
    ends: list[Callable[[], None]] = []

    def aside(work: Callable[[], Any], done: Callable[[Any, QueueError | None], None]) -> None:
        def end() -> None:
            work()
            done(None, None)

        ends.append(end)

    server.desk.submit_long(lambda transaction: None, lambda value, error: None, aside)
    server.turn()
    number = client.send(FrameKind.CALL, messages.Call("health", {}))
    server.turns.advance(500)
    [answer] = client.heard(number)
    assert [(one["code"], one["level"]) for one in answer.value.value["reasons"]] == [("store_slow", "degraded")]
    [end] = ends
    end()
    server.turn()
    assert told(client) == WELL


def test_health_probe_is_not_written_where_a_commit_proves_the_same() -> None:
    store = FailingStore(MemoryStore())
    server = Server(store)
    client = server.client()
    publish(client)
    before = store.transactions
    for _ in range(3):
        assert told(client) == WELL
    assert store.transactions == before
    server.clock.advance(1000)
    assert told(client) == WELL
    assert store.transactions == before + 1


def test_health_overdue_and_backlog_are_degraded(server: Server, client: Client) -> None:
    client.publish("mail", b"1", b"2", b"3", b"4")
    assert told(client) == ("degraded", [("backlog", "degraded")])
    client.ask(FrameKind.LEASE, messages.Lease("mail", 1, 0, 1000))
    server.clock.advance(60_000)
    assert told(client) == ("degraded", [("overdue", "degraded")])


def test_health_backlog_is_degraded_above_its_limit(client: Client) -> None:
    client.publish("mail", b"1", b"2", b"3")
    assert told(client) == WELL
    client.publish("mail", b"4")
    assert told(client) == ("degraded", [("backlog", "degraded")])


# -- the disk ---------------------------------------------------------------------------------------------------------


def test_health_disk_low_fails_below_the_limit_and_is_degraded_below_twice_of_it(tmp_path: Path) -> None:
    disk = StoreDisk(tmp_path, low_bytes=2**60)
    client = Server(disk=disk).client()
    client.publish("mail", b"1")
    assert told(client) == ("fail", [("disk_low", "fail")])
    assert publish(client, b"2") == "store_full"
    [message] = client.lease("mail")
    assert client.ask(FrameKind.ACK, messages.Settle([message.lease])).value.errors == {}
    disk.low_bytes = disk.free * 3 // 4
    assert told(client) == ("degraded", [("disk_low", "degraded")])
    disk.low_bytes = 0
    assert told(client) == WELL
    assert client.publish("mail", b"2")


def test_health_disk_fails_where_the_folder_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    client = Server(disk=StoreDisk(folder, low_bytes=0)).client()
    assert told(client) == ("fail", [("disk", "fail")])
    folder.mkdir()
    assert told(client) == WELL


def test_health_quota_exceeded_is_degraded(tmp_path: Path) -> None:
    used = [100]
    client = Server(disk=StoreDisk(tmp_path, 0, most_bytes=50, measure=lambda: used[0])).client()
    assert told(client) == ("degraded", [("quota_exceeded", "degraded")])
    used[0] = 10
    assert told(client) == WELL


# -- other parts ------------------------------------------------------------------------------------------------------


class Off:
    """Of a standby."""

    is_on = accepts_new = False

    def __init__(self, text: str) -> None:
        self._text = text

    def refusal(self) -> NotActive:
        return NotActive(self._text)


def test_health_no_active_node_fails_and_a_standby_is_ok(server: Server, client: Client) -> None:
    server.desk.guard = Off("this node, b, is standby in term 3; the active node is a at tcp://a:7411")
    assert told(client) == WELL
    server.desk.guard = Off("this node, b, is standby in term 3; no active node is known")
    assert told(client) == ("fail", [("no_active_node", "fail")])


def test_health_topics_is_degraded_while_their_log_cannot_be_used(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as running:
            assert running.about.reasons() == []
            running.topics.fail(QueueError("the log is broken"))
            [reason] = running.about.reasons()
            assert (reason.code, reason.level) == ("topics", "degraded")

    run_loop(main())
