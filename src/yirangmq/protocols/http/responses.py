"""HTTP responses: encoding to bytes, headers of stored payloads, and refusals that the protocol itself sends.

``Date``, ``Content-Length``, ``Transfer-Encoding``, ``Connection``, ``UnsyncedOutcome-Alive`` and
``X-Content-Type-Options`` are written only here.

A payload comes from a producer and is served from the dashboard's origin, so a browser must not run it there. It keeps
its bytes and its ``Content-Type``; further headers sandbox it, and a type that is not known to be inert is an
attachment.

A refusal has the error format of the requested API, or is plain text if no route was found."""

import re
import time
from collections.abc import Callable
from functools import lru_cache
from math import ceil

from yirangmq.core.errors import CompressedBody, QueueError, QuotaExceeded, StoreBusy, TooLarge
from yirangmq.observe.logs import log
from yirangmq.protocols.http.types import Headers, HttpRoute, RequestHead, Response

# -- encoding ----------------------------------------------------------------------------------------------------------

PHRASES = {
    100: "Continue",
    200: "OK",
    201: "Created",
    202: "Accepted",
    204: "No Content",
    206: "Partial Content",
    207: "Multi-Status",
    301: "Moved Permanently",
    302: "Found",
    303: "See Other",
    304: "Not Modified",
    307: "Temporary Redirect",
    308: "Permanent Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    412: "Precondition Failed",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    421: "Misdirected Request",
    422: "Unprocessable Content",
    423: "Locked",
    424: "Failed Dependency",
    425: "Too Early",
    426: "Upgrade Required",
    428: "Precondition Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
    507: "Insufficient Storage",
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
NO_BODY = frozenset({204, 304})
OURS = frozenset({"date", "content-length", "transfer-encoding", "connection", "keep-alive", "x-content-type-options"})
NOSNIFF = "x-content-type-options: nosniff\r\n"
"""Sent with every response: a browser must not guess another type than ``Content-Type``."""
CACHE_CONTROL = "cache-control: private, no-cache\r\n"
"""Sent with every response whose route gives no ``Cache-Control``: an answer is the state of this moment."""
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class ResponseTails:
    """Cached last lines of a response head, renewed once per second: the date, and keep-alive or close."""

    def __init__(self, idle_seconds: float, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.second = -1
        """The second for which the lines are cached."""
        self._keep_alive_lines = f"connection: keep-alive\r\nkeep-alive: timeout={int(idle_seconds)}\r\n\r\n"
        self.keep_alive = self.close = b""

    def renew(self, now: int) -> None:
        self.second = now
        line = f"date: {http_date(now)}\r\n{NOSNIFF}"
        self.keep_alive = (line + self._keep_alive_lines).encode()
        self.close = f"{line}connection: close\r\n\r\n".encode()


def http_date(seconds: int) -> str:
    """Format an instant as an HTTP date, independent of the locale."""
    at = time.gmtime(seconds)
    day = f"{DAYS[at.tm_wday]}, {at.tm_mday:02} {MONTHS[at.tm_mon - 1]} {at.tm_year:04}"
    return f"{day} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT"


def encode(response: Response, tails: ResponseTails, is_last: bool, *, is_head: bool, is_old: bool) -> bytes:
    """Encode a response, except its stream. Raise ``ValueError`` if a header is not valid."""
    now = int(tails.clock())
    if now != tails.second:
        tails.renew(now)
    tail = tails.close if is_last else tails.keep_alive
    opening = _opening(response.status, response.headers)
    if response.stream is not None:
        return opening + (tail if is_old else CHUNKED + tail)
    body = response.body
    if body is None or response.status in NO_BODY:
        return opening + tail
    return b"%bcontent-length: %d\r\n%b%b" % (opening, len(body), tail, b"" if is_head else body)


def with_headers(response: Response, extra: Headers) -> Response:
    """Add headers to a response, except lines that it has already."""
    own = {(name.lower(), value.lower()) for name, value in response.headers}
    added = tuple((name, value) for name, value in extra if (name.lower(), value.lower()) not in own)
    return response._replace(headers=response.headers + added)


@lru_cache(maxsize=1024)
def _opening(status: int, headers: Headers) -> bytes:
    """Encode the status line and the headers of the route."""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if not (text.count("\r") == text.count("\n") == len(headers)) or "\0" in text:
        raise ValueError(f"a header must be one line: {headers!r}")
    if not all(name and name.lower() not in OURS and not (set(" :\t") & set(name)) for name, _ in headers):
        raise ValueError(f"a name must be a word, and none of {', '.join(sorted(OURS))}: {headers!r}")
    if not any(name.lower() == "cache-control" for name, _ in headers):
        text += CACHE_CONTROL
    return f"HTTP/1.1 {status} {PHRASES.get(status, 'Status')}\r\n{text}".encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Encode a chunk of a chunked body. ``data`` must not be empty: an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


# -- headers of stored payloads ----------------------------------------------------------------------------------------

SANDBOX: Headers = (
    ("content-security-policy", "sandbox; default-src 'none'; frame-ancestors 'none'"),
    ("cross-origin-resource-policy", "same-origin"),
)
"""The document gets no scripts, forms, subresources or origin, and no other page can frame or include it."""
ATTACHMENT: Headers = (("content-disposition", "attachment"),)
"""The browser saves it instead of opening it."""

PLAIN_TYPE = re.compile(r"([a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+)[ \t]*(;[^,]*)?", re.IGNORECASE)
"""A single media type. Of several types separated by commas a browser takes the last."""
INERT = frozenset(
    {
        "text/plain", "text/csv", "application/json", "application/x-ndjson", "application/octet-stream",
        "image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp",
    }
)  # fmt: skip
"""Types that no browser runs. Not included: HTML, XHTML, SVG, XML, scripts, style sheets, PDF and unknown types."""
INERT_KINDS = ("audio/", "video/")


@lru_cache(maxsize=256)
def payload_headers(media_type: str) -> Headers:
    """Return the headers for a payload of this type, including ``Content-Type``."""
    return (("content-type", media_type), *SANDBOX, *(() if is_inert(media_type) else ATTACHMENT))


def is_inert(media_type: str) -> bool:
    found = PLAIN_TYPE.fullmatch(media_type)
    if found is None:
        return False
    kind = found[1].lower()
    return kind in INERT or kind.startswith(INERT_KINDS) or (kind.startswith("application/") and kind.endswith("+json"))


# -- refusals ----------------------------------------------------------------------------------------------------------

PLAIN: Headers = (("content-type", "text/plain; charset=utf-8"),)
ACCEPT_IDENTITY = ("accept-encoding", "identity")
"""Header of every 415 for a body with a content coding: names the accepted coding."""
INTERNAL = Response(500, b"internal error\n", PLAIN)


def plain(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(), PLAIN)


def refusal(route: HttpRoute | None, error: QueueError) -> Response:
    """Return the response for an error, in the format of the route's API.

    ``Retry-After`` and the accepted content coding are added if the API has not set them."""
    if route is None:
        return INTERNAL
    try:
        response = route.refuse(error)
    except Exception:
        log.exception("http_error_response_failed")
        return INTERNAL
    if isinstance(error, CompressedBody):
        response = response._replace(headers=(*response.headers, ACCEPT_IDENTITY))
    after = error.retry_after if isinstance(error, QuotaExceeded | StoreBusy) else None
    if after is not None and not any(name.lower() == "retry-after" for name, _ in response.headers):
        response = response._replace(headers=(*response.headers, ("retry-after", str(ceil(after)))))
    return response


def refuse_content_coding(head: RequestHead) -> CompressedBody | None:
    """Return an error if the body has a content coding, otherwise None.

    Such a body would be stored as received, and delivered without its ``Content-Encoding``."""
    coding = head.headers.get("content-encoding", "")
    if head.length == 0 or coding.lower() in ("", "identity"):
        return None
    return CompressedBody(f"the body must not be compressed; it has {coding!r}", field="content-encoding")


def too_large(route: HttpRoute) -> TooLarge:
    return TooLarge(f"must not have more than {route.max_body} bytes", field="body")
