"""The document's API behind a real door on a port of this machine, with the test's own time."""

import asyncio
import heapq
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.support.http import Answer, Peer, dial, serving
from tests.support.wait import soon
from yirangmq.admin.registry import MethodRegistry, PagedMethods
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.queues import Queues
from yirangmq.clock import TimeOrderedIds
from yirangmq.core.access import AccessGrant
from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Store
from yirangmq.protocols.context import ServerContext, ServerIdentity
from yirangmq.protocols.http.auth import HttpAccess, OriginPolicy
from yirangmq.protocols.http.mq.api import PREFIXES, MqApi, MqSettings
from yirangmq.protocols.http.router import HandlerRoutes, MountedRoutes
from yirangmq.protocols.http.static import refuse
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import ManualClock

PASSWORD = "correct horse"
ADMIN = {"authorization": f"Bearer {PASSWORD}", "content-type": "application/json"}
JSON = {"content-type": "application/json"}


class Hours:
    """Time that moves when told, and alarms that ring when it has."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def later(self, seconds: float, act: Callable[[], None]) -> Any:
        if seconds <= 0:
            return asyncio.get_running_loop().call_soon(act)
        heapq.heappush(self._alarms, (self.clock.now_ms() + seconds * 1000, next(self._numbers), act))
        return None

    def advance(self, seconds: float) -> None:
        self.clock.advance(round(seconds * 1000))
        while self._alarms and self._alarms[0][0] <= self.clock.now_ms():
            heapq.heappop(self._alarms)[2]()


class MqServer:
    """A server and one client of it."""

    def __init__(
        self, desk: GroupCommitter, house: ServerContext, hours: Hours, port: int, peer: Peer, queues: Queues
    ) -> None:
        self.desk = desk
        self.house = house
        self.port = port
        self.queues = queues
        self._hours = hours
        self._peer = peer

    async def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        return await self._peer.ask(method, path, body, headers)

    async def admin(self, method: str, path: str, body: bytes | None = None) -> Answer:
        return await self.ask(method, f"/admin/{path}", body, ADMIN)

    async def dial(self) -> Peer:
        return await dial(self.port)

    def pass_time(self, seconds: float) -> None:
        self._hours.advance(seconds)

    # -- steps that many tests take -------------------------------------------------------------------------------

    async def draft(self, queue: str = "q", priority: str = "null") -> str:
        answer = await self.ask("POST", f"/mq/{queue}/messages", b'{"priority":%s}' % priority.encode(), JSON)
        assert answer.status == 200, answer
        return answer.body.decode()

    async def set(self, id: str, body: bytes = b"content", queue: str = "q") -> None:
        assert (await self.ask("PUT", f"/mq/{queue}/messages/{id}", body)).status == 204

    async def put(self, body: bytes = b"content", queue: str = "q", priority: str = "null") -> str:
        id = await self.draft(queue, priority)
        await self.set(id, body, queue)
        return id

    async def order(self, queue: str = "q") -> str:
        answer = await self.ask("GET", f"/mq/{queue}/messages")
        assert answer.status == 200, answer
        return answer.body.decode()

    async def get(self, id: str, queue: str = "q") -> Answer:
        answer = await self.ask("GET", f"/mq/{queue}/messages/{id}")
        assert answer.status == 200, answer
        return answer

    async def take(self, queue: str = "q") -> str:
        id = await self.order(queue)
        await self.get(id, queue)
        return id

    async def say(self, id: str, verb: str, queue: str = "q") -> None:
        assert (await self.ask("PATCH", f"/mq/{queue}/messages/{id}/{verb}")).status == 204

    async def stats(self, queue: str = "q") -> dict[str, int]:
        """Those that are not 0."""
        counted: dict[str, Any] = loads((await self.ask("GET", f"/mq/{queue}/stats")).body)
        assert counted.pop("namespace") == queue
        return {name: value for name, value in counted.items() if value}

    async def waiting(self, count: int, queue: str = "q") -> list[Peer]:
        """So many orders, one after another, each on a connection of its own."""
        peers = []
        for _ in range(count):
            peer = await self.dial()
            await self.begin_order(peer, queue)
            peers.append(peer)
        return peers

    async def begin_order(self, peer: Peer, queue: str = "q") -> None:
        before = len(self.desk.waiting(queue))
        peer.send(f"GET /mq/{queue}/messages HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await soon(lambda: len(self.desk.waiting(queue)) == before + 1)


def loads(body: bytes) -> Any:

    return json.loads(body)


Scene = Callable[[MqServer], Awaitable[None]]


@asynccontextmanager
async def staged(
    store: Store | None = None,
    clock: ManualClock | None = None,
    defaults: Defaults | None = None,
    terms: MqSettings | None = None,
    grants: tuple[AccessGrant, ...] = (),
    origins: tuple[str, ...] = (),
) -> AsyncIterator[MqServer]:
    loop = asyncio.get_running_loop()
    store = store or MemoryStore()
    hours = Hours(clock or ManualClock())
    ids = TimeOrderedIds()
    context = TransactionContext(hours.clock, ids, defaults or Defaults())
    desk = GroupCommitter(store, context, hours.clock, loop.call_soon, hours.later)
    pages = PagedMethods(store, desk, hours.clock, ids, loop.call_soon_threadsafe)
    house = ServerContext(
        desk, hours.clock, ids, MethodRegistry(context, pages), ServerIdentity("test", "here", "none", 1 << 20)
    )
    mounts = MountedRoutes(fallback=HandlerRoutes(refuse))
    guard = HttpAccess(grants)
    api = MqApi(house, guard, terms or MqSettings(admin_password=PASSWORD))
    for prefix in PREFIXES:
        mounts.mount(prefix, api)
    policy = OriginPolicy(guard, origins, ["x"])
    async with serving(mounts, desk=desk, policy=policy) as (_, port):
        queues = Queues(store, hours.clock, ids, "tester", context=context)
        try:
            yield MqServer(desk, house, hours, port, await dial(port), queues)
        finally:
            pages.stop()


Play = Callable[..., None]
