"""A door with topics on a real loop, real sockets and a real log, in this process; and subscribers that keep count."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.support.loops import close_servers
from tests.support.wait import PATIENCE
from yirangmq.admin.registry import MethodRegistry
from yirangmq.admin.topics import TopicMethods
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.core.topics import Cursors, KnownPositions, Log, NewRecord, Record
from yirangmq.protocols.context import ServerContext, ServerIdentity
from yirangmq.protocols.stream_server import StreamLimits, StreamServer, listen_tcp, listen_unix
from yirangmq.stores.cursors import open_cursors
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.stores.memory import MemoryStore
from yirangmq.topics.live import PublishResult
from yirangmq.topics.ports import Loop, TopicSettings
from yirangmq.topics.publisher import LogOpeners, Publisher
from yirangmq.wire import messages, records
from yirangmq.wire.frames import FrameKind, FrameReader

SMALL = LogSettings(segment_bytes=64 << 10, durability="os")


def loop_here() -> Loop:
    loop = asyncio.get_running_loop()
    return Loop(loop.call_soon, loop.call_later, loop.call_soon_threadsafe, time.monotonic, time.time_ns)


def opening(folder: Path, settings: LogSettings = SMALL) -> LogOpeners:
    def log(known: KnownPositions) -> Log:
        return SegmentLog(folder, settings, known=known)

    def cursors() -> Cursors:
        return open_cursors(f"file:{folder / 'cursors'}")

    return LogOpeners(log, cursors, folder.exists)


class Live:
    """The server's end."""

    def __init__(
        self, door: StreamServer, topics: Publisher, path: Path, port: int, about: TopicMethods, told: list[Any]
    ) -> None:
        self.door = door
        self.about = about
        self.told = told
        self.topics = topics
        self.path = path
        self.port = port
        self.trace: list[tuple[int, str]] = []
        topics.move_listeners.append(lambda one, before, after: self.trace.append((one.number, str(after))))

    async def publish(self, *new: NewRecord) -> PublishResult:
        """Past the door, as the bridges do."""
        future: asyncio.Future[PublishResult] = asyncio.get_running_loop().create_future()

        def done(stored: PublishResult | None, error: Exception | None) -> None:
            future.set_exception(error) if error else future.set_result(stored)  # type: ignore[arg-type]

        self.topics.publish(new, done)
        return await future

    async def fill(self, count: int, size: int = 100, topics: tuple[str, ...] = ("a", "b", "c")) -> None:
        last = self.last
        for register in range(last, last + count, 100):
            numbers = range(register, min(register + 100, last + count))
            await self.publish(*(NewRecord(topics[n % len(topics)], b"%d" % (n + 1) + b"." * size) for n in numbers))

    @property
    def last(self) -> int:
        return self.topics.ensure_open().feed.log.last

    def states(self, number: int = 1) -> list[str]:
        return [state for who, state in self.trace if who == number]


@asynccontextmanager
async def live(
    folder: Path,
    settings: TopicSettings | None = None,
    *,
    log: LogSettings = SMALL,
    tls: ssl.SSLContext | None = None,
    limits: StreamLimits | None = None,
) -> AsyncIterator[Live]:
    loop = asyncio.get_running_loop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: faults.append(context))
    topics = Publisher(opening(folder / "topics", log), loop_here(), settings or TopicSettings())
    clock, ids = SystemClock(), TimeOrderedIds()
    broker_context = TransactionContext(clock, ids)
    desk = GroupCommitter(MemoryStore(), broker_context, clock, loop.call_soon, loop.call_later)
    welcome = ServerIdentity("test", "here", "full", 16 << 20)
    table = MethodRegistry(broker_context)
    told: list[Any] = []
    about = TopicMethods(topics, clock)
    about.register(table, told.extend)
    house = ServerContext(desk, clock, ids, table, welcome, topics=topics)
    door = StreamServer(house, limits or StreamLimits())
    topics.after_commit.append(door.flush)
    topics.start()
    servers = [await listen_unix(door, folder / "s.sock"), await listen_tcp(door, "127.0.0.1", 0, tls)]
    port = servers[1].sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    topics.mark_listening()
    topics.mark_online()
    try:
        yield Live(door, topics, folder / "s.sock", port, about, told)
    finally:
        await close_servers(*servers)
        for connection in list(door.connections):
            connection.abort()
        await asyncio.sleep(0.01)
        topics.close()
        await asyncio.sleep(0)
    assert faults == []


class Said(NamedTuple):
    """What a subscriber was told that is no record; ``after``: how many records came before it."""

    kind: FrameKind
    request: int
    value: Any
    after: int


class Follower:
    """A subscriber's end: what came, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._frames = FrameReader(16 << 20)
        self._number = 0
        self.records: list[Record] = []
        self.said: list[Said] = []
        self.is_over = False

    def send(self, kind: FrameKind, body: msgspec.Struct) -> int:
        self._number += 1
        self.writer.write(messages.frame(kind, self._number, body))
        return self._number

    async def read(self) -> bool:
        """Some bytes; False: the server has closed."""
        try:
            data = await asyncio.wait_for(self._reader.read(1 << 20), PATIENCE)
        except ConnectionError:
            data = b""
        for kind, request, body in self._frames.feed(data):
            if kind == records.KIND:
                self.records.append(records.read_body(body))
            else:
                self.said.append(Said(FrameKind(kind), request, messages.read(kind, body), len(self.records)))
        self.is_over = not data
        return bool(data)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not is_so() and await self.read():
                pass
        assert is_so(), (self.said[-3:], self.sequences[-3:])

    async def ask(self, kind: FrameKind, body: msgspec.Struct) -> Said:
        number = self.send(kind, body)
        await self.until(lambda: any(one.request == number for one in self.said))
        return next(one for one in self.said if one.request == number)

    async def follow(self, *topics: str, start: str = "beginning", at: int = 0, **more: Any) -> Said:
        return await self.ask(
            FrameKind.TOPIC_SUBSCRIBE,
            messages.TopicSubscribe(list(topics), start=start, at=at, **{"progress_ms": 0, **more}),
        )

    @property
    def sequences(self) -> list[int]:
        return [record.sequence for record in self.records]

    def told(self, kind: FrameKind) -> list[Any]:
        return [one.value for one in self.said if one.kind is kind]

    async def close(self) -> None:
        self.writer.close()
        try:
            await asyncio.wait_for(self.writer.wait_closed(), PATIENCE)
        except (OSError, ssl.SSLError):
            return


@asynccontextmanager
async def dial(
    server: Live, *, tcp: bool = False, tls: ssl.SSLContext | None = None, receive: int = 0
) -> AsyncIterator[Follower]:
    """``receive``: bytes of the socket's buffer, for a reader that is to be slow."""
    is_tcp = tcp or tls is not None
    raw = socket.socket(socket.AF_INET if is_tcp else socket.AF_UNIX)
    if receive:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    raw.setblocking(False)
    address: Any = ("127.0.0.1", server.port) if is_tcp else str(server.path)
    await asyncio.get_running_loop().sock_connect(raw, address)
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection(sock=raw, limit=receive or 1 << 16, ssl=tls, server_hostname=name)
    follower = Follower(reader, writer)
    try:
        yield follower
    finally:
        await follower.close()
