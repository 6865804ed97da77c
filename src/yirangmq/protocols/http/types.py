"""HTTP types: checked heads, request and response, routes and streams.

The parts of a head whose ambiguity could be exploited are checked: version, method, target, framing of the body,
``Expect``. A failed check raises ``RequestRefused``: the protocol answers it, and the connection closes.

The protocol finds a ``HttpRoute`` as soon as it has a request's head, reads the body within the route's limit, and
calls ``handle``. The route calls ``Exchange.answer`` exactly once, immediately or when its work is on disk. Answers are
sent in the order of the requests."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from yirangmq.core.errors import QueueError

# -- heads -------------------------------------------------------------------------------------------------------------

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SINGLE = frozenset({"host", "content-length", "content-type", "authorization", "expect", "transfer-encoding"})
"""Headers that may occur only once: of two values, another server in the path may have used the other one."""
ABSOLUTE = re.compile(r"https?://([^/?#]+)", re.IGNORECASE)


class RequestRefused(Exception):
    """Refusal of a request by the protocol, before a route is involved. The connection is closed after the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class RequestHead(NamedTuple):
    """Checked head of a request."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    length: int | None
    """Length of the body in bytes; None for a chunked body."""
    is_old: bool
    """True for HTTP/1.0, which has no chunks."""
    keep_alive: bool
    """True for keep-alive: the connection stays open for further requests."""
    expects_continue: bool
    """True if the client waits for ``100 Continue`` before it sends the body."""


# Like Head(…), but without a Python frame per call (as in ``core.message``).
new_head = cast("Callable[[tuple[Any, ...]], RequestHead]", partial(tuple.__new__, RequestHead))


def check_head(method: str, target: str, version: str, headers: dict[str, str], keep_alive: bool) -> RequestHead:
    """Check and build the head of a request; raise ``RequestRefused`` if it cannot be served."""
    if version not in ("1.1", "1.0"):
        raise RequestRefused(505, f"HTTP/{version} is not supported; use HTTP/1.1")
    if method not in METHODS:
        raise RequestRefused(501, f"the method {method} is not known here")
    is_old = version == "1.0"
    if not is_old and "host" not in headers:
        raise RequestRefused(400, "the header Host is missing")
    path, query = split_target(method, target)
    absolute = None if target[:1] == "/" else ABSOLUTE.match(target)
    if absolute is not None:
        headers["host"] = absolute[1]  # overrides the header: RFC 9112, 3.2.2
    length = _length(headers, is_old)
    expects_continue = False
    if "expect" in headers:
        if headers["expect"].lower() != "100-continue":
            raise RequestRefused(417, "the only supported expectation is 100-continue")
        expects_continue = not is_old and length != 0
    return RequestHead(method, path, query, headers, length, is_old, keep_alive, expects_continue)


def split_target(method: str, target: str) -> tuple[str, str]:
    """Return path and query as sent; also for an absolute target, and for ``*``, which means the server.

    The parser has checked that the target is visible ASCII."""
    if "#" in target:
        raise RequestRefused(400, "the request target must not contain a #")
    if target[:1] != "/":
        if target == "*" and method == "OPTIONS":
            return "*", ""
        found = ABSOLUTE.match(target)
        if found is None:
            raise RequestRefused(400, "the request target must begin with /")
        target = target[found.end() :]
        target = target if target.startswith("/") else f"/{target}"
    path, _, query = target.partition("?")
    return path, query


def _length(headers: Mapping[str, str], is_old: bool) -> int | None:
    """Return the length of the body in bytes, or None for a chunked body.

    Raise ``RequestRefused`` unless exactly one header determines the end of the body (request smuggling)."""
    coding = headers.get("transfer-encoding")
    content_length = headers.get("content-length")
    if coding is not None:
        if content_length is not None or is_old:
            raise RequestRefused(
                400, "Transfer-Encoding together with Content-Length or in HTTP/1.0: the end of the body is ambiguous"
            )
        if coding.lower() != "chunked":
            raise RequestRefused(501, "the only supported transfer coding is chunked")
        return None
    if content_length is None:
        return 0
    if not (content_length.isascii() and content_length.isdecimal() and len(content_length) <= 18):
        raise RequestRefused(400, "Content-Length must be a number of bytes")
    return int(content_length)


# -- requests, answers and routes --------------------------------------------------------------------------------------

Headers = tuple[tuple[str, str], ...]


class Request(NamedTuple):
    """HTTP request. ``path`` and ``query`` are as sent, percent-encoded. Names of headers are in lower case; the values
    of repeated headers are joined by ", "."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    peer: str


new_request = cast("Callable[[tuple[Any, ...]], Request]", partial(tuple.__new__, Request))


class BodyWriter(Protocol):
    """Output of a stream: the body of one response."""

    def write(self, data: bytes) -> bool:
        """Send a piece of the body. Return False if the client reads too slowly: wait for ``BodyStream.drained``."""

    def end(self) -> None: ...

    def fail(self) -> None:
        """Abort the connection because the body is incomplete, so that the client detects the truncation."""


class BodyStream(Protocol):
    """Response body that is sent in pieces: a long listing, or an event stream."""

    def start(self, writer: BodyWriter) -> None: ...

    def drained(self) -> None:
        """Continue writing: the client has read the sent bytes."""

    def disconnected(self) -> None:
        """Stop: the client disconnected before the end."""


class Response(NamedTuple):
    """HTTP response. ``stream``, if given, is the body. A body of None (204, 304) has no length and no type."""

    status: int
    body: bytes | None = b""
    headers: Headers = ()
    stream: BodyStream | None = None


new_response = cast("Callable[[tuple[Any, ...]], Response]", partial(tuple.__new__, Response))


class Exchange(Protocol):
    """Answering side of one request."""

    @property
    def is_disconnected(self) -> bool:
        """True after the client has disconnected."""

    def answer(self, response: Response) -> None:
        """Send the response; call it exactly once. It is discarded if the client has disconnected."""

    def on_disconnect(self, action: Callable[[], None]) -> None:
        """Register a callback that runs if the client disconnects before it is answered."""


Handle = Callable[[Request, Exchange], None]


class HttpRoute(NamedTuple):
    """Route: handler of a request, with its body limit and error format.

    ``refuse`` turns errors into responses: those that ``handle`` raises, and those of the protocol (a body over
    ``max_body``). So each API has its own error format. ``admit``, if given, checks the head before the body is read;
    an error that it raises is the answer, and the body is not read."""

    handle: Handle
    max_body: int
    refuse: Callable[[QueueError], Response]
    admit: Callable[[Request], None] | None = None
    is_lasting: bool = False
    """True if the route may be cached: the same method and path always lead to this route."""
    path_template: "PathTemplate | None" = None


class PathTemplate(NamedTuple):
    """Path template: the paths of one method that differ only in one value, such as a message id.

    The value is between ``before`` and ``after``. It consists of ASCII letters, digits, dots, dashes and
    underscores."""

    before: str
    after: str
    route: Callable[[str], HttpRoute]


new_route = cast("Callable[[tuple[Any, ...]], HttpRoute]", partial(tuple.__new__, HttpRoute))


class Routes(Protocol):
    def find(self, method: str, path: str) -> HttpRoute:
        """Return the route; if there is none, a route that answers 404, or 405 with ``allow``."""
