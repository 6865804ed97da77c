"""A counter at which a test orders: each verb in a commit of its own."""

from collections.abc import Callable
from typing import TypeVar

from yirangmq.broker.orders import Content, Orders
from yirangmq.broker.queues import Queues
from yirangmq.broker.verbs import Verbs
from yirangmq.core.inherited import Defaults
from yirangmq.core.message import RANK_LAST, Message
from yirangmq.core.ports import Store, Transaction
from yirangmq.testing import CountingIds, ManualClock

Answer = TypeVar("Answer")


class Counter:
    def __init__(self, store: Store, clock: ManualClock, defaults: Defaults) -> None:
        self.clock = clock
        self.store = store
        self.verbs = Verbs(clock, CountingIds(), defaults)
        self.queues = Queues(store, clock, CountingIds("q"), "tester", verbs=self.verbs)
        self.orders = Orders(self.verbs, clock)
        self._made = 0

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        return self.queues.run(work)

    def pass_time(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    def draft(self, queue: str = "mail", priority: int | None = None) -> str:
        self._made += 1
        rank = RANK_LAST if priority is None else priority
        return self.run(lambda work: self.orders.draft(work, queue, f"d-{self._made}", rank))

    def set(self, id: str, body: bytes = b"", type: str = "", queue: str = "mail") -> None:
        self.run(lambda work: self.orders.set(work, queue, id, Content(type, body)))

    def put(self, body: bytes = b"", priority: int | None = None, queue: str = "mail") -> str:
        """Draft and set."""
        id = self.draft(queue, priority)
        self.set(id, body, queue=queue)
        return id

    def order(self, queue: str = "mail") -> str | None:
        claimed = self.claim(queue)
        return claimed.id if claimed is not None else None

    def claim(self, queue: str = "mail") -> Message | None:
        claimed = self.run(lambda work: self.orders.claim(work, queue))
        return claimed[0] if claimed else None

    def get(self, id: str, queue: str = "mail") -> bytes:
        return self.run(lambda work: self.orders.fetch(work, queue, id)).envelope.payload

    def take(self, queue: str = "mail") -> str:
        """Order and get."""
        id = self.order(queue)
        assert id is not None
        self.get(id, queue)
        return id

    def complete(self, id: str, queue: str = "mail") -> None:
        self.run(lambda work: self.orders.complete(work, queue, id))

    def fail(self, id: str, queue: str = "mail") -> None:
        self.run(lambda work: self.orders.fail(work, queue, id))

    def renew(self, id: str, queue: str = "mail") -> None:
        self.run(lambda work: self.orders.renew(work, queue, id))

    def abandon(self, id: str, queue: str = "mail") -> None:
        self.run(lambda work: self.orders.abandon(work, queue, id))

    def stats(self, queue: str = "mail") -> dict[str, int]:
        """Those that are not 0."""
        counts = self.run(lambda work: self.orders.stats(work, queue))
        states = ("draft", "ready", "delayed", "claimed", "leased", "dead", "parked", "acked")
        return {name: value for name in states if (value := getattr(counts, name))}

    def ordered(self, queue: str = "mail") -> list[str]:
        """Everything that can be ordered, in order."""
        found = []
        while (id := self.order(queue)) is not None:
            found.append(id)
        return found
