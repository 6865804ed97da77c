"""In-memory state of a dispatcher: inbox, line, deliveries, messages that came back, consumers, deduplication.

The state is pure: no etcd, no clock, no waiting. ``cluster.dispatch.planner`` turns it into the next transaction and
applies the outcome.

Nothing leaves a list before the transaction that removes it has succeeded. A delivery is the exception: it is recorded
before it is sent, because the consumer's ack can arrive before the answer to the transaction.

The inbox is in order of arrival. Beyond ``HELD_BYTES`` it keeps only keys, and a body is read when its turn comes."""

import bisect
import heapq
import re
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

from yirangmq.cluster.dispatch import messages
from yirangmq.cluster.keys import Keys
from yirangmq.core.message import Message
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.states import State
from yirangmq.core.transitions import Outcome

# -- inbox -------------------------------------------------------------------------------------------------------------

HELD_BYTES = 32_000_000
"""Of messages in the inbox whose content is kept at hand."""


class Arrival(NamedTuple):
    """A message in the inbox. ``value`` is None where it is still to be read."""

    key: bytes
    sender: bytes
    name: bytes
    revision: int
    value: bytes | None


class Arrivals:
    """``stuck``: keys of messages that are too large to be moved."""

    def __init__(self) -> None:
        self._known: dict[bytes, Arrival] = {}
        self._bytes = 0
        self.stuck: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self._known.values())

    def arrive(self, arrival: Arrival) -> None:
        """It was written, or written anew; what is older than what we know says nothing."""
        known = self._known.get(arrival.key)
        if known is not None:
            if known.revision >= arrival.revision:
                return
            self._bytes -= len(known.value or b"")
            self.stuck.discard(arrival.key)
        if self._bytes >= HELD_BYTES:
            arrival = arrival._replace(value=None)
        self._bytes += len(arrival.value or b"")
        self._known[arrival.key] = arrival

    def fill(self, arrival: Arrival, value: bytes) -> None:
        """What it holds, unless it was written anew meanwhile."""
        known = self._known.get(arrival.key)
        if known is not None and known.revision == arrival.revision and known.value is None:
            self._known[arrival.key] = known._replace(value=value)
            self._bytes += len(value)

    def leave(self, arrival: Arrival) -> None:
        """It is not there any longer as it was."""
        known = self._known.get(arrival.key)
        if known is not None and known.revision == arrival.revision:
            del self._known[arrival.key]
            self._bytes -= len(known.value or b"")
            self.stuck.discard(arrival.key)

    def unread(self, among: int, most: int) -> list[Arrival]:
        """Of the first so many that can be moved those that are still to be read."""
        moving = islice((one for one in self if one.key not in self.stuck), among)
        return [one for one in moving if one.value is None][:most]

    def held_up(self, most: int) -> list[Arrival]:
        return [self._known[key] for key in islice(self.stuck, most)]


# -- state of the queue ------------------------------------------------------------------------------------------------

WINDOW = 256
"""Messages a consumer has at once and has not acked; 32 cost about 15 % in our trials."""
REMEMBERED = 65_536
"""Keys of the inbox that are known to have been moved: a producer that lost its answer sends the same key again."""
UNIQUE = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
FAR = 64
AHEAD = 1_000
AHEAD_BYTES = 8_000_000


class Waiting(NamedTuple):
    """A message in line that nobody has had yet."""

    number: int
    name: bytes
    value: bytes


class Removal(NamedTuple):
    """Acked; what is left of it goes. ``noted``: there is a note beside it."""

    number: int
    name: bytes
    noted: bool


class Return(NamedTuple):
    """It is with a consumer that is not to have it any longer. ``also`` goes with it: the consumer's nack."""

    card: Message
    outcome: Outcome
    also: bytes


@dataclass(slots=True)
class Consumer:
    home: bytes
    key: bytes
    host: bytes
    lease: int
    created: int
    near: bool
    held: set[int] = field(default_factory=set)
    acked_at: int = 0


@dataclass(slots=True)
class Tally:
    """What passed through since the queue exists."""

    moved: int = 0
    acked: int = 0
    returned: int = 0
    dead: int = 0


class Ledger:
    def __init__(self, queue: str, node: str, policy: QueuePolicy, window: int = WINDOW) -> None:
        self.keys = Keys(queue)
        self.node = node
        self.policy = policy
        self.window = window
        self.next = 1
        self.assigned = 0
        self.tally = Tally()
        self.unsaid = False
        """Something was counted that the state in etcd does not say yet."""
        self.inbox = Arrivals()
        self.ahead: deque[Waiting] = deque()
        self.ahead_bytes = 0
        self.consumers: dict[bytes, Consumer] = {}
        self.out: dict[int, Message] = {}
        self.back: dict[int, Message] = {}
        self.bodies: dict[int, bytes] = {}
        self.removals: deque[Removal] = deque()
        self.returning: dict[int, Return] = {}
        self.taken_at: dict[int, int] = {}
        """The revision at which a copy of what came back was deleted by us: hearing of that is no ack."""
        self.rewrites: dict[bytes, tuple[int, bytes]] = {}
        self.drops: dict[bytes, int] = {}
        self.loose: deque[bytes] = deque()
        self.moved: OrderedDict[tuple[bytes, bytes], tuple[bytes, int]] = OrderedDict()
        self.found: set[bytes] = set()
        self._deadlines: list[tuple[int, int, int]] = []
        self._delays: list[tuple[int, int]] = []
        self._places: list[tuple[int, int]] = []

    # -- events of consumers -------------------------------------------------------------------------------------------

    def register(self, home: bytes, kv: Any) -> None:
        """A consumer, or a new value at one we know: that is put right, unless the consumer itself came anew."""
        known = self.consumers.get(home)
        if known is None or known.created != kv.create_revision:
            near = kv.value == self.node.encode()
            held = known.held if known is not None else set()
            self.consumers[home] = Consumer(home, kv.key, kv.value, kv.lease, kv.create_revision, near, held)
            self.rewrites.pop(kv.key, None)
            return
        known.lease = kv.lease
        if kv.value == known.host:
            self.rewrites.pop(kv.key, None)
        else:
            self.rewrites[kv.key] = (kv.mod_revision, known.host)

    def unregister(self, home: bytes, key: bytes, now: int) -> None:
        """It left, or its lease ended: what it has comes back."""
        known = self.consumers.get(home)
        if known is None or known.key != key:
            return
        del self.consumers[home]
        self.rewrites.pop(key, None)
        self.drops.pop(key, None)
        for index in sorted(known.held):
            self._lapse(index, now)

    def settle_delivery(self, home: bytes, index: int, revision: int, now: int) -> None:
        """A consumer deleted its copy: acked. Of a copy that we took back, or never gave, it says nothing; what we took
        back may be with the same consumer again by the time we hear of it."""
        card = self.out.get(index)
        if card is None or messages.home_of(card) != home or revision <= self.taken_at.get(index, 0):
            return
        self._release(index)
        self.taken_at.pop(index, None)
        if (consumer := self.consumers.get(home)) is not None:
            consumer.acked_at = now
        self.removals.append(Removal(index, messages.name_of(card), card.leases > 1))

    def refuse(self, home: bytes, index: int, key: bytes, text: bytes, now: int, fraction: float) -> None:
        """A consumer says that it could not do it."""
        card = self.out.get(index)
        if card is None or messages.home_of(card) != home:
            self.loose.append(key)
            return
        self._release(index)
        outcome = messages.refused(card, self.policy, now, text, self.next, fraction)
        self.returning[index] = Return(card, outcome, key)

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Deliveries whose time is over come back; a consumer without lease that did nothing meanwhile is dropped."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, index, leases = heapq.heappop(self._deadlines)
            card = self.out.get(index)
            if card is None or card.leases != leases:
                continue
            consumer = self.consumers.get(messages.home_of(card))
            if consumer is not None and not consumer.lease and consumer.acked_at < card.changed_at:
                self.drops[consumer.key] = consumer.created
            self._lapse(index, now)
        while self._delays and self._delays[0][0] <= now:
            due, index = heapq.heappop(self._delays)
            card = self.back.get(index)
            if card is not None and card.state is State.DELAYED and card.due_at == due:
                self.come_back(messages.lapsed(card, self.policy, now, self.next).message)

    def next_due(self) -> int | None:
        return min((first[0][0] for first in (self._delays, self._deadlines) if first), default=None)

    def come_back(self, card: Message, revision: int = 0) -> None:
        """It waits to be given out again: for its moment, or for its place. ``revision``: when its copy was deleted."""
        self.back[card.seq] = card
        if revision:
            self.taken_at[card.seq] = revision
        if card.state is State.DELAYED:
            heapq.heappush(self._delays, (card.due_at, card.seq))
        else:
            bisect.insort(self._places, (card.place, card.seq))

    def leave_again(self, index: int) -> None:
        """It no longer waits: somebody has it, or it is gone."""
        card = self.back.pop(index, None)
        if card is None or card.state is State.DELAYED:
            return
        at = bisect.bisect_left(self._places, (card.place, index))
        if self._places[at : at + 1] == [(card.place, index)]:
            del self._places[at]

    # -- delivery ------------------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        return not self.policy.paused and any(len(one.held) < self.window for one in self.consumers.values())

    def choose(self) -> Consumer | None:
        """Of those with room one on this node before the others, then the one that has least."""
        best, found = (False, self.window, b""), None
        for one in self.consumers.values():
            held = len(one.held)
            if held < self.window and (found is None or (not one.near, held, one.home) < best):
                best, found = (not one.near, held, one.home), one
        return found

    def hand_out(self, card: Message, consumer: Consumer, now: int) -> Message:
        """From here on an ack of it counts."""
        given = messages.leased(card, self.policy, now, consumer.home)
        self.out[card.seq] = given
        consumer.held.add(card.seq)
        heapq.heappush(self._deadlines, (given.due_at, given.seq, given.leases))
        return given

    def take_back(self, card: Message) -> None:
        """It was not handed out after all."""
        self._release(card.seq)
        self.returning.pop(card.seq, None)

    def resume(self, card: Message, home: bytes, now: int) -> None:
        """Found with a consumer at takeover; its time begins anew."""
        given = messages.leased(card, self.policy, now, home)
        self.out[card.seq] = given
        if (consumer := self.consumers.get(home)) is None:
            self._lapse(card.seq, now)
            return
        consumer.held.add(card.seq)
        heapq.heappush(self._deadlines, (given.due_at, given.seq, given.leases))

    def is_clear(self, first: int, end: int) -> bool:
        """None of these numbers stands in line any longer; where many would have to be looked up we do not know."""
        if end - first > FAR or end > self.assigned:
            return False
        return not any(n in self.out or n in self.back or n in self.returning for n in range(first, end))

    def ready_again(self) -> Iterator[Message]:
        """What came back and may be given out, in order of place: all that stood before it have been given out."""
        for place, index in self._places:
            if place > self.assigned + 1:
                return
            yield self.back[index]

    def wanted_bodies(self, most: int) -> list[tuple[int, bytes]]:
        """What must be read before it can be given out again, or be buried."""
        found: list[tuple[int, bytes]] = []
        for index, one in self.returning.items():
            if one.outcome.message.state in (State.DEAD, State.PARKED) and index not in self.bodies:
                found.append((index, messages.name_of(one.card)))
        if self.has_room():
            for card in islice(self.ready_again(), most):
                if card.seq not in self.bodies:
                    found.append((card.seq, messages.name_of(card)))
        return found[:most]

    # -- deduplication -------------------------------------------------------------------------------------------------

    def is_repeat(self, arrival: Arrival, now: int) -> bool:
        """The same key with the same content was moved before: its producer did not hear of it."""
        assert arrival.value is not None
        if not self.policy.dedup_ms:
            return False
        if arrival.name in self.found:
            return True
        seen, at = self.moved.get((arrival.sender, arrival.name), (b"", 0))
        return now - at < self.policy.dedup_ms and seen == digest(arrival.value)

    def find(self, name: bytes) -> None:
        """In line at takeover. Who sent it is no longer known, so only a name that nobody else can have says
        anything."""
        if UNIQUE.fullmatch(name) and len(self.found) < REMEMBERED:
            self.found.add(name)

    def remember(self, arrival: Arrival, now: int) -> None:
        sender, name = arrival.sender, arrival.name
        self.moved[sender, name] = (digest(arrival.value or b""), now)
        self.moved.move_to_end((sender, name))
        if len(self.moved) > REMEMBERED:
            self.moved.popitem(last=False)

    def is_idle(self) -> bool:
        """Nothing here and nobody waiting."""
        busy = self.inbox or self.out or self.back or self.removals or self.returning or self.consumers
        return not busy and self.assigned + 1 >= self.next

    def _lapse(self, index: int, now: int) -> None:
        card = self.out[index]
        self._release(index)
        self.returning[index] = Return(card, messages.lapsed(card, self.policy, now, self.next), b"")

    def _release(self, index: int) -> None:
        card = self.out.pop(index, None)
        if card is not None and (consumer := self.consumers.get(messages.home_of(card))) is not None:
            consumer.held.discard(index)


def digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=12).digest()
