"""Routes of single messages: draft, set, get, and those that settle one. Each is one verb of the broker, done together
with all others of its kind that come at the same time."""

from collections.abc import Callable, Sequence

from yirangmq.broker.drafts import Content, Drafts
from yirangmq.broker.orders import Fetched, Orders
from yirangmq.broker.verbs import Results
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Transaction
from yirangmq.doors.http.exchange import Response
from yirangmq.doors.http.mq.answers import WORDS, priority, with_charset
from yirangmq.doors.http.mq.call import JSON_BODY, Call
from yirangmq.doors.http.mq.coercion import rank_of
from yirangmq.doors.http.mq.spaces import is_hashed
from yirangmq.doors.http.together import Together
from yirangmq.format.content import check_type, type_of

Settle = Callable[[Transaction, str, Sequence[str]], Results]


class Messages:
    def __init__(self, drafts: Drafts, orders: Orders, together: Together) -> None:
        self._drafts = drafts
        self._together = together
        self._set = drafts.set
        self._fetch = orders.fetch
        self._look = orders.look

    def draft(self, call: Call) -> None:
        if call.media == "text/plain":
            raise BadInput("must be an object", field="body")
        rank = rank_of(call.document(JSON_BODY))
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


def _drafted(call: Call, id: str) -> None:
    call.answer(call.text(id.encode()))


def _done(call: Call, answer: None) -> None:
    call.answer(call.no_content())


def _show(call: Call, found: Fetched) -> None:
    message, envelope = found
    about = (
        ("content-type", with_charset(type_of(envelope))),
        ("x-mq-priority", priority(message.rank)),
        ("x-mq-state", WORDS[message.state]),
    )
    call.answer(Response(200, envelope.payload, (*call.headers, *about)))
