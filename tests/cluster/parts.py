"""What the tests of the cluster share: a client for a cluster of theirs, and waiting for something to be so."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from yirangmq.cluster.address import Address
from yirangmq.cluster.etcd import Etcd

Answer = TypeVar("Answer")
PATIENCE = 30.0


def play(game: Coroutine[Any, Any, Answer]) -> Answer:
    async def timed() -> Answer:
        async with asyncio.timeout(3 * PATIENCE):
            return await game

    return asyncio.run(timed())


def at(*endpoints: str) -> Etcd:
    return Etcd(Address(endpoints=tuple(endpoints)))


async def until(holds: Callable[[], bool | Awaitable[bool]], what: str = "", seconds: float = PATIENCE) -> None:
    """Wait for it, and fail with ``what`` if it does not come."""
    end = time.monotonic() + seconds
    while True:
        found = holds()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < end, f"did not come: {what or holds}"
        await asyncio.sleep(0.02)
