"""Context shared by the connections of an HTTP server, and the timeouts of one connection."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from yirangmq.protocols.http.auth import OriginPolicy
from yirangmq.protocols.http.head_cache import HeadCache
from yirangmq.protocols.http.limits import HttpLimits
from yirangmq.protocols.http.parser import HttpParser
from yirangmq.protocols.http.responses import ResponseTails
from yirangmq.protocols.http.types import Request, RequestHead, RequestRefused, Routes


class TokenDelays(NamedTuple):
    """Delays of requests after wrong tokens: ``of`` returns the seconds, ``wait`` calls back after them."""

    of: Callable[[Request], float]
    wait: Callable[[float, Callable[[], None]], Any]


@dataclass(slots=True)
class HttpContext:
    """Context shared by all connections of an HTTP server.

    ``policy`` checks each head before the route lookup. ``admit`` checks the head of each request before its route
    does."""

    routes: Routes
    limits: HttpLimits
    tails: ResponseTails
    admit: Callable[[Request], None] | None = None
    policy: OriginPolicy | None = None
    head_cache: HeadCache = field(default_factory=HeadCache)
    token_delays: TokenDelays | None = None
    held: int = field(default=0, init=False)
    """Bytes of requests in memory, for all connections together."""


class ClientTimeouts:
    """Timeouts of a connection: slow heads, slow bodies, and idle connections.

    The connection sets ``head_at`` and ``idle_at`` when a head begins. ``check`` is called about once per second."""

    __slots__ = ("_body_at", "_body_size", "_limits", "_parser", "head", "head_at", "heads_seen", "idle_at")

    def __init__(self, parser: HttpParser, limits: HttpLimits, now: float) -> None:
        self._parser = parser
        self._limits = limits
        self.heads_seen = 0
        """Heads that had begun at the last input."""
        self.head: RequestHead | None = None
        """The request whose body arrived at the last input."""
        self.head_at = self.idle_at = self._body_at = now
        self._body_size = 0

    def on_body(self, now: float) -> None:
        """Restart the timer of the body: another body has begun, or one has ended."""
        self.head = self._parser.head
        self._body_at, self._body_size = now, self._parser.body_size

    def restart(self, now: float) -> None:
        """Restart the timers: the server has paused reading, so the client cannot be late."""
        self.head_at = self._body_at = now
        self._body_size = self._parser.body_size

    def check(self, now: float, is_busy: bool) -> bool:
        """Return True if the connection has been idle for too long; raise ``RequestRefused`` if a request is too
        slow."""
        parser, limits = self._parser, self._limits
        if is_busy:
            self.idle_at = now
        if parser.head is not None:
            self._check_body(now)
        elif parser.in_head:
            if now - self.head_at > limits.head_seconds:
                raise RequestRefused(408, f"the head of the request took longer than {limits.head_seconds:g} seconds")
        elif not is_busy:
            return now - self.idle_at > limits.idle_seconds
        return False

    def _check_body(self, now: float) -> None:
        spent = now - self._body_at
        if spent <= self._limits.body_seconds:
            return
        if self._parser.body_size - self._body_size < self._limits.body_rate * spent:
            raise RequestRefused(408, f"the body arrives at less than {self._limits.body_rate} bytes a second")
        self._body_at, self._body_size = now, self._parser.body_size
