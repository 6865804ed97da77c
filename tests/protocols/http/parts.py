"""Routes that show what the protocol does, and a wire that keeps what is sent."""

from collections.abc import Callable

from yirangmq.core.errors import QueueError
from yirangmq.protocols.http.connection import HttpConnection
from yirangmq.protocols.http.context import HttpContext
from yirangmq.protocols.http.limits import HttpLimits
from yirangmq.protocols.http.responses import ResponseTails
from yirangmq.protocols.http.router import HandlerRoutes, Params
from yirangmq.protocols.http.types import BodyWriter, Exchange, Request, Response

MOST_BODY = 100_000
STATUS = {
    "bad_input": 400,
    "too_large": 413,
    "packed_body": 415,
    "unavailable": 503,
    "not_allowed": 403,
    "rate_limited": 429,
}


def refuse(error: QueueError) -> Response:
    return Response(STATUS.get(error.code, 500), f"{error.code}: {error}".encode(), (("x-shape", "ours"),))


class Pieces:
    """A stream that a test writes by hand."""

    def __init__(self) -> None:
        self.outlet: BodyWriter | None = None
        self.drains = 0
        self.is_disconnected = False

    def start(self, outlet: BodyWriter) -> None:
        self.outlet = outlet

    def drained(self) -> None:
        self.drains += 1

    def disconnected(self) -> None:
        self.is_disconnected = True

    def write(self, data: bytes) -> bool:
        assert self.outlet is not None
        return self.outlet.write(data)

    def end(self) -> None:
        assert self.outlet is not None
        self.outlet.end()


class Flood:
    """A stream that writes so many pieces, as fast as the client reads."""

    def __init__(self, piece: bytes, count: int) -> None:
        self._piece = piece
        self.left = count
        self.is_disconnected = False

    def start(self, outlet: BodyWriter) -> None:
        self._outlet = outlet
        self.drained()

    def drained(self) -> None:
        while self.left:
            self.left -= 1
            if not self._outlet.write(self._piece):
                return
        self._outlet.end()

    def disconnected(self) -> None:
        self.is_disconnected = True


class RouteRecorder:
    """What the routes below saw and hold."""

    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.waiting: list[Exchange] = []
        self.held: list[Exchange] = []
        self.left: list[Exchange] = []
        self.stream = Pieces()
        self.flood: Flood | None = None

    def echo(self, request: Request, exchange: Exchange, params: Params) -> None:
        self.seen.append(request)
        exchange.answer(Response(200, request.body, (("x-path", request.path),)))

    def wait(self, request: Request, exchange: Exchange, params: Params) -> None:
        """Answered when a test says so; leaves with its client."""
        self.seen.append(request)
        self.waiting.append(exchange)
        exchange.on_disconnect(lambda: self.left.append(exchange))

    def hold(self, request: Request, exchange: Exchange, params: Params) -> None:
        """Answered when a test says so, as work that is begun is."""
        self.held.append(exchange)

    def nothing(self, request: Request, exchange: Exchange, params: Params) -> None:
        exchange.answer(Response(204, None))

    def pieces(self, request: Request, exchange: Exchange, params: Params) -> None:
        exchange.answer(Response(200, b"", (("content-type", "text/plain"),), self.stream))

    def events(self, request: Request, exchange: Exchange, params: Params) -> None:
        exchange.answer(Response(200, b"", (("content-type", "text/event-stream"),), self.stream))

    def floods(self, request: Request, exchange: Exchange, params: Params) -> None:
        self.flood = Flood(b"x" * 65536, 1000)
        exchange.answer(Response(200, b"", (), self.flood))

    def large(self, request: Request, exchange: Exchange, params: Params) -> None:
        exchange.answer(Response(200, b"x" * 500_000))

    def fails(self, request: Request, exchange: Exchange, params: Params) -> None:
        raise QueueError("no")

    def breaks(self, request: Request, exchange: Exchange, params: Params) -> None:
        raise ZeroDivisionError

    def routes(self) -> HandlerRoutes:
        api = HandlerRoutes(refuse)
        api.add("POST", "/echo", self.echo, max_body=MOST_BODY)
        api.add("GET", "/wait", self.wait, head=self.nothing)
        api.add("POST", "/hold", self.hold, max_body=MOST_BODY)
        api.add("GET", "/box/{name}/{id}", self.echo)
        api.add("GET", "/box/{name}/{id}/open", self.echo)
        for name in ("echo", "nothing", "pieces", "events", "floods", "large", "fails", "breaks"):
            api.add("GET", f"/{name}", getattr(self, name))
        return api


class Wire:
    """Keeps what a connection sends."""

    def __init__(self) -> None:
        self.sent = b""
        self.end = ""
        self.room = 1 << 60
        """Bytes after which it says that the client reads too slowly."""

    def send(self, data: bytes) -> bool:
        assert not self.end, "sent after the end"
        self.sent += data
        return len(self.sent) < self.room

    def finish(self, is_clean: bool) -> None:
        assert not self.end, "ended twice"
        self.end = "clean" if is_clean else "unclean"

    def abort(self) -> None:
        self.end = "aborted"


class Bench:
    """A connection between a stage and a wire, at a time that a test sets. ``beside``: another one of the same door."""

    def __init__(
        self,
        limits: HttpLimits | None = None,
        admit: Callable[[Request], None] | None = None,
        beside: "Bench | None" = None,
    ) -> None:
        self.wire = Wire()
        self.limits = limits or HttpLimits()
        self.stage: RouteRecorder = beside.stage if beside else RouteRecorder()
        tails = ResponseTails(72, lambda: 0.0)
        self.shared: HttpContext = (
            beside.shared if beside else HttpContext(self.stage.routes(), self.limits, tails, admit)
        )
        self.now = 0.0
        self.connection = HttpConnection(self.shared, self.wire, "test:1", self.now)

    def receive(self, data: bytes) -> bytes:
        """What is sent in answer."""
        before = len(self.wire.sent)
        self.connection.receive(memoryview(data), self.now)
        return self.wire.sent[before:]


TOKENS = [
    b"GET", b"POST", b"HEAD", b"OPTIONS", b"FLY", b" ", b"  ", b"\t", b"/", b"/echo", b"/hold", b"/wait", b"*",
    b"/nothing", b"/%00", b"/%zz", b"http://a/echo", b"?a=b", b"#", b" HTTP/1.1", b" HTTP/1.0", b" HTTP/9.9", b"\r\n",
    b"\r\n\r\n", b"\n", b"\r", b":", b"Host: a\r\n", b"Connection: close\r\n", b"Connection: keep-alive\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: 99999999\r\n", b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\nConnection: upgrade\r\n",
    b"5\r\nhello\r\n", b"0\r\n\r\n", b"hello", b"ffffffff", b"\x00", b"\xff", b"\xe2\x82", b"x" * 300,
    b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n", b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /hold HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n",
]  # fmt: skip


def answer_all(bench: Bench) -> None:
    for _ in range(1000):
        todo = [
            one
            for one in (*bench.stage.held, *bench.stage.waiting)
            if one.response is None and not one.is_disconnected  # type: ignore[attr-defined]
        ]
        if not todo:
            return
        for exchange in todo:
            exchange.answer(Response(200, b"at last"))
        bench.connection.resume(0.0)
    raise AssertionError("it never ends")
