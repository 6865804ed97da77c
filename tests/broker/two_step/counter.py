"""A counter at which a test orders: each verb in a commit of its own."""

from collections.abc import Callable
from typing import TypeVar

from yirangmq.broker.context import TransactionContext
from yirangmq.broker.queues import Queues
from yirangmq.broker.settle import Results
from yirangmq.broker.two_step import ClaimOperations, Drafts, MessageContent
from yirangmq.core.errors import QueueError
from yirangmq.core.message import RANK_LAST, Message
from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Store, Transaction
from yirangmq.testing import CountingIds, ManualClock

Answer = TypeVar("Answer")


class Counter:
    def __init__(self, store: Store, clock: ManualClock, defaults: Defaults) -> None:
        self.clock = clock
        self.store = store
        self.context = TransactionContext(clock, CountingIds(), defaults)
        self.queues = Queues(store, clock, CountingIds("q"), "tester", context=self.context)
        self.drafts = Drafts(self.context)
        self.orders = ClaimOperations(self.context)
        self._made = 0

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        return self.queues.run(work)

    def pass_time(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    def draft(self, queue: str = "mail", priority: int | None = None) -> str:
        self._made += 1
        id, rank = f"d-{self._made}", RANK_LAST if priority is None else priority
        self.run(lambda work: self.drafts.draft(work, queue, [(id, rank)]))
        return id

    def set(self, id: str, body: bytes = b"", type: str = "", queue: str = "mail") -> None:
        [error] = self.set_many([(id, body)], type, queue)
        if error is not None:
            raise error

    def set_many(self, pairs: list[tuple[str, bytes]], type: str = "", queue: str = "mail") -> Results:
        contents = [(id, MessageContent(type, body)) for id, body in pairs]
        return self.run(lambda work: self.drafts.set(work, queue, contents))

    def put(self, body: bytes = b"", priority: int | None = None, queue: str = "mail") -> str:
        """Draft and set."""
        id = self.draft(queue, priority)
        self.set(id, body, queue=queue)
        return id

    def order(self, queue: str = "mail") -> str | None:
        claimed = self.claim(queue)
        return claimed.id if claimed is not None else None

    def claim(self, queue: str = "mail") -> Message | None:
        claimed = self.run(lambda work: self.orders.claim(work, queue, 1))
        return claimed[0] if claimed else None

    def get(self, id: str, queue: str = "mail") -> bytes:
        [found] = self.run(lambda work: self.orders.fetch(work, queue, [id]))
        if isinstance(found, QueueError):
            raise found
        return found.envelope.payload

    def take(self, queue: str = "mail") -> str:
        """Order and get."""
        id = self.order(queue)
        assert id is not None
        self.get(id, queue)
        return id

    def complete(self, id: str, queue: str = "mail") -> None:
        self._settle(self.orders.complete, id, queue)

    def fail(self, id: str, queue: str = "mail") -> None:
        self._settle(self.orders.fail, id, queue)

    def renew(self, id: str, queue: str = "mail") -> None:
        self._settle(self.orders.renew, id, queue)

    def abandon(self, id: str, queue: str = "mail") -> None:
        self._settle(self.orders.abandon, id, queue)

    def _settle(self, verb: Callable[[Transaction, str, list[str]], Results], id: str, queue: str) -> None:
        [error] = self.run(lambda work: verb(work, queue, [id]))
        if error is not None:
            raise error

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
