"""Two nodes and the wire between them in simulated time: loss, delay, cuts, frozen and killed nodes, clocks that jump.

The nodes are the real ``core.failover_node``; only sockets, disks and time are played here."""

import random
from dataclasses import dataclass, field

from yirangmq.core.failover import (
    Decision,
    FailoverTiming,
    FailoverVerdict,
    PeerHeartbeat,
    Probe,
    Role,
    Status,
)
from yirangmq.core.failover_node import FailoverDriver, FailoverNode
from yirangmq.core.failover_witness import Witness, WitnessRecord, WitnessView

STEP = 20
LOOK = 20
INTERVAL = 100
PACE = FailoverTiming(INTERVAL, 3, 400, False)
WATCHED = FailoverTiming(INTERVAL, 3, 400, True)
NAMES = ("a", "b")


@dataclass
class Disk:
    """What outlives a process."""

    term: int = 0
    lives: int = 0


@dataclass
class Wire:
    """One direction."""

    is_cut: bool = False
    loss: float = 0.0
    delay: int = 0
    spread: int = 0
    on_the_way: list[tuple[int, PeerHeartbeat]] = field(default_factory=list)


class Node:
    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.disk = Disk()
        self.conduct: FailoverDriver | None = None
        self.watching: WitnessView | None = None
        self.is_frozen = False
        self.offset = 0
        """Of its own clock, which never goes back."""
        self.jump = 0
        """Of its wall clock, which may."""
        self.sees_witness = True
        self.key = "key"
        self.inbox: list[PeerHeartbeat] = []
        self.looks_at = self.beats_at = 0
        self.decisions: list[tuple[int, Decision]] = []
        self.worked_in: set[int] = set()

    # -- its life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.conduct is not None:
            return
        self.disk.lives += 1
        boot = f"{self.name}{self.disk.lives}"
        failover_node = FailoverNode(self.name, self.world.pace, self.disk.term, boot, self.now)
        self.conduct = FailoverDriver(failover_node, self, self.disk.term)
        self.watching = WitnessView(self.name, self.world.pace.timeout)
        self.is_frozen = False
        self.inbox.clear()
        failover_node.run()
        self.looks_at = self.beats_at = self.world.time

    def kill(self) -> None:
        self.conduct = None

    def stop(self) -> None:
        """By hand: it says so, gives the witness back and ends."""
        if self.conduct is None or self.is_frozen:
            return
        self.conduct.failover_node.stop(Status.STOPPED)
        self.exchange()
        self.send_heartbeat()
        self.conduct = None

    @property
    def now(self) -> int:
        return self.world.time + self.offset

    @property
    def wall(self) -> int:
        return self.world.time + self.jump

    @property
    def failover_node(self) -> FailoverNode:
        assert self.conduct is not None
        return self.conduct.failover_node

    @property
    def is_up(self) -> bool:
        return self.conduct is not None and not self.is_frozen

    @property
    def works(self) -> bool:
        """It would take a message now."""
        return self.is_up and self.failover_node.may_work(self.now)

    @property
    def is_active(self) -> bool:
        return self.conduct is not None and self.failover_node.own.role is Role.ACTIVE

    def turn(self) -> None:
        if self.conduct is None or self.is_frozen:
            return
        inbox, self.inbox = self.inbox, []
        for heartbeat in inbox:
            if self.world.other(self).key == self.key:
                self.conduct.on_heartbeat(heartbeat, self.now, self.wall)
            else:
                self.failover_node.on_rejected(self.now)
            self.note()
        if self.world.time >= self.looks_at:
            self.looks_at = self.world.time + LOOK
            self.exchange()
            self.conduct.evaluate(self.now)
            self.note()
        if self.world.time >= self.beats_at:
            self.send_heartbeat()

    def note(self) -> None:
        decision = self.conduct.latest if self.conduct is not None else None
        if decision is not None and decision.verdict is not FailoverVerdict.STAY:
            self.decisions.append((self.world.time, decision))

    def exchange(self) -> None:
        if not self.world.pace.has_witness or self.conduct is None or self.watching is None:
            return
        if not self.sees_witness:
            self.conduct.on_witness_result(Witness.UNREACHABLE, self.now, 0)
            return
        found, after = self.watching.exchange(self.world.record, self.conduct.wish, self.conduct.wish_term, self.now)
        if after is not None:
            self.world.record = after
        self.conduct.on_witness_result(found, self.now, self.watching.term)

    # -- core.conduct.Outside -----------------------------------------------------------------------------------------

    def save(self, term: int) -> None:
        assert term > self.disk.term
        self.disk.term = term

    def probe(self) -> None:
        """There and back at once, if both are up and both ways are open."""
        assert self.conduct is not None
        other = self.world.other(self)
        found = Probe.SILENT
        if other.is_up and not any(wire.is_cut for wire in self.world.wires.values()):
            assert other.conduct is not None
            ours = self.failover_node.heartbeat(self.now, self.wall)
            if other.key == self.key:
                other.conduct.on_heartbeat(ours, other.now, other.wall, is_datagram=False)
                theirs = other.failover_node.heartbeat(other.now, other.wall)
                self.failover_node.on_heartbeat(theirs, self.now, self.wall, is_datagram=False)
            found = Probe.REACHED if other.key == self.key else Probe.REJECTED
        self.conduct.on_probe_result(found, self.now)

    def hand_over(self, decision: Decision) -> None:
        assert self.conduct is not None
        self.conduct.on_handed_over(decision, self.now)

    def send_heartbeat(self) -> None:
        if self.conduct is not None:
            self.beats_at = self.world.time + INTERVAL
            self.world.send(self, self.failover_node.heartbeat(self.now, self.wall))

    def on_role_change(self, decision: Decision, was: Role) -> None:
        pass


class World:
    def __init__(self, pace: FailoverTiming, seed: int = 0) -> None:
        self.pace = pace
        self.time = 1_000_000
        self.chance = random.Random(seed)
        self.nodes = {name: Node(self, name) for name in NAMES}
        self.wires = {name: Wire() for name in NAMES}
        """By sender."""
        self.record: WitnessRecord | None = None
        self.both_worked: list[int] = []

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def other(self, node: Node) -> Node:
        return self.nodes["b" if node.name == "a" else "a"]

    def send(self, sender: Node, heartbeat: PeerHeartbeat) -> None:
        wire = self.wires[sender.name]
        if wire.is_cut or self.chance.random() < wire.loss:
            return
        late = wire.delay + (self.chance.randrange(wire.spread) if wire.spread else 0)
        wire.on_the_way.append((self.time + late, heartbeat))

    def pass_time(self, milliseconds: int) -> None:
        for _ in range(0, milliseconds, STEP):
            self._check()
            self.time += STEP
            for name, wire in self.wires.items():
                here = [heartbeat for at, heartbeat in wire.on_the_way if at <= self.time]
                wire.on_the_way = [(at, heartbeat) for at, heartbeat in wire.on_the_way if at > self.time]
                receiver = self.other(self.nodes[name])
                if receiver.conduct is not None:
                    receiver.inbox += here
            self._check()
            for node in self.nodes.values():
                node.turn()

    def _check(self) -> None:
        working = [node for node in self.nodes.values() if node.works]
        for node in working:
            node.worked_in.add(node.failover_node.own.term)
        if len(working) > 1:
            self.both_worked.append(self.time)

    def settle(self) -> None:
        """Everything mended and everybody up; then long enough for any decision."""
        for wire in self.wires.values():
            wire.is_cut, wire.loss, wire.delay, wire.spread = False, 0.0, 0, 0
        for node in self.nodes.values():
            node.is_frozen = False
            node.sees_witness = True
            node.key = "key"
            node.start()
        self.pass_time(3 * self.pace.timeout + self.pace.cooldown)

    @property
    def active(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.is_active]

    @property
    def working(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.works]

    def cut(self, *senders: str, is_cut: bool = True) -> None:
        for name in senders or NAMES:
            self.wires[name].is_cut = is_cut


def started(pace: FailoverTiming = PACE, first: str = "a") -> World:
    """``first`` is active, the other one stands by."""
    world = World(pace)
    world[first].start()
    world.pass_time(2 * pace.timeout)
    world.other(world[first]).start()
    world.pass_time(2 * pace.timeout)
    assert world.working == [first]
    return world
