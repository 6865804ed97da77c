"""One HTTP request and its answer, as routes see them.

Knows: the values of HTTP. Does not know: sockets, bytes on the wire, what any route does. The protocol finds a
``Route`` as soon as it has a request's head, takes in the body within the route's limit, and calls ``handle``; the
route calls ``Exchange.answer`` once, now or when its work is on disk. Answers go out in the order of the requests."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from yirangmq.core.errors import QueueError

Headers = tuple[tuple[str, str], ...]


class Request(NamedTuple):
    """``path`` and ``query`` are as sent, percent-encoded; names of headers are in lower case, those given more than
    once joined by ", "."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    peer: str


new_request = cast("Callable[[tuple[Any, ...]], Request]", partial(tuple.__new__, Request))


class Outlet(Protocol):
    """Where a stream writes."""

    def write(self, data: bytes) -> bool:
        """One piece of the body. False: the client reads too slowly, so wait for ``Stream.drained``."""

    def end(self) -> None: ...

    def fail(self) -> None:
        """It cannot be ended well: the connection is cut, so that the client sees that something is missing."""


class Stream(Protocol):
    """A body that comes in pieces: a long listing, or events as they happen."""

    def start(self, outlet: Outlet) -> None: ...

    def drained(self) -> None:
        """The client has read what was written; go on."""

    def gone(self) -> None:
        """The client left before the end."""


class Response(NamedTuple):
    """``stream``, where given, is the body. A body of None (204, 304) has no length and no type."""

    status: int
    body: bytes | None = b""
    headers: Headers = ()
    stream: Stream | None = None


class Exchange(Protocol):
    """The way back to the client of one request."""

    is_gone: bool
    """The client has left: nobody reads the answer."""

    def answer(self, response: Response) -> None:
        """Once. An answer to somebody who left is thrown away."""

    def when_gone(self, action: Callable[[], None]) -> None:
        """Call this if the client leaves before it is answered."""


Handle = Callable[[Request, Exchange], None]


class Route(NamedTuple):
    """What to do with a request. An error that ``handle`` raises, or one of the protocol's own (a body over
    ``max_body``), becomes an answer by ``refuse``, so that each API has its own shape of errors. ``admit``, where
    given, sees the head before the body is read: an error that it raises is the answer, and spares us the body."""

    handle: Handle
    max_body: int
    refuse: Callable[[QueueError], Response]
    admit: Callable[[Request], None] | None = None
    is_lasting: bool = False
    """Whoever asks for the same path by the same method gets this very route, now and later."""
    stem: "Stem | None" = None


class Stem(NamedTuple):
    """Routes by one method to paths that differ in nothing but one value, such as the id of a message: any word of
    plain letters, digits, dots, dashes and underscores between ``before`` and ``after``."""

    before: str
    after: str
    route: Callable[[str], Route]


new_route = cast("Callable[[tuple[Any, ...]], Route]", partial(tuple.__new__, Route))


class Routes(Protocol):
    def find(self, method: str, path: str) -> Route:
        """Always one: where nothing is found, a route that says so (404, or 405 with ``allow``)."""
