"""Taking messages of a queue as any etcd client may: register, watch, work, delete. Knows: etcd, the keys, its own
lease. Does not know: the dispatcher.

Whoever was away too long has lost what it had: before each batch the lease is looked at, and after a loss everything
that was not begun is forgotten, and what is there is listed anew."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from yirangmq.cluster.etcd import Etcd, Txn, end_of, put
from yirangmq.cluster.following import follow
from yirangmq.cluster.keys import NACK, Delivery, Keys, text_of
from yirangmq.cluster.leases import Lease
from yirangmq.core import validation
from yirangmq.core.errors import NotFound, Unavailable
from yirangmq.core.message import Reason
from yirangmq.format.json_codec import dumps

SECONDS = 5
"""A consumer that is not heard of for so long has left."""
BATCH = 100
ACKS = 100
PAUSE_SECONDS = 0.2


class Given(NamedTuple):
    """A message that is ours until we ack or refuse it, or our lease ends."""

    number: int
    name: str
    value: bytes
    key: bytes


class Consumer:
    """``async with Consumer(…) as consumer: async for batch in consumer.batches(): …; await consumer.ack(batch)``"""

    def __init__(self, etcd: Etcd, queue: str, client: str, host: str = "", seconds: int = SECONDS) -> None:
        self._etcd = etcd
        self._keys = Keys(validation.check_queue(queue))
        self._home = self._keys.home(client)
        self._host = host.encode() or client.encode()
        self._seconds = seconds
        self._lease: Lease | None = None
        self._arrived: deque[Given] = deque()
        self._news = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._known: set[bytes] = set()

    async def __aenter__(self) -> "Consumer":
        await self._register()
        return self

    async def __aexit__(self, *_: object) -> None:
        """What was not acked goes to others at once."""
        await self._stop_following()
        if self._lease is not None:
            await self._lease.__aexit__()

    async def batches(self, most: int = BATCH) -> AsyncIterator[list[Given]]:
        while True:
            lease = self._lease
            if lease is None or not lease.is_alive:
                await self._register()
                continue
            if not (batch := self._taken(most)):
                await self._wait(lease)
                continue
            yield batch

    async def ack(self, batch: Sequence[Given]) -> None:
        """Deleting what is deleted does no harm, so this is tried until it is done."""
        for start in range(0, len(batch), ACKS):
            part, transaction = batch[start : start + ACKS], Txn()
            for one in part:
                transaction.success.add().request_delete_range.key = one.key
            await self._etcd.send(transaction, repeat=True)
            self._known.difference_update(one.key for one in part)

    async def nack(
        self, one: Given, reason: Reason = Reason.HANDLER_ERROR, text: str = "", delay: float | None = None
    ) -> None:
        """It could not be done: tried again by the queue's policy, or buried."""
        told = {"reasonCode": reason.value, "reasonMessage": text} | ({} if delay is None else {"delaySec": delay})
        await self._etcd.put(self._home + NACK + b"/%020d" % one.number, dumps(told))
        self._known.discard(one.key)

    def _taken(self, most: int) -> list[Given]:
        return [self._arrived.popleft() for _ in range(min(most, len(self._arrived)))]

    async def _wait(self, lease: Lease) -> None:
        """For a message, or for the loss of the lease."""
        self._news.clear()
        tasks = [asyncio.ensure_future(self._news.wait()), asyncio.ensure_future(lease.lost.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _register(self) -> None:
        await self._stop_following()
        if self._lease is not None:
            await self._lease.stop()
        self._arrived = deque()
        self._known = set()
        while True:
            try:
                lease = await Lease.grant(self._etcd, self._seconds)
                await self._etcd.txn([], [put(self._home, self._host, lease.id)], repeat=True)
                break
            except (Unavailable, NotFound):
                await asyncio.sleep(PAUSE_SECONDS)
        self._lease = await lease.__aenter__()
        self._following = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                async for changes in follow(self._etcd, self._home, end_of(self._home), deletes=False):
                    for one in changes.events:
                        self._hear(one if changes.anew else one.kv)
            await asyncio.sleep(PAUSE_SECONDS)

    def _hear(self, kv: object) -> None:
        key: bytes = kv.key  # type: ignore[attr-defined]
        meaning = self._keys.meaning(key)
        if isinstance(meaning, Delivery) and key not in self._known:
            self._known.add(key)
            value: bytes = kv.value  # type: ignore[attr-defined]
            self._arrived.append(Given(meaning.number, text_of(meaning.name), value, key))
            self._news.set()

    async def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None
