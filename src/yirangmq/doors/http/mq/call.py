"""One request to the API on its way: what every route does with it.

Knows: the desk, who may do what. Does not know: what any route does."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from yirangmq.core.access import Grant
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.ports import Transaction
from yirangmq.doors.house import House
from yirangmq.doors.http.exchange import Exchange, Headers, Request, Response, Stream
from yirangmq.doors.http.mq.answers import COMMON, JSON, TEXT, WrongMedia, refusal
from yirangmq.doors.http.mq.coercion import read_json
from yirangmq.format.json_codec import dumps

Answer = TypeVar("Answer")
JSON_BODY = "application/json"
NO_CONTENT = Response(204, None, COMMON)
PLAIN_TEXT: Headers = (*COMMON, TEXT)
READ = (JSON_BODY, "text/plain", "application/x-www-form-urlencoded")


def media_of(said: str | None) -> str | None:
    """Of a content type, what it is without its parameters."""
    return None if said is None else said.partition(";")[0].strip().lower()


def read_document(said: str | None, body: bytes, *kinds: str) -> Any:
    """A body as JSON, if it says to be one of these types."""
    media = media_of(said)
    if media is None and not body:
        raise BadInput("is missing", field="body")
    if media not in kinds:
        raise WrongMedia(f"{media or 'no type'} is not read here; use {kinds[0]}", field="content-type")
    return read_json(body)


class Call:
    """``queue``: that of the namespace in the path. ``grant``: of the client; None: it may do everything."""

    __slots__ = ("exchange", "grant", "house", "namespace", "queue", "request")

    def __init__(
        self,
        house: House,
        request: Request,
        exchange: Exchange,
        namespace: str,
        queue: str,
        grant: Grant | None = None,
    ) -> None:
        self.house = house
        self.request = request
        self.exchange = exchange
        self.namespace = namespace
        self.queue = queue
        self.grant = grant

    # -- what was sent --------------------------------------------------------------------------------------------

    @property
    def is_head(self) -> bool:
        return self.request.method == "HEAD"

    @property
    def media(self) -> str | None:
        """The type of the body without its parameters; None if none is said."""
        return media_of(self.request.headers.get("content-type"))

    def document(self, *kinds: str) -> Any:
        """The body as JSON, if it says to be one of these types."""
        return read_document(self.request.headers.get("content-type"), self.request.body, *kinds)

    def no_document(self) -> None:
        """A body that nobody asked for is looked at and not used."""
        if self.request.body and self.media is not None:
            if self.media not in READ:
                raise WrongMedia(f"{self.media} is not read here", field="content-type")
            if self.media == JSON_BODY:
                read_json(self.request.body)

    # -- the way to the desk --------------------------------------------------------------------------------------

    def submit(self, work: Callable[[Transaction], Answer], reply: Callable[[Answer], Response]) -> None:
        """``work`` joins the next commit; ``reply`` makes the answer when that is on disk."""

        def done(value: Any, error: QueueError | None) -> None:
            self.refuse(error) if error is not None else self.exchange.answer(reply(value))

        self.house.desk.submit(work, done)

    def changed(self, value: Any, error: QueueError | None) -> None:
        self.refuse(error) if error is not None else self.exchange.answer(self.no_content())

    def method(self, name: str, given: Mapping[str, Any]) -> None:
        """A method of ``admin.registry`` that leaves nothing to say."""
        self.house.methods.find(name)(self.house.desk, given, self.changed)

    def refuse(self, error: QueueError) -> None:
        self.exchange.answer(refusal(error))

    # -- the way back ---------------------------------------------------------------------------------------------

    def answer(self, response: Response) -> None:
        self.exchange.answer(response)

    def no_content(self) -> Response:
        return NO_CONTENT

    def text(self, body: bytes | None) -> Response:
        return Response(200, body, PLAIN_TEXT)

    def json(self, document: object) -> Response:
        return Response(200, dumps(document), (*COMMON, JSON))

    def stream(self, media_type: str, stream: Stream) -> Response:
        """A body in pieces, of which whoever asks for the head alone gets none."""
        headers = (*COMMON, ("content-type", media_type))
        return Response(200, None, headers) if self.is_head else Response(200, b"", headers, stream)
