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
from yirangmq.admin.health import Health, Room, StoreDisk
from yirangmq.admin.monitoring import Observing
from yirangmq.admin.registry import Calls, Pages, Site
from yirangmq.admin.topics import TopicCalls
from yirangmq.broker import housekeeping
from yirangmq.broker.admission.workers import Lines
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.housekeeping import check_unmarked
from yirangmq.broker.operations import Verbs
from yirangmq.broker.scheduler import Ticking
from yirangmq.clock import SystemClock, TimeOrderedIds, give_way, processors
from yirangmq.config.config import Config
from yirangmq.config.settings import OFF
from yirangmq.core.access import Grant
from yirangmq.core.consumer_registry import Consumers
from yirangmq.core.errors import QueueError
from yirangmq.core.events import Traced
from yirangmq.core.health import HealthReason, health_reason
from yirangmq.core.ports import Store, Transaction
from yirangmq.fsio.permissions import GROUP, loose
from yirangmq.observe.event_loop import Lookout, LoopWatchdog
from yirangmq.observe.traces import load as load_traces
from yirangmq.protocols.context import Attempts, Gate, House, Introduction, Refusals
from yirangmq.protocols.listen import WayIn, open_to_all
from yirangmq.server.alerting import Alerting, Sources
from yirangmq.server.lifecycle import Ending, Listener, Rounds, ServerParts, Telling
from yirangmq.server.listeners import Entrance
from yirangmq.server.topics import Batching, Bridging, publisher_of
from yirangmq.stores.open import loose_parts
from yirangmq.webhooks.webhooks import Webhooks, read_secret

if TYPE_CHECKING:
    from yirangmq.server.cluster import ClusterWay
    from yirangmq.server.failover import PairWay
    from yirangmq.server.journal import DayWay


# -- file access checks ------------------------------------------------------------------------------------------------

OTHERS = 0o007


def access_reasons(config: Config) -> Callable[[], list[HealthReason]]:
    """Return the file access checks for ``health``. The mode of the data folder protects all files inside it."""
    data = Path(config.data).absolute()
    folders = (config.topics_folder, config.day_files_folder, config.pair_folder, config.secrets_folder)
    outside = [path for one in folders if one and not (path := Path(one).absolute()).is_relative_to(data)]
    place = Path(config.store_url.partition(":")[2]).absolute()
    store = "" if place.is_relative_to(data) else config.store_url
    is_shared = config.file_access == "group"

    def reasons() -> list[HealthReason]:
        texts = [f"{folder} {text}" for folder in (data, *outside) if (text := loose(folder))]
        texts += [f"{finding.where} {finding.text}" for finding in loose_parts(store)]
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
    return f"{path} ({setting}) has mode {mode:04o}; run: chmod o= {path}" if mode & OTHERS else ""


# -- the server --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secrets of a server, which are read from files before it starts."""

    token: str = ""
    tls: ssl.SSLContext | None = None
    grants: tuple[Grant, ...] = ()
    """Grants of HTTP clients."""
    pair_key: str = ""
    programs: tuple[Grant, ...] = ()


class Daemon:
    """Composition root: creates and connects the parts of a server, and runs them on the loop's thread.

    ``ready`` is called once with the addresses. ``stop`` ends ``run`` gracefully."""

    def __init__(self, config: Config, store: Store, secrets: Secrets) -> None:
        self._config = config
        self._store = store
        self._secrets = secrets
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._started = time.monotonic()
        clock = SystemClock()
        ids = TimeOrderedIds(clock.now_ms)
        verbs = Verbs(clock, ids, config.inherited)
        self._desk = Desk(
            store, verbs, clock, self._loop.call_soon, self._loop.call_later, busy_seconds=config.busy_seconds
        )
        self._watchdog = LoopWatchdog(self._loop)
        self._desk.before_commit.append(self._watchdog.active)
        if config.stay_awake != OFF and processors() > 1:
            lookout = Lookout(self._loop.call_soon, give_way)
            self._desk.before_commit.append(lookout.asked)
            self._desk.after_commit.append(lookout.answered)
        self._lines = Lines(verbs.gate, self._loop.call_soon_threadsafe)
        self._desk.clear_by(self._lines)
        self._pages = Pages(store, self._desk, clock, ids, self._loop.call_soon_threadsafe)
        self._disk = _disk_of(config, store)
        self._room = Room(self._desk, clock)
        self._ticking = Ticking(self._desk, clock)
        self._observing = Observing(clock, lambda: self._telling.samples(), config.metrics_max_queues)
        self._topics = publisher_of(config)
        if self._topics is not None:
            self._topics.after_turn.append(self._watchdog.active)
        self._topic_calls = TopicCalls(self._topics, clock)
        self._bridging = Bridging(config, self._desk, clock, self._topics, self._full)
        self._batching = Batching(config, self._desk, clock, ids, self._topics)
        self._refusals = Refusals(clock, self._observing.feed.hear)
        self._webhooks = Webhooks(
            self._desk, clock, partial(read_secret, Path(config.secrets_folder)), networks=config.outgoing_networks
        )
        calls = self._calls(verbs, clock)
        self._house = self._furnished(calls, clock, ids)
        self._webhooks.begin(calls, self._house.consumers)
        self._cluster = self._clustered() if config.is_clustered else None
        guard = open_to_all if self._cluster is None else self._cluster.proxy.guard
        self._entrance = Entrance(config, self._house, WayIn(secrets.tls, guard), (*secrets.grants, *secrets.programs))
        self._pair = self._paired(calls) if config.pair_peer else None
        self._day_files = self._by_date(calls) if config.day_files_folder else None
        sources = Sources(self._desk, clock, self._disk, lambda: self._entrance.refused(), self._pair, self._room)
        self._alerting = Alerting(config, sources)
        self._alerting.begin(calls, verbs.happened)
        parts = self._parts()
        self._telling = Telling(parts)
        self._ending = Ending(parts)
        self._rounds = Rounds(parts, self._stopping)

    def _calls(self, verbs: Verbs, clock: SystemClock) -> Calls:
        """Build the registry of methods that all protocols serve."""
        reasons = (
            self._topic_calls.reasons,
            self._bridging.calls.reasons,
            self._pair_reasons,
            self._watchdog.reasons,
            access_reasons(self._config),
            partial(_reserve_reasons, self._store),
        )
        health = Health(clock, self._disk, self._config.backlog_limit, reasons, self._pair_about, self._room)
        rates = self._observing.metrics.rates_of
        facts, clients = (lambda: self._telling.facts()), (lambda: self._entrance.describe())
        calls = Calls(verbs, self._pages, Site(clock, health, facts, clients, Consumers(clock), rates))
        self._observing.begin(verbs.happened, calls)
        self._topic_calls.begin(calls, self._observing.feed.hear)
        self._bridging.calls.begin(calls)
        calls.add_entry("programs", lambda desk, given, done: self._telling.programs(desk, given, done))
        traces = load_traces()
        if traces is not None:
            verbs.happened.listen(traces.hear, [Traced])
            verbs.happened.is_traced = True
        return calls

    def _furnished(self, calls: Calls, clock: SystemClock, ids: TimeOrderedIds) -> House:
        """Build the context that the sessions of all protocols share."""
        config, secrets = self._config, self._secrets
        attempts = Attempts(time.monotonic, self._desk.later)
        return House(
            self._desk,
            clock,
            ids,
            calls,
            Introduction(f"yirangmq {__version__}", config.node_name, self._store.durability(), config.max_frame_bytes),
            secrets.token,
            self._disk,
            topics=self._topics,
            feed=self._observing.feed,
            batches=self._batching.batches,
            greet=self._greet if config.pair_peer else None,
            authenticator=Gate(secrets.programs, attempts),
            attempts=attempts,
            refusing=self._refusals,
        )

    def _parts(self) -> ServerParts:
        return ServerParts(
            config=self._config,
            store=self._store,
            started=self._started,
            desk=self._desk,
            pages=self._pages,
            ticking=self._ticking,
            observing=self._observing,
            topics=self._topics,
            topic_calls=self._topic_calls,
            bridging=self._bridging,
            webhooks=self._webhooks,
            refusals=self._refusals,
            house=self._house,
            entrance=self._entrance,
            alerting=self._alerting,
            disk=self._disk,
            pair=self._pair,
            cluster=self._cluster,
            day_files=self._day_files,
            watchdog=self._watchdog,
        )

    def stop(self) -> None:
        self._stopping.set()

    async def run(self, ready: Callable[[list[str]], None]) -> None:
        """Run until ``stop``; then answer pending requests, and keep or release leases."""
        listener = None
        try:
            self._rounds.tick()
            if self._cluster is None:
                self._desk.resume_time()
                self._adopt_defaults()
                self._desk.submit(self._desk.verbs.sweep, _ignore)
                self._desk.read(check_unmarked)
            never_wait: Callable[[], None] | None = getattr(self._store, "never_wait", None)
            if never_wait is not None:  # from here on other work shares the loop
                never_wait()
            if self._pair is not None:
                await self._pair.open()
            await self._open()
            if not self._config.store_url.startswith(("memory:", "etcd:")):
                hear = partial(self._loop.call_soon_threadsafe, self._desk.news)
                listener = Listener(self._store, hear, lambda: self._desk.serving.is_awaited)
            self._alerting.start()
            if self._cluster is not None:
                await self._cluster.open(self._entrance.addresses)
            if self._pair is not None:
                self._pair.run()
            elif self._cluster is None:
                self._begin_work()
            ready(self._entrance.addresses)
            await self._stopping.wait()
            await self._ending.drain()
        finally:
            self._close(listener)

    def _close(self, listener: Listener | None) -> None:
        """Close every part even if an earlier one fails: a lock that stays held would keep the next server out."""
        with ExitStack() as stack:  # the callbacks run in reverse order
            stack.callback(self._watchdog.stop)
            if listener is not None:
                stack.callback(listener.stop)
            if self._topics is not None:
                stack.callback(self._topics.close)
            stack.callback(self._bridging.stop)
            stack.callback(self._batching.stop)
            stack.callback(self._lines.close)
            stack.callback(self._pages.stop)
            stack.callback(self._entrance.close)
            if self._cluster is not None:
                stack.callback(self._cluster.close)
            stack.callback(self._alerting.stop)
            if self._pair is not None:
                stack.callback(self._pair.close)

    def _adopt_defaults(self) -> None:
        """Adopt changed defaults. Must run before anything acts on due messages."""
        if self._desk.read(partial(housekeeping.are_other, defaults=self._desk.verbs.defaults)):
            from yirangmq.broker.bulk import Wholesale  # an ordinary start does not load it
            from yirangmq.broker.group_commit_threads import Lane

            Wholesale(Lane(self._store), self._desk.verbs, self._house.clock).adopt_defaults()

    async def _open(self) -> None:
        """Start the topic log and its bridges, then open the listeners. A standby only loads the bridges."""
        if self._topics is None:
            await self._entrance.open()
            return
        self._topics.start()
        self._bridging.start() if self._pair is None else self._bridging.load()
        try:
            await self._entrance.open()
        except QueueError as error:
            self._topics.fail(error)
            raise
        self._topics.listening()
        self._topics.online()

    # -- background work -----------------------------------------------------------------------------------------------

    def _begin_work(self) -> None:
        self._batching.start()
        self._ticking.start()
        self._webhooks.start()
        self._bridging.start()

    def _end_work(self) -> None:
        self._batching.rest()
        self._ticking.stop()
        self._webhooks.stop()
        self._bridging.drain()

    def _by_date(self, calls: Calls) -> "DayWay":
        from yirangmq.server.journal import day_way  # a server without them does not load them

        return day_way(self._config, cast("Any", self._store), self._pages, self._house.clock, calls)

    # -- node of a pair ------------------------------------------------------------------------------------------------

    def _paired(self, calls: Calls) -> "PairWay":
        from yirangmq.server.failover import PairWay, Parts  # a server alone does not load it

        parts = Parts(
            self._desk,
            self._pages,
            self._house.clock,
            self._topics,
            self._begin_work,
            self._end_work,
            lambda: self._entrance.open_stomp(),
            lambda why: self._entrance.move(why),
            lambda: self._ending.settle(),
            lambda: self._entrance.addresses,
        )
        pair = PairWay(self._config, self._secrets.pair_key, parts)
        pair.begin_calls(calls)
        return pair

    # -- node of a store in etcd ---------------------------------------------------------------------------------------

    def _clustered(self) -> "ClusterWay":
        from yirangmq.server.cluster import ClusterNodeParts, ClusterWay  # a server alone does not load it

        way = ClusterWay(self._config, cast("Any", self._store), self._secrets.tls)
        parts = ClusterNodeParts(
            self._desk,
            self._house.clock,
            self._begin_work,
            self._end_work,
            lambda why: self._entrance.move(why),
            self._tidy,
            self._full,
        )
        way.attach(parts)
        return way

    def _tidy(self, transaction: Transaction) -> None:
        if self._entrance.stomp is not None:
            self._entrance.stomp.tidy(transaction)

    def _greet(self, welcome: Introduction) -> Introduction:
        return welcome if self._pair is None else self._pair.greet(welcome)

    def _pair_reasons(self) -> list[HealthReason]:
        return [] if self._pair is None else self._pair.reasons()

    def _pair_about(self) -> dict[str, Any]:
        return {} if self._pair is None else {"pair": self._pair.facts()}

    def _full(self) -> QueueError | None:
        """Return the reason for which publishing is refused, or None."""
        return None if self._disk is None else self._disk.refusal()


def _reserve_reasons(store: Store) -> list[HealthReason]:
    if not getattr(store, "is_short", False):
        return []
    return [health_reason("reserve_used", "the disk is full, and consuming uses the space reserved for it")]


def _disk_of(config: Config, store: Store) -> StoreDisk | None:
    scheme, _, place = config.store_url.partition(":")
    if scheme == "memory":
        return None
    if config.is_clustered:
        etcd: Any = store
        return StoreDisk(Path(config.data).absolute(), 0, 0, etcd.used_bytes, etcd.no_room)
    measure: Callable[[], int] | None = getattr(store, "used_bytes", None)  # not every store has it
    reusable: Callable[[], int] | None = getattr(store, "reusable_bytes", None)
    folder = Path(place).absolute().parent
    return StoreDisk(folder, config.disk_low_bytes, config.max_store_bytes, measure, reusable=reusable)


def _ignore(value: Any, error: Any) -> None:
    """Ignore the result. A sweep that the store refused is repeated when messages are due."""
