"""A store on a real small file system without a byte left: consuming works with reserved space, publishing is refused,
and works again, without a restart, when messages were consumed."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import yirangmq
from tests.scenarios.disks import DISKS, MountedDisk
from tests.support.server import RunningServer
from tests.support.server_process import daemon
from yirangmq.broker.queues import Queues
from yirangmq.client.connect import connect
from yirangmq.core.errors import StoreFull
from yirangmq.core.ports import Store
from yirangmq.crashtest.workload import take_snapshot, wrong_counts
from yirangmq.stores.open import open_store
from yirangmq.testing import CountingIds, ManualClock

SIZE = 20_000
"""Bytes of a message: a small disk is full after some hundred."""
MOST = 2_000
REAL = sorted(set(DISKS) - {"pretended"})
KINDS: dict[str, Callable[[Path], Store]] = {
    "sqlite": lambda folder: open_store(f"sqlite:{folder / 'queue.db'}"),
    "sqlite served": lambda folder: open_store(f"sqlite:{folder / 'queue.db'}", served=True),
    "files": lambda folder: open_store(f"files:{folder / 'queues'}"),
}


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


pytestmark = pytest.mark.skipif(not REAL, reason="no file system can be mounted here")


@pytest.fixture(params=REAL or ["none"])
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        mounted = Path(place) / "disk"
        with DISKS[request.param](mounted):
            yield mounted


@pytest.fixture(params=KINDS)
def queues(request: pytest.FixtureRequest, folder: Path) -> Iterator[Queues]:
    store = KINDS[request.param](folder)
    with Queues(store, ManualClock(), CountingIds("m"), "tester") as made:
        made.store = store  # type: ignore[attr-defined]
        yield made


def publish_until_refused(queues: Queues) -> list[str]:
    ids: list[str] = []
    while len(ids) < MOST:
        try:
            ids.append(queues.publish("work", b"%06d" % len(ids) * (SIZE // 6)).id)
        except StoreFull:
            return ids
    raise AssertionError("the disk took everything")


def test_full_store_is_drained_from_reserved_space_and_takes_messages_again(queues: Queues, folder: Path) -> None:
    ids = publish_until_refused(queues)
    MountedDisk(folder).fill()
    assert _free(folder) < 4096
    with pytest.raises(StoreFull):
        queues.publish_many("work", [b"x" * SIZE] * 9)
    first, second, third, *_ = queues.lease("work", 4)
    queues.extend(first.lease_id, 60)
    queues.nack(first.lease_id, "REJECTED", "no")
    queues.nack(second.lease_id, "HANDLER_ERROR", "no", delay=0)
    assert queues.drop("work", [third.id]) == [None]
    taken: list[str] = []
    while batch := queues.lease("work", 10):
        queues.ack([delivery.lease_id for delivery in batch[:5]])
        queues.ack([delivery.lease_id for delivery in batch[5:]])
        taken += [delivery.id for delivery in batch]
    counts = queues.counts("work")
    assert (counts.ready, counts.delayed, counts.dead, counts.dropped) == (0, 0, 1, 1)
    assert counts.acked + counts.leased == len(ids) - 2
    assert counts.published == len(ids)
    assert set(taken) <= set(ids)
    again = [queues.publish("work", b"again" * (SIZE // 5)).id for _ in range(len(ids) // 4)]
    assert [delivery.id for delivery in queues.lease("work", len(again))] == again
    store: Store = queues.store  # type: ignore[attr-defined]
    assert wrong_counts(take_snapshot(store)) == []
    assert list(store.check(repair=False)) == []


def test_full_store_keeps_its_reserve_from_publishers_and_makes_it_again(queues: Queues, folder: Path) -> None:
    (folder / "ballast").write_bytes(bytes(1_000_000))
    publish_until_refused(queues)
    disk = MountedDisk(folder)
    disk.fill()
    for _ in range(5):
        with pytest.raises(StoreFull):
            queues.publish_many("work", [b"x" * SIZE] * 20)
    queues.ack([delivery.lease_id for delivery in queues.lease("work", 3)])
    disk.free()
    queues.ack([delivery.lease_id for delivery in queues.lease("work", 3)])
    store: Store = queues.store  # type: ignore[attr-defined]
    assert store.is_short is False  # type: ignore[attr-defined]
    [reserve] = [*folder.rglob("*reserve")]
    assert reserve.stat().st_blocks * 512 >= reserve.stat().st_size > 0


def test_full_store_drops_messages_and_takes_messages_again(queues: Queues, folder: Path) -> None:
    ids = publish_until_refused(queues)
    MountedDisk(folder).fill()
    assert queues.drop("work", ids) == [None] * len(ids)
    assert queues.publish("work", b"x" * SIZE).id


@pytest.mark.parametrize("url", ["sqlite:{}/queue.db", "files:{}/queues"])
def test_full_store_of_a_server_is_drained_and_takes_messages_again(folder: Path, tmp_path: Path, url: str) -> None:
    server = RunningServer(open_store(url.format(folder), served=True), tmp_path)
    server.start()
    try:
        with yirangmq.connect(server.unix) as client:
            published = 0
            with suppress(StoreFull):
                while published < MOST:
                    client.publish("work", b"x" * SIZE)
                    published += 1
            MountedDisk(folder).fill()
            with pytest.raises(StoreFull):
                client.publish("work", b"x" * 30 * SIZE)
            taken = 0
            while batch := client.lease("work", 20):
                client.ack([delivery.lease_id for delivery in batch])
                taken += len(batch)
            assert taken == published
            assert client.publish("work", b"x" * SIZE).id
    finally:
        server.stop()


@pytest.mark.process
def test_health_reserve_used_while_a_full_store_is_drained(tmp_path: Path, folder: Path) -> None:
    """The files store: a server on SQLite drains a small disk from the space of its WAL and redo log alone."""
    options = ("--http", "off", "--disk-low-bytes", "0", "--store", f"files:{folder}/d/queues", "--topics", "off")
    with daemon(tmp_path, *options) as server, connect(server.address) as client:
        assert client.call("health")["status"] == "ok"
        with suppress(StoreFull):
            for _ in range(MOST):
                client.publish("work", b"x" * SIZE)
        found: set[str] = set()
        with suppress(StoreFull):  # what is given free is taken again until the reserve itself is used up
            while "reserve_used" not in found:
                MountedDisk(folder).fill()
                [delivery] = client.lease("work", 1)
                client.ack(delivery.lease_id)
                found |= {one["code"] for one in client.call("health")["reasons"]}
        found |= {one["code"] for one in client.call("health")["reasons"]}
        assert "reserve_used" in found
