"""One endpoint, and one request to it.

Knows: declarations, requests, the way to the desk and back. Does not know: what any endpoint does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from yirangmq.core.access import ANYWHERE, LOOK, Grant
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.ports import Transaction
from yirangmq.doors.house import House
from yirangmq.doors.http.exchange import Exchange, Headers, Request, Response
from yirangmq.doors.http.v1 import errors
from yirangmq.doors.http.v1.fields import ID, QUEUE, SUBSCRIBER, TOPIC, Field, Schema, parsed, read
from yirangmq.format.json_codec import dumps, loads

Answer = TypeVar("Answer")
SMALL_BODY = 1024 * 1024
"""Bytes of a request that carries no messages."""
LONGEST_QUERY = 16_384
USUAL = {one.name: one for one in (QUEUE, TOPIC, SUBSCRIBER, ID)}
"""Fields of a path by their name, unless an endpoint says otherwise."""
MOST_REMEMBERED = 1000
"""Names of which a filter remembers whether they are shown: a stream of events asks again and again."""


class Ask:
    """One request. It is answered once: by ``reply``, by ``respond``, or with the error that was raised."""

    __slots__ = ("_guard", "endpoint", "exchange", "house", "path", "request")

    path: Mapping[str, str]
    """What stands in the path, by name."""

    def __init__(
        self,
        house: House,
        endpoint: "Endpoint",
        path: Mapping[str, str],
        request: Request,
        exchange: Exchange,
        guard: "Guard | None" = None,
    ) -> None:
        self.house = house
        self.endpoint = endpoint
        self.path = path
        self.request = request
        self.exchange = exchange
        self._guard = guard

    def sees(self) -> Callable[[str], bool]:
        """For endpoints that are filtered: which queues or topics this client may hear of."""
        grant = self._grant()
        if grant is None:
            return lambda name: True
        verb = self.endpoint.verb
        return lru_cache(MOST_REMEMBERED)(lambda name: bool(name) and grant.allows(verb, name))

    def sees_all(self) -> bool:
        """Whether this client may look at the server as a whole."""
        grant = self._grant()
        return grant is None or grant.allows(LOOK, None)

    def listing(self) -> dict[str, Any]:
        """``values`` for a list of queues, which leaves out those that this client may not hear of."""
        return self.values() if self.sees_all() else {**self.values(), "sees": self.sees()}

    def _grant(self) -> Grant | None:
        return None if self._guard is None else self._guard(self.request, self.endpoint.verb, ANYWHERE)

    @property
    def queue(self) -> str:
        return self.path["queue"]

    # -- what was asked -------------------------------------------------------------------------------------------

    def query(self) -> dict[str, Any]:
        return read(self.endpoint.query, parsed(self.endpoint.query, _texts(self.request.query)))

    def document(self) -> object:
        """The body as JSON; nothing at all is an empty object, where nothing is needed."""
        if not self.request.body:
            if self.endpoint.content is not None:
                raise BadInput("is needed", field="body")
            return {}
        try:
            return loads(self.request.body)
        except BadInput as error:
            raise BadInput(str(error), field="body") from None

    def values(self) -> dict[str, Any]:
        """Path, query and body, checked, by the keys of the verb."""
        values: dict[str, Any] = {**self.path, **self.query()}
        if self.endpoint.body:
            values |= read(self.endpoint.body, self.document())
        return values

    # -- the way to the desk --------------------------------------------------------------------------------------

    def submit(self, work: Callable[[Transaction], Answer], reply: Callable[[Answer], None]) -> None:
        """``work`` joins the next commit; ``reply`` is called with its value when that is on disk."""
        self.house.desk.submit(work, self.told(reply))

    def call(self, method: str, given: Mapping[str, Any], reply: Callable[[Any], None]) -> None:
        """A method of ``admin.registry``, by name."""
        self.house.methods.find(method)(self.house.desk, given, self.told(reply))

    def told(self, reply: Callable[[Answer], None]) -> Callable[[Answer, QueueError | None], None]:
        """What to do when work is done elsewhere: ``reply`` with its value, or refuse with its error."""

        def told(value: Answer, error: QueueError | None) -> None:
            if error is not None:
                self.exchange.answer(errors.refuse(error))
                return
            try:
                reply(value)
            except QueueError as problem:
                self.exchange.answer(errors.refuse(problem))
            except Exception as problem:
                self.exchange.answer(errors.refuse(QueueError(f"{type(problem).__name__}: {problem}")))
                raise

        return told

    # -- the way back ---------------------------------------------------------------------------------------------

    def refuse(self, error: QueueError) -> None:
        self.exchange.answer(errors.refuse(error))

    def reply(self, document: object, status: int = 200) -> None:
        self.exchange.answer(Response(status, dumps(document), errors.JSON))

    def respond(self, body: bytes, headers: Headers = errors.JSON, status: int = 200) -> None:
        """A body that is written already."""
        self.exchange.answer(Response(status, body, headers))


def _texts(query: str) -> dict[str, str]:
    """What stands behind the question mark; each name once."""
    if not query:
        return {}
    try:
        if len(query) > LONGEST_QUERY:
            raise ValueError(f"longer than {LONGEST_QUERY} characters")
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=50)
    except ValueError as error:
        raise BadInput(f"cannot be read: {error}", field="query") from None
    texts = dict(pairs)
    if len(texts) != len(pairs):
        raise BadInput("the same name twice", field="query")
    return texts


Act = Callable[[Ask], None]
Guard = Callable[[Request, str, str | None], Grant | None]
"""(request, verb, queue or topic or None) → the client's grant (None: it may do everything), or ``NotAllowed``."""


def let_all(request: Request, verb: str, queue: str | None) -> None:
    """Everybody may do everything."""


@dataclass(frozen=True, slots=True)
class Content:
    """A body that is no plain object of declared fields: by content type, its schema. ``needed``: there must be one."""

    types: Mapping[str, Schema]
    about: str
    needed: bool = True


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One verb of the API. The OpenAPI document is printed from these, and from nothing else.

    ``verb`` is what a client must be allowed to do, by the table of ``core.access``: in the queue or topic of its path,
    or in the server as a whole. Where ``is_filtered``, any queue will do, and the answer leaves out all others.
    ``refusals`` are the codes of ``core.errors`` that it answers with beside those of every endpoint."""

    method: str
    path: str
    about: str
    act: Act
    tag: str
    verb: str
    answer: Schema
    path_kinds: Sequence[Field] = ()
    """The fields of its path that are not the usual ones of their name (``USUAL``)."""
    query: Sequence[Field] = ()
    body: Sequence[Field] = ()
    content: Content | None = None
    headers: Sequence[Field] = ()
    refusals: Sequence[str] = ()
    max_body: int = SMALL_BODY
    media: str = "application/json"
    """The type of the answer."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further answers of the document: ``{"503": …}``, and further media types of the first."""
    name: str = ""
    """In the document, where that of its path is another's."""
    is_filtered: bool = False
    joins: bool = False
    """Requests to it are done together with others (``together``)."""

    def path_fields(self) -> tuple[Field, ...]:
        """The values in its path, in order."""
        known = USUAL | {one.name: one for one in self.path_kinds}
        return tuple(known[part[1:-1]] for part in self.path.split("/") if part.startswith("{"))
