"""Orders that wait: served in order of arrival, by whatever door their message comes. Whoever leaves takes nothing, and
all who wait for a queue that is cleared are told so."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from yirangmq.broker.two_step import Orders
from yirangmq.broker.waiting_consumers import Serve
from yirangmq.core.errors import NotFound, QueueError
from yirangmq.core.events import Event, Steered
from yirangmq.core.message import Message
from yirangmq.core.ports import Transaction
from yirangmq.core.transitions import ORDERER
from yirangmq.doors.house import House
from yirangmq.doors.http.mq.call import Call

ENDED_BY = frozenset({"clear", "delete"})
MOST_QUEUES = 10_000


class Order:
    """A ``broker.waiting_consumers.Taker`` that claims one message and has then had enough."""

    __slots__ = ("_call", "_ordering", "_was_served", "queue", "serve")

    consumer: str = ORDERER
    span_ms: int | None = None

    def __init__(self, call: Call, ordering: "Ordering") -> None:
        self.queue = call.queue
        self.serve: Serve | None = ordering.serve(call.queue)
        self._call = call
        self._ordering = ordering
        self._was_served = False

    def begin(self) -> None:
        self._call.house.desk.wait(self)
        self._call.exchange.when_gone(self.leave)

    def wants(self) -> int:
        return 0 if self._was_served else 1

    def take(self, deliveries: Sequence[Any]) -> bool:
        self.leave()
        [claimed] = deliveries
        if self._call.exchange.is_gone:
            self._ordering.put_back(claimed)
        else:
            self._call.answer(self._call.text(claimed.id.encode()))
        return True

    def leave(self) -> None:
        self._was_served = True
        self._call.house.desk.leave(self)

    def end(self) -> None:
        """There is nothing to wait for any more."""
        self.leave()
        self._call.refuse(NotFound("the queue was cleared"))


class Ordering:
    """To be made once for each door."""

    def __init__(self, house: House, orders: Orders) -> None:
        self._house = house
        self._orders = orders
        self._serves: dict[str, Serve] = {}
        house.desk.verbs.happened.listen(self._hear, [Steered])

    def order(self, call: Call) -> None:
        if call.is_head:
            call.answer(call.text(None))
        else:
            Order(call, self).begin()

    def serve(self, queue: str) -> Serve:
        """How orders of this queue are served; the same for all that wait, so that they are served together."""
        found = self._serves.get(queue)
        if found is None:
            if len(self._serves) >= MOST_QUEUES:
                self._serves.clear()  # those who wait keep theirs
            found = self._serves[queue] = partial(self._claim, queue=queue)
        return found

    def _claim(self, transaction: Transaction, count: int, queue: str) -> list[Message]:
        return self._orders.claim(transaction, queue, count)

    def put_back(self, claimed: Message) -> None:
        """Its client had left."""
        self._house.desk.submit(lambda transaction: self._orders.unclaim(transaction, claimed), _ignore)

    def _hear(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Steered) and event.what in ENDED_BY:
                for taker in self._house.desk.waiting(event.queue):
                    if isinstance(taker, Order):
                        taker.end()


def _ignore(value: Any, error: QueueError | None) -> None:
    """Where the store refused, the claim lapses by itself."""
