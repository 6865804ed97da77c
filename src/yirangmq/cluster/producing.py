"""Putting messages into the inbox of a queue. Knows: etcd, the keys, how sure a producer wants to be. Does not know:
who moves them.

``majority``: a message was written to disk by more than half of the members when ``publish`` returns. ``few``: the
same in the end, but up to ``OUTSTANDING`` are on their way at once, and what went wrong is raised by a later
``publish`` or by ``flush``. ``none``: nothing is waited for and nothing is tried again; what went wrong is counted.
etcd itself knows no write that fewer than half have: the levels differ in what the producer waits for.

A message whose answer was lost is sent again under the same key: the dispatcher knows the keys it has moved."""

import asyncio
from collections.abc import Sequence
from typing import Any

from yirangmq.cluster.consuming import BATCH, PAUSE_SECONDS
from yirangmq.cluster.etcd import Etcd, Txn
from yirangmq.cluster.keys import Keys
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotAllowed, QueueError, QuotaExceeded, StoreError, TooLarge, Unavailable
from yirangmq.core.ports import Ids
from yirangmq.format.json_codec import loads

Puts = list[tuple[bytes, bytes]]
LEVELS = ("majority", "few", "none")
MOST_BYTES = 700_000
"""Two copies of a message and its keys must fit into one request of 1.5 MiB."""
BATCH_BYTES = 1_000_000
OUTSTANDING = 64
TRIES = 30
NEARLY_FULL = 0.6
"""Of etcd's quota: a message that is accepted needs room for two more copies of itself, and etcd that is full takes
nothing."""


class Producer:
    """Use it in one event loop; ``await flush()`` at the end."""

    def __init__(self, etcd: Etcd, queue: str, client: str, ids: Ids, level: str = "majority") -> None:
        if level not in LEVELS:
            raise BadInput(f"{level!r} is not one of {', '.join(LEVELS)}", field="reliability")
        self._etcd = etcd
        self._keys = Keys(validation.check_queue(queue))
        self._client = client
        self._ids = ids
        self._level = level
        self._sees_state = True
        self._full = 0.0
        self._on_their_way: set[asyncio.Task[None]] = set()
        self._faults: list[QueueError] = []
        self.failed = 0
        """Of ``none``: messages whose sending went wrong."""

    async def publish(self, value: bytes, name: str | None = None) -> str:
        [given] = await self.publish_many([value], [name] if name is not None else None)
        return given

    async def publish_many(self, values: Sequence[bytes], given: Sequence[str] | None = None) -> list[str]:
        """The names they have. They are in line in this order if nobody else sends, batch by batch."""
        chosen = list(given) if given is not None else self._ids.new(len(values))
        if len(chosen) != len(values):
            raise BadInput(f"there are {len(chosen)} for {len(values)} messages", field="names")
        for value in values:
            if len(value) > MOST_BYTES:
                text = f"a message may have {MOST_BYTES} bytes in a cluster, not {len(value)}; keep large ones in files"
                raise TooLarge(f"{text} and send their names", field="value")
        puts = [(self._keys.inbox(self._client, name), value) for name, value in zip(chosen, values, strict=True)]
        await self._check_room()
        for part in _parts(puts):
            await self._send(part)
        return chosen

    async def flush(self) -> None:
        """All are there, or the first of what went wrong."""
        while self._on_their_way:
            await asyncio.wait(self._on_their_way)
        self._complain()

    async def _send(self, puts: Puts) -> None:
        if self._level == "majority":
            await self._insist(puts)
            return
        self._complain()
        while len(self._on_their_way) >= OUTSTANDING:
            await asyncio.wait(self._on_their_way, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.ensure_future(self._insist(puts) if self._level == "few" else self._once(puts))
        self._on_their_way.add(task)
        task.add_done_callback(self._arrived)

    def _arrived(self, task: "asyncio.Task[None]") -> None:
        self._on_their_way.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, QueueError):
            self._faults.append(error)

    def _complain(self) -> None:
        if self._faults:
            faults, self._faults = self._faults, []
            raise faults[0]

    async def _once(self, puts: Puts) -> None:
        try:
            await self._write(puts)
        except QueueError:
            self.failed += len(puts)

    async def _insist(self, puts: Puts) -> None:
        for left in reversed(range(TRIES)):
            try:
                return await self._write(puts)
            except Unavailable:
                if not left:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)

    async def _write(self, puts: Puts) -> None:
        """How full etcd is comes back with the answer, if we may see it: still one call."""
        transaction, look = Txn(), self._sees_state
        for key, value in puts:
            made = transaction.success.add().request_put
            made.key, made.value = key, value
        if look:
            transaction.success.add().request_range.key = self._keys.state
        try:
            answer = await self._etcd.send(transaction)
        except NotAllowed:
            if not look:
                raise
            self._sees_state = False
            return await self._write(puts)
        if look:
            self._full = _fullness(answer.responses[-1].response_range.kvs)

    async def _check_room(self) -> None:
        """Refused while etcd is nearly full; looked up anew before each refusal."""
        if self._full < NEARLY_FULL or not self._sees_state:
            return
        self._full = _fullness((await self._etcd.range(self._keys.state)).kvs)
        if self._full >= NEARLY_FULL:
            text = f"etcd is at {self._full:.0%} of its quota, messages are taken below {NEARLY_FULL:.0%}"
            raise QuotaExceeded(f"{text}; try again in 5 s")


def _parts(puts: Puts) -> list[Puts]:
    parts: list[Puts] = []
    size = 0
    for one in puts:
        if not parts or len(parts[-1]) >= BATCH or size + len(one[1]) > BATCH_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += len(one[1])
    return parts


def _fullness(kvs: Any) -> float:
    try:
        return float(loads(kvs[0].value)["full"]) if kvs else 0.0
    except (BadInput, StoreError, KeyError, TypeError, ValueError):
        return 0.0
