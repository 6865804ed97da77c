"""What the leader of a queue knows of consumers, and what handing out and acking cost: calls and bytes, counted where
they leave for etcd."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.etcd import EtcdCluster, at, keys_of, play, running
from tests.support.etcd_counts import CountingEtcd
from tests.support.wait import soon
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.cluster import node
from yirangmq.cluster.clients import EtcdConsumer, Producer, ReceivedMessage
from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.keys import Keys
from yirangmq.cluster.node import ClusterNode, ClusterNodeSettings
from yirangmq.core.errors import BadInput

pytestmark = pytest.mark.process
COUNT = 100
BODY = bytes(5_000)


@asynccontextmanager
async def counted(etcds: EtcdCluster) -> AsyncIterator[CountingEtcd]:
    """A node whose calls are counted, beside those it makes to find queues."""
    address = EtcdAddress(endpoints=tuple(etcds.endpoints))
    settings = ClusterNodeSettings(name="here", lease=60, poll=60.0, compact=0)
    stop = asyncio.Event()
    etcd = CountingEtcd(address)
    async with etcd:
        task = asyncio.ensure_future(ClusterNode(etcd, address, SystemClock(), TimeOrderedIds(), settings).run(stop))
        try:
            yield etcd
        finally:
            stop.set()
            await task


def test_dispatcher_hands_out_without_a_call_of_its_own_and_removes_acked_without_payload(
    etcd: EtcdCluster, queue: str
) -> None:
    """E-18: what moves a message into the line gives it to its consumer too, in one transaction for many of them, and
    no call goes to a consumer. What was acked is removed by its number."""

    async def game() -> None:
        keys = Keys(queue)
        async with at(*etcd.endpoints) as client:
            await client.put(keys.home("bob"), b"host")  # before the node looks for queues
            async with counted(etcd) as counts:

                async def is_led() -> bool:
                    return await client.get(keys.leader) is not None

                await soon(is_led)
                before = len(counts.writes)
                await Producer(client, queue, "me", TimeOrderedIds()).publish_many([BODY] * COUNT)

                async def has(prefix: bytes, count: int) -> bool:
                    return len(await keys_of(client, prefix)) == count

                await soon(lambda: has(keys.home("bob") + b"0", COUNT), what="all with bob")
                spent = counts.writes[before:]
                assert len(spent) <= COUNT // 10
                assert sum(spent) < 2.5 * COUNT * len(BODY)  # in line and with the consumer, and no third time
                before = len(counts.writes)
                await client.delete(keys.home("bob") + b"0", keys.home("bob") + b":")
                await soon(lambda: has(keys.base + b"0", 0), what="none in line")
                assert sum(counts.writes[before:]) < COUNT * len(BODY) / 10

    play(game())


def test_dispatcher_gives_references_to_a_consumer_that_asks_for_them_and_writes_each_body_once(
    etcd: EtcdCluster, queue: str
) -> None:
    """E-18: only a command goes to the consumer's key; the consumer reads the bodies from the line."""

    async def game() -> None:
        keys = Keys(queue)
        eyes = CountingEtcd(EtcdAddress(endpoints=tuple(etcd.endpoints)))
        async with (
            at(*etcd.endpoints) as client,
            eyes,
            EtcdConsumer(eyes, queue, "bob", seconds=600, copies="reference") as consumer,
            counted(etcd) as counts,
        ):

            async def is_led() -> bool:
                return await client.get(keys.leader) is not None

            await soon(is_led)
            before = len(counts.writes)
            sent = [BODY + b"%d" % number for number in range(COUNT)]
            await Producer(client, queue, "me", TimeOrderedIds()).publish_many(sent)
            batches, given = consumer.batches(), list[ReceivedMessage]()
            calls = eyes.calls
            while len(given) < COUNT:
                given += await anext(batches)
            assert [one.value for one in given] == sent
            assert eyes.calls - calls <= COUNT // 10
            assert sum(counts.writes[before:]) < 1.2 * COUNT * len(BODY)  # in line, and not once more
            copies = await client.range(keys.home("bob") + b"0", keys.home("bob") + b":")
            assert [kv.value for kv in copies.kvs] == [b""] * COUNT
            await consumer.ack(given)

            async def is_drained() -> bool:
                return await keys_of(client, keys.base + b"0") == []

            await soon(is_drained, what="none in line")

    play(game())


def test_consumer_with_references_follows_copies_of_every_kind(etcd: EtcdCluster, queue: str) -> None:
    """A body (of an older leader), a reference, an empty message, and a message that is no longer in line."""

    async def game() -> None:
        keys = Keys(queue)
        async with (
            at(*etcd.endpoints) as client,
            EtcdConsumer(client, queue, "bob", copies="reference") as consumer,
        ):
            found = await client.get(keys.home("bob"))
            assert found is not None
            assert found.value == b"bob?copies=reference"
            name = b"a%2Fb"
            pairs = ((b"1", b"1"), (b"2", b""), (b"", b""), (None, b""), (b"5", b""))
            for number, (in_line, copy) in enumerate(pairs, 1):
                if in_line is not None:
                    await client.put(keys.ordered(number, name), in_line)
                await client.put(keys.home("bob") + b"%020d/" % number + name, copy)
            batches, given = consumer.batches(), list[ReceivedMessage]()
            while len(given) < 4:
                given += await anext(batches)
            assert [(one.number, one.name, one.value) for one in given] == [
                (1, "a/b", b"1"), (2, "a/b", b"2"), (3, "a/b", b""), (5, "a/b", b"5"),
            ]  # fmt: skip
            with pytest.raises(BadInput, match="copies"):
                EtcdConsumer(client, queue, "bob", copies="none")
            await client.delete(keys.base, keys.base[:-1] + b"0")

    play(game())


def test_consumer_of_bodies_follows_a_reference_that_its_namesake_left(etcd: EtcdCluster, queue: str) -> None:
    """A consumer with references has left and come again without, before its copies were taken away."""

    async def game() -> None:
        keys = Keys(queue)
        async with at(*etcd.endpoints) as client, EtcdConsumer(client, queue, "bob") as consumer:
            await client.put(keys.ordered(1, b"k"), b"body")
            await client.put(keys.home("bob") + b"%020d/k" % 1, b"")
            [one] = await anext(consumer.batches())
            assert one.value == b"body"
            await client.delete(keys.base, keys.base[:-1] + b"0")

    play(game())


def test_dispatcher_gives_bodies_and_references_to_consumers_of_one_queue(etcd: EtcdCluster, queue: str) -> None:
    """Also what comes back from one and goes to the other."""

    async def game() -> None:
        keys = Keys(queue)
        async with at(*etcd.endpoints) as client, running(etcd.endpoints):
            await client.put(keys.home("ann"), b"host")
            async with EtcdConsumer(client, queue, "bob", host="host", copies="reference") as consumer:
                sent = [b"%d" % number for number in range(20)]
                await Producer(client, queue, "me", TimeOrderedIds()).publish_many(sent)
                batches, given = consumer.batches(), list[ReceivedMessage]()
                while not given:
                    given += await anext(batches)

                async def all_given() -> bool:
                    return len(await keys_of(client, keys.home("ann") + b"0")) + len(given) == 20

                while not await all_given():
                    given += await anext(batches)
                hers = (await client.range(keys.home("ann") + b"0", keys.home("ann") + b":")).kvs
                assert {kv.value for kv in hers} | {one.value for one in given} == set(sent)
                assert hers
                await consumer.ack(given)
                await client.delete(keys.home("ann"))  # what she has goes to the other
                while len(given) < 20:
                    more = await anext(batches)
                    await consumer.ack(more)
                    given += more
                assert {one.value for one in given} == set(sent)

    play(game())


def test_ack_in_a_dispatched_queue_is_one_call_and_needs_no_leader(etcd: EtcdCluster, queue: str) -> None:
    """Nobody leads the queue while it is acked; whoever leads next removes it from the line."""

    async def game() -> None:
        keys = Keys(queue)
        client = CountingEtcd(EtcdAddress(endpoints=tuple(etcd.endpoints)))

        async def has_in_line(count: int) -> bool:
            found = await client.range(keys.base + b"0", keys.ordered_end, count_only=True)
            return bool(found.count == count)

        async with client, EtcdConsumer(client, queue, "bob", seconds=600) as consumer:
            batches, given = consumer.batches(), list[ReceivedMessage]()
            async with running(etcd.endpoints):
                await Producer(client, queue, "me", TimeOrderedIds()).publish_many([b"1"] * COUNT)
                while len(given) < COUNT:
                    given += await anext(batches)
            assert await client.get(keys.leader) is None
            before = len(client.writes)
            await consumer.ack(given)
            assert len(client.writes) - before == 1
            assert await keys_of(client, keys.home("bob") + b"0") == []
            assert await has_in_line(COUNT)
            async with running(etcd.endpoints):
                await soon(lambda: has_in_line(0), what="none in line")

    play(game())


def test_dispatcher_of_every_new_leader_knows_each_consumers_key(etcd: EtcdCluster, queue: str) -> None:
    async def game() -> None:
        keys = Keys(queue)
        async with at(*etcd.endpoints) as client, EtcdConsumer(client, queue, "bob", host="machine-1"):
            found = await client.get(keys.home("bob"))
            assert found is not None
            assert (found.value, found.lease > 0) == (b"machine-1", True)

            def knows(node: ClusterNode) -> dict[bytes, bytes]:
                dispatcher = node.dispatchers.get(queue)
                queue_state = None if dispatcher is None else dispatcher.queue_state
                return {} if queue_state is None else {home: one.value for home, one in queue_state.consumers.items()}

            both = {keys.home("bob"): b"machine-1", keys.home("cid"): b"machine-2"}
            async with running(etcd.endpoints, "first") as first:
                await soon(lambda: knows(first) == {keys.home("bob"): b"machine-1"}, what="it is known")
                await client.put(keys.home("cid"), b"machine-2")
                await soon(lambda: knows(first) == both, what="both are known")
            async with running(etcd.endpoints, "second") as second:
                await soon(lambda: knows(second) == both, what="the next leader knows both")
                await client.delete(keys.home("cid"))
                await soon(lambda: knows(second) == {keys.home("bob"): b"machine-1"}, what="one left")

    play(game())


def test_leader_election_moves_the_lead_to_the_node_where_all_consumers_are(
    etcd: EtcdCluster, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def counted(*given: Any) -> node.Consumers:
        nonlocal looks
        looks += 1
        return await all_here(*given)

    all_here = node._local_consumers
    monkeypatch.setattr(node, "_local_consumers", counted)

    async def game() -> None:
        async with (
            at(*etcd.endpoints) as client,
            running(etcd.endpoints, "far", near=0.5, lease=60) as far,
            EtcdConsumer(client, queue, "bob", host="close", seconds=600) as consumer,
        ):
            await soon(lambda: queue in far.dispatchers, what="somebody leads")
            producer = Producer(client, queue, "me", TimeOrderedIds())
            await producer.publish(b"1")
            batches = consumer.batches()
            [one] = await anext(batches)
            async with running(etcd.endpoints, "close", near=0.5, lease=60) as close:
                # Something is outstanding: twice the looks after which it would take the lead change nothing.
                await soon(
                    lambda: looks > 2 * (node.CHECKS_PER_INTERVAL + 1) or queue in close.dispatchers, what="it looks"
                )
                assert queue in far.dispatchers
                assert queue not in close.dispatchers
                await consumer.ack([one])
                await soon(lambda: queue in close.dispatchers, what="it leads where its consumer is")
                await soon(lambda: queue not in far.dispatchers, what="and there alone")
                await producer.publish(b"2")
                assert [one.value for one in await anext(batches)] == [b"2"]

    play(game())
