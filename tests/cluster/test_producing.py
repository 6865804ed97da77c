"""How sure a producer is: the three levels, with members that die; and what happens when etcd is nearly or quite
full."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.cluster.etcd.proxy import Proxy
from tests.support.etcd import EtcdCluster, at, keys_of, play, running
from tests.support.wait import soon
from yirangmq.clock import TimeOrderedIds
from yirangmq.cluster.clients import LEVELS, MAX_OUTSTANDING, NEARLY_FULL, EtcdConsumer, Producer
from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.etcd.diagnostics import repair
from yirangmq.cluster.etcd.maintenance import Maintenance
from yirangmq.cluster.etcd.quota import EtcdQuota
from yirangmq.cluster.keys import Keys
from yirangmq.core.errors import BadInput, QuotaExceeded, StoreFull, Unavailable

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("level", LEVELS)
def test_cluster_producer_at_each_level_keeps_confirmed_messages_after_a_kill_of_all_members(
    tmp_path: Path, queue: str, level: str
) -> None:
    """E-17: what was confirmed survives at each level; ``none`` loses what etcd refuses, and counts it."""

    async def game(etcd: EtcdCluster) -> None:
        async with at(*etcd.endpoints) as client:
            producer = Producer(client, queue, "me", TimeOrderedIds(), level)
            sent = [await producer.publish(b"%d" % number) for number in range(50)]
            await producer.flush()
            etcd.members[0].kill()
            if level == "none":
                await producer.publish(b"into the void")
                await producer.flush()
                assert producer.failed == 1
            etcd.members[0].start()
            assert etcd.wait_well()
            there = {key.rsplit(b"/", 1)[1].decode() for key in await keys_of(client, Keys(queue).base + b"p/")}
            assert set(sent) <= there

    with EtcdCluster(tmp_path / "etcd") as cluster:
        play(game(cluster))


@pytest.mark.parametrize("level", LEVELS)
def test_cluster_producer_killed_loses_at_most_what_its_level_left_unconfirmed(
    etcd: EtcdCluster, queue: str, level: str
) -> None:
    """E-17: loss test. The network to etcd stops, and when the producer has waited for an answer in vain it is killed.
    Of the messages for which ``publish`` had returned, ``majority`` loses none, ``few`` at most ``MAX_OUTSTANDING``
    calls, ``none`` all since the network stopped. What was flushed is there at every level."""
    flushed = 20

    async def game() -> None:
        async with at(*etcd.endpoints) as client, Proxy(etcd.endpoints[0]) as proxy:
            words = ("-m", "tests.support.etcd_producer", proxy.endpoint, queue, level, str(flushed))
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=pipe, stdout=pipe, cwd=ROOT)
            assert process.stdin is not None
            assert process.stdout is not None
            while (line := await process.stdout.readline()) != b"flushed\n":
                assert line, "the producer ended"
            proxy.holds, connections = True, proxy.accepted
            process.stdin.write(b"\n")
            saying = asyncio.ensure_future(process.stdout.read())
            await soon(lambda: proxy.accepted > connections, what="it tries again by another connection")
            process.kill()
            said = (await saying).splitlines()
            await process.wait()
            returned = {b"m" + line.split()[1] for line in said if line.startswith(b"done ")}
            there = {key.rsplit(b"/", 1)[1] for key in await keys_of(client, Keys(queue).base + b"p/")}
            assert there == {b"m%d" % number for number in range(flushed)}
            lost = returned - there
            if level == "majority":
                assert lost == set()
                assert said == [b"begin %d" % flushed]
            elif level == "few":
                assert len(lost) == MAX_OUTSTANDING
            else:
                assert len(lost) >= MAX_OUTSTANDING

    play(game())


def test_cluster_producer_levels_few_and_none_do_not_wait_and_few_raises_errors_at_flush(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yirangmq.cluster.clients.TRIES", 1)

    async def game() -> None:
        async with at("127.0.0.1:1") as client:
            few = Producer(client, queue, "me", TimeOrderedIds(), "few")
            await few.publish(b"1")
            with pytest.raises(Unavailable):
                await few.flush()
            await few.flush()
            none = Producer(client, queue, "me", TimeOrderedIds(), "none")
            await none.publish_many([b"1", b"2"])
            await none.flush()
            assert none.failed == 2
            with pytest.raises(Unavailable):
                await Producer(client, queue, "me", TimeOrderedIds()).publish(b"1")
            with pytest.raises(BadInput, match="reliability"):
                Producer(client, queue, "me", TimeOrderedIds(), "some")

    play(game())


def test_cluster_producer_publishes_a_batch_with_one_call(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        async with at(*etcd.endpoints) as client:
            calls = 0
            call = client.connection.call

            async def counted(*words: object, **more: object) -> object:
                nonlocal calls
                calls += 1
                return await call(*words, **more)  # type: ignore[arg-type]

            client.connection.call = counted  # type: ignore[method-assign]
            producer = Producer(client, queue, "me", TimeOrderedIds())
            await producer.publish_many([b"1"] * 100)
            assert calls == 1
            await producer.publish(b"2")
            assert calls == 2

    play(game())


def test_quota_refuses_messages_before_etcd_is_full(tmp_path: Path, queue: str) -> None:
    quota = 32 * 1024**2

    async def game(etcd: EtcdCluster) -> None:
        async with (
            running(etcd.endpoints, quota=quota, poll=0.02, compact=0.2),
            at(*etcd.endpoints) as client,
        ):
            producer = Producer(client, queue, "me", TimeOrderedIds())
            sent = 0

            async def is_moved() -> bool:
                """All are in line, or the dispatcher has said that there is no room for more."""
                kv = await client.get(Keys(queue).state)
                state = {} if kv is None else json.loads(kv.value)
                return bool(state.get("next", 1) > sent or state.get("full", 0) >= NEARLY_FULL)

            async def send_on() -> None:
                nonlocal sent
                for _ in range(400):
                    await producer.publish_many([bytes(20_000)] * 10)
                    sent += 10
                    await soon(is_moved, what="a dispatcher that keeps up")

            with pytest.raises(QuotaExceeded, match="60%"):
                await send_on()
            async with EtcdConsumer(client, queue, "bob") as consumer:
                taken = 0
                async for batch in consumer.batches():
                    await consumer.ack(batch)
                    taken += len(batch)
                    if taken >= sent:
                        break
                assert taken == sent

                async def has_room() -> bool:
                    """What was acked goes a little later; what went before the repair makes room."""
                    await repair(client, EtcdAddress(endpoints=tuple(etcd.endpoints)), lambda text: None)
                    try:
                        await producer.publish(b"again")
                        return True
                    except QuotaExceeded:
                        return False

                await soon(has_room, what="room")

    with EtcdCluster(tmp_path / "etcd", flags=["--quota-backend-bytes", str(quota)]) as cluster:
        play(game(cluster))


def test_dispatcher_drains_a_queue_that_nearly_fills_etcd_without_help(tmp_path: Path, queue: str) -> None:
    """A plain client goes on where ours would be refused. Moving and handing out need room for more copies than there
    is, so it is done bit by bit, as acks and compaction make room, and etcd never says that it is full."""
    quota = 12 * 1024**2

    async def game(etcd: EtcdCluster) -> None:
        keys, put = Keys(queue), 0
        async with running(etcd.endpoints, quota=quota, compact=0.2), at(*etcd.endpoints) as client:
            upkeep = Maintenance(EtcdAddress(endpoints=tuple(etcd.endpoints)), client.connection)
            while (await upkeep.health(etcd.endpoints[0])).size < 0.88 * quota and put < 2_000:
                await client.put(keys.inbox("ann", f"k{put}"), bytes(20_000))
                put += 1
            async with EtcdConsumer(client, queue, "bob") as consumer:
                seen: set[str] = set()
                async for batch in consumer.batches():
                    seen.update(one.name for one in batch)
                    await consumer.ack(batch)
                    if len(seen) == put:
                        break
            assert await upkeep.alarms() == []

    with EtcdCluster(tmp_path / "etcd", flags=["--quota-backend-bytes", str(quota)]) as cluster:
        play(game(cluster))


def test_quota_room_is_a_share_of_what_etcd_has_left_and_waits_for_a_new_measure() -> None:
    async def game() -> None:
        room = EtcdQuota()
        assert room.left == float("inf")
        room.record(200, 100, 1000)
        assert (room.full, room.left) == (0.1, (720 + 100) / 4)
        room.take(205)
        assert room.left == 0
        waiting = asyncio.ensure_future(room.wait(60))
        await asyncio.sleep(0)
        assert room.measurement_requested.is_set()
        room.record(850, 100, 1000)
        await waiting
        assert (room.full, room.left) == (0.85, (70 + 750) / 4)
        room.record(970, 100, 1000)
        assert room.left == 0
        room.record_unknown()
        assert room.left == float("inf")

    play(game())


def test_dispatcher_drains_a_full_etcd_and_repair_makes_it_writable(tmp_path: Path, queue: str) -> None:
    """A plain client cannot be refused before the hard end: acks go on, and after the repair everything does."""
    quota = 16 * 1024**2

    async def game(etcd: EtcdCluster) -> None:
        address = EtcdAddress(endpoints=tuple(etcd.endpoints))
        keys = Keys(queue)
        async with at(*etcd.endpoints) as client:
            seen: set[bytes] = set()
            put: set[bytes] = set()
            async with running(etcd.endpoints, quota=quota), EtcdConsumer(client, queue, "bob") as consumer:

                async def work() -> None:
                    async for batch in consumer.batches(10):
                        seen.update(one.name.encode() for one in batch)
                        await consumer.ack(batch)

                await client.put(keys.inbox("ann", "first"), b"")

                async def fill() -> None:
                    for number in range(1000):
                        await client.put(keys.inbox("ann", f"k{number}"), bytes(50_000))
                        put.add(b"k%d" % number)

                with pytest.raises(StoreFull):
                    await fill()
                working = asyncio.ensure_future(work())

                async def has_room() -> bool:
                    """What has been moved is acked and removed; what has not cannot move until there is room."""
                    await repair(client, address, lambda text: None)
                    return put <= seen

                await soon(has_room, what="all of them")
                await client.put(keys.inbox("ann", "last"), b"")
                await soon(lambda: b"last" in seen)
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)

    with EtcdCluster(tmp_path / "etcd", flags=["--quota-backend-bytes", str(quota)]) as cluster:
        play(game(cluster))
