"""Asyncio transport: a connection shared by any number of tasks, and how connections are opened.

Requests that tasks make in one iteration of the event loop leave with one write. Backpressure: reading pauses while
a topic subscription holds too many unread bytes. A connection belongs to one event loop and one process."""

import asyncio
import contextlib
import os
from typing import cast

import msgspec

from yirangmq.client.address import ServerAddress
from yirangmq.client.session import ClientSession, ConnectionLost, DataSource, QueueInbox, Reply, Slot, TopicInbox
from yirangmq.client.transport import set_socket_options
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind

CLOSE_SECONDS = 1.0
"""Upper bound of the wait for an orderly close, in seconds."""


class AsyncioTransport(asyncio.BufferedProtocol):
    """``client.transport.Line`` as an asyncio protocol. Event loop thread only."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._session = ClientSession()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._may_write = asyncio.Event()
        self._closed = asyncio.Event()
        self._is_paused = False
        """Reading is paused until the subscription takes records from the feed."""
        self._awaited = 0
        """Number of replies that are awaited. Reading is not paused then: a reply follows the records sent before."""

    # -- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport has the interface but not the type
        sock = transport.get_extra_info("socket")
        if sock is not None:
            set_socket_options(sock)
        self._may_write.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._session.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            updated, replies = self._session.receive(nbytes)
        except ConnectionLost as lost:
            self._mark_lost(lost)
            return
        for one in updated:
            _wake(one)
        if replies:
            self._collect(replies)
        topic_inbox = self._session.topic_inbox
        if topic_inbox is None or not topic_inbox.is_full or self._is_paused or self._awaited:
            return
        if self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set()
        self._mark_lost(error or ConnectionError("the server closed the connection"))

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    # -- client.transport.Line -----------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        return self._session.failure is None

    def apply_welcome(self, welcome: messages.Welcome) -> None:
        self._session.max_frame = welcome.max_frame

    async def request(self, kind: FrameKind, body: msgspec.Struct) -> Slot:
        await self._writable()
        slot, data = self._session.request(kind, body)
        self._collect(data)
        return slot

    async def subscribe(self, queue_inbox: QueueInbox, body: messages.Subscribe) -> int:
        await self._writable()
        number, data = self._session.subscribe(queue_inbox, body)
        self._collect(data)
        return number

    def remove_subscription(self, number: int) -> None:
        queue_inbox = self._session.remove_subscription(number)
        if queue_inbox is not None:
            _wake(queue_inbox)

    def set_topic_inbox(self, topic_inbox: TopicInbox) -> None:
        self._session.topic_inbox = topic_inbox

    def notify_taken(self) -> None:
        topic_inbox = self._session.topic_inbox
        if topic_inbox is not None and not topic_inbox.is_full:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    async def answer(self, slot: Slot, seconds: float) -> Reply:
        self._awaited += 1
        try:
            self._resume_reading()
            await self._await(slot, seconds)
        except BaseException:
            self._session.abandon(slot)
            raise
        finally:
            self._awaited -= 1
        if slot.reply is None:
            raise self._mark_lost(TimeoutError(f"no answer within {seconds:g} seconds"))
        return slot.reply

    def abandon(self, slot: Slot) -> None:
        self._session.abandon(slot)

    def process_received(self) -> None:
        """No-op: the event loop processes received data."""

    async def exchange(self) -> None:
        await asyncio.sleep(0)  # the loop writes and reads
        self._check()

    async def wait_for_data(self, one: DataSource, seconds: float) -> bool:
        return await self._await(one, seconds)

    async def close(self) -> None:
        if self.process != os.getpid() or self._transport is None:
            return
        if self.is_alive:
            self._collect(self._session.request(FrameKind.BYE, messages.Empty())[1])
            self._flush()
            self._fail(ConnectionError("closed by this client"))
            self._transport.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._closed.wait()
        self._transport.abort()

    # -- writes, waits and end -----------------------------------------------------------------------------------------

    async def _writable(self) -> None:
        await self._may_write.wait()
        if self._session.failure is not None:
            lost = self._mark_lost(self._session.failure)
            lost.is_unsent = True
            raise lost

    def _collect(self, data: bytes | bytearray) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(bytes(data))

    def _flush(self) -> None:
        data, self._out = self._out, []
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data[0] if len(data) == 1 else b"".join(data))

    async def _await(self, one: DataSource, seconds: float) -> bool:
        """Wait until ``one`` has data. Return False after ``seconds``."""
        if not one.has_data:
            self._check()
            waiter = self._loop.create_future()
            one.wake = [waiter] if one.wake is None else [*one.wake, waiter]
            timer = self._loop.call_later(seconds, _resolve, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
            if not one.has_data:
                self._check()
        return one.has_data

    def _check(self) -> None:
        if self._session.failure is not None:
            raise self._mark_lost(self._session.failure)

    def _fail(self, failure: Exception) -> None:
        """Mark the connection as lost and wake every waiter. The first reason given is kept."""
        for one in self._session.fail(failure):
            _wake(one)
        self._may_write.set()

    def _mark_lost(self, failure: Exception) -> ConnectionLost:
        self._fail(failure)
        if self._transport is not None:
            self._transport.abort()
        why = self._session.failure or failure
        lost = ConnectionLost(str(why))
        lost.__cause__ = why
        return lost


class AsyncioTransportFactory:
    """``client.transport.TransportFactory`` for one event loop."""

    def lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def dial(self, address: ServerAddress, seconds: float, send_timeout: float) -> AsyncioTransport:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(seconds):
            if address.scheme == "unix":
                return (await loop.create_unix_connection(AsyncioTransport, address.path))[1]
            if not address.tls:
                return (await loop.create_connection(AsyncioTransport, address.host, address.port))[1]
            from yirangmq.client.tls import tls_context

            secret = tls_context(address)
            return (await loop.create_connection(AsyncioTransport, address.host, address.port, ssl=secret))[1]

    async def speaks_tls(self, address: ServerAddress, seconds: float) -> bool:
        from yirangmq.client.tls import unverified_context

        try:
            async with asyncio.timeout(seconds):
                _, writer = await asyncio.open_connection(address.host, address.port, ssl=unverified_context())
        except (OSError, ValueError):
            return False
        writer.transport.abort()
        return True

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _wake(one: DataSource) -> None:
    waiters, one.wake = one.wake, None
    for waiter in waiters or ():
        _resolve(waiter)


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
