"""Queue subscriptions of one STOMP client, sans-IO: prefetch, ack modes, and the leases of its connection.

STOMP has no leases, so the connection keeps them alive: they are extended every ``EXTEND_SECONDS`` while the client is
connected. When the connection is lost, each message returns to its old place in the queue. If the server is killed, the
leases expire after ``LEASE_MS``.

Messages in ack mode ``auto`` are acked once they are sent and the client reads. Those acks join the next commit, or
wait up to ``GATHER_SECONDS`` for one that all clients share."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from yirangmq.broker.credit_window import Subscription
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.settle import MOST_PER_CALL, Leases
from yirangmq.broker.waiting_consumers import MOST_PER_TAKER
from yirangmq.core.errors import QueueError
from yirangmq.format.delivery import Delivery
from yirangmq.protocols.stomp.codec import Address, message
from yirangmq.wire.stomp import V12

CONSUMERS = "stomp:"
"""Prefix of the consumer names of all STOMP clients."""
LEASE_MS = 60_000
"""Length of a lease in ms, and so the delay of redelivery to other consumers if the server is killed and not
restarted."""
EXTEND_SECONDS = 20.0
GATHER_SECONDS = 0.02
"""Longest wait of automatic acks for a commit, in seconds. They join any earlier commit; else the acks of all clients
share one. On a slow disk, one commit per sent message would double the number of commits."""
MOST_GATHERED = 200
PREFETCH = 1000
"""Default prefetch of a subscription: unacknowledged messages, as in ActiveMQ."""
MOST_PREFETCH = MOST_PER_CALL


class AckMode(StrEnum):
    """STOMP ack mode of a subscription."""

    AUTO = "auto"
    CLIENT = "client"
    """An ack is cumulative: it covers all earlier messages of the subscription."""
    EACH = "client-individual"


class QueueTaker:
    """Queue subscription of a STOMP client, and the lease ledger of its credit window (``window``).

    ``held``: unacknowledged leases, oldest first, by the id that an ack names. It is empty in mode ``auto``."""

    def __init__(
        self,
        queue: str,
        destination: str,
        mode: AckMode,
        credit: int,
        address: Address,
        holder: "Holdings",
    ) -> None:
        self.destination = destination
        self.mode = mode
        self.credit = credit
        self.address = address
        self.held: dict[str, str] = {}
        most = MOST_PER_TAKER if mode is AckMode.AUTO else credit
        push = partial(holder.push, self)
        self.window = Subscription(queue, holder.consumer, LEASE_MS, most, self, push, holder.has_room)

    @property
    def unsettled(self) -> int:
        return len(self.held)

    def drop_lapsed(self) -> None:
        """Do nothing: leases are extended while the client is connected, so they count until they are settled."""

    def taken(self, id: str) -> dict[str, str]:
        """Remove and return the leases that an ack of this message covers; none if the message is not held."""
        if id not in self.held:
            return {}
        if self.mode is not AckMode.CLIENT:
            return {id: self.held.pop(id)}
        leases: dict[str, str] = {}
        for one in list(self.held):
            leases[one] = self.held.pop(one)
            if one == id:
                break
        return leases


class Taken(NamedTuple):
    """Leases that an ack or a nack covers, and their subscription."""

    taker: QueueTaker
    leases: dict[str, str]


class Gathering:
    """Batches the automatic acks of all clients that were sent messages in mode ``auto``.

    The acks join the next commit, or share one after ``GATHER_SECONDS``."""

    def __init__(self, later: Callable[[float, Callable[[], None]], Any]) -> None:
        self._later = later
        self._waiting: dict[Holdings, None] = {}
        self._is_timed = False

    def add(self, holdings: "Holdings") -> None:
        if not self._is_timed:
            self._is_timed = True
            self._later(GATHER_SECONDS, self._turn)
        self._waiting[holdings] = None

    def join(self) -> None:
        """Submit the waiting acks. Runs as a hook before each commit, so that they share it."""
        waiting, self._waiting = self._waiting, {}
        for holdings in waiting:
            holdings.confirm_sent()

    def _turn(self) -> None:
        self._is_timed = False
        self.join()


class Holdings:
    """Queue subscriptions and leases of one STOMP client.

    ``settling``: leases that are acked, but not yet on disk. ``_sent``: leases of mode ``auto`` that are sent, but not
    yet acked. Loop thread only."""

    def __init__(
        self,
        desk: Desk,
        gathering: Gathering,
        send: Callable[[bytes], None],
        has_room: Callable[[], bool],
        is_open: Callable[[], bool],
    ) -> None:
        self._desk = desk
        self._gathering = gathering
        self._send = send
        self.has_room = has_room
        self._is_open = is_open
        self.consumer = ""
        self.takers: dict[str, QueueTaker] = {}
        self.settling: set[str] = set()
        self._sent: list[str] = []
        self._is_watched = False
        self.delivered = 0

    @property
    def unsettled(self) -> int:
        return sum(taker.unsettled for taker in self.takers.values()) + len(self.settling) + len(self._sent)

    def subscribe(self, id: str, taker: QueueTaker) -> None:
        self.takers[id] = taker
        self._desk.wait(taker.window)
        if not self._is_watched:
            self._is_watched = True
            self._desk.later(EXTEND_SECONDS, self._extend)

    def unsubscribe(self, id: str) -> bool:
        taker = self.takers.pop(id, None)
        if taker is None:
            return False
        self._desk.leave(taker.window)
        self._put_back([*taker.held.values()])
        return True

    def push(self, taker: QueueTaker, deliveries: Sequence[Delivery]) -> bool:
        leases = [f"{card.seq}-{card.leases}" for card, _, _ in deliveries]
        if not self._is_open() or taker not in self.takers.values():
            self._put_back(leases)
            return True
        send, address, destination = self._send, taker.address, taker.destination
        for delivery in deliveries:
            send(message(address, destination, delivery))
        self.delivered += len(deliveries)
        if taker.mode is AckMode.AUTO:
            self._sent += leases
            if len(self._sent) >= MOST_GATHERED or self._is_waited_for(deliveries):
                self.confirm_sent()
            else:
                self._gathering.add(self)
        else:
            names = leases if address.version == V12 else [sent.id for _, sent, _ in deliveries]
            taker.held.update(zip(names, leases, strict=True))
        return True

    def _is_waited_for(self, deliveries: Sequence[Delivery]) -> bool:
        """True if an ack of these deliveries may release the next message: of a group, or under a concurrency limit."""
        limit = self._desk.verbs.defaults.concurrency_in(deliveries[0].rules)
        if deliveries[0].rules.is_ordered:
            return True
        return limit is not None or any(sent.group for _, sent, _ in deliveries)

    def confirm_sent(self) -> None:
        """Ack the sent messages of mode ``auto``, if the client reads."""
        if self.has_room():
            self._confirm()

    def _confirm(self) -> None:
        if not self._sent:
            return
        leases, self._sent = self._sent, []
        self.settling.update(leases)
        for batch in _batches(leases):
            work = partial(self._desk.verbs.ack, leases=Leases(batch), consumer=None)
            self._desk.submit(work, partial(self._confirmed, batch))

    def _confirmed(self, leases: list[str], value: object, error: QueueError | None) -> None:
        if error is None:
            self.settling.difference_update(leases)
        elif self._is_open():  # retried with the next ones
            self._sent += leases

    def taken(self, id: str, subscription: str | None) -> Taken | None:
        """Return the leases that an ack covers, or None if none are held under this id.

        Their credit is free immediately, so the commit that settles them also leases the next messages."""
        for name, taker in self.takers.items():
            leases = taker.taken(id) if subscription in (None, name) else {}
            if leases:
                self.settling.update(leases.values())
                self._desk.hungry(taker.window.queue)
                return Taken(taker, leases)
        return None

    def untake(self, taken: Taken) -> None:
        """Take leases back that were not settled after all."""
        self.settling.difference_update(taken.leases.values())
        if taken.taker in self.takers.values():
            taken.taker.held = taken.leases | taken.taker.held
        else:
            self._put_back([*taken.leases.values()])

    def wake(self) -> None:
        """Resume pushing: the client reads again, or was resumed by an operator."""
        self.confirm_sent()
        for taker in self.takers.values():
            self._desk.hungry(taker.window.queue)

    # -- lease extension and end ---------------------------------------------------------------------------------------

    def _leases(self) -> list[str]:
        held = [lease for taker in self.takers.values() for lease in taker.held.values()]
        return list(dict.fromkeys([*held, *self.settling, *self._sent]))

    def _extend(self) -> None:
        if not self._is_open():
            return
        self.confirm_sent()
        for batch in _batches(self._leases()):
            work = partial(self._desk.verbs.extend, leases=Leases(batch), consumer=None, span=LEASE_MS)
            self._desk.submit(work, _ignore)
        self._desk.later(EXTEND_SECONDS, self._extend)

    def end(self, *, is_read: bool = False) -> None:
        """Release all leases in place: the client is gone. ``is_read``: it has read everything sent to it."""
        if is_read:
            self._confirm()
        for taker in self.takers.values():
            self._desk.leave(taker.window)
        leases = self._leases()
        self.takers.clear()
        self.settling.clear()
        self._sent.clear()
        self._put_back(leases)

    def _put_back(self, leases: list[str]) -> None:
        for batch in _batches(leases):
            work = partial(self._desk.verbs.release, leases=Leases(batch), consumer=None, in_place=True)
            self._desk.submit(work, _ignore)


def _batches(leases: list[str]) -> list[list[str]]:
    return [leases[first : first + MOST_PER_CALL] for first in range(0, len(leases), MOST_PER_CALL)]


def _ignore(value: object, error: QueueError | None) -> None:
    """Ignore the error: a lease that cannot be extended or released was settled meanwhile, or expires."""
