"""HTTP pipelining: the requests of one connection are answered in the order in which they arrived.

An answer that is ready early waits until all before it are sent. ``100 Continue`` is sent when its request is first
in order. A stream is sent in chunks, or until the connection closes for HTTP/1.0. A stream that fails aborts the
connection, so that the client detects the truncation. Event streams send a comment when they have been silent for too
long."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from yirangmq.core.errors import Unavailable
from yirangmq.observe.logs import log
from yirangmq.protocols.http.responses import (
    CONTINUE,
    INTERNAL,
    LAST_CHUNK,
    Tails,
    chunk,
    encode,
    refusal,
    with_headers,
)
from yirangmq.protocols.http.types import Head, Headers, Response, Route, Stream

# -- one request and its answer ----------------------------------------------------------------------------------------

EVENTS = "text/event-stream"
PING = b":\n\n"
"""An SSE comment, sent as keep-alive; readers of event streams ignore it."""


class Place(Protocol):
    """The response queue as one request sees it."""

    def answered(self) -> None: ...

    def write(self, data: bytes) -> bool:
        """Send a part of a stream. Return False if the client reads too slowly."""

    def ended(self, turn: "Turn") -> None:
        """The stream of ``turn`` has written everything."""

    def failed(self, turn: "Turn") -> None:
        """The stream of ``turn`` cannot continue."""


class Turn:
    """State of one request and its answer; implements ``protocols.http.types.Exchange``, and ``Outlet`` for its
    stream. Loop thread only."""

    # Defaults are class attributes, because most requests change few of them.
    response: Response | None = None
    delay = 0.0
    """Seconds to wait before the route sees the request; until then the route has not admitted it."""
    size = 0
    """Bytes of the request in memory."""
    is_complete = False
    """The whole request has arrived."""
    is_gone = False
    is_head = is_old = False
    is_last = False
    """The connection closes after this request."""
    waits_to_go_on = False
    is_started = is_ended = is_chunked = wants_drained = False
    extra: Headers = ()
    """Headers added to every response: those that let a page of another origin read it."""
    counted = seen = 0
    """Number of pieces that the stream has written; that number at ``seen_at``."""
    seen_at = 0.0
    _actions: tuple[Callable[[], None], ...] = ()

    def __init__(self, line: Place, route: Route | None, head: Head | None) -> None:
        self._line = line
        self.route = route
        if head is None:
            self.is_last = True
            return
        method, _, _, _, _, is_old, stays, expects = head
        if method == "HEAD":
            self.is_head = True
        if is_old or expects or not stays:
            self.is_old, self.is_last, self.waits_to_go_on = is_old, not stays, expects

    # -- Exchange -------------------------------------------------------------------------------------------------

    def answer(self, response: Response) -> None:
        if self.response is not None or self.is_gone:
            if response.stream is not None:
                response.stream.gone()
            return
        self.response = response
        self._actions = ()
        self._line.answered()

    def when_gone(self, action: Callable[[], None]) -> None:
        if self.is_gone:
            action()
        elif self.response is None:
            self._actions = (*self._actions, action)

    # -- Outlet ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> bool:
        if self.is_gone or self.is_ended or not data:
            return not self.is_gone
        self.counted += 1
        goes_on = self._line.write(chunk(data) if self.is_chunked else data)
        self.wants_drained = not goes_on
        return goes_on

    def end(self) -> None:
        if not (self.is_gone or self.is_ended):
            self.is_ended = True
            self._line.ended(self)

    def fail(self) -> None:
        if not (self.is_gone or self.is_ended):
            self._line.failed(self)

    # -- for the connection ---------------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """True if the request is incomplete, or if its route waits: it registered ``when_gone``, or sends events."""
        if self.response is not None:
            return self.is_events and not self.is_ended
        return not self.is_complete or bool(self._actions)

    @property
    def stream(self) -> Stream | None:
        return self.response.stream if self.response is not None else None

    @property
    def is_events(self) -> bool:
        return self.response is not None and any(
            name.lower() == "content-type" and value.startswith(EVENTS) for name, value in self.response.headers
        )

    def tell_gone(self) -> None:
        """Run the ``when_gone`` actions and notify the stream that its client has left."""
        actions, self._actions = self._actions, ()
        run_each(actions)
        if self.stream is not None and self.is_started and not self.is_ended:
            run_each([self.stream.gone])

    def ping(self, now: float, after: float) -> None:
        """Send a keep-alive comment on an event stream that has been silent for ``after`` seconds."""
        if self.counted != self.seen or not self.seen_at:
            self.seen, self.seen_at = self.counted, now
        elif now - self.seen_at >= after and not self.wants_drained and self.is_events:
            self.seen_at = now
            self._line.write(chunk(PING) if self.is_chunked else PING)


def run_each(actions: Iterable[Callable[[], None]]) -> None:
    """Run callbacks. An exception in one is logged and does not affect the others."""
    for action in actions:
        try:
            action()
        except Exception:
            log.exception("http_cleanup_failed")


# -- order of the answers ----------------------------------------------------------------------------------------------


class Wire(Protocol):
    """The socket as the response queue sees it."""

    def send(self, data: bytes) -> bool:
        """Send bytes. Return False if the client reads more slowly than the server writes."""

    def finish(self, is_clean: bool) -> None:
        """Flush, then close; with a lingering close unless the client is known to send nothing."""

    def abort(self) -> None:
        """Close immediately. Sent bytes may be lost, and the client can detect the truncation."""


class Owner(Protocol):
    """The connection as its response queue sees it."""

    def served(self, turn: Turn) -> None:
        """The answer of ``turn`` was sent."""

    def finish(self) -> None:
        """The last answer was sent."""

    def fail(self) -> None:
        """An answer failed after a part of it was sent."""


class Line:
    """Response queue of one connection: holds its requests in order of arrival and sends their answers in that order.
    Loop thread only."""

    __slots__ = ("_is_advancing", "_owner", "_tails", "_wire", "is_clogged", "is_stopping", "turns")

    def __init__(self, owner: Owner, wire: Wire, tails: Tails) -> None:
        self._owner = owner
        self._wire = wire
        self._tails = tails
        self._is_advancing = False
        self.turns: deque[Turn] = deque()
        self.is_clogged = False
        """True while the client does not read what was sent."""
        self.is_stopping = False
        """True during shutdown: the last request in the queue is the last one of the connection."""

    # -- called by requests --------------------------------------------------------------------------------------------

    def answered(self) -> None:
        turns = self.turns
        response = turns[0].response if len(turns) == 1 else None
        if response is None or response.stream is not None or self.is_stopping or self._is_advancing:
            self._advance()
            return
        turn = turns[0]  # fast path, nearly always taken: a single request with a complete answer
        turn.is_started = turn.is_ended = True
        self._wire.send(self._bytes(turn, response))
        if not turn.is_gone:
            turns.popleft()
            self._owner.served(turn)
            if turn.is_last:
                self._owner.finish()

    def ended(self, turn: Turn) -> None:
        if turn.is_chunked:
            self._wire.send(LAST_CHUNK)
        self._advance()

    def write(self, data: bytes) -> bool:
        return self._wire.send(data) and not self.is_clogged

    # -- sending --------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Send all answers that are ready and next in order."""
        if self._is_advancing:
            return
        self._is_advancing = True
        turns = self.turns
        try:
            while turns and (response := turns[0].response) is not None:
                turn = turns[0]
                if not turn.is_started:
                    self._start(turn, response)
                if not turn.is_ended or turn.is_gone:
                    return
                turns.popleft()
                self._owner.served(turn)
                if turn.is_last:
                    self._owner.finish()
                    return
            self.tell_to_go_on()
            if self.is_stopping and not turns:
                self._owner.finish()
        finally:
            self._is_advancing = False

    def tell_to_go_on(self) -> None:
        """Send ``100 Continue`` if the first request in the queue waits for it."""
        if self.turns and self.turns[0].waits_to_go_on and not self.turns[0].is_complete:
            self.turns[0].waits_to_go_on = False
            self._wire.send(CONTINUE)

    def _start(self, turn: Turn, response: Response) -> None:
        turn.is_started = True
        stream = response.stream
        if self.is_stopping and len(self.turns) == 1:
            turn.is_last = True
        if stream is None:
            self._wire.send(self._bytes(turn, response))
            turn.is_ended = True
        elif turn.is_head:
            self._wire.send(self._bytes(turn, response))
            turn.is_ended = True
            run_each([stream.gone])
        else:
            turn.is_chunked = not turn.is_old
            turn.is_last |= turn.is_old  # for HTTP/1.0 the end of the connection marks the end of the body
            self._wire.send(self._bytes(turn, response))
            self._step(lambda: stream.start(turn))
            if self.is_stopping and turn.is_events:
                self._end_events(turn)

    def _bytes(self, turn: Turn, response: Response) -> bytes:
        tail = self._tails.tail(turn.is_last)
        if turn.extra:
            response = with_headers(response, turn.extra)
        try:
            return encode(response, tail, is_head=turn.is_head, is_old=turn.is_old)
        except (ValueError, TypeError):  # the headers cannot be encoded
            log.exception("http_response_encoding_failed")
            turn.response = INTERNAL
            return encode(INTERNAL, tail, is_head=turn.is_head, is_old=turn.is_old)

    def _step(self, step: Callable[[], None]) -> None:
        """Run a step of a stream. If it fails, abort the connection, so that the client detects the truncation."""
        try:
            step()
        except Exception:
            log.exception("http_stream_failed")
            self._cut()

    def failed(self, turn: Turn) -> None:
        if self.turns and turn is self.turns[0]:
            self._cut()

    def _cut(self) -> None:
        self._owner.fail()
        self._wire.abort()

    def drained(self) -> None:
        """Continue a stream that waits for the client: the send buffer was flushed."""
        turn = self.turns[0] if self.turns else None
        if turn is not None and turn.wants_drained and turn.stream is not None and not turn.is_ended:
            turn.wants_drained = False
            self._step(turn.stream.drained)

    def ping(self, now: float, after: float) -> None:
        if self.turns and self.turns[0].is_started:
            self.turns[0].ping(now, after)

    # -- the end --------------------------------------------------------------------------------------------------

    def take_back(self, place: int) -> list[Turn]:
        """Remove and return the requests from this index on. They are not answered any more."""
        gone = list(self.turns)[place:]
        for turn in gone:
            self.turns.pop()
            turn.is_gone = True
        return gone

    def stop(self) -> None:
        """Refuse waiting requests and end event streams: the server is stopping."""
        self.is_stopping = True
        for turn in list(self.turns):
            if turn.is_waiting and turn.response is None:
                self._send_away(turn)
            elif turn.is_waiting and turn.is_started:
                self._end_events(turn)

    def send_away(self) -> None:
        """Refuse all unanswered requests."""
        for turn in list(self.turns):
            if turn.response is None:
                self._send_away(turn)

    def _send_away(self, turn: Turn) -> None:
        turn.tell_gone()
        turn.answer(refusal(turn.route, Unavailable("the server is stopping; try again later")))

    def _end_events(self, turn: Turn) -> None:
        """End an event stream properly, so that its reader reconnects."""
        turn.tell_gone()
        turn.end()
