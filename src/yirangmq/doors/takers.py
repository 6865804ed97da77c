"""Consumers of the socket door that wait for messages: a subscription with its credit, and a lease with patience."""

from collections.abc import Callable

from yirangmq.core.policy import QueuePolicy
from yirangmq.core.ports import Clock
from yirangmq.format.delivery import Delivery


class Subscription:
    """Messages are pushed while fewer than ``credit`` of them are unsettled. A lease that lapsed counts no longer."""

    def __init__(
        self,
        queue: str,
        consumer: str,
        span_ms: int | None,
        credit: int,
        clock: Clock,
        push: Callable[[list[Delivery]], bool],
    ) -> None:
        self.queue = queue
        self.consumer = consumer
        self.span_ms = span_ms
        self.policy: QueuePolicy | None = None
        self._credit = credit
        self._clock = clock
        self._push = push
        self._out: dict[str, int] = {}

    def wants(self) -> int:
        if len(self._out) >= self._credit:
            now = self._clock.now_ms()
            self._out = {lease: until for lease, until in self._out.items() if until > now}
        return self._credit - len(self._out)

    def take(self, deliveries: list[Delivery]) -> bool:
        if not self._push(deliveries):
            return False
        for message, _, _ in deliveries:
            self._out[f"{message[0]}-{message[7]}"] = message[8]
        return True

    def settled(self, leases: list[str]) -> bool:
        """True if any of these was ours: there is credit again."""
        before = len(self._out)
        for lease in leases:
            self._out.pop(lease, None)
        return len(self._out) < before


class Waiting:
    """One lease request that found nothing yet."""

    def __init__(
        self, queue: str, consumer: str, span_ms: int | None, limit: int, give: Callable[[list[Delivery]], bool]
    ) -> None:
        self.queue = queue
        self.consumer = consumer
        self.span_ms = span_ms
        self._limit = limit
        self._give = give
        self._served = False

    def wants(self) -> int:
        return 0 if self._served else self._limit

    def take(self, deliveries: list[Delivery]) -> bool:
        self._served = True
        return self._give(deliveries)
