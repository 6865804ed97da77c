"""The whole HTTP server, every API of it, on a real loop and a real socket, in a thread of the test's process; the test
holds store and clock."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.http_client import request_json
from tests.support.loop_thread import OnThread
from tests.support.loops import close_servers
from tests.support.topic_server import loop_here, opening
from yirangmq.admin.bridges import BridgeMethods
from yirangmq.admin.health import ServerHealth
from yirangmq.admin.monitoring import ServerMonitor
from yirangmq.admin.registry import MethodRegistry, PagedMethods, ServerSources
from yirangmq.admin.topics import TopicMethods
from yirangmq.alerts.monitor import AlertFile, AlertMethods, AlertMonitor
from yirangmq.broker.bridge_worker import BridgeContext
from yirangmq.broker.bridges import Bridges
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.sink_batches import SinkBatches
from yirangmq.clock import SteadyClock, TimeOrderedIds
from yirangmq.core.access import AccessGrant
from yirangmq.core.alert_rules import ServerFacts
from yirangmq.core.alert_settings import AlertSettings
from yirangmq.core.consumer_registry import MemoryConsumerRegistry
from yirangmq.core.ports import Clock, Ids, Store
from yirangmq.fsio.background import LoopExecutor
from yirangmq.protocols.context import ServerContext, ServerIdentity
from yirangmq.protocols.http.auth import HttpAccess, OriginPolicy
from yirangmq.protocols.http.mq.api import MqSettings
from yirangmq.protocols.http.server import HttpSocketServer, RequestCoalescer, listen_tcp
from yirangmq.protocols.http.v1.api import NativeApi
from yirangmq.server.http_listener import mounts
from yirangmq.stores.staging import StageFiles
from yirangmq.topics.adapters import TopicLogForBatches, TopicLogForBridges
from yirangmq.topics.ports import TopicSettings
from yirangmq.topics.publisher import Publisher
from yirangmq.webhooks.webhooks import Webhooks


class HttpServer:
    """Listens at ``url`` from ``start`` to ``stop``. With a folder it has topics, takes batches, and
    has an alert."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids | None = None,
        folder: Path | None = None,
        settings: TopicSettings | None = None,
        *,
        grants: tuple[AccessGrant, ...] = (),
        origins: tuple[str, ...] = (),
        hosts: tuple[str, ...] = (),
    ) -> None:
        self._guard = HttpAccess(grants)
        self.policy = OriginPolicy(self._guard, origins, hosts)
        self._store = store
        self._clock = clock
        self._ids = ids or TimeOrderedIds()
        self._folder = folder
        self._settings = settings or TopicSettings()
        self.topics: Publisher | None = None
        self._thread = OnThread(self._run)
        self.do = self._thread.do
        self.stop = self._thread.stop
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, document: object = None) -> tuple[int, Any]:
        """(status, document) of one request on a connection of its own."""
        return request_json(self.url, method, path, document)

    def start(self) -> "HttpServer":
        self._thread.start()
        return self

    async def _run(self, up: Callable[[], None], over: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        broker_context = TransactionContext(self._clock, self._ids)
        desk = GroupCommitter(self._store, broker_context, self._clock, loop.call_soon, loop.call_later)
        pages = PagedMethods(self._store, desk, self._clock, self._ids, loop.call_soon_threadsafe)
        observing = ServerMonitor(self._clock)
        site = ServerSources(
            self._clock,
            ServerHealth(self._clock, None),
            lambda: {"server": "yirangmq test", "node": "here"},
            lambda: door.describe(),
            MemoryConsumerRegistry(self._clock),
            observing.metrics.rates_of,
        )
        table = MethodRegistry(broker_context, pages, site)
        observing.register(broker_context.event_buffer, table)
        welcome = ServerIdentity("yirangmq test", "here", self._store.durability(), 1 << 24)
        aside = LoopExecutor(loop.call_soon_threadsafe)
        batches = None
        if self._folder is not None:
            self.topics = Publisher(opening(self._folder / "topics"), loop_here(), self._settings)
            batches = SinkBatches(desk, StageFiles(self._folder / "stages"), aside.run, self._clock, self._ids)
            batches.topics = TopicLogForBatches(self.topics)
            self.topics.start()
        TopicMethods(self.topics, self._clock).register(table, observing.feed.on_events)
        bridges = None
        if self.topics is not None:
            bridges = Bridges(
                BridgeContext(desk, TopicLogForBridges(self.topics), aside.run, self._clock, lambda: None)
            )
            self.topics.listeners.append(lambda live: bridges.wake())
        BridgeMethods(bridges).register(table)
        alerts = None
        if self._folder is not None:
            file, node = AlertFile(self._folder / "alerts"), welcome.node
            trouble = ServerFacts(trouble="so that there is an alert")
            alerts = AlertMonitor(AlertSettings(log=None), file, node, lambda now: trouble, SteadyClock())
            alerts.start()
            alerts.evaluate()
            AlertMethods(alerts).register(table)
        house = ServerContext(
            desk,
            self._clock,
            self._ids,
            table,
            welcome,
            topics=self.topics,
            batches=None if batches is None else lambda: batches,
        )
        coalescer = RequestCoalescer(desk)
        self.api = NativeApi(house, observing.feed, guard=self._guard.check, coalescer=coalescer)
        self.mounts = mounts(house, self._guard, self.api, MqSettings(admin_password="secret"), coalescer)
        webhooks = Webhooks(desk, self._clock, lambda name: name.encode())
        webhooks.register(table, house.consumers)
        webhooks.start()
        door = HttpSocketServer(self.mounts, policy=self.policy)
        door.flush_after(desk)
        if self.topics is not None:
            self.topics.after_commit.append(door.flush)
            self.topics.mark_listening()
            self.topics.mark_online()
        server = await listen_tcp(door, ("127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        up()
        await over.wait()
        await close_servers(server)
        self.api.stop()
        webhooks.stop()
        webhooks.abort()
        if bridges is not None:
            bridges.stop()
        if alerts is not None:
            alerts.stop()
        door.abort()
        pages.stop()
        aside.stop()
        if self.topics is not None:
            self.topics.close()
        await asyncio.sleep(0)
