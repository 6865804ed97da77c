"""Consumer and producer of a queue in etcd, which use its keys as any etcd client may, without a server.

The consumer registers a key on its own lease, watches for the copies that the dispatcher puts below it, and acks by
deleting a copy. Before each batch it checks the lease. After a loss it drops all messages that it has not yet delivered
to the program, registers again, and lists the copies.

The producer puts messages into the inbox. If the answer to a put is lost, the producer sends the message again under
the same key; the dispatcher remembers the keys that it has moved. The levels differ in how long the producer waits. On
every level, a confirmed write of etcd is on the disks of a majority of members:

- ``majority``: ``publish`` returns when the message is confirmed.
- ``few``: up to ``MAX_OUTSTANDING`` batches may be unconfirmed; a later ``publish`` or ``flush`` raises the error.
- ``none``: the producer does not wait and does not retry; it counts failures.

Publishing is refused with ``QuotaExceeded`` while etcd is nearly full. Each object belongs to one event loop."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from yirangmq.cluster.etcd.client import Etcd, Txn, get, list_and_watch, prefix_end, put
from yirangmq.cluster.etcd.lease import EtcdLease
from yirangmq.cluster.keys import (
    BODY,
    COPIES,
    NACK,
    REFERENCE,
    DeliveryKey,
    Keys,
    Registration,
    decode_segment,
)
from yirangmq.core import validation
from yirangmq.core.errors import (
    BadInput,
    NotAllowed,
    NotFound,
    QueueError,
    QuotaExceeded,
    StoreError,
    TooLarge,
    Unavailable,
)
from yirangmq.core.message import Reason
from yirangmq.core.ports import Ids
from yirangmq.format.json_codec import dumps, loads

# -- consumer ----------------------------------------------------------------------------------------------------------

SECONDS = 5
"""Default lease of a consumer, in seconds. A consumer that does not renew it within this time has left."""
BATCH = 100
ACKS = 100
READ_BYTES = 1_000_000
"""Target size of one read of bodies from the line, in bytes. The number of messages follows from the size of the
previous ones."""
PAUSE_SECONDS = 0.2


class ReceivedMessage(NamedTuple):
    """A delivered message. It belongs to this consumer until an ack, a nack, or the end of the consumer's lease."""

    number: int
    name: str
    value: bytes
    key: bytes


class EtcdConsumer:
    """Consumer of one queue in etcd.

    With ``copies="reference"`` its copies come without bodies. It reads them from the line, one request for a batch of
    about ``READ_BYTES`` bytes. A leader that puts bodies all the same, because it is older, is understood.

    ``async with Consumer(…) as consumer: async for batch in consumer.batches(): …; await consumer.ack(batch)``"""

    def __init__(
        self, etcd: Etcd, queue: str, client: str, host: str = "", seconds: int = SECONDS, copies: str = BODY
    ) -> None:
        if copies not in COPIES:
            raise BadInput(f"{copies!r} is not one of {', '.join(COPIES)}", field="copies")
        self._etcd = etcd
        self._keys = Keys(validation.check_dispatched_queue(queue))
        self._home = self._keys.home(client)
        self._registration = Registration(host.encode() or client.encode(), copies == REFERENCE)
        self._seconds = seconds
        self._lease: EtcdLease | None = None
        self._arrived: deque[ReceivedMessage] = deque()
        self._arrival = asyncio.Event()
        self._watch_task: asyncio.Task[None] | None = None
        self._known: set[bytes] = set()
        self._mean_bytes = READ_BYTES // 32

    async def __aenter__(self) -> "EtcdConsumer":
        await self._register()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Revoke the lease: unacked messages go to other consumers immediately."""
        await self._stop_watch()
        if self._lease is not None:
            await self._lease.__aexit__()

    async def batches(self, most: int = BATCH) -> AsyncIterator[list[ReceivedMessage]]:
        while True:
            lease = self._lease
            if lease is None or not lease.is_alive:
                await self._register()
                continue
            if not self._arrived:
                await self._wait(lease)
                continue
            try:
                count = await self._read_references(most)
            except Unavailable:  # as long as the lease lives, the messages are this consumer's
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if count and lease.is_alive:
                yield self._take_arrived(count)

    async def ack(self, batch: Sequence[ReceivedMessage]) -> None:
        """Delete the copies of a batch. A repeated delete has no effect, so the request is retried until confirmed."""
        for start in range(0, len(batch), ACKS):
            part, transaction = batch[start : start + ACKS], Txn()
            for one in part:
                transaction.success.add().request_delete_range.key = one.key
            await self._etcd.send(transaction, repeat=True)
            self._known.difference_update(one.key for one in part)

    async def nack(
        self, one: ReceivedMessage, reason: Reason = Reason.HANDLER_ERROR, text: str = "", delay: float | None = None
    ) -> None:
        """Report that processing failed. The queue's policy decides between a retry and the dead letters."""
        nack_fields = {"reasonCode": reason.value, "reasonMessage": text} | (
            {} if delay is None else {"delaySec": delay}
        )
        await self._etcd.put(self._home + NACK + b"/%020d" % one.number, dumps(nack_fields))
        self._known.discard(one.key)

    def _take_arrived(self, most: int) -> list[ReceivedMessage]:
        return [self._arrived.popleft() for _ in range(min(most, len(self._arrived)))]

    async def _read_references(self, most: int) -> int:
        """Read the bodies of the next copies that have none from the line, by one request; return how many messages
        at the front are complete.

        A consumer that asks for bodies also does: the copies may be those of a consumer of the same name that asked for
        references and has just left. If it may not read the line, there was no such consumer.

        A message that is no longer in line was settled by another consumer, or removed by hand: its copy is dropped.
        The messages stay in ``_arrived`` meanwhile, so that a cancelled read loses none."""
        part = list(islice(self._arrived, most))
        wanted = [one for one in part if not one.value][: min(BATCH, max(1, READ_BYTES // self._mean_bytes))]
        if not wanted:
            return len(part)
        part = part[: part.index(wanted[-1]) + 1]
        reads = [get(self._keys.ordered(one.number, one.key.rpartition(b"/")[2])) for one in wanted]
        try:
            answer = await self._etcd.txn([], reads, repeat=True)
        except NotAllowed:
            if self._registration.references:
                raise
            return len(part)
        found = {
            one.key: one._replace(value=kv.value)
            for one, part_answer in zip(wanted, answer.responses, strict=True)
            for kv in part_answer.response_range.kvs
        }
        self._mean_bytes = max(1, sum(len(one.value) for one in found.values()) // len(wanted))
        read = [found[one.key] if not one.value else one for one in part if one.value or one.key in found]
        for _ in part:
            self._arrived.popleft()
        self._arrived.extendleft(reversed(read))
        return len(read)

    async def _wait(self, lease: EtcdLease) -> None:
        """Wait for a message, or for the loss of the lease."""
        self._arrival.clear()
        tasks = [asyncio.ensure_future(self._arrival.wait()), asyncio.ensure_future(lease.lost.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _register(self) -> None:
        await self._stop_watch()
        if self._lease is not None:
            await self._lease.stop()
        self._arrived = deque()
        self._known = set()
        while True:
            try:
                lease = await EtcdLease.grant(self._etcd, self._seconds)
                await self._etcd.txn([], [put(self._home, self._registration.value, lease.id)], repeat=True)
                break
            except (Unavailable, NotFound):
                await asyncio.sleep(PAUSE_SECONDS)
        self._lease = await lease.__aenter__()
        self._watch_task = asyncio.ensure_future(self._watch_copies())

    async def _watch_copies(self) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                async for changes in list_and_watch(self._etcd, self._home, prefix_end(self._home), deletes=False):
                    for one in changes.events:
                        self._on_copy(one if changes.is_listing else one.kv)
            await asyncio.sleep(PAUSE_SECONDS)

    def _on_copy(self, kv: object) -> None:
        key: bytes = kv.key  # type: ignore[attr-defined]
        parsed = self._keys.parsed(key)
        if isinstance(parsed, DeliveryKey) and key not in self._known:
            self._known.add(key)
            value: bytes = kv.value  # type: ignore[attr-defined]
            self._arrived.append(ReceivedMessage(parsed.number, decode_segment(parsed.name), value, key))
            self._arrival.set()

    async def _stop_watch(self) -> None:
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.gather(self._watch_task, return_exceptions=True)
            self._watch_task = None


# -- producer ----------------------------------------------------------------------------------------------------------

Puts = list[tuple[bytes, bytes]]
LEVELS = ("majority", "few", "none")
MAX_MESSAGE_BYTES = 700_000
"""Two copies of a message and its keys must fit into one request of 1.5 MiB."""
BATCH_BYTES = 1_000_000
MAX_OUTSTANDING = 64
TRIES = 30
NEARLY_FULL = 0.6
"""Fraction of etcd's quota from which on publishing is refused. An accepted message needs space for two more copies of
itself, and a full etcd rejects every write."""


class Producer:
    """Producer of one queue in etcd. Used in one event loop; call ``await flush()`` at the end."""

    def __init__(self, etcd: Etcd, queue: str, client: str, ids: Ids, level: str = "majority") -> None:
        if level not in LEVELS:
            raise BadInput(f"{level!r} is not one of {', '.join(LEVELS)}", field="reliability")
        self._etcd = etcd
        self._keys = Keys(validation.check_dispatched_queue(queue))
        self._client = client
        self._ids = ids
        self._level = level
        self._can_read_state = True
        self._full = 0.0
        self._in_flight: set[asyncio.Task[None]] = set()
        self._faults: list[QueueError] = []
        self.failed = 0
        """Messages that could not be sent, counted at level ``none``."""

    async def publish(self, value: bytes, name: str | None = None) -> str:
        [given] = await self.publish_many([value], [name] if name is not None else None)
        return given

    async def publish_many(self, values: Sequence[bytes], given: Sequence[str] | None = None) -> list[str]:
        """Publish messages and return their names.

        They are in line in this order, batch by batch, if no other producer publishes meanwhile."""
        chosen = list(given) if given is not None else self._ids.new(len(values))
        if len(chosen) != len(values):
            raise BadInput(f"there are {len(chosen)} for {len(values)} messages", field="names")
        for value in values:
            if len(value) > MAX_MESSAGE_BYTES:
                text = (
                    f"a message may have {MAX_MESSAGE_BYTES} bytes in a cluster, not {len(value)}; "
                    "keep large ones in files"
                )
                raise TooLarge(f"{text} and send their names", field="value")
        puts = [(self._keys.inbox(self._client, name), value) for name, value in zip(chosen, values, strict=True)]
        await self._check_quota()
        for part in _parts(puts):
            await self._send(part)
        return chosen

    async def flush(self) -> None:
        """Wait until every message is confirmed; raise the first error, if any."""
        while self._in_flight:
            await asyncio.wait(self._in_flight)
        self._raise_first_fault()

    async def _send(self, puts: Puts) -> None:
        if self._level == "majority":
            await self._send_with_retry(puts)
            return
        self._raise_first_fault()
        while len(self._in_flight) >= MAX_OUTSTANDING:
            await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.ensure_future(self._send_with_retry(puts) if self._level == "few" else self._send_once(puts))
        self._in_flight.add(task)
        task.add_done_callback(self._arrived)

    def _arrived(self, task: "asyncio.Task[None]") -> None:
        self._in_flight.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, QueueError):
            self._faults.append(error)

    def _raise_first_fault(self) -> None:
        if self._faults:
            faults, self._faults = self._faults, []
            raise faults[0]

    async def _send_once(self, puts: Puts) -> None:
        try:
            await self._write(puts)
        except QueueError:
            self.failed += len(puts)

    async def _send_with_retry(self, puts: Puts) -> None:
        for left in reversed(range(TRIES)):
            try:
                return await self._write(puts)
            except Unavailable:
                if not left:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)

    async def _write(self, puts: Puts) -> None:
        """Send the puts in one transaction. It also reads etcd's fullness if the user may read the state key."""
        transaction, reads_state = Txn(), self._can_read_state
        for key, value in puts:
            made = transaction.success.add().request_put
            made.key, made.value = key, value
        if reads_state:
            transaction.success.add().request_range.key = self._keys.state
        try:
            answer = await self._etcd.send(transaction)
        except NotAllowed:
            if not reads_state:
                raise
            self._can_read_state = False
            return await self._write(puts)
        if reads_state:
            self._full = _fullness(answer.responses[-1].response_range.kvs)

    async def _check_quota(self) -> None:
        """Raise ``QuotaExceeded`` while etcd is nearly full. The fullness is read again before each refusal."""
        if self._full < NEARLY_FULL or not self._can_read_state:
            return
        self._full = _fullness((await self._etcd.range(self._keys.state)).kvs)
        if self._full >= NEARLY_FULL:
            text = f"etcd is at {self._full:.0%} of its quota, messages are accepted below {NEARLY_FULL:.0%}"
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
