"""One client, many users: threads on the blocking face, tasks on the other."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.client.parts import SILENCE, SOON
from tests.support.server import RunningServer
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect, connect_async
from yirangmq.client.sync_client import Client


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with connect(server.unix, timeout=PATIENCE) as client:
        yield client


def together(work: Callable[[int], Any], count: int = 16) -> list[Any]:
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(work, range(count), timeout=PATIENCE))


# -- threads --------------------------------------------------------------------------------------------------------


def test_shared_client_gives_every_thread_its_own_answers(client: Client) -> None:
    def work(number: int) -> list[Any]:
        for n in range(20):
            client.publish(f"q{number}", [number, n])
        return [delivery.value() for delivery in client.lease(f"q{number}", 100)]

    assert together(work) == [[[number, n] for n in range(20)] for number in range(16)]


def test_shared_client_is_not_blocked_by_a_thread_that_waits_for_a_lease(client: Client) -> None:
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(client.lease, "mail", wait=PATIENCE) for _ in range(4)]
        assert client.ping() < SOON
        for n in range(4):
            client.publish("mail", n)
        got = [delivery.value() for one in waiting for delivery in one.result(PATIENCE)]
    assert sorted(got) == [0, 1, 2, 3]


def test_shared_subscription_delivers_each_message_to_one_of_its_threads(client: Client) -> None:
    client.publish_many("mail", range(2000))
    with client.subscribe("mail", 100, idle=SILENCE) as subscription:

        def work(number: int) -> list[Any]:
            got = []
            for delivery in subscription:
                got.append(delivery.value())
                subscription.ack_nowait(delivery)
            return got

        got = together(work, 4)
    assert sorted(value for part in got for value in part) == list(range(2000))
    assert client.counts("mail").done == 2000


def test_subscription_close_ends_the_loop_that_waits_on_it(client: Client) -> None:
    subscription = client.subscribe("mail")
    client.publish("mail", 1)
    first = threading.Event()
    got: list[Any] = []

    def work() -> None:
        for delivery in subscription:
            got.append(delivery.value())
            first.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert first.wait(PATIENCE)
    subscription.close()
    thread.join(PATIENCE)
    assert (got, thread.is_alive()) == ([1], False)


def test_client_close_ends_every_waiting_lease_request(server: RunningServer) -> None:
    client = connect(server.unix)
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(client.lease, "mail", wait=PATIENCE) for _ in range(3)]
        client.ping()
        client.close()
        for one in waiting:
            assert isinstance(one.exception(SOON), Exception)


def test_backpressure_of_unread_pushes_does_not_block_publishing(client: Client) -> None:
    """More is pushed than the sockets hold, nobody reads it, and more is published than they hold."""
    payload = b"x" * 100_000
    client.publish_many("mail", [payload] * 60)
    subscription = client.subscribe("mail", 60)
    next(subscription)
    assert len(client.publish_many("mail", [payload] * 60)) == 60
    assert client.counts("mail").published == 120


# -- tasks ----------------------------------------------------------------------------------------------------------


def test_shared_async_client_serves_all_tasks_on_one_connection(server: RunningServer) -> None:
    async def scenario() -> None:
        async with connect_async(server.unix) as client:
            stored = await asyncio.gather(*(client.publish("mail", n) for n in range(300)))
            assert len({one.id for one in stored}) == 300
            assert len(await client.call("connections")) == 1
            batches = await asyncio.gather(*(client.lease("mail", 10) for _ in range(30)))
            assert sorted(one.value() for batch in batches for one in batch) == list(range(300))

    asyncio.run(scenario())


def test_lease_request_that_was_cancelled_takes_no_message(server: RunningServer) -> None:
    async def scenario() -> None:
        async with connect_async(server.unix) as client:
            waiting = asyncio.create_task(client.lease("mail", wait=PATIENCE))
            await client.ping()
            waiting.cancel()
            await asyncio.wait([waiting])
            await client.publish("mail", 1)
            [delivery] = await client.lease("mail", wait=PATIENCE)
            assert (delivery.value(), delivery.attempt) == (1, 1)

    asyncio.run(scenario())


def test_subscription_loop_runs_concurrently_with_other_calls(server: RunningServer) -> None:
    async def scenario() -> None:
        client = await connect_async(server.tcp)
        async with client, client.subscribe("mail", 10) as subscription:
            publishing = asyncio.create_task(client.publish_many("mail", range(100)))
            got = []
            async for delivery in subscription:
                got.append(delivery.value())
                await client.ack(delivery.lease_id)
                if len(got) == 100:
                    break
            await publishing
            assert got == list(range(100))

    asyncio.run(scenario())


def test_shared_subscription_delivers_each_message_to_one_of_its_tasks(server: RunningServer) -> None:
    async def work(subscription: Any) -> list[Any]:
        got = []
        async for delivery in subscription:
            got.append(delivery.value())
            await subscription.ack_nowait(delivery)
        return got

    async def scenario() -> None:
        async with connect_async(server.unix) as client:
            await client.publish_many("mail", range(500))
            async with client.subscribe("mail", 20, idle=SILENCE) as subscription:
                got = await asyncio.gather(*(work(subscription) for _ in range(5)))
            assert sorted(value for part in got for value in part) == list(range(500))
            assert (await client.counts("mail")).done == 500

    asyncio.run(scenario())


def test_subscription_batches_contain_all_messages_and_respect_the_credit(
    server: RunningServer, client: Client
) -> None:
    async def scenario() -> list[int]:
        async with connect_async(server.unix) as other, other.subscribe("mail", 30, idle=SILENCE) as subscription:
            sizes = []
            async for batch in subscription.batches():
                sizes.append(len(batch))
                await subscription.ack_nowait(batch)
            return sizes

    client.publish_many("mail", range(90))
    sizes = asyncio.run(scenario())
    assert sum(sizes) == 90
    assert max(sizes) <= 30
    client.publish_many("mail", range(90))
    with client.subscribe("mail", 30, idle=SILENCE) as subscription:
        taken = 0
        for batch in subscription.batches():
            taken += len(batch)
            subscription.ack_nowait(batch)
    assert taken == 90
