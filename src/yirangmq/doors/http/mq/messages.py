"""Routes of single messages: draft, set, get, and those that settle one. Each is one verb of ``broker.orders``."""

from collections.abc import Callable

from yirangmq.broker.orders import Content, Fetched, Orders
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Transaction
from yirangmq.doors.http.exchange import Response
from yirangmq.doors.http.mq.answers import WORDS, priority, with_charset
from yirangmq.doors.http.mq.call import JSON_BODY, Call
from yirangmq.doors.http.mq.coercion import rank_of
from yirangmq.doors.http.mq.spaces import is_hashed
from yirangmq.format.content import check_type, type_of

Verb = Callable[[Transaction, str, str], None]


class Messages:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def draft(self, call: Call) -> None:
        if call.media == "text/plain":
            raise BadInput("must be an object", field="body")
        rank = rank_of(call.document(JSON_BODY))
        call.house.check_room()
        [id] = call.house.ids.new(1)
        namespace = call.namespace if is_hashed(call.queue) else ""
        call.submit(
            lambda transaction: self._orders.draft(transaction, call.queue, id, rank, namespace),
            lambda id: call.text(id.encode()),
        )

    def set(self, call: Call, id: str) -> None:
        call.house.check_room()
        content = Content(check_type(call.request.headers.get("content-type", "")), call.request.body)
        call.change(lambda transaction: self._orders.set(transaction, call.queue, id, content))

    def get(self, call: Call, id: str) -> None:
        verb = self._orders.look if call.is_head else self._orders.fetch
        call.submit(lambda transaction: verb(transaction, call.queue, id), lambda found: _shown(call, found))

    def settle(self, verb: Verb) -> Callable[[Call, str], None]:
        def route(call: Call, id: str) -> None:
            call.no_document()
            call.change(lambda transaction: verb(transaction, call.queue, id))

        return route


def _shown(call: Call, found: Fetched) -> Response:
    message, envelope = found
    about = (
        ("content-type", with_charset(type_of(envelope))),
        ("x-mq-priority", priority(message.rank)),
        ("x-mq-state", WORDS[message.state]),
    )
    return Response(200, envelope.payload, (*call.headers, *about))
