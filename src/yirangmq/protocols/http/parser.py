"""HTTP parser: llhttp (by ``httptools``), limits on the size of a head, and bodies collected to whole requests.

Any split of the bytes gives the same requests. Input that is exactly one whole request goes to
``protocols.http.head_cache`` first. Outside of bodies at most ``PARSE_STEP`` bytes are parsed per step, so that a full
connection can stop the parser between requests. A trailer is counted against the limits and discarded."""

from io import BytesIO
from typing import TYPE_CHECKING, NoReturn

import httptools

from yirangmq.protocols.http.head_cache import HeadCache
from yirangmq.protocols.http.limits import HttpLimits
from yirangmq.protocols.http.types import SINGLE, RequestHead, RequestRefused, check_head

if TYPE_CHECKING:
    from yirangmq.protocols.http.connection import HttpConnection
    from yirangmq.protocols.http.pipelining import RequestState

PARSE_STEP = 4096
"""Bytes parsed per step outside of bodies. Bounds the number of requests parsed before ``is_full`` is checked again."""
COMMON_HEADERS = {
    form: name.lower()
    for name in ("Host", "User-Agent", "Accept", "Accept-Encoding", "Content-Type", "Content-Length", "Authorization")
    for form in (name.encode(), name.lower().encode())
}
"""Lower-case names of common headers, by the spellings that nearly all clients use."""


class HttpParser:
    """HTTP request parser of one connection: ``feed`` passes complete requests to the connection.

    After an error the parser cannot continue. Loop thread only."""

    __slots__ = (
        "_begun", "_body", "_connection", "_count", "_done", "_error", "_has_progressed", "_head_cache", "_headers",
        "_last_head", "_limits", "_parser", "_size", "_stalled_bytes", "_target", "begun", "body_size", "head",
        "in_head", "is_open",
    )  # fmt: skip

    def __init__(self, connection: "HttpConnection", limits: HttpLimits, head_cache: HeadCache | None = None) -> None:
        self._connection = connection
        self._head_cache = head_cache or HeadCache()
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._done: list[tuple[RequestState, RequestHead, bytes]] = []
        self._begun: RequestState | None = None
        self._error: Exception | None = None
        self._stalled_bytes = 0
        """Bytes parsed since the last progress (a head, a part of a body, an end); 0 between two requests."""
        self._has_progressed = False
        self._last_head: RequestHead | None = None
        """The latest head, once its request is complete."""
        self._target = b""
        self._headers: dict[str, str] = {}
        self._count = self._size = 0
        self.head: RequestHead | None = None
        """The complete head while its body arrives, otherwise None."""
        self._body: bytes | BytesIO = b""
        self.body_size = 0
        self.is_open = True
        """False once the connection accepts no more requests; further input is discarded."""
        self.begun = 0
        """Number of heads whose first byte has arrived."""
        self.in_head = False

    def feed(self, data: memoryview) -> int:
        """Parse bytes. Return the number of consumed bytes: all of them, unless the connection is full."""
        is_open = self.is_open
        if not is_open or self.head is not None or self.in_head or self._stalled_bytes:
            return self._feed(data)
        whole_request = bytes(data)
        found = self._head_cache.read(whole_request, self._limits.target_bytes)
        if found is None:
            begun = self.begun
            at = self._feed(data)
            if self._last_head is not None and self.begun == begun + 1 and self.is_between:
                self._head_cache.add_block(whole_request, self._last_head)
            return at
        self.begun += 1
        try:
            route = self._connection.whole_request(*found)
        except Exception:
            if self.is_open:
                raise
            return len(data)
        if found.route is None:
            self._head_cache.add_route(whole_request, found, route)
        return len(data)

    @property
    def is_between(self) -> bool:
        """True between two requests: no byte of the next one has arrived."""
        return self.is_open and self.head is None and not self.in_head and not self._stalled_bytes

    def _feed(self, data: memoryview) -> int:
        at, end = 0, len(data)
        while at < end and self.is_open and not self._connection.is_full:
            step = end - at
            if step > PARSE_STEP:
                step = min(step, max(PARSE_STEP, self._missing()))
            self._has_progressed = False
            self._parse(data if step == end else data[at : at + step])
            at += step
            if self._has_progressed:
                self._stalled_bytes = 0
            else:
                self._stalled_bytes += step
                if self._stalled_bytes > self._limits.max_stalled_bytes + PARSE_STEP:
                    raise RequestRefused(431, "the head of the request is too long")
        return at if self.is_open else end

    def _missing(self) -> int:
        return (self.head.length or 0) - self.body_size if self.head is not None else 0

    def _parse(self, piece: memoryview) -> None:
        """Run llhttp. Complete requests are delivered even if the bytes after them are invalid."""
        trouble: Exception | None = None
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as error:
            self._deliver()
            if self.is_open:
                self._parse(piece[error.args[0] :])
            return
        except httptools.HttpParserCallbackError:
            trouble = self._error
        except httptools.HttpParserInvalidMethodError:
            trouble = RequestRefused(501, "this is no method known here, or no HTTP at all")
        except httptools.HttpParserError as error:
            trouble = RequestRefused(400, f"this is not HTTP/1.1 as it should be: {error}")
        if self._done:
            self._deliver()
        if trouble is not None and self.is_open:
            raise trouble

    def _deliver(self) -> None:
        done, self._done = self._done, []
        for begun, head, body in done:
            self._connection.complete_request(begun, head, body)

    # -- called by llhttp; an exception here stops it -------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = {}
        self._count = self._size = 0
        self._last_head = None
        self.begun += 1
        self.in_head = True

    def on_url(self, piece: bytes) -> None:
        self._target += piece
        if len(self._target) > self._limits.target_bytes:
            self._fail(RequestRefused(414, f"the request target has more than {self._limits.target_bytes} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count += 1
        self._size += len(name) + len(value)
        limits = self._limits
        if self._count > limits.header_count or self._size > limits.header_bytes:
            most = f"{limits.header_count} headers of {limits.header_bytes} bytes together"
            self._fail(RequestRefused(431, f"a request may have {most}"))
        if self.head is not None:
            return  # a trailer: counted and discarded
        key = COMMON_HEADERS.get(name) or name.decode("latin-1").lower()
        text = value.decode("latin-1").rstrip(" \t")
        headers = self._headers
        if key not in headers:
            headers[key] = text
        elif key in SINGLE:
            self._fail(RequestRefused(400, f"the header {key} is there more than once"))
        else:
            headers[key] += f"; {text}" if key == "cookie" else f", {text}"

    def on_headers_complete(self) -> None:
        parser = self._parser
        try:
            head = check_head(
                parser.get_method().decode(),
                self._target.decode("latin-1"),
                parser.get_http_version(),
                self._headers,
                parser.should_keep_alive(),
            )
            if parser.should_upgrade() and head.length != 0:
                raise RequestRefused(400, "an upgrade is not supported, and a request with Upgrade may have no body")
            self._begun = self._connection.begin_request(head)
        except Exception as error:
            self._fail(error)
        self.head = head
        self.in_head = False
        self._has_progressed = True
        self._count = self._size = 0

    def on_body(self, piece: bytes) -> None:
        self._has_progressed = True
        self.body_size += len(piece)
        try:
            self._connection.count_body(len(piece))
        except Exception as error:
            self._fail(error)
        if not self._body:
            self._body = piece  # nearly always the whole body
            return
        if isinstance(self._body, bytes):  # a list of tiny chunks would need many times their size
            first, self._body = self._body, BytesIO()
            self._body.write(first)
        self._body.write(piece)

    def on_message_complete(self) -> None:
        self._has_progressed = True
        if self.head is None or self._begun is None:
            return
        body = self._body if isinstance(self._body, bytes) else self._body.getvalue()  # without a copy
        self._done.append((self._begun, self.head, body))
        self._last_head = self.head
        self._begun = self.head = None
        self._body = b""
        self.body_size = 0

    def _fail(self, error: Exception) -> NoReturn:
        self._error = error
        raise error
