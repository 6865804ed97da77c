"""Failover of a pair: roles and terms, the decision with its evidence, and heartbeat values.

``decide`` is a function of this node, the peer's last heartbeat, the test of its TCP port, the witness and the time.
The same values give the same decision. Each of its steps leaves one line of evidence; docs/pair.md lists them.

A heartbeat describes a node, and proves that it is not a replay: the pair of its process's ``boot`` and a sequence
number is never used again. ``wire.heartbeat`` encodes it.

All instants are milliseconds of one monotonic clock. ``core.failover_node`` keeps state between two decisions,
``core.failover_witness`` has the rules of the witness. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from yirangmq.core.failover_witness import Witness

# -- values ------------------------------------------------------------------------------------------------------------


class Role(StrEnum):
    ACTIVE = "ACTIVE"
    STANDBY = "STANDBY"


class Status(StrEnum):
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"


class Probe(StrEnum):
    """Result of the test of the peer's TCP port."""

    NONE = "none"
    """Not tested since the peer fell silent."""
    REACHED = "reached"
    """The peer answered. The answer counts as a heartbeat, so this value is used only until it is processed."""
    SILENT = "silent"
    """The connection failed, or nothing answered."""
    FOREIGN = "foreign"
    """Another program answered: what it sent is not a heartbeat, or not the answer to this test."""
    REJECTED = "rejected"
    """A node answered with a heartbeat that is signed with another key."""


class FailoverVerdict(StrEnum):
    STAY = "stay"
    PROBE = "probe"
    """Test the peer's TCP port, then decide again."""
    CLAIM = "claim"
    """Request the peer's consent to a term."""
    GRANT = "grant"
    """Consent to the peer's claim."""
    ASK_WITNESS = "ask-witness"
    TAKE_OVER = "take-over"
    HAND_OVER = "hand-over"
    """Finish messages in flight, then stand down and consent to the peer's next term."""
    STAND_DOWN = "stand-down"


class FailoverTiming(NamedTuple):
    """Timing of a pair, in milliseconds. Both nodes should have the same values."""

    interval: int = 5000
    misses: int = 3
    cooldown: int = 30_000
    has_witness: bool = False

    @property
    def timeout(self) -> int:
        """Time without a heartbeat after which a peer is silent: by default 15 s."""
        return self.interval * self.misses

    @property
    def takeover(self) -> int:
        """Time within which a standby takes over from a node that died, by default 20 s: the timeout, and one interval
        for the test of the peer's port and the timer."""
        return self.timeout + self.interval

    @property
    def lease(self) -> int:
        """Leader lease, used with a witness: an active node works no longer than this after the witness or the peer
        last confirmed it. It is one interval shorter than the timeout after which the peer may take over."""
        return self.timeout - self.interval


@dataclass(frozen=True, slots=True)
class LocalNode:
    """State of this node, an input of ``decide``."""

    node: str
    role: Role = Role.STANDBY
    status: Status = Status.RUNNING
    term: int = 0
    started_at: int = 0
    switched_at: int | None = None
    """Instant of the last change of its role; None: none yet. The cooldown counts from here."""
    active_since: int = 0
    decided_at: int = 0
    """Instant of its last decision. If that is longer ago than the timeout, the process was frozen."""
    confirmed_at: int | None = None
    """Latest instant at which the witness, or the peer as standby, confirmed this node alone. Used with a witness."""
    order: bool = False
    """An operator ordered this node to take over."""
    granted: int = 0
    """Highest term to which this node has consented."""
    rejected_at: int | None = None
    """Instant of the latest heartbeat from the peer's address that failed authentication; None: none yet."""


@dataclass(frozen=True, slots=True)
class Peer:
    """State of the other node, from its last heartbeat."""

    node: str
    role: Role
    status: Status
    term: int
    running: int
    """Time in ms that its process had run when it sent the heartbeat."""
    active: int
    """Time in ms that it had been active when it sent the heartbeat; 0 if it was not active."""
    at: int
    """Instant at which the heartbeat was received."""
    claim: int = 0
    grant: int = 0
    wish: bool = False
    """An operator ordered it to take over."""


class EvidenceStep(NamedTuple):
    """One line of evidence of a decision: the question, and the finding."""

    step: str
    found: str


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: FailoverVerdict
    term: int
    """Term of the decision: the new term of a takeover, claim or consent, else the highest known."""
    steps: tuple[EvidenceStep, ...]


# -- decision ----------------------------------------------------------------------------------------------------------


def format_seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s"


def decide(
    pace: FailoverTiming, own: LocalNode, peer: Peer | None, probe: Probe, witness: Witness, now: int
) -> Decision:
    """Decide the next action of this node. The same values give the same decision."""
    known = max(own.term, own.granted, peer.term if peer else 0)
    if own.status is not Status.RUNNING:
        return Decision(
            FailoverVerdict.STAY,
            known,
            (EvidenceStep("own status", f"{own.status}: a node that does not run decides nothing"),),
        )
    if own.role is Role.ACTIVE:
        return _active(pace, own, peer, witness, now, known)
    return _standby(pace, own, peer, probe, witness, now, known)


# -- an active node -------------------------------------------------------------------------------------------------


def _active(
    pace: FailoverTiming, own: LocalNode, peer: Peer | None, witness: Witness, now: int, known: int
) -> Decision:
    away = now - own.decided_at
    if away > pace.timeout:
        why = (
            f"this node did not run for {format_seconds(away)}, longer than {format_seconds(pace.timeout)}: "
            "the peer may be active"
        )
        return Decision(FailoverVerdict.STAND_DOWN, known, (EvidenceStep("frozen", why),))
    if peer is not None and peer.term > own.term:
        why = f"{peer.node} has term {peer.term}, ours is {own.term}: the older term stands down"
        return Decision(FailoverVerdict.STAND_DOWN, known, (EvidenceStep("term", why), *_heartbeat_step(peer, now)))
    if pace.has_witness and (own.confirmed_at is None or now - own.confirmed_at >= pace.lease):
        why = f"neither the witness nor the peer has had us as active for {format_seconds(pace.lease)}"
        return Decision(FailoverVerdict.STAND_DOWN, known, (EvidenceStep("witness", f"{witness}: {why}"),))
    if peer is None or now - peer.at > pace.timeout:
        return Decision(FailoverVerdict.STAY, known, (EvidenceStep("peer", "silent: this node stays active"),))
    if peer.role is Role.ACTIVE and peer.term == own.term:
        return _same_term(pace, own, peer, now)
    if peer.role is Role.STANDBY and peer.wish and peer.status is Status.RUNNING:
        return Decision(
            FailoverVerdict.HAND_OVER, known + 1, (EvidenceStep("order", f"{peer.node} was ordered to take over"),)
        )
    return Decision(
        FailoverVerdict.STAY, known, (EvidenceStep("peer", f"{peer.node} is {peer.role} in term {peer.term}"),)
    )


def _same_term(pace: FailoverTiming, own: LocalNode, peer: Peer, now: int) -> Decision:
    """Resolve two active nodes with the same term, after both took it without contact.

    The node that has been active for clearly longer (more than one interval) takes a higher term. If neither has, the
    node with the larger name stands down. In each case one node remains active."""
    ahead = (now - own.active_since) - peer.active
    found = (
        f"both are active in term {own.term}; we {format_seconds(now - own.active_since)}, "
        f"{peer.node} {format_seconds(peer.active)}"
    )
    if ahead > pace.interval:
        return Decision(
            FailoverVerdict.TAKE_OVER,
            own.term + 1,
            (EvidenceStep("term", f"{found}: the longer one takes a higher term"),),
        )
    if own.node > peer.node and ahead >= -pace.interval:
        return Decision(
            FailoverVerdict.STAND_DOWN, own.term, (EvidenceStep("term", f"{found}: the larger name stands down"),)
        )
    return Decision(FailoverVerdict.STAY, own.term, (EvidenceStep("term", f"{found}: the other one stands down"),))


# -- a standby ------------------------------------------------------------------------------------------------------


def _standby(
    pace: FailoverTiming, own: LocalNode, peer: Peer | None, probe: Probe, witness: Witness, now: int, known: int
) -> Decision:
    if peer is None:
        return _without_heartbeat(pace, own, probe, witness, now, known)
    if now - peer.at <= pace.timeout:
        return _in_contact(pace, own, peer, witness, now, known)
    return _silent(pace, own, peer, probe, witness, now, known)


def _without_heartbeat(
    pace: FailoverTiming, own: LocalNode, probe: Probe, witness: Witness, now: int, known: int
) -> Decision:
    """Decide for a standby that has had no heartbeat since its start."""
    since = now - own.started_at
    if since <= pace.timeout and not own.order:
        return _stay(
            known,
            EvidenceStep(
                "1 heartbeats",
                f"none received yet, waiting for {format_seconds(since)} of {format_seconds(pace.timeout)}",
            ),
        )
    order = (_ordered(),) if own.order else ()
    steps = (*order, EvidenceStep("1 heartbeats", f"none received in the {format_seconds(since)} since the start"))
    if keys_differ(pace, own, None, now):
        return _stay(known, *steps, _rejected_step(own, now))
    return _by_probe(
        pace, own, probe, witness, known, (*steps, EvidenceStep("2 last status", "unknown: no heartbeat received"))
    )


def _in_contact(pace: FailoverTiming, own: LocalNode, peer: Peer, witness: Witness, now: int, known: int) -> Decision:
    steps = _heartbeat_step(peer, now)
    if peer.role is Role.ACTIVE:
        if own.order:
            return Decision(FailoverVerdict.CLAIM, known + 1, (_ordered(), *steps))
        return _stay(known, *steps)
    if peer.grant > max(own.term, own.granted) and peer.grant >= peer.term:
        if pace.has_witness and (own.confirmed_at is None or now - own.confirmed_at >= pace.lease):
            return _stay(
                known,
                *steps,
                EvidenceStep(
                    "consent", f"of {peer.node} to term {peer.grant}, but the witness has not confirmed this node"
                ),
            )
        found = f"{peer.node} consents to term {peer.grant}"
        return Decision(FailoverVerdict.TAKE_OVER, peer.grant, (*_order(own), *steps, EvidenceStep("consent", found)))
    if peer.status in (Status.STOPPING, Status.STOPPED):
        if own.order:
            return _take_over_stopped_peer(pace, own, peer, witness, known, steps)
        return _stay(
            known,
            *steps,
            EvidenceStep("2 last status", f"{peer.status}, by an operator: no takeover unless ordered"),
        )
    return _between_two_standbys(own, peer, now, known, steps)


def _between_two_standbys(
    own: LocalNode, peer: Peer, now: int, known: int, steps: tuple[EvidenceStep, ...]
) -> Decision:
    """Decide between two standbys. The node that has run longer requests consent, and the other gives it; on a tie the
    node with the smaller name does."""
    ours, theirs = now - own.started_at, peer.running
    found = f"ours {format_seconds(ours)}, of {peer.node} {format_seconds(theirs)}"
    wants = own.order or (not peer.wish and (ours, peer.node) > (theirs, own.node))
    yields = peer.claim > own.term and (not wants or (own.order == peer.wish and peer.node < own.node))
    if yields:
        return Decision(
            FailoverVerdict.GRANT,
            peer.claim,
            (*steps, EvidenceStep("4 running time", f"{found}: {peer.node} may be active")),
        )
    if wants:
        return Decision(
            FailoverVerdict.CLAIM,
            known + 1,
            (*_order(own), *steps, EvidenceStep("4 running time", f"{found}: we ask for consent")),
        )
    return _stay(known, *steps, EvidenceStep("4 running time", f"{found}: we wait for {peer.node}"))


def _take_over_stopped_peer(
    pace: FailoverTiming, own: LocalNode, peer: Peer, witness: Witness, known: int, steps: tuple[EvidenceStep, ...]
) -> Decision:
    """Decide on an ordered takeover from a peer that reported a stop: take over once it is STOPPED."""
    if peer.status is Status.STOPPING:
        return _stay(known, *steps, EvidenceStep("2 last status", "STOPPING: it is still finishing its work"))
    return _with_witness(pace, witness, known, (_ordered(), *steps))


def _silent(
    pace: FailoverTiming, own: LocalNode, peer: Peer, probe: Probe, witness: Witness, now: int, known: int
) -> Decision:
    """Decide on a takeover from a silent peer. The evidence has numbered steps, and those of cooldown and witness."""
    age = now - peer.at
    missed = (
        f"missed {age // pace.interval}: the last of {peer.node} is {format_seconds(age)} old, "
        f"over {format_seconds(pace.timeout)}"
    )
    steps: tuple[EvidenceStep, ...] = (*_order(own), EvidenceStep("1 heartbeats", missed))
    if keys_differ(pace, own, peer, now):
        return _stay(known, *steps, _rejected_step(own, now))
    judged = EvidenceStep("2 last status", f"{peer.status}, {peer.role} in term {peer.term}")
    if peer.status in (Status.STOPPING, Status.STOPPED) and not own.order:
        return _stay(known, *steps, judged._replace(found=f"{peer.status}, by an operator: no takeover unless ordered"))
    if peer.status is Status.STARTING and age <= 2 * pace.timeout and not own.order:
        return _stay(
            known,
            *steps,
            judged._replace(found=f"STARTING: it has until {format_seconds(2 * pace.timeout)} to come up"),
        )
    steps = (*steps, judged)
    if own.switched_at is not None and now - own.switched_at < pace.cooldown and not own.order:
        left = pace.cooldown - (now - own.switched_at)
        return _stay(
            known,
            *steps,
            EvidenceStep(
                "cooldown",
                f"the last switch is {format_seconds(now - own.switched_at)} ago; {format_seconds(left)} left",
            ),
        )
    return _by_probe(pace, own, probe, witness, known, steps)


def _by_probe(
    pace: FailoverTiming, own: LocalNode, probe: Probe, witness: Witness, known: int, steps: tuple[EvidenceStep, ...]
) -> Decision:
    """Step 3: test the peer's TCP port. An answer counts as a heartbeat, so that a reachable peer is judged by its
    reported state (step 4). A program that cannot prove to be the peer is no evidence that the peer lives."""
    if probe is Probe.NONE:
        return Decision(FailoverVerdict.PROBE, known, steps)
    finding = EvidenceStep("3 connection", PROBE_FINDINGS[probe])
    if probe in (Probe.REACHED, Probe.REJECTED):
        return _stay(known, *steps, finding)
    return _with_witness(pace, witness, known, (*steps, finding))


PROBE_FINDINGS = {
    Probe.REACHED: "answered: the link of the heartbeats is broken, not the node",
    Probe.REJECTED: "answered with another key: the peer lives, and the keys differ; no takeover",
    Probe.SILENT: "no answer at the peer's TCP port",
    Probe.FOREIGN: "another program answers at the peer's TCP port, not the peer",
}
"""Evidence of step 3, by result of the test."""


def _with_witness(pace: FailoverTiming, witness: Witness, known: int, steps: tuple[EvidenceStep, ...]) -> Decision:
    if not pace.has_witness:
        return Decision(FailoverVerdict.TAKE_OVER, known + 1, steps)
    if witness is Witness.OURS:
        return Decision(FailoverVerdict.TAKE_OVER, known + 1, (*steps, EvidenceStep("witness", "ours")))
    if witness is Witness.FREE:
        return Decision(FailoverVerdict.ASK_WITNESS, known + 1, (*steps, EvidenceStep("witness", "free: asked")))
    found = "the peer has it" if witness is Witness.THEIRS else "cannot be read"
    return _stay(known, *steps, EvidenceStep("witness", f"{found}: no takeover"))


# -- keys that differ -----------------------------------------------------------------------------------------------


def keys_differ(pace: FailoverTiming, own: LocalNode, peer: Peer | None, now: int) -> bool:
    """Return True if the latest heartbeat from the peer's address failed authentication, within the timeout.

    A dead node sends nothing, so such heartbeats show that the peer lives. Its state is unknown: it may be active."""
    if own.rejected_at is None or now - own.rejected_at > pace.timeout:
        return False
    return peer is None or peer.at < own.rejected_at


def _rejected_step(own: LocalNode, now: int) -> EvidenceStep:
    age = format_seconds(now - (own.rejected_at or 0))
    return EvidenceStep(
        "key", f"a heartbeat from the peer's address is signed with another key, {age} ago: it lives; no takeover"
    )


# -- evidence -------------------------------------------------------------------------------------------------------


def _stay(term: int, *steps: EvidenceStep) -> Decision:
    return Decision(FailoverVerdict.STAY, term, steps)


def _heartbeat_step(peer: Peer, now: int) -> tuple[EvidenceStep, ...]:
    return (
        EvidenceStep(
            "heard", f"{peer.node} {format_seconds(now - peer.at)} ago: {peer.role}, {peer.status}, term {peer.term}"
        ),
    )


def _ordered() -> EvidenceStep:
    return EvidenceStep("order", "by an operator")


def _order(own: LocalNode) -> tuple[EvidenceStep, ...]:
    return (_ordered(),) if own.order else ()


# -- heartbeats --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """Load of a node, for people and alerts; no decision uses it."""

    cpu: float = 0.0
    """Share of one processor since the last heartbeat."""
    memory: int = 0
    """Resident memory in bytes."""
    depth: int = 0
    """Backlog in messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerHeartbeat:
    """Heartbeat of a node.

    ``boot`` identifies one run of a process and is chosen at its start. ``sequence`` rises by one with every heartbeat
    of that run. The pair of both is never used again, so that a replayed heartbeat is recognized."""

    node: str
    boot: str
    sequence: int
    at: int
    """Wall clock, milliseconds since 1970."""
    running: int
    active: int
    """Milliseconds in the active role; 0 for a standby."""
    role: Role
    status: Status
    term: int
    claim: int = 0
    grant: int = 0
    grant_boot: str = ""
    """Process run (``boot``) of the peer to which this node consented; a later run does not have the consent."""
    wish: bool = False
    address: str = ""
    """Client address of this node."""
    heard_boot: str = ""
    heard_sequence: int = 0
    """Boot and sequence of the peer's latest heartbeat that this node received, and its age in ms. From them the peer
    learns that its heartbeats arrive, and measures the delay."""
    heard_age: int = 0
    load: NodeLoad = NodeLoad()
