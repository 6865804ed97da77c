"""Wait list of consumers, served inside a transaction: queue by queue, round-robin in order of arrival.

A waiting consumer is a subscription with credit left or a lease request that found nothing yet. Each commit serves the
queues where messages or consumers changed, and gives a consumer ``MAX_PER_WAITER`` messages at most. Queues with a
strategy are served by ``broker.dispatch.dispatcher``. A queue that cannot be read, such as by a broken policy file,
does not affect the others.

The committer passes ``plan``, which schedules the next transaction. Loop thread only."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, Protocol

from yirangmq.broker.context import TransactionContext
from yirangmq.broker.dispatch.dispatcher import joint_dispatch, serve
from yirangmq.broker.operations import lease
from yirangmq.broker.selection import targets
from yirangmq.core import validation
from yirangmq.core.errors import QueueError, StoreError
from yirangmq.core.ports import Clock, Transaction

Serve = Callable[[Transaction, int], list[Any]]


class Waiter(Protocol):
    """A waiting consumer: a subscription with credit left, or a lease request that found nothing yet."""

    queue: str
    consumer: str
    span_ms: int | None

    @property
    def serve(self) -> Serve | None:
        """Serves several takers that share this function, one message each, in another way than a lease. None if the
        consumer leases."""

    def wants(self) -> int:
        """Number of messages that the consumer can take now."""

    def take(self, deliveries: Sequence[Any]) -> bool:
        """Deliver the leased messages, or the result of ``serve``. Return False if the consumer is gone; the leases are
        then released."""


MAX_PER_WAITER = 1024
"""Upper bound of messages per consumer and commit, so that other consumers are served too."""
MAX_BYTES_PER_WAITER = 2 * 1024 * 1024
"""Upper bound of payload and header bytes per consumer and commit; a single larger message is still delivered."""
Served = list[tuple[Waiter, Sequence[Any]]]
"""Consumers with the messages that each got."""


class WaitingConsumers:
    """Wait list of consumers by queue. Used on the committer's thread only."""

    def __init__(
        self,
        context: TransactionContext,
        clock: Clock,
        later: Callable[[float, Callable[[], None]], Any],
        plan: Callable[[], None],
    ) -> None:
        self._context = context
        self._clock = clock
        self._later = later
        self._plan = plan
        self.waiters: dict[str, OrderedDict[Waiter, None]] = {}
        """Waiting consumers by queue, the next one first."""
        self.due_queues: set[str] = set()
        """Queues to serve in the next commit: a consumer joined or has capacity again."""

    @property
    def has_waiters(self) -> bool:
        """True if a consumer waits. Thread-safe."""
        return bool(self.waiters)

    # -- wait list ------------------------------------------------------------------------------------------------

    def add_waiter(self, waiter: Waiter) -> None:
        self.waiters.setdefault(waiter.queue, OrderedDict())[waiter] = None
        self.due_queues.add(waiter.queue)
        self._plan()

    def remove_waiter(self, waiter: Waiter) -> None:
        line = self.waiters.get(waiter.queue)
        if line is not None and waiter in line:
            del line[waiter]
            if waiter.queue in self._context.dispatch.watched and line:
                self.wake(waiter.queue)  # messages assigned to this consumer may go to another now
            if not line:
                del self.waiters[waiter.queue]

    def wake(self, queue: str) -> None:
        if queue in self.waiters:
            self.due_queues.add(queue)
            self._plan()

    def wake_all(self) -> None:
        if self.waiters:
            self.due_queues.update(self.waiters)
            self._plan()

    # -- inside a transaction -------------------------------------------------------------------------------------

    def serve(self, transaction: Transaction) -> Served:
        """Lease messages for waiting consumers, queue by queue, round-robin within a queue."""
        served: Served = []
        queues = (self.due_queues | self._context.wake_queues) & self.waiters.keys()
        self.due_queues.clear()
        self._context.wake_queues.clear()
        for queue in queues:
            line = self.waiters[queue]
            shared = self._serve_by_strategy(transaction, queue, line)
            if shared is not None:
                served += shared
                continue
            left = len(line)
            while left > 0:
                taken = self._serve_next(transaction, line, left)
                if not taken:
                    served += self._serve_addressed(transaction, queue)
                    break
                left -= len(taken)
                served += [(waiter, got) for waiter, got in taken if got]
                if len(taken[0][1]) == MAX_PER_WAITER:
                    self.due_queues.add(queue)
        if self.due_queues or not self._context.wake_queues.isdisjoint(self.waiters):
            self._plan()
        return served

    def _serve_by_strategy(
        self, transaction: Transaction, queue: str, line: "OrderedDict[Waiter, None]"
    ) -> Served | None:
        """Serve a queue by its dispatch strategy, which must see all consumers.

        Return None if the queue has none: its consumers are served in order of arrival."""
        context, state = self._context, self._context.dispatch
        try:
            dispatch = joint_dispatch(context, transaction, queue)
            if dispatch is None:
                return None
            now = self._clock.now_ms()
            served = serve(context, transaction, queue, dispatch, line, now)
        except StoreError:
            raise
        except QueueError:
            return []
        for waiter, _ in served:
            line.move_to_end(waiter)
        if queue in state.to_serve_again:
            state.to_serve_again.discard(queue)
            self.due_queues.add(queue)
        at = state.wake_at.pop(queue, None)
        if at is not None:
            self._later(max(0.0, (at - now) / 1000), lambda: self.wake(queue))
        return served

    def _serve_next(self, transaction: Transaction, line: "OrderedDict[Waiter, None]", left: int) -> Served:
        """Serve the first consumer of the wait list and move it to the end.

        Return nothing if there is no message; the consumer then keeps its position. Of the ``left`` consumers not yet
        served, several may be served in one step."""
        waiter = next(iter(line))
        wanted = min(waiter.wants(), MAX_PER_WAITER)
        if wanted <= 0:
            taken: Served = [(waiter, [])]
        elif waiter.serve is None:
            got = self._lease_for(transaction, waiter, wanted)
            taken = [(waiter, got)] if got else []
        else:
            taken = self._serve_batch(transaction, islice(line, min(left, MAX_PER_WAITER)), waiter.serve)
        for one, _ in taken:
            line.move_to_end(one)
        return taken

    def _serve_batch(self, transaction: Transaction, waiters: Iterator[Waiter], serve: Serve) -> Served:
        alike = list(takewhile(lambda waiter: waiter.serve is serve and waiter.wants() > 0, waiters))
        try:
            got = serve(transaction, len(alike))
        except StoreError:
            raise
        except QueueError:
            got = []
        return [(waiter, [one]) for waiter, one in zip(alike, got, strict=False)]

    def _serve_addressed(self, transaction: Transaction, queue: str) -> Served:
        """Serve messages addressed to a single consumer, when no other message is left."""
        waiters: dict[int, list[Waiter]] = {}
        for waiter in self.waiters[queue] if any(targets(transaction, queue)) else ():
            if waiter.serve is None:
                waiters.setdefault(validation.line_of(waiter.consumer), []).append(waiter)
        candidates = list(islice(targets(transaction, queue), len(waiters)))
        lines = waiters if len(candidates) == len(waiters) else candidates  # the smaller of the two
        served: Served = []
        for waiter in [waiter for line in lines for waiter in waiters.get(line, ())]:
            wanted = min(waiter.wants(), MAX_PER_WAITER)
            got = self._lease_for(transaction, waiter, wanted) if wanted > 0 else []
            if got:
                served.append((waiter, got))
        return served

    def _lease_for(self, transaction: Transaction, waiter: Waiter, wanted: int) -> Sequence[Any]:
        """Lease for one consumer. Return nothing if the queue cannot be read, such as by a broken policy file: other
        queues are not affected."""
        try:
            return lease(
                self._context, transaction, waiter.queue, wanted, waiter.span_ms, waiter.consumer, MAX_BYTES_PER_WAITER
            )
        except StoreError:
            raise
        except QueueError:
            return []
