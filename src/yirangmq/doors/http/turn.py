"""One request in the line of its connection: from its head to the last byte of its answer.

Knows: whether it is answered, who must be told if the client leaves. Does not know: bytes, sockets."""

from collections.abc import Callable, Iterable
from typing import Protocol

from yirangmq.doors.http.exchange import Headers, Response, Route, Stream
from yirangmq.doors.http.head import Head
from yirangmq.doors.http.reply import chunk
from yirangmq.observe.logs import log

EVENTS = "text/event-stream"
PING = b":\n\n"
"""A comment: every reader of events drops it."""


class Place(Protocol):
    """Where a turn stands in line."""

    def answered(self) -> None: ...

    def write(self, data: bytes) -> bool:
        """False: the client reads too slowly."""

    def ended(self, turn: "Turn") -> None:
        """Its stream has written everything."""

    def failed(self, turn: "Turn") -> None:
        """Its stream cannot go on."""


class Turn:
    """An ``exchange.Exchange``, and the ``exchange.Outlet`` of its stream."""

    # Most turns change few of these, so they stand in the class.
    response: Response | None = None
    delay = 0.0
    """Seconds to wait before its route sees it; until then its route has not admitted it."""
    size = 0
    """Bytes of the request that are held for it."""
    is_complete = False
    """The whole request is here."""
    is_gone = False
    is_head = is_old = False
    is_last = False
    """The connection ends after it."""
    waits_to_go_on = False
    is_started = is_ended = is_chunked = wants_drained = False
    extra: Headers = ()
    """Headers added to the response, whatever it is: those that let a page of another origin read it."""
    counted = seen = 0
    """Pieces its stream has written; how many of them there were at ``seen_at``."""
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
        """Its request is not all here, or its route waits for something: it asked to be told, or sends events."""
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
        """Whoever works for it need not go on."""
        actions, self._actions = self._actions, ()
        run_each(actions)
        if self.stream is not None and self.is_started and not self.is_ended:
            run_each([self.stream.gone])

    def ping(self, now: float, after: float) -> None:
        """A stream of events that was silent for so long says that it is alive."""
        if self.counted != self.seen or not self.seen_at:
            self.seen, self.seen_at = self.counted, now
        elif now - self.seen_at >= after and not self.wants_drained and self.is_events:
            self.seen_at = now
            self._line.write(chunk(PING) if self.is_chunked else PING)


def run_each(actions: Iterable[Callable[[], None]]) -> None:
    """Of others, each by itself: a fault in one harms no other."""
    for action in actions:
        try:
            action()
        except Exception:
            log.exception("leaving failed")
