"""HTTP connection, sans-IO: admits and refuses requests, bounds their memory, and times out slow clients.

Bytes go in and reach routes as requests; answers come out as bytes in the order of the requests. Requests of one
connection run concurrently, and ``protocols.http.pipelining`` keeps the order of their answers.

A request is refused as soon as its head shows that its body is too large, memory is short, or access control objects. A
body of up to ``SMALL_BODY`` bytes is still read and discarded, so that the connection stays open. A request delayed for
wrong tokens is the last one of its connection.

A client is too slow if a head takes longer than ``head_seconds``, or a body arrives at less than ``body_rate`` bytes/s.
Time in which the server itself does not read does not count. Instants are parameters; loop thread only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from yirangmq.core.errors import BadInput, QueueError, QuotaExceeded, Unavailable
from yirangmq.observe.logs import log
from yirangmq.protocols.http.auth import CLEAR, PREFLIGHT, OriginPolicy, Verdict
from yirangmq.protocols.http.head_cache import Blocks
from yirangmq.protocols.http.parser import Intake
from yirangmq.protocols.http.pipelining import Line, Turn, Wire
from yirangmq.protocols.http.responses import Tails, packed, plain, refusal, too_large
from yirangmq.protocols.http.types import Head, Headers, Limits, Refused, Request, Route, Routes, new_request

# -- slow clients ------------------------------------------------------------------------------------------------------


class Pace:
    """Timeouts of a connection: slow heads, slow bodies, and idle connections.

    ``heard`` is called after every piece of input, ``check`` about once per second."""

    __slots__ = ("_begun", "_body_at", "_body_size", "_head", "_head_at", "_idle_at", "_intake", "_limits")

    def __init__(self, intake: Intake, limits: Limits, now: float) -> None:
        self._intake = intake
        self._limits = limits
        self._begun = 0
        self._head: Head | None = None
        self._head_at = self._idle_at = self._body_at = now
        self._body_size = 0

    def heard(self, now: float) -> None:
        """Restart the timers of the head or of the body if a new one has begun."""
        intake = self._intake
        if intake.begun != self._begun:
            self._begun = intake.begun
            self._head_at = self._idle_at = now
        if intake.head is not self._head:
            self._head = intake.head
            self._body_at, self._body_size = now, intake.body_size

    def excuse(self, now: float) -> None:
        """Restart the timers: the server has paused reading, so the client cannot be late."""
        self._head_at = self._body_at = now
        self._body_size = self._intake.body_size

    def check(self, now: float, is_busy: bool) -> bool:
        """Return True if the connection has been idle for too long; raise ``Refused`` if a request is too slow."""
        intake, limits = self._intake, self._limits
        if is_busy:
            self._idle_at = now
        if intake.head is not None:
            self._check_body(now)
        elif intake.in_head:
            if now - self._head_at > limits.head_seconds:
                raise Refused(408, f"the head of the request took longer than {limits.head_seconds:g} seconds")
        elif not is_busy:
            return now - self._idle_at > limits.idle_seconds
        return False

    def _check_body(self, now: float) -> None:
        spent = now - self._body_at
        if spent <= self._limits.body_seconds:
            return
        if self._intake.body_size - self._body_size < self._limits.body_rate * spent:
            raise Refused(408, f"the body comes at less than {self._limits.body_rate} bytes a second")
        self._body_at, self._body_size = now, self._intake.body_size


# -- connection --------------------------------------------------------------------------------------------------------

SMALL_BODY = 64 * 1024
"""Maximum size in bytes of a body that is read although its request is refused, so that the connection stays open."""


@dataclass(slots=True)
class Shared:
    """Context shared by all connections of an HTTP server.

    ``policy`` checks each head before the route lookup. ``admit`` checks the head of each request before its route
    does."""

    routes: Routes
    limits: Limits
    tails: Tails
    admit: Callable[[Request], None] | None = None
    policy: OriginPolicy | None = None
    blocks: Blocks = field(default_factory=Blocks)
    delays: "Delays | None" = None
    held: int = field(default=0, init=False)
    """Bytes of requests in memory, for all connections together."""


class Delays(NamedTuple):
    """Delays of requests after wrong tokens: ``of`` returns the seconds, ``wait`` calls back after them."""

    of: Callable[[Request], float]
    wait: Callable[[float, Callable[[], None]], Any]


class Connection:
    """HTTP connection, sans-IO: requests in, answers out in the same order. Loop thread only."""

    __slots__ = (
        "_cleared", "_held", "_intake", "_is_delayed", "_is_over", "_line", "_pace", "_peer", "_refused", "_rest",
        "_shared", "_wire", "requests",
    )  # fmt: skip

    def __init__(self, shared: Shared, wire: Wire, peer: str, now: float) -> None:
        self._shared = shared
        self._wire = wire
        self._peer = peer
        self._intake = Intake(self, shared.limits, shared.blocks)
        self._pace = Pace(self._intake, shared.limits, now)
        self._line = Line(self, wire, shared.tails)
        self._rest = b""
        self._held = 0
        self._refused: Turn | None = None
        """Refused request whose body is still arriving and is discarded."""
        self._is_over = False
        self._is_delayed = False
        """True if a request is delayed for wrong tokens; it is the last one of this connection."""
        self._cleared: Mapping[str, str] | None = None
        """Headers that the policy accepted last. The head cache returns equal headers as the same object."""
        self.requests = 0

    # -- bytes in -------------------------------------------------------------------------------------------------

    def receive(self, data: memoryview, now: float) -> None:
        if self._is_over or not self._intake.is_open:
            return
        if self._rest:  # bytes that arrived before reading was paused
            self._rest += data
            self._hold(len(data))
        else:
            self._take(data)
            self._pace.heard(now)

    def read_on(self, now: float) -> bool:
        """Process bytes left over from a full state. Return True if the connection can receive more bytes."""
        if self._rest and not self.is_full:
            rest, self._rest = self._rest, b""
            self._hold(-len(rest))
            self._pace.excuse(now)
            self.receive(memoryview(rest), now)
        return not self.is_full

    def _take(self, data: memoryview) -> None:
        taken = len(data)
        try:
            taken = self._intake.feed(data)
        except Refused as refused:
            self._refuse(refused)
        except Exception:
            log.exception("http_request_intake_failed")
            self._refuse(Refused(500, "internal error"))
        if taken < len(data):
            self._rest = bytes(data[taken:])
            self._hold(len(self._rest))

    @property
    def is_full(self) -> bool:
        limits = self._shared.limits
        line = self._line
        if line.is_clogged or len(line.turns) >= limits.pipelined:
            return True
        if self._held < limits.request_memory:
            return False
        return self._held - self._intake.body_size - len(self._rest) >= limits.request_memory

    def _hold(self, size: int) -> None:
        self._held += size
        self._shared.held += size

    # -- requests, as the intake finds them -----------------------------------------------------------------------

    def begin(self, head: Head) -> Turn:
        verdict = self._judge(head)
        route = PREFLIGHT if verdict.is_preflight else self._shared.routes.find(head.method, head.path)
        request = Request(head.method, head.path, head.query, head.headers, b"", self._peer)
        delay = self._delay(request)
        size = SMALL_BODY + 1 if delay and head.length is None else head.length or 0
        error = verdict.error or packed(head) or self._objection(route, request, size, delay)
        turn = self._begin(head, route, error, verdict.headers)
        turn.delay = delay
        return turn

    def _judge(self, head: Head) -> Verdict:
        policy = self._shared.policy
        if policy is None or head.headers is self._cleared:
            return CLEAR
        verdict = policy.judge(head.method, head.path, head.headers, self._peer)
        if verdict is CLEAR:
            self._cleared = head.headers
        return verdict

    def _begin(self, head: Head, route: Route, error: QueueError | None, extra: Headers) -> Turn:
        line = self._line
        turn = Turn(line, route, head)
        if extra:
            turn.extra = extra
        line.turns.append(turn)
        if error is not None:
            self._decline(turn, error, is_read=head.length is not None and head.length <= SMALL_BODY)
        elif turn.waits_to_go_on:
            line.tell_to_go_on()
        return turn

    def _delay(self, request: Request) -> float:
        delays = self._shared.delays
        return 0.0 if delays is None else delays.of(request)

    def _objection(self, route: Route, request: Request, size: int, delay: float) -> QueueError | None:
        """Return the error that refuses this request before its body is read, or None.

        ``size``: bytes of the body, if known. ``delay``: seconds until the route sees the request; no large body is
        kept in memory for a delayed request."""
        shared = self._shared
        if delay and size > SMALL_BODY:
            return QuotaExceeded(f"too many wrong tokens came from this address; try again in {delay:.3f} s")
        if size > route.max_body:
            return too_large(route)
        if shared.held + size > shared.limits.total_memory:
            return Unavailable("too much is being sent by all clients together; try again later")
        everybody, those_here = shared.admit, route.admit
        if everybody is None and those_here is None:
            return None
        try:
            if everybody is not None:
                everybody(request)
            if those_here is not None and not delay:
                those_here(request)
        except QueueError as error:
            return error
        return None

    def _decline(self, turn: Turn, error: QueueError, *, is_read: bool) -> None:
        """Refuse a request. If its body is not read, the connection closes after the answer."""
        if is_read and not turn.waits_to_go_on:
            self._refused = turn
        else:
            turn.is_last = True
            self._intake.is_open = False
        turn.answer(refusal(turn.route, error))
        if turn.is_last and not self._intake.is_open:
            raise error

    def grow(self, size: int) -> None:
        self._hold(size)
        turn = self._line.turns[-1] if self._line.turns else None
        if turn is None or turn is self._refused or turn.route is None:
            return
        if self._intake.body_size > turn.route.max_body:
            self._decline(turn, too_large(turn.route), is_read=False)
        elif self._shared.held > self._shared.limits.total_memory:
            self._decline(turn, Unavailable("too much is being sent by all clients together"), is_read=False)

    def complete(self, begun: Turn, head: Head, body: bytes) -> None:
        if self._is_over:
            return
        begun.is_complete = True
        if not head.stays:
            self._intake.is_open = False
        if begun is self._refused:
            self._refused = None
        if begun.response is not None or begun.is_gone or begun.route is None or self._is_delayed:
            self._hold(-len(body))
            return
        begun.size = len(body)
        request = Request(head.method, head.path, head.query, head.headers, body, self._peer)
        begun.delay = begun.delay or self._delay(request)  # more wrong tokens may have been examined since the head
        self._go(begun, begun.route, request)

    def whole(self, head: Head, body: bytes, route: Route | None) -> Route:
        shared = self._shared
        verdict = CLEAR if head.headers is self._cleared else self._judge(head)
        if route is None:
            route = shared.routes.find(head.method, head.path)
        request = new_request((head.method, head.path, head.query, head.headers, body, self._peer))
        size = len(body)
        delays = shared.delays
        delay = 0.0 if delays is None else delays.of(request)
        error: QueueError | None = None if verdict is CLEAR else verdict.error
        if error is None:
            error = self._objection(route, request, size, delay)
        if error is not None or verdict is not CLEAR:
            turn = self._begin(head, route, error, verdict.headers)
            turn.delay = delay
            self._hold(size)
            self.complete(turn, head, body)
            return route
        turn = Turn(self._line, route, head)
        self._line.turns.append(turn)
        turn.is_complete = True
        if delay:
            turn.delay = delay
        if size:
            turn.size = size
            self._held += size
            shared.held += size
        self._go(turn, route, request)
        return route

    def _go(self, turn: Turn, route: Route, request: Request) -> None:
        self.requests += 1
        if turn.delay and self._shared.delays is not None:
            seconds, turn.delay = turn.delay, 0.0
            turn.is_last, self._intake.is_open, self._is_delayed = True, False, True  # at most one per connection
            timer = self._shared.delays.wait(seconds, lambda: self._go_late(turn, route, request))
            turn.when_gone(timer.cancel)
            return
        try:
            route.handle(request, turn)
        except QueueError as error:
            turn.answer(refusal(route, error))
        except Exception:
            log.exception("http_route_failed")
            turn.answer(refusal(route, QueueError("internal error")))

    def _go_late(self, turn: Turn, route: Route, request: Request) -> None:
        """Run a delayed request. Its route has not admitted it yet."""
        try:
            if route.admit is not None:
                route.admit(request)
        except QueueError as error:
            turn.answer(refusal(route, error))
            return
        self._go(turn, route, request)

    def _refuse(self, refused: Refused) -> None:
        """Send the last answer of a connection whose input is invalid or too slow."""
        self._intake.is_open = False
        self._hold(-len(self._rest))
        self._rest = b""
        last = self._line.turns[-1] if self._line.turns else None
        if self._refused is not None and last is not self._refused:
            self._end_after(last)
            return
        if last is None or last.is_complete:
            last = Turn(self._line, None, None)
            self._line.turns.append(last)
        last.is_last = True
        if refused.status == 400 and last.route is not None:
            last.answer(refusal(last.route, BadInput(str(refused))))
        else:
            last.answer(plain(refused.status, str(refused)))

    def _end_after(self, turn: Turn | None) -> None:
        if turn is None:
            self.finish()
        else:
            turn.is_last = True

    # -- the end --------------------------------------------------------------------------------------------------

    def receive_eof(self) -> None:
        """Handle the end of the client's input. Waiting requests are dropped; those already running are still
        answered."""
        self._intake.is_open = False
        turns = self._line.turns
        self._let_go(next((place for place, turn in enumerate(turns) if turn.is_waiting), len(turns)))
        if not self._is_over:
            self._end_after(turns[-1] if turns else None)

    def lost(self) -> None:
        """Release all requests: the connection is lost."""
        self._is_over = True
        self._intake.is_open = False
        self._let_go(0)
        self._rest = b""
        self._hold(-self._held)

    def _let_go(self, place: int) -> None:
        for turn in self._line.take_back(place):
            self._hold(-turn.size)
            turn.tell_gone()

    def stop(self) -> None:
        """Drain at server shutdown: waiting requests are refused, and the connection closes after the last answer."""
        if not self._is_over:
            self._intake.is_open = False
            self._line.stop()
            if not self._line.turns:
                self.finish(is_clean=True)

    def send_away(self) -> None:
        """Refuse all unanswered requests: the drain of the server is over."""
        self._line.send_away()

    def check(self, now: float) -> str:
        """Check the timeouts; called about once per second. Return the reason if the client is disconnected, else "".

        An idle connection is closed without an answer or a reason, as is usual for keep-alive."""
        if self._is_over:
            return ""
        self._line.ping(now, self._shared.limits.ping_seconds)
        if self.is_full or not self._intake.is_open:
            self._pace.excuse(now)
            return ""
        try:
            if self._pace.check(now, bool(self._line.turns)):
                self.finish()
        except Refused as refused:
            self._refuse(refused)
            return "slow request"
        return ""

    # -- called by the pipeline ----------------------------------------------------------------------------------------

    def served(self, turn: Turn) -> None:
        size = turn.size
        if size:
            self._held -= size
            self._shared.held -= size

    def finish(self, *, is_clean: bool = False) -> None:
        """Close after the last answer.

        ``is_clean``: no answer can be lost because of bytes that the client still sends."""
        if self._is_over:
            return
        is_clean |= not self._rest and self._intake.head is None and not self._intake.in_head
        self.lost()
        self._wire.finish(is_clean)

    def fail(self) -> None:
        self.lost()

    # -- for the socket -------------------------------------------------------------------------------------------

    @property
    def is_clogged(self) -> bool:
        return self._line.is_clogged

    def clog(self, is_clogged: bool) -> None:
        """Set the backpressure state: True while the client does not read fast enough."""
        self._line.is_clogged = is_clogged
        if not is_clogged:
            self._line.drained()

    def drained(self) -> None:
        """Continue a stream that waits: the send buffer was flushed."""
        if self._line.turns and not self._line.is_clogged:
            self._line.drained()

    def describe(self) -> dict[str, object]:
        """Return counters for operators."""
        return {"requests": self.requests, "pending": len(self._line.turns), "clogged": self.is_clogged}
