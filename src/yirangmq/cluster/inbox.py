"""What plain clients put into the inboxes of a served store's queues (``/q/{queue}/p/…``, in all spellings), as it
comes. Knows: etcd, the keys. Does not know: what becomes of it; whoever takes it in deletes the key in that commit."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from yirangmq.cluster.etcd import Etcd, changed_at, delete, end_of, get, nested
from yirangmq.cluster.keys import ROOTS, Keys, Message, queue_of
from yirangmq.cluster.lines import Compacted
from yirangmq.core.errors import Unavailable

PAUSE_SECONDS = 0.2
READ_AT_ONCE = 32
PUT = 0


class Put(NamedTuple):
    """A message in an inbox, as of ``revision``."""

    queue: str
    key: bytes
    sender: bytes
    name: bytes
    revision: int
    value: bytes

    @property
    def removal(self) -> Any:
        """Of the key, unless its producer has written it anew meanwhile: that is another message."""
        return nested([changed_at(self.key, self.revision)], [delete(self.key)])


class Inbox:
    """``give`` is called with what was found, in the order of arrival; what is not taken in is given again by the
    next one who leads."""

    def __init__(self, etcd: Etcd, give: Callable[[list[Put]], None]) -> None:
        self._etcd = etcd
        self._give = give

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except (Unavailable, Compacted):
                await asyncio.sleep(PAUSE_SECONDS)

    async def _follow(self) -> None:
        revision = int((await self._etcd.range(ROOTS[0], limit=1, keys_only=True)).header.revision)
        await self._list(revision)
        watches = [asyncio.ensure_future(self._watch(root, revision + 1)) for root in ROOTS]
        try:
            await asyncio.gather(*watches)
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _list(self, revision: int) -> None:
        found: list[tuple[int, bytes]] = []
        for root in ROOTS:
            async for page in self._etcd.pages(root, end_of(root), revision=revision, keys_only=True):
                found += [(kv.mod_revision, kv.key) for kv in page if _meaning(kv.key) is not None]
        found.sort()
        for at in range(0, len(found), READ_AT_ONCE):
            part = found[at : at + READ_AT_ONCE]
            answer = await self._etcd.txn([], [get(key) for _, key in part], repeat=True)
            self._take([kv for one in answer.responses for kv in one.response_range.kvs])

    async def _watch(self, root: bytes, revision: int) -> None:
        async for events in self._etcd.watch(root, end_of(root), revision=revision, deletes=False):
            self._take([event.kv for event in events if event.type == PUT])

    def _take(self, kvs: list[Any]) -> None:
        puts: list[Put] = []
        for kv in kvs:
            found = _meaning(kv.key)
            if found is not None:
                queue, message = found
                puts.append(Put(queue, kv.key, message.sender, message.name, kv.mod_revision, kv.value))
        if puts:
            self._give(puts)


def _meaning(key: bytes) -> tuple[str, Message] | None:
    queue = queue_of(key)
    if queue is None:
        return None
    found = Keys(queue).meaning(key)
    return (queue, found) if isinstance(found, Message) else None
