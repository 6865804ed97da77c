"""A door on a real loop and real sockets, in this process."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tests.support.loops import WRITERS, close_servers
from tests.support.session import MAX_FRAME, Answer
from tests.support.wait import PATIENCE
from yirangmq.admin.registry import MethodRegistry
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.protocols.context import ServerContext, ServerIdentity
from yirangmq.protocols.stream_server import StreamLimits, StreamServer, listen_tcp, listen_unix
from yirangmq.stores.memory import MemoryStore
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind, FrameReader


@asynccontextmanager
async def door(limits: StreamLimits, *, token: str = "") -> AsyncIterator[StreamServer]:
    loop = asyncio.get_running_loop()
    clock, ids = SystemClock(), TimeOrderedIds()
    broker_context = TransactionContext(clock, ids)
    desk = GroupCommitter(MemoryStore(), broker_context, clock, loop.call_soon, loop.call_later)
    house = ServerContext(
        desk, clock, ids, MethodRegistry(broker_context), ServerIdentity("test", "here", "full", MAX_FRAME), token
    )
    made = StreamServer(house, limits)
    try:
        yield made
    finally:
        for connection in list(made.connections):
            connection.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def unix_door(path: Path, limits: StreamLimits) -> AsyncIterator[StreamServer]:
    async with door(limits) as made:
        server = await listen_unix(made, path)
        try:
            yield made
        finally:
            await close_servers(server)


@asynccontextmanager
async def tcp_door(
    limits: StreamLimits, token: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[StreamServer, int]]:
    async with door(limits, token=token) as made:
        server = await listen_tcp(made, "127.0.0.1", 0, tls)
        try:
            yield made, server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        finally:
            await close_servers(server)


class Peer:
    """The other end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._frames = FrameReader(64 * MAX_FRAME)
        self._answers: list[Answer] = []
        self._number = 0
        WRITERS.append(writer)

    def send(self, kind: FrameKind, body: msgspec.Struct) -> int:
        self._number += 1
        self.writer.write(messages.frame(kind, self._number, body))
        return self._number

    async def hear(self) -> Answer | None:
        """The next answer; None once the server has closed."""
        while not self._answers:
            try:
                data = await asyncio.wait_for(self._reader.read(65536), PATIENCE)
            except ConnectionError:
                return None
            if not data:
                return None
            for kind, request, body in self._frames.feed(data):
                self._answers.append(Answer(FrameKind(kind), request, messages.read(kind, body)))
        return self._answers.pop(0)

    async def ask(self, kind: FrameKind, body: msgspec.Struct) -> Answer:
        number = self.send(kind, body)
        while (answer := await self.hear()) is not None:
            if answer.request == number:
                return answer
        raise AssertionError("the server closed")


async def dial(path: Path) -> Peer:
    return Peer(*await asyncio.open_unix_connection(str(path)))


async def dial_tcp(port: int, tls: ssl.SSLContext | None = None) -> Peer:
    name = "localhost" if tls is not None else None
    return Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name))
