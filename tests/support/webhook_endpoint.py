"""Somebody's webhook: an HTTP server that answers as the test says, and remembers what it was sent."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.support.wait import soon
from yirangmq.admin.registry import MethodRegistry
from yirangmq.broker import operations, policies
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.core.errors import NotFound
from yirangmq.core.message import Counts
from yirangmq.core.ports import Transaction
from yirangmq.core.webhook import read_networks
from yirangmq.format.envelope import NewMessage, build
from yirangmq.stores.memory import MemoryStore
from yirangmq.webhooks.webhooks import Webhooks

FINE = b"HTTP/1.1 204 No Content\r\n\r\n"


class Sent(NamedTuple):
    line: str
    headers: dict[str, str]
    body: bytes


Respond = Callable[[Sent], Awaitable[bytes] | bytes]


class Endpoint:
    """``answer`` is bytes, or makes them of what was sent, perhaps after a while; b"" closes without a word."""

    def __init__(self) -> None:
        self.answer: bytes | Respond = FINE
        self.sent: list[Sent] = []
        self.connections = 0
        self.at_once = self.most_at_once = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?x=1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = dict(line.split(": ", 1) for line in head[1:] if line)
                body = await reader.readexactly(int(headers["Content-Length"]))
                answer = await self._answered(Sent(head[0], headers, body))
                writer.write(answer)
                if not answer or b"Connection: close" in answer:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answered(self, sent: Sent) -> bytes:
        self.sent.append(sent)
        if isinstance(self.answer, bytes):
            return self.answer
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            made = self.answer(sent)
            return made if isinstance(made, bytes) else await made
        finally:
            self.at_once -= 1


def status(number: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {number} Whatever", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@asynccontextmanager
async def endpoint(tls: ssl.SSLContext | None = None) -> AsyncIterator[Endpoint]:
    made = Endpoint()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


class Site:
    """A server with nothing but webhooks."""

    def __init__(self, tls: Callable[[], ssl.SSLContext] = ssl.create_default_context, networks: str = "any") -> None:
        loop = asyncio.get_running_loop()
        self.clock, self.ids = SystemClock(), TimeOrderedIds()
        self.context = TransactionContext(self.clock, self.ids)
        self.desk = GroupCommitter(MemoryStore(), self.context, self.clock, loop.call_soon, loop.call_later)
        self.secrets = {"shop": b"hush"}
        self.calls = MethodRegistry(self.context)
        self.webhooks = Webhooks(self.desk, self.clock, self.secret, tls, read_networks(networks))

    def secret(self, name: str) -> bytes:
        try:
            return self.secrets[name]
        except KeyError:
            raise NotFound(f"there is no secret {name!r}") from None

    def start(self) -> None:
        self.webhooks.register(self.calls, set())
        self.webhooks.start()

    async def do(self, work: Callable[[Transaction], Any]) -> Any:
        """In a commit."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.desk.submit(work, lambda value, error: future.set_exception(error) if error else future.set_result(value))
        return await future

    async def set_policy(self, queue: str, **document: Any) -> None:
        await self.do(lambda transaction: policies.put(transaction, self.context, queue, document))

    async def publish(self, queue: str, *payloads: object, **more: Any) -> list[str]:
        now = self.clock.now_ms()
        made = [
            build(queue, NewMessage(payload=payload, **more), id, now)
            for payload, id in zip(payloads, self.ids.new(len(payloads)), strict=True)
        ]
        stored = await self.do(lambda transaction: operations.publish(self.context, transaction, queue, made))
        return [one.id for one in stored]

    def counts(self, queue: str = "mail") -> Counts:
        return self.desk.read(lambda transaction: transaction.counts(queue))

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        self.calls.find("webhooks")(self.desk, {}, lambda rows, error: found.extend(rows))
        return found

    def failure(self, queue: str, id: str) -> Any:
        def work(transaction: Transaction) -> Any:
            return transaction.failures([one for one in transaction.by_id(queue, [id]) if one is not None])[0]

        return self.desk.read(work)


def run(main: Callable[[Site, Endpoint], Awaitable[None]]) -> None:
    """A server and an endpoint, for as long as the test takes; no task of theirs is left behind."""

    async def whole() -> None:
        async with endpoint() as there:
            site = Site()
            site.start()
            try:
                await main(site, there)
            finally:
                site.webhooks.abort()
                await soon(lambda: site.webhooks.is_idle and site.desk.is_idle)

    asyncio.run(whole())
