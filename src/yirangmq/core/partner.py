"""One node of a pair: remembers what was heard and said, and asks ``core.role`` what follows.

Knows: heartbeats as values, the times handed in. Does not know: sockets, files, keys. ``now`` is milliseconds of a
clock that never goes back and does not stop while the process does; ``wall`` is milliseconds since 1970."""

from collections import OrderedDict, deque
from dataclasses import replace
from enum import StrEnum

from yirangmq.core.beat import Beat, Load
from yirangmq.core.duty import MOST_SWITCHES
from yirangmq.core.pairing import Decision, Own, Pace, Peer, Probe, Role, Status, Witness
from yirangmq.core.role import decide

WINDOW_MS = 60_000
"""A life of the peer that is new to us is believed if its clock agrees with ours this far and it began after the one we
know, or if it shows that it hears us. Within one life only the sequence counts, so that a clock that jumps does no
harm."""
MOST_SENT = 256
"""Of our latest heartbeats we know when they were sent."""
MOST_BOOTS = 1000
"""Lives of the peer that are over, and are not believed again."""
DAY_MS = 24 * 3600 * 1000


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
