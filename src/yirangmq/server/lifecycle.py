"""Lifecycle of a server: watch for outside changes, supervisor notices, shutdown, one-second tick, status.

- The store listener is a thread that reports commits which other processes make to the same store. It waits on the
  store only while a consumer waits for messages, because it sees the server's own commits too.
- Supervisor notices are systemd's datagrams to ``NOTIFY_SOCKET``; without that variable nothing is sent.
- Shutdown stops listening, answers pending requests within ``stop_seconds``, and closes the connections. Leases that
  were taken through this server are kept or released, according to the setting ``on_stop``. Messages of webhook calls
  that do not end in time are released.
- The tick checks connections, disk, metrics, files by date, store errors and the wall clock. It logs only changes.
- The status report collects the facts of ``status``, the server's own metrics, and the programs that may use it.

Everything but the store listener belongs to the loop's thread."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from yirangmq import __version__
from yirangmq.admin.health import StoreDisk
from yirangmq.admin.monitoring import Observing
from yirangmq.admin.registry import Done, Given, Pages, reading
from yirangmq.admin.topics import TopicCalls
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.queries import some_with_leases
from yirangmq.broker.scheduler import Ticking
from yirangmq.broker.settle import Leases
from yirangmq.config.config import Config
from yirangmq.core.access import show as show_programs
from yirangmq.core.errors import QueueError
from yirangmq.core.message import lease_id
from yirangmq.core.ports import Store, Transaction
from yirangmq.core.states import State
from yirangmq.observe.event_loop import LoopWatchdog
from yirangmq.observe.logs import log, values
from yirangmq.observe.metrics import resident_bytes
from yirangmq.protocols.context import House, Refusals
from yirangmq.server.alerting import Alerting
from yirangmq.server.listeners import Entrance
from yirangmq.server.topics import Bridging
from yirangmq.topics.publisher import Publisher
from yirangmq.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import Reading
    from yirangmq.server.cluster import ClusterWay
    from yirangmq.server.failover import PairWay
    from yirangmq.server.journal import DayWay


# -- store listener ----------------------------------------------------------------------------------------------------

WAIT_SECONDS = 0.25
"""Upper bound of one wait, and so of the time that ``stop`` takes."""
PAUSE_SECONDS = 0.02
"""Pause between two notifications. The server's own commits wake the listener too, and must cost nothing."""


class Listener:
    """Store listener: calls ``tell`` from a separate thread when the store may have changed.

    It waits on the store only while ``is_awaited`` returns True (a consumer waits for messages), because the server's
    own commits wake it too."""

    def __init__(self, store: Store, tell: Callable[[], object], is_awaited: Callable[[], bool]) -> None:
        self._store = store
        self._tell = tell
        self._is_awaited = is_awaited
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._end.wait(PAUSE_SECONDS if self._is_awaited() else WAIT_SECONDS):
            if self._is_awaited():
                try:
                    self._store.wait(WAIT_SECONDS)
                except (OSError, QueueError):  # users of the store get the error; check again, as after a change
                    self._end.wait(WAIT_SECONDS)
                if not self._end.is_set():
                    self._tell()

    def stop(self) -> None:
        """Stop listening. Returns when the thread has ended, at most after ``WAIT_SECONDS``."""
        self._end.set()
        self._thread.join()


# -- supervisor notices ------------------------------------------------------------------------------------------------


def notify(text: str) -> None:
    """Send ``READY=1``, ``STOPPING=1`` or ``WATCHDOG=1`` to the supervisor. A missing supervisor is not an error."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.sendto(text.encode(), address)
    except OSError:
        pass


# -- parts of a server -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """Parts of a server that its lifecycle works on."""

    config: Config
    store: Store
    started: float
    """Start of the server on the monotonic clock, in seconds."""
    desk: Desk
    pages: Pages
    ticking: Ticking
    observing: Observing
    topics: Publisher | None
    topic_calls: TopicCalls
    bridging: Bridging
    webhooks: Webhooks
    refusals: Refusals
    house: House
    entrance: Entrance
    alerting: Alerting
    disk: StoreDisk | None
    """None if the store is not on a disk."""
    pair: "PairWay | None"
    cluster: "ClusterWay | None"
    day_files: "DayWay | None"
    watchdog: LoopWatchdog


# -- shutdown ----------------------------------------------------------------------------------------------------------

PER_PAGE = 500
LAST_SECONDS = 1.0
"""Time limit for releasing the messages of unfinished webhook calls."""
STEP_SECONDS = 0.005
"""Poll interval of a stopping server, which waits until its work is done."""


class Ending:
    """Shutdown of a server. Created on the loop's thread."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._loop = asyncio.get_running_loop()

    async def settle(self) -> None:
        """Finish work in progress, within ``stop_seconds``. Release leases if ``on_stop`` is ``release``."""
        parts = self._parts
        until = self._loop.time() + parts.config.stop_seconds
        await self._until(lambda: parts.desk.is_idle and parts.webhooks.is_idle and parts.bridging.is_idle, until)
        await self._end_webhooks()
        if parts.config.on_stop == "release":
            log.info("leases_released", extra=values(leases=await self._release_leases()))

    async def drain(self) -> None:
        """Stop accepting connections and requests, answer all pending requests, then close the connections."""
        notify("STOPPING=1")
        parts, entrance = self._parts, self._parts.entrance
        if parts.pair is not None:
            parts.pair.stop()
        parts.ticking.stop()
        log.info("server_stopping", extra=values(clients=entrance.clients, leases=parts.config.on_stop))
        entrance.close()
        entrance.stop()
        parts.pages.stop()
        parts.webhooks.stop()
        parts.bridging.drain()
        if parts.topics is not None:
            parts.topics.stop()
        until = self._loop.time() + parts.config.stop_seconds
        await self._until(lambda: self._is_idle and parts.webhooks.is_idle, until)
        await self._end_webhooks()
        if parts.config.on_stop == "release" and parts.desk.duty.is_on:
            log.info("leases_released", extra=values(leases=await self._release_leases()))
        entrance.say_bye()
        await self._until(lambda: not entrance.clients, until)
        entrance.abort()
        await asyncio.sleep(0)  # runs the callbacks of the aborted connections

    @property
    def _is_idle(self) -> bool:
        """True if every request is answered."""
        parts = self._parts
        are_topics = parts.topics is None or parts.topics.is_idle
        return parts.desk.is_idle and parts.pages.is_idle and are_topics and parts.bridging.is_idle

    async def _end_webhooks(self) -> None:
        """Abort webhook calls in flight, and wait until their messages are released."""
        webhooks = self._parts.webhooks
        if not webhooks.is_idle:
            webhooks.abort()
            await self._until(lambda: self._is_idle and webhooks.is_idle, self._loop.time() + LAST_SECONDS)

    async def _until(self, is_done: Callable[[], bool], until: float) -> None:
        while not is_done() and self._loop.time() < until:  # noqa: ASYNC110  (several parts, none of which signals it)
            await asyncio.sleep(STEP_SECONDS)

    async def _release_leases(self) -> int:
        """Release the leases that were taken through this server, page by page. Return their number."""
        total = 0
        after, is_first_page = "", True
        while after or is_first_page:
            queues, after = await self._ask(partial(some_with_leases, after=after))
            is_first_page = False
            for queue in queues:
                cursor, is_first = "", True
                while cursor or is_first:
                    count, cursor = await self._ask(partial(self._give_back, queue=queue, cursor=cursor))
                    total, is_first = total + count, False
        return total

    def _give_back(self, transaction: Transaction, queue: str, cursor: str) -> tuple[int, str]:
        page = transaction.scan(queue, State.LEASED, PER_PAGE, cursor)
        ours = [lease_id(message) for message in page.messages if message.consumer in self._parts.house.consumers]
        errors = self._parts.desk.verbs.release(transaction, Leases(ours), None)
        return errors.count(None), page.cursor

    async def _ask(self, work: Callable[[Transaction], Any]) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._parts.desk.submit(
            work, lambda value, error: future.set_exception(error) if error else future.set_result(value)
        )
        return await future


# -- one-second tick ---------------------------------------------------------------------------------------------------

TICK_SECONDS = 1.0


class Rounds:
    """One-second tick, from ``begin`` until ``stopping`` is set. Created on the loop's thread."""

    def __init__(self, parts: ServerParts, stopping: asyncio.Event) -> None:
        self._parts = parts
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._sent_away: dict[str, int] = {}
        self._trouble = ""
        self._ahead = parts.house.clock.ahead_ms()
        self._due: float | None = None

    def tick(self) -> None:
        if self._stopping.is_set():
            return
        now = self._loop.time()
        if self._due is not None:
            self._parts.watchdog.observe_delay(now - self._due)
        self._due = now + TICK_SECONDS
        self._loop.call_later(TICK_SECONDS, self.tick)
        notify("WATCHDOG=1")
        parts = self._parts
        parts.entrance.look_around(self._loop.time())
        self._look_at_disk()
        parts.observing.look(parts.desk)
        if parts.day_files is not None:
            parts.day_files.look()
        self._look_at_clients()
        self._look_at_store()
        self._look_at_clock()

    def _look_at_clock(self) -> None:
        """If the wall clock was set, renew the record of store time. Store time continues without a jump."""
        clock = self._parts.house.clock
        clock.now_ms()  # compares wall clock and monotonic clock
        ahead = clock.ahead_ms()
        if ahead != self._ahead:
            set_by, self._ahead = ahead - self._ahead, ahead
            self._parts.desk.verbs.store_time.renew()
            log.warning("clock_set", extra=values(set_by_seconds=set_by / 1000, ahead_seconds=ahead / 1000))

    def _look_at_clients(self) -> None:
        sent_away = self._parts.entrance.sent_away()
        if sent_away != self._sent_away:
            self._sent_away = sent_away
            log.warning("clients_disconnected", extra=values(since_start=sent_away))

    def _look_at_store(self) -> None:
        trouble = "" if self._parts.desk.last_error is None else str(self._parts.desk.last_error)
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble:
            log.error("store_commit_failed", extra=values(error=trouble))
        else:
            log.info("store_commit_recovered")

    def _look_at_disk(self) -> None:
        disk = self._parts.disk
        if disk is None:
            return
        was_full = disk.full is not None
        with contextlib.suppress(OSError):
            disk.inspect()
        if was_full != (disk.full is not None):
            if disk.full is None:
                log.warning("publishing_resumed", extra=values(free_bytes=disk.free, used_bytes=disk.used))
            else:
                about = values(error=str(disk.full), free_bytes=disk.free, used_bytes=disk.used)
                log.warning("publishing_refused", extra=about)


# -- status report and metrics -----------------------------------------------------------------------------------------


class Telling:
    """Status report and metrics of a server."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts

    def facts(self) -> dict[str, Any]:
        parts, entrance = self._parts, self._parts.entrance
        return {
            "server": f"yirangmq {__version__}",
            "node": parts.config.node_name,
            "store": parts.config.store_url,
            "durability": parts.store.durability(),
            "addresses": entrance.addresses,
            "uptimeSec": self._uptime(),
            "connections": entrance.clients,
            "accepted": entrance.accepted,
            "sentAway": entrance.sent_away(),
            "topics": parts.topic_calls.facts(),
            "pair": None if parts.pair is None else parts.pair.facts(),
            "cluster": None if parts.cluster is None else parts.cluster.facts(),
            "bridges": parts.bridging.calls.facts(),
            "filesByDate": None if parts.day_files is None else parts.day_files.facts(),
            "alerts": parts.alerting.calls.facts(),
            "stomp": None if entrance.stomp is None else entrance.stomp.describe(),
        }

    def programs(self, desk: Desk, given: Given, done: Done) -> None:
        """Report the programs that may connect, their routes, and the clients that were refused."""
        reading(given, lambda values: None)
        rows = show_programs(self._parts.config.programs, self._parts.config.routes)
        done({"programs": rows, "refused": self._parts.refusals.document()}, None)

    def samples(self) -> "dict[str, Reading]":
        """Return the metrics of the server and of its parts."""
        parts = self._parts
        found = self._own() | self._measured()
        for calls in (parts.topic_calls, parts.bridging.calls, parts.alerting.calls):
            found |= calls.samples()
        for part in (parts.entrance.stomp, parts.pair):
            found |= {} if part is None else part.samples()
        return found

    def _own(self) -> "dict[str, Reading]":
        parts, entrance = self._parts, self._parts.entrance
        labels = {
            "version": __version__,
            "node": parts.config.node_name,
            "durability": parts.store.durability(),
        }
        return {
            "yirangmq_loop_stall_seconds": parts.watchdog.delays,
            "yirangmq_connections": [({}, entrance.clients)],
            "yirangmq_connections_total": [({}, entrance.accepted)],
            "yirangmq_sent_away_total": [({"reason": why}, n) for why, n in sorted(entrance.sent_away().items())],
            "yirangmq_clients_refused_total": [
                ({"door": door, "reason": why}, n) for (door, why), n in sorted(parts.refusals.counts.items())
            ],
            "yirangmq_delayed_attempts_total": [
                ({}, 0 if parts.house.attempts is None else parts.house.attempts.delayed)
            ],
            "yirangmq_deliveries_total": [
                ({"queue": queue, "status": status}, n)
                for (queue, status), n in sorted(parts.desk.verbs.happened.deliveries.totals.items())
            ],
            "yirangmq_uptime_seconds": [({}, self._uptime())],
            "yirangmq_info": [(labels, 1)],
        }

    def _measured(self) -> "dict[str, Reading]":
        """Return the measured metrics. Those that are not available are left out."""
        disk = self._parts.disk
        measured = {
            "yirangmq_resident_memory_bytes": resident_bytes(),
            "yirangmq_disk_free_bytes": None if disk is None else disk.free,
            "yirangmq_store_used_bytes": None if disk is None else disk.used,
        }
        return {name: [({}, value)] for name, value in measured.items() if value is not None}

    def _uptime(self) -> float:
        return round(time.monotonic() - self._parts.started, 3)
