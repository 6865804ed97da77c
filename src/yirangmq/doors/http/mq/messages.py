"""Routes of single messages: draft, set, get, and those that settle one. Each is one verb of the broker, done together
with all others of its kind that come at the same time."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from yirangmq.broker.settle import Results
from yirangmq.broker.two_step import Content, Drafts, Fetched, Orders
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Transaction
from yirangmq.core.states import State
from yirangmq.doors.http.exchange import Headers, Response
from yirangmq.doors.http.mq.answers import COMMON, WORDS, priority, with_charset
from yirangmq.doors.http.mq.call import JSON_BODY, Call, media_of, read_document
from yirangmq.doors.http.mq.coercion import rank_of
from yirangmq.doors.http.mq.spaces import is_hashed
from yirangmq.doors.http.payloads import payload_headers
from yirangmq.doors.http.together import Together
from yirangmq.format.envelope import check_type, type_of

SMALL_DRAFT = 100
"""Bytes of a body and its type that are kept with what they mean: most say a priority and nothing else."""
Settle = Callable[[Transaction, str, Sequence[str]], Results]


class Messages:
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
    """What the body of a draft asks for."""
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
    about = _about(type_of(envelope), message[4], message[3])
    call.answer(Response(200, envelope[8], about))


@lru_cache(maxsize=256)
def _about(media_type: str, rank: int, state: State) -> Headers:
    return (
        *COMMON,
        *payload_headers(with_charset(media_type)),
        ("x-mq-priority", priority(rank)),
        ("x-mq-state", WORDS[state]),
    )
