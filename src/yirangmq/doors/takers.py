"""Consumers of the socket door that wait for messages: a subscription with its credit, and a lease with patience."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Clock
from yirangmq.format.delivery import Delivery


def _always() -> bool:
    return True


class Subscription:
    """Messages are pushed while fewer than ``credit`` of them are unsettled. A lease that lapsed counts no longer.

    ``has_room`` says whether the client has read enough of what it was sent before; ``held`` are unsettled leases from
    an earlier connection, and until when."""

    serve = None

    def __init__(
        self,
        queue: str,
        consumer: str,
        span_ms: int | None,
        credit: int,
        clock: Clock,
        push: Callable[[list[Delivery]], bool],
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

    @property
    def unsettled(self) -> int:
        return len(self._out)

    def hold(self, leases: Mapping[str, int]) -> None:
        """Leases of an earlier connection that are not settled yet, and until when: they count."""
        self._out.update(leases)

    def wants(self) -> int:
        if not self._has_room():
            return 0
        if len(self._out) >= self.credit:
            now = self._clock.now_ms()
            self._out = {lease: until for lease, until in self._out.items() if until > now}
        return self.credit - len(self._out)

    def take(self, deliveries: list[Delivery]) -> bool:
        if not self._push(deliveries):
            return False
        self._out.update([(f"{message[0]}-{message[7]}", message[8]) for message, _, _ in deliveries])
        return True

    def settled(self, leases: Sequence[str]) -> bool:
        """True if any of these was ours: there is credit again."""
        before = len(self._out)
        for lease in leases:
            self._out.pop(lease, None)
        return len(self._out) < before

    def extended(self, leases: Sequence[str], span_ms: int | None) -> None:
        """These stay out longer, so they count longer."""
        if span_ms is None:
            span_ms = self.policy.visibility_ms if self.policy is not None else 0
        until = self._clock.now_ms() + span_ms
        for lease in leases:
            if lease in self._out:
                self._out[lease] = until


class Waiting:
    """One lease request that found nothing yet. ``alarm`` ends its patience; it is cancelled when it is served."""

    serve = None
    is_poll = True
    """Whoever waits so asks again when it is served."""

    def __init__(
        self, queue: str, consumer: str, span_ms: int | None, limit: int, give: Callable[[list[Delivery]], bool]
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

    def take(self, deliveries: list[Delivery]) -> bool:
        self._served = True
        return self._give(deliveries)
