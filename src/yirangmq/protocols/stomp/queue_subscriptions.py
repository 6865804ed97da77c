"""Queue subscriptions of one STOMP client, sans-IO: prefetch, ack modes, and the leases of its connection.

STOMP has no leases, so the connection keeps them alive: they are extended every ``EXTEND_SECONDS`` while the client is
connected. When the connection is lost, each message returns to its old place in the queue. If the server is killed, the
leases expire after ``LEASE_MS``.

Messages in ack mode ``auto`` are acked once they are sent and the client reads. Those acks join the next commit, or
wait up to ``ACK_BATCH_SECONDS`` for one that all clients share."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from yirangmq.broker import settle
from yirangmq.broker.credit_window import CreditWindow
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.settle import MAX_PER_CALL, Leases
from yirangmq.broker.waiting_consumers import MAX_PER_WAITER
from yirangmq.core.errors import QueueError
from yirangmq.format.delivery import MessageDelivery
from yirangmq.protocols.stomp.codec import MessageAddress, message
from yirangmq.wire.stomp import V12

CONSUMERS = "stomp:"
"""Prefix of the consumer names of all STOMP clients."""
LEASE_MS = 60_000
"""Length of a lease in ms, and so the delay of redelivery to other consumers if the server is killed and not
restarted."""
EXTEND_SECONDS = 20.0
ACK_BATCH_SECONDS = 0.02
"""Longest wait of automatic acks for a commit, in seconds. They join any earlier commit; else the acks of all clients
share one. On a slow disk, one commit per sent message would double the number of commits."""
MAX_BATCHED_ACKS = 200
PREFETCH = 1000
"""Default prefetch of a subscription: unacknowledged messages, as in ActiveMQ."""
MAX_PREFETCH = MAX_PER_CALL


class AckMode(StrEnum):
    """STOMP ack mode of a subscription."""

    AUTO = "auto"
    CLIENT = "client"
    """An ack is cumulative: it covers all earlier messages of the subscription."""
    EACH = "client-individual"


class StompQueueSubscription:
    """Queue subscription of a STOMP client, and the lease ledger of its credit window (``window``).

    ``held``: unacknowledged leases, oldest first, by the id that an ack names. It is empty in mode ``auto``."""

    def __init__(
        self,
        queue: str,
        destination: str,
        mode: AckMode,
        credit: int,
        address: MessageAddress,
        queue_leases: "QueueLeases",
    ) -> None:
        self.destination = destination
        self.mode = mode
        self.credit = credit
        self.address = address
        self.held: dict[str, str] = {}
        most = MAX_PER_WAITER if mode is AckMode.AUTO else credit
        push = partial(queue_leases.push, self)
        self.window = CreditWindow(queue, queue_leases.consumer, LEASE_MS, most, self, push, queue_leases.has_capacity)

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


class CoveredLeases(NamedTuple):
    """Leases that an ack or a nack covers, and their subscription."""

    queue_subscription: StompQueueSubscription
    leases: dict[str, str]


class AckBatcher:
    """Batches the automatic acks of all clients that were sent messages in mode ``auto``.

    The acks join the next commit, or share one after ``ACK_BATCH_SECONDS``."""

    def __init__(self, later: Callable[[float, Callable[[], None]], Any]) -> None:
        self._later = later
        self._waiting: dict[QueueLeases, None] = {}
        self._is_scheduled = False

    def add(self, queue_leases: "QueueLeases") -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._later(ACK_BATCH_SECONDS, self._on_timer)
        self._waiting[queue_leases] = None

    def join(self) -> None:
        """Submit the waiting acks. Runs as a hook before each commit, so that they share it."""
        waiting, self._waiting = self._waiting, {}
        for queue_leases in waiting:
            queue_leases.confirm_sent()

    def _on_timer(self) -> None:
        self._is_scheduled = False
        self.join()


class QueueLeases:
    """Queue subscriptions and leases of one STOMP client.

    ``settling``: leases that are acked, but not yet on disk. ``_sent``: leases of mode ``auto`` that are sent, but not
    yet acked. Loop thread only."""

    def __init__(
        self,
        committer: GroupCommitter,
        ack_batcher: AckBatcher,
        send: Callable[[bytes], None],
        has_capacity: Callable[[], bool],
        is_open: Callable[[], bool],
    ) -> None:
        self._committer = committer
        self._ack_batcher = ack_batcher
        self._send = send
        self.has_capacity = has_capacity
        self._is_open = is_open
        self.consumer = ""
        self.subscriptions: dict[str, StompQueueSubscription] = {}
        self.settling: set[str] = set()
        self._sent: list[str] = []
        self._is_extending = False
        self.delivered = 0

    @property
    def unsettled(self) -> int:
        return (
            sum(queue_subscription.unsettled for queue_subscription in self.subscriptions.values())
            + len(self.settling)
            + len(self._sent)
        )

    def subscribe(self, id: str, queue_subscription: StompQueueSubscription) -> None:
        self.subscriptions[id] = queue_subscription
        self._committer.add_waiter(queue_subscription.window)
        if not self._is_extending:
            self._is_extending = True
            self._committer.later(EXTEND_SECONDS, self._extend)

    def unsubscribe(self, id: str) -> bool:
        queue_subscription = self.subscriptions.pop(id, None)
        if queue_subscription is None:
            return False
        self._committer.remove_waiter(queue_subscription.window)
        self._release([*queue_subscription.held.values()])
        return True

    def push(self, queue_subscription: StompQueueSubscription, deliveries: Sequence[MessageDelivery]) -> bool:
        leases = [f"{row.seq}-{row.leases}" for row, _, _ in deliveries]
        if not self._is_open() or queue_subscription not in self.subscriptions.values():
            self._release(leases)
            return True
        send, address, destination = self._send, queue_subscription.address, queue_subscription.destination
        for delivery in deliveries:
            send(message(address, destination, delivery))
        self.delivered += len(deliveries)
        if queue_subscription.mode is AckMode.AUTO:
            self._sent += leases
            if len(self._sent) >= MAX_BATCHED_ACKS or self._blocks_next(deliveries):
                self.confirm_sent()
            else:
                self._ack_batcher.add(self)
        else:
            names = leases if address.version == V12 else [sent.id for _, sent, _ in deliveries]
            queue_subscription.held.update(zip(names, leases, strict=True))
        return True

    def _blocks_next(self, deliveries: Sequence[MessageDelivery]) -> bool:
        """True if an ack of these deliveries may release the next message: of a group, or under a concurrency limit."""
        limit = self._committer.context.defaults.concurrency_in(deliveries[0].rules)
        if deliveries[0].rules.is_ordered:
            return True
        return limit is not None or any(sent.group for _, sent, _ in deliveries)

    def confirm_sent(self) -> None:
        """Ack the sent messages of mode ``auto``, if the client reads."""
        if self.has_capacity():
            self._confirm()

    def _confirm(self) -> None:
        if not self._sent:
            return
        leases, self._sent = self._sent, []
        self.settling.update(leases)
        for batch in _batches(leases):
            work = partial(settle.ack, self._committer.context, leases=Leases(batch), consumer=None)
            self._committer.submit(work, partial(self._confirmed, batch))

    def _confirmed(self, leases: list[str], value: object, error: QueueError | None) -> None:
        if error is None:
            self.settling.difference_update(leases)
        elif self._is_open():  # retried with the next ones
            self._sent += leases

    def taken(self, id: str, subscription: str | None) -> CoveredLeases | None:
        """Return the leases that an ack covers, or None if none are held under this id.

        Their credit is free immediately, so the commit that settles them also leases the next messages."""
        for name, queue_subscription in self.subscriptions.items():
            leases = queue_subscription.taken(id) if subscription in (None, name) else {}
            if leases:
                self.settling.update(leases.values())
                self._committer.notify_capacity(queue_subscription.window.queue)
                return CoveredLeases(queue_subscription, leases)
        return None

    def restore(self, taken: CoveredLeases) -> None:
        """Take leases back that were not settled after all."""
        self.settling.difference_update(taken.leases.values())
        if taken.queue_subscription in self.subscriptions.values():
            taken.queue_subscription.held = taken.leases | taken.queue_subscription.held
        else:
            self._release([*taken.leases.values()])

    def wake(self) -> None:
        """Resume pushing: the client reads again, or was resumed by an operator."""
        self.confirm_sent()
        for queue_subscription in self.subscriptions.values():
            self._committer.notify_capacity(queue_subscription.window.queue)

    # -- lease extension and end ---------------------------------------------------------------------------------------

    def _leases(self) -> list[str]:
        held = [
            lease for queue_subscription in self.subscriptions.values() for lease in queue_subscription.held.values()
        ]
        return list(dict.fromkeys([*held, *self.settling, *self._sent]))

    def _extend(self) -> None:
        if not self._is_open():
            return
        self.confirm_sent()
        for batch in _batches(self._leases()):
            work = partial(settle.extend, self._committer.context, leases=Leases(batch), consumer=None, span=LEASE_MS)
            self._committer.submit(work, _ignore)
        self._committer.later(EXTEND_SECONDS, self._extend)

    def close(self, *, has_read_all: bool = False) -> None:
        """Release all leases in place: the client is gone. ``has_read_all``: it has read everything sent to it."""
        if has_read_all:
            self._confirm()
        for queue_subscription in self.subscriptions.values():
            self._committer.remove_waiter(queue_subscription.window)
        leases = self._leases()
        self.subscriptions.clear()
        self.settling.clear()
        self._sent.clear()
        self._release(leases)

    def _release(self, leases: list[str]) -> None:
        for batch in _batches(leases):
            work = partial(settle.release, self._committer.context, leases=Leases(batch), consumer=None, in_place=True)
            self._committer.submit(work, _ignore)


def _batches(leases: list[str]) -> list[list[str]]:
    return [leases[first : first + MAX_PER_CALL] for first in range(0, len(leases), MAX_PER_CALL)]


def _ignore(value: object, error: QueueError | None) -> None:
    """Ignore the error: a lease that cannot be extended or released was settled meanwhile, or expires."""
