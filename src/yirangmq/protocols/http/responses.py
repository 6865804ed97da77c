"""HTTP responses: encoding to bytes, headers of stored payloads, and refusals that the protocol itself sends.

``Date``, ``Content-Length``, ``Transfer-Encoding``, ``Connection``, ``Keep-Alive`` and ``X-Content-Type-Options`` are
written here and nowhere else.

A payload comes from a producer and is served from the dashboard's origin, so a browser must not run it there. It keeps
its bytes and its ``Content-Type``; further headers sandbox it, and a type that is not known to be inert is an
attachment.

A refusal has the shape of the API that was asked, or plain text where no route was found."""

import re
import time
from collections.abc import Callable
from functools import lru_cache
from math import ceil

from yirangmq.core.errors import PackedBody, QueueError, QuotaExceeded, StoreBusy, TooLarge
from yirangmq.observe.logs import log
from yirangmq.protocols.http.types import Head, Headers, Response, Route

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
"""On every response: a browser takes a body for what its ``Content-Type`` says and nothing else."""
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Tails:
    """The end of a head, which changes once a second: the date, and whether the connection stays."""

    def __init__(self, idle_seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._second = -1
        self._stays = f"connection: keep-alive\r\nkeep-alive: timeout={int(idle_seconds)}\r\n\r\n"
        self._keep = self._close = b""

    def tail(self, is_last: bool) -> bytes:
        now = int(self._clock())
        if now != self._second:
            self._second = now
            line = f"date: {http_date(now)}\r\n{NOSNIFF}"
            self._keep = (line + self._stays).encode()
            self._close = f"{line}connection: close\r\n\r\n".encode()
        return self._close if is_last else self._keep


def http_date(seconds: int) -> str:
    """As HTTP writes a moment, whatever language the system speaks."""
    at = time.gmtime(seconds)
    day = f"{DAYS[at.tm_wday]}, {at.tm_mday:02} {MONTHS[at.tm_mon - 1]} {at.tm_year:04}"
    return f"{day} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT"


def encode(response: Response, tail: bytes, *, is_head: bool, is_old: bool) -> bytes:
    """All of an answer, but for its stream. ValueError for one whose headers cannot be sent."""
    opening = _opening(response.status, response.headers)
    if response.stream is not None:
        return opening + (tail if is_old else CHUNKED + tail)
    body = response.body
    if body is None or response.status in NO_BODY:
        return opening + tail
    return b"%bcontent-length: %d\r\n%b%b" % (opening, len(body), tail, b"" if is_head else body)


def with_headers(response: Response, extra: Headers) -> Response:
    """``extra`` besides its own headers, but for lines that it has already."""
    own = {(name.lower(), value.lower()) for name, value in response.headers}
    added = tuple((name, value) for name, value in extra if (name.lower(), value.lower()) not in own)
    return response._replace(headers=response.headers + added)


@lru_cache(maxsize=1024)
def _opening(status: int, headers: Headers) -> bytes:
    """The status line and the route's own headers."""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if not (text.count("\r") == text.count("\n") == len(headers)) or "\0" in text:
        raise ValueError(f"a header must be one line: {headers!r}")
    if not all(name and name.lower() not in OURS and not (set(" :\t") & set(name)) for name, _ in headers):
        raise ValueError(f"a name must be a word, and none of {', '.join(sorted(OURS))}: {headers!r}")
    return f"HTTP/1.1 {status} {PHRASES.get(status, 'Status')}\r\n{text}".encode("latin-1")


def chunk(data: bytes) -> bytes:
    """One piece of a body without a length. Never an empty one, which would be the end."""
    return b"%x\r\n%b\r\n" % (len(data), data)


# -- headers of stored payloads ----------------------------------------------------------------------------------------

SANDBOX: Headers = (
    ("content-security-policy", "sandbox; default-src 'none'; frame-ancestors 'none'"),
    ("cross-origin-resource-policy", "same-origin"),
)
"""A document without scripts, forms, subresources and an origin; no other page frames or includes it."""
ATTACHMENT: Headers = (("content-disposition", "attachment"),)
"""The browser saves it instead of opening it."""

PLAIN_TYPE = re.compile(r"([a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+)[ \t]*(;[^,]*)?", re.IGNORECASE)
"""One media type. Of several with commas between them a browser takes the last."""
INERT = frozenset(
    {
        "text/plain", "text/csv", "application/json", "application/x-ndjson", "application/octet-stream",
        "image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp",
    }
)  # fmt: skip
"""Types that no browser runs. HTML, XHTML, SVG, XML, scripts, style sheets, PDF and types not known here are not among
them."""
INERT_KINDS = ("audio/", "video/")


@lru_cache(maxsize=256)
def payload_headers(media_type: str) -> Headers:
    """The headers for a payload of this type, ``Content-Type`` among them."""
    return (("content-type", media_type), *SANDBOX, *(() if is_inert(media_type) else ATTACHMENT))


def is_inert(media_type: str) -> bool:
    found = PLAIN_TYPE.fullmatch(media_type)
    if found is None:
        return False
    kind = found[1].lower()
    return kind in INERT or kind.startswith(INERT_KINDS) or (kind.startswith("application/") and kind.endswith("+json"))


# -- refusals ----------------------------------------------------------------------------------------------------------

PLAIN: Headers = (("content-type", "text/plain; charset=utf-8"),)
PLAINLY = ("accept-encoding", "identity")
"""Said with each 415 of a packed body: what would have been read."""
INTERNAL = Response(500, b"internal error\n", PLAIN)


def plain(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(), PLAIN)


def refusal(route: Route | None, error: QueueError) -> Response:
    """As the API says it. Who asks too often is told when to come again, and who packs a body how to send it, even if
    the API did not think of it."""
    if route is None:
        return INTERNAL
    try:
        response = route.refuse(error)
    except Exception:
        log.exception("an error could not be told")
        return INTERNAL
    if isinstance(error, PackedBody):
        response = response._replace(headers=(*response.headers, PLAINLY))
    after = error.retry_after if isinstance(error, QuotaExceeded | StoreBusy) else None
    if after is not None and not any(name.lower() == "retry-after" for name, _ in response.headers):
        response = response._replace(headers=(*response.headers, ("retry-after", str(ceil(after)))))
    return response


def packed(head: Head) -> PackedBody | None:
    """What there is to say against the coding of a body. It would be stored as it came, and handed out without a word
    that it is packed."""
    coding = head.headers.get("content-encoding", "")
    if head.length == 0 or coding.lower() in ("", "identity"):
        return None
    return PackedBody(f"bodies are read as they come, so unpack it first; not {coding!r}", field="content-encoding")


def too_large(route: Route) -> TooLarge:
    return TooLarge(f"must not have more than {route.max_body} bytes", field="body")
