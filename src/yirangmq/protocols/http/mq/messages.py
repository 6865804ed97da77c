"""Message routes of the HTTP queue: draft, set, get and settle a message; and waiting orders.

Each message route is one operation of the broker, coalesced with all others of its kind that arrive at the same time.

An order claims one message, or waits until there is one (long poll). Waiting orders are served in order of arrival,
for messages of every protocol. An order whose client disconnects claims nothing. When a queue is cleared, every
order that waits for it gets 404."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from yirangmq.broker.settle import Results
from yirangmq.broker.two_step import Content, Drafts, Fetched, Orders
from yirangmq.broker.waiting_consumers import Serve
from yirangmq.core.errors import BadInput, NotFound, QueueError
from yirangmq.core.events import Event, Steered
from yirangmq.core.message import Message
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State
from yirangmq.core.transitions import ORDERER
from yirangmq.format.envelope import check_type, type_of
from yirangmq.protocols.context import House
from yirangmq.protocols.http.mq.request import (
    COMMON,
    JSON_BODY,
    WORDS,
    Call,
    is_hashed,
    media_of,
    priority,
    rank_of,
    read_document,
    with_charset,
)
from yirangmq.protocols.http.responses import payload_headers
from yirangmq.protocols.http.server import Together
from yirangmq.protocols.http.types import Headers, Response

# -- routes of single messages -----------------------------------------------------------------------------------------

SMALL_DRAFT = 100
"""Bytes of a body and its type up to which the decoded priority is cached: most drafts contain only a priority."""
Settle = Callable[[Transaction, str, Sequence[str]], Results]


class Messages:
    """Routes about a single message. Loop thread only."""

    def __init__(self, drafts: Drafts, orders: Orders, together: Together) -> None:
        self._drafts = drafts
        self._together = together
        self._set = drafts.set
        self._fetch = orders.fetch
        self._look = orders.look

    def draft(self, call: Call) -> None:
        said, body = call.request.headers.get("content-type"), call.request.body
        rank = _known_rank(said, body) if len(body) + len(said or "") <= SMALL_DRAFT else _rank(said, body)
        call.house.check_room()
        [id] = call.house.ids.new(1)
        namespace = call.namespace if is_hashed(call.queue) else ""
        self._together.ask(call, (id, rank, namespace), self._draft, _drafted)

    def _draft(self, transaction: Transaction, queue: str, drafts: Sequence[tuple[str, int, str]]) -> list[str]:
        namespace = drafts[0][2]
        self._drafts.draft(transaction, queue, [(id, rank) for id, rank, _ in drafts], namespace)
        return [id for id, _, _ in drafts]

    def set(self, call: Call, id: str) -> None:
        call.house.check_room()
        content = Content(check_type(call.request.headers.get("content-type", "")), call.request.body)
        self._together.ask(call, (id, content), self._set, _done)

    def get(self, call: Call, id: str) -> None:
        self._together.ask(call, id, self._look if call.is_head else self._fetch, _show)

    def settle(self, verb: Settle) -> Callable[[Call, str], None]:
        def route(call: Call, id: str) -> None:
            call.no_document()
            self._together.ask(call, id, verb, _done)

        return route


def _rank(said: str | None, body: bytes) -> int:
    """Return the rank that the body of a draft requests."""
    if media_of(said) == "text/plain":
        raise BadInput("must be an object", field="body")
    return rank_of(read_document(said, body, JSON_BODY))


_known_rank = lru_cache(maxsize=1024)(_rank)


def _drafted(call: Call, id: str) -> None:
    call.answer(call.text(id.encode()))


def _done(call: Call, answer: None) -> None:
    call.answer(call.no_content())


def _show(call: Call, found: Fetched) -> None:
    message, envelope = found
    about = _about(type_of(envelope), message.rank, message.state)
    call.answer(Response(200, envelope.payload, about))


@lru_cache(maxsize=256)
def _about(media_type: str, rank: int, state: State) -> Headers:
    return (
        *COMMON,
        *payload_headers(with_charset(media_type)),
        ("x-mq-priority", priority(rank)),
        ("x-mq-state", WORDS[state]),
    )


# -- waiting orders ----------------------------------------------------------------------------------------------------

ENDED_BY = frozenset({"clear", "delete"})
MOST_QUEUES = 10_000


class Order:
    """Waiting order: a ``broker.waiting_consumers.Taker`` with a demand of one message."""

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
        """Refuse the order: its queue was cleared or deleted."""
        self.leave()
        self._call.refuse(NotFound("the queue was cleared"))


class Ordering:
    """Orders: the route that claims a message, and the long polls that wait. One instance per HTTP server."""

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
        """Return the function that serves orders of this queue. It is the same object for all of them, so that the
        broker serves them in one batch."""
        found = self._serves.get(queue)
        if found is None:
            if len(self._serves) >= MOST_QUEUES:
                self._serves.clear()  # waiting orders keep their reference
            found = self._serves[queue] = partial(self._claim, queue=queue)
        return found

    def _claim(self, transaction: Transaction, count: int, queue: str) -> list[Message]:
        return self._orders.claim(transaction, queue, count)

    def put_back(self, claimed: Message) -> None:
        """Return a claimed message to the queue, because the client of the order has disconnected."""
        self._house.desk.submit(lambda transaction: self._orders.unclaim(transaction, claimed), _ignore)

    def _hear(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Steered) and event.what in ENDED_BY:
                for taker in self._house.desk.waiting(event.queue):
                    if isinstance(taker, Order):
                        taker.end()


def _ignore(value: Any, error: QueueError | None) -> None:
    """Ignore the outcome: if the store refused, the claim expires."""
