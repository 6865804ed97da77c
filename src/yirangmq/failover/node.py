"""Node of a failover pair: heartbeat timer, witness exchange, role changes, planned switch, status report.

The node is the I/O around ``core.failover_node``, which makes every decision. Five times in each heartbeat interval the
timer evaluates the rules. The node sends a heartbeat once per interval, and immediately after a change. It
probes a silent peer over TCP, and starts, drains or ends the server's work on a role change. A new term is on disk
before it is used, and every decision goes to the history file together with its evidence.

A planned switch makes this node active, or drains its work and hands over to a peer that is running and not silent. The
call polls until both nodes have their roles, and raises ``Unavailable`` when the deadline passes. A switch to the role
that a node already has succeeds immediately.

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

from yirangmq.core.alert_rules import Turn
from yirangmq.core.errors import BadInput, NotActive, Unavailable, WrongState
from yirangmq.core.failover import Beat, Decision, Load, Pace, Probe, Role, Status, Step, Verdict, Watching, Wish
from yirangmq.core.failover_node import Conduct, Heard, Partner
from yirangmq.failover.link import Link
from yirangmq.failover.state_file import Memory
from yirangmq.failover.witness import opened
from yirangmq.observe.logs import log, values
from yirangmq.observe.metrics import resident_bytes

# -- settings, and the port to the server ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a node of a pair."""

    node: str
    listen: tuple[str, int]
    peer: tuple[str, int]
    key: bytes
    pace: Pace
    witness: str = ""
    """URL of the witness: ``file:/PATH`` or ``etcd://…``; empty: no witness."""
    drain_seconds: float = 10.0


class Work(Protocol):
    """Port to the server, as far as failover controls it."""

    def begin(self) -> None:
        """Start work: this node is active."""

    def end(self, refusal: NotActive) -> None:
        """Stop work, and send ``refusal`` to connected clients."""

    async def drain(self, seconds: float) -> dict[str, int]:
        """Drain the queues for at most ``seconds``: deliver messages and accept settlements; publishing is rejected
        already. Then treat leases as at a server stop. Return the number of remaining messages by queue."""

    def depth(self) -> int: ...

    def addresses(self) -> str:
        """Return the addresses for clients, separated by ", "."""

    def overlapped(self, since_ms: int, term: int) -> None:
        """Report the messages that this node accepted since this moment, because both nodes were active."""


def boot_clock() -> int:
    """Return milliseconds of ``CLOCK_BOOTTIME``, which also advances while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_clock() -> int:
    return time.time_ns() // 1_000_000


# -- planned switch ----------------------------------------------------------------------------------------------------

LOOK_SECONDS = 0.02


async def switch(node: "Node", to: str, seconds: float) -> dict[str, Any]:
    """Make node ``to`` active: this node hands over, or takes over. Idempotent.

    Raise ``BadInput`` for a node that is not in the pair, ``WrongState`` if the peer cannot take over, ``Unavailable``
    after ``seconds``."""
    own, peer = node.partner.own, node.partner.peer
    if to not in (own.node, peer.node if peer is not None else ""):
        raise BadInput(f"{to!r} is not one of this pair", field="to")
    was = Role.STANDBY if to == own.node else Role.ACTIVE
    loop = asyncio.get_running_loop()
    begun = loop.time()
    if not _is_switched(node, was):
        _order(node, was)
    while not _is_switched(node, was):
        if loop.time() > begun + seconds:
            node.partner.order(False)
            raise Unavailable(f"not done within {seconds:g} s: {_why(node)}", field="switch")
        await asyncio.sleep(LOOK_SECONDS)
    left = node.left if was is Role.ACTIVE else {}
    return {**node.describe(), "seconds": round(loop.time() - begun, 3), "left": left}


def _order(node: "Node", was: Role) -> None:
    if was is Role.ACTIVE:
        _check_peer(node)
        term = max(node.partner.own.term, node.partner.own.granted) + 1
        steps = (Step("order", "by an operator"),)
        node.conduct.hand_over(Decision(Verdict.HAND_OVER, term, steps), node.now())
    else:
        node.partner.order(True)
        node.conduct.look(node.now())
        node.say()


def _check_peer(node: "Node") -> None:
    peer, silence = node.partner.peer, node.partner.silence(node.now())
    if peer is None or silence > node.partner.pace.timeout or peer.status is not Status.RUNNING:
        found = "was never heard" if peer is None else f"is {peer.status}, last heard {silence / 1000:.1f} s ago"
        raise WrongState(f"the peer {found}: there is nobody to hand over to", field="switch")


def _is_switched(node: "Node", was: Role) -> bool:
    if was is Role.STANDBY:
        return node.partner.own.role is Role.ACTIVE
    peer = node.partner.peer
    return node.partner.own.role is Role.STANDBY and peer is not None and peer.role is Role.ACTIVE


def _why(node: "Node") -> str:
    latest = node.conduct.latest
    return "; ".join(f"{step.step}: {step.found}" for step in latest.steps) if latest is not None else "unknown"


# -- status report -----------------------------------------------------------------------------------------------------


def described(conduct: Conduct, link: Link, load: Load, now: int) -> dict[str, Any]:
    partner, decision = conduct.partner, conduct.latest
    own = partner.own
    return {
        "node": own.node,
        "role": own.role,
        "status": own.status,
        "term": own.term,
        "runningSec": (now - own.started_at) / 1000,
        "activeSec": (now - own.active_since) / 1000 if own.role is Role.ACTIVE else 0,
        "switches": partner.switches,
        "witness": conduct.witness,
        "linkDelayMs": partner.delay,
        "longestGapSec": partner.longest_gap / 1000,
        "intervalSec": partner.pace.interval / 1000,
        "timeoutSec": partner.pace.timeout / 1000,
        "heartbeats": {"sent": link.sent, "heard": link.heard, "refused": link.refused},
        "load": _load(load),
        "evidence": [list(step) for step in decision.steps] if decision is not None else [],
        "peer": _peer(partner, now),
    }


def _peer(partner: Partner, now: int) -> dict[str, Any] | None:
    beat = partner.latest
    if beat is None:
        return None
    silence = partner.silence(now)
    return {
        "node": beat.node,
        "role": beat.role,
        "status": beat.status,
        "term": beat.term,
        "heardSec": silence / 1000,
        "silent": silence > partner.pace.timeout,
        "runningSec": beat.running / 1000,
        "clockAheadSec": partner.skew / 1000,
        "addresses": beat.address.split(", ") if beat.address else [],
        "load": _load(beat.load),
    }


def _load(load: Load) -> dict[str, Any]:
    return {"cpu": round(load.cpu, 3), "memory": load.memory, "depth": load.depth}


# -- the node ----------------------------------------------------------------------------------------------------------

LOOKS = 5
"""Timer ticks per heartbeat interval."""
GIVE_BACK_SECONDS = 2.0
TEST_INTERVALS = 0.4
"""Timeout of a TCP probe as a fraction of the heartbeat interval: 2 s of 5 s."""
MOST_TURNS = 20
MEANT = ("order", "consent")
"""Evidence steps that mark a switch as planned: an operator's order, or the peer's consent."""
HISTORY_LOG_EVENTS = {
    "took-over": "node_took_over",
    "stood-down": "node_stood_down",
    "handed-over": "node_handed_over",
    "kept": "takeover_averted",
}
"""Log event by entry of the history."""


class Node:
    """Node of a failover pair. Implements ``core.failover_node.Outside`` and ``core.active_guard.Duty``.

    Used from the loop's thread only; ``_thread`` runs the witness exchange."""

    def __init__(self, settings: Settings, memory: Memory, work: Work, now: Callable[[], int] = boot_clock) -> None:
        self.settings = settings
        self.memory = memory
        self._work = work
        self.now = now
        term = memory.term()
        self.partner = Partner(settings.node, settings.pace, term, uuid4().hex[:16], now())
        self.conduct = Conduct(self.partner, self, term)
        self.link = Link(settings.peer, settings.key, self._hear, lambda: self._beat())
        self._loop = asyncio.get_running_loop()
        watching = Watching(settings.node, settings.pace.timeout)
        self._witness = opened(settings.witness, watching, settings.pace, now) if settings.witness else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="witness") if self._witness is not None else None
        self._exchanging = False
        self._beats_at = 0.0
        self._closed = False
        self._draining = False
        self._was_late = self._was_kept = False
        self._cpu = (time.monotonic(), time.process_time())
        self._load = Load()
        self._tasks: set[asyncio.Task[None]] = set()
        self.left: dict[str, int] = {}
        """Messages that the last drain left on this node, by queue."""
        self.turns: deque[tuple[int, Turn]] = deque(maxlen=MOST_TURNS)
        """The latest switches of this node, each with its instant in ms."""

    # -- core.active_guard.Duty ----------------------------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        return self.partner.may_work(self.now())

    @property
    def takes_in(self) -> bool:
        return not self._draining and self.is_on

    def refusal(self) -> NotActive:
        own, latest = self.partner.own, self.partner.latest
        here = f"this node, {own.node}, is standby in term {own.term}"
        if self._draining:
            return NotActive(f"this node, {own.node}, is handing over; try again")
        is_silent = self.partner.silence(self.now()) > self.partner.pace.timeout
        if latest is None or latest.role is not Role.ACTIVE or is_silent:
            return NotActive(f"{here}; no active node is known")
        where = f" at {latest.address}" if latest.address else ""
        return NotActive(f"{here}; the active node is {latest.node}{where}")

    # -- lifecycle -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.link.open(*self.settings.listen)
        self._remember("started", self._about(()))
        self._tick()

    def run(self) -> None:
        """Mark the node as running: its listeners are open."""
        self.partner.run()
        self.say()

    def stop(self, status: Status) -> None:
        """Stop the node in an orderly way and send the status to the peer."""
        if self._closed:
            return
        self.partner.stop(status)
        self.say()
        if status is Status.STOPPED:
            self._remember("stopped", self._about(()))
            self._give_back()
            self.say()

    def _give_back(self) -> None:
        """Release the witness, so that the peer need not wait for its timeout. Wait at most ``GIVE_BACK_SECONDS`` for
        an unreachable witness."""
        if self._witness is not None and self._thread is not None:
            work = self._thread.submit(self._witness.exchange, Wish.GIVE_BACK, self.partner.own.term)
            with suppress(TimeoutError):
                work.result(GIVE_BACK_SECONDS)

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
        self._loop.call_later(interval / LOOKS, self._tick)
        if self._loop.time() >= self._beats_at:
            self._measure()
            self.say()
        self._ask_witness()
        self.conduct.look(self.now())
        self._warn()

    def _ask_witness(self) -> None:
        if self._witness is None or self._thread is None or self._exchanging:
            return
        self._exchanging = True
        work = self._loop.run_in_executor(
            self._thread, self._witness.exchange, self.conduct.wish, self.conduct.wish_term
        )
        self._keep_task(self._loop.create_task(self._witnessed(work)))

    async def _witnessed(self, work: "asyncio.Future[Any]") -> None:
        try:
            found, begun_at, term = await work
        finally:
            self._exchanging = False
        asked = self.conduct.asks_witness
        self.conduct.witnessed(found, begun_at, term)
        if asked and not self._closed:
            self.conduct.look(self.now())

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def _beat(self) -> Beat:
        return self.partner.beat(self.now(), wall_clock(), self._work.addresses(), self._load)

    def say(self) -> None:
        self._beats_at = self._loop.time() + self.settings.pace.interval / 1000
        self.link.send(self._beat())

    def _hear(self, beat: Beat) -> None:
        found = self.conduct.hear(beat, self.now(), wall_clock())
        if found is Heard.OURSELVES:
            log.error("peer_name_conflict", extra=values(node=beat.node))

    def _measure(self) -> None:
        (then, used), self._cpu = self._cpu, (time.monotonic(), time.process_time())
        passed = max(self._cpu[0] - then, 0.001)
        self._load = Load(cpu=(self._cpu[1] - used) / passed, memory=resident_bytes() or 0, depth=self._work.depth())

    def _warn(self) -> None:
        """Log once that heartbeats are late, and once that they are back."""
        is_late = self.partner.is_late(self.now())
        if is_late != self._was_late:
            self._was_late = is_late
            silence = self.partner.silence(self.now()) / 1000
            if is_late:
                log.warning("peer_heartbeat_delayed", extra=values(silentSec=round(silence, 3)))
                self._remember("late", self._about(()))
            else:
                log.warning("peer_heartbeat_resumed", extra=values(silentSec=round(silence, 3)))
                self._remember("in-time", self._about(()))

    # -- core.failover_node.Outside ------------------------------------------------------------------------------------

    def save(self, term: int) -> None:
        self.memory.save(term)

    def probe(self) -> None:
        self._keep_task(self._loop.create_task(self._probed()))

    async def _probed(self) -> None:
        seconds = self.settings.pace.interval * TEST_INTERVALS / 1000
        reached = await self.link.test(self._beat(), seconds)
        if self._closed:
            return
        self.conduct.probed(Probe.REACHED if reached else Probe.SILENT, self.now())
        if reached and not self._was_kept:
            found = Step("3 connection", "answered: the link of the heartbeats is broken, not the node")
            before = self.conduct.latest.steps if self.conduct.latest is not None else ()
            self._note("kept", (*before, found))
        self._was_kept = reached
        self.conduct.look(self.now())

    def changed(self, decision: Decision, was: Role) -> None:
        own, now = self.partner.own, self.now()
        event = "took-over" if own.role is Role.ACTIVE else "stood-down"
        if decision.verdict is Verdict.HAND_OVER:
            event = "handed-over"
        peer = self.partner.peer
        self._note(event, decision.steps)
        is_meant = any(step.step in MEANT for step in decision.steps)
        self.turns.append((now, Turn(event, own.term, is_meant)))
        if self.partner.is_restless:
            log.error("switch_limit_exceeded", extra=values(switches=self.partner.switches))
            self._remember("alarm", self._about(()) | {"switches": self.partner.switches})
        if own.role is Role.ACTIVE and was is Role.STANDBY:
            self._work.begin()
        elif own.role is Role.STANDBY and was is Role.ACTIVE:
            self._draining = False
            self._work.end(self.refusal())
            if peer is not None and peer.role is Role.ACTIVE and decision.verdict is Verdict.STAND_DOWN:
                # The heartbeat was in transit for a while: better a message too many in the report than one too few.
                on_the_way = self.settings.pace.interval
                self._work.overlapped(wall_clock() - peer.active - (now - peer.at) - on_the_way, peer.term)

    def hand_over(self, decision: Decision) -> None:
        self._keep_task(self._loop.create_task(self._hand_over(decision)))

    async def _hand_over(self, decision: Decision) -> None:
        self._draining = True
        try:
            self.left = await self._work.drain(self.settings.drain_seconds)
        finally:
            self._draining = False
        self.conduct.handed_over(decision, self.now())

    def _keep_task(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def switch(self, to: str, seconds: float) -> dict[str, Any]:
        """Run a planned switch."""
        return await switch(self, to, seconds)

    # -- history and status --------------------------------------------------------------------------------------------

    def _note(self, event: str, steps: tuple[Step, ...]) -> None:
        about = self._about(steps)
        self._remember(event, about)
        log.warning(HISTORY_LOG_EVENTS[event], extra=values(**about))

    def _remember(self, event: str, about: dict[str, Any]) -> None:
        """Append to the history. A write error is logged with the entry and does not stop the node."""
        try:
            self.memory.note(event, about)
        except OSError as error:
            log.error("history_write_failed", extra=values(entry={"event": event, **about}, error=str(error)))

    def _about(self, steps: tuple[Step, ...]) -> dict[str, Any]:
        own = self.partner.own
        return {"node": own.node, "role": own.role, "term": own.term, "evidence": [list(step) for step in steps]}

    def describe(self) -> dict[str, Any]:
        """Return the status report: both nodes, as known to this one."""
        return described(self.conduct, self.link, self._load, self.now()) | {"works": self.is_on}
