"""Asyncio client: every queue operation as a coroutine over one reconnecting connection.

``client.sync_client`` runs the same coroutines over blocking sockets. Operations, arguments and results are those of
``broker.queues``. An operation connects if the client is not connected. It returns when its effect is durable on the
server."""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

from yirangmq.client import admin_calls, producer
from yirangmq.client.admin_calls import MAX_PER_CALL, Results
from yirangmq.client.connection import PendingRequest, ReconnectingConnection
from yirangmq.client.producer import AsyncClientSender, FrameBatch
from yirangmq.client.subscription import AsyncClientSubscription
from yirangmq.client.topics import AsyncTopics
from yirangmq.client.values import Batch, Delivery, new_delivery
from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.message import Reason, check_reason
from yirangmq.core.ports import AddResult, Ids
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind
from yirangmq.wire.messages import OutgoingMessageBody

MAX_POLL_SECONDS = 30.0
"""Upper bound of one waiting lease request, in seconds. The client repeats the request after that, so that a
silently lost connection is noticed."""


class AsyncClient:
    """Asyncio client for the queues of a server.

    ``await`` it or use ``async with`` to connect immediately; otherwise the first operation connects."""

    def __init__(self, connection: ReconnectingConnection, ids: Ids, consumer: str) -> None:
        self._connection = connection
        self._ids = ids
        self._subscriptions: set[AsyncClientSubscription] = set()
        self._senders: set[AsyncClientSender] = set()
        self.consumer = consumer
        self.topics = AsyncTopics(connection, self)
        """Publish to topics and subscribe to them."""

    @property
    def dead_letters(self) -> admin_calls.AsyncDeadLetters:
        """Dead letters of all queues: list, show, count, redrive, quarantine, purge."""
        return admin_calls.AsyncDeadLetters(self)

    # -- the connection -----------------------------------------------------------------------------------------------

    async def connect(self) -> "AsyncClient":
        """Connect now instead of at the first operation.

        Raises ``Unreachable`` if no server answers, ``NotAllowed`` for a wrong token."""
        await self._connection.transport()
        return self

    def __await__(self) -> Generator[Any, None, "AsyncClient"]:
        return self.connect().__await__()

    async def __aenter__(self) -> "AsyncClient":
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for pending replies, release messages that were pushed and not consumed, and disconnect."""
        async with AsyncExitStack() as each:  # close all even if one of them raises, in reverse order
            each.push_async_callback(self._connection.close)
            ends = [
                self.topics.close,
                *(one.close for one in self._subscriptions),
                *(one.close for one in self._senders),
            ]
            for end in ends:
                each.push_async_callback(end)

    async def ping(self) -> float:
        """Return the round-trip time to the server, in seconds."""
        began = time.perf_counter()
        await self._request(FrameKind.PING, messages.Empty(), FrameKind.PONG)
        return time.perf_counter() - began

    async def durability(self) -> str:
        await self._connection.transport()
        return self._connection.welcome.durability

    async def call(self, method: str, /, **values: Any) -> Any:
        """Call any method of the server by name, with plain values. The call is repeated if its reply is lost."""
        result: messages.Result = await self._request(FrameKind.CALL, messages.Call(method, values), FrameKind.RESULT)
        return result.value

    async def _request(self, kind: FrameKind, body: Any, wanted: FrameKind, wait_seconds: float = 0) -> Any:
        request = await self._connection.execute(
            PendingRequest(kind, body), self._connection.options.timeout + wait_seconds
        )
        return request.value(wanted)

    # -- producing ------------------------------------------------------------------------------------------------

    async def publish(self, queue: str, message: object) -> AddResult:
        """Publish one message: any JSON value, bytes, or a ``NewMessage``. Returns when it is durable."""
        validation.check_queue(queue)
        made = [producer.outgoing(queue, message, self._ids.new(1)[0])]
        request = PendingRequest(FrameKind.PUBLISH, messages.Publish(queue, made))
        await self._connection.execute(request, self._connection.options.timeout)
        return producer.receipts(made, request.value(FrameKind.STORED), request.resent)[0]

    async def publish_many(self, queue: str, messages: Iterable[object]) -> list[AddResult]:
        """Publish any number of messages in order, in frames, with several frames in flight.

        A list is validated as a whole before the first frame is sent; any other iterable is consumed while sending.
        If the server refuses a frame, no later frame is sent. The error's ``receipts`` say which messages were
        stored."""
        validation.check_queue(queue)
        validation.check_many(messages, "messages")
        made = producer.all_outgoing(queue, messages, self._ids)
        return await self._publish(queue, list(made) if producer.needs_validation(messages) else made)

    async def publish_text(
        self,
        queue: str,
        texts: Iterable[bytes],
        *,
        delay: float | None = 0,
        ttl: float | None = None,
        read_as: str | None = None,
    ) -> list[AddResult]:
        """Publish JSON documents. One with ``messageId`` and ``payload`` is an envelope, any other is a payload.

        ``read_as="envelope"`` or ``read_as="payload"`` decides that for all of them."""
        validation.check_queue(queue)
        batch = list(texts)
        given = zip(batch, self._ids.new(len(batch)), strict=True)
        made = [producer.outgoing_text(queue, text, id, delay, ttl, read_as) for text, id in given]
        return await self._publish(queue, made)

    def sender(
        self, queue: str, window: int = 64, *, on_receipt: Callable[[AddResult], object] | None = None
    ) -> AsyncClientSender:
        """Return a pipelined sender: it publishes message by message without waiting for each reply.

        At most ``window`` messages are unanswered at a time. ``on_receipt`` is a callback that receives the receipt of
        each stored message, in order. The next call that sends or settles runs it, in the caller's thread."""
        validation.check_queue(queue)
        validation.check_count(window, "window", most=MAX_PER_CALL)
        sender = AsyncClientSender(self._connection, self._ids, queue, window, on_receipt, self._senders.discard)
        self._senders.add(sender)
        return sender

    async def _publish(self, queue: str, made: Iterable[OutgoingMessageBody]) -> list[AddResult]:
        await self._connection.transport()
        frame_batch = FrameBatch(self._connection, FrameKind.PUBLISH, _receipts, lambda body: len(body.messages))
        return await frame_batch.send(producer.in_frames(queue, made, self._connection.welcome.max_frame))

    # -- consuming ------------------------------------------------------------------------------------------------

    async def lease(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait: float = 0,
        lease_seconds: float | None = None,
        consumer: str | None = None,
    ) -> list[Delivery]:
        """Lease up to ``limit`` messages; wait up to ``wait`` seconds for the first one.

        Large messages may come in smaller batches than ``limit``."""
        validation.check_queue(queue)
        validation.check_count(limit, "limit", most=MAX_PER_CALL)
        consumer_name, span = self._consumer_name(consumer), _span(lease_seconds, "leaseSeconds", least=0.001)
        until = time.monotonic() + validation.check_milliseconds(wait, "wait") / 1000
        while True:
            left = min(max(0.0, until - time.monotonic()), MAX_POLL_SECONDS)
            body = messages.Lease(queue, limit, round(left * 1000), span, consumer_name)
            got: messages.Deliver = await self._request(FrameKind.LEASE, body, FrameKind.DELIVER, left)
            if got.messages or until <= time.monotonic():
                batch = Batch(queue, consumer_name, got.policy)
                return [new_delivery((one, batch)) for one in got.messages]

    def subscribe(
        self,
        queue: str,
        credit: int = 64,
        *,
        lease_seconds: float | None = None,
        consumer: str | None = None,
        idle: float | None = None,
    ) -> AsyncClientSubscription:
        """Subscribe to a queue: the server pushes messages while fewer than ``credit`` of them are unsettled.

        Iterate over the subscription. Settle messages with the operations of this client or with the subscription's
        ``ack_nowait``. The iteration ends when no message arrived for ``idle`` seconds."""
        validation.check_queue(queue)
        validation.check_count(credit, "credit", most=MAX_PER_CALL)
        wait_seconds = None if idle is None else validation.check_milliseconds(idle, "idle") / 1000
        options = messages.Subscribe(
            queue, credit, _span(lease_seconds, "leaseSeconds", least=0.001), self._consumer_name(consumer)
        )
        subscription = AsyncClientSubscription(self._connection, options, wait_seconds, self._subscriptions.discard)
        self._subscriptions.add(subscription)
        return subscription

    def _consumer_name(self, consumer: str | None) -> str:
        return self.consumer if consumer is None else validation.check_consumer(consumer)

    async def ack(self, leases: str | Sequence[str], *, consumer: str | None = None) -> None:
        """Acknowledge leases. Raises the first error, after all other leases were acknowledged."""
        _raise_first(await self.ack_many(_several(leases), consumer=consumer))

    async def ack_many(self, leases: Sequence[str], *, consumer: str | None = None) -> Results:
        """Acknowledge many leases with one commit. Return for each None, or the error. Repeating a successful ack
        succeeds."""
        return await self._settle(FrameKind.ACK, messages.Settle(_checked(leases), consumer))

    async def nack(
        self,
        leases: str | Sequence[str],
        reason: str = Reason.HANDLER_ERROR,
        text: str = "",
        *,
        delay: float | None = None,
        consumer: str | None = None,
    ) -> None:
        """Report failed messages. Raises the first error, after all other leases were nacked."""
        _raise_first(await self.nack_many(_several(leases), reason, text, delay=delay, consumer=consumer))

    async def nack_many(
        self,
        leases: Sequence[str],
        reason: str = Reason.HANDLER_ERROR,
        text: str = "",
        *,
        delay: float | None = None,
        consumer: str | None = None,
    ) -> Results:
        """Report many failed messages with one commit.

        Each is retried after the policy's backoff (or ``delay`` seconds), or becomes a dead letter."""
        body = messages.Nack(
            _checked(leases), check_reason(reason).value, validation.check_text(text), _span(delay, "delay"), consumer
        )
        return await self._settle(FrameKind.NACK, body)

    async def release(self, leases: str | Sequence[str], *, consumer: str | None = None) -> None:
        """Release messages that were not processed. Raises the first error, after all other leases were released."""
        _raise_first(await self.release_many(_several(leases), consumer=consumer))

    async def release_many(self, leases: Sequence[str], *, consumer: str | None = None) -> Results:
        """Release many leases with one commit. The messages are ready again immediately, and the attempt does not
        count."""
        return await self._settle(FrameKind.RELEASE, messages.Settle(_checked(leases), consumer))

    async def extend(
        self, leases: str | Sequence[str], seconds: float | None = None, *, consumer: str | None = None
    ) -> None:
        """Extend leases: they end ``seconds`` from now (default: the queue's visibility timeout)."""
        _raise_first(await self.extend_many(_several(leases), seconds, consumer=consumer))

    async def extend_many(
        self, leases: Sequence[str], seconds: float | None = None, *, consumer: str | None = None
    ) -> Results:
        span = _span(seconds, "seconds", least=0.001)
        return await self._settle(FrameKind.EXTEND, messages.Extend(_checked(leases), span, consumer))

    async def _settle(self, kind: FrameKind, body: messages.Settle | messages.Nack | messages.Extend) -> Results:
        if not body.leases:
            return []
        request = await self._connection.execute(PendingRequest(kind, body), self._connection.options.timeout)
        settled: messages.SettleReply = request.value(FrameKind.SETTLED)
        results: Results = [None] * len(body.leases)
        if (
            kind is not FrameKind.RELEASE or not request.resent
        ):  # after a resend the errors may stem from the first send
            for n, (code, text) in settled.errors.items():
                results[n] = messages.error_of(code, text)
        for subscription in self._subscriptions:
            subscription.extended(body) if isinstance(body, messages.Extend) else subscription.settled(body.leases)
        return results

    # -- methods of the server by name ---------------------------------------------------------------------------------

    peek = admin_calls.peek
    walk = admin_calls.walk
    show = admin_calls.show
    queues = admin_calls.queues
    counts = admin_calls.counts
    policy = admin_calls.policy
    check_policy = admin_calls.check_policy
    set_policy = admin_calls.set_policy
    try_out = admin_calls.try_out
    pause = admin_calls.pause
    dispatch = admin_calls.dispatch
    set_dispatch = admin_calls.set_dispatch
    register = admin_calls.register
    deregister = admin_calls.deregister
    deliveries = admin_calls.deliveries
    resume = admin_calls.resume
    schedules = admin_calls.schedules
    drop = admin_calls.drop
    purge = admin_calls.purge
    sweep = admin_calls.sweep
    delete_queue = admin_calls.delete_queue
    consumer_beat = admin_calls.consumer_beat
    consumer_list = admin_calls.consumer_list
    consumer_wish = admin_calls.consumer_wish


def _receipts(body: messages.Publish, request: PendingRequest) -> list[AddResult]:
    return producer.receipts(body.messages, request.value(FrameKind.STORED), request.resent)


def _span(seconds: float | None, field: str, *, least: float = 0) -> int | None:
    return None if seconds is None else validation.check_milliseconds(seconds, field, least=least)


def _several(leases: str | Sequence[str]) -> Sequence[str]:
    return [leases] if isinstance(leases, str) else leases


def _checked(leases: Sequence[str]) -> list[str]:
    for lease in leases:
        if not isinstance(lease, str):
            raise BadInput(f"{lease!r} is not a lease id", field="leaseId")
    return [*leases]


def _raise_first(errors: Results) -> None:
    for error in errors:
        if error is not None:
            raise error
