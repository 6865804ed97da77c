"""Node of a failover pair: its view of the peer from heartbeats, and the driver that carries out decisions.

The view rejects heartbeats that are repeated, or of an unknown process with a clock far off; it measures delay, clock
skew and gaps. ``core.failover.decide`` decides.

The driver makes one decision at a time and acts through a port with five effects. A term is on disk before it is used.
The test of the peer's port and the hand-over run elsewhere and report their results.

``now`` is milliseconds of a monotonic clock that continues while the process is stopped; ``wall`` is milliseconds since
1970. No I/O; ``failover.node`` calls it from the loop's thread."""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Protocol

from yirangmq.core.active_guard import MAX_NORMAL_SWITCHES
from yirangmq.core.failover import (
    Decision,
    FailoverTiming,
    FailoverVerdict,
    LocalNode,
    NodeLoad,
    Peer,
    PeerHeartbeat,
    Probe,
    Role,
    Status,
    decide,
    keys_differ,
)
from yirangmq.core.failover_witness import Witness, WitnessRequest

CLOCK_WINDOW_MS = 60_000
"""Maximum difference of wall clocks in ms at which a new process run of the peer is accepted.

It must also have started after the known run. Alternatively, the run is accepted if it proves that it receives our
heartbeats. Within one run only the sequence counts, so that a clock that jumps does no harm."""
MAX_SENT = 256
"""Number of our latest heartbeats for which the sending time is kept, to measure the delay."""
MAX_ENDED_BOOTS = 1000
"""Number of finished process runs of the peer that are remembered and rejected."""
DAY_MS = 24 * 3600 * 1000


# -- view of the peer --------------------------------------------------------------------------------------------------


class HeartbeatResult(StrEnum):
    """Result of a received heartbeat with a valid tag."""

    TAKEN = "taken"
    REPEATED = "repeated"
    """Its sequence, or its process run, is over: it is late, duplicated by the network, or replayed by an attacker."""
    STRANGE = "strange"
    """A new process run that cannot be accepted yet: its clock is far from ours, or it seems older than the known run,
    and it does not prove that it receives our heartbeats."""
    OURSELVES = "ourselves"
    """It has the name of this node."""


class FailoverNode:
    """State of a failover node: its own role and term, and its view of the peer from heartbeats. Loop thread only."""

    def __init__(self, node: str, pace: FailoverTiming, term: int, boot: str, now: int) -> None:
        self.pace = pace
        self.boot = boot
        self.own = LocalNode(node, Role.STANDBY, Status.STARTING, term, now, decided_at=now)
        self.peer: Peer | None = None
        self.latest: PeerHeartbeat | None = None
        """Last heartbeat that was accepted."""
        self.claim = 0
        self.delay: int | None = None
        """Round-trip time in ms, as last measured; None: not measured yet."""
        self.skew = 0
        """Milliseconds by which the peer's wall clock is ahead of ours, with an uncertainty of half the delay."""
        self.longest_gap = 0
        self._datagram_at: int | None = None
        """Instant of the last heartbeat that came as a datagram; others are answers to a test of the TCP port."""
        self._peer_active_at: int | None = None
        """Instant of the last heartbeat in which the peer was active."""
        self.peer_boot = ""
        self._granted_to = ""
        self._ended_boots: OrderedDict[str, None] = OrderedDict()
        self._echo: tuple[str, int, int] = ("", 0, 0)
        self._sequence = 0
        self._sent: OrderedDict[int, int] = OrderedDict()
        self._switches: deque[int] = deque()

    # -- sending --------------------------------------------------------------------------------------------------

    def heartbeat(self, now: int, wall: int, address: str = "", load: NodeLoad | None = None) -> PeerHeartbeat:
        """Build the next heartbeat."""
        own = self.own
        self._sequence += 1
        self._sent[self._sequence] = now
        if len(self._sent) > MAX_SENT:
            self._sent.popitem(last=False)
        boot, sequence, at = self._echo
        return PeerHeartbeat(
            node=own.node,
            boot=self.boot,
            sequence=self._sequence,
            at=wall,
            running=now - own.started_at,
            active=now - own.active_since if own.role is Role.ACTIVE else 0,
            role=own.role,
            status=own.status,
            term=own.term,
            claim=self.claim,
            grant=own.granted if self._granted_to else 0,
            grant_boot=self._granted_to,
            wish=own.order,
            address=address,
            heard_boot=boot,
            heard_sequence=sequence,
            heard_age=now - at if boot else 0,
            load=load or NodeLoad(),
        )

    # -- receiving ------------------------------------------------------------------------------------------------

    def on_heartbeat(
        self, heartbeat: PeerHeartbeat, now: int, wall: int, *, is_datagram: bool = True
    ) -> HeartbeatResult:
        """Process a received heartbeat with a valid tag. ``is_datagram``: it is not part of a test over TCP."""
        if heartbeat.node == self.own.node:
            return HeartbeatResult.OURSELVES
        is_same = heartbeat.boot == self.peer_boot
        if heartbeat.boot in self._ended_boots or (
            is_same and self.latest is not None and heartbeat.sequence <= self.latest.sequence
        ):
            return HeartbeatResult.REPEATED
        sent_at = self._sent.get(heartbeat.heard_sequence) if heartbeat.heard_boot == self.boot else None
        self._echo = (heartbeat.boot, heartbeat.sequence, now)
        if not is_same and not self._is_plausible(heartbeat, wall) and not self._is_proven(sent_at):
            return HeartbeatResult.STRANGE
        self._start_peer_run(heartbeat.boot)
        if self.peer is not None:
            self.longest_gap = max(self.longest_gap, now - self.peer.at)
        self._note(heartbeat, now, wall, sent_at)
        if is_datagram:
            self._datagram_at = now
        return HeartbeatResult.TAKEN

    def on_rejected(self, now: int) -> None:
        """Note that a heartbeat from the peer's address failed authentication."""
        self.own = replace(self.own, rejected_at=now)

    def _is_plausible(self, heartbeat: PeerHeartbeat, wall: int) -> bool:
        """Return True if a new process run is plausible without proof: its clock agrees with ours within
        ``CLOCK_WINDOW_MS``, and it started after the known run."""
        latest = self.latest
        is_later = latest is None or heartbeat.at - heartbeat.running > latest.at - latest.running
        return is_later and abs(heartbeat.at - wall) <= CLOCK_WINDOW_MS

    def _is_proven(self, sent_at: int | None) -> bool:
        """Return True if it received a heartbeat that this node sent after the last one from the known run."""
        return sent_at is not None and (self.peer is None or sent_at > self.peer.at)

    def _start_peer_run(self, boot: str) -> None:
        if boot == self.peer_boot:
            return
        if self.peer_boot:
            self._ended_boots[self.peer_boot] = None
            if len(self._ended_boots) > MAX_ENDED_BOOTS:
                self._ended_boots.popitem(last=False)
        self.peer_boot = boot

    def _note(self, heartbeat: PeerHeartbeat, now: int, wall: int, sent_at: int | None) -> None:
        self.latest = heartbeat
        self.peer = Peer(
            heartbeat.node,
            heartbeat.role,
            heartbeat.status,
            heartbeat.term,
            heartbeat.running,
            heartbeat.active,
            now,
            heartbeat.claim,
            heartbeat.grant if heartbeat.grant_boot == self.boot else 0,
            heartbeat.wish,
        )
        if heartbeat.role is Role.ACTIVE:
            self._peer_active_at = now
        if sent_at is not None:
            self.delay = max(0, now - sent_at - heartbeat.heard_age)
            if heartbeat.role is Role.STANDBY:
                self.confirm(sent_at)
        self.skew = heartbeat.at + (self.delay or 0) // 2 - wall

    def confirm(self, at: int) -> None:
        """Note that at this instant the witness, or a peer that is standby, confirmed this node alone."""
        known = self.own.confirmed_at
        self.own = replace(self.own, confirmed_at=at if known is None else max(at, known))

    def clear_confirmation(self) -> None:
        self.own = replace(self.own, confirmed_at=None)

    # -- deciding -------------------------------------------------------------------------------------------------

    def evaluate(self, now: int, probe: Probe, witness: Witness) -> Decision:
        decision = decide(self.pace, self.own, self.peer, probe, witness, now)
        self.own = replace(self.own, decided_at=now)
        return decision

    def may_work(self, now: int) -> bool:
        """Return True if the node may work as the active one now.

        If its last decision is older than the timeout, an active node does nothing until it has decided again. With a
        witness the same applies if its last confirmation is older than the lease."""
        own = self.own
        if own.role is not Role.ACTIVE or now - own.decided_at > self.pace.timeout:
            return False
        return not self.pace.has_witness or (own.confirmed_at is not None and now - own.confirmed_at < self.pace.lease)

    def silence(self, now: int) -> int:
        """Milliseconds since the last heartbeat of the peer, or since the start of this node if there was none."""
        return now - (self.peer.at if self.peer is not None else self.own.started_at)

    def datagram_silence(self, now: int) -> int:
        """Milliseconds since the last heartbeat that came as a datagram, or since the start of this node."""
        return now - (self.own.started_at if self._datagram_at is None else self._datagram_at)

    def is_late(self, now: int) -> bool:
        """Return True if datagrams are later than half the timeout. No decision uses it; operators are informed.

        Answers over TCP do not count: while UDP is blocked, the heartbeats stay late although the peer is reachable."""
        peer = self.peer
        expected = peer is not None and peer.status is Status.RUNNING
        return expected and self.datagram_silence(now) * 2 > self.pace.timeout

    def keys_differ(self, now: int) -> bool:
        return keys_differ(self.pace, self.own, self.peer, now)

    def time_without_active(self, now: int) -> int:
        """Milliseconds for which this node has known no active node of the pair; 0 if it knows one."""
        own, peer = self.own, self.peer
        if own.role is Role.ACTIVE:
            return 0
        if peer is not None and peer.role is Role.ACTIVE and now - peer.at <= self.pace.timeout:
            return 0
        return now - max(own.started_at, own.switched_at or 0, self._peer_active_at or 0)

    # -- state changes --------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.own = replace(self.own, status=Status.RUNNING)

    def stop(self, status: Status) -> None:
        """Set STOPPING or STOPPED, by hand. A node that is STOPPED becomes standby."""
        role = Role.STANDBY if status is Status.STOPPED else self.own.role
        self.own = replace(self.own, status=status, role=role)

    def adopt_term(self, term: int) -> None:
        """Adopt a term that is on disk."""
        self.own = replace(self.own, term=max(term, self.own.term))

    def order(self, is_ordered: bool) -> None:
        self.own = replace(self.own, order=is_ordered)

    def grant(self, term: int) -> None:
        """Consent to a term of the peer, for its present process run."""
        self.claim = 0
        self._granted_to = self.peer_boot
        self.own = replace(self.own, granted=max(term, self.own.granted))

    def take_over(self, term: int, now: int) -> None:
        """Become active in a term that is on disk."""
        own = self.own
        since = own.active_since if own.role is Role.ACTIVE else now
        self.own = replace(own, role=Role.ACTIVE, term=term, active_since=since, switched_at=now, order=False)
        self.claim = 0
        self._count_switch(now)

    def step_down(self, now: int) -> None:
        self.own = replace(self.own, role=Role.STANDBY, switched_at=now, order=False)
        self.claim = 0
        self._count_switch(now)

    def _count_switch(self, now: int) -> None:
        self._switches.append(now)
        while self._switches and now - self._switches[0] > DAY_MS:
            self._switches.popleft()

    @property
    def switches(self) -> int:
        """Switches of this node in the last day."""
        return len(self._switches)

    @property
    def is_flapping(self) -> bool:
        return self.switches > MAX_NORMAL_SWITCHES


# -- driver ------------------------------------------------------------------------------------------------------------


class FailoverEffects(Protocol):
    """Effects of a decision, which the failover driver calls."""

    def save(self, term: int) -> None:
        """Store the term; it is on disk when this returns."""

    def probe(self) -> None:
        """Start a test of the peer's TCP port; its result is passed to ``FailoverDriver.on_probe_result``."""

    def hand_over(self, decision: Decision) -> None:
        """Start to finish messages in flight, then call ``FailoverDriver.on_handed_over``."""

    def send_heartbeat(self) -> None:
        """Send a heartbeat now, because a state that the peer needs has changed."""

    def on_role_change(self, decision: Decision, previous_role: Role) -> None:
        """Called after the role or the term changed; ``decision`` has the evidence."""


class FailoverDriver:
    """Failover driver: makes one decision at a time and carries it out. ``saved``: the term that is on disk. Loop
    thread only."""

    def __init__(self, failover_node: FailoverNode, effects: FailoverEffects, saved: int) -> None:
        self.failover_node = failover_node
        self._effects = effects
        self._saved = saved
        self._probe = Probe.NONE
        self._probed_at = 0
        self._probing = False
        self.witness = Witness.NONE
        self.needs_witness = False
        self._handing_over = 0
        self._challenged_at = 0
        self.latest: Decision | None = None
        """Latest decision."""

    # -- the witness ----------------------------------------------------------------------------------------------

    @property
    def wish(self) -> WitnessRequest:
        """Request for the next exchange with the witness."""
        if self.failover_node.own.status is Status.STOPPED:
            return WitnessRequest.RELEASE
        is_active = self.failover_node.own.role is Role.ACTIVE
        return WitnessRequest.HOLD if is_active or self.needs_witness else WitnessRequest.RELEASE

    @property
    def wish_term(self) -> int:
        """Term of that request: the one in force, or the one that the node wants to take."""
        asked = self.latest.term if self.needs_witness and self.latest is not None else 0
        return max(asked, self.failover_node.own.term)

    def on_witness_result(self, found: Witness, begun_at: int, term: int) -> None:
        """Process the result of an exchange that started at ``begun_at``. ``term``: the highest term seen with another
        holder."""
        self.witness = found
        if term > self.failover_node.own.term and self.failover_node.own.role is Role.STANDBY:
            self._save_term(term)
            self.failover_node.adopt_term(term)
        if found is Witness.OURS:
            self.failover_node.confirm(begun_at)

    # -- heartbeats -----------------------------------------------------------------------------------------------

    def on_heartbeat(
        self, heartbeat: PeerHeartbeat, now: int, wall: int, *, is_datagram: bool = True
    ) -> HeartbeatResult:
        """Process a heartbeat, and decide and act immediately.

        A new process run of the peer is answered immediately. So is one that cannot be accepted yet, at most every
        tenth of an interval: if it is alive, it receives the answer and proves so in its next heartbeat."""
        known = self.failover_node.peer_boot
        found = self.failover_node.on_heartbeat(heartbeat, now, wall, is_datagram=is_datagram)
        if found is HeartbeatResult.TAKEN:
            self.evaluate(now)
            if known != self.failover_node.peer_boot:
                self._effects.send_heartbeat()
        elif found is HeartbeatResult.STRANGE and now - self._challenged_at > self.failover_node.pace.interval // 10:
            self._challenged_at = now
            self._effects.send_heartbeat()
        return found

    # -- decisions ------------------------------------------------------------------------------------------------

    def evaluate(self, now: int) -> Decision:
        failover_node = self.failover_node
        self._adopt_peer_term()
        decision = failover_node.evaluate(now, self._probe_at(now), self.witness)
        self.latest = decision
        self.needs_witness = decision.verdict is FailoverVerdict.ASK_WITNESS
        if decision.verdict is not FailoverVerdict.CLAIM:
            failover_node.claim = 0
        _ACTIONS[decision.verdict](self, decision, now)
        return decision

    def _probe_at(self, now: int) -> Probe:
        """Return the probe's result; it is valid for one interval, unless a heartbeat arrived since."""
        peer = self.failover_node.peer
        is_old = now - self._probed_at > self.failover_node.pace.interval
        if is_old or (peer is not None and peer.at >= self._probed_at):
            return Probe.NONE
        return self._probe

    def on_probe_result(self, found: Probe, now: int) -> None:
        self._probing, self._probe, self._probed_at = False, found, now

    def _adopt_peer_term(self) -> None:
        """Adopt the peer's term if it is higher. An active node stands down instead, which adopts it too."""
        own, peer = self.failover_node.own, self.failover_node.peer
        if own.role is Role.STANDBY and peer is not None and peer.term > own.term:
            self._save_term(peer.term)
            self.failover_node.adopt_term(peer.term)

    def _stay(self, decision: Decision, now: int) -> None:
        """Do nothing."""

    def _start_probe(self, decision: Decision, now: int) -> None:
        if not self._probing:
            self._probing = True
            self._effects.probe()

    def _claim(self, decision: Decision, now: int) -> None:
        if self.failover_node.claim != decision.term:
            self.failover_node.claim = decision.term
            self._effects.send_heartbeat()

    def _grant(self, decision: Decision, now: int) -> None:
        if self.failover_node.own.granted < decision.term:
            self._save_term(decision.term)
            self.failover_node.grant(decision.term)
            self._effects.send_heartbeat()

    def _request_witness(self, decision: Decision, now: int) -> None:
        """Do nothing: ``wish`` requests the witness at the next exchange."""

    def _take_over(self, decision: Decision, now: int) -> None:
        previous_role = self.failover_node.own.role
        self._save_term(decision.term)
        self.failover_node.take_over(decision.term, now)
        self._effects.on_role_change(decision, previous_role)
        self._effects.send_heartbeat()

    def _step_down(self, decision: Decision, now: int) -> None:
        previous_role = self.failover_node.own.role
        self._handing_over = 0
        self._save_term(decision.term)
        self.failover_node.adopt_term(decision.term)
        self.failover_node.step_down(now)
        self._effects.on_role_change(decision, previous_role)
        self._effects.send_heartbeat()

    def hand_over(self, decision: Decision, now: int) -> None:
        """Start a hand-over that an operator of this node ordered."""
        self._hand_over(decision, now)

    def _hand_over(self, decision: Decision, now: int) -> None:
        if not self._handing_over:
            self._handing_over = decision.term
            self._effects.hand_over(decision)

    def on_handed_over(self, decision: Decision, now: int) -> None:
        """Messages in flight are finished: consent to the peer's term and become standby."""
        self._handing_over = 0
        if self.failover_node.own.role is not Role.ACTIVE:
            return  # the node had to stand down before
        self._save_term(decision.term)
        self.failover_node.grant(decision.term)
        self.failover_node.step_down(now)
        self._effects.on_role_change(decision, Role.ACTIVE)
        self._effects.send_heartbeat()

    def on_hand_over_failed(self) -> None:
        """The hand-over ended with an error, and this node is still active: the next one may start."""
        self._handing_over = 0

    def _save_term(self, term: int) -> None:
        if term > self._saved:
            self._effects.save(term)
            self._saved = term


# -- action of each verdict --------------------------------------------------------------------------------------------

_ACTIONS: dict[FailoverVerdict, Callable[[FailoverDriver, Decision, int], None]] = {
    FailoverVerdict.STAY: FailoverDriver._stay,
    FailoverVerdict.PROBE: FailoverDriver._start_probe,
    FailoverVerdict.CLAIM: FailoverDriver._claim,
    FailoverVerdict.GRANT: FailoverDriver._grant,
    FailoverVerdict.ASK_WITNESS: FailoverDriver._request_witness,
    FailoverVerdict.TAKE_OVER: FailoverDriver._take_over,
    FailoverVerdict.HAND_OVER: FailoverDriver._hand_over,
    FailoverVerdict.STAND_DOWN: FailoverDriver._step_down,
}
