"""The asyncio face of a store opened in this process: the same verbs, and a loop that goes on meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import yirangmq
from tests.support.wait import PATIENCE, soon
from yirangmq import NewMessage, NotFound
from yirangmq.broker.async_queues import AsyncQueues
from yirangmq.broker.queues import Queues

Story = Callable[[AsyncQueues], Awaitable[None]]


@pytest.fixture(params=["sqlite:queue.db", "files:queues"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    scheme, _, name = str(request.param).partition(":")
    return f"{scheme}:{tmp_path / name}"


def tell(address: str, story: Story) -> None:
    async def told() -> None:
        async with yirangmq.connect_async(address) as queues:
            assert isinstance(queues, AsyncQueues)
            await story(queues)

    asyncio.run(told())


def test_async_queues_publish_lease_and_ack_a_message(address: str) -> None:
    async def story(queues: AsyncQueues) -> None:
        await queues.publish("mail", {"to": "ann"})
        [delivery] = await queues.lease("mail")
        assert delivery.value() == {"to": "ann"}
        await queues.ack(delivery.lease_id)
        assert (await queues.counts("mail")).acked == 1
        with pytest.raises(NotFound):
            await queues.show("mail", "nobody")

    tell(address, story)


def test_async_queues_lease_waits_until_a_message_is_published(address: str) -> None:
    async def story(queues: AsyncQueues) -> None:
        waiting = asyncio.create_task(queues.lease("mail", wait=PATIENCE))
        await asyncio.sleep(0)
        await queues.publish("mail", 1)
        assert [delivery.value() for delivery in await waiting] == [1]

    tell(address, story)


def test_async_queues_cancelled_lease_returns_its_message_without_counting_an_attempt(address: str) -> None:
    async def story(queues: AsyncQueues) -> None:
        waiting = asyncio.create_task(queues.lease("mail", wait=1))
        await soon(lambda: queues._core._waiters._listening, what="a lease that waits")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await queues.publish("mail", NewMessage(payload=1, id="one"))
        [delivery] = await queues.lease("mail", wait=PATIENCE)
        assert (delivery.id, delivery.attempt) == ("one", 1)

    tell(address, story)


def test_async_queues_allow_more_waiting_leases_than_cpu_cores(address: str) -> None:
    async def story(queues: AsyncQueues) -> None:
        waiting = [asyncio.create_task(queues.lease("mail", wait=PATIENCE)) for _ in range(20)]
        await asyncio.sleep(0)
        await queues.publish_many("mail", range(20))
        got = await asyncio.gather(*waiting)
        assert sorted(one.value() for [one] in got) == list(range(20))

    tell(address, story)


def test_async_queues_subscription_and_walk_iterate_over_messages(address: str) -> None:
    async def story(queues: AsyncQueues) -> None:
        await queues.publish_many("mail", range(5))
        assert [look.message.id async for look in queues.walk("mail", "ready", 2)]
        seen = []
        async with queues.subscribe("mail", idle=0) as subscription:
            async for delivery in subscription:
                seen.append(delivery.value())
                await subscription.ack_nowait(delivery)
        assert seen == [0, 1, 2, 3, 4]
        assert (await queues.counts("mail")).acked == 5

    tell(address, story)


def test_async_queues_have_every_operation_of_queues() -> None:
    inside = {
        "publish_envelopes",
        "bulk",
        "run",
        "read",
        "add_listener",
        "now_ms",
        "wall_ms",
        "ahead_ms",
        "check",
    }
    verbs = {name for name in vars(Queues) if not name.startswith("_")} - inside
    assert verbs <= set(dir(AsyncQueues))
