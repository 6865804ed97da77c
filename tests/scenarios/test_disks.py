"""A full disk and a read-only one: a clear error, nothing confirmed lost, and work goes on when the disk is well."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.disks import DISKS, KINDS, PretendedDisk, TightDisk, pretended
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import StoreError, StoreFull, StoreReadOnly
from yirangmq.core.ports import Store
from yirangmq.crashtest.workload import take_snapshot, wrong_counts
from yirangmq.testing import CountingIds, ManualClock

MOST = 4000
"""Publishes after which a disk of a few megabytes must be full."""
pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(params=sorted(DISKS))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TightDisk]:
    with DISKS[request.param](tmp_path / "disk") as made:
        yield made


@pytest.fixture
def turning_disk(tmp_path: Path) -> Iterator[PretendedDisk]:
    """A real one cannot turn read-only while files are open on it, unless it is failing."""
    with pretended(tmp_path / "disk") as made:
        yield made


class Bench:
    """A store at work, and what it has confirmed."""

    def __init__(self, store: Store, first: int = 1) -> None:
        self.store = store
        self.queues = Queues(store, ManualClock(), CountingIds(f"run{first}"), "tester")
        self.confirmed: dict[str, bytes] = {}

    def publish(self, count: int = 1) -> None:
        payloads = [b"%06d" % (len(self.confirmed) + number) * 300 for number in range(count)]
        receipts = self.queues.publish_many("work", payloads)
        self.confirmed.update({receipt.id: payload for receipt, payload in zip(receipts, payloads, strict=True)})

    def publish_until_refused(self) -> StoreError:
        try:
            while len(self.confirmed) < MOST:
                self.publish()
        except StoreError as error:
            return error
        raise AssertionError("the disk took everything")

    def look_over(self) -> None:
        """Exactly what was confirmed is there, counted right."""
        found = take_snapshot(self.store)
        payloads = {id: card.envelope.payload for (_, id), card in found.entries.items() if card.envelope}
        assert payloads == self.confirmed
        assert found.twice == ()
        assert wrong_counts(found) == []
        assert list(self.store.check(repair=False)) == []

    def drain(self) -> dict[str, bytes]:
        delivered: dict[str, bytes] = {}
        while batch := self.queues.lease("work", 100):
            delivered |= {delivery.id: delivery.payload for delivery in batch}
            self.queues.ack([delivery.lease_id for delivery in batch])
        return delivered


def test_full_disk_refuses_publishes_loses_nothing_and_works_again_when_there_is_space(
    kind: str, disk: TightDisk
) -> None:
    bench = Bench(disk.open(kind))
    bench.publish(20)
    disk.fill()
    error = bench.publish_until_refused()
    assert isinstance(error, StoreFull)
    assert "no space left" in str(error)
    with pytest.raises(StoreFull):
        bench.queues.publish_many("work", [b"x" * 3000] * 500)  # more than a checkpoint of the WAL gives back
    bench.look_over()
    disk.free()
    bench.publish(5)
    bench.look_over()
    expected = dict(bench.confirmed)
    delivered = bench.drain()
    assert delivered == expected
    assert list(delivered) == list(expected), "in order"
    bench.store.close()


def test_full_disk_store_opens_again_when_there_is_space(kind: str, disk: TightDisk) -> None:
    bench = Bench(disk.open(kind))
    disk.fill()
    assert isinstance(bench.publish_until_refused(), StoreFull)
    bench.store.close()
    disk.free()
    again = Bench(disk.open(kind), first=2)
    again.confirmed = bench.confirmed
    again.publish(3)
    again.look_over()
    again.store.close()


def test_full_disk_refuses_an_ack_that_can_be_repeated_when_there_is_space(
    kind: str, turning_disk: PretendedDisk
) -> None:
    bench = Bench(turning_disk.open(kind))
    bench.publish(2)
    first, second = bench.queues.lease("work", 2)
    turning_disk.fill()
    with pytest.raises(StoreFull):
        bench.queues.ack(first.lease_id)
    assert bench.queues.show("work", first.id).message.state == "leased"
    turning_disk.free()
    bench.queues.ack([first.lease_id, second.lease_id])
    counts = bench.queues.counts("work")
    assert (counts.leased, counts.ready, counts.done) == (0, 0, 2)
    bench.store.close()


def test_full_disk_refuses_a_new_store_that_can_be_made_later(kind: str, disk: TightDisk) -> None:
    disk.fill()
    with pytest.raises(StoreFull):
        open_and_publish(disk, kind)
    disk.free()
    bench = Bench(disk.open(kind))
    bench.publish(3)
    bench.look_over()
    bench.store.close()


def test_read_only_disk_refuses_writes_to_a_store_and_keeps_everything(kind: str, disk: TightDisk) -> None:
    bench = Bench(disk.open(kind))
    bench.publish(10)
    bench.store.close()
    disk.make_read_only()
    with pytest.raises(StoreReadOnly):
        open_and_publish(disk, kind)
    disk.make_writable()
    again = Bench(disk.open(kind), first=2)
    again.confirmed = bench.confirmed
    again.publish()
    again.look_over()
    again.store.close()


def test_read_only_disk_refuses_a_new_store(kind: str, disk: TightDisk) -> None:
    disk.make_read_only()
    with pytest.raises(StoreReadOnly):
        open_and_publish(disk, kind)
    disk.make_writable()


def test_read_only_disk_under_an_open_store_refuses_publish_and_lease_until_writable(
    kind: str, turning_disk: PretendedDisk
) -> None:
    bench = Bench(turning_disk.open(kind))
    bench.publish(10)
    turning_disk.make_read_only()
    with pytest.raises(StoreReadOnly):
        bench.publish()
    with pytest.raises(StoreReadOnly):
        bench.queues.lease("work")
    bench.look_over()
    turning_disk.make_writable()
    bench.publish()
    bench.look_over()
    bench.store.close()


def open_and_publish(disk: TightDisk, kind: str) -> None:
    """Whether opening or writing is refused may differ; that it is, and how, may not."""
    store = disk.open(kind)
    try:
        Bench(store, first=3).publish()
    finally:
        store.close()
