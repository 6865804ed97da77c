"""Wait list of consumers, served inside a transaction: queue by queue, in order of arrival, in turns.

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
    """A consumer that waits: a subscription with credit left, or a lease that found nothing yet."""

    queue: str
    consumer: str
    span_ms: int | None

    @property
    def serve(self) -> Serve | None:
        """How so many takers, all with this very ``serve``, take one message each, if they do not lease them."""

    def wants(self) -> int:
        """How many messages it can take now; 0: none."""

    def take(self, deliveries: Sequence[Any]) -> bool:
        """Hand over what it leased, or what ``serve`` gave; False if it is gone, and the leases go back."""


MOST_PER_TAKER = 1024
"""Messages handed to one consumer in one commit, so that the others get some too."""
BYTES_PER_TAKER = 2 * 1024 * 1024
"""Bytes of payloads and headers handed to one consumer in one commit, but for a single message that is larger."""
Served = list[tuple[Taker, Sequence[Any]]]
"""Who got what."""


class Serving:
    """Used from one thread, the desk's."""

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
        """By queue, who is next first."""
        self.hungry: set[str] = set()
        """Queues of those who have not been looked at since they could take more."""

    @property
    def is_awaited(self) -> bool:
        """Somebody waits; may be asked from any thread."""
        return bool(self.takers)

    # -- who waits ------------------------------------------------------------------------------------------------

    def wait(self, taker: Taker) -> None:
        self.takers.setdefault(taker.queue, OrderedDict())[taker] = None
        self.hungry.add(taker.queue)
        self._plan()

    def leave(self, taker: Taker) -> None:
        line = self.takers.get(taker.queue)
        if line is not None and taker in line:
            del line[taker]
            if taker.queue in self._verbs.dispatching.watched and line:
                self.wake(taker.queue)  # what was this one's to take may be another's now
            if not line:
                del self.takers[taker.queue]

    def wake(self, queue: str) -> None:
        if queue in self.takers:
            self.hungry.add(queue)
            self._plan()

    def wake_all(self) -> None:
        if self.takers:
            self.hungry.update(self.takers)
            self._plan()

    # -- inside a transaction -------------------------------------------------------------------------------------

    def serve(self, transaction: Transaction) -> Served:
        """Lease for those who wait, queue by queue, in turns."""
        served: Served = []
        queues = (self.hungry | self._verbs.touched) & self.takers.keys()
        self.hungry.clear()
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
                    self.hungry.add(queue)
        if self.hungry or not self._verbs.touched.isdisjoint(self.takers):
            self._plan()
        return served

    def _share(self, transaction: Transaction, queue: str, line: "OrderedDict[Taker, None]") -> Served | None:
        """What a strategy that must see everybody gives to each; None: they are served as they come."""
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
            self.hungry.add(queue)
        at = dispatching.wake_at.pop(queue, None)
        if at is not None:
            self._later(max(0.0, (at - now) / 1000), lambda: self.wake(queue))
        return served

    def _serve_next(self, transaction: Transaction, line: "OrderedDict[Taker, None]", left: int) -> Served:
        """Who is first in line and goes to its end, with what it got; none if there is nothing, and it keeps its turn.
        Of ``left`` who were not asked yet several may be served at one go."""
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
        """Nothing is left for anyone, but there may be something that one consumer alone may have."""
        takers: dict[int, list[Taker]] = {}
        for taker in self.takers[queue] if any(targets(transaction, queue)) else ():
            if taker.serve is None:
                takers.setdefault(validation.line_of(taker.consumer), []).append(taker)
        looked_for = list(islice(targets(transaction, queue), len(takers)))
        lines = takers if len(looked_for) == len(takers) else looked_for  # whichever are fewer
        served: Served = []
        for taker in [taker for line in lines for taker in takers.get(line, ())]:
            wanted = min(taker.wants(), MOST_PER_TAKER)
            got = self._lease_for(transaction, taker, wanted) if wanted > 0 else []
            if got:
                served.append((taker, got))
        return served

    def _lease_for(self, transaction: Transaction, taker: Taker, wanted: int) -> Sequence[Any]:
        """Nothing from a queue that cannot be read, such as one whose policy file is broken: it harms no other."""
        try:
            return self._verbs.lease(transaction, taker.queue, wanted, taker.span_ms, taker.consumer, BYTES_PER_TAKER)
        except StoreError:
            raise
        except QueueError:
            return []
