"""HTTP connection, sans-IO: admits and refuses requests, bounds their memory, and times out slow clients.

Bytes go in and reach routes as requests; answers come out as bytes in the order of the requests. Requests of one
connection run at the same time, and ``protocols.http.pipelining`` keeps their order.

A request is refused as soon as its head shows that its body is too large, memory is short, or access control objects. A
body of up to ``SMALL_BODY`` bytes is still read and dropped, so that the connection can stay. A request delayed for
wrong tokens is the last one of its connection.

A client is too slow if a head takes longer than ``head_seconds``, or a body brings less than ``body_rate`` bytes/s.
Time in which the server itself does not read does not count. Instants are handed in; loop thread only."""

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
    """``heard`` after every piece of input, ``check`` about once a second."""

    __slots__ = ("_begun", "_body_at", "_body_size", "_head", "_head_at", "_idle_at", "_intake", "_limits")

    def __init__(self, intake: Intake, limits: Limits, now: float) -> None:
        self._intake = intake
        self._limits = limits
        self._begun = 0
        self._head: Head | None = None
        self._head_at = self._idle_at = self._body_at = now
        self._body_size = 0

    def heard(self, now: float) -> None:
        intake = self._intake
        if intake.begun != self._begun:
            self._begun = intake.begun
            self._head_at = self._idle_at = now
        if intake.head is not self._head:
            self._head = intake.head
            self._body_at, self._body_size = now, intake.body_size

    def excuse(self, now: float) -> None:
        """It is us who do not read, so it cannot be late."""
        self._head_at = self._body_at = now
        self._body_size = self._intake.body_size

    def check(self, now: float, is_busy: bool) -> bool:
        """True: nothing was asked for too long. ``Refused``: what was begun takes too long."""
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
"""Bytes of a body that is read even if its request is refused, so that the connection can stay."""


@dataclass(slots=True)
class Shared:
    """What every connection of a door shares. ``admit`` sees the head of each request, before its route does;
    ``policy`` judges it before a route is looked for."""

    routes: Routes
    limits: Limits
    tails: Tails
    admit: Callable[[Request], None] | None = None
    policy: OriginPolicy | None = None
    blocks: Blocks = field(default_factory=Blocks)
    delays: "Delays | None" = None
    held: int = field(default=0, init=False)
    """Bytes of requests that are held for all connections."""


class Delays(NamedTuple):
    """Requests that wait before anything is done for them: ``of`` says how many seconds, ``wait`` calls back then."""

    of: Callable[[Request], float]
    wait: Callable[[float, Callable[[], None]], Any]


class Connection:
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
        """Answered already; its body is still to come, and is thrown away."""
        self._is_over = False
        self._is_delayed = False
        """A request waits because of wrong tokens; it is the last one of this connection."""
        self._cleared: Mapping[str, str] | None = None
        """Headers that the policy let pass last. ``quick`` gives equal headers as the same object."""
        self.requests = 0

    # -- bytes in -------------------------------------------------------------------------------------------------

    def receive(self, data: memoryview, now: float) -> None:
        if self._is_over or not self._intake.is_open:
            return
        if self._rest:  # read before we could say that there is no room
            self._rest += data
            self._hold(len(data))
        else:
            self._take(data)
            self._pace.heard(now)

    def read_on(self, now: float) -> bool:
        """There may be room again. True: more bytes can be received."""
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
            log.exception("a request could not be taken in")
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
        """Why this request is refused before its body is read. ``size``: of that, if it is known. ``delay``: its route
        sees it only after so many seconds, and nothing large is kept until then."""
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
        """The answer is no. Where the body is not going to be read the connection ends with it."""
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
        begun.delay = begun.delay or self._delay(request)  # others were tried since its head came
        self._go(begun, begun.route, request)

    def whole(self, head: Head, body: bytes, route: Route | None) -> Route:
        shared = self._shared
        verdict = CLEAR if head[3] is self._cleared else self._judge(head)
        if route is None:
            route = shared.routes.find(head.method, head.path)
        request = new_request((*head[:4], body, self._peer))
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
            turn.is_last, self._intake.is_open, self._is_delayed = True, False, True  # one a connection
            timer = self._shared.delays.wait(seconds, lambda: self._go_late(turn, route, request))
            turn.when_gone(timer.cancel)
            return
        try:
            route.handle(request, turn)
        except QueueError as error:
            turn.answer(refusal(route, error))
        except Exception:
            log.exception("a route failed")
            turn.answer(refusal(route, QueueError("internal error")))

    def _go_late(self, turn: Turn, route: Route, request: Request) -> None:
        """A request that was delayed; its route has not admitted it yet."""
        try:
            if route.admit is not None:
                route.admit(request)
        except QueueError as error:
            turn.answer(refusal(route, error))
            return
        self._go(turn, route, request)

    def _refuse(self, refused: Refused) -> None:
        """The last answer of a connection that cannot be understood, or takes too long."""
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
        """The client sends nothing more. Who waits has left; what is already at work is still answered."""
        self._intake.is_open = False
        turns = self._line.turns
        self._let_go(next((place for place, turn in enumerate(turns) if turn.is_waiting), len(turns)))
        if not self._is_over:
            self._end_after(turns[-1] if turns else None)

    def lost(self) -> None:
        """There is no connection any more."""
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
        """The server is going: who waits is told so, and the connection ends when all is answered."""
        if not self._is_over:
            self._intake.is_open = False
            self._line.stop()
            if not self._line.turns:
                self.finish(is_clean=True)

    def send_away(self) -> None:
        """The server goes now: whatever is not answered yet is refused."""
        self._line.send_away()

    def check(self, now: float) -> str:
        """Why it is sent away, if it is; to be called about once a second. (One that asked for nothing more is closed
        without a word: that is how connections end.)"""
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
        """``is_clean``: there is no answer that could be lost with what the client still sends."""
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
        """Whether the client reads what it was sent."""
        self._line.is_clogged = is_clogged
        if not is_clogged:
            self._line.drained()

    def drained(self) -> None:
        """What was sent is on its way."""
        if self._line.turns and not self._line.is_clogged:
            self._line.drained()

    def describe(self) -> dict[str, object]:
        """For an operator."""
        return {"requests": self.requests, "pending": len(self._line.turns), "clogged": self.is_clogged}
