"""In-memory state of a dispatcher: inbox, line, deliveries, messages that came back, consumers, deduplication.

The state is pure: no etcd, no clock, no waiting. ``cluster.dispatch.planner`` turns it into the next transaction and
applies the outcome.

Nothing leaves a list before the transaction that removes it has succeeded. A delivery is the exception: it is recorded
before it is sent, because the consumer's ack can arrive before the answer to the transaction.

The inbox is in order of arrival. Beyond ``MAX_INBOX_BYTES`` it keeps only keys, and a body is read when its turn
comes."""

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
from yirangmq.cluster.keys import Keys, read_registration
from yirangmq.core.message import Message
from yirangmq.core.policy import QueuePolicy
from yirangmq.core.states import State
from yirangmq.core.transitions import TransitionResult

# -- inbox -------------------------------------------------------------------------------------------------------------

MAX_INBOX_BYTES = 32_000_000
"""Bytes of inbox bodies kept in memory."""


class InboxArrival(NamedTuple):
    """A message in the inbox. ``value`` is None if it has not been read."""

    key: bytes
    sender: bytes
    name: bytes
    revision: int
    value: bytes | None


class DispatchInbox:
    """Inbox of the queue, in order of arrival. ``stuck`` holds keys of messages that are too large to be moved."""

    def __init__(self) -> None:
        self._known: dict[bytes, InboxArrival] = {}
        self._bytes = 0
        self.stuck: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[InboxArrival]:
        return iter(self._known.values())

    def add(self, arrival: InboxArrival) -> None:
        """Record a message that was written or rewritten; ignore an older revision than the known one."""
        known = self._known.get(arrival.key)
        if known is not None:
            if known.revision >= arrival.revision:
                return
            self._bytes -= len(known.value or b"")
            self.stuck.discard(arrival.key)
        if self._bytes >= MAX_INBOX_BYTES:
            arrival = arrival._replace(value=None)
        self._bytes += len(arrival.value or b"")
        self._known[arrival.key] = arrival

    def fill(self, arrival: InboxArrival, value: bytes) -> None:
        """Set the body of a message, unless it was rewritten meanwhile."""
        known = self._known.get(arrival.key)
        if known is not None and known.revision == arrival.revision and known.value is None:
            self._known[arrival.key] = known._replace(value=value)
            self._bytes += len(value)

    def remove(self, arrival: InboxArrival) -> None:
        """Forget a message that was removed, unless a newer revision of its key is known."""
        known = self._known.get(arrival.key)
        if known is not None and known.revision == arrival.revision:
            del self._known[arrival.key]
            self._bytes -= len(known.value or b"")
            self.stuck.discard(arrival.key)

    def unread(self, among: int, most: int) -> list[InboxArrival]:
        """Return messages without a body among the first ``among`` that can be moved, at most ``most``."""
        moving = islice((one for one in self if one.key not in self.stuck), among)
        return [one for one in moving if one.value is None][:most]

    def stuck_messages(self, most: int) -> list[InboxArrival]:
        return [self._known[key] for key in islice(self.stuck, most)]


# -- state of the queue ------------------------------------------------------------------------------------------------

WINDOW = 256
"""Unacked messages per consumer. A window of 32 cost about 15 % of throughput in our measurements."""
MAX_REMEMBERED = 65_536
"""Inbox keys that are remembered as moved: a producer that lost its answer sends the same key again."""
UNIQUE = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MAX_SCANNED_NUMBERS = 64
MAX_READ_AHEAD = 1_000
MAX_READ_AHEAD_BYTES = 8_000_000


class UnassignedMessage(NamedTuple):
    """A message in line that was never delivered."""

    number: int
    name: bytes
    value: bytes


class LineRemoval(NamedTuple):
    """An acked message that is to be removed from the line. ``noted``: its retry note is to be removed too."""

    number: int
    name: bytes
    noted: bool


class Revocation(NamedTuple):
    """A delivery that is to be revoked from its consumer. ``nack_key`` is the key of the consumer's nack, removed with
    it; empty if there is none."""

    message: Message
    outcome: TransitionResult
    nack_key: bytes


class KeyRewrite(NamedTuple):
    """Value to restore to a key that was overwritten at ``revision``. ``lease`` is the lease to attach; None keeps the
    lease that the key has."""

    revision: int
    value: bytes
    lease: int | None = None


@dataclass(slots=True)
class RegisteredConsumer:
    """A registered consumer. ``value`` is its registration, ``near``: it is at this node, ``references``: its copies
    refer to the line, ``held``: numbers of its unacked messages."""

    home: bytes
    key: bytes
    value: bytes
    lease: int
    created: int
    near: bool
    references: bool
    held: set[int] = field(default_factory=set)
    acked_at: int = 0


@dataclass(slots=True)
class DispatchCounters:
    """Counters since the queue exists."""

    moved: int = 0
    acked: int = 0
    returned: int = 0
    dead: int = 0


class EtcdQueueState:
    """State of one queue in its dispatcher. Changed by watch events, the clock and the planner, in one event loop.

    ``next`` is the number of the next message in line; messages up to ``assigned`` were delivered. ``read_ahead`` is
    the read-ahead of messages after it. ``unacked`` holds deliveries, ``returned_messages`` returned messages,
    ``returning`` deliveries that are being revoked, ``removals`` acked messages."""

    def __init__(self, queue: str, node: str, policy: QueuePolicy, window: int = WINDOW) -> None:
        self.keys = Keys(queue)
        self.node = node
        self.policy = policy
        self.window = window
        self.next = 1
        self.assigned = 0
        self.counters = DispatchCounters()
        self.counters_changed = False
        """A counter has changed since the state key was written."""
        self.long_keys = False
        """Messages in line have a second copy (``cluster.dispatch.long_keys``)."""
        self.inbox = DispatchInbox()
        self.read_ahead: deque[UnassignedMessage] = deque()
        self.read_ahead_bytes = 0
        self.consumers: dict[bytes, RegisteredConsumer] = {}
        self.unacked: dict[int, Message] = {}
        self.returned_messages: dict[int, Message] = {}
        self.bodies: dict[int, bytes] = {}
        self.removals: deque[LineRemoval] = deque()
        self.returning: dict[int, Revocation] = {}
        self.revoked_at: dict[int, int] = {}
        """Revision at which the dispatcher deleted the copy of a returned message: the event of that delete is not an
        ack."""
        self.rewrites: dict[bytes, KeyRewrite] = {}
        self.drops: dict[bytes, int] = {}
        self.orphan_keys: deque[bytes] = deque()
        self.moved: OrderedDict[tuple[bytes, bytes], tuple[bytes, int]] = OrderedDict()
        self.found: set[bytes] = set()
        self._deadlines: list[tuple[int, int, int]] = []
        self._delays: list[tuple[int, int]] = []
        self._places: list[tuple[int, int]] = []

    # -- events of the leader's key and of consumers -------------------------------------------------------------------

    def check_leader_key(self, kv: Any, lease: int) -> None:
        """Restore the leader's key if a client changed its value, or took it off the leader's lease by a plain put."""
        if kv.value == self.node.encode() and kv.lease == lease:
            self.rewrites.pop(kv.key, None)
        else:
            self.rewrites[kv.key] = KeyRewrite(kv.mod_revision, self.node.encode(), lease)

    def check_long_leader_key(self, kv: Any) -> None:
        """Write the leader's name into ``/queue/QUEUE`` if it has another value."""
        if kv.value != self.node.encode():
            self.rewrites[kv.key] = KeyRewrite(kv.mod_revision, self.node.encode())
        else:
            self.rewrites.pop(kv.key, None)

    def register(self, home: bytes, kv: Any) -> None:
        """Add a consumer. A changed value of a known registration is rewritten to the first value, unless the consumer
        has registered again."""
        known = self.consumers.get(home)
        if known is None or known.created != kv.create_revision:
            host, references = read_registration(kv.value)
            near = host == self.node.encode()
            held = known.held if known is not None else set()
            self.consumers[home] = RegisteredConsumer(
                home, kv.key, kv.value, kv.lease, kv.create_revision, near, references, held
            )
            self.rewrites.pop(kv.key, None)
            return
        known.lease = kv.lease
        if kv.value == known.value:
            self.rewrites.pop(kv.key, None)
        else:
            self.rewrites[kv.key] = KeyRewrite(kv.mod_revision, known.value)

    def unregister(self, home: bytes, key: bytes, now: int) -> None:
        """Remove a consumer that left or lost its lease; its messages come back."""
        known = self.consumers.get(home)
        if known is None or known.key != key:
            return
        del self.consumers[home]
        self.rewrites.pop(key, None)
        self.drops.pop(key, None)
        for index in sorted(known.held):
            self._expire(index, now)

    def settle_delivery(self, home: bytes, index: int, revision: int, now: int) -> None:
        """Process the delete of a consumer's copy: an ack.

        Deletes of revoked or unknown copies are ignored. A revoked message may be with the same consumer again when
        the event of the first delete arrives, so the revision is compared."""
        message = self.unacked.get(index)
        if message is None or messages.home_of(message) != home or revision <= self.revoked_at.get(index, 0):
            return
        self._release(index)
        self.revoked_at.pop(index, None)
        if (consumer := self.consumers.get(home)) is not None:
            consumer.acked_at = now
        self.removals.append(LineRemoval(index, messages.name_of(message), message.leases > 1))

    def nack(self, home: bytes, index: int, key: bytes, text: bytes, now: int, fraction: float) -> None:
        """Process a consumer's nack."""
        message = self.unacked.get(index)
        if message is None or messages.home_of(message) != home:
            self.orphan_keys.append(key)
            return
        self._release(index)
        outcome = messages.nacked(message, self.policy, now, text, self.next, fraction)
        self.returning[index] = Revocation(message, outcome, key)

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Expire deliveries past their deadline, and end retry delays. A consumer without an etcd lease that acked
        nothing since the delivery is dropped."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, index, leases = heapq.heappop(self._deadlines)
            message = self.unacked.get(index)
            if message is None or message.leases != leases:
                continue
            consumer = self.consumers.get(messages.home_of(message))
            if consumer is not None and not consumer.lease and consumer.acked_at < message.changed_at:
                self.drops[consumer.key] = consumer.created
            self._expire(index, now)
        while self._delays and self._delays[0][0] <= now:
            due, index = heapq.heappop(self._delays)
            message = self.returned_messages.get(index)
            if message is not None and message.state is State.DELAYED and message.due_at == due:
                self.requeue(messages.expired(message, self.policy, now, self.next).message)

    def next_due(self) -> int | None:
        return min((first[0][0] for first in (self._delays, self._deadlines) if first), default=None)

    def requeue(self, message: Message, revision: int = 0) -> None:
        """Queue a returned message for another delivery: by due instant if delayed, else by place in line.

        ``revision`` is the revision at which its copy was deleted."""
        self.returned_messages[message.seq] = message
        if revision:
            self.revoked_at[message.seq] = revision
        if message.state is State.DELAYED:
            heapq.heappush(self._delays, (message.due_at, message.seq))
        else:
            bisect.insort(self._places, (message.place, message.seq))

    def remove_returned(self, index: int) -> None:
        """Remove a message from those that wait for another delivery: it was delivered, or is gone."""
        message = self.returned_messages.pop(index, None)
        if message is None or message.state is State.DELAYED:
            return
        at = bisect.bisect_left(self._places, (message.place, index))
        if self._places[at : at + 1] == [(message.place, index)]:
            del self._places[at]

    # -- delivery ------------------------------------------------------------------------------------------------------

    def has_capacity(self) -> bool:
        return not self.policy.paused and any(len(one.held) < self.window for one in self.consumers.values())

    def choose(self) -> RegisteredConsumer | None:
        """Choose a consumer with a free window: consumers at this node first, then the one with fewest messages."""
        best, found = (False, self.window, b""), None
        for one in self.consumers.values():
            held = len(one.held)
            if held < self.window and (found is None or (not one.near, held, one.home) < best):
                best, found = (not one.near, held, one.home), one
        return found

    def deliver(self, message: Message, consumer: RegisteredConsumer, now: int) -> Message:
        """Record a delivery. It is recorded before it is sent, so an ack is accepted from here on."""
        given = messages.leased(message, self.policy, now, consumer.home)
        self.unacked[message.seq] = given
        consumer.held.add(message.seq)
        heapq.heappush(self._deadlines, (given.due_at, given.seq, given.leases))
        return given

    def undo_delivery(self, message: Message) -> None:
        """Undo a recorded delivery that was not sent."""
        self._release(message.seq)
        self.returning.pop(message.seq, None)

    def resume(self, message: Message, home: bytes, now: int) -> None:
        """Record a delivery found at takeover; its visibility timeout starts again."""
        given = messages.leased(message, self.policy, now, home)
        self.unacked[message.seq] = given
        if (consumer := self.consumers.get(home)) is None:
            self._expire(message.seq, now)
            return
        consumer.held.add(message.seq)
        heapq.heappush(self._deadlines, (given.due_at, given.seq, given.leases))

    def is_unused(self, first: int, end: int) -> bool:
        """Return whether none of these numbers is in use in the line. A range of more than ``MAX_SCANNED_NUMBERS``
        numbers is not searched, and the result is False."""
        if end - first > MAX_SCANNED_NUMBERS or end > self.assigned:
            return False
        return not any(
            n in self.unacked or n in self.returned_messages or n in self.returning for n in range(first, end)
        )

    def redeliverable(self) -> Iterator[Message]:
        """Yield returned messages that may be delivered, in order of place: all messages before them were
        delivered."""
        for place, index in self._places:
            if place > self.assigned + 1:
                return
            yield self.returned_messages[index]

    def wanted_bodies(self, most: int) -> list[tuple[int, bytes]]:
        """Return messages whose bodies must be read before another delivery, or before the move to the dead letters."""
        found: list[tuple[int, bytes]] = []
        for index, one in self.returning.items():
            if one.outcome.message.state in (State.DEAD, State.PARKED) and index not in self.bodies:
                found.append((index, messages.name_of(one.message)))
        if self.has_capacity():
            for message in islice(self.redeliverable(), most):
                if message.seq not in self.bodies:
                    found.append((message.seq, messages.name_of(message)))
        return found[:most]

    # -- deduplication -------------------------------------------------------------------------------------------------

    def is_repeat(self, arrival: InboxArrival, now: int) -> bool:
        """Return whether the same key with the same content was moved before: its producer lost the answer."""
        assert arrival.value is not None
        if not self.policy.dedup_ms:
            return False
        if arrival.name in self.found:
            return True
        seen, at = self.moved.get((arrival.sender, arrival.name), (b"", 0))
        return now - at < self.policy.dedup_ms and seen == digest(arrival.value)

    def remember_found(self, name: bytes) -> None:
        """Remember a name found in line at takeover for deduplication.

        Its sender is no longer known, so only globally unique names (UUIDs) are remembered."""
        if UNIQUE.fullmatch(name) and len(self.found) < MAX_REMEMBERED:
            self.found.add(name)

    def remember(self, arrival: InboxArrival, now: int) -> None:
        sender, name = arrival.sender, arrival.name
        self.moved[sender, name] = (digest(arrival.value or b""), now)
        self.moved.move_to_end((sender, name))
        if len(self.moved) > MAX_REMEMBERED:
            self.moved.popitem(last=False)

    def is_idle(self) -> bool:
        """Return whether the queue holds no message and has no consumer."""
        busy = self.inbox or self.unacked or self.returned_messages or self.removals or self.returning or self.consumers
        return not busy and self.assigned + 1 >= self.next

    def _expire(self, index: int, now: int) -> None:
        message = self.unacked[index]
        self._release(index)
        self.returning[index] = Revocation(message, messages.expired(message, self.policy, now, self.next), b"")

    def _release(self, index: int) -> None:
        message = self.unacked.pop(index, None)
        if message is not None and (consumer := self.consumers.get(messages.home_of(message))) is not None:
            consumer.held.discard(index)


def digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=12).digest()
