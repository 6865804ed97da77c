"""Consumers of the socket door that wait for messages: a subscription with its credit, and a lease with patience."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Clock
from yirangmq.format.delivery import Delivery, RunDeliveries


def _always() -> bool:
    return True


class Pushed(NamedTuple):
    """Leases that were given out at one go. ``span``: first, last and fence, if their numbers follow each other."""

    leases: list[str]
    until: int
    span: tuple[int, int, int] | None


class Subscription:
    """Messages are pushed while fewer than ``credit`` of them are unsettled. A lease that lapsed counts no longer.

    ``has_room`` says whether the client has read enough of what it was sent before; ``held`` are unsettled leases from
    an earlier connection, and until when. What was pushed at one go is kept so until a part of it is settled: most
    consumers settle it at one go too."""

    serve = None

    def __init__(
        self,
        queue: str,
        consumer: str,
        span_ms: int | None,
        credit: int,
        clock: Clock,
        push: Callable[[Sequence[Delivery]], bool],
        has_room: Callable[[], bool] = _always,
        held: Mapping[str, int] | None = None,
    ) -> None:
        self.queue = queue
        self.consumer = consumer
        self.span_ms = span_ms
        self.credit = credit
        self.policy: QueuePolicy | None = None
        self._clock = clock
        self._push = push
        self._has_room = has_room
        self._out: dict[str, int] = dict(held or {})
        self._whole: dict[str, Pushed] = {}
        """By their first lease; none of them is in ``_out``."""
        self._in_whole = 0

    @property
    def unsettled(self) -> int:
        return len(self._out) + self._in_whole

    def wants(self) -> int:
        if not self._has_room():
            return 0
        if self.unsettled >= self.credit:
            self._forget_lapsed(self._clock.now_ms())
        return self.credit - self.unsettled

    def _forget_lapsed(self, now: int) -> None:
        self._out = {lease: until for lease, until in self._out.items() if until > now}
        self._whole = {first: pushed for first, pushed in self._whole.items() if pushed.until > now}
        self._in_whole = sum([len(pushed.leases) for pushed in self._whole.values()])

    def take(self, deliveries: Sequence[Delivery]) -> bool:
        if not self._push(deliveries):
            return False
        if isinstance(deliveries, RunDeliveries):
            [card, length], _ = deliveries.runs[0]
            is_one = len(deliveries.runs) == 1
            span = (card.seq, card.seq + length - 1, card.leases) if is_one else None
            until = min([run.card.due_at for run, _ in deliveries.runs])
            self._whole[deliveries.leases[0]] = Pushed(deliveries.leases, until, span)
            self._in_whole += len(deliveries)
        else:
            self._out.update([(f"{message[0]}-{message[7]}", message[8]) for message, _, _ in deliveries])
        return True

    def span_of(self, leases: Sequence[str]) -> tuple[int, int, int] | None:
        """Of exactly what was pushed at one go, if its numbers follow each other."""
        pushed = self._whole.get(leases[0]) if leases else None
        return pushed.span if pushed is not None and pushed.leases == leases else None

    def settled(self, leases: Sequence[str]) -> bool:
        """True if any of these was ours: there is credit again."""
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
        """These stay out longer, so they count longer."""
        if span_ms is None:
            span_ms = self.policy.visibility_ms if self.policy is not None else 0
        until = self._clock.now_ms() + span_ms
        self._scatter()
        for lease in leases:
            if lease in self._out:
                self._out[lease] = until

    def _scatter(self) -> None:
        """From here on each for itself."""
        for leases, until, _ in self._whole.values():
            self._out.update(dict.fromkeys(leases, until))
        self._whole.clear()
        self._in_whole = 0


class Waiting:
    """One lease request that found nothing yet. ``alarm`` ends its patience; it is cancelled when it is served."""

    serve = None
    is_poll = True
    """Whoever waits so asks again when it is served."""

    def __init__(
        self, queue: str, consumer: str, span_ms: int | None, limit: int, give: Callable[[Sequence[Delivery]], bool]
    ) -> None:
        self.queue = queue
        self.consumer = consumer
        self.span_ms = span_ms
        self.alarm: Any = None
        self._limit = limit
        self._give = give
        self._served = False

    def wants(self) -> int:
        return 0 if self._served else self._limit

    def take(self, deliveries: Sequence[Delivery]) -> bool:
        self._served = True
        return self._give(deliveries)
