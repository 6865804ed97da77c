"""Embedded subscription and sender with the interface of the client's, and the wake-up of waiting consumers.

The subscription takes messages within a credit window, like ``client.subscription``. It counts unsettled leases in the
store, so leases settled elsewhere free credit too. The sender publishes message by message, like ``client.producer``;
each message is durable when ``send`` returns.

Consumers of an empty queue block until a change in this process or another. A single thread waits on the store and
wakes the others; there is no polling."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.message import split_lease_id
from yirangmq.core.ports import AddResult, Store, Transaction
from yirangmq.core.states import State
from yirangmq.format.delivery import HasLeaseId, MessageDelivery, lease_ids

if TYPE_CHECKING:
    from yirangmq.broker.queues import Queues


# -- sender ------------------------------------------------------------------------------------------------------------


class EmbeddedSender:
    """Publishes message by message to a queue. Each message is durable when ``send`` returns."""

    def __init__(self, queues: "Queues", queue: str, on_receipt: Callable[[AddResult], object] | None) -> None:
        validation.check_callback(on_receipt)
        self._queues = queues
        self._queue = queue
        self._on_receipt = on_receipt
        self._is_closed = False

    def send(self, message: object) -> str:
        """Publish any JSON value, bytes, or a ``NewMessage``; return the message's id."""
        if self._is_closed:
            raise BadInput("closed; create another one", field="sender")
        receipt = self._queues.publish(self._queue, message)
        if self._on_receipt is not None:
            self._on_receipt(receipt)
        return receipt.id

    def settle(self) -> None:
        """Do nothing: all messages sent so far are durable. Exists because the client's sender has this method."""

    def close(self) -> None:
        """Refuse further messages."""
        self._is_closed = True

    def __enter__(self) -> "EmbeddedSender":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# -- wake-up -----------------------------------------------------------------------------------------------------------


class ChangeNotifier:
    """Wakes threads that wait for a change of the store, by this process or another. Thread-safe.

    A single waiting thread at a time listens to the store for changes by other processes and wakes all others."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._news = threading.Condition()
        self._generation = 0
        self._listening = False

    @property
    def generation(self) -> int:
        """Count of changes. Read it before reading the queue; pass it to ``wait`` if the queue was empty."""
        return self._generation

    def notify(self) -> None:
        """Wake all waiting threads after a change by this process."""
        with self._news:
            self._generation += 1
            self._news.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Block until something has changed since ``seen``, at most ``seconds``."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            with self._news:
                if self._generation != seen:
                    return
                if self._listening:
                    self._news.wait(left)
                    continue
                self._listening = True
            try:
                self._store.wait(left)
            finally:
                with self._news:
                    self._listening = False
                    self._generation += 1
                    self._news.notify_all()


# -- subscription ------------------------------------------------------------------------------------------------------

MAX_PER_LEASE = 256
"""Upper bound of messages leased per commit, so that other consumers are served too."""
FOREVER = 10.0 * 366 * 86400
"""Ten years, in seconds: ``idle`` of a subscription without a limit."""


class EmbeddedSubscriptionOptions(NamedTuple):
    """Options of a subscription. ``lease_seconds`` and ``idle`` are in seconds."""

    queue: str
    credit: int
    lease_seconds: float | None
    consumer: str | None
    idle: float | None


class Subscription:
    """Embedded subscription: ``for delivery in subscription``.

    It ends when it is closed, or after ``idle`` seconds without a message."""

    def __init__(
        self,
        queues: "Queues",
        waiters: ChangeNotifier,
        seconds_to_due: Callable[[], float],
        terms: EmbeddedSubscriptionOptions,
    ) -> None:
        self._queues = queues
        self._waiters = waiters
        self._seconds_to_due = seconds_to_due
        self._terms = terms
        self._taking = threading.Lock()
        self._held: list[str] = []
        self._ready: deque[MessageDelivery] = deque()
        self._is_over = False

    # -- leasing ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> "Subscription":
        return self

    def __next__(self) -> MessageDelivery:
        delivery = self.next()
        if delivery is None:
            raise StopIteration
        return delivery

    def next(self, wait: float | None = None) -> MessageDelivery | None:
        """Return the next message, or None if none arrived within ``wait`` seconds (default: ``idle``) or if closed."""
        while True:
            try:
                return self._ready.popleft()
            except IndexError:
                batch = self._fetch(wait)
            if not batch:
                return None
            self._ready.extend(batch)

    def batches(self) -> Iterator[list[MessageDelivery]]:
        """Iterate over batches, each the messages leased by one commit: the fastest way to lease and settle many."""
        while batch := self.next_batch():
            yield batch

    def next_batch(self, wait: float | None = None) -> list[MessageDelivery]:
        """Return the messages of the next commit; none if none arrived within ``wait`` seconds, or if closed."""
        if not self._ready:
            return self._fetch(wait)
        batch = [*self._ready]
        self._ready.clear()
        return batch

    def _fetch(self, wait: float | None) -> list[MessageDelivery]:
        idle = FOREVER if self._terms.idle is None else self._terms.idle
        with self._taking:
            until = time.monotonic() + (idle if wait is None else wait)
            while not self._is_over:
                seen = self._waiters.generation
                batch = self._leased()
                left = until - time.monotonic()
                if batch or left <= 0:
                    return batch
                self._waiters.wait(seen, min(left, self._seconds_to_due()))
        return []

    def _leased(self) -> list[MessageDelivery]:
        if len(self._held) >= self._terms.credit:
            self._held = self._queues.read(self._still_held)
        capacity = min(self._terms.credit - len(self._held), MAX_PER_LEASE)
        if capacity <= 0:
            return []
        queue, _, seconds, consumer, _ = self._terms
        batch = self._queues.lease(queue, capacity, lease_seconds=seconds, consumer=consumer)
        self._held += [delivery.lease_id for delivery in batch]
        return batch

    def _still_held(self, transaction: Transaction) -> list[str]:
        """Return the unsettled leases of this subscription that have not expired."""
        now = self._queues.now_ms()
        keys = [split_lease_id(lease) or (0, 0) for lease in self._held]
        found = zip(self._held, keys, transaction.by_seq([seq for seq, _ in keys]), strict=True)
        return [
            lease
            for lease, (_, fence), message in found
            if message is not None
            and message.state is State.LEASED
            and message.leases == fence
            and message.due_at > now
        ]

    # -- settling and closing ---------------------------------------------------------------------------------------

    def ack_nowait(self, deliveries: HasLeaseId | Sequence[HasLeaseId]) -> None:
        """Acknowledge messages. The client's method does not wait for the response; this one returns when durable."""
        self._queues.ack(lease_ids(deliveries))

    def settle(self) -> None:
        """Do nothing: all acks so far are durable."""

    def close(self) -> None:
        """Stop leasing, and release messages that were fetched but not returned to the caller."""
        self._is_over = True
        self._waiters.notify()
        with self._taking:
            unread = [delivery.lease_id for delivery in self._ready]
            self._ready.clear()
        self._queues.release_many(unread)

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
