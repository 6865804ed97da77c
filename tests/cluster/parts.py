"""What the tests of the cluster share: a client for a cluster of theirs, and waiting for something to be so."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from tests.patience import PATIENCE
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.cluster.address import Address
from yirangmq.cluster.etcd import Etcd, end_of
from yirangmq.cluster.node import Node, Settings
from yirangmq.core.ports import Clock

Answer = TypeVar("Answer")


def play(game: Coroutine[Any, Any, Answer]) -> Answer:
    async def timed() -> Answer:
        async with asyncio.timeout(2 * PATIENCE):
            return await game

    return asyncio.run(timed())


def at(*endpoints: str) -> Etcd:
    return Etcd(Address(endpoints=tuple(endpoints)))


@contextlib.asynccontextmanager
async def running(
    endpoints: Sequence[str], name: str = "here", clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Node]:
    """A node in this process, with an etcd client of its own."""
    address = Address(endpoints=tuple(endpoints))
    stop = asyncio.Event()
    given = Settings(name=name, **{"lease": 10, "look": 0.05, "compact": 0.0, **settings})
    async with Etcd(address) as client:
        node = Node(client, address, clock or SystemClock(), TimeOrderedIds(), given)
        task = asyncio.ensure_future(node.run(stop))
        try:
            yield node
        finally:
            stop.set()
            await asyncio.wait_for(task, PATIENCE)


async def keys_of(client: Etcd, prefix: bytes) -> list[bytes]:
    found = await client.range(prefix, end_of(prefix), keys_only=True)
    return [kv.key for kv in found.kvs]
