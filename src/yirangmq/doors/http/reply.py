"""Answers to bytes. Knows: status lines, the headers that are the protocol's own, chunks. Does not know: sockets.

``Date``, ``Content-Length``, ``Transfer-Encoding``, ``Connection``, ``Keep-Alive`` and ``X-Content-Type-Options`` are
written here and nowhere else."""

import time
from collections.abc import Callable
from functools import lru_cache

from yirangmq.doors.http.exchange import Headers, Response

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
