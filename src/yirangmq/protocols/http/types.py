"""HTTP types: checked heads, request and response, routes and streams, and the limits of one client.

A head is checked where ambiguity could be exploited: version, method, target, framing of the body, ``Expect``. What
fails raises ``Refused``: the protocol answers it, and the connection ends.

The protocol finds a ``Route`` as soon as it has a request's head, reads the body within the route's limit, and calls
``handle``. The route calls ``Exchange.answer`` once, at once or when its work is on disk. Answers go out in the order
of the requests.

Every limit can be set; here are the defaults, each with its unit and its reason."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from yirangmq.core.errors import QueueError

# -- heads -------------------------------------------------------------------------------------------------------------

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SINGLE = frozenset({"host", "content-length", "content-type", "authorization", "expect", "transfer-encoding"})
"""Said twice, nobody can know which one another server on the way has believed."""
ABSOLUTE = re.compile(r"https?://([^/?#]+)", re.IGNORECASE)


class Refused(Exception):
    """A request that is answered by the protocol itself, after which the connection is closed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Head(NamedTuple):
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    length: int | None
    """Of the body; None: it comes in chunks."""
    is_old: bool
    """HTTP/1.0: knows no chunks."""
    stays: bool
    """The connection is for further requests."""
    expects: bool
    """The client sends the body when it is told to go on."""


# The same as Head(…) without a Python frame for each (as in ``core.message``).
new_head = cast("Callable[[tuple[Any, ...]], Head]", partial(tuple.__new__, Head))


def check_head(method: str, target: str, version: str, headers: dict[str, str], stays: bool) -> Head:
    """The head of a request that can be served, or ``Refused``."""
    if version not in ("1.1", "1.0"):
        raise Refused(505, f"HTTP/{version} is not spoken here; use HTTP/1.1")
    if method not in METHODS:
        raise Refused(501, f"the method {method} is not known here")
    is_old = version == "1.0"
    if not is_old and "host" not in headers:
        raise Refused(400, "the header Host is missing")
    path, query = split_target(method, target)
    absolute = None if target[:1] == "/" else ABSOLUTE.match(target)
    if absolute is not None:
        headers["host"] = absolute[1]  # whatever the header says: RFC 9112, 3.2.2
    length = _length(headers, is_old)
    expects = False
    if "expect" in headers:
        if headers["expect"].lower() != "100-continue":
            raise Refused(417, "the only thing to expect here is 100-continue")
        expects = not is_old and length != 0
    return Head(method, path, query, headers, length, is_old, stays, expects)


def split_target(method: str, target: str) -> tuple[str, str]:
    """Path and query, as they were sent; of an absolute target too, and ``*`` for the whole server. (The parser has
    seen to it that they are visible ASCII.)"""
    if "#" in target:
        raise Refused(400, "a fragment stays with the client: the request target must not hold a #")
    if target[:1] != "/":
        if target == "*" and method == "OPTIONS":
            return "*", ""
        found = ABSOLUTE.match(target)
        if found is None:
            raise Refused(400, "the request target must begin with /")
        target = target[found.end() :]
        target = target if target.startswith("/") else f"/{target}"
    path, _, query = target.partition("?")
    return path, query


def _length(headers: Mapping[str, str], is_old: bool) -> int | None:
    """One way to tell where the body ends, and no doubt about it."""
    coding = headers.get("transfer-encoding")
    told = headers.get("content-length")
    if coding is not None:
        if told is not None or is_old:
            raise Refused(400, "Transfer-Encoding beside Content-Length or in HTTP/1.0: where does the body end?")
        if coding.lower() != "chunked":
            raise Refused(501, "the only transfer coding known here is chunked")
        return None
    if told is None:
        return 0
    if not (told.isascii() and told.isdecimal() and len(told) <= 18):
        raise Refused(400, "Content-Length must be a number of bytes")
    return int(told)


# -- requests, answers and routes --------------------------------------------------------------------------------------

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


# -- limits ------------------------------------------------------------------------------------------------------------

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    connections: int = 10_000
    """More are answered 503."""
    pipelined: int = 64
    """Requests of one connection at work at the same time; past them nothing more is read from it."""

    target_bytes: int = 8 * KIB
    """Of the request line's path and query. nginx, Apache and Node: 8 KiB too."""
    header_bytes: int = 32 * KIB
    """Of all names and values of one head. nginx: 32 KiB; Node: 16 KiB; Apache: 8 KiB each."""
    header_count: int = 100
    """As Apache has it."""

    idle_seconds: float = 72
    """Between two requests."""
    head_seconds: float = 30
    """For a whole head, from its first byte."""
    body_seconds: float = 30
    """A body must end within such a span, or have brought ``body_rate`` bytes for each second of it; then another."""
    body_rate: int = 500
    """As Apache's mod_reqtimeout has it."""
    write_seconds: float = 30
    """A client that waits for bytes and takes none for so long is closed."""
    linger_seconds: float = 2
    """After a last answer, what the client still sends is read and thrown away for so long, or the system would throw
    the answer away with it."""
    ping_seconds: float = 15
    """Silence of a stream of events after which a comment is sent, so that a dead peer is noticed."""

    write_buffer: int = MIB
    """Bytes waiting for a client past which nothing more is read from it and its streams wait."""
    client_memory: int = 64 * MIB
    """Bytes waiting for a client that are never exceeded: it is closed before."""
    request_memory: int = MIB
    """Bytes of requests of one connection at work, past which no further one is taken from it."""
    total_memory: int = 512 * MIB
    """Bytes of requests of all connections; past them a body is answered 503."""

    @property
    def longest_quiet(self) -> int:
        """Bytes that may be parsed without anything coming of it."""
        return self.target_bytes + self.header_bytes
