"""Node of a failover pair: its view of the peer from heartbeats, and the driver that carries out decisions.

The view rejects heartbeats that are repeated, or of an unknown process whose clock is far off; it measures delay, clock
skew and gaps. ``core.failover.decide`` decides.

The driver makes one decision at a time and acts through a port with five effects. A term is on disk before it is used.
The test of the peer's port and the hand-over run elsewhere and report back.

``now`` is milliseconds of a monotonic clock that goes on while the process is stopped; ``wall`` is milliseconds since
1970. No I/O; ``failover.node`` calls it from the loop's thread."""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Protocol

from yirangmq.core.active_guard import MOST_SWITCHES
from yirangmq.core.failover import (
    Beat,
    Decision,
    Load,
    Own,
    Pace,
    Peer,
    Probe,
    Role,
    Status,
    Verdict,
    Wish,
    Witness,
    decide,
)

WINDOW_MS = 60_000
"""A life of the peer that is new to us is believed if its clock agrees with ours this far and it began after the one we
know, or if it shows that it hears us. Within one life only the sequence counts, so that a clock that jumps does no
harm."""
MOST_SENT = 256
"""Of our latest heartbeats we know when they were sent."""
MOST_BOOTS = 1000
"""Lives of the peer that are over, and are not believed again."""
DAY_MS = 24 * 3600 * 1000


# -- view of the peer --------------------------------------------------------------------------------------------------


class Heard(StrEnum):
    """What became of a heartbeat whose tag was right."""

    TAKEN = "taken"
    REPEATED = "repeated"
    """Its sequence, or its whole life, is over: late, doubled by the network, or played back by somebody."""
    STRANGE = "strange"
    """A new life whose clock is far from ours and that does not show that it hears us, yet."""
    OURSELVES = "ourselves"
    """It has our own name."""


class Partner:
    def __init__(self, node: str, pace: Pace, term: int, boot: str, now: int) -> None:
        self.pace = pace
        self.boot = boot
        self.own = Own(node, Role.STANDBY, Status.STARTING, term, now, looked_at=now)
        self.peer: Peer | None = None
        self.latest: Beat | None = None
        """The last heartbeat taken, whole."""
        self.claim = 0
        self.delay: int | None = None
        """Milliseconds there and back, as last measured."""
        self.skew = 0
        """Milliseconds by which the peer's wall clock is ahead of ours, as far as the delay lets us see."""
        self.longest_gap = 0
        self.peer_boot = ""
        self._granted_to = ""
        self._over: OrderedDict[str, None] = OrderedDict()
        self._echo: tuple[str, int, int] = ("", 0, 0)
        self._sequence = 0
        self._sent: OrderedDict[int, int] = OrderedDict()
        self._switches: deque[int] = deque()

    # -- saying ---------------------------------------------------------------------------------------------------

    def beat(self, now: int, wall: int, address: str = "", load: Load | None = None) -> Beat:
        """The next heartbeat."""
        own = self.own
        self._sequence += 1
        self._sent[self._sequence] = now
        if len(self._sent) > MOST_SENT:
            self._sent.popitem(last=False)
        boot, sequence, at = self._echo
        return Beat(
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
            load=load or Load(),
        )

    # -- hearing --------------------------------------------------------------------------------------------------

    def hear(self, beat: Beat, now: int, wall: int) -> Heard:
        """A heartbeat whose tag is right."""
        if beat.node == self.own.node:
            return Heard.OURSELVES
        is_same = beat.boot == self.peer_boot
        if beat.boot in self._over or (is_same and self.latest is not None and beat.sequence <= self.latest.sequence):
            return Heard.REPEATED
        sent_at = self._sent.get(beat.heard_sequence) if beat.heard_boot == self.boot else None
        self._echo = (beat.boot, beat.sequence, now)
        if not is_same and not self._is_likely(beat, wall) and not self._is_proven(sent_at):
            return Heard.STRANGE
        self._begin_life(beat.boot)
        if self.peer is not None:
            self.longest_gap = max(self.longest_gap, now - self.peer.at)
        self._note(beat, now, wall, sent_at)
        return Heard.TAKEN

    def _is_likely(self, beat: Beat, wall: int) -> bool:
        """A life that does not show that it hears us: its clock agrees with ours, and it began after the one known."""
        latest = self.latest
        is_later = latest is None or beat.at - beat.running > latest.at - latest.running
        return is_later and abs(beat.at - wall) <= WINDOW_MS

    def _is_proven(self, sent_at: int | None) -> bool:
        """It has heard something that we said after we last heard the life we know."""
        return sent_at is not None and (self.peer is None or sent_at > self.peer.at)

    def _begin_life(self, boot: str) -> None:
        if boot == self.peer_boot:
            return
        if self.peer_boot:
            self._over[self.peer_boot] = None
            if len(self._over) > MOST_BOOTS:
                self._over.popitem(last=False)
        self.peer_boot = boot

    def _note(self, beat: Beat, now: int, wall: int, sent_at: int | None) -> None:
        self.latest = beat
        self.peer = Peer(
            beat.node,
            beat.role,
            beat.status,
            beat.term,
            beat.running,
            beat.active,
            now,
            beat.claim,
            beat.grant if beat.grant_boot == self.boot else 0,
            beat.wish,
        )
        if sent_at is not None:
            self.delay = max(0, now - sent_at - beat.heard_age)
            if beat.role is Role.STANDBY:
                self.assured(sent_at)
        self.skew = beat.at + (self.delay or 0) // 2 - wall

    def assured(self, at: int) -> None:
        """At this moment the witness, or a peer that is standby, had nobody but us."""
        known = self.own.assured_at
        self.own = replace(self.own, assured_at=at if known is None else max(at, known))

    def forget_assurance(self) -> None:
        self.own = replace(self.own, assured_at=None)

    # -- deciding -------------------------------------------------------------------------------------------------

    def look(self, now: int, probe: Probe, witness: Witness) -> Decision:
        decision = decide(self.pace, self.own, self.peer, probe, witness, now)
        self.own = replace(self.own, looked_at=now)
        return decision

    def may_work(self, now: int) -> bool:
        """An active node that has not looked for too long, or whom nobody has confirmed for too long, does nothing
        until it has decided again."""
        own = self.own
        if own.role is not Role.ACTIVE or now - own.looked_at > self.pace.timeout:
            return False
        return not self.pace.has_witness or (own.assured_at is not None and now - own.assured_at < self.pace.lease)

    def silence(self, now: int) -> int:
        """Milliseconds since the peer was heard, or since our start."""
        return now - (self.peer.at if self.peer is not None else self.own.started_at)

    def is_late(self, now: int) -> bool:
        """Heartbeats are later than half the time-out: nothing follows from it, but somebody should know."""
        peer = self.peer
        expected = peer is not None and peer.status is Status.RUNNING
        return expected and self.silence(now) * 2 > self.pace.timeout

    # -- changing -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.own = replace(self.own, status=Status.RUNNING)

    def stop(self, status: Status) -> None:
        """By hand. One that is STOPPED works no more."""
        role = Role.STANDBY if status is Status.STOPPED else self.own.role
        self.own = replace(self.own, status=status, role=role)

    def learn(self, term: int) -> None:
        """A term that is on disk now."""
        self.own = replace(self.own, term=max(term, self.own.term))

    def order(self, is_ordered: bool) -> None:
        self.own = replace(self.own, order=is_ordered)

    def grant(self, term: int) -> None:
        """To the peer in its present life."""
        self.claim = 0
        self._granted_to = self.peer_boot
        self.own = replace(self.own, granted=max(term, self.own.granted))

    def take_over(self, term: int, now: int) -> None:
        """Active in a term that is on disk."""
        own = self.own
        since = own.active_since if own.role is Role.ACTIVE else now
        self.own = replace(own, role=Role.ACTIVE, term=term, active_since=since, switched_at=now, order=False)
        self.claim = 0
        self._switched(now)

    def stand_down(self, now: int) -> None:
        self.own = replace(self.own, role=Role.STANDBY, switched_at=now, order=False)
        self.claim = 0
        self._switched(now)

    def _switched(self, now: int) -> None:
        self._switches.append(now)
        while self._switches and now - self._switches[0] > DAY_MS:
            self._switches.popleft()

    @property
    def switches(self) -> int:
        """Of this node in the last day."""
        return len(self._switches)

    @property
    def is_restless(self) -> bool:
        return self.switches > MOST_SWITCHES


# -- driver ------------------------------------------------------------------------------------------------------------


class Outside(Protocol):
    def save(self, term: int) -> None:
        """On disk when it returns."""

    def probe(self) -> None:
        """Begin a test of the peer's TCP port; ``Conduct.probed`` is told how it went."""

    def hand_over(self, decision: Decision) -> None:
        """Begin to finish what is in work; ``Conduct.handed_over`` when that is done."""

    def say(self) -> None:
        """Send a heartbeat now: something changed that the peer should know."""

    def changed(self, decision: Decision, was: Role) -> None:
        """The role or the term is another now; ``decision`` says why."""


class Conduct:
    def __init__(self, partner: Partner, outside: Outside, saved: int) -> None:
        self.partner = partner
        self._outside = outside
        self._saved = saved
        self._probe = Probe.NONE
        self._probed_at = 0
        self._probing = False
        self.witness = Witness.NONE
        self.asks_witness = False
        self._handing_over = 0
        self._doubted_at = 0
        self.latest: Decision | None = None
        """The last thing it decided."""

    # -- the witness ----------------------------------------------------------------------------------------------

    @property
    def wish(self) -> Wish:
        """What to ask of the witness at the next exchange."""
        if self.partner.own.status is Status.STOPPED:
            return Wish.GIVE_BACK
        is_active = self.partner.own.role is Role.ACTIVE
        return Wish.HOLD if is_active or self.asks_witness else Wish.GIVE_BACK

    @property
    def wish_term(self) -> int:
        """The term to ask for it with: the one in force, or the one that is meant to be."""
        asked = self.latest.term if self.asks_witness and self.latest is not None else 0
        return max(asked, self.partner.own.term)

    def witnessed(self, found: Witness, begun_at: int, term: int) -> None:
        """An exchange that began at ``begun_at`` has ended so; ``term``: the highest of another that it has seen."""
        self.witness = found
        if term > self.partner.own.term and self.partner.own.role is Role.STANDBY:
            self._keep(term)
            self.partner.learn(term)
        if found is Witness.OURS:
            self.partner.assured(begun_at)

    # -- hearing --------------------------------------------------------------------------------------------------

    def hear(self, beat: Beat, now: int, wall: int) -> Heard:
        """What follows from it is done at once. A life that is new to us is answered at once; so is one that we cannot
        believe yet: if it lives it hears us, and shows it."""
        known = self.partner.peer_boot
        found = self.partner.hear(beat, now, wall)
        if found is Heard.TAKEN:
            self.look(now)
            if known != self.partner.peer_boot:
                self._outside.say()
        elif found is Heard.STRANGE and now - self._doubted_at > self.partner.pace.interval // 10:
            self._doubted_at = now
            self._outside.say()
        return found

    # -- looking --------------------------------------------------------------------------------------------------

    def look(self, now: int) -> Decision:
        partner = self.partner
        decision = partner.look(now, self._probe_at(now), self.witness)
        self.latest = decision
        self.asks_witness = decision.verdict is Verdict.ASK_WITNESS
        if decision.verdict is not Verdict.CLAIM:
            partner.claim = 0
        _ACTS[decision.verdict](self, decision, now)
        return decision

    def _probe_at(self, now: int) -> Probe:
        """A test says something for one interval, unless the peer was heard since."""
        peer = self.partner.peer
        is_old = now - self._probed_at > self.partner.pace.interval
        if is_old or (peer is not None and peer.at >= self._probed_at):
            return Probe.NONE
        return self._probe

    def probed(self, found: Probe, now: int) -> None:
        self._probing, self._probe, self._probed_at = False, found, now

    def _stay(self, decision: Decision, now: int) -> None:
        if decision.term > max(self.partner.own.term, self.partner.own.granted):
            self._keep(decision.term)
            self.partner.learn(decision.term)

    def _begin_probe(self, decision: Decision, now: int) -> None:
        if not self._probing:
            self._probing = True
            self._outside.probe()

    def _claim(self, decision: Decision, now: int) -> None:
        if self.partner.claim != decision.term:
            self.partner.claim = decision.term
            self._outside.say()

    def _grant(self, decision: Decision, now: int) -> None:
        if self.partner.own.granted < decision.term:
            self._keep(decision.term)
            self.partner.grant(decision.term)
            self._outside.say()

    def _ask(self, decision: Decision, now: int) -> None:
        """``wish`` says it at the next exchange."""

    def _take_over(self, decision: Decision, now: int) -> None:
        was = self.partner.own.role
        self._keep(decision.term)
        self.partner.take_over(decision.term, now)
        self._outside.changed(decision, was)
        self._outside.say()

    def _stand_down(self, decision: Decision, now: int) -> None:
        was = self.partner.own.role
        self._handing_over = 0
        self._keep(decision.term)
        self.partner.learn(decision.term)
        self.partner.stand_down(now)
        self._outside.changed(decision, was)
        self._outside.say()

    def hand_over(self, decision: Decision, now: int) -> None:
        """By order of this node's own operator."""
        self._hand_over(decision, now)

    def _hand_over(self, decision: Decision, now: int) -> None:
        if not self._handing_over:
            self._handing_over = decision.term
            self._outside.hand_over(decision)

    def handed_over(self, decision: Decision, now: int) -> None:
        """What was in work is finished: the peer may have the term, and this node stands by."""
        self._handing_over = 0
        if self.partner.own.role is not Role.ACTIVE:
            return  # it had to stand down before
        self._keep(decision.term)
        self.partner.grant(decision.term)
        self.partner.stand_down(now)
        self._outside.changed(decision, Role.ACTIVE)
        self._outside.say()

    def _keep(self, term: int) -> None:
        if term > self._saved:
            self._outside.save(term)
            self._saved = term


# -- action of each verdict --------------------------------------------------------------------------------------------

_ACTS: dict[Verdict, Callable[[Conduct, Decision, int], None]] = {
    Verdict.STAY: Conduct._stay,
    Verdict.PROBE: Conduct._begin_probe,
    Verdict.CLAIM: Conduct._claim,
    Verdict.GRANT: Conduct._grant,
    Verdict.ASK_WITNESS: Conduct._ask,
    Verdict.TAKE_OVER: Conduct._take_over,
    Verdict.HAND_OVER: Conduct._hand_over,
    Verdict.STAND_DOWN: Conduct._stand_down,
}
