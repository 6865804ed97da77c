"""Message routes of the HTTP queue: draft, set, get and settle a message; and waiting orders.

Each message route is one operation of the broker, coalesced with all others of its kind that arrive at the same time.

An order claims one message, or waits until there is one (long poll). Waiting orders are served in order of arrival,
for messages of every protocol. An order whose client disconnects claims nothing. When a queue is cleared, every
order that waits for it gets 404."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from yirangmq.broker.settle import Results
from yirangmq.broker.two_step import ClaimOperations, Drafts, Fetched, MessageContent
from yirangmq.broker.waiting_consumers import Serve
from yirangmq.core.errors import BadInput, NotFound, QueueError
from yirangmq.core.events import Event, QueueChanged
from yirangmq.core.message import Message
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State
from yirangmq.core.transitions import MQ_CONSUMER
from yirangmq.format.envelope import check_type, type_of
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.http.mq.request import (
    COMMON,
    JSON_BODY,
    STATE_NAMES,
    MqCall,
    is_hashed,
    media_of,
    priority,
    rank_of,
    read_document,
    with_charset,
)
from yirangmq.protocols.http.responses import payload_headers
from yirangmq.protocols.http.server import RequestCoalescer
from yirangmq.protocols.http.types import Headers, Response

# -- routes of single messages -----------------------------------------------------------------------------------------

SMALL_DRAFT = 100
"""Bytes of a body and its type up to which the decoded priority is cached: most drafts contain only a priority."""
SettleOperation = Callable[[Transaction, str, Sequence[str]], Results]


class MessageRoutes:
    """Routes about a single message. Loop thread only."""

    def __init__(self, drafts: Drafts, orders: ClaimOperations, coalescer: RequestCoalescer) -> None:
        self._drafts = drafts
        self._coalescer = coalescer
        self._set = drafts.set
        self._fetch = orders.fetch
        self._peek = orders.inspect

    def draft(self, call: MqCall) -> None:
        content_type, body = call.request.headers.get("content-type"), call.request.body
        rank = (
            _cached_rank(content_type, body)
            if len(body) + len(content_type or "") <= SMALL_DRAFT
            else _rank(content_type, body)
        )
        call.context.check_capacity()
        [id] = call.context.ids.new(1)
        namespace = call.namespace if is_hashed(call.queue) else ""
        self._coalescer.call(call, call.queue, (id, rank, namespace), self._draft, _drafted)

    def _draft(self, transaction: Transaction, queue: str, drafts: Sequence[tuple[str, int, str]]) -> list[str]:
        namespace = drafts[0][2]
        self._drafts.draft(transaction, queue, [(id, rank) for id, rank, _ in drafts], namespace)
        return [id for id, _, _ in drafts]

    def set(self, call: MqCall, id: str) -> None:
        call.context.check_capacity()
        content = MessageContent(check_type(call.request.headers.get("content-type", "")), call.request.body)
        self._coalescer.call(call, call.queue, (id, content), self._set, _done)

    def get(self, call: MqCall, id: str) -> None:
        self._coalescer.call(call, call.queue, id, self._peek if call.is_head else self._fetch, _show)

    def settle(self, verb: SettleOperation) -> Callable[[MqCall, str], None]:
        def route(call: MqCall, id: str) -> None:
            call.ignore_document()
            self._coalescer.call(call, call.queue, id, verb, _done)

        return route


def _rank(content_type: str | None, body: bytes) -> int:
    """Return the rank that the body of a draft requests."""
    if media_of(content_type) == "text/plain":
        raise BadInput("must be an object", field="body")
    return rank_of(read_document(content_type, body, JSON_BODY))


_cached_rank = lru_cache(maxsize=1024)(_rank)


def _drafted(call: MqCall, id: str) -> None:
    call.answer(call.text(id.encode()))


def _done(call: MqCall, answer: None) -> None:
    call.answer(call.no_content())


def _show(call: MqCall, found: Fetched) -> None:
    message, envelope = found
    about = _about(type_of(envelope), message.rank, message.state)
    call.answer(Response(200, envelope.payload, about))


@lru_cache(maxsize=256)
def _about(media_type: str, rank: int, state: State) -> Headers:
    return (
        *COMMON,
        *payload_headers(with_charset(media_type)),
        ("x-mq-priority", priority(rank)),
        ("x-mq-state", STATE_NAMES[state]),
    )


# -- waiting orders ----------------------------------------------------------------------------------------------------

QUEUE_CLEARING_ACTIONS = frozenset({"clear", "delete"})
MAX_CACHED_QUEUES = 10_000


class WaitingOrder:
    """Waiting order: a ``broker.waiting_consumers.Taker`` with a demand of one message."""

    __slots__ = ("_call", "_ordering", "_was_served", "queue", "serve")

    consumer: str = MQ_CONSUMER
    span_ms: int | None = None

    def __init__(self, call: MqCall, ordering: "OrderRoutes") -> None:
        self.queue = call.queue
        self.serve: Serve | None = ordering.serve(call.queue)
        self._call = call
        self._ordering = ordering
        self._was_served = False

    def start(self) -> None:
        self._call.context.committer.add_waiter(self)
        self._call.exchange.on_disconnect(self.remove_waiter)

    def wants(self) -> int:
        return 0 if self._was_served else 1

    def take(self, deliveries: Sequence[Any]) -> bool:
        self.remove_waiter()
        [claimed] = deliveries
        if self._call.exchange.is_disconnected:
            self._ordering.unclaim(claimed)
        else:
            self._call.answer(self._call.text(claimed.id.encode()))
        return True

    def remove_waiter(self) -> None:
        self._was_served = True
        self._call.context.committer.remove_waiter(self)

    def refuse(self) -> None:
        """Refuse the order: its queue was cleared or deleted."""
        self.remove_waiter()
        self._call.refuse(NotFound("the queue was cleared"))


class OrderRoutes:
    """Orders: the route that claims a message, and the long polls that wait. One instance per HTTP server."""

    def __init__(self, context: ServerContext, orders: ClaimOperations) -> None:
        self._context = context
        self._orders = orders
        self._serves: dict[str, Serve] = {}
        context.committer.operations.event_buffer.add_listener(self._on_events, [QueueChanged])

    def order(self, call: MqCall) -> None:
        if call.is_head:
            call.answer(call.text(None))
        else:
            WaitingOrder(call, self).start()

    def serve(self, queue: str) -> Serve:
        """Return the function that serves orders of this queue. It is the same object for all of them, so that the
        broker serves them in one batch."""
        found = self._serves.get(queue)
        if found is None:
            if len(self._serves) >= MAX_CACHED_QUEUES:
                self._serves.clear()  # waiting orders keep their reference
            found = self._serves[queue] = partial(self._claim, queue=queue)
        return found

    def _claim(self, transaction: Transaction, count: int, queue: str) -> list[Message]:
        return self._orders.claim(transaction, queue, count)

    def unclaim(self, claimed: Message) -> None:
        """Return a claimed message to the queue, because the client of the order has disconnected."""
        self._context.committer.submit(lambda transaction: self._orders.unclaim(transaction, claimed), _ignore)

    def _on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, QueueChanged) and event.what in QUEUE_CLEARING_ACTIONS:
                for waiter in self._context.committer.waiting(event.queue):
                    if isinstance(waiter, WaitingOrder):
                        waiter.refuse()


def _ignore(value: Any, error: QueueError | None) -> None:
    """Ignore the outcome: if the store refused, the claim expires."""
