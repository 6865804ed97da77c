"""Node of a failover pair: heartbeat timer, witness exchange, role changes, status report.

The node is the I/O around ``core.failover_node``, which makes every decision. Five times in each heartbeat interval the
timer evaluates the rules. The node sends a heartbeat once per interval, and immediately after a change. It
probes a silent peer over TCP, and starts, drains or ends the server's work on a role change. A new term is on disk
before it is used, and every decision goes to the history file together with its evidence.

Instants are milliseconds of ``CLOCK_BOOTTIME``, which also advances while the machine sleeps. Everything runs on the
loop's thread, except the witness exchange: it blocks, so it runs on a dedicated thread, one exchange at a time."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from yirangmq.core.alert_rules import RoleChange
from yirangmq.core.errors import NotActive
from yirangmq.core.failover import (
    PROBE_FINDINGS,
    Decision,
    EvidenceStep,
    FailoverTiming,
    FailoverVerdict,
    NodeLoad,
    PeerHeartbeat,
    Probe,
    Role,
    Status,
)
from yirangmq.core.failover_node import FailoverDriver, FailoverNode, HeartbeatResult
from yirangmq.core.failover_witness import WitnessRequest, WitnessView
from yirangmq.failover.link import HeartbeatLink
from yirangmq.failover.state_file import FailoverStateFolder
from yirangmq.failover.witness import open_witness
from yirangmq.observe.logs import log, values
from yirangmq.observe.metrics import resident_bytes

# -- settings, and the port to the server ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairSettings:
    """Settings of a node of a pair."""

    node: str
    listen: tuple[str, int]
    peer: tuple[str, int]
    key: bytes
    pace: FailoverTiming
    witness: str = ""
    """URL of the witness: ``file:/PATH`` or ``etcd://…``; empty: no witness."""
    drain_seconds: float = 10.0


class ServerControl(Protocol):
    """Port to the server, as far as failover controls it."""

    def start_work(self) -> None:
        """Start work: this node is active."""

    def stop_work(self, refusal: NotActive) -> None:
        """Stop work, and send ``refusal`` to connected clients."""

    async def drain(self, seconds: float) -> dict[str, int]:
        """Drain the queues for at most ``seconds``: deliver messages and accept settlements; publishing is rejected
        already. Then treat leases as at a server stop. Return the number of remaining messages by queue."""

    def depth(self) -> int: ...

    def addresses(self) -> str:
        """Return the addresses for clients, separated by ", "."""

    def report_overlap(self, since_ms: int, term: int) -> None:
        """Report the messages that this node accepted since this moment, because both nodes were active."""


def boot_clock() -> int:
    """Return milliseconds of ``CLOCK_BOOTTIME``, which also advances while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_clock() -> int:
    return time.time_ns() // 1_000_000


# -- status report -----------------------------------------------------------------------------------------------------


def status_report(driver: FailoverDriver, link: HeartbeatLink, load: NodeLoad, now: int) -> dict[str, Any]:
    failover_node, decision = driver.failover_node, driver.latest
    own = failover_node.own
    return {
        "node": own.node,
        "role": own.role,
        "status": own.status,
        "term": own.term,
        "runningSec": (now - own.started_at) / 1000,
        "activeSec": (now - own.active_since) / 1000 if own.role is Role.ACTIVE else 0,
        "switches": failover_node.switches,
        "witness": driver.witness,
        "linkDelayMs": failover_node.delay,
        "longestGapSec": failover_node.longest_gap / 1000,
        "intervalSec": failover_node.pace.interval / 1000,
        "timeoutSec": failover_node.pace.timeout / 1000,
        "keysDiffer": failover_node.keys_differ(now),
        "withoutActiveSec": failover_node.time_without_active(now) / 1000,
        "heartbeats": {"sent": link.sent, "heard": link.received, "refused": link.refused},
        "load": _load(load),
        "evidence": [list(step) for step in decision.steps] if decision is not None else [],
        "peer": _peer(failover_node, now),
    }


def _peer(failover_node: FailoverNode, now: int) -> dict[str, Any] | None:
    heartbeat = failover_node.latest
    if heartbeat is None:
        return None
    silence = failover_node.silence(now)
    return {
        "node": heartbeat.node,
        "role": heartbeat.role,
        "status": heartbeat.status,
        "term": heartbeat.term,
        "heardSec": silence / 1000,
        "silent": silence > failover_node.pace.timeout,
        "runningSec": heartbeat.running / 1000,
        "clockAheadSec": failover_node.skew / 1000,
        "addresses": heartbeat.address.split(", ") if heartbeat.address else [],
        "load": _load(heartbeat.load),
    }


def _load(load: NodeLoad) -> dict[str, Any]:
    return {"cpu": round(load.cpu, 3), "memory": load.memory, "depth": load.depth}


# -- the node ----------------------------------------------------------------------------------------------------------

TICKS_PER_INTERVAL = 5
"""Timer ticks per heartbeat interval."""
RELEASE_SECONDS = 2.0
TEST_INTERVALS = 0.4
"""Timeout of a TCP probe as a fraction of the heartbeat interval: 2 s of 5 s."""
MAX_SWITCHES = 20
PLANNED_STEPS = ("order", "consent")
"""Evidence steps that mark a switch as planned: an operator's order, or the peer's consent."""
HISTORY_LOG_EVENTS = {
    "took-over": "node_took_over",
    "stood-down": "node_stood_down",
    "handed-over": "node_handed_over",
    "kept": "takeover_averted",
}
"""Log event by entry of the history."""


class PairNode:
    """Node of a failover pair. Implements ``core.failover_node.FailoverEffects`` and ``core.active_guard.ActiveGuard``.

    Used from the loop's thread only; ``_thread`` runs the witness exchange."""

    def __init__(
        self,
        settings: PairSettings,
        memory: FailoverStateFolder,
        work: ServerControl,
        now: Callable[[], int] = boot_clock,
    ) -> None:
        self.settings = settings
        self.memory = memory
        self._work = work
        self.now = now
        term = memory.term()
        self.failover_node = FailoverNode(settings.node, settings.pace, term, uuid4().hex[:16], now())
        self.driver = FailoverDriver(self.failover_node, self, term)
        self.link = HeartbeatLink(settings.peer, settings.key, self)
        self._loop = asyncio.get_running_loop()
        watching = WitnessView(settings.node, settings.pace.timeout)
        self._witness = open_witness(settings.witness, watching, settings.pace, now) if settings.witness else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="witness") if self._witness is not None else None
        self._exchanging = False
        self._beats_at = 0.0
        self._closed = False
        self._draining = False
        self._was_late = self._was_kept = self._did_keys_differ = False
        self._cpu = (time.monotonic(), time.process_time())
        self._load = NodeLoad()
        self._tasks: set[asyncio.Task[None]] = set()
        self.left: dict[str, int] = {}
        """Messages that the last drain left on this node, by queue."""
        self.role_changes: deque[tuple[int, RoleChange]] = deque(maxlen=MAX_SWITCHES)
        """The latest switches of this node, each with its instant in ms."""

    # -- core.active_guard.Duty ----------------------------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        return self.failover_node.may_work(self.now())

    @property
    def accepts_new(self) -> bool:
        return not self._draining and self.is_on

    def refusal(self) -> NotActive:
        own, latest = self.failover_node.own, self.failover_node.latest
        here = f"this node, {own.node}, is standby in term {own.term}"
        if self._draining:
            return NotActive(f"this node, {own.node}, is handing over; try again")
        is_silent = self.failover_node.silence(self.now()) > self.failover_node.pace.timeout
        if latest is None or latest.role is not Role.ACTIVE or is_silent:
            return NotActive(f"{here}; no active node is known: {self.inactive_reason()}")
        where = f" at {latest.address}" if latest.address else ""
        return NotActive(f"{here}; the active node is {latest.node}{where}")

    def inactive_reason(self) -> str:
        """Return why this node is not active: the last evidence of its latest decision."""
        latest = self.driver.latest
        return ": ".join(latest.steps[-1]) if latest is not None else "nothing was decided yet"

    # -- lifecycle -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.link.open(*self.settings.listen)
        self._remember("started", self._about(()))
        self._tick()

    def run(self) -> None:
        """Mark the node as running: its listeners are open."""
        self.failover_node.run()
        self.send_heartbeat()

    def stop(self, status: Status) -> None:
        """Stop the node in an orderly way and send the status to the peer."""
        if self._closed:
            return
        self.failover_node.stop(status)
        self.send_heartbeat()
        if status is Status.STOPPED:
            self._remember("stopped", self._about(()))
            self._release_witness()
            self.send_heartbeat()

    def _release_witness(self) -> None:
        """Release the witness, so that the peer need not wait for its timeout. Wait at most ``RELEASE_SECONDS`` for
        an unreachable witness."""
        if self._witness is not None and self._thread is not None:
            work = self._thread.submit(self._witness.exchange, WitnessRequest.RELEASE, self.failover_node.own.term)
            with suppress(TimeoutError):
                work.result(RELEASE_SECONDS)

    def close(self) -> None:
        self._closed = True
        self.link.close()
        if self._thread is not None and self._witness is not None:
            self._thread.submit(self._witness.close)
            self._thread.shutdown(wait=False)

    def _tick(self) -> None:
        if self._closed:
            return
        interval = self.settings.pace.interval / 1000
        self._loop.call_later(interval / TICKS_PER_INTERVAL, self._tick)
        if self._loop.time() >= self._beats_at:
            self._measure()
            if self.failover_node.datagram_silence(self.now()) > self.settings.pace.timeout:
                self._keep_task(self._loop.create_task(self.link.resolve_peer()))  # its address may have changed
            self.send_heartbeat()
        self._poll_witness()
        self.driver.evaluate(self.now())
        self._warn()

    def _poll_witness(self) -> None:
        if self._witness is None or self._thread is None or self._exchanging:
            return
        self._exchanging = True
        work = self._loop.run_in_executor(self._thread, self._witness.exchange, self.driver.wish, self.driver.wish_term)
        self._keep_task(self._loop.create_task(self._await_witness(work)))

    async def _await_witness(self, work: "asyncio.Future[Any]") -> None:
        try:
            found, begun_at, term = await work
        finally:
            self._exchanging = False
        asked = self.driver.needs_witness
        self.driver.on_witness_result(found, begun_at, term)
        if asked and not self._closed:
            self.driver.evaluate(self.now())

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def send_heartbeat(self) -> None:
        self._beats_at = self._loop.time() + self.settings.pace.interval / 1000
        self.link.send(self.make_heartbeat())

    # -- failover.link.LinkListener ------------------------------------------------------------------------------------

    def on_heartbeat(self, heartbeat: PeerHeartbeat, *, is_datagram: bool) -> HeartbeatResult:
        found = self.driver.on_heartbeat(heartbeat, self.now(), wall_clock(), is_datagram=is_datagram)
        if found is HeartbeatResult.OURSELVES:
            log.error("peer_name_conflict", extra=values(node=heartbeat.node))
        return found

    def on_rejected(self) -> None:
        self.failover_node.on_rejected(self.now())

    def make_heartbeat(self) -> PeerHeartbeat:
        return self.failover_node.heartbeat(self.now(), wall_clock(), self._work.addresses(), self._load)

    def _measure(self) -> None:
        (then, used), self._cpu = self._cpu, (time.monotonic(), time.process_time())
        passed = max(self._cpu[0] - then, 0.001)
        self._load = NodeLoad(
            cpu=(self._cpu[1] - used) / passed, memory=resident_bytes() or 0, depth=self._work.depth()
        )

    def _warn(self) -> None:
        """Log once that heartbeats are late and once that they are back, and once that the keys differ."""
        now = self.now()
        is_late = self.failover_node.is_late(now)
        if is_late != self._was_late:
            self._was_late = is_late
            silence = self.failover_node.datagram_silence(now) / 1000
            if is_late:
                log.warning("peer_heartbeat_delayed", extra=values(silentSec=round(silence, 3)))
                self._remember("late", self._about(()))
            else:
                self._was_kept = False
                log.warning("peer_heartbeat_resumed", extra=values(silentSec=round(silence, 3)))
                self._remember("in-time", self._about(()))
        differ = self.failover_node.keys_differ(now)
        if differ and not self._did_keys_differ:
            host, port = self.settings.peer
            log.error("peer_heartbeat_rejected", extra=values(peer=f"{host}:{port}", refused=self.link.refused))
        is_silent = self.failover_node.silence(now) > self.failover_node.pace.timeout
        self._did_keys_differ = differ or (self._did_keys_differ and is_silent)

    # -- core.failover_node.Outside ------------------------------------------------------------------------------------

    def save(self, term: int) -> None:
        self.memory.save(term)

    def probe(self) -> None:
        self._keep_task(self._loop.create_task(self._run_probe()))

    async def _run_probe(self) -> None:
        found = await self.exchange()
        if self._closed:
            return
        self.driver.on_probe_result(found, self.now())
        reached = found is Probe.REACHED
        if reached and not self._was_kept:
            before = self.driver.latest.steps if self.driver.latest is not None else ()
            self._note("kept", (*before, EvidenceStep("3 connection", PROBE_FINDINGS[found])))
        self._was_kept = reached
        self.driver.evaluate(self.now())

    async def exchange(self) -> Probe:
        """Exchange heartbeats with the peer over TCP. Unlike a datagram, a lost packet is sent again."""
        seconds = self.settings.pace.interval * TEST_INTERVALS / 1000
        return await self.link.probe_peer(self.make_heartbeat(), seconds)

    def on_role_change(self, decision: Decision, was: Role) -> None:
        own, now = self.failover_node.own, self.now()
        event = "took-over" if own.role is Role.ACTIVE else "stood-down"
        if decision.verdict is FailoverVerdict.HAND_OVER:
            event = "handed-over"
        peer = self.failover_node.peer
        self._note(event, decision.steps)
        is_meant = any(step.step in PLANNED_STEPS for step in decision.steps)
        self.role_changes.append((now, RoleChange(event, own.term, is_meant)))
        if self.failover_node.is_flapping:
            log.error("switch_limit_exceeded", extra=values(switches=self.failover_node.switches))
            self._remember("alarm", self._about(()) | {"switches": self.failover_node.switches})
        if own.role is Role.ACTIVE and was is Role.STANDBY:
            self._work.start_work()
        elif own.role is Role.STANDBY and was is Role.ACTIVE:
            self._draining = False
            self._work.stop_work(self.refusal())
            if peer is not None and peer.role is Role.ACTIVE and decision.verdict is FailoverVerdict.STAND_DOWN:
                # The heartbeat was in transit for a while: better a message too many in the report than one too few.
                on_the_way = self.settings.pace.interval
                self._work.report_overlap(wall_clock() - peer.active - (now - peer.at) - on_the_way, peer.term)

    def hand_over(self, decision: Decision) -> None:
        self._keep_task(self._loop.create_task(self._hand_over(decision)))

    async def _hand_over(self, decision: Decision) -> None:
        self._draining = True
        try:
            self.left = await self._work.drain(self.settings.drain_seconds)
        except BaseException:
            self.driver.on_hand_over_failed()
            raise
        finally:
            self._draining = False
        self.driver.on_handed_over(decision, self.now())

    def _keep_task(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- history and status --------------------------------------------------------------------------------------------

    def _note(self, event: str, steps: tuple[EvidenceStep, ...]) -> None:
        about = self._about(steps)
        self._remember(event, about)
        log.warning(HISTORY_LOG_EVENTS[event], extra=values(**about))

    def _remember(self, event: str, about: dict[str, Any]) -> None:
        """Append to the history. A write error is logged with the entry and does not stop the node."""
        try:
            self.memory.append_history(event, about)
        except OSError as error:
            log.error("history_write_failed", extra=values(entry={"event": event, **about}, error=str(error)))

    def _about(self, steps: tuple[EvidenceStep, ...]) -> dict[str, Any]:
        own = self.failover_node.own
        return {"node": own.node, "role": own.role, "term": own.term, "evidence": [list(step) for step in steps]}

    def describe(self) -> dict[str, Any]:
        """Return the status report: both nodes, as known to this one."""
        return status_report(self.driver, self.link, self._load, self.now()) | {"works": self.is_on}
