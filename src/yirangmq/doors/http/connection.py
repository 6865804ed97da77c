"""One HTTP connection, sans-IO: bytes in, requests to their routes; answers in, bytes out in the order of the requests.

Knows: which requests are at work, what may be sent when, when the connection ends. Does not know: sockets, clocks, what
routes do. Requests of one connection run at the same time."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

from yirangmq.core.errors import BadInput, QueueError, QuotaExceeded, TooLarge, Unavailable
from yirangmq.doors.http import reply
from yirangmq.doors.http.exchange import Request, Response, Route, Routes
from yirangmq.doors.http.head import Head, Refused
from yirangmq.doors.http.intake import Intake
from yirangmq.doors.http.limits import Limits
from yirangmq.doors.http.pace import Pace
from yirangmq.doors.http.reply import CONTINUE, LAST_CHUNK, Tails
from yirangmq.doors.http.turn import Turn
from yirangmq.observe.logs import log

SMALL_BODY = 64 * 1024
"""Bytes of a body that is read even if its request is refused, so that the connection can stay."""
NO_BODY = frozenset({204, 304})
PLAIN = (("content-type", "text/plain; charset=utf-8"),)


class Wire(Protocol):
    """The bytes' way out."""

    def send(self, data: bytes) -> bool:
        """False: the client does not read as fast as we write."""

    def finish(self, is_clean: bool) -> None:
        """Send what is there, then close: slowly, unless the client is known to be sending nothing."""

    def abort(self) -> None:
        """Close now. What was sent is cut off, and the client can tell."""


@dataclass(slots=True)
class Shared:
    """What every connection of a door shares. ``admit`` sees the head of each request, before its route does."""

    routes: Routes
    limits: Limits
    tails: Tails
    admit: Callable[[Request], None] | None = None
    held: int = field(default=0, init=False)
    """Bytes of requests that are held for all connections."""


class Connection:
    __slots__ = (
        "_held", "_intake", "_is_advancing", "_is_over", "_is_stopping", "_pace", "_peer", "_refused", "_rest",
        "_shared", "_turns", "_wire", "is_clogged", "requests",
    )  # fmt: skip

    def __init__(self, shared: Shared, wire: Wire, peer: str, now: float) -> None:
        self._shared = shared
        self._wire = wire
        self._peer = peer
        self._intake = Intake(self, shared.limits)
        self._pace = Pace(self._intake, shared.limits, now)
        self._turns: deque[Turn] = deque()
        self._rest = b""
        self._held = 0
        self._refused: Turn | None = None
        """Answered already; its body is still to come, and is thrown away."""
        self._is_advancing = self._is_over = self._is_stopping = False
        self.is_clogged = False
        """The client does not read what it was sent."""
        self.requests = 0

    # -- bytes in -------------------------------------------------------------------------------------------------

    def receive(self, data: memoryview, now: float) -> None:
        if not self._is_over and self._intake.is_open:
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
        except Refused as refusal:
            self._refuse(refusal)
        except Exception:
            log.exception("a request could not be taken in")
            self._refuse(Refused(500, "internal error"))
        if taken < len(data):
            self._rest = bytes(data[taken:])
            self._hold(len(self._rest))

    @property
    def is_full(self) -> bool:
        limits = self._shared.limits
        at_work = self._held - self._intake.body_size - len(self._rest)
        return self.is_clogged or len(self._turns) >= limits.pipelined or at_work >= limits.request_memory

    def _hold(self, size: int) -> None:
        self._held += size
        self._shared.held += size

    # -- requests, as the intake finds them -----------------------------------------------------------------------

    def begin(self, head: Head) -> Turn:
        route = self._shared.routes.find(head.method, head.path)
        turn = Turn(self, route, head)
        self._turns.append(turn)
        error = self._objection(route, head)
        if error is not None:
            self._decline(turn, error, is_read=head.length is not None and head.length <= SMALL_BODY)
        elif turn is self._turns[0]:
            self._tell_to_go_on()
        return turn

    def _objection(self, route: Route, head: Head) -> QueueError | None:
        """Why this request is refused before its body is read."""
        if head.length is not None and head.length > route.max_body:
            return _too_large(route)
        if self._shared.held + (head.length or 0) > self._shared.limits.total_memory:
            return Unavailable("too much is being sent by all clients together; try again later")
        for admit in (self._shared.admit, route.admit):
            if admit is not None:
                try:
                    admit(Request(head.method, head.path, head.query, head.headers, b"", self._peer))
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
        turn.answer(_refusal(turn, error))
        if turn.is_last and not self._intake.is_open:
            raise error

    def grow(self, size: int) -> None:
        self._hold(size)
        turn = self._turns[-1] if self._turns else None
        if turn is None or turn is self._refused or turn.route is None:
            return
        if self._intake.body_size > turn.route.max_body:
            self._decline(turn, _too_large(turn.route), is_read=False)
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
        if begun.response is not None or begun.is_gone or begun.route is None:
            self._hold(-len(body))
            return
        begun.size = len(body)
        self.requests += 1
        request = Request(head.method, head.path, head.query, head.headers, body, self._peer)
        try:
            begun.route.handle(request, begun)
        except QueueError as error:
            begun.answer(_refusal(begun, error))
        except Exception:
            log.exception("a route failed")
            begun.answer(_refusal(begun, QueueError("internal error")))

    def _refuse(self, refusal: Refused) -> None:
        """The last answer of a connection that cannot be understood, or takes too long."""
        self._intake.is_open = False
        self._rest = b""
        last = self._turns[-1] if self._turns else None
        if self._refused is not None and last is not self._refused:
            self._end_after(last)
            return
        if last is None or last.is_complete:
            last = Turn(self, None, None)
            self._turns.append(last)
        last.is_last = True
        if refusal.status == 400 and last.route is not None:
            last.answer(_refusal(last, BadInput(str(refusal))))
        else:
            last.answer(Response(refusal.status, f"{refusal}\n".encode(), PLAIN))

    def _end_after(self, turn: Turn | None) -> None:
        if turn is None:
            self._finish()
        else:
            turn.is_last = True

    # -- answers --------------------------------------------------------------------------------------------------

    def answered(self, turn: Turn) -> None:
        if self._turns and turn is self._turns[0]:
            self._advance()

    def ended(self, turn: Turn) -> None:
        if turn.is_chunked:
            self._wire.send(LAST_CHUNK)
        self._advance()

    def write(self, data: bytes) -> bool:
        return self._wire.send(data) and not self.is_clogged

    def _advance(self) -> None:
        """Send what is next in line, as far as it is there."""
        if self._is_advancing or self._is_over:
            return
        self._is_advancing = True
        try:
            while self._turns and (response := self._turns[0].response) is not None:
                turn = self._turns[0]
                if not turn.is_started:
                    self._start(turn, response)
                if not turn.is_ended or self._is_over:
                    return
                self._turns.popleft()
                self._hold(-turn.size)
                if turn.is_last:
                    self._finish()
                    return
            self._tell_to_go_on()
            if self._is_stopping and not self._turns:
                self._finish()
        finally:
            self._is_advancing = False

    def _tell_to_go_on(self) -> None:
        if self._turns and self._turns[0].waits_to_go_on and not self._turns[0].is_complete:
            self._turns[0].waits_to_go_on = False
            self._wire.send(CONTINUE)

    def _start(self, turn: Turn, response: Response) -> None:
        turn.is_started = True
        if self._is_stopping and len(self._turns) == 1:
            turn.is_last = True
        stream = response.stream
        if stream is not None and turn.is_old and not turn.is_head:
            turn.is_last = True  # its end is the end of the connection
            self._intake.is_open = False
        self._wire.send(self._bytes(turn, response))
        if stream is None:
            turn.is_ended = True
        elif turn.is_head:
            turn.is_ended = True
            self._run([stream.gone])
        else:
            turn.is_chunked = not turn.is_old
            self._stream(lambda: stream.start(turn))
            if self._is_stopping and turn.is_events:
                self._end_events(turn)

    def _bytes(self, turn: Turn, response: Response) -> bytes:
        try:
            lines = reply.status_line(response.status) + reply.fields(response.headers)
        except ValueError:  # of a header that breaks out of its line, or is no Latin-1
            log.exception("an answer cannot be sent")
            response = Response(500, b"internal error\n", PLAIN)
            turn.response = response
            lines = reply.status_line(500) + reply.fields(PLAIN)
        tail = self._shared.tails.tail(turn.is_last)
        if response.stream is not None:
            return lines + (tail if turn.is_old else b"transfer-encoding: chunked\r\n" + tail)
        if response.body is None or response.status in NO_BODY:
            return lines + tail
        return b"%bcontent-length: %d\r\n%b%b" % (
            lines, len(response.body), tail, b"" if turn.is_head else response.body,
        )  # fmt: skip

    def _stream(self, step: Callable[[], None]) -> None:
        """A stream that fails cannot be ended well: the client must see that something is missing."""
        try:
            step()
        except Exception:
            log.exception("a stream failed")
            self.lost()
            self._wire.abort()

    def drained(self) -> None:
        """What was sent is on its way; a stream that waited goes on."""
        turn = self._turns[0] if self._turns else None
        if turn is not None and turn.wants_drained and turn.stream is not None and not turn.is_ended:
            turn.wants_drained = False
            self._stream(turn.stream.drained)

    # -- the end --------------------------------------------------------------------------------------------------

    def receive_eof(self) -> None:
        """The client sends nothing more. Who waits has left; what is already at work is still answered."""
        self._intake.is_open = False
        kept = next((place for place, turn in enumerate(self._turns) if turn.is_waiting), len(self._turns))
        self._let_go([self._turns.pop() for _ in range(len(self._turns) - kept)][::-1])
        if not self._is_over:
            self._end_after(self._turns[-1] if self._turns else None)

    def lost(self) -> None:
        """There is no connection any more."""
        self._is_over = True
        self._intake.is_open = False
        turns = list(self._turns)
        self._turns.clear()
        self._let_go(turns)
        self._rest = b""
        self._hold(-self._held)

    def stop(self) -> None:
        """The server is going: who waits is told so, and the connection ends when all is answered."""
        if self._is_over or self._is_stopping:
            return
        self._is_stopping = True
        self._intake.is_open = False
        for turn in list(self._turns):
            if turn.is_waiting and turn.response is None:
                self._send_away(turn)
            elif turn.is_waiting and turn.is_started:
                self._end_events(turn)
        if not self._turns:
            self._finish(is_clean=True)

    def _end_events(self, turn: Turn) -> None:
        """In good order: who follows them comes again."""
        if turn.stream is not None:
            self._run([turn.stream.gone])
        turn.end()

    def send_away(self) -> None:
        """The server goes now: whatever is not answered yet is refused."""
        for turn in list(self._turns):
            if turn.response is None:
                self._send_away(turn)

    def _send_away(self, turn: Turn) -> None:
        self._run(turn.take_actions())
        turn.answer(_refusal(turn, Unavailable("the server is stopping; try again later")))

    def check(self, now: float) -> str:
        """Why it is sent away, if it is; to be called about once a second."""
        if self._is_over:
            return ""
        if self._turns and self._turns[0].is_started:
            self._turns[0].ping(now, self._shared.limits.ping_seconds)
        if self.is_full or not self._intake.is_open:
            self._pace.excuse(now)
            return ""
        try:
            if self._pace.check(now, bool(self._turns)):
                self._finish()
                return "idle"
        except Refused as refusal:
            self._refuse(refusal)
            return "slow request"
        return ""

    def _finish(self, *, is_clean: bool = False) -> None:
        """``is_clean``: there is no answer that could be lost with what the client still sends."""
        if self._is_over:
            return
        is_clean |= not self._rest and self._intake.head is None and not self._intake.in_head
        self.lost()
        self._wire.finish(is_clean)

    def _let_go(self, turns: list[Turn]) -> None:
        for turn in turns:
            turn.is_gone = True
            self._hold(-turn.size)
            self._run(turn.take_actions())
            if turn.stream is not None and turn.is_started and not turn.is_ended:
                self._run([turn.stream.gone])

    def _run(self, actions: Iterable[Callable[[], None]]) -> None:
        """Of others, each by itself."""
        for action in actions:
            try:
                action()
            except Exception:
                log.exception("leaving failed")

    def describe(self) -> dict[str, object]:
        """For an operator."""
        return {"requests": self.requests, "pending": len(self._turns), "clogged": self.is_clogged}


def _too_large(route: Route) -> TooLarge:
    return TooLarge(f"must not have more than {route.max_body} bytes", field="body")


def _refusal(turn: Turn, error: QueueError) -> Response:
    """In the shape of the API that was asked."""
    if turn.route is None:
        return Response(500, b"internal error\n", PLAIN)
    try:
        response = turn.route.refuse(error)
    except Exception:
        log.exception("an error could not be told")
        return Response(500, b"internal error\n", PLAIN)
    after = error.retry_after if isinstance(error, QuotaExceeded) else None
    if after is not None and not any(name == "retry-after" for name, _ in response.headers):
        response = response._replace(headers=(*response.headers, ("retry-after", str(ceil(after)))))
    return response
