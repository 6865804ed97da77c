"""HTTP connection, sans-IO: admits and refuses requests, bounds their memory, and times out slow clients.

Bytes go in and reach routes as requests; answers come out as bytes in the order of the requests. Requests of one
connection run concurrently, and ``protocols.http.pipelining`` keeps the order of their answers.

A request is refused as soon as its head shows that its body is too large, memory is short, or access control objects. A
body of up to ``SMALL_BODY`` bytes is still read and discarded, so that the connection stays open. A request delayed for
wrong tokens is the last one of its connection.

A client is too slow if a head takes longer than ``head_seconds``, or a body arrives at less than ``body_rate`` bytes/s.
Time in which the server itself does not read does not count. Instants are parameters; loop thread only."""

from collections.abc import Mapping

from yirangmq.core.errors import BadInput, QueueError, QuotaExceeded, Unavailable
from yirangmq.observe.logs import log
from yirangmq.protocols.http.auth import ACCEPTED, PREFLIGHT, OriginVerdict
from yirangmq.protocols.http.context import ClientTimeouts, HttpContext
from yirangmq.protocols.http.parser import HttpParser
from yirangmq.protocols.http.pipelining import TRANSITIONS, RequestState, ResponseQueue, ResponseTransport, Stage, Step
from yirangmq.protocols.http.responses import plain, refusal, refuse_content_coding, too_large
from yirangmq.protocols.http.types import Headers, HttpRoute, Request, RequestHead, RequestRefused, new_request

SMALL_BODY = 64 * 1024
"""Maximum size in bytes of a body that is read although its request is refused, so that the connection stays open."""


class HttpConnection:
    """HTTP connection, sans-IO: requests in, answers out in the same order. Loop thread only."""

    __slots__ = (
        "_accepted_headers", "_context", "_discarded", "_is_closed", "_is_delayed", "_parser", "_peer", "_timeouts",
        "_transport", "_unparsed", "requests", "responses",
    )  # fmt: skip

    def __init__(self, context: HttpContext, transport: ResponseTransport, peer: str, now: float) -> None:
        self._context = context
        self._transport = transport
        self._peer = peer
        self._parser = HttpParser(self, context.limits, context.head_cache)
        self._timeouts = ClientTimeouts(self._parser, context.limits, now)
        self.responses = ResponseQueue(self, transport, context)
        self._unparsed = b""
        self._discarded: RequestState | None = None
        """Refused request whose body is still arriving and is discarded."""
        self._is_closed = False
        self._is_delayed = False
        """True if a request is delayed for wrong tokens; it is the last one of this connection."""
        self._accepted_headers: Mapping[str, str] | None = None
        """Headers that the policy accepted last. The head cache returns equal headers as the same object."""
        self.requests = 0

    # -- bytes in -------------------------------------------------------------------------------------------------

    def receive(self, data: memoryview, now: float) -> bool:
        """Process bytes. Return True if the connection is full: it takes no more until ``resume``."""
        parser, responses, limits = self._parser, self.responses, self._context.limits
        if self._is_closed or not parser.is_open:
            return self.is_full
        if self._unparsed:  # bytes that arrived before reading was paused
            self._unparsed += data
            responses.account(len(data))
            return self.is_full
        taken = 0
        if not (responses.pending or responses.is_write_paused) or not self.is_full:
            try:
                taken = parser.feed(data)
            except RequestRefused as refused:
                taken = len(data)
                self._refuse(refused)
            except Exception:
                log.exception("http_request_intake_failed")
                taken = len(data)
                self._refuse(RequestRefused(500, "internal error"))
        if taken < len(data):
            self._unparsed = bytes(data[taken:])
            responses.account(len(self._unparsed))
        timeouts = self._timeouts
        if parser.begun != timeouts.heads_seen:
            timeouts.heads_seen = parser.begun
            timeouts.head_at = timeouts.idle_at = now
        if parser.head is not timeouts.head:
            timeouts.on_body(now)
        if responses.is_write_paused or len(responses.pending) >= limits.pipelined:
            return True
        return responses.held >= limits.request_memory and self.is_full

    def resume(self, now: float) -> bool:
        """Process bytes left over from a full state. Return True if the connection can receive more bytes."""
        if self._unparsed and not self.is_full:
            rest, self._unparsed = self._unparsed, b""
            self.responses.account(-len(rest))
            self._timeouts.restart(now)
            self.receive(memoryview(rest), now)
        return not self.is_full

    @property
    def is_full(self) -> bool:
        limits = self._context.limits
        responses = self.responses
        if responses.is_write_paused or len(responses.pending) >= limits.pipelined:
            return True
        if responses.held < limits.request_memory:
            return False
        return responses.held - self._parser.body_size - len(self._unparsed) >= limits.request_memory

    # -- requests, as the parser finds them -----------------------------------------------------------------------

    def begin_request(self, head: RequestHead) -> RequestState:
        """Receive a complete head. An error stops the parser."""
        verdict = self._check_origin(head)
        route = PREFLIGHT if verdict.is_preflight else self._context.routes.find(head.method, head.path)
        request = Request(head.method, head.path, head.query, head.headers, b"", self._peer)
        delay = self._delay(request)
        size = SMALL_BODY + 1 if delay and head.length is None else head.length or 0
        error = verdict.error or refuse_content_coding(head) or self._refusal_before_body(route, request, size, delay)
        state = self._enqueue(head, route, error, verdict.headers)
        state.delay = delay
        return state

    def _check_origin(self, head: RequestHead) -> OriginVerdict:
        policy = self._context.policy
        if policy is None or head.headers is self._accepted_headers:
            return ACCEPTED
        verdict = policy.check(head.method, head.path, head.headers, self._peer)
        if verdict is ACCEPTED:
            self._accepted_headers = head.headers
        return verdict

    def _enqueue(self, head: RequestHead, route: HttpRoute, error: QueueError | None, extra: Headers) -> RequestState:
        responses = self.responses
        state = RequestState(responses, route, head)
        if extra:
            state.extra = extra
        responses.pending.append(state)
        if error is not None:
            self._refuse_request(state, error, is_read=head.length is not None and head.length <= SMALL_BODY)
        elif state.expects_continue:
            responses.send_continue()
        return state

    def _delay(self, request: Request) -> float:
        token_delays = self._context.token_delays
        return 0.0 if token_delays is None else token_delays.of(request)

    def _refusal_before_body(self, route: HttpRoute, request: Request, size: int, delay: float) -> QueueError | None:
        """Return the error that refuses this request before its body is read, or None.

        ``size``: bytes of the body, if known. ``delay``: seconds until the route sees the request; no large body is
        kept in memory for a delayed request."""
        context = self._context
        if delay and size > SMALL_BODY:
            return QuotaExceeded(f"too many wrong tokens came from this address; try again in {delay:.3f} s")
        if size > route.max_body:
            return too_large(route)
        if context.held + size > context.limits.total_memory:
            return Unavailable("too much is being sent by all clients together; try again later")
        server_check, route_check = context.admit, route.admit
        if server_check is None and route_check is None:
            return None
        try:
            if server_check is not None:
                server_check(request)
            if route_check is not None and not delay:
                route_check(request)
        except QueueError as error:
            return error
        return None

    def _refuse_request(self, state: RequestState, error: QueueError, *, is_read: bool) -> None:
        """Refuse a request. If its body is not read, the connection closes after the answer."""
        if is_read and not state.expects_continue:
            self._discarded = state
        else:
            state.is_last = True
            self._parser.is_open = False
        state.answer(refusal(state.route, error))
        if state.is_last and not self._parser.is_open:
            raise error

    def count_body(self, size: int) -> None:
        """Account for more bytes of the body. An error stops the parser."""
        self.responses.account(size)
        state = self.responses.pending[-1] if self.responses.pending else None
        if state is None or state is self._discarded or state.route is None:
            return
        if self._parser.body_size > state.route.max_body:
            self._refuse_request(state, too_large(state.route), is_read=False)
        elif self._context.held > self._context.limits.total_memory:
            self._refuse_request(state, Unavailable("too much is being sent by all clients together"), is_read=False)

    def complete_request(self, begun: RequestState, head: RequestHead, body: bytes) -> None:
        if self._is_closed:
            return
        begun.take(Step.COMPLETE)
        if not head.keep_alive:
            self._parser.is_open = False
        if begun is self._discarded:
            self._discarded = None
        if begun.stage is not Stage.HANDLING or begun.route is None or self._is_delayed:
            self.responses.account(-len(body))
            return
        begun.size = len(body)
        request = Request(head.method, head.path, head.query, head.headers, body, self._peer)
        begun.delay = begun.delay or self._delay(request)  # more wrong tokens may have been examined since the head
        self._dispatch(begun, begun.route, request)

    def whole_request(self, head: RequestHead, body: bytes, route: HttpRoute | None) -> HttpRoute:
        """Receive a request in one call, and return its route. ``route``: that of an earlier request with this head."""
        context, responses = self._context, self.responses
        if route is None:
            route = context.routes.find(head.method, head.path)
        request = new_request((head.method, head.path, head.query, head.headers, body, self._peer))
        size = len(body)
        if (
            (context.policy is not None and head.headers is not self._accepted_headers)
            or (context.token_delays is not None and context.token_delays.of(request))
            or size > route.max_body
            or context.held + size > context.limits.total_memory
        ):
            state = self.begin_request(head)
            responses.account(size)
            self.complete_request(state, head, body)
            return route
        try:
            if context.admit is not None:
                context.admit(request)
            if route.admit is not None:
                route.admit(request)
        except QueueError as error:
            state = self._enqueue(head, route, error, ())
            responses.account(size)
            self.complete_request(state, head, body)
            return route
        state = RequestState(responses, route, head)
        state.stage = TRANSITIONS[state.stage][Step.COMPLETE]
        responses.pending.append(state)
        if size:
            state.size = size
            responses.held += size
            context.held += size
        self.requests += 1
        try:
            route.handle(request, state)
        except Exception as failure:
            self._answer_failure(state, route, failure)
        return route

    def _dispatch(self, state: RequestState, route: HttpRoute, request: Request) -> None:
        self.requests += 1
        if state.delay and self._context.token_delays is not None:
            seconds, state.delay = state.delay, 0.0
            state.take(Step.DELAY)
            state.is_last, self._parser.is_open, self._is_delayed = True, False, True  # at most one per connection
            timer = self._context.token_delays.wait(seconds, lambda: self._dispatch_delayed(state, route, request))
            state.on_disconnect(timer.cancel)
            return
        try:
            route.handle(request, state)
        except Exception as failure:
            self._answer_failure(state, route, failure)

    def _answer_failure(self, state: RequestState, route: HttpRoute, failure: Exception) -> None:
        if not isinstance(failure, QueueError):
            log.error("http_route_failed", exc_info=failure)
            failure = QueueError("internal error")
        state.answer(refusal(route, failure))

    def _dispatch_delayed(self, state: RequestState, route: HttpRoute, request: Request) -> None:
        """Run a delayed request. Its route has not admitted it yet."""
        state.take(Step.RESUME)
        try:
            if route.admit is not None:
                route.admit(request)
        except QueueError as error:
            state.answer(refusal(route, error))
            return
        self._dispatch(state, route, request)

    def _refuse(self, refused: RequestRefused) -> None:
        """Send the last answer of a connection whose input is invalid or too slow."""
        self._parser.is_open = False
        self.responses.account(-len(self._unparsed))
        self._unparsed = b""
        last = self.responses.pending[-1] if self.responses.pending else None
        if self._discarded is not None and last is not self._discarded:
            self._close_after(last)
            return
        if last is None or (last.stage is not Stage.RECEIVING and last is not self._discarded):
            last = RequestState(self.responses, None, None)
            self.responses.pending.append(last)
        last.is_last = True
        if refused.status == 400 and last.route is not None:
            last.answer(refusal(last.route, BadInput(str(refused))))
        else:
            last.answer(plain(refused.status, str(refused)))

    def _close_after(self, state: RequestState | None) -> None:
        if state is None:
            self.finish()
        else:
            state.is_last = True

    # -- the end --------------------------------------------------------------------------------------------------

    def receive_eof(self) -> None:
        """Handle the end of the client's input. Waiting requests are dropped; those already running are still
        answered."""
        self._parser.is_open = False
        pending = self.responses.pending
        waiting = (index for index, state in enumerate(pending) if state.is_waiting)
        self.responses.drop_from(next(waiting, len(pending)))
        if not self._is_closed:
            self._close_after(pending[-1] if pending else None)

    def release(self) -> None:
        """Release all requests: the connection is lost."""
        self._is_closed = True
        self._parser.is_open = False
        self.responses.drop_from(0)
        self._unparsed = b""
        self.responses.account(-self.responses.held)

    def stop(self) -> None:
        """Drain at server shutdown: waiting requests are refused, and the connection closes after the last answer."""
        if not self._is_closed:
            self._parser.is_open = False
            self.responses.stop()
            if not self.responses.pending:
                self.finish(is_clean=True)

    def refuse_all(self) -> None:
        """Refuse all unanswered requests: the drain of the server is over."""
        self.responses.refuse_all()

    def check(self, now: float) -> str:
        """Check the timeouts; called about once per second. Return the reason if the client is disconnected, else "".

        An idle connection is closed without an answer or a reason, as is usual for keep-alive."""
        if self._is_closed:
            return ""
        self.responses.ping(now, self._context.limits.ping_seconds)
        if self.is_full or not self._parser.is_open:
            self._timeouts.restart(now)
            return ""
        try:
            if self._timeouts.check(now, bool(self.responses.pending)):
                self.finish()
        except RequestRefused as refused:
            self._refuse(refused)
            return "slow request"
        return ""

    # -- called by the pipeline ----------------------------------------------------------------------------------------

    def finish(self, *, is_clean: bool = False) -> None:
        """Close after the last answer.

        ``is_clean``: no answer can be lost because of bytes that the client still sends."""
        if self._is_closed:
            return
        is_clean |= not self._unparsed and self._parser.head is None and not self._parser.in_head
        self.release()
        self._transport.finish(is_clean)

    def fail(self) -> None:
        self.release()

    # -- for the socket -------------------------------------------------------------------------------------------

    @property
    def is_write_paused(self) -> bool:
        return self.responses.is_write_paused

    def set_write_paused(self, is_write_paused: bool) -> None:
        """Set the backpressure state: True while the client does not read fast enough."""
        self.responses.is_write_paused = is_write_paused
        if not is_write_paused:
            self.responses.drained()

    def drained(self) -> None:
        """Continue a stream that waits: the send buffer was flushed."""
        if self.responses.pending and not self.responses.is_write_paused:
            self.responses.drained()

    def describe(self) -> dict[str, object]:
        """Return counters for operators."""
        return {"requests": self.requests, "pending": len(self.responses.pending), "clogged": self.is_write_paused}
