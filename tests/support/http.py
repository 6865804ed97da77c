"""The HTTP door on a real loop and real sockets, in this process, and a client that says exactly what it is told.

async with serving(routes) as (door, port):
    answer = await ask(port, "POST", "/v1/…", b"{}", {"content-type": "application/json"})
    assert answer.status == 200
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import httptools

from tests.support.loops import WRITERS, close_servers
from tests.support.wait import PATIENCE
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.protocols.http.auth import OriginPolicy
from yirangmq.protocols.http.limits import HttpLimits
from yirangmq.protocols.http.server import HttpSocketServer, listen_tcp
from yirangmq.protocols.http.types import Request, Routes


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Answers:
    """Bytes of a server to answers."""

    def __init__(self) -> None:
        self.complete: list[Answer] = []
        self.interim: list[int] = []
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.interim.append(status)
        else:
            self.complete.append(Answer(status, self._headers, bytes(self._body)))
        self._headers, self._body = {}, bytearray()


class Peer:
    """The client's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.answers = Answers()
        WRITERS.append(writer)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def hear(self) -> Answer | None:
        """The next answer; None once the server has closed."""
        while not self.answers.complete:
            data = await self.read()
            if not data:
                return None
            self.answers.feed(data)
        return self.answers.complete.pop(0)

    async def read(self) -> bytes:
        """Some bytes, as they come; none once the server has closed."""
        try:
            return await asyncio.wait_for(self.reader.read(65536), PATIENCE)
        except ConnectionError:
            return b""

    async def read_all(self) -> bytes:
        """Everything until the server closes."""
        pieces = []
        while data := await self.read():
            pieces.append(data)
        return b"".join(pieces)

    async def ask(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request and its answer; the connection stays."""
        self.send(request(method, target, body, headers))
        if method == "HEAD":
            return await self._hear_head()
        answer = await self.hear()
        assert answer is not None, "the server closed"
        return answer

    async def _hear_head(self) -> Answer:
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)
        lines = raw.decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return Answer(int(lines[0].split()[1]), headers, b"")


def request(method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    """As bytes. A body of None is none at all; names in ``headers`` are sent as they are."""
    sent = {"Host": "localhost", **(headers or {})}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


@asynccontextmanager
async def serving(
    routes: Routes,
    limits: HttpLimits | None = None,
    *,
    desk: GroupCommitter | None = None,
    admit: Callable[[Request], None] | None = None,
    policy: OriginPolicy | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[HttpSocketServer, int]]:
    """The routes behind a door on a port of this machine. With ``desk``, answers go out after each of its commits."""
    door = HttpSocketServer(routes, limits, admit, policy)
    if desk is not None:
        door.flush_after(desk)
    server = await listen_tcp(door, ("127.0.0.1", 0), tls)
    try:
        yield door, server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    finally:
        await close_servers(server)
        door.abort()
        await asyncio.sleep(0)


async def dial(port: int, tls: ssl.SSLContext | None = None) -> Peer:
    name = "localhost" if tls is not None else None
    return Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name))


async def ask(
    port: int, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request on a connection of its own."""
    peer = await dial(port)
    return await peer.ask(method, target, body, headers)
