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
    ResponseTails,
    chunk,
    encode,
    refusal,
    with_headers,
)
from yirangmq.protocols.http.types import BodyStream, Headers, HttpRoute, RequestHead, Response

# -- one request and its answer ----------------------------------------------------------------------------------------

EVENTS = "text/event-stream"
PING = b":\n\n"
"""An SSE comment, sent as keep-alive; readers of event streams ignore it."""


class ResponseSink(Protocol):
    """The response queue as one request sees it."""

    def answered(self) -> None: ...

    def write(self, data: bytes) -> bool:
        """Send a part of a stream. Return False if the client reads too slowly."""

    def ended(self, state: "RequestState") -> None:
        """The stream of ``state`` has written everything."""

    def failed(self, state: "RequestState") -> None:
        """The stream of ``state`` cannot continue."""


class RequestState:
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
    is_disconnected = False
    is_head = is_old = False
    is_last = False
    """The connection closes after this request."""
    expects_continue = False
    is_started = is_ended = is_chunked = is_waiting_for_drain = False
    extra: Headers = ()
    """Headers added to every response: those that let a page of another origin read it."""
    counted = seen = 0
    """Number of pieces that the stream has written; that number at ``seen_at``."""
    seen_at = 0.0
    _actions: tuple[Callable[[], None], ...] = ()

    def __init__(self, responses: ResponseSink, route: HttpRoute | None, head: RequestHead | None) -> None:
        self._responses = responses
        self.route = route
        if head is None:
            self.is_last = True
            return
        method, _, _, _, _, is_old, keep_alive, expects_continue = head
        if method == "HEAD":
            self.is_head = True
        if is_old or expects_continue or not keep_alive:
            self.is_old, self.is_last, self.expects_continue = is_old, not keep_alive, expects_continue

    # -- Exchange -------------------------------------------------------------------------------------------------

    def answer(self, response: Response) -> None:
        if self.response is not None or self.is_disconnected:
            if response.stream is not None:
                response.stream.disconnected()
            return
        self.response = response
        self._actions = ()
        self._responses.answered()

    def on_disconnect(self, action: Callable[[], None]) -> None:
        if self.is_disconnected:
            action()
        elif self.response is None:
            self._actions = (*self._actions, action)

    # -- Outlet ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> bool:
        if self.is_disconnected or self.is_ended or not data:
            return not self.is_disconnected
        self.counted += 1
        goes_on = self._responses.write(chunk(data) if self.is_chunked else data)
        self.is_waiting_for_drain = not goes_on
        return goes_on

    def end(self) -> None:
        if not (self.is_disconnected or self.is_ended):
            self.is_ended = True
            self._responses.ended(self)

    def fail(self) -> None:
        if not (self.is_disconnected or self.is_ended):
            self._responses.failed(self)

    # -- for the connection ---------------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """True if the request is incomplete, or if its route waits: it registered ``on_disconnect``, or sends
        events."""
        if self.response is not None:
            return self.is_events and not self.is_ended
        return not self.is_complete or bool(self._actions)

    @property
    def stream(self) -> BodyStream | None:
        return self.response.stream if self.response is not None else None

    @property
    def is_events(self) -> bool:
        return self.response is not None and any(
            name.lower() == "content-type" and value.startswith(EVENTS) for name, value in self.response.headers
        )

    def notify_disconnected(self) -> None:
        """Run the ``on_disconnect`` actions and notify the stream that its client has left."""
        actions, self._actions = self._actions, ()
        run_callbacks(actions)
        if self.stream is not None and self.is_started and not self.is_ended:
            run_callbacks([self.stream.disconnected])

    def ping(self, now: float, after: float) -> None:
        """Send a keep-alive comment on an event stream that has been silent for ``after`` seconds."""
        if self.counted != self.seen or not self.seen_at:
            self.seen, self.seen_at = self.counted, now
        elif now - self.seen_at >= after and not self.is_waiting_for_drain and self.is_events:
            self.seen_at = now
            self._responses.write(chunk(PING) if self.is_chunked else PING)


def run_callbacks(actions: Iterable[Callable[[], None]]) -> None:
    """Run callbacks. An exception in one is logged and does not affect the others."""
    for action in actions:
        try:
            action()
        except Exception:
            log.exception("http_cleanup_failed")


# -- order of the answers ----------------------------------------------------------------------------------------------


class ResponseTransport(Protocol):
    """The socket as the response queue sees it."""

    def send(self, data: bytes) -> bool:
        """Send bytes. Return False if the client reads more slowly than the server writes."""

    def finish(self, is_clean: bool) -> None:
        """Flush, then close; with a lingering close unless the client is known to send nothing."""

    def abort(self) -> None:
        """Close immediately. Sent bytes may be lost, and the client can detect the truncation."""


class ResponseQueueOwner(Protocol):
    """The connection as its response queue sees it."""

    def on_sent(self, state: RequestState) -> None:
        """The answer of ``state`` was sent."""

    def finish(self) -> None:
        """The last answer was sent."""

    def fail(self) -> None:
        """An answer failed after a part of it was sent."""


class ResponseQueue:
    """Response queue of one connection: holds its requests in order of arrival and sends their answers in that order.
    Loop thread only."""

    __slots__ = ("_is_advancing", "_owner", "_tails", "_transport", "is_stopping", "is_write_paused", "pending")

    def __init__(self, owner: ResponseQueueOwner, transport: ResponseTransport, tails: ResponseTails) -> None:
        self._owner = owner
        self._transport = transport
        self._tails = tails
        self._is_advancing = False
        self.pending: deque[RequestState] = deque()
        self.is_write_paused = False
        """True while the client does not read what was sent."""
        self.is_stopping = False
        """True during shutdown: the last request in the queue is the last one of the connection."""

    # -- called by requests --------------------------------------------------------------------------------------------

    def answered(self) -> None:
        pending = self.pending
        response = pending[0].response if len(pending) == 1 else None
        if response is None or response.stream is not None or self.is_stopping or self._is_advancing:
            self._advance()
            return
        state = pending[0]  # fast path, nearly always taken: a single request with a complete answer
        state.is_started = state.is_ended = True
        self._transport.send(self._bytes(state, response))
        if not state.is_disconnected:
            pending.popleft()
            self._owner.on_sent(state)
            if state.is_last:
                self._owner.finish()

    def ended(self, state: RequestState) -> None:
        if state.is_chunked:
            self._transport.send(LAST_CHUNK)
        self._advance()

    def write(self, data: bytes) -> bool:
        return self._transport.send(data) and not self.is_write_paused

    # -- sending --------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Send all answers that are ready and next in order."""
        if self._is_advancing:
            return
        self._is_advancing = True
        pending = self.pending
        try:
            while pending and (response := pending[0].response) is not None:
                state = pending[0]
                if not state.is_started:
                    self._start(state, response)
                if not state.is_ended or state.is_disconnected:
                    return
                pending.popleft()
                self._owner.on_sent(state)
                if state.is_last:
                    self._owner.finish()
                    return
            self.send_continue()
            if self.is_stopping and not pending:
                self._owner.finish()
        finally:
            self._is_advancing = False

    def send_continue(self) -> None:
        """Send ``100 Continue`` if the first request in the queue waits for it."""
        if self.pending and self.pending[0].expects_continue and not self.pending[0].is_complete:
            self.pending[0].expects_continue = False
            self._transport.send(CONTINUE)

    def _start(self, state: RequestState, response: Response) -> None:
        state.is_started = True
        stream = response.stream
        if self.is_stopping and len(self.pending) == 1:
            state.is_last = True
        if stream is None:
            self._transport.send(self._bytes(state, response))
            state.is_ended = True
        elif state.is_head:
            self._transport.send(self._bytes(state, response))
            state.is_ended = True
            run_callbacks([stream.disconnected])
        else:
            state.is_chunked = not state.is_old
            state.is_last |= state.is_old  # for HTTP/1.0 the end of the connection marks the end of the body
            self._transport.send(self._bytes(state, response))
            self._step(lambda: stream.start(state))
            if self.is_stopping and state.is_events:
                self._end_events(state)

    def _bytes(self, state: RequestState, response: Response) -> bytes:
        tail = self._tails.tail(state.is_last)
        if state.extra:
            response = with_headers(response, state.extra)
        try:
            return encode(response, tail, is_head=state.is_head, is_old=state.is_old)
        except (ValueError, TypeError):  # the headers cannot be encoded
            log.exception("http_response_encoding_failed")
            state.response = INTERNAL
            return encode(INTERNAL, tail, is_head=state.is_head, is_old=state.is_old)

    def _step(self, step: Callable[[], None]) -> None:
        """Run a step of a stream. If it fails, abort the connection, so that the client detects the truncation."""
        try:
            step()
        except Exception:
            log.exception("http_stream_failed")
            self._abort()

    def failed(self, state: RequestState) -> None:
        if self.pending and state is self.pending[0]:
            self._abort()

    def _abort(self) -> None:
        self._owner.fail()
        self._transport.abort()

    def drained(self) -> None:
        """Continue a stream that waits for the client: the send buffer was flushed."""
        state = self.pending[0] if self.pending else None
        if state is not None and state.is_waiting_for_drain and state.stream is not None and not state.is_ended:
            state.is_waiting_for_drain = False
            self._step(state.stream.drained)

    def ping(self, now: float, after: float) -> None:
        if self.pending and self.pending[0].is_started:
            self.pending[0].ping(now, after)

    # -- the end --------------------------------------------------------------------------------------------------

    def remove_from(self, index: int) -> list[RequestState]:
        """Remove and return the requests from this index on. They are not answered any more."""
        disconnected = list(self.pending)[index:]
        for state in disconnected:
            self.pending.pop()
            state.is_disconnected = True
        return disconnected

    def stop(self) -> None:
        """Refuse waiting requests and end event streams: the server is stopping."""
        self.is_stopping = True
        for state in list(self.pending):
            if state.is_waiting and state.response is None:
                self._refuse(state)
            elif state.is_waiting and state.is_started:
                self._end_events(state)

    def refuse_all(self) -> None:
        """Refuse all unanswered requests."""
        for state in list(self.pending):
            if state.response is None:
                self._refuse(state)

    def _refuse(self, state: RequestState) -> None:
        state.notify_disconnected()
        state.answer(refusal(state.route, Unavailable("the server is stopping; try again later")))

    def _end_events(self, state: RequestState) -> None:
        """End an event stream properly, so that its reader reconnects."""
        state.notify_disconnected()
        state.end()
