"""Server: builds the parts, wires them together, runs them and closes them; file access checks for ``health``.

Order of the start: store time, changed defaults and a first sweep; the topic log and its bridges; the listeners; then
background work. A standby or a follower starts background work only when it becomes active or leader. Closing runs
every step even if an earlier one fails, because a lock that stays held would keep the next server out. Pair, cluster
and files by date are imported only where they are configured.

The file access checks report files and folders that other users of the machine can reach. Files inside the data folder
are protected by the mode of that folder, so their own modes do not matter. ``fsio.permissions`` judges the modes."""

import asyncio
import os
import ssl
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from yirangmq import __version__
from yirangmq.admin.health import FullStoreLatch, ServerHealth, StoreDisk
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
from yirangmq.core.consumer_registry import MemoryConsumerRegistry
from yirangmq.core.errors import QueueError
from yirangmq.core.events import TraceStep
from yirangmq.core.health import HealthReason, health_reason
from yirangmq.core.ports import Store, Transaction
from yirangmq.fsio.permissions import GROUP, describe_wide_mode
from yirangmq.observe.event_loop import BusyPoll, LoopWatchdog
from yirangmq.observe.traces import load as load_traces
from yirangmq.protocols.context import Authenticator, RefusedClients, ServerContext, ServerIdentity, WrongTokenLimiter
from yirangmq.protocols.listen import ListenerOptions, unguarded
from yirangmq.server.alerting import AlertService, AlertSources
from yirangmq.server.lifecycle import ServerParts, ServerTick, Shutdown, StatusReport, StoreListener, notify
from yirangmq.server.listeners import ServerListeners
from yirangmq.server.topics import ServerBatches, ServerBridges, publisher_of
from yirangmq.stores.open import find_wide_permissions
from yirangmq.webhooks.webhooks import Webhooks, read_secret

if TYPE_CHECKING:
    from yirangmq.server.cluster import ServerClusterNode
    from yirangmq.server.failover import ServerPairNode
    from yirangmq.server.journal import DayFilesMaintenance


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
    """Composition root: creates and connects the parts of a server, and runs them on the loop's thread.

    ``ready`` is called once with the addresses. ``stop`` ends ``run`` gracefully."""

    def __init__(self, config: Config, store: Store, secrets: Secrets) -> None:
        self._config = config
        self._store = store
        self._secrets = secrets
        self._loop = asyncio.get_running_loop()
        self._stop_requested = asyncio.Event()
        self._stopping = asyncio.Event()
        """Set after a node of a pair has handed over: until then it serves its clients."""
        self._started = time.monotonic()
        clock = SystemClock()
        ids = TimeOrderedIds(clock.now_ms)
        context = TransactionContext(clock, ids, config.policy_defaults)
        self._committer = GroupCommitter(
            store, context, clock, self._loop.call_soon, self._loop.call_later, busy_seconds=config.busy_seconds
        )
        self._watchdog = LoopWatchdog(self._loop)
        self._committer.before_commit.append(self._watchdog.note_activity)
        if config.stay_awake != OFF and processors() > 1:
            busy_poll = BusyPoll(self._loop.call_soon, yield_processor)
            self._committer.before_commit.append(busy_poll.on_request)
            self._committer.after_commit.append(busy_poll.on_reply)
        self._check_workers = CheckWorkers(context.admission, self._loop.call_soon_threadsafe)
        self._committer.set_check_workers(self._check_workers)
        self._pages = PagedMethods(store, self._committer, clock, ids, self._loop.call_soon_threadsafe)
        self._disk = _disk_of(config, store)
        self._full_latch = FullStoreLatch(self._committer, clock)
        self._scheduler = Scheduler(self._committer, clock)
        self._monitoring = ServerMonitor(clock, lambda: self._status_report.samples(), config.metrics_max_queues)
        self._topics = publisher_of(config)
        if self._topics is not None:
            self._topics.after_commit.append(self._watchdog.note_activity)
        self._topic_calls = TopicMethods(self._topics, clock)
        self._bridges = ServerBridges(config, self._committer, clock, self._topics, self._publish_refusal)
        self._batches = ServerBatches(config, self._committer, clock, ids, self._topics)
        self._refusals = RefusedClients(clock, self._monitoring.feed.on_events)
        self._webhooks = Webhooks(
            self._committer, clock, partial(read_secret, Path(config.secrets_folder)), networks=config.outgoing_networks
        )
        calls = self._build_calls(context, clock)
        self._context = self._build_context(calls, clock, ids)
        self._webhooks.register(calls, self._context.consumers)
        self._cluster = self._build_cluster() if config.is_clustered else None
        guard = unguarded if self._cluster is None else self._cluster.proxy.guard
        self._listeners = ServerListeners(
            config, self._context, ListenerOptions(secrets.tls, guard), (*secrets.grants, *secrets.programs)
        )
        self._pair = self._build_pair(calls) if config.pair_peer else None
        self._day_files = self._build_day_files(calls) if config.day_files_folder else None
        sources = AlertSources(
            self._committer,
            clock,
            self._disk,
            lambda: self._listeners.refused(),
            self._pair,
            self._full_latch,
            self._topics,
        )
        self._alerting = AlertService(config, sources)
        self._alerting.register(calls, context.event_buffer)
        parts = self._build_parts()
        self._status_report = StatusReport(parts)
        self._shutdown = Shutdown(parts)
        self._tick = ServerTick(parts, self._stopping)

    def _build_calls(self, context: TransactionContext, clock: SystemClock) -> MethodRegistry:
        """Build the registry of methods that all protocols serve."""
        reasons = (
            self._topic_calls.reasons,
            self._bridges.calls.reasons,
            self._pair_reasons,
            self._watchdog.reasons,
            access_reasons(self._config),
            partial(_reserve_reasons, self._store),
        )
        health = ServerHealth(
            clock, self._disk, self._config.backlog_limit, reasons, self._pair_facts, self._full_latch
        )
        rates = self._monitoring.metrics.rates_of
        facts, clients = (lambda: self._status_report.facts()), (lambda: self._listeners.describe())
        calls = MethodRegistry(
            context, self._pages, ServerSources(clock, health, facts, clients, MemoryConsumerRegistry(clock), rates)
        )
        self._monitoring.register(context.event_buffer, calls)
        self._topic_calls.register(calls, self._monitoring.feed.on_events)
        self._bridges.calls.register(calls)
        calls.add_entry("programs", lambda committer, given, done: self._status_report.programs(committer, given, done))
        traces = load_traces()
        if traces is not None:
            context.event_buffer.add_listener(traces.on_events, [TraceStep])
            context.event_buffer.is_traced = True
        return calls

    def _build_context(self, calls: MethodRegistry, clock: SystemClock, ids: TimeOrderedIds) -> ServerContext:
        """Build the context that the sessions of all protocols share."""
        config, secrets = self._config, self._secrets
        attempts = WrongTokenLimiter(time.monotonic, self._committer.later)
        return ServerContext(
            self._committer,
            clock,
            ids,
            calls,
            ServerIdentity(
                f"yirangmq {__version__}", config.node_name, self._store.durability(), config.max_frame_bytes
            ),
            secrets.token,
            self._disk,
            topics=self._topics,
            feed=self._monitoring.feed,
            batches=self._batches.batches,
            add_role=self._add_role if config.pair_peer else None,
            authenticator=Authenticator(secrets.programs, attempts),
            attempts=attempts,
            refused_clients=self._refusals,
        )

    def _build_parts(self) -> ServerParts:
        return ServerParts(
            config=self._config,
            store=self._store,
            started=self._started,
            committer=self._committer,
            pages=self._pages,
            scheduler=self._scheduler,
            monitoring=self._monitoring,
            topics=self._topics,
            topic_calls=self._topic_calls,
            bridges=self._bridges,
            webhooks=self._webhooks,
            refusals=self._refusals,
            context=self._context,
            listeners=self._listeners,
            alerting=self._alerting,
            disk=self._disk,
            pair=self._pair,
            cluster=self._cluster,
            day_files=self._day_files,
            watchdog=self._watchdog,
        )

    def stop(self) -> None:
        self._stop_requested.set()

    async def run(self, ready: Callable[[list[str]], None]) -> None:
        """Run until ``stop``; then answer pending requests, and keep or release leases."""
        listener = None
        try:
            self._tick.tick()
            if self._cluster is None:
                self._committer.resume_time()
                self._adopt_defaults()
                self._committer.submit(partial(expiry_sweeper.sweep, self._committer.context), _ignore)
                self._committer.read(check_unmarked)
            never_wait: Callable[[], None] | None = getattr(self._store, "never_wait", None)
            if never_wait is not None:  # from here on other work shares the loop
                never_wait()
            if self._pair is not None:
                await self._pair.open()
            await self._open()
            if not self._config.store_url.startswith(("memory:", "etcd:")):
                on_events = partial(self._loop.call_soon_threadsafe, self._committer.notify_external_change)
                listener = StoreListener(self._store, on_events, lambda: self._committer.waiting_consumers.has_waiters)
            self._alerting.start()
            if self._cluster is not None:
                await self._cluster.open(self._listeners.addresses)
            if self._pair is not None:
                self._pair.run()
            elif self._cluster is None:
                self._start_work()
            ready(self._listeners.addresses)
            await self._stop_requested.wait()
            if self._pair is not None:
                notify("STOPPING=1")
                await self._pair.prepare_stop()
            self._stopping.set()
            await self._shutdown.drain()
        finally:
            self._close(listener)

    def _close(self, listener: StoreListener | None) -> None:
        """Close every part even if an earlier one fails: a lock that stays held would keep the next server out."""
        with ExitStack() as stack:  # the callbacks run in reverse order
            stack.callback(self._watchdog.stop)
            if listener is not None:
                stack.callback(listener.stop)
            if self._topics is not None:
                stack.callback(self._topics.close)
            stack.callback(self._bridges.stop)
            stack.callback(self._batches.stop)
            stack.callback(self._check_workers.close)
            stack.callback(self._pages.stop)
            stack.callback(self._listeners.close)
            if self._cluster is not None:
                stack.callback(self._cluster.close)
            stack.callback(self._alerting.stop)
            if self._pair is not None:
                stack.callback(self._pair.close)

    def _adopt_defaults(self) -> None:
        """Adopt changed defaults. Must run before anything acts on due messages."""
        if self._committer.read(partial(expiry_sweeper.have_changed, defaults=self._committer.context.defaults)):
            from yirangmq.broker.bulk import BulkOperations  # an ordinary start does not load it
            from yirangmq.broker.group_commit_threads import ThreadedGroupCommitter

            BulkOperations(ThreadedGroupCommitter(self._store), self._committer.context).adopt_defaults()

    async def _open(self) -> None:
        """Start the topic log and its bridges, then open the listeners. A standby only loads the bridges."""
        if self._topics is None:
            await self._listeners.open()
            return
        self._topics.start()
        self._bridges.start() if self._pair is None else self._bridges.load()
        try:
            await self._listeners.open()
        except QueueError as error:
            self._topics.fail(error)
            raise
        self._topics.mark_listening()
        self._topics.mark_online()

    # -- background work -----------------------------------------------------------------------------------------------

    def _start_work(self) -> None:
        self._batches.start()
        self._scheduler.start()
        self._webhooks.start()
        self._bridges.start()

    def _stop_work(self) -> None:
        self._batches.pause()
        self._scheduler.stop()
        self._webhooks.stop()
        self._bridges.drain()

    def _build_day_files(self, calls: MethodRegistry) -> "DayFilesMaintenance":
        from yirangmq.server.journal import build_day_files  # a server without them does not load them

        cluster = self._cluster
        leads = None if cluster is None else lambda: cluster.is_on
        return build_day_files(self._config, cast("Any", self._store), self._pages, self._context.clock, calls, leads)

    # -- node of a pair ------------------------------------------------------------------------------------------------

    def _build_pair(self, calls: MethodRegistry) -> "ServerPairNode":
        from yirangmq.server.failover import PairNodeParts, ServerPairNode  # a server alone does not load it

        parts = PairNodeParts(
            self._committer,
            self._pages,
            self._context.clock,
            self._topics,
            self._start_work,
            self._stop_work,
            lambda: self._listeners.open_stomp(),
            lambda why: self._listeners.redirect(why),
            lambda: self._shutdown.finish_work(),
            lambda: self._listeners.addresses,
        )
        pair = ServerPairNode(self._config, self._secrets.pair_key, parts)
        pair.register_calls(calls)
        return pair

    # -- node of a store in etcd ---------------------------------------------------------------------------------------

    def _build_cluster(self) -> "ServerClusterNode":
        from yirangmq.server.cluster import ClusterNodeParts, ServerClusterNode  # a server alone does not load it

        node = ServerClusterNode(self._config, cast("Any", self._store), self._secrets.tls)
        parts = ClusterNodeParts(
            self._committer,
            self._context.clock,
            self._start_work,
            self._stop_work,
            lambda why: self._listeners.redirect(why),
            self._release_stale_leases,
            self._publish_refusal,
        )
        node.attach(parts)
        return node

    def _release_stale_leases(self, transaction: Transaction) -> None:
        if self._listeners.stomp is not None:
            self._listeners.stomp.release_stale_leases(transaction)

    def _add_role(self, introduction: ServerIdentity) -> ServerIdentity:
        return introduction if self._pair is None else self._pair.add_role(introduction)

    def _pair_reasons(self) -> list[HealthReason]:
        return [] if self._pair is None else self._pair.reasons()

    def _pair_facts(self) -> dict[str, Any]:
        return {} if self._pair is None else {"pair": self._pair.facts()}

    def _publish_refusal(self) -> QueueError | None:
        """Return the reason for which publishing is refused, or None."""
        return None if self._disk is None else self._disk.refusal()


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
