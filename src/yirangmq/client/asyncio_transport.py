"""Asyncio transport: a connection shared by any number of tasks, and how connections are opened.

Requests that tasks make in one iteration of the event loop leave with one write. Backpressure: reading pauses while
a topic subscription holds too many unread bytes. A connection belongs to one event loop and one process."""

import asyncio
import contextlib
import os
from typing import cast

import msgspec

from yirangmq.client.address import Address
from yirangmq.client.session import Conversation, Feed, Lost, News, Reply, Slot, Stream
from yirangmq.client.transport import prepare
from yirangmq.wire import messages
from yirangmq.wire.frames import Kind

GOODBYE = 1.0
"""Upper bound of the wait for an orderly close, in seconds."""


class LoopLine(asyncio.BufferedProtocol):
    """``client.transport.Line`` as an asyncio protocol. Event loop thread only."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._talk = Conversation()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._may_write = asyncio.Event()
        self._over = asyncio.Event()
        self._is_held = False
        """Reading is paused until the subscription takes records from the feed."""

    # -- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport has the interface but not the type
        channel = transport.get_extra_info("socket")
        if channel is not None:
            prepare(channel)
        self._may_write.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._talk.room()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            news, back = self._talk.receive(nbytes)
        except Lost as lost:
            self._lost(lost)
            return
        for one in news:
            _wake(one)
        if back:
            self._collect(back)
        feed = self._talk.feed
        if feed is not None and feed.is_full and not self._is_held and self._transport is not None:
            self._is_held = True
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._over.set()
        self._lost(error or ConnectionError("the server closed the connection"))

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    # -- client.transport.Line -----------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        return self._talk.trouble is None

    def greeted(self, welcome: messages.Welcome) -> None:
        self._talk.max_frame = welcome.max_frame

    async def ask(self, kind: Kind, body: msgspec.Struct) -> Slot:
        await self._writable()
        slot, data = self._talk.ask(kind, body)
        self._collect(data)
        return slot

    async def subscribe(self, stream: Stream, body: messages.Subscribe) -> int:
        await self._writable()
        number, data = self._talk.subscribe(stream, body)
        self._collect(data)
        return number

    def cancelled(self, number: int) -> None:
        stream = self._talk.cancelled(number)
        if stream is not None:
            _wake(stream)

    def follow(self, feed: Feed) -> None:
        self._talk.feed = feed

    def taken(self) -> None:
        feed = self._talk.feed
        if self._is_held and feed is not None and not feed.is_full and self._transport is not None:
            self._is_held = False
            self._transport.resume_reading()

    async def answer(self, slot: Slot, seconds: float) -> Reply:
        try:
            await self._await(slot, seconds)
        except BaseException:
            self._talk.forget(slot)
            raise
        if slot.reply is None:
            raise self._lost(TimeoutError(f"no answer within {seconds:g} seconds"))
        return slot.reply

    def forget(self, slot: Slot) -> None:
        self._talk.forget(slot)

    def glance(self) -> None:
        """No-op: the event loop processes received data."""

    async def listen(self, one: News, seconds: float) -> bool:
        return await self._await(one, seconds)

    async def close(self) -> None:
        if self.process != os.getpid() or self._transport is None:
            return
        if self.is_alive:
            self._collect(self._talk.ask(Kind.BYE, messages.Empty())[1])
            self._flush()
            self._end(ConnectionError("closed by this client"))
            self._transport.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE):
                    await self._over.wait()
        self._transport.abort()

    # -- writes, waits and end -----------------------------------------------------------------------------------------

    async def _writable(self) -> None:
        await self._may_write.wait()
        if self._talk.trouble is not None:
            lost = self._lost(self._talk.trouble)
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

    async def _await(self, one: News, seconds: float) -> bool:
        """Wait until ``one`` has data. Return False after ``seconds``."""
        if not one.has_news:
            self._check()
            waiter = self._loop.create_future()
            one.wake = [waiter] if one.wake is None else [*one.wake, waiter]
            timer = self._loop.call_later(seconds, _tell, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
            if not one.has_news:
                self._check()
        return one.has_news

    def _check(self) -> None:
        if self._talk.trouble is not None:
            raise self._lost(self._talk.trouble)

    def _end(self, trouble: Exception) -> None:
        """Mark the connection as lost and wake every waiter. The first reason given is kept."""
        for one in self._talk.end(trouble):
            _wake(one)
        self._may_write.set()

    def _lost(self, trouble: Exception) -> Lost:
        self._end(trouble)
        if self._transport is not None:
            self._transport.abort()
        why = self._talk.trouble or trouble
        lost = Lost(str(why))
        lost.__cause__ = why
        return lost


class LoopWires:
    """``client.transport.Wires`` for one event loop."""

    def turn(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def dial(self, address: Address, seconds: float, patience: float) -> LoopLine:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(seconds):
            if address.scheme == "unix":
                return (await loop.create_unix_connection(LoopLine, address.path))[1]
            if not address.tls:
                return (await loop.create_connection(LoopLine, address.host, address.port))[1]
            from yirangmq.client.tls import tls_context

            secret = tls_context(address)
            return (await loop.create_connection(LoopLine, address.host, address.port, ssl=secret))[1]

    async def speaks_tls(self, address: Address, seconds: float) -> bool:
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


def _wake(one: News) -> None:
    waiters, one.wake = one.wake, None
    for waiter in waiters or ():
        _tell(waiter)


def _tell(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
