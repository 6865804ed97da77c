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
from yirangmq.admin.bridges import BridgeCalls
from yirangmq.admin.health import Health
from yirangmq.admin.monitoring import Observing
from yirangmq.admin.registry import Calls, Pages, Site
from yirangmq.admin.topics import TopicCalls
from yirangmq.alerts.monitor import AlertCalls, AlertFile, AlertWatch
from yirangmq.broker.bridge_worker import Means
from yirangmq.broker.bridges import Bridges
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.operations import Verbs
from yirangmq.broker.sink_batches import Batches
from yirangmq.clock import SteadyClock, TimeOrderedIds
from yirangmq.core.access import Grant
from yirangmq.core.alert_rules import Facts
from yirangmq.core.alert_settings import AlertSettings
from yirangmq.core.consumer_registry import Consumers
from yirangmq.core.ports import Clock, Ids, Store
from yirangmq.fsio.background import Aside
from yirangmq.protocols.context import House, Introduction
from yirangmq.protocols.http.auth import Guard, OriginPolicy
from yirangmq.protocols.http.mq.api import Terms
from yirangmq.protocols.http.server import HttpDoor, Together, listen_tcp
from yirangmq.protocols.http.v1.api import Api
from yirangmq.server.http_listener import mounts
from yirangmq.stores.staging import StageFiles
from yirangmq.topics.adapters import FeedForBatches, FeedForBridges
from yirangmq.topics.ports import Settings
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
        settings: Settings | None = None,
        *,
        grants: tuple[Grant, ...] = (),
        origins: tuple[str, ...] = (),
        hosts: tuple[str, ...] = (),
    ) -> None:
        self._guard = Guard(grants)
        self.policy = OriginPolicy(self._guard, origins, hosts)
        self._store = store
        self._clock = clock
        self._ids = ids or TimeOrderedIds()
        self._folder = folder
        self._settings = settings or Settings()
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
        verbs = Verbs(self._clock, self._ids)
        desk = Desk(self._store, verbs, self._clock, loop.call_soon, loop.call_later)
        pages = Pages(self._store, desk, self._clock, self._ids, loop.call_soon_threadsafe)
        observing = Observing(self._clock)
        site = Site(
            self._clock,
            Health(self._clock, None),
            lambda: {"server": "yirangmq test", "node": "here"},
            lambda: door.describe(),
            Consumers(self._clock),
            observing.metrics.rates_of,
        )
        table = Calls(verbs, pages, site)
        observing.begin(verbs.happened, table)
        welcome = Introduction("yirangmq test", "here", self._store.durability(), 1 << 24)
        aside = Aside(loop.call_soon_threadsafe)
        batches = None
        if self._folder is not None:
            self.topics = Publisher(opening(self._folder / "topics"), loop_here(), self._settings)
            batches = Batches(desk, StageFiles(self._folder / "stages"), aside.run, self._clock, self._ids)
            batches.topics = FeedForBatches(self.topics)
            self.topics.start()
        TopicCalls(self.topics, self._clock).begin(table, observing.feed.hear)
        bridges = None
        if self.topics is not None:
            bridges = Bridges(Means(desk, FeedForBridges(self.topics), aside.run, self._clock, lambda: None))
            self.topics.hearers.append(lambda live: bridges.kick())
        BridgeCalls(bridges).begin(table)
        alerts = None
        if self._folder is not None:
            file, node = AlertFile(self._folder / "alerts"), welcome.node
            trouble = Facts(trouble="so that there is an alert")
            alerts = AlertWatch(AlertSettings(log=None), file, node, lambda now: trouble, SteadyClock())
            alerts.start()
            alerts.look()
            AlertCalls(alerts).begin(table)
        house = House(
            desk,
            self._clock,
            self._ids,
            table,
            welcome,
            topics=self.topics,
            batches=None if batches is None else lambda: batches,
        )
        together = Together(desk)
        self.api = Api(house, observing.feed, guard=self._guard.check, together=together)
        self.mounts = mounts(house, self._guard, self.api, Terms(admin_password="secret"), together)
        webhooks = Webhooks(desk, self._clock, lambda name: name.encode())
        webhooks.begin(table, house.consumers)
        webhooks.start()
        door = HttpDoor(self.mounts, policy=self.policy)
        door.flush_after(desk)
        if self.topics is not None:
            self.topics.after_turn.append(door.flush)
            self.topics.listening()
            self.topics.online()
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
