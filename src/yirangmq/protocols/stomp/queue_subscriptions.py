"""Queue subscriptions of one STOMP client, sans-IO: prefetch, ack modes, and the leases of its connection.

STOMP has no leases, so the connection stands for them. Leases are extended every ``EXTEND_SECONDS`` while the client is
connected. When it is gone, each message goes back to its old place in line. If the server is killed, the leases expire
after ``LEASE_MS``.

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
"""How the names of all STOMP clients begin."""
LEASE_MS = 60_000
"""How long a message stays away from others if the server is killed and nobody starts it again."""
EXTEND_SECONDS = 20.0
GATHER_SECONDS = 0.02
"""What needs no ack is done with in the next commit, or so much later if there is none, that of all clients in one: on
a disk that takes its time, a commit for each message that was sent would be as many again as those that were taken
in."""
MOST_GATHERED = 200
PREFETCH = 1000
"""Unacknowledged messages of a subscription that does not say, as ActiveMQ has it."""
MOST_PREFETCH = MOST_PER_CALL


class AckMode(StrEnum):
    AUTO = "auto"
    CLIENT = "client"
    """An ack is for all before it, too."""
    EACH = "client-individual"


class QueueTaker:
    """A subscription to a queue, and the ledger of its ``window``. ``held``: leases, oldest first, by what an ack calls
    them; in mode ``auto`` none is."""

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
        """Leases are extended while the client is connected, so what it holds counts until it is settled."""

    def taken(self, id: str) -> dict[str, str]:
        """The leases that an ack of this message means, taken out; none: it is not held."""
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
    """What an ack or a nack is about."""

    taker: QueueTaker
    leases: dict[str, str]


class Gathering:
    """Clients that were sent what needs no ack, and is not yet done with."""

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
        """There is a commit anyway."""
        waiting, self._waiting = self._waiting, {}
        for holdings in waiting:
            holdings.confirm_sent()

    def _turn(self) -> None:
        self._is_timed = False
        self.join()


class Holdings:
    """Everything one client holds. ``settling``: acked, and not yet on disk; ``sent``: needs no ack, and is not yet
    known to have gone out."""

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
        leases = [f"{card[0]}-{card[7]}" for card, _, _ in deliveries]
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
            names = leases if address.version == V12 else [sent[1] for _, sent, _ in deliveries]
            taker.held.update(zip(names, leases, strict=True))
        return True

    def _is_waited_for(self, deliveries: Sequence[Delivery]) -> bool:
        """The next of a group, or of a limited number, comes when these are done with."""
        limit = self._desk.verbs.defaults.concurrency_in(deliveries[0].rules)
        if deliveries[0].rules.is_ordered:
            return True
        return limit is not None or any(sent.group for _, sent, _ in deliveries)

    def confirm_sent(self) -> None:
        """What needs no ack is done with, once it is on its way and the client reads."""
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
        elif self._is_open():  # they are tried again with the next ones
            self._sent += leases

    def taken(self, id: str, subscription: str | None) -> Taken | None:
        """What an ack means; None: nothing of that name is held. Its credit is free at once, so that the commit that
        settles it hands out the next ones too."""
        for name, taker in self.takers.items():
            leases = taker.taken(id) if subscription in (None, name) else {}
            if leases:
                self.settling.update(leases.values())
                self._desk.hungry(taker.window.queue)
                return Taken(taker, leases)
        return None

    def untake(self, taken: Taken) -> None:
        """It was not settled after all."""
        self.settling.difference_update(taken.leases.values())
        if taken.taker in self.takers.values():
            taken.taker.held = taken.leases | taken.taker.held
        else:
            self._put_back([*taken.leases.values()])

    def wake(self) -> None:
        """The client reads again, or has just been let on."""
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
        """The client is gone: whatever it holds stands where it stood. ``is_read``: it has read what it was sent."""
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
    """What cannot be extended or put back was settled meanwhile, or lapses by itself."""
