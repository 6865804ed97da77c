"""Lifecycle of a server: watch for outside changes, supervisor notices, stop, leases, one-second tick, status.

- The store listener is a thread that reports commits which other processes make to the same store. It waits on the
  store only while a consumer waits for messages, because it sees the server's own commits too.
- Supervisor notices are systemd's datagrams to ``NOTIFY_SOCKET``; without that variable nothing is sent.
- At a stop the components drain within ``stop_seconds``, and the connections are closed. Leases that were taken
  through this server are kept or released, according to the setting ``on_stop``. Messages of webhook calls that do not
  end in time are released.
- Leases are released page by page. A server runs each page in a commit of its own, so that other requests are served in
  between; a new leader runs all of them in one transaction, before it serves.
- The tick checks disk, store errors and the wall clock, and ticks the components. It logs only changes.
- The status report collects the facts of ``status``, the server's own metrics, and the programs that may use it.

Everything but the store listener belongs to the loop's thread."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from yirangmq import __version__
from yirangmq.admin.queue_lists import Slices, run_slices
from yirangmq.admin.registry import Done, Given, read_arguments
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.operations import QueueOperations
from yirangmq.broker.queries import some_with_leases
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
from yirangmq.protocols.context import ServerContext
from yirangmq.server.components import Components
from yirangmq.server.listeners import ServerListeners

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import MetricValue


# -- store listener ----------------------------------------------------------------------------------------------------

WAIT_SECONDS = 0.25
"""Upper bound of one wait, and so of the time that ``stop`` takes."""
PAUSE_SECONDS = 0.02
"""Pause between two notifications. The server's own commits wake the listener too, and must cost nothing."""


class StoreListener:
    """Store listener: calls ``on_change`` from a separate thread, from ``start`` on, when the store may have changed.

    It waits on the store only while ``is_awaited`` returns True (a consumer waits for messages), because the server's
    own commits wake it too."""

    def __init__(self, store: Store, on_change: Callable[[], object], is_awaited: Callable[[], bool]) -> None:
        self._store = store
        self._on_change = on_change
        self._is_awaited = is_awaited
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)

    def start(self) -> None:
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
        if self._thread.ident is not None:
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


# -- release of leases -------------------------------------------------------------------------------------------------

LEASES_PER_PAGE = 500
IsOurs = Callable[[str], bool]
"""Return True if the leases of this consumer are released."""


def release_leases(operations: QueueOperations, is_ours: IsOurs, *, in_place: bool = False) -> Slices:
    """Release the leases. Return their number. ``in_place``: the messages keep their place in the queue."""
    total, after, is_first_page = 0, "", True
    while after or is_first_page:
        queues, after = yield partial(some_with_leases, after=after)
        is_first_page = False
        for queue in queues:
            cursor, is_first = "", True
            while cursor or is_first:
                count, cursor = yield partial(_release_page, operations, is_ours, in_place, queue, cursor)
                total, is_first = total + count, False
    return total


def _release_page(
    operations: QueueOperations, is_ours: IsOurs, in_place: bool, queue: str, cursor: str, transaction: Transaction
) -> tuple[int, str]:
    page = transaction.scan(queue, State.LEASED, LEASES_PER_PAGE, cursor)
    ours = [lease_id(message) for message in page.messages if is_ours(message.consumer)]
    errors = operations.release(transaction, Leases(ours), None, in_place=in_place)
    return errors.count(None), page.cursor


async def run_in_commits(committer: GroupCommitter, steps: Slices) -> Any:
    """Run each step in a commit of its own. Return the value of the steps."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(value: Any, error: QueueError | None) -> None:
        if not future.done():
            future.set_exception(error) if error is not None else future.set_result(value)

    run_slices(committer, steps, done)
    return await future


def run_in_transaction(transaction: Transaction, steps: Slices) -> Any:
    """Run all steps in one transaction. Return the value of the steps."""
    found: Any = None
    while True:
        try:
            work = steps.send(found)
        except StopIteration as end:
            return end.value
        found = None if work is None else work(transaction)


# -- start and stop ----------------------------------------------------------------------------------------------------

ABORT_SECONDS = 1.0
"""Time limit for work that is aborted, such as releasing the messages of unfinished webhook calls."""
DRAIN_POLL_SECONDS = 0.005
"""Poll interval of a stopping server, which waits until its work is done."""


class Lifecycle:
    """Lifecycle of a server: how its components drain when it stops or hands over. Created on the loop's thread."""

    def __init__(
        self, config: Config, context: ServerContext, listeners: ServerListeners, components: Components
    ) -> None:
        self.components = components
        self._context = context
        self._listeners = listeners
        self._stop_seconds = config.stop_seconds
        self._on_stop = config.on_stop
        self._loop = asyncio.get_running_loop()

    async def finish_work(self) -> None:
        """Finish work in progress, within ``stop_seconds``. Release leases if ``on_stop`` is ``release``."""
        committer, components = self._context.committer, self.components
        deadline = self._loop.time() + self._stop_seconds
        await self._wait_until(lambda: committer.is_idle and components.is_work_idle, deadline)
        await self._abort_work()
        await self._treat_leases()

    async def drain(self) -> None:
        """Stop accepting connections and requests, answer all pending requests, then close the connections."""
        notify("STOPPING=1")
        listeners = self._listeners
        log.info("server_stopping", extra=values(clients=listeners.clients, leases=self._on_stop))
        self.components.drain()
        deadline = self._loop.time() + self._stop_seconds
        await self._wait_until(lambda: self.components.is_idle, deadline)
        await self._abort_work()
        if self._context.committer.guard.is_on:
            await self._treat_leases()
        listeners.send_goodbye()
        await self._wait_until(lambda: not listeners.clients, deadline)
        listeners.abort()
        await asyncio.sleep(0)  # runs the callbacks of the aborted connections

    async def _abort_work(self) -> None:
        """Abort calls in flight, and wait until their messages are released."""
        if self.components.abort():
            await self._wait_until(lambda: self.components.is_idle, self._loop.time() + ABORT_SECONDS)

    async def _wait_until(self, is_done: Callable[[], bool], deadline: float) -> None:
        while not is_done() and self._loop.time() < deadline:  # noqa: ASYNC110  (several parts, none of which signals it)
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    async def _treat_leases(self) -> None:
        """Release the leases that were taken through this server, page by page, unless ``on_stop`` keeps them."""
        if self._on_stop != "release":
            return
        steps = release_leases(self._context.committer.operations, self._context.consumers.__contains__)
        log.info("leases_released", extra=values(leases=await run_in_commits(self._context.committer, steps)))


# -- one-second tick ---------------------------------------------------------------------------------------------------

TICK_SECONDS = 1.0


class ServerTick:
    """One-second tick: ticks of the components, and checks of disk, store and clock. Created on the loop's thread."""

    def __init__(self, context: ServerContext, components: Components, watchdog: LoopWatchdog) -> None:
        self._context = context
        self._components = components
        self._watchdog = watchdog
        self._loop = asyncio.get_running_loop()
        self._reported_error = ""
        self._ahead = context.clock.ahead_ms()
        self._next_tick_at: float | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Tick now, and then every second until ``stop``."""
        if self._is_stopped:
            return
        now = self._loop.time()
        if self._next_tick_at is not None:
            self._watchdog.observe_delay(now - self._next_tick_at)
        self._next_tick_at = now + TICK_SECONDS
        self._loop.call_later(TICK_SECONDS, self.start)
        notify("WATCHDOG=1")
        self._check_disk()
        self._components.tick()
        self._check_store()
        self._check_clock()

    def stop(self) -> None:
        self._is_stopped = True

    def _check_clock(self) -> None:
        """If the wall clock was set, renew the record of store time. Store time continues without a jump."""
        clock = self._context.clock
        clock.now_ms()  # compares wall clock and monotonic clock
        ahead = clock.ahead_ms()
        if ahead != self._ahead:
            set_by, self._ahead = ahead - self._ahead, ahead
            self._context.committer.operations.store_time.renew()
            log.warning("clock_set", extra=values(set_by_seconds=set_by / 1000, ahead_seconds=ahead / 1000))

    def _check_store(self) -> None:
        last_error = self._context.committer.last_error
        trouble = "" if last_error is None else str(last_error)
        if trouble == self._reported_error:
            return
        self._reported_error = trouble
        if trouble:
            log.error("store_commit_failed", extra=values(error=trouble))
        else:
            log.info("store_commit_recovered")

    def _check_disk(self) -> None:
        disk = self._context.disk
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

MEMBERS = (
    "server", "node", "store", "durability", "addresses", "uptimeSec", "connections", "accepted", "sentAway", "topics",
    "pair", "cluster", "bridges", "filesByDate", "alerts", "stomp",
)  # fmt: skip
"""Members of ``status`` in their order. A member is null if its component is not there."""


class StatusReport:
    """Status report and metrics of a server."""

    def __init__(self, config: Config, context: ServerContext, components: Components, watchdog: LoopWatchdog) -> None:
        self._config = config
        self._context = context
        self._components = components
        self._watchdog = watchdog
        self._started = time.monotonic()

    def facts(self) -> dict[str, Any]:
        identity = self._context.identity
        found = {
            "server": identity.server,
            "node": identity.node,
            "store": self._config.store_url,
            "durability": identity.durability,
            "uptimeSec": self._uptime(),
            **self._components.facts(),
        }
        return {name: found.get(name) for name in MEMBERS}

    def programs(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Report the programs that may connect, their routes, and the clients that were refused."""
        read_arguments(given, lambda values: None)
        rows = show_programs(self._config.programs, self._config.routes)
        refused_clients = self._context.refused_clients
        done({"programs": rows, "refused": None if refused_clients is None else refused_clients.document()}, None)

    def samples(self) -> "dict[str, MetricValue]":
        """Return the metrics of the server and of its components."""
        return self._server_samples() | self._gauge_samples() | self._components.samples()

    def _server_samples(self) -> "dict[str, MetricValue]":
        identity = self._context.identity
        totals = self._context.committer.operations.event_buffer.deliveries.totals
        return {
            "yirangmq_loop_stall_seconds": self._watchdog.delays,
            "yirangmq_deliveries_total": [
                ({"queue": queue, "status": status}, n) for (queue, status), n in sorted(totals.items())
            ],
            "yirangmq_uptime_seconds": [({}, self._uptime())],
            "yirangmq_info": [({"version": __version__, "node": identity.node, "durability": identity.durability}, 1)],
        }

    def _gauge_samples(self) -> "dict[str, MetricValue]":
        """Return the measured metrics. Those that are not available are left out."""
        disk = self._context.disk
        measured = {
            "yirangmq_resident_memory_bytes": resident_bytes(),
            "yirangmq_disk_free_bytes": None if disk is None else disk.free,
            "yirangmq_store_used_bytes": None if disk is None else disk.used,
        }
        return {name: [({}, value)] for name, value in measured.items() if value is not None}

    def _uptime(self) -> float:
        return round(time.monotonic() - self._started, 3)
