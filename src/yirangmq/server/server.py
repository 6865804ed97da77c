"""Server: builds the parts, connects them, runs them and closes them; file access checks for ``health``.

Order of the start: store time, changed defaults and a first sweep; then the components, in the order in which
``Daemon._build_components`` lists them. A standby or a follower starts the work of the active node only when it becomes
active or leader. Pair, cluster and files by date are imported only where they are configured.

The file access checks report files and folders that other users of the machine can reach. Files inside the data folder
are protected by the mode of that folder, so their own modes do not matter. ``fsio.permissions`` judges the modes."""

import asyncio
import os
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from yirangmq import __version__
from yirangmq.admin.health import FullStoreLatch, ServerHealth, StoreDisk, publish_refusal
from yirangmq.admin.monitoring import ServerMonitor
from yirangmq.admin.registry import MethodRegistry, PagedMethods, ServerSources
from yirangmq.admin.topics import TopicMethods
from yirangmq.broker import expiry_sweeper
from yirangmq.broker.admission.workers import CheckWorkers
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.cron_scheduler import Scheduler
from yirangmq.broker.expiry_sweeper import check_unmarked
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.clock import SystemClock, TimeOrderedIds, processors, yield_processor
from yirangmq.config.config import Config
from yirangmq.config.settings import OFF
from yirangmq.core.access import AccessGrant
from yirangmq.core.alert_rules import ServerFacts
from yirangmq.core.consumer_registry import MemoryConsumerRegistry
from yirangmq.core.events import TraceStep
from yirangmq.core.health import HealthReason, health_reason
from yirangmq.core.ports import Store
from yirangmq.fsio.permissions import GROUP, describe_wide_mode
from yirangmq.observe.event_loop import BusyPoll, LoopWatchdog
from yirangmq.observe.traces import load as load_traces
from yirangmq.protocols.context import Authenticator, RefusedClients, ServerContext, ServerIdentity, WrongTokenLimiter
from yirangmq.protocols.listen import ListenerOptions, unguarded
from yirangmq.server.alerting import AlertService
from yirangmq.server.components import Component, Components
from yirangmq.server.lifecycle import Lifecycle, ServerTick, StatusReport, StoreListener
from yirangmq.server.listeners import ServerListeners
from yirangmq.server.topics import ServerBatches, ServerBridges, publisher_of, topic_component
from yirangmq.stores.open import find_wide_permissions
from yirangmq.webhooks.webhooks import Webhooks, read_secret

if TYPE_CHECKING:
    from yirangmq.server.cluster import ServerClusterNode
    from yirangmq.server.failover import ServerPairNode

# -- file access checks ------------------------------------------------------------------------------------------------

OTHERS_MODE_MASK = 0o007


def access_reasons(config: Config) -> Callable[[], list[HealthReason]]:
    """Return the file access checks for ``health``. The mode of the data folder protects all files inside it."""
    data = Path(config.data).absolute()
    folders = (config.topics_folder, config.day_files_folder, config.pair_folder, config.secrets_folder)
    outside = [path for one in folders if one and not (path := Path(one).absolute()).is_relative_to(data)]
    location = Path(config.store_url.partition(":")[2]).absolute()
    store = "" if location.is_relative_to(data) else config.store_url
    is_shared = config.file_access == "group"

    def reasons() -> list[HealthReason]:
        texts = [f"{folder} {text}" for folder in (data, *outside) if (text := describe_wide_mode(folder))]
        texts += [f"{finding.where} {finding.text}" for finding in find_wide_permissions(store)]
        texts += [text for path, setting in _secret_files(config) if (text := _open_secret(path, setting))]
        if is_shared and data.is_dir() and data.stat().st_mode & GROUP.folder != GROUP.folder:
            texts.append(f"file_access is group, and the group may not use {data}; run: chmod 2770 {data}")
        return [health_reason("permissions", text) for text in texts]

    return reasons


def _secret_files(config: Config) -> list[tuple[str, str]]:
    """Return the paths of secret files, and the settings that name them."""
    found = [(config.token_file, "token_file"), (config.pair_key_file, "pair_key_file"), (config.tls_key, "tls_key")]
    found += [(rule.token_file, "http_tokens") for rule in config.http_tokens]
    found += [(program.token_file, "programs") for program in config.programs]
    return [(path, setting) for path, setting in found if path]


def _open_secret(path: str, setting: str) -> str:
    """Return a problem text if others may access a secret. Its group may, such as the group of the service."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return ""
    return f"{path} ({setting}) has mode {mode:04o}; run: chmod o= {path}" if mode & OTHERS_MODE_MASK else ""


# -- role of the server ------------------------------------------------------------------------------------------------

ServerNode: TypeAlias = "SingleNode | ServerPairNode | ServerClusterNode"


class SingleNode:
    """Node without others: it is active from start to stop.

    The node decides when the work of the active node starts and pauses. It is created before the other parts, and
    connected to them when all are built. The nodes of a pair and of a cluster have the same methods."""

    guard = staticmethod(unguarded)
    """Return the factory that a listener uses instead of its own (``protocols.listen.ProtocolGuard``)."""
    add_role: Callable[[ServerIdentity], ServerIdentity] | None = None
    """Adds the role and the term of this node to the welcome."""

    def connect(
        self, context: ServerContext, pages: PagedMethods, listeners: ServerListeners, lifecycle: Lifecycle
    ) -> None:
        """Register the methods of the node, and keep what it controls."""
        self._components = lifecycle.components

    async def open(self) -> None:
        """Start to take part, before the listeners open."""

    async def run(self) -> None:
        """The listeners are open: start the work now, or when this node becomes active."""
        self._components.start()

    async def prepare_stop(self) -> None:
        """Hand over before an orderly stop. Clients are served until it returns."""

    def alert_facts(self, window: int) -> ServerFacts:
        """Return the facts about the other node of a pair, of the last ``window`` ms."""
        return ServerFacts()

    def health_members(self) -> dict[str, Any]:
        """Return the members that the node adds to the health report."""
        return {}

    def component(self) -> Component:
        return Component("node")


def create_node(config: Config, store: Store, pair_key: str, tls: ssl.SSLContext | None) -> ServerNode:
    if config.pair_peer:
        from yirangmq.server.failover import ServerPairNode

        return ServerPairNode(config, pair_key)
    if config.is_clustered:
        from yirangmq.server.cluster import ServerClusterNode

        return ServerClusterNode(config, cast("Any", store), tls)
    return SingleNode()


# -- the server --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secrets of a server, which are read from files before it starts."""

    token: str = ""
    tls: ssl.SSLContext | None = None
    grants: tuple[AccessGrant, ...] = ()
    """Grants of HTTP clients."""
    pair_key: str = ""
    programs: tuple[AccessGrant, ...] = ()


class Daemon:
    """Composition root: creates the parts of a server, connects them, and runs them on the loop's thread.

    It is built in two phases. First each part is made from those before it. Then the parts that serve the others,
    such as status, health and the node of a pair, are connected to all of them."""

    def __init__(self, config: Config, store: Store, secrets: Secrets) -> None:
        self._config = config
        self._store = store
        self._stop_requested = asyncio.Event()
        loop = asyncio.get_running_loop()
        clock = SystemClock()
        ids = TimeOrderedIds(clock.now_ms)
        queue_context = TransactionContext(clock, ids, config.policy_defaults)
        committer = GroupCommitter(
            store, queue_context, clock, loop.call_soon, loop.call_later, busy_seconds=config.busy_seconds
        )
        self._watchdog = LoopWatchdog(loop)
        committer.before_commit.append(self._watchdog.note_activity)
        if config.stay_awake != OFF and processors() > 1:
            busy_poll = BusyPoll(loop.call_soon, yield_processor)
            committer.before_commit.append(busy_poll.on_request)
            committer.after_commit.append(busy_poll.on_reply)
        self._check_workers = CheckWorkers(queue_context.admission, loop.call_soon_threadsafe)
        committer.set_check_workers(self._check_workers)
        self._pages = PagedMethods(store, committer, clock, ids, loop.call_soon_threadsafe)
        disk = _disk_of(config, store)
        full_latch = FullStoreLatch(committer, clock)
        self._scheduler = Scheduler(committer, clock)
        self._monitoring = ServerMonitor(clock, most_queues=config.metrics_max_queues)
        topics = publisher_of(config)
        if topics is not None:
            topics.after_commit.append(self._watchdog.note_activity)
        self._topic_methods = TopicMethods(topics, clock)
        self._bridges = ServerBridges(config, committer, clock, topics, partial(publish_refusal, disk))
        self._batches = ServerBatches(config, committer, clock, ids, topics)
        secret = partial(read_secret, Path(config.secrets_folder))
        self._webhooks = Webhooks(committer, clock, secret, networks=config.outgoing_networks)
        self._node = create_node(config, store, secrets.pair_key, secrets.tls)
        attempts = WrongTokenLimiter(time.monotonic, committer.later)
        identity = ServerIdentity(
            f"yirangmq {__version__}", config.node_name, store.durability(), config.max_frame_bytes
        )
        self.context = ServerContext(
            committer,
            clock,
            ids,
            MethodRegistry(queue_context, self._pages),
            identity,
            secrets.token,
            disk,
            topics=topics,
            feed=self._monitoring.feed,
            batches=self._batches.batches,
            add_role=self._node.add_role,
            authenticator=Authenticator(secrets.programs, attempts),
            attempts=attempts,
            refused_clients=RefusedClients(clock, self._monitoring.feed.on_events),
            full_latch=full_latch,
        )
        transport = ListenerOptions(secrets.tls, self._node.guard)
        self._listeners = ServerListeners(config, self.context, transport, (*secrets.grants, *secrets.programs))
        self._alerting = AlertService(
            config,
            self.context,
            self._listeners.refused,
            self._node.alert_facts,
            self._monitoring.metrics.commit_totals,
        )

        self.components = Components(self._build_components())
        self._lifecycle = Lifecycle(config, self.context, self._listeners, self.components)
        self._tick = ServerTick(self.context, self.components, self._watchdog)
        self._connect()

    def _build_components(self) -> Iterator[Component]:
        """Yield the components in the order of the start; they drain and close in the reverse order."""
        committer, config = self.context.committer, self._config
        watchdog, topics, bridges, batches = self._watchdog, self.context.topics, self._bridges, self._batches
        webhooks, pages, listeners, alerting = self._webhooks, self._pages, self._listeners, self._alerting
        schedules = self._scheduler
        yield Component("watchdog", reasons=watchdog.reasons, close=watchdog.stop)
        yield Component("file access", reasons=access_reasons(config))
        yield Component("store", busy=committer, reasons=partial(_reserve_reasons, self._store))
        if not config.store_url.startswith(("memory:", "etcd:")):
            on_change = partial(asyncio.get_running_loop().call_soon_threadsafe, committer.notify_external_change)
            waiting = committer.waiting_consumers
            store_listener = StoreListener(self._store, on_change, lambda: waiting.has_waiters)
            yield Component("store listener", open=store_listener.start, close=store_listener.stop)
        yield Component("monitoring", tick=partial(self._monitoring.tick, committer))
        yield topic_component(topics, self._topic_methods)
        yield Component("batches", start=batches.start, pause=batches.pause, close=batches.stop)
        yield Component("schedules", start=schedules.start, pause=schedules.stop, drain=schedules.stop)
        yield Component(
            "webhooks",
            start=webhooks.start,
            pause=webhooks.stop,
            drain=webhooks.stop,
            busy=webhooks,
            abort=webhooks.abort,
        )
        yield Component(
            "bridges",
            open=bridges.load if config.pair_peer else bridges.start,
            start=bridges.start,
            pause=bridges.drain,
            drain=bridges.drain,
            busy=bridges,
            close=bridges.stop,
            status="bridges",
            facts=bridges.calls.facts,
            samples=bridges.calls.samples,
            reasons=bridges.calls.reasons,
        )
        yield Component("check workers", close=self._check_workers.close)
        yield Component("paged methods", drain=pages.stop, busy=pages, close=pages.stop)
        yield Component(
            "listeners",
            open=listeners.open,
            tick=listeners.tick,
            drain=listeners.drain,
            close=listeners.close,
            facts=listeners.facts,
            samples=listeners.samples,
        )
        yield Component(
            "alerting",
            open=alerting.start,
            close=alerting.stop,
            status="alerts",
            facts=alerting.calls.facts,
            samples=alerting.calls.samples,
        )
        if config.day_files_folder:
            from yirangmq.server.journal import day_files_component  # a server without them does not load them

            yield day_files_component(config, cast("Any", self._store), pages, self.context)
        yield self._node.component()

    def _connect(self) -> None:
        """Connect status, metrics, health, methods and the node to the components."""
        context, monitoring = self.context, self._monitoring
        methods, events = context.methods, context.committer.context.event_buffer
        status = StatusReport(self._config, context, self.components, self._watchdog)
        health = ServerHealth(
            context.clock,
            context.disk,
            self._config.backlog_limit,
            self.components.reasons,
            self._node.health_members,
            context.full_latch,
        )
        consumers, rates = MemoryConsumerRegistry(context.clock), monitoring.metrics.rates_of
        methods.sources = ServerSources(context.clock, health, status.facts, self._listeners.describe, consumers, rates)
        monitoring.server = status.samples
        monitoring.register(events, methods)
        traces = load_traces()
        if traces is not None:
            events.add_listener(traces.on_events, [TraceStep])
            events.is_traced = True
        methods.add_entry("programs", status.programs)
        self._topic_methods.register(methods, monitoring.feed.on_events)
        self._bridges.calls.register(methods)
        self._webhooks.register(methods, context.consumers)
        self._alerting.register(methods, events)
        self._node.connect(context, self._pages, self._listeners, self._lifecycle)

    def stop(self) -> None:
        self._stop_requested.set()

    async def run(self, ready: Callable[[list[str]], None]) -> None:
        """Run until ``stop``; then answer pending requests, and keep or release leases.

        ``ready`` is called once with the addresses."""
        try:
            self._tick.start()
            if not self._config.is_clustered:  # the leader of a cluster does it when its term begins
                self._prepare_store()
            never_wait: Callable[[], None] | None = getattr(self._store, "never_wait", None)
            if never_wait is not None:  # from here on other work shares the loop
                never_wait()
            await self._node.open()
            await self.components.open()
            await self._node.run()
            ready(self._listeners.addresses)
            await self._stop_requested.wait()
            await self._node.prepare_stop()
            self._tick.stop()
            await self._lifecycle.drain()
        finally:
            self.components.close()

    def _prepare_store(self) -> None:
        """Resume the time of the store, adopt changed defaults, and sweep what is due.

        The defaults are adopted before anything acts on due messages."""
        committer = self.context.committer
        committer.resume_time()
        if committer.read(partial(expiry_sweeper.have_changed, defaults=committer.context.defaults)):
            from yirangmq.broker.bulk import BulkOperations  # an ordinary start does not load it
            from yirangmq.broker.group_commit_threads import ThreadedGroupCommitter

            stored = ThreadedGroupCommitter(self._store)
            BulkOperations(stored, committer.context).adopt_defaults()
        committer.submit(partial(expiry_sweeper.sweep, committer.context), _ignore)
        committer.read(check_unmarked)


def _reserve_reasons(store: Store) -> list[HealthReason]:
    if not getattr(store, "is_short", False):
        return []
    return [health_reason("reserve_used", "the disk is full, and consuming uses the space reserved for it")]


def _disk_of(config: Config, store: Store) -> StoreDisk | None:
    scheme, _, location = config.store_url.partition(":")
    if scheme == "memory":
        return None
    if config.is_clustered:
        etcd: Any = store
        return StoreDisk(Path(config.data).absolute(), 0, 0, etcd.used_bytes, etcd.no_room)
    measure: Callable[[], int] | None = getattr(store, "used_bytes", None)  # not every store has it
    reusable: Callable[[], int] | None = getattr(store, "reusable_bytes", None)
    folder = Path(location).absolute().parent
    return StoreDisk(folder, config.disk_low_bytes, config.max_store_bytes, measure, reusable=reusable)


def _ignore(value: Any, error: Any) -> None:
    """Ignore the result. A sweep that the store refused is repeated when messages are due."""
