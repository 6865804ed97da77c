"""What a dispatcher hears of its queue. Knows: watches, where things lie. Does not know: what they mean to it.

Its own writes are most of what happens there, and come with the messages in them. So the inbox is watched for puts
alone (a message that its producer withdrew is missed when it is to be moved), and where a consumer has its copies for
deletes alone. For that the range of the consumers is cut in parts at each consumer that registers: its copies, and
what lies between."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any

from yirangmq.cluster.etcd import Etcd
from yirangmq.cluster.keys import Keys, Registration
from yirangmq.cluster.lines import Compacted
from yirangmq.cluster.recovery import Deposed
from yirangmq.core.errors import NotAllowed

PUT, DELETE = 0, 1
MOST_APART = 32
"""Consumers whose copies are watched apart; each is one more watch. Of others we hear all."""


class Hearing:
    """``hear`` is called with each event and ``stir`` after some, ``fail`` once with what ended a watch.

    What one watch hears is in order. A consumer comes and goes in one of them; its acks come by another."""

    def __init__(
        self, etcd: Etcd, keys: Keys, hear: Callable[[Any], None], stir: Callable[[Exception | None], None]
    ) -> None:
        self._etcd = etcd
        self._keys = keys
        self._hear = hear
        self._stir = stir
        self._apart: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, revision: int, homes: Iterable[bytes]) -> None:
        keys = self._keys
        self._watch(keys.leader, b"", revision)
        self._watch(*keys.policy_and_rest(), revision)
        for start, end in keys.inboxes():
            self._watch(start, end, revision, deletes=False)
        known = sorted(homes)
        for start, end in keys.consumers():
            self._part(start, end, revision, [home for home in known if start <= home < end])

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _part(self, start: bytes, end: bytes, revision: int, homes: list[bytes]) -> None:
        """Between these, the copies of each consumer apart."""
        for home in homes[: MOST_APART - len(self._apart)]:
            first, after = home + b"0", home + b":"
            self._apart.add(home)
            self._watch(start, first, revision, parts=True)
            self._watch(first, after, revision, puts=False)
            start = after
        self._watch(start, end, revision, parts=True)

    def _watch(self, start: bytes, end: bytes, revision: int, *, parts: bool = False, **how: bool) -> None:
        task = asyncio.ensure_future(self._listen(start, end, revision, parts, how))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, start: bytes, end: bytes, revision: int, parts: bool, how: dict[str, bool]) -> None:
        watch = self._etcd.watch(start, end, revision=revision, **how)
        try:
            async with aclosing(aiter(watch)) as heard:
                async for events in heard:
                    for event in events:
                        self._hear(event)
                    self._stir(None)
                    if parts and (homes := self._new(events)):
                        self._part(start, end, watch.revision, homes)
                        return
        except (Compacted, NotAllowed, Deposed) as error:
            self._stir(error)

    def _new(self, events: list[Any]) -> list[bytes]:
        """Consumers that registered now, as far as they are to be watched apart."""
        if len(self._apart) >= MOST_APART:
            return []
        found = {self._keys.meaning(event.kv.key) for event in events if event.type == PUT}
        return sorted({one.home for one in found if isinstance(one, Registration)} - self._apart)
