"""Wait list of consumers, served inside a transaction: queue by queue, round-robin in order of arrival.

A waiting consumer is a subscription with credit left or a lease request that found nothing yet. Each commit serves the
queues where messages or consumers changed, and gives a consumer ``MOST_PER_TAKER`` messages at most. Queues with a
strategy are served by ``broker.dispatch.dispatcher``. A queue that cannot be read, such as by a broken policy file,
does not affect the others.

The committer passes ``plan``, which schedules the next transaction. Loop thread only."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, Protocol

from yirangmq.broker.operations import Verbs
from yirangmq.broker.selection import targets
from yirangmq.core import validation
from yirangmq.core.errors import QueueError, StoreError
from yirangmq.core.ports import Clock, Transaction

Serve = Callable[[Transaction, int], list[Any]]


class Taker(Protocol):
    """A waiting consumer: a subscription with credit left, or a lease request that found nothing yet."""

    queue: str
    consumer: str
    span_ms: int | None

    @property
    def serve(self) -> Serve | None:
        """Serves several takers that share this function, one message each, in another way than a lease. None if the
        taker leases."""

    def wants(self) -> int:
        """Number of messages that the consumer can take now."""

    def take(self, deliveries: Sequence[Any]) -> bool:
        """Deliver the leased messages, or the result of ``serve``. Return False if the consumer is gone; the leases are
        then released."""


MOST_PER_TAKER = 1024
"""Upper bound of messages per consumer and commit, so that other consumers are served too."""
BYTES_PER_TAKER = 2 * 1024 * 1024
"""Upper bound of payload and header bytes per consumer and commit; a single larger message is still delivered."""
Served = list[tuple[Taker, Sequence[Any]]]
"""Consumers with the messages that each got."""


class Serving:
    """Wait list of consumers by queue. Used on the committer's thread only."""

    def __init__(
        self,
        verbs: Verbs,
        clock: Clock,
        later: Callable[[float, Callable[[], None]], Any],
        plan: Callable[[], None],
    ) -> None:
        self._verbs = verbs
        self._clock = clock
        self._later = later
        self._plan = plan
        self.takers: dict[str, OrderedDict[Taker, None]] = {}
        """Waiting consumers by queue, the next one first."""
        self.due_queues: set[str] = set()
        """Queues to serve in the next commit: a consumer joined or has capacity again."""

    @property
    def is_awaited(self) -> bool:
        """True if a consumer waits. Thread-safe."""
        return bool(self.takers)

    # -- wait list ------------------------------------------------------------------------------------------------

    def wait(self, taker: Taker) -> None:
        self.takers.setdefault(taker.queue, OrderedDict())[taker] = None
        self.due_queues.add(taker.queue)
        self._plan()

    def leave(self, taker: Taker) -> None:
        line = self.takers.get(taker.queue)
        if line is not None and taker in line:
            del line[taker]
            if taker.queue in self._verbs.dispatching.watched and line:
                self.wake(taker.queue)  # messages assigned to this consumer may go to another now
            if not line:
                del self.takers[taker.queue]

    def wake(self, queue: str) -> None:
        if queue in self.takers:
            self.due_queues.add(queue)
            self._plan()

    def wake_all(self) -> None:
        if self.takers:
            self.due_queues.update(self.takers)
            self._plan()

    # -- inside a transaction -------------------------------------------------------------------------------------

    def serve(self, transaction: Transaction) -> Served:
        """Lease messages for waiting consumers, queue by queue, round-robin within a queue."""
        served: Served = []
        queues = (self.due_queues | self._verbs.touched) & self.takers.keys()
        self.due_queues.clear()
        self._verbs.touched.clear()
        for queue in queues:
            line = self.takers[queue]
            shared = self._share(transaction, queue, line)
            if shared is not None:
                served += shared
                continue
            left = len(line)
            while left > 0:
                taken = self._serve_next(transaction, line, left)
                if not taken:
                    served += self._serve_alone(transaction, queue)
                    break
                left -= len(taken)
                served += [(taker, got) for taker, got in taken if got]
                if len(taken[0][1]) == MOST_PER_TAKER:
                    self.due_queues.add(queue)
        if self.due_queues or not self._verbs.touched.isdisjoint(self.takers):
            self._plan()
        return served

    def _share(self, transaction: Transaction, queue: str, line: "OrderedDict[Taker, None]") -> Served | None:
        """Serve a queue by its dispatch strategy, which must see all consumers.

        Return None if the queue has none: its consumers are served in order of arrival."""
        dispatching = self._verbs.dispatching
        try:
            dispatch = dispatching.shares(transaction, queue)
            if dispatch is None:
                return None
            now = self._clock.now_ms()
            served = dispatching.serve(transaction, queue, dispatch, line, now)
        except StoreError:
            raise
        except QueueError:
            return []
        for taker, _ in served:
            line.move_to_end(taker)
        if queue in dispatching.again:
            dispatching.again.discard(queue)
            self.due_queues.add(queue)
        at = dispatching.wake_at.pop(queue, None)
        if at is not None:
            self._later(max(0.0, (at - now) / 1000), lambda: self.wake(queue))
        return served

    def _serve_next(self, transaction: Transaction, line: "OrderedDict[Taker, None]", left: int) -> Served:
        """Serve the first consumer of the wait list and move it to the end.

        Return nothing if there is no message; the consumer then keeps its position. Of the ``left`` consumers not yet
        served, several may be served in one step."""
        taker = next(iter(line))
        wanted = min(taker.wants(), MOST_PER_TAKER)
        if wanted <= 0:
            taken: Served = [(taker, [])]
        elif taker.serve is None:
            got = self._lease_for(transaction, taker, wanted)
            taken = [(taker, got)] if got else []
        else:
            taken = self._serve_alike(transaction, islice(line, min(left, MOST_PER_TAKER)), taker.serve)
        for one, _ in taken:
            line.move_to_end(one)
        return taken

    def _serve_alike(self, transaction: Transaction, takers: Iterator[Taker], serve: Serve) -> Served:
        alike = list(takewhile(lambda taker: taker.serve is serve and taker.wants() > 0, takers))
        try:
            got = serve(transaction, len(alike))
        except StoreError:
            raise
        except QueueError:
            got = []
        return [(taker, [one]) for taker, one in zip(alike, got, strict=False)]

    def _serve_alone(self, transaction: Transaction, queue: str) -> Served:
        """Serve messages addressed to a single consumer, when no other message is left."""
        takers: dict[int, list[Taker]] = {}
        for taker in self.takers[queue] if any(targets(transaction, queue)) else ():
            if taker.serve is None:
                takers.setdefault(validation.line_of(taker.consumer), []).append(taker)
        looked_for = list(islice(targets(transaction, queue), len(takers)))
        lines = takers if len(looked_for) == len(takers) else looked_for  # the smaller of the two
        served: Served = []
        for taker in [taker for line in lines for taker in takers.get(line, ())]:
            wanted = min(taker.wants(), MOST_PER_TAKER)
            got = self._lease_for(transaction, taker, wanted) if wanted > 0 else []
            if got:
                served.append((taker, got))
        return served

    def _lease_for(self, transaction: Transaction, taker: Taker, wanted: int) -> Sequence[Any]:
        """Lease for one consumer. Return nothing if the queue cannot be read, such as by a broken policy file: other
        queues are not affected."""
        try:
            return self._verbs.lease(transaction, taker.queue, wanted, taker.span_ms, taker.consumer, BYTES_PER_TAKER)
        except StoreError:
            raise
        except QueueError:
            return []
