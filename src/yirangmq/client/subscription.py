"""Queue subscription: messages pushed within a credit window, and pipelined acks.

It outlives its connections. After a loss it subscribes again and names the leases that it still holds, so the credit
counts over all connections; then it repeats the unanswered acks. Closing releases messages that were pushed and not
consumed. Coroutines, which ``client.sync_client`` also runs over blocking sockets."""

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

from yirangmq.client.connection import Courier, Errand, Pipeline
from yirangmq.client.session import Lost, Stream
from yirangmq.client.transport import Line
from yirangmq.client.values import Batch, Delivery, new_delivery
from yirangmq.core.errors import QueueError
from yirangmq.format.delivery import Leased, lease_ids
from yirangmq.format.json_codec import loads
from yirangmq.wire import messages
from yirangmq.wire.frames import Kind

ACKS_ON_THEIR_WAY = 16
LISTEN_SECONDS = 20.0
"""Interval without data, in seconds, after which the server is pinged."""
FOREVER = 10.0 * 366 * 86400


class AsyncSubscription:
    """Queue subscription: ``async for delivery in subscription``.

    The iteration ends when the subscription is closed, or when no message arrived for ``idle`` seconds."""

    def __init__(
        self,
        courier: Courier,
        terms: messages.Subscribe,
        idle: float | None,
        left: Callable[["AsyncSubscription"], None],
    ) -> None:
        self._courier = courier
        self._terms = terms
        self._idle = FOREVER if idle is None else idle
        self._left = left
        self._stream = Stream()
        self._line: Line | None = None
        self._heard_at = 0.0
        """Monotonic time of the last data from the server."""
        self._number = 0
        self._policy = ""
        self._held: dict[str, int] = {}
        self._acks = Pipeline(courier, ACKS_ON_THEIR_WAY)
        self._unconfirmed: deque[tuple[Errand, list[str]]] = deque()
        self._refusal: QueueError | None = None
        self._taking, self._settling = courier.turn(), courier.turn()
        self.ready: deque[Delivery] = deque()
        """Received, but not yet returned to the program."""

    # -- messages ------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> "AsyncSubscription":
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
        async with self._taking:
            until, tries = time.monotonic() + (self._idle if wait is None else wait), 0
            while True:
                batch = self._taken()
                left = until - time.monotonic()
                if batch or left <= 0 or self._stream.is_over:
                    return batch
                try:
                    await self._listen(left)
                except Lost as lost:
                    tries += 1
                    await self._courier.pause(tries, lost)

    def _taken(self) -> list[Delivery]:
        if self._stream.error is not None:
            raise self._stream.error
        if not self._stream.inbox or self._stream.is_over:
            return []
        return self._read(self._stream.inbox.popleft())

    def _read(self, pushed: messages.Deliver) -> list[Delivery]:
        self._policy = pushed.policy or self._policy
        batch = Batch(pushed.queue, self._terms.consumer, self._policy)
        held = self._held
        for one in pushed.messages:
            held[one.lease] = one.until
        if len(held) > self._terms.credit:  # more leases than credit: the oldest have expired
            for lease in sorted(held, key=held.__getitem__)[: len(held) - self._terms.credit]:
                held.pop(lease, None)
        return [new_delivery((one, batch)) for one in pushed.messages]

    async def _listen(self, seconds: float) -> None:
        line = await self._courier.line()
        if line is not self._line:
            await self._subscribe(line)
        patience = self._courier.attention(LISTEN_SECONDS)
        if not await line.listen(self._stream, min(seconds, patience)):
            if time.monotonic() - self._heard_at < patience:
                return
            slot = await line.ask(Kind.PING, messages.Empty())
            await line.answer(slot, self._courier.quiet)
        self._heard_at = time.monotonic()

    async def _subscribe(self, line: Line) -> None:
        """Subscribe with the leases still held. Then resend the unanswered acks, so that these leases no longer
        count against the credit."""
        async with self._settling:
            self._confirm()
            terms = self._terms
            wanted = messages.Subscribe(terms.queue, terms.credit, terms.span_ms, terms.consumer, self._held.copy())
            self._number = await line.subscribe(self._stream, wanted)
            self._line = line
            self._heard_at = time.monotonic()
            await self._acks.resume(line)

    # -- acks ----------------------------------------------------------------------------------------------------------

    async def ack_nowait(self, deliveries: Leased | Sequence[Leased]) -> None:
        """Send an ack without waiting for its reply. A refusal is raised by a later call, at the latest by
        ``settle`` or on leaving the ``async with`` block."""
        leases = lease_ids(deliveries)
        if not leases:
            return
        async with self._settling:
            errand = Errand(Kind.ACK, messages.Settle(leases))
            self._unconfirmed.append((errand, leases))
            await self._acks.put(errand)
            self._raise_refusal()

    async def settle(self) -> None:
        """Wait until every ack so far is durable."""
        async with self._settling:
            await self._acks.finish()
            self._raise_refusal()

    def _confirm(self) -> None:
        """Process the replies to acks that have arrived."""
        self._acks.collect()
        while self._unconfirmed and self._unconfirmed[0][0].reply is not None:
            errand, leases = self._unconfirmed.popleft()
            self.settled(leases)
            try:
                settled: messages.Settled = errand.value(Kind.SETTLED)
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

    async def __aenter__(self) -> "AsyncSubscription":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the server's pushing, release messages that were pushed and not consumed, and wait for the acks."""
        self._left(self)
        over, self._stream.is_over = self._stream.is_over, True
        try:
            if not over:
                await self._cancel()
        except Lost:
            pass  # nothing is pushed any more, and the leases expire
        finally:
            self.ready.clear()
            await self.settle()

    async def _cancel(self) -> None:
        line = self._line
        if line is None or not line.is_alive:
            return
        await self._say(line, Kind.CANCEL, messages.Cancel(self._number))
        line.cancelled(self._number)
        async with self._taking:  # a concurrent ``next`` has returned by now
            unread = [*self.ready]
            while self._stream.inbox:
                unread += self._read(self._stream.inbox.popleft())
        if unread:
            await self._say(line, Kind.RELEASE, messages.Settle([delivery.lease_id for delivery in unread]))

    async def _say(self, line: Line, kind: Kind, body: Any) -> None:
        slot = await line.ask(kind, body)
        await line.answer(slot, self._courier.terms.timeout)
