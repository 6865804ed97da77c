"""HTTP pipelining: the state of each request, and the order of the responses of one connection.

A request is one object from its head to the last byte of its response (``RequestState``). It is in one stage:

                 complete            delay
    RECEIVING ─────────────► HANDLING ◄───────► DELAYED
        │                       │      resume      │
        │ answer                │ answer           │ answer
        ▼                       ▼                  ▼
    ANSWERED ◄─────────────────────────────────────┘
        │      │ start                pause
        │ end  └──────► STREAMING ◄────────► PAUSED
        ▼                  │ end     resume    │ end
      SENT ◄───────────────┴───────────────────┘        any stage ── drop ──► DROPPED

- Order: responses leave in the order in which the requests arrived. A response that is ready early stays ANSWERED until
  all before it are SENT. ``100 Continue`` is sent when its request is RECEIVING and first in order.
- Pacing: a stream whose client reads too slowly is PAUSED, until the send buffer is flushed. A request is DELAYED while
  its address shows too many wrong tokens.
- Limits: a request that is refused by its head or by the size of its body is answered while it is RECEIVING, and the
  rest of its body is discarded (``protocols.http.connection``). Its memory is released when it is SENT or DROPPED.

A stream is sent in chunks, or until the connection closes for HTTP/1.0. A stream that fails aborts the connection, so
that the client detects the truncation. Event streams send a comment when they have been silent for too long."""

from collections import deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from yirangmq.core.errors import Unavailable
from yirangmq.observe.logs import log
from yirangmq.protocols.http.context import HttpContext
from yirangmq.protocols.http.responses import CONTINUE, INTERNAL, LAST_CHUNK, chunk, encode, refusal, with_headers
from yirangmq.protocols.http.types import BodyStream, Headers, HttpRoute, RequestHead, Response

if TYPE_CHECKING:
    from yirangmq.protocols.http.connection import HttpConnection

# -- stages of a request -----------------------------------------------------------------------------------------------


class Stage(IntEnum):
    """Stage of a request. From ANSWERED on it has a response, unless it is DROPPED."""

    RECEIVING = 0
    """Its head is accepted, and its body arrives."""
    HANDLING = 1
    """It is complete, and its route works on it."""
    DELAYED = 2
    """It is complete, and its route sees it after a delay."""
    ANSWERED = 3
    """Its response waits for those of earlier requests."""
    STREAMING = 4
    """A part of its response is sent."""
    PAUSED = 5
    """A part of its response is sent, and the client does not read it fast enough."""
    SENT = 6
    """Its response is passed to the socket as a whole."""
    DROPPED = 7
    """The client has disconnected. Nothing more is sent."""


class Step(IntEnum):
    """What happens to a request."""

    COMPLETE = 0
    """The last byte of its body has arrived."""
    DELAY = 1
    RESUME = 2
    """The delay is over, or the client has read what was sent."""
    ANSWER = 3
    START = 4
    """The head of a stream is sent."""
    WRITE = 5
    """A part of a stream is sent, and the client reads fast enough."""
    PAUSE = 6
    END = 7
    """The last byte of the response is sent."""
    DROP = 8


TRANSITIONS: dict[Stage, dict[Step, Stage]] = {
    Stage.RECEIVING: {Step.COMPLETE: Stage.HANDLING, Step.ANSWER: Stage.ANSWERED, Step.DROP: Stage.DROPPED},
    Stage.HANDLING: {Step.DELAY: Stage.DELAYED, Step.ANSWER: Stage.ANSWERED, Step.DROP: Stage.DROPPED},
    Stage.DELAYED: {Step.RESUME: Stage.HANDLING, Step.ANSWER: Stage.ANSWERED, Step.DROP: Stage.DROPPED},
    Stage.ANSWERED: {
        Step.COMPLETE: Stage.ANSWERED,  # the end of a body that was discarded
        Step.START: Stage.STREAMING,
        Step.END: Stage.SENT,
        Step.DROP: Stage.DROPPED,
    },
    Stage.STREAMING: {
        Step.WRITE: Stage.STREAMING,
        Step.PAUSE: Stage.PAUSED,
        Step.END: Stage.SENT,
        Step.DROP: Stage.DROPPED,
    },
    Stage.PAUSED: {
        Step.RESUME: Stage.STREAMING,
        Step.WRITE: Stage.STREAMING,
        Step.PAUSE: Stage.PAUSED,
        Step.END: Stage.SENT,
        Step.DROP: Stage.DROPPED,
    },
    Stage.SENT: {Step.COMPLETE: Stage.SENT, Step.DROP: Stage.DROPPED},
    Stage.DROPPED: {
        Step.COMPLETE: Stage.DROPPED,
        Step.WRITE: Stage.DROPPED,  # the write dropped the client
        Step.PAUSE: Stage.DROPPED,
        Step.DROP: Stage.DROPPED,
    },
}
"""Stage after a step, by the stage before it. A step that is not listed is an error of the program (``KeyError``)."""


# -- one request and its answer ----------------------------------------------------------------------------------------

EVENTS = "text/event-stream"
PING = b":\n\n"
"""An SSE comment, sent as keep-alive; readers of event streams ignore it."""


class RequestState:
    """State of one request and its answer; implements ``protocols.http.types.Exchange``, and ``BodyWriter`` for its
    stream. Loop thread only."""

    # Defaults are class attributes, because most requests change few of them.
    stage = Stage.RECEIVING
    response: Response | None = None
    delay = 0.0
    """Seconds to wait before the route sees the request; until then the route has not admitted it."""
    size = 0
    """Bytes of the request in memory."""
    is_head = is_old = is_chunked = False
    is_last = False
    """The connection closes after this request."""
    expects_continue = False
    extra: Headers = ()
    """Headers added to every response: those that let a page of another origin read it."""
    counted = seen = 0
    """Number of pieces that the stream has written; that number at ``seen_at``."""
    seen_at = 0.0
    _actions: tuple[Callable[[], None], ...] = ()
    _open_stream: BodyStream | None = None
    """The stream that has begun and not ended. It is notified if the client disconnects."""

    def __init__(self, responses: "ResponseQueue", route: HttpRoute | None, head: RequestHead | None) -> None:
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

    def take(self, step: Step) -> None:
        self.stage = TRANSITIONS[self.stage][step]

    # -- Exchange -------------------------------------------------------------------------------------------------

    @property
    def is_disconnected(self) -> bool:
        return self.stage is Stage.DROPPED

    def answer(self, response: Response) -> None:
        if self.stage >= Stage.ANSWERED:
            if response.stream is not None:
                response.stream.disconnected()
            return
        self.stage = TRANSITIONS[self.stage][Step.ANSWER]
        self.response = response
        self._actions = ()
        self._responses.answered()

    def on_disconnect(self, action: Callable[[], None]) -> None:
        if self.stage is Stage.DROPPED:
            action()
        elif self.stage < Stage.ANSWERED:
            self._actions = (*self._actions, action)

    # -- BodyWriter -----------------------------------------------------------------------------------------------

    @property
    def is_streaming(self) -> bool:
        return self.stage is Stage.STREAMING or self.stage is Stage.PAUSED

    def write(self, data: bytes) -> bool:
        if not data or not self.is_streaming:
            return self.stage is not Stage.DROPPED
        self.counted += 1
        goes_on = self._responses.write(chunk(data) if self.is_chunked else data)
        self.take(Step.WRITE if goes_on else Step.PAUSE)
        return goes_on

    def end(self) -> None:
        if self.is_streaming:
            self.take(Step.END)
            self._open_stream = None
            self._responses.ended(self)

    def fail(self) -> None:
        if self.is_streaming:
            self._responses.failed(self)

    # -- for the connection ---------------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """True if the request is incomplete, or if its route waits: it registered ``on_disconnect``, or sends
        events."""
        if self.stage >= Stage.ANSWERED:
            return self.is_events and self.stage < Stage.SENT
        return self.stage is Stage.RECEIVING or bool(self._actions)

    @property
    def is_events(self) -> bool:
        return self.response is not None and any(
            name.lower() == "content-type" and value.startswith(EVENTS) for name, value in self.response.headers
        )

    def start(self, stream: BodyStream) -> None:
        """Start to send the stream of the response. Its head is sent next."""
        self.take(Step.START)
        self._open_stream = stream
        self.is_chunked = not self.is_old
        self.is_last |= self.is_old  # for HTTP/1.0 the end of the connection marks the end of the body

    def resume(self) -> None:
        """Continue a stream that waits for the client."""
        if self.stage is Stage.PAUSED and self._open_stream is not None:
            self.take(Step.RESUME)
            self._open_stream.drained()

    def notify_disconnected(self) -> None:
        """Run the ``on_disconnect`` actions and notify the stream that its client has left."""
        actions, self._actions = self._actions, ()
        run_callbacks(actions)
        if self._open_stream is not None:
            run_callbacks([self._open_stream.disconnected])

    def ping(self, now: float, after: float) -> None:
        """Send a keep-alive comment on an event stream that has been silent for ``after`` seconds."""
        if not self.is_streaming:
            return
        if self.counted != self.seen or not self.seen_at:
            self.seen, self.seen_at = self.counted, now
        elif now - self.seen_at >= after and self.stage is Stage.STREAMING and self.is_events:
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


class ResponseQueue:
    """Response queue of one connection: holds its requests in order of arrival and sends their answers in that order.
    Loop thread only."""

    __slots__ = (
        "_connection", "_context", "_is_advancing", "_transport", "held", "is_stopping", "is_write_paused", "pending",
    )  # fmt: skip

    def __init__(self, connection: "HttpConnection", transport: ResponseTransport, context: HttpContext) -> None:
        self._connection = connection
        self._transport = transport
        self._context = context
        self._is_advancing = False
        self.held = 0
        """Bytes of the requests in memory."""
        self.pending: deque[RequestState] = deque()
        self.is_write_paused = False
        """True while the client does not read what was sent."""
        self.is_stopping = False
        """True during shutdown: the last request in the queue is the last one of the connection."""

    def account(self, size: int) -> None:
        """Add bytes of requests to those in memory, or subtract them."""
        self.held += size
        self._context.held += size

    # -- called by requests --------------------------------------------------------------------------------------------

    def answered(self) -> None:
        pending = self.pending
        state = pending[0]
        response = state.response
        if len(pending) > 1 or response is None or response.stream is not None or self.is_stopping or state.extra:
            self._advance()
            return
        if self._is_advancing:
            return
        # The fast path, nearly always taken: a single request with a complete answer.
        state.stage = TRANSITIONS[state.stage][Step.END]
        context = self._context
        try:
            data = encode(response, context.tails, state.is_last, is_head=state.is_head, is_old=state.is_old)
        except (ValueError, TypeError):
            data = self._bytes(state, response)
        self._transport.send(data)
        if state.stage is Stage.SENT:  # not dropped by the transport
            pending.popleft()
            size = state.size
            if size:
                self.held -= size
                context.held -= size
            if state.is_last:
                self._connection.finish()

    def ended(self, state: RequestState) -> None:
        """The stream of ``state`` has written everything."""
        if state.is_chunked:
            self._transport.send(LAST_CHUNK)
        self._advance()

    def write(self, data: bytes) -> bool:
        """Send a part of a stream. Return False if the client reads too slowly."""
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
                if state.stage is Stage.ANSWERED:
                    self._start(state, response)
                if state.stage is not Stage.SENT:
                    return
                pending.popleft()
                self.account(-state.size)
                if state.is_last:
                    self._connection.finish()
                    return
            self.send_continue()
            if self.is_stopping and not pending:
                self._connection.finish()
        finally:
            self._is_advancing = False

    def send_continue(self) -> None:
        """Send ``100 Continue`` if the first request in the queue waits for it."""
        if self.pending and self.pending[0].expects_continue and self.pending[0].stage is Stage.RECEIVING:
            self.pending[0].expects_continue = False
            self._transport.send(CONTINUE)

    def _start(self, state: RequestState, response: Response) -> None:
        stream = response.stream
        if self.is_stopping and len(self.pending) == 1:
            state.is_last = True
        if stream is None or state.is_head:
            state.take(Step.END)
            self._transport.send(self._bytes(state, response))
            if stream is not None:
                run_callbacks([stream.disconnected])
        else:
            state.start(stream)
            self._transport.send(self._bytes(state, response))
            self._run_stream(lambda: stream.start(state))
            if self.is_stopping and state.is_events:
                self._end_events(state)

    def _bytes(self, state: RequestState, response: Response) -> bytes:
        tails = self._context.tails
        if state.extra:
            response = with_headers(response, state.extra)
        try:
            return encode(response, tails, state.is_last, is_head=state.is_head, is_old=state.is_old)
        except (ValueError, TypeError):  # the headers cannot be encoded
            log.exception("http_response_encoding_failed")
            state.response = INTERNAL
            return encode(INTERNAL, tails, state.is_last, is_head=state.is_head, is_old=state.is_old)

    def _run_stream(self, act: Callable[[], None]) -> None:
        """Let a stream write. If it fails, abort the connection, so that the client detects the truncation."""
        try:
            act()
        except Exception:
            log.exception("http_stream_failed")
            self._abort()

    def failed(self, state: RequestState) -> None:
        """The stream of ``state`` cannot continue."""
        if self.pending and state is self.pending[0]:
            self._abort()

    def _abort(self) -> None:
        self._connection.fail()
        self._transport.abort()

    def drained(self) -> None:
        """Continue a stream that waits for the client: the send buffer was flushed."""
        if self.pending:
            self._run_stream(self.pending[0].resume)

    def ping(self, now: float, after: float) -> None:
        if self.pending:
            self.pending[0].ping(now, after)

    # -- the end --------------------------------------------------------------------------------------------------

    def drop_from(self, index: int) -> None:
        """Drop the requests from this index on. They are not answered any more."""
        dropped = list(self.pending)[index:]
        for state in dropped:
            self.pending.pop()
            state.take(Step.DROP)
        for state in dropped:
            self.account(-state.size)
            state.notify_disconnected()

    def stop(self) -> None:
        """Refuse waiting requests and end event streams: the server is stopping."""
        self.is_stopping = True
        for state in list(self.pending):
            if state.is_waiting and state.response is None:
                self._refuse(state)
            elif state.is_waiting and state.is_streaming:
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
