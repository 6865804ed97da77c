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
from yirangmq.admin.monitoring import ServerMonitor
from yirangmq.admin.registry import Done, Given, PagedMethods, read_arguments
from yirangmq.admin.topics import TopicMethods
from yirangmq.broker.cron_scheduler import Scheduler
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.queries import some_with_leases
from yirangmq.broker.settle import Leases, release
from yirangmq.config.config import Config
from yirangmq.core.access import show as show_programs
from yirangmq.core.errors import QueueError
from yirangmq.core.message import lease_id
from yirangmq.core.ports import Store, Transaction
from yirangmq.core.states import State
from yirangmq.observe.event_loop import LoopWatchdog
from yirangmq.observe.logs import log, values
from yirangmq.observe.metrics import resident_bytes
from yirangmq.protocols.context import RefusedClients, ServerContext
from yirangmq.server.alerting import AlertService
from yirangmq.server.listeners import ServerListeners
from yirangmq.server.topics import ServerBridges
from yirangmq.topics.publisher import Publisher
from yirangmq.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import MetricValue
    from yirangmq.server.cluster import ServerClusterNode
    from yirangmq.server.failover import ServerPairNode
    from yirangmq.server.journal import DayFilesMaintenance


# -- store listener ----------------------------------------------------------------------------------------------------

WAIT_SECONDS = 0.25
"""Upper bound of one wait, and so of the time that ``stop`` takes."""
PAUSE_SECONDS = 0.02
"""Pause between two notifications. The server's own commits wake the listener too, and must cost nothing."""


class StoreListener:
    """Store listener: calls ``on_change`` from a separate thread when the store may have changed.

    It waits on the store only while ``is_awaited`` returns True (a consumer waits for messages), because the server's
    own commits wake it too."""

    def __init__(self, store: Store, on_change: Callable[[], object], is_awaited: Callable[[], bool]) -> None:
        self._store = store
        self._on_change = on_change
        self._is_awaited = is_awaited
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._stop_event.wait(PAUSE_SECONDS if self._is_awaited() else WAIT_SECONDS):
            if self._is_awaited():
                try:
                    self._store.wait(WAIT_SECONDS)
                except (OSError, QueueError):  # users of the store get the error; check again, as after a change
                    self._stop_event.wait(WAIT_SECONDS)
                if not self._stop_event.is_set():
                    self._on_change()

    def stop(self) -> None:
        """Stop listening. Returns when the thread has ended, at most after ``WAIT_SECONDS``."""
        self._stop_event.set()
        self._thread.join()


# -- supervisor notices ------------------------------------------------------------------------------------------------


def notify(text: str) -> None:
    """Send ``READY=1``, ``STOPPING=1`` or ``WATCHDOG=1`` to the supervisor. A missing supervisor is not an error."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(text.encode(), address)
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
    committer: GroupCommitter
    pages: PagedMethods
    scheduler: Scheduler
    monitoring: ServerMonitor
    topics: Publisher | None
    topic_calls: TopicMethods
    bridges: ServerBridges
    webhooks: Webhooks
    refusals: RefusedClients
    context: ServerContext
    listeners: ServerListeners
    alerting: AlertService
    disk: StoreDisk | None
    """None if the store is not on a disk."""
    pair: "ServerPairNode | None"
    cluster: "ServerClusterNode | None"
    day_files: "DayFilesMaintenance | None"
    watchdog: LoopWatchdog


# -- shutdown ----------------------------------------------------------------------------------------------------------

LEASES_PER_PAGE = 500
WEBHOOK_ABORT_SECONDS = 1.0
"""Time limit for releasing the messages of unfinished webhook calls."""
DRAIN_POLL_SECONDS = 0.005
"""Poll interval of a stopping server, which waits until its work is done."""


class Shutdown:
    """Shutdown of a server. Created on the loop's thread."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._loop = asyncio.get_running_loop()

    async def finish_work(self) -> None:
        """Finish work in progress, within ``stop_seconds``. Release leases if ``on_stop`` is ``release``."""
        parts = self._parts
        deadline = self._loop.time() + parts.config.stop_seconds
        await self._wait_until(
            lambda: parts.committer.is_idle and parts.webhooks.is_idle and parts.bridges.is_idle, deadline
        )
        await self._abort_webhooks()
        if parts.config.on_stop == "release":
            log.info("leases_released", extra=values(leases=await self._release_leases()))

    async def drain(self) -> None:
        """Stop accepting connections and requests, answer all pending requests, then close the connections."""
        notify("STOPPING=1")
        parts, listeners = self._parts, self._parts.listeners
        if parts.pair is not None:
            parts.pair.stop()
        parts.scheduler.stop()
        log.info("server_stopping", extra=values(clients=listeners.clients, leases=parts.config.on_stop))
        listeners.close()
        listeners.stop()
        parts.pages.stop()
        parts.webhooks.stop()
        parts.bridges.drain()
        if parts.topics is not None:
            parts.topics.stop()
        deadline = self._loop.time() + parts.config.stop_seconds
        await self._wait_until(lambda: self._is_idle and parts.webhooks.is_idle, deadline)
        await self._abort_webhooks()
        if parts.config.on_stop == "release" and parts.committer.guard.is_on:
            log.info("leases_released", extra=values(leases=await self._release_leases()))
        listeners.send_goodbye()
        await self._wait_until(lambda: not listeners.clients, deadline)
        listeners.abort()
        await asyncio.sleep(0)  # runs the callbacks of the aborted connections

    @property
    def _is_idle(self) -> bool:
        """True if every request is answered."""
        parts = self._parts
        topics_idle = parts.topics is None or parts.topics.is_idle
        return parts.committer.is_idle and parts.pages.is_idle and topics_idle and parts.bridges.is_idle

    async def _abort_webhooks(self) -> None:
        """Abort webhook calls in flight, and wait until their messages are released."""
        webhooks = self._parts.webhooks
        if not webhooks.is_idle:
            webhooks.abort()
            await self._wait_until(
                lambda: self._is_idle and webhooks.is_idle, self._loop.time() + WEBHOOK_ABORT_SECONDS
            )

    async def _wait_until(self, is_done: Callable[[], bool], deadline: float) -> None:
        while not is_done() and self._loop.time() < deadline:  # noqa: ASYNC110  (several parts, none of which signals it)
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    async def _release_leases(self) -> int:
        """Release the leases that were taken through this server, page by page. Return their number."""
        total = 0
        after, is_first_page = "", True
        while after or is_first_page:
            queues, after = await self._submit(partial(some_with_leases, after=after))
            is_first_page = False
            for queue in queues:
                cursor, is_first = "", True
                while cursor or is_first:
                    count, cursor = await self._submit(partial(self._release_page, queue=queue, cursor=cursor))
                    total, is_first = total + count, False
        return total

    def _release_page(self, transaction: Transaction, queue: str, cursor: str) -> tuple[int, str]:
        page = transaction.scan(queue, State.LEASED, LEASES_PER_PAGE, cursor)
        ours = [lease_id(message) for message in page.messages if message.consumer in self._parts.context.consumers]
        errors = release(self._parts.committer.context, transaction, Leases(ours), None)
        return errors.count(None), page.cursor

    async def _submit(self, work: Callable[[Transaction], Any]) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._parts.committer.submit(
            work, lambda value, error: future.set_exception(error) if error else future.set_result(value)
        )
        return await future


# -- one-second tick ---------------------------------------------------------------------------------------------------

TICK_SECONDS = 1.0


class ServerTick:
    """One-second tick, from ``begin`` until ``stopping`` is set. Created on the loop's thread."""

    def __init__(self, parts: ServerParts, stopping: asyncio.Event) -> None:
        self._parts = parts
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._disconnect_counts: dict[str, int] = {}
        self._reported_error = ""
        self._ahead = parts.context.clock.ahead_ms()
        self._next_tick_at: float | None = None

    def tick(self) -> None:
        if self._stopping.is_set():
            return
        now = self._loop.time()
        if self._next_tick_at is not None:
            self._parts.watchdog.observe_delay(now - self._next_tick_at)
        self._next_tick_at = now + TICK_SECONDS
        self._loop.call_later(TICK_SECONDS, self.tick)
        notify("WATCHDOG=1")
        parts = self._parts
        parts.listeners.check_timeouts(self._loop.time())
        self._check_disk()
        parts.monitoring.tick(parts.committer)
        if parts.day_files is not None:
            parts.day_files.tick()
        self._check_clients()
        self._check_store()
        self._check_clock()

    def _check_clock(self) -> None:
        """If the wall clock was set, renew the record of store time. Store time continues without a jump."""
        clock = self._parts.context.clock
        clock.now_ms()  # compares wall clock and monotonic clock
        ahead = clock.ahead_ms()
        if ahead != self._ahead:
            set_by, self._ahead = ahead - self._ahead, ahead
            self._parts.committer.context.store_time.renew()
            log.warning("clock_set", extra=values(set_by_seconds=set_by / 1000, ahead_seconds=ahead / 1000))

    def _check_clients(self) -> None:
        disconnect_counts = self._parts.listeners.disconnect_counts()
        if disconnect_counts != self._disconnect_counts:
            self._disconnect_counts = disconnect_counts
            log.warning("clients_disconnected", extra=values(since_start=disconnect_counts))

    def _check_store(self) -> None:
        trouble = "" if self._parts.committer.last_error is None else str(self._parts.committer.last_error)
        if trouble == self._reported_error:
            return
        self._reported_error = trouble
        if trouble:
            log.error("store_commit_failed", extra=values(error=trouble))
        else:
            log.info("store_commit_recovered")

    def _check_disk(self) -> None:
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


class StatusReport:
    """Status report and metrics of a server."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts

    def facts(self) -> dict[str, Any]:
        parts, listeners = self._parts, self._parts.listeners
        return {
            "server": f"yirangmq {__version__}",
            "node": parts.config.node_name,
            "store": parts.config.store_url,
            "durability": parts.store.durability(),
            "addresses": listeners.addresses,
            "uptimeSec": self._uptime(),
            "connections": listeners.clients,
            "accepted": listeners.accepted,
            "sentAway": listeners.disconnect_counts(),
            "topics": parts.topic_calls.facts(),
            "pair": None if parts.pair is None else parts.pair.facts(),
            "cluster": None if parts.cluster is None else parts.cluster.facts(),
            "bridges": parts.bridges.calls.facts(),
            "filesByDate": None if parts.day_files is None else parts.day_files.facts(),
            "alerts": parts.alerting.calls.facts(),
            "stomp": None if listeners.stomp is None else listeners.stomp.describe(),
        }

    def programs(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Report the programs that may connect, their routes, and the clients that were refused."""
        read_arguments(given, lambda values: None)
        rows = show_programs(self._parts.config.programs, self._parts.config.routes)
        done({"programs": rows, "refused": self._parts.refusals.document()}, None)

    def samples(self) -> "dict[str, MetricValue]":
        """Return the metrics of the server and of its parts."""
        parts = self._parts
        found = self._server_samples() | self._gauge_samples()
        for calls in (parts.topic_calls, parts.bridges.calls, parts.alerting.calls):
            found |= calls.samples()
        for part in (parts.listeners.stomp, parts.pair, parts.cluster):
            found |= {} if part is None else part.samples()
        return found

    def _server_samples(self) -> "dict[str, MetricValue]":
        parts, listeners = self._parts, self._parts.listeners
        labels = {
            "version": __version__,
            "node": parts.config.node_name,
            "durability": parts.store.durability(),
        }
        return {
            "yirangmq_loop_stall_seconds": parts.watchdog.delays,
            "yirangmq_connections": [({}, listeners.clients)],
            "yirangmq_connections_total": [({}, listeners.accepted)],
            "yirangmq_sent_away_total": [
                ({"reason": why}, n) for why, n in sorted(listeners.disconnect_counts().items())
            ],
            "yirangmq_clients_refused_total": [
                ({"door": protocol, "reason": why}, n) for (protocol, why), n in sorted(parts.refusals.counts.items())
            ],
            "yirangmq_delayed_attempts_total": [
                ({}, 0 if parts.context.attempts is None else parts.context.attempts.delayed)
            ],
            "yirangmq_deliveries_total": [
                ({"queue": queue, "status": status}, n)
                for (queue, status), n in sorted(parts.committer.context.event_buffer.deliveries.totals.items())
            ],
            "yirangmq_uptime_seconds": [({}, self._uptime())],
            "yirangmq_info": [(labels, 1)],
        }

    def _gauge_samples(self) -> "dict[str, MetricValue]":
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
