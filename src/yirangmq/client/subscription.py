"""Queue subscription: messages pushed within a credit window, and pipelined acks.

It outlives its connections. After a loss it subscribes again and names the leases that it still holds, so the credit
counts over all connections; then it repeats the unanswered acks. Closing releases messages that were pushed and not
consumed. Coroutines, which ``client.sync_client`` also runs over blocking sockets."""

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

from yirangmq.client.connection import PendingRequest, Pipeline, ReconnectingConnection
from yirangmq.client.session import ConnectionLost, QueueInbox
from yirangmq.client.transport import Transport
from yirangmq.client.values import Batch, Delivery, new_delivery
from yirangmq.core.errors import QueueError
from yirangmq.format.delivery import HasLeaseId, lease_ids
from yirangmq.format.json_codec import loads
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind

MAX_ACKS_IN_FLIGHT = 16
LISTEN_SECONDS = 20.0
"""Interval without data, in seconds, after which the server is pinged."""
NO_TIMEOUT_SECONDS = 10.0 * 366 * 86400


class AsyncClientSubscription:
    """Queue subscription: ``async for delivery in subscription``.

    The iteration ends when the subscription is closed, or when no message arrived for ``idle`` seconds."""

    def __init__(
        self,
        connection: ReconnectingConnection,
        options: messages.Subscribe,
        idle: float | None,
        left: Callable[["AsyncClientSubscription"], None],
    ) -> None:
        self._connection = connection
        self._options = options
        self._idle = NO_TIMEOUT_SECONDS if idle is None else idle
        self._on_close = left
        self._inbox = QueueInbox()
        self._transport: Transport | None = None
        self._last_data_at = 0.0
        """Monotonic time of the last data from the server."""
        self._number = 0
        self._policy = ""
        self._held: dict[str, int] = {}
        self._acks = Pipeline(connection, MAX_ACKS_IN_FLIGHT)
        self._unconfirmed: deque[tuple[PendingRequest, list[str]]] = deque()
        self._refusal: QueueError | None = None
        self._fetch_lock, self._settle_lock = connection.lock(), connection.lock()
        self.ready: deque[Delivery] = deque()
        """Received, but not yet returned to the program."""

    # -- messages ------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> "AsyncClientSubscription":
        return self

    async def __anext__(self) -> Delivery:
        delivery = await self.next()
        if delivery is None:
            raise StopAsyncIteration
        return delivery

    async def next(self, wait: float | None = None) -> Delivery | None:
        """Return the next message. Return None if none arrived within ``wait`` seconds (default: ``idle``), or after
        the end."""
        while True:
            try:
                return self.ready.popleft()
            except IndexError:
                batch = await self._fetch(wait)
            if not batch:
                return None
            self.ready.extend(batch)

    async def batches(self) -> AsyncGenerator[list[Delivery], None]:
        """Iterate over the messages in batches, one per frame: the fastest way to consume and settle many."""
        while batch := await self.next_batch():
            yield batch

    async def next_batch(self, wait: float | None = None) -> list[Delivery]:
        """Return the messages of the next frame; an empty list if none arrived within ``wait`` seconds, or after the
        end."""
        if not self.ready:
            return await self._fetch(wait)
        batch = [*self.ready]
        self.ready.clear()
        return batch

    async def _fetch(self, wait: float | None) -> list[Delivery]:
        async with self._fetch_lock:
            until, tries = time.monotonic() + (self._idle if wait is None else wait), 0
            while True:
                batch = self._take_received()
                left = until - time.monotonic()
                if batch or left <= 0 or self._inbox.is_over:
                    return batch
                try:
                    await self._listen(left)
                except ConnectionLost as lost:
                    tries += 1
                    await self._connection.pause(tries, lost)

    def _take_received(self) -> list[Delivery]:
        if self._inbox.error is not None:
            raise self._inbox.error
        if not self._inbox.entries or self._inbox.is_over:
            return []
        return self._read(self._inbox.entries.popleft())

    def _read(self, pushed: messages.Deliver) -> list[Delivery]:
        self._policy = pushed.policy or self._policy
        batch = Batch(pushed.queue, self._options.consumer, self._policy)
        held = self._held
        for one in pushed.messages:
            held[one.lease] = one.until
        if len(held) > self._options.credit:  # more leases than credit: the oldest have expired
            for lease in sorted(held, key=held.__getitem__)[: len(held) - self._options.credit]:
                held.pop(lease, None)
        return [new_delivery((one, batch)) for one in pushed.messages]

    async def _listen(self, seconds: float) -> None:
        transport = await self._connection.transport()
        if transport is not self._transport:
            await self._subscribe(transport)
        ping_interval = self._connection.ping_interval(LISTEN_SECONDS)
        if not await transport.wait_for_data(self._inbox, min(seconds, ping_interval)):
            if time.monotonic() - self._last_data_at < ping_interval:
                return
            slot = await transport.request(FrameKind.PING, messages.Empty())
            await transport.answer(slot, self._connection.silence_limit)
        self._last_data_at = time.monotonic()

    async def _subscribe(self, transport: Transport) -> None:
        """Subscribe with the leases still held. Then resend the unanswered acks, so that these leases no longer
        count against the credit."""
        async with self._settle_lock:
            self._confirm()
            options = self._options
            wanted = messages.Subscribe(
                options.queue, options.credit, options.span_ms, options.consumer, self._held.copy()
            )
            self._number = await transport.subscribe(self._inbox, wanted)
            self._transport = transport
            self._last_data_at = time.monotonic()
            await self._acks.resume(transport)

    # -- acks ----------------------------------------------------------------------------------------------------------

    async def ack_nowait(self, deliveries: HasLeaseId | Sequence[HasLeaseId]) -> None:
        """Send an ack without waiting for its reply. A refusal is raised by a later call, at the latest by
        ``settle`` or on leaving the ``async with`` block."""
        leases = lease_ids(deliveries)
        if not leases:
            return
        async with self._settle_lock:
            request = PendingRequest(FrameKind.ACK, messages.Settle(leases))
            self._unconfirmed.append((request, leases))
            await self._acks.put(request)
            self._raise_refusal()

    async def settle(self) -> None:
        """Wait until every ack so far is durable."""
        async with self._settle_lock:
            await self._acks.finish()
            self._raise_refusal()

    def _confirm(self) -> None:
        """Process the replies to acks that have arrived."""
        self._acks.collect()
        while self._unconfirmed and self._unconfirmed[0][0].reply is not None:
            request, leases = self._unconfirmed.popleft()
            self.settled(leases)
            try:
                settled: messages.SettleReply = request.value(FrameKind.SETTLED)
                for code, text in settled.errors.values():
                    self._refusal = self._refusal or messages.error_of(code, text)
            except QueueError as error:
                self._refusal = self._refusal or error

    def _raise_refusal(self) -> None:
        self._confirm()
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def settled(self, leases: Iterable[str]) -> None:
        """Forget leases that were settled, here or through the client."""
        for lease in leases:
            self._held.pop(lease, None)

    def extended(self, body: messages.Extend) -> None:
        """Move the end of extended leases."""
        span = body.span_ms
        if span is None:
            span = round(loads(self._policy.encode())["visibilityTimeoutSec"] * 1000) if self._policy else 0
        for lease in body.leases:
            if lease in self._held:
                self._held[lease] += span  # upper bound: the clocks of server and client may differ

    # -- closing ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> "AsyncClientSubscription":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the server's pushing, release messages that were pushed and not consumed, and wait for the acks."""
        self._on_close(self)
        over, self._inbox.is_over = self._inbox.is_over, True
        try:
            if not over:
                await self._cancel()
        except ConnectionLost:
            pass  # nothing is pushed any more, and the leases expire
        finally:
            self.ready.clear()
            await self.settle()

    async def _cancel(self) -> None:
        transport = self._transport
        if transport is None or not transport.is_alive:
            return
        await self._request(transport, FrameKind.CANCEL, messages.Cancel(self._number))
        transport.remove_subscription(self._number)
        async with self._fetch_lock:  # a concurrent ``next`` has returned by now
            unread = [*self.ready]
            while self._inbox.entries:
                unread += self._read(self._inbox.entries.popleft())
        if unread:
            await self._request(
                transport, FrameKind.RELEASE, messages.Settle([delivery.lease_id for delivery in unread])
            )

    async def _request(self, transport: Transport, kind: FrameKind, body: Any) -> None:
        slot = await transport.request(kind, body)
        await transport.answer(slot, self._connection.options.timeout)
