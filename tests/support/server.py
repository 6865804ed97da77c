"""A real server in a thread of the test's process: real sockets, and a store and a clock that the test holds."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.loop_thread import OnThread
from tests.support.loops import close_servers
from tests.support.topic_server import loop_here, opening
from yirangmq.admin.health import ServerHealth
from yirangmq.admin.monitoring import ServerMonitor
from yirangmq.admin.registry import Done, Given, MethodRegistry, PagedMethods, ServerSources
from yirangmq.admin.topics import TopicMethods
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.clock import TimeOrderedIds
from yirangmq.core.consumer_registry import MemoryConsumerRegistry
from yirangmq.core.ports import Clock, Ids, Store
from yirangmq.protocols.context import ServerContext, ServerIdentity
from yirangmq.protocols.stream_server import StreamLimits, StreamServer, listen_tcp, listen_unix
from yirangmq.testing import ManualClock
from yirangmq.topics.ports import TopicSettings
from yirangmq.topics.publisher import Publisher


class Chances:
    """Fresh ids for the server's own use; chance as the test has it."""

    def __init__(self, ids: Ids | None) -> None:
        self._ids = ids or TimeOrderedIds()

    def new(self, count: int) -> list[str]:
        return TimeOrderedIds().new(count)

    def fraction(self) -> float:
        return self._ids.fraction()


class RunningServer:
    """Listens at ``unix`` and ``tcp`` from ``start`` to ``stop``; may be started again."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        clock: Clock | None = None,
        ids: Ids | None = None,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        max_frame: int = 16 << 20,
        topics: TopicSettings | None = None,
    ) -> None:
        self._store = store
        self._path = folder / "server.sock"
        self._clock = clock or ManualClock()
        self._ids = Chances(ids)
        self._token = token
        self._tls = tls
        self._max_frame = max_frame
        self._folder = folder
        self._settings = topics
        self._topic_calls: TopicMethods | None = None
        self.topics: Publisher | None = None
        """Where settings for topics are given."""
        self._port = 0
        self._thread = OnThread(self._run)
        self.do = self._thread.do
        self.stop = self._thread.stop
        """At once, as a killed server would: clients are cut off."""

    @property
    def unix(self) -> str:
        return f"unix:{self._path}"

    @property
    def tcp(self) -> str:
        return f"{'tcp' if self._tls is None else 'tls'}://localhost:{self._port}"

    def start(self) -> "RunningServer":
        self._thread.start()
        return self

    def cut(self) -> None:
        """Every client loses its connection."""
        self.do(self._abort)

    def _abort(self) -> None:
        for connection in list(self._door.connections):
            connection.abort()

    def _facts(self) -> dict[str, Any]:
        return {
            "server": "yirangmq test",
            "node": "here",
            "durability": self._store.durability(),
            "uptimeSec": 5.0,
            "connections": len(self._door.connections),
            "topics": None if self._topic_calls is None else self._topic_calls.facts(),
        }

    def _wait(self, desk: GroupCommitter, given: Given, done: Done) -> None:
        """A method that takes as long as it is told to."""
        self._loop.call_later(given["seconds"], done, "waited", None)

    async def _run(self, up: Callable[[], None], over: asyncio.Event) -> None:
        loop = self._loop = asyncio.get_running_loop()
        broker_context = TransactionContext(self._clock, self._ids)
        desk = GroupCommitter(self._store, broker_context, self._clock, loop.call_soon, loop.call_later)
        pages = PagedMethods(self._store, desk, self._clock, self._ids, loop.call_soon_threadsafe)
        self.observing = ServerMonitor(self._clock)
        rates = self.observing.metrics.rates_of
        health = ServerHealth(self._clock, None)
        site = ServerSources(
            self._clock, health, self._facts, lambda: self._door.describe(), MemoryConsumerRegistry(self._clock), rates
        )
        table = MethodRegistry(broker_context, pages, site)
        table.add_entry("wait", self._wait)
        self.observing.register(broker_context.event_buffer, table)
        welcome = ServerIdentity("yirangmq test", "here", self._store.durability(), self._max_frame)
        if self._settings is not None:
            self.topics = Publisher(opening(self._folder / "topics"), loop_here(), self._settings)
            self._topic_calls = TopicMethods(self.topics, self._clock)
            self._topic_calls.register(table, self.observing.feed.on_events)
            self.topics.start()
        house = ServerContext(desk, self._clock, self._ids, table, welcome, self._token, topics=self.topics)
        self._door = StreamServer(house, StreamLimits())
        if self.topics is not None:
            self.topics.after_commit.append(self._door.flush)
            self.topics.mark_listening()
            self.topics.mark_online()
        servers = [
            await listen_unix(self._door, self._path),
            await listen_tcp(self._door, "localhost", self._port, self._tls),
        ]
        self._port = servers[1].sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        up()
        await over.wait()
        await close_servers(*servers)
        self._abort()
        pages.stop()
        await asyncio.sleep(0)
        if self.topics is not None:
            self.topics.close()
            await asyncio.sleep(0)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
