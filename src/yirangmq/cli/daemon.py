"""One server: the parts are built here and handed to each other, run, and brought to an orderly end.

Knows: every part. Does not know: flags, files of settings, exit codes."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from yirangmq import __version__
from yirangmq.broker.adoption import check_unmarked
from yirangmq.broker.consumers import Consumers
from yirangmq.broker.desk import Desk
from yirangmq.broker.lane import Lane
from yirangmq.broker.lines import Lines
from yirangmq.broker.ticking import Ticking
from yirangmq.broker.verbs import Leases, Verbs
from yirangmq.broker.wholesale import Wholesale
from yirangmq.cli.alerting import Alerting, Sources
from yirangmq.cli.batching import Batching
from yirangmq.cli.bridging import Bridging
from yirangmq.cli.dayway import DayWay, day_way
from yirangmq.cli.entrance import Entrance
from yirangmq.cli.feeding import publisher_of
from yirangmq.cli.listener import Listener
from yirangmq.cli.notify import notify
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.config.config import Config
from yirangmq.core.access import Grant
from yirangmq.core.errors import QueueError
from yirangmq.core.message import lease_id
from yirangmq.core.ports import Store, Transaction
from yirangmq.core.programs import show as show_programs
from yirangmq.core.states import State
from yirangmq.doors.calls import Calls, Site
from yirangmq.doors.gate import Gate
from yirangmq.doors.health import Disk, Health, Reason
from yirangmq.doors.listening import WayIn, open_to_all
from yirangmq.doors.observing import Observing
from yirangmq.doors.paged import Done, Given, Pages
from yirangmq.doors.refusing import Refusals
from yirangmq.doors.session import House
from yirangmq.doors.topics import TopicCalls
from yirangmq.doors.values import reading
from yirangmq.doors.webhooks.secrets import read_secret
from yirangmq.doors.webhooks.webhooks import Webhooks
from yirangmq.observe.logs import log, values
from yirangmq.observe.process import resident_bytes
from yirangmq.observe.prometheus import Told
from yirangmq.observe.traces import load as load_traces
from yirangmq.wire.calls import Welcome

if TYPE_CHECKING:
    from yirangmq.cli.clusterway import ClusterWay
    from yirangmq.cli.pairway import PairWay

TICK_SECONDS = 1.0
PER_PAGE = 500
LAST_SECONDS = 1.0
"""For giving back what webhooks did not finish."""
STEP_SECONDS = 0.005
"""How often a stopping server looks whether its work is done."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """What is read from files before the server starts."""

    token: str = ""
    tls: ssl.SSLContext | None = None
    grants: tuple[Grant, ...] = ()
    """Of HTTP clients."""
    pair_key: str = ""
    programs: tuple[Grant, ...] = ()


class Daemon:
    """``ready`` is called once with the addresses; ``stop`` ends ``run`` in good order."""

    def __init__(self, config: Config, store: Store, secrets: Secrets) -> None:
        self._config = config
        self._store = store
        self._secrets = secrets
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._started = time.monotonic()
        clock, ids = SystemClock(), TimeOrderedIds()
        verbs = Verbs(clock, ids, config.inherited)
        self._desk = Desk(store, verbs, clock, self._loop.call_soon, self._loop.call_later)
        self._lines = Lines(verbs.gate, self._loop.call_soon_threadsafe)
        self._desk.clear_by(self._lines)
        self._pages = Pages(store, self._desk, clock, ids, self._loop.call_soon_threadsafe)
        self._disk = _disk_of(config, store)
        self._ticking = Ticking(self._desk, clock)
        self._observing = observing = Observing(clock, self._samples)
        rates = observing.metrics.rates
        self._topics = publisher_of(config)
        self._topic_calls = TopicCalls(self._topics, clock)
        self._bridging = Bridging(config, self._desk, clock, self._topics, self._full)
        reasons = (self._topic_calls.reasons, self._bridging.calls.reasons, self._pair_reasons)
        health = Health(clock, self._disk, config.backlog_limit, reasons, self._pair_about)
        site = Site(clock, health, self._facts, lambda: self._entrance.describe(), Consumers(clock), rates)
        calls = Calls(verbs, self._pages, site)
        observing.begin(verbs.happened, calls)
        self._topic_calls.begin(calls, observing.feed.hear)
        self._bridging.calls.begin(calls)
        traces = load_traces()
        if traces is not None:
            verbs.happened.listen(traces.hear)
            verbs.happened.is_traced = True
        self._refusals = Refusals(clock, observing.feed.hear)
        self._batching = Batching(config, self._desk, clock, ids, self._topics)
        self._house = House(
            self._desk,
            clock,
            ids,
            calls,
            Welcome(f"yirangmq {__version__}", config.node_name, store.durability(), config.max_frame_bytes),
            secrets.token,
            self._disk,
            topics=self._topics,
            feed=observing.feed,
            batches=self._batching.batches,
            greet=self._greet if config.pair_peer else None,
            gate=Gate(secrets.programs),
            refusing=self._refusals,
        )
        calls.add_entry("programs", self._programs)
        self._webhooks = Webhooks(self._desk, clock, partial(read_secret, Path(config.secrets_folder)))
        self._webhooks.begin(calls, self._house.consumers)
        self._cluster = self._clustered() if config.is_clustered else None
        guard = open_to_all if self._cluster is None else self._cluster.gate.guard
        self._entrance = Entrance(config, self._house, WayIn(secrets.tls, guard), (*secrets.grants, *secrets.programs))
        self._sent_away: dict[str, int] = {}
        self._trouble = ""
        self._pair = self._paired(calls) if config.pair_peer else None
        self._day_files: DayWay | None = day_way(config, store, self._pages, clock, calls)
        sources = Sources(self._desk, clock, self._disk, lambda: self._entrance.refused(), self._pair)
        self._alerting = Alerting(config, sources)
        self._alerting.begin(calls, verbs.happened)

    def stop(self) -> None:
        self._stopping.set()

    async def run(self, ready: Callable[[list[str]], None]) -> None:
        """Until ``stop``; then what was asked for is answered, and leases are kept or given back."""
        listener = None
        try:
            self._tick()
            if self._cluster is None:
                Wholesale(Lane(self._store), self._desk.verbs, self._house.clock).adopt_defaults()
                self._desk.submit(self._desk.verbs.sweep, _ignore)
                self._desk.read(check_unmarked)
            if self._pair is not None:
                await self._pair.open()
            await self._open()
            if not self._config.store_url.startswith(("memory:", "etcd:")):
                listener = Listener(self._store, lambda: self._loop.call_soon_threadsafe(self._desk.news))
            self._alerting.start()
            if self._cluster is not None:
                await self._cluster.open(self._entrance.addresses)
            if self._pair is not None:
                self._pair.run()
            elif self._cluster is None:
                self._begin_work()
            ready(self._entrance.addresses)
            await self._stopping.wait()
            await self._drain()
        finally:
            if self._pair is not None:
                self._pair.close()
            self._alerting.stop()
            if self._cluster is not None:
                self._cluster.close()
            self._entrance.close()
            self._pages.stop()
            self._lines.close()
            self._batching.stop()
            self._bridging.stop()
            if self._topics is not None:
                self._topics.close()
            if listener is not None:
                listener.stop()

    async def _open(self) -> None:
        """First the log of the topics, if there is one, and what it feeds; then whoever wants it can come."""
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

    # -- what works without being asked -----------------------------------------------------------------------------

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

    # -- one of a pair ----------------------------------------------------------------------------------------------

    def _paired(self, calls: Calls) -> "PairWay":
        from yirangmq.cli.pairway import PairWay, Parts  # a server alone does not load it

        parts = Parts(
            self._desk,
            self._pages,
            self._house.clock,
            self._topics,
            self._begin_work,
            self._end_work,
            lambda: self._entrance.begin(),
            lambda why: self._entrance.move(why),
            self._settle,
            lambda: self._entrance.addresses,
        )
        pair = PairWay(self._config, self._secrets.pair_key, parts)
        pair.begin_calls(calls)
        return pair

    # -- one of the nodes before etcd --------------------------------------------------------------------------------

    def _clustered(self) -> "ClusterWay":
        from yirangmq.cli.clusterway import ClusterWay, Parts  # a server alone does not load it

        way = ClusterWay(self._config, cast("Any", self._store), self._secrets.tls)
        parts = Parts(
            self._desk,
            self._house.clock,
            self._begin_work,
            self._end_work,
            lambda why: self._entrance.move(why),
            self._tidy,
            self._full,
        )
        way.begin(parts)
        return way

    def _tidy(self, transaction: Transaction) -> None:
        if self._entrance.stomp is not None:
            self._entrance.stomp.tidy(transaction)

    def _greet(self, welcome: Welcome) -> Welcome:
        return welcome if self._pair is None else self._pair.greet(welcome)

    def _pair_reasons(self) -> list[Reason]:
        return [] if self._pair is None else self._pair.reasons()

    def _pair_about(self) -> dict[str, Any]:
        return {} if self._pair is None else {"pair": self._pair.facts()}

    async def _settle(self) -> None:
        """What is under way is finished; leases are given back, if they are at a stop."""
        until = self._loop.time() + self._config.stop_seconds
        await self._until(lambda: self._desk.is_idle and self._webhooks.is_idle and self._bridging.is_idle, until)
        await self._end_webhooks()
        if self._config.on_stop == "release":
            log.info("released", extra=values(leases=await self._release_leases()))

    # -- stopping -------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """No new clients, no new requests; answers to all that was asked; then goodbye."""
        notify("STOPPING=1")
        if self._pair is not None:
            self._pair.stop()
        self._ticking.stop()
        log.info("stopping", extra=values(clients=self._entrance.clients, leases=self._config.on_stop))
        self._entrance.close()
        self._entrance.stop()
        self._pages.stop()
        self._webhooks.stop()
        self._bridging.drain()
        if self._topics is not None:
            self._topics.stop()
        until = self._loop.time() + self._config.stop_seconds
        await self._until(lambda: self._is_idle and self._webhooks.is_idle, until)
        await self._end_webhooks()
        if self._config.on_stop == "release" and self._desk.duty.is_on:
            log.info("released", extra=values(leases=await self._release_leases()))
        self._entrance.say_bye()
        await self._until(lambda: not self._entrance.clients, until)
        self._entrance.abort()
        await asyncio.sleep(0)  # so that the aborted ones are told

    @property
    def _is_idle(self) -> bool:
        """Nothing is asked for that is not answered."""
        are_topics = self._topics is None or self._topics.is_idle
        return self._desk.is_idle and self._pages.is_idle and are_topics and self._bridging.is_idle

    async def _end_webhooks(self) -> None:
        """What is still on its way goes back in line."""
        if not self._webhooks.is_idle:
            self._webhooks.abort()
            await self._until(lambda: self._is_idle and self._webhooks.is_idle, self._loop.time() + LAST_SECONDS)

    async def _until(self, is_done: Callable[[], bool], until: float) -> None:
        while not is_done() and self._loop.time() < until:  # noqa: ASYNC110  (several parts, none tells when it is)
            await asyncio.sleep(STEP_SECONDS)

    async def _release_leases(self) -> int:
        """What was leased through this server goes back in line, page by page."""
        total = 0
        for queue in await self._ask(lambda transaction: transaction.queues()):
            cursor, is_first = "", True
            while cursor or is_first:
                count, cursor = await self._ask(partial(self._give_back, queue=queue, cursor=cursor))
                total, is_first = total + count, False
        return total

    def _give_back(self, transaction: Transaction, queue: str, cursor: str) -> tuple[int, str]:
        page = transaction.scan(queue, State.LEASED, PER_PAGE, cursor)
        ours = [lease_id(message) for message in page.messages if message.consumer in self._house.consumers]
        errors = self._desk.verbs.release(transaction, Leases(ours), None)
        return errors.count(None), page.cursor

    async def _ask(self, work: Callable[[Transaction], Any]) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._desk.submit(work, lambda value, error: future.set_exception(error) if error else future.set_result(value))
        return await future

    # -- once a second --------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._stopping.is_set():
            return
        self._loop.call_later(TICK_SECONDS, self._tick)
        notify("WATCHDOG=1")
        self._entrance.look_around(self._loop.time())
        self._look_at_disk()
        self._observing.look(self._desk)
        if self._day_files is not None:
            self._day_files.look()
        if self._entrance.sent_away() != self._sent_away:
            self._sent_away = self._entrance.sent_away()
            log.warning("clients sent away", extra=values(since_start=self._sent_away))
        trouble = "" if self._desk.trouble is None else str(self._desk.trouble)
        if trouble != self._trouble:
            self._trouble = trouble
            log.error("the store refuses", extra=values(error=trouble)) if trouble else log.info(
                "the store works again"
            )

    def _look_at_disk(self) -> None:
        if self._disk is None:
            return
        was_full = self._disk.full is not None
        with contextlib.suppress(OSError):
            self._disk.look()
        if was_full != (self._disk.full is not None):
            state = "publishing goes on" if was_full else f"publishing is refused: {self._disk.full}"
            log.warning(state, extra=values(free_bytes=self._disk.free, used_bytes=self._disk.used))

    # -- who we are -----------------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        return {
            "server": f"yirangmq {__version__}",
            "node": self._config.node_name,
            "store": self._config.store_url,
            "durability": self._store.durability(),
            "addresses": self._entrance.addresses,
            "uptimeSec": round(time.monotonic() - self._started, 3),
            "connections": self._entrance.clients,
            "accepted": self._entrance.accepted,
            "sentAway": self._entrance.sent_away(),
            "topics": self._topic_calls.facts(),
            "pair": None if self._pair is None else self._pair.facts(),
            "cluster": None if self._cluster is None else self._cluster.facts(),
            "bridges": self._bridging.calls.facts(),
            "filesByDate": None if self._day_files is None else self._day_files.facts(),
            "alerts": self._alerting.calls.facts(),
            "stomp": None if self._entrance.stomp is None else self._entrance.stomp.describe(),
        }

    def _programs(self, desk: Desk, given: Given, done: Done) -> None:
        """Who may come, who may send to whom, and who was refused."""
        reading(given, lambda values: None)
        rows = show_programs(self._config.programs, self._config.routes)
        done({"programs": rows, "refused": self._refusals.document()}, None)

    def _samples(self) -> dict[str, Told]:
        """The server's own metrics; those it cannot tell are left out."""
        labels = {"version": __version__, "node": self._config.node_name, "durability": self._store.durability()}
        found: dict[str, Told] = {
            "yirangmq_connections": [({}, self._entrance.clients)],
            "yirangmq_connections_total": [({}, self._entrance.accepted)],
            "yirangmq_sent_away_total": [({"reason": why}, n) for why, n in sorted(self._entrance.sent_away().items())],
            "yirangmq_clients_refused_total": [
                ({"door": door, "reason": why}, n) for (door, why), n in sorted(self._refusals.counts.items())
            ],
            "yirangmq_deliveries_total": [
                ({"queue": queue, "status": status}, n)
                for (queue, status), n in sorted(self._desk.verbs.happened.deliveries.totals.items())
            ],
            "yirangmq_uptime_seconds": [({}, round(time.monotonic() - self._started, 3))],
            "yirangmq_info": [(labels, 1)],
        }
        measured = {
            "yirangmq_resident_memory_bytes": resident_bytes(),
            "yirangmq_disk_free_bytes": None if self._disk is None else self._disk.free,
            "yirangmq_store_used_bytes": None if self._disk is None else self._disk.used,
        }
        found |= {name: [({}, value)] for name, value in measured.items() if value is not None}
        stomp = {} if self._entrance.stomp is None else self._entrance.stomp.samples()
        pair = {} if self._pair is None else self._pair.samples()
        parts = (self._topic_calls.samples(), self._bridging.calls.samples(), self._alerting.calls.samples())
        for samples in (*parts, stomp, pair):
            found |= samples
        return found

    def _full(self) -> QueueError | None:
        """Why nothing may be published now."""
        return None if self._disk is None else self._disk.full


def _disk_of(config: Config, store: Store) -> Disk | None:
    scheme, _, place = config.store_url.partition(":")
    if scheme == "memory":
        return None
    if config.is_clustered:
        from yirangmq.cluster.producing import NEARLY_FULL

        most = round(NEARLY_FULL * cast("Any", store).address.quota)
        return Disk(Path(config.data).absolute(), 0, most, cast("Any", store).used_bytes)
    measure: Callable[[], int] | None = getattr(store, "used_bytes", None)  # not every store can tell
    return Disk(Path(place).absolute().parent, config.disk_low_bytes, config.max_store_bytes, measure)


def _ignore(value: Any, error: Any) -> None:
    """A sweep that the store refused is done again when the time comes."""
