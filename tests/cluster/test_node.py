"""What the leader of a queue knows of consumers, and what handing out and acking cost: calls and bytes, counted where
they leave for etcd."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.etcd import EtcdCluster, at, keys_of, play, running
from tests.support.wait import soon
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.cluster import node
from yirangmq.cluster.clients import EtcdConsumer, Producer, ReceivedMessage
from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.etcd.channel import DELETE, PUT, TXN
from yirangmq.cluster.etcd.client import Etcd
from yirangmq.cluster.keys import Keys
from yirangmq.cluster.node import ClusterNode, ClusterNodeSettings

pytestmark = pytest.mark.process
COUNT = 100
BODY = bytes(5_000)


class Counting(Etcd):
    """Notes each call that may change something, with its size."""

    def __init__(self, address: EtcdAddress) -> None:
        super().__init__(address)
        self.calls: list[int] = []
        call = self.connection.call

        async def noted(method: Any, request: Any, **more: Any) -> Any:
            if method in (PUT, DELETE) or (method is TXN and _writes(request)):
                self.calls.append(request.ByteSize())
            return await call(method, request, **more)

        self.connection.call = noted  # type: ignore[method-assign]


def _writes(request: Any) -> bool:
    return any(not one.HasField("request_range") for one in request.success)


@asynccontextmanager
async def counted(etcds: EtcdCluster) -> AsyncIterator[Counting]:
    """A node whose calls are counted, beside those it makes to find queues."""
    address = EtcdAddress(endpoints=tuple(etcds.endpoints))
    settings = ClusterNodeSettings(name="here", lease=60, poll=60.0, compact=0)
    stop = asyncio.Event()
    etcd = Counting(address)
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
    """What moves a message into the line gives it to its consumer too, in one transaction for many of them; nobody
    calls a consumer. What was acked is removed by its number."""

    async def game() -> None:
        keys = Keys(queue)
        async with at(*etcd.endpoints) as client:
            await client.put(keys.home("bob"), b"host")  # before the node looks for queues
            async with counted(etcd) as calls:

                async def is_led() -> bool:
                    return await client.get(keys.leader) is not None

                await soon(is_led)
                before = len(calls.calls)
                await Producer(client, queue, "me", TimeOrderedIds()).publish_many([BODY] * COUNT)

                async def has(prefix: bytes, count: int) -> bool:
                    return len(await keys_of(client, prefix)) == count

                await soon(lambda: has(keys.home("bob") + b"0", COUNT), what="all with bob")
                spent = calls.calls[before:]
                assert len(spent) <= COUNT // 10
                assert sum(spent) < 2.5 * COUNT * len(BODY)  # in line and with the consumer, and no third time
                before = len(calls.calls)
                await client.delete(keys.home("bob") + b"0", keys.home("bob") + b":")
                await soon(lambda: has(keys.base + b"0", 0), what="none in line")
                assert sum(calls.calls[before:]) < COUNT * len(BODY) / 10

    play(game())


def test_ack_in_a_dispatched_queue_is_one_call_and_needs_no_leader(etcd: EtcdCluster, queue: str) -> None:
    """Nobody leads the queue while it is acked; whoever leads next removes it from the line."""

    async def game() -> None:
        keys = Keys(queue)
        client = Counting(EtcdAddress(endpoints=tuple(etcd.endpoints)))

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
            before = len(client.calls)
            await consumer.ack(given)
            assert len(client.calls) - before == 1
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
                return {} if queue_state is None else {home: one.host for home, one in queue_state.consumers.items()}

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
