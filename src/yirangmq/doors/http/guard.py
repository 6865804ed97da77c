"""Who may do what, and how often. Knows: tokens, their scopes and queues, how many requests a client made; the time it
is given. Does not know: routes, sockets, where tokens come from.

A server without tokens is open to everybody who can reach it; ``config`` sees to it that these are programs of this
machine, unless told otherwise. Whoever comes by a unix socket could open its file, and needs no token."""

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256

from yirangmq.core.access import Grant
from yirangmq.core.errors import NotAllowed, QuotaExceeded, Stranger
from yirangmq.doors import gate
from yirangmq.doors.attempts import Attempts
from yirangmq.doors.http.exchange import Request

UNKNOWN = "authorization"
"""The field of ``NotAllowed`` for a client that did not say who it is, or is nobody: 401 and not 403."""
CHALLENGE = ("www-authenticate", 'Bearer realm="yirangmq"')
MOST_BUCKETS = 10_000
"""Clients whose requests are counted; past them those are forgotten that were counted first."""


class Guard:
    """``check`` before anything is done; ``admit`` for every request, before its body is read."""

    def __init__(
        self,
        grants: Iterable[Grant] = (),
        rate: "Rate | None" = None,
        refused: Callable[[str, NotAllowed, str], None] | None = None,
        attempts: Attempts | None = None,
    ) -> None:
        self._gate = gate.Gate(grants, attempts)
        self._rate = rate
        self._tell = refused
        """Told the address, the error, and who it was, if that is known."""

    @property
    def is_open(self) -> bool:
        return self._gate.is_open

    # -- origins.Access ---------------------------------------------------------------------------------------------

    @property
    def takes_tokens(self) -> bool:
        return self._gate.takes_tokens

    @property
    def trusts_some(self) -> bool:
        return self._gate.is_open or self._gate.trusts_addresses

    def trusts(self, peer: str) -> bool:
        return self._gate.is_open or peer.startswith("unix") or self._gate.find("", peer) is not None

    def shows_token(self, headers: Mapping[str, str], peer: str) -> bool:
        """While wrong tokens of this address are delayed the answer is no, at once: a page must not learn more quickly
        than other clients whether it guessed one."""
        token = _bearer(headers)
        if not token or self._gate.delay(token, peer):
            return False
        is_right = self._gate.look_up(token, peer) is not None
        self._gate.tried(token, peer, is_right)
        return is_right

    # -- requests -----------------------------------------------------------------------------------------------------

    def check(self, request: Request, verb: str, queue: str | None) -> Grant | None:
        """``NotAllowed`` unless this client may do this in this queue, or in the server (None). The grant it has, by
        which lists are filtered; None: it may do everything."""
        if self._gate.is_open or request.peer.startswith("unix"):
            return None
        grant = self._gate.find(_token_of(request), request.peer)
        try:
            if grant is None:
                raise Stranger("show a token of this server as 'Authorization: Bearer TOKEN'", field=UNKNOWN)
            gate.check(grant, verb, queue, "token")
        except NotAllowed as error:
            self._count(request, grant, error)
            raise
        return grant

    def _count(self, request: Request, grant: Grant | None, error: NotAllowed) -> None:
        """Not a request without any token: it may be a browser's first one, before it asks for one."""
        if grant is None and "authorization" not in request.headers and not self._gate.knows_addresses:
            return
        if self._tell is not None:
            self._tell(request.peer, error, "" if grant is None else grant.name)

    def delay(self, request: Request) -> float:
        """Seconds that this request waits before anything is done for it, because too many wrong tokens came from its
        address; 0 almost always."""
        return self._gate.delay(_token_of(request), request.peer) if "authorization" in request.headers else 0.0

    def tried(self, request: Request, is_right: bool) -> None:
        """A route has compared the token of this request itself."""
        self._gate.tried(_token_of(request), request.peer, is_right)

    def admit(self, request: Request) -> None:
        """``QuotaExceeded`` for a client that asks too often."""
        if self._rate is None:
            return
        grant = self._gate.look_up(_token_of(request), request.peer)
        is_by_token = grant is not None and grant.token
        self._rate.take(_digest(grant.token) if grant and is_by_token else request.peer.rpartition(":")[0])


def _token_of(request: Request) -> str:
    return _bearer(request.headers)


def _bearer(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


class Rate:
    """Token buckets: each client has ``burst`` requests at once, and ``per_second`` new ones."""

    def __init__(self, per_second: float, burst: float, seconds: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = max(1.0, burst)
        self._seconds = seconds
        self._buckets: dict[bytes | str, tuple[float, float]] = {}
        """Requests left, and when that was so."""

    def take(self, client: bytes | str) -> None:
        now = self._seconds()
        left, at = self._buckets.get(client, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        if left < 1:
            wait = (1 - left) / self._per_second
            raise QuotaExceeded(f"more than {self._per_second:g} requests a second; try again in {wait:.3f} s")
        if client not in self._buckets and len(self._buckets) >= MOST_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[client] = (left - 1, now)
