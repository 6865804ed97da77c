"""Credit window of a subscription: the free credit, its unsettled leases; and single lease requests that wait.

Every protocol that pushes uses the window: native, STOMP, webhooks. The committer reads the free credit of a
subscription and delivers messages when their leases are durable. Unsettled messages count against the credit; the
protocol records pushed and settled messages in a ledger, and notifies the committer when there is credit again.
Expired leases are removed from the ledger only when the credit is used up.

A lease request takes messages once, or ends at its timer. Both wait in the list of ``broker.waiting_consumers``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Clock
from yirangmq.format.delivery import MessageDelivery, RunDeliveries

# -- credit window -----------------------------------------------------------------------------------------------------


class Unsettled(Protocol):
    """The messages that were sent to a consumer and are not settled."""

    @property
    def unsettled(self) -> int: ...

    def drop_lapsed(self) -> None:
        """Remove expired leases. Called when the credit is used up."""


Ledger = TypeVar("Ledger", bound=Unsettled)


def _always() -> bool:
    return True


class CreditWindow(Generic[Ledger]):
    """Credit window of a subscription: messages are pushed while fewer than ``credit`` of them are unsettled.

    ``push`` gets the messages when their leases are durable; it returns False if the consumer is gone. ``has_capacity``
    is the backpressure of the connection: False while the client has too many unread bytes."""

    __slots__ = ("_has_capacity", "consumer", "credit", "ledger", "queue", "span_ms", "take")

    serve = None

    def __init__(
        self,
        queue: str,
        consumer: str,
        span_ms: int | None,
        credit: int,
        ledger: Ledger,
        push: Callable[[Sequence[MessageDelivery]], bool],
        has_capacity: Callable[[], bool] = _always,
    ) -> None:
        self.queue = queue
        self.consumer = consumer
        self.span_ms = span_ms
        self.credit = credit
        self.ledger = ledger
        self.take = push
        self._has_capacity = has_capacity

    def wants(self) -> int:
        if not self._has_capacity():
            return 0
        capacity = self.credit - self.ledger.unsettled
        if capacity <= 0:
            self.ledger.drop_lapsed()
            capacity = self.credit - self.ledger.unsettled
        return capacity

    def describe(self) -> dict[str, Any]:
        """Return the state of the window for status output."""
        unsettled = self.ledger.unsettled
        return {"queue": self.queue, "consumerId": self.consumer, "credit": self.credit, "unsettled": unsettled}


# -- unsettled leases --------------------------------------------------------------------------------------------------


class Pushed(NamedTuple):
    """Leases of one push. ``span`` is (first, last, fence) if the message numbers are consecutive."""

    leases: list[str]
    until: int
    span: tuple[int, int, int] | None


class UnsettledLeases:
    """Ledger of unsettled leases of a consumer that settles by lease ids.

    ``held`` maps unsettled leases of an earlier connection to their ends. The leases of a push are kept as a batch
    until a part of them is settled: most consumers settle all of them in one call."""

    def __init__(self, clock: Clock, held: Mapping[str, int] | None = None) -> None:
        self.policy: QueuePolicy | None = None
        """Policy of the queue at the latest push."""
        self._clock = clock
        self._out: dict[str, int] = dict(held or {})
        self._whole: dict[str, Pushed] = {}
        """Batches by their first lease; their leases are not in ``_out``."""
        self._in_whole = 0

    @property
    def unsettled(self) -> int:
        return len(self._out) + self._in_whole

    def drop_lapsed(self) -> None:
        now = self._clock.now_ms()
        self._out = {lease: until for lease, until in self._out.items() if until > now}
        self._whole = {first: pushed for first, pushed in self._whole.items() if pushed.until > now}
        self._in_whole = sum([len(pushed.leases) for pushed in self._whole.values()])

    def add(self, deliveries: Sequence[MessageDelivery]) -> None:
        if isinstance(deliveries, RunDeliveries):
            [row, length], _ = deliveries.runs[0]
            is_one = len(deliveries.runs) == 1
            span = (row.seq, row.seq + length - 1, row.leases) if is_one else None
            until = min([run.row.due_at for run, _ in deliveries.runs])
            self._whole[deliveries.leases[0]] = Pushed(deliveries.leases, until, span)
            self._in_whole += len(deliveries)
        else:
            self._out.update([(f"{message.seq}-{message.leases}", message.due_at) for message, _, _ in deliveries])

    def span_of(self, leases: Sequence[str]) -> tuple[int, int, int] | None:
        """Return the span of ``leases`` if they are exactly those of one push and consecutive; else None."""
        pushed = self._whole.get(leases[0]) if leases else None
        return pushed.span if pushed is not None and pushed.leases == leases else None

    def settled(self, leases: Sequence[str]) -> bool:
        """Remove settled leases. Return True if any was in the ledger: there is credit again."""
        pushed = self._whole.get(leases[0]) if leases else None
        if pushed is not None and pushed.leases == leases:
            del self._whole[leases[0]]
            self._in_whole -= len(leases)
            return True
        self._scatter()
        before = len(self._out)
        for lease in leases:
            self._out.pop(lease, None)
        return len(self._out) < before

    def extended(self, leases: Sequence[str], span_ms: int | None) -> None:
        """Set the end of extended leases to ``span_ms`` from now; None means the policy's visibility timeout."""
        if span_ms is None:
            span_ms = self.policy.visibility_ms if self.policy is not None else 0
        until = self._clock.now_ms() + span_ms
        self._scatter()
        for lease in leases:
            if lease in self._out:
                self._out[lease] = until

    def _scatter(self) -> None:
        """Split all batches into single leases."""
        for leases, until, _ in self._whole.values():
            self._out.update(dict.fromkeys(leases, until))
        self._whole.clear()
        self._in_whole = 0


# -- lease request -----------------------------------------------------------------------------------------------------


class PendingLeaseRequest:
    """Long poll: a lease request that found nothing yet. The timer ``alarm`` ends the wait; it is cancelled when the
    request is served."""

    serve = None
    is_poll = True
    """The consumer sends a new request after it is served, so it is briefly absent from the wait list."""

    def __init__(
        self,
        queue: str,
        consumer: str,
        span_ms: int | None,
        limit: int,
        push: Callable[[Sequence[MessageDelivery]], bool],
    ) -> None:
        self.queue = queue
        self.consumer = consumer
        self.span_ms = span_ms
        self.alarm: Any = None
        self._limit = limit
        self._push = push
        self._served = False

    def wants(self) -> int:
        return 0 if self._served else self._limit

    def take(self, deliveries: Sequence[MessageDelivery]) -> bool:
        self._served = True
        return self._push(deliveries)
