"""Access control of HTTP: origin policy and Host check for browsers, tokens with scopes, request rate limiter.

A browser sends requests to any address that a web page names. Some servers trust clients without a token: none is
configured, or the client uses a unix socket, or its address makes it a known program. Such a server could be used by
every page its users visit. For these clients the origin policy is applied before a route is found:

- ``Host`` must be a loopback name or address, an address the server listens on, or one of ``http_hosts``; otherwise the
  answer is 421. A page that rebinds its own name to our address (DNS rebinding) has that name as ``Host``.
- ``Origin``, where present, must be the server's own (the same authority as ``Host``) or one of ``cors_origins``;
  otherwise 403. Without ``Origin``, ``Sec-Fetch-Site`` must be ``same-origin`` or ``none``.
- Programs send neither header and are not affected.

Clients that need a token are served from any origin: a page cannot make a browser add an ``Authorization`` header
automatically, and the request is refused without it. Preflights carry no token, so they are answered wherever tokens
are in use. Credentials mode is never allowed.

Without tokens every client that can reach the server may do everything; ``config`` makes sure that these are programs
on this machine, unless the settings say otherwise. A client of a unix socket could open its file, and needs no token.
The rate limiter is a token bucket for each client.

Cost: one dict lookup for each header named above, and one comparison for headers that ``protocols.http.head_cache``
has seen before. Loop thread only."""

import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from ipaddress import ip_address
from typing import NamedTuple, Protocol

from yirangmq.core.access import AccessGrant
from yirangmq.core.errors import Misdirected, NotAllowed, QuotaExceeded, UnknownClient
from yirangmq.protocols import context
from yirangmq.protocols.context import WrongTokenLimiter
from yirangmq.protocols.http.types import Exchange, Headers, HttpRoute, Request, Response

# -- origin policy -----------------------------------------------------------------------------------------------------

ANY = "*"
METHODS = "GET,HEAD,PUT,PATCH,POST,DELETE"
EXPOSED = "X-MQ-Priority, X-MQ-State, X-MQ-Cursor, Retry-After, WWW-Authenticate"
"""Response headers that a page of another origin may read, in addition to the CORS-safelisted ones."""
OWN_SITE = frozenset({"same-origin", "none"})
"""Values of ``Sec-Fetch-Site``: a page of this server; the user, by the address bar or a bookmark.
``same-site`` is not among them: another port of the same host is another program."""
CHANGING_GETS = "/mq/"
"""Prefix of the routes where GET changes state: it claims or leases a message."""
WILDCARDS = frozenset({"0.0.0.0", "::"})
"""Listening here is listening on every address of the machine."""
MAX_HOSTS = 1000
"""Size limit of the cache of accepted ``Host`` values, and of the set of names and addresses of the server."""
MAX_QUOTED_CHARS = 100
"""Characters of a client's value that an error text quotes."""
AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)(?:%[^]@]*)?\]|([^]:[@%]*))(?::[0-9]*)?")
"""A host with an optional port: an IPv6 address in brackets, or a name or an IPv4 address."""


class OriginAccess(Protocol):
    """Access control as the origin policy sees it."""

    @property
    def accepts_tokens(self) -> bool:
        """True if some clients authenticate with a token."""

    @property
    def trusts_some(self) -> bool:
        """True if some clients with a network address need no token."""

    def trusts(self, peer: str) -> bool:
        """True if this client needs no token."""

    def has_valid_token(self, headers: Mapping[str, str], peer: str) -> bool:
        """True if the request carries a token of this server that is valid for this client."""


class OriginVerdict(NamedTuple):
    """Result of the origin policy.

    ``error``: the reason for a refusal, or None. ``headers``: added to every response. ``is_preflight``: the response
    consists of ``headers`` only."""

    error: NotAllowed | None = None
    headers: Headers = ()
    is_preflight: bool = False


ACCEPTED = OriginVerdict()
"""Serve the request. Compared by identity: later requests with the same headers are served too, for every method and
path."""
ACCEPTED_ONCE = OriginVerdict(None, (), False)
"""Serve this request only; the verdict is not cached."""


def _no_content(request: Request, exchange: Exchange) -> None:
    exchange.answer(Response(204, None))


PREFLIGHT = HttpRoute(_no_content, 0, lambda error: Response(400, b""))


class OriginPolicy:
    """Origin policy and ``Host`` check of one listener.

    ``is_unix``: the listener is a unix socket, where ``Host`` has no meaning. ``report``: called for each refusal with
    the address, the error, and "" for the program's name."""

    def __init__(
        self,
        access: OriginAccess,
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
        *,
        is_unix: bool = False,
        report: Callable[[str, NotAllowed, str], None] | None = None,
    ) -> None:
        self._access = access
        self._origins = frozenset(origins)
        self._any_origin = ANY in self._origins
        self._names = {"localhost"} | {canonical(host) for host in hosts}
        self._report = report
        self._checks_host = access.trusts_some and not is_unix and ANY not in self._names
        self._hosts: set[str | None] = {None}
        """Cache of ``Host`` values that were accepted. None: HTTP/1.0 without the header, which no browser sends."""

    @property
    def learns_addresses(self) -> bool:
        """True if the local address of each new connection must be passed to ``add_address``."""
        return self._checks_host and not WILDCARDS.isdisjoint(self._names)

    def add_address(self, host: str) -> None:
        """Accept this address as ``Host``: the server listens on it, or a connection reached the server at it."""
        if len(self._names) < MAX_HOSTS:
            self._names.add(canonical(host))

    def check(self, method: str, path: str, headers: Mapping[str, str], peer: str) -> OriginVerdict:
        host = headers.get("host")
        is_known = host in self._hosts or not self._checks_host
        if is_known and "origin" not in headers and "sec-fetch-site" not in headers and "user-agent" not in headers:
            return ACCEPTED  # fast path for most programs, at half the cost of the full check
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if not is_known and not self._accepts(host or "", headers, peer):
            return self._refuse(_misdirected(host or ""), peer)
        if origin is None and site is None:
            if not headers.get("user-agent", "").startswith("Mozilla/"):
                return ACCEPTED
            return self._check_unmarked(method, path, headers, peer)
        if origin is None:
            return self._check_site(method, path, headers, peer)
        if is_same(origin, host or "") and (site is None or site in OWN_SITE):
            return ACCEPTED
        return self._check_foreign_origin(origin, method, headers, peer)

    # -- Host -----------------------------------------------------------------------------------------------------

    def _accepts(self, host: str, headers: Mapping[str, str], peer: str) -> bool:
        """True if ``Host`` is a name of this server, or if the client needs a token or shows a valid one."""
        name = canonical(host)
        if name not in self._names and not _is_loopback(name):
            return not self._access.trusts(peer) or self._access.has_valid_token(headers, peer)
        if len(self._hosts) >= MAX_HOSTS:
            self._hosts = {None}
        self._hosts.add(host)
        return True

    # -- Origin ---------------------------------------------------------------------------------------------------

    def _check_foreign_origin(self, origin: str, method: str, headers: Mapping[str, str], peer: str) -> OriginVerdict:
        """Check a request with a foreign ``Origin``: a page in CORS mode, which may read the response, or a form that
        posts."""
        access = self._access
        is_preflight = method == "OPTIONS" and "access-control-request-method" in headers
        if (
            self._any_origin
            or origin in self._origins
            or not access.trusts(peer)
            or (is_preflight and access.accepts_tokens)
            or access.has_valid_token(headers, peer)
        ):
            allowed = cors_headers(origin)
            return (
                OriginVerdict(None, allowed + _preflight(headers), True)
                if is_preflight
                else OriginVerdict(None, allowed)
            )
        return self._refuse(_foreign_page(f"a page of {origin[:MAX_QUOTED_CHARS]}"), peer)

    def _check_site(self, method: str, path: str, headers: Mapping[str, str], peer: str) -> OriginVerdict:
        """Check a request without ``Origin``, by ``Sec-Fetch-Site``.

        It comes from a page of this server, or from a link, image, script or frame of another page, which the browser
        does not name."""
        if headers["sec-fetch-site"] in OWN_SITE or self._is_open_to_all(headers, peer):
            return ACCEPTED
        if path == "/" and method in ("GET", "HEAD") and _is_link(headers):
            return ACCEPTED_ONCE
        return self._refuse(_foreign_page("a page of another origin"), peer)

    def _check_unmarked(self, method: str, path: str, headers: Mapping[str, str], peer: str) -> OriginVerdict:
        """Check a request of a browser (by ``User-Agent``) with neither header.

        Browsers omit ``Sec-Fetch-Site`` if the address is neither HTTPS nor loopback, and ``Origin`` for a GET
        that is not in CORS mode."""
        if not path.startswith(CHANGING_GETS) or method not in ("GET", "HEAD") or self._is_open_to_all(headers, peer):
            return ACCEPTED_ONCE
        return self._refuse(_foreign_page("a browser that does not name the page of the request"), peer)

    def _is_open_to_all(self, headers: Mapping[str, str], peer: str) -> bool:
        access = self._access
        return self._any_origin or not access.trusts(peer) or access.has_valid_token(headers, peer)

    def _refuse(self, error: NotAllowed, peer: str) -> OriginVerdict:
        if self._report is not None:
            self._report(peer, error, "")
        return OriginVerdict(error)


# -- header values -----------------------------------------------------------------------------------------------------


def is_same(origin: str, host: str) -> bool:
    """True if the origin is this server itself. The scheme may differ: a proxy may terminate TLS."""
    scheme, separator, authority = origin.partition("://")
    return bool(separator) and scheme in ("http", "https") and authority.lower() == host.lower()


def canonical(host: str) -> str:
    """Return a ``Host`` without its port, in lower case; addresses in their shortest form."""
    given = host.strip().lower()
    found = AUTHORITY.fullmatch(given)
    name = given if found is None else (found[1] or found[2]).removesuffix(".")
    try:  # addresses from settings and sockets have no brackets
        return ip_address(name.partition("%")[0] if name.count(":") > 1 else name).compressed
    except ValueError:
        return name


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _is_link(headers: Mapping[str, str]) -> bool:
    """True for a navigation of a tab by the user, not of a frame in another page."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def cors_headers(origin: str) -> Headers:
    return (
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", EXPOSED),
        ("vary", "Origin"),
    )


def _preflight(headers: Mapping[str, str]) -> Headers:
    found: Headers = (("access-control-allow-methods", METHODS),)
    asked = headers.get("access-control-request-headers")
    if asked is not None:
        found += (("access-control-allow-headers", asked),)
    if headers.get("access-control-request-private-network") == "true":
        found += (("access-control-allow-private-network", "true"),)
    return found


# -- refusals ---------------------------------------------------------------------------------------------------------


def _foreign_page(requester: str) -> NotAllowed:
    text = (
        f"{requester} may not use this server; "
        "add its origin to the setting cors_origins, or send a token of this server"
    )
    return NotAllowed(text, field="origin")


def _misdirected(host: str) -> Misdirected:
    text = (
        f"{host[:MAX_QUOTED_CHARS]!r} is not a name of this server; without a token it answers to localhost and to the "
        "addresses it listens on: add the name to the setting http_hosts"
    )
    return Misdirected(text, field="host")


# -- tokens, scopes and request rate -----------------------------------------------------------------------------------

UNKNOWN = "authorization"
"""Field of ``NotAllowed`` for a client without a valid token; the status is 401 instead of 403."""
CHALLENGE = ("www-authenticate", 'Bearer realm="yirangmq"')
MAX_BUCKETS = 10_000
"""Maximum number of clients with a token bucket; past it the oldest bucket is evicted."""


class HttpAccess:
    """Access control of HTTP requests: authentication, scopes and the request rate limiter. Loop thread only.

    Routes call ``check`` before they do anything. The connection calls ``admit`` for every request, before its body is
    read."""

    def __init__(
        self,
        grants: Iterable[AccessGrant] = (),
        rate: "RequestRateLimiter | None" = None,
        report: Callable[[str, NotAllowed, str], None] | None = None,
        attempts: WrongTokenLimiter | None = None,
    ) -> None:
        self._authenticator = context.Authenticator(grants, attempts)
        self._rate = rate
        self._report = report
        """Called for each refusal with the address, the error, and the name of the program or ""."""

    @property
    def is_open(self) -> bool:
        return self._authenticator.is_open

    # -- Access --------------------------------------------------------------------------------------------------------

    @property
    def accepts_tokens(self) -> bool:
        return self._authenticator.accepts_tokens

    @property
    def trusts_some(self) -> bool:
        return self._authenticator.is_open or self._authenticator.trusts_addresses

    def trusts(self, peer: str) -> bool:
        return self._authenticator.is_open or peer.startswith("unix") or self._authenticator.find("", peer) is not None

    def has_valid_token(self, headers: Mapping[str, str], peer: str) -> bool:
        """True if the request carries a valid token.

        While wrong tokens of this address are delayed, the answer is False without a check: a page must not learn
        faster than other clients whether a guessed token is right."""
        token = _bearer(headers)
        if not token or self._authenticator.delay(token, peer):
            return False
        is_right = self._authenticator.look_up(token, peer) is not None
        self._authenticator.record_attempt(token, peer, is_right)
        return is_right

    # -- requests -----------------------------------------------------------------------------------------------------

    def check(self, request: Request, verb: str, queue: str | None) -> AccessGrant | None:
        """Authorise a request: raise ``NotAllowed`` unless the client may use ``verb`` on the queue.

        A queue of None means the server as a whole. Return the client's grant, by which lists are filtered; None if
        the client may do everything."""
        if self._authenticator.is_open or request.peer.startswith("unix"):
            return None
        grant = self._authenticator.find(_token_of(request), request.peer)
        try:
            if grant is None:
                raise UnknownClient("send a token of this server as 'Authorization: Bearer TOKEN'", field=UNKNOWN)
            context.check(grant, verb, queue, "token")
        except NotAllowed as error:
            self._count(request, grant, error)
            raise
        return grant

    def _count(self, request: Request, grant: AccessGrant | None, error: NotAllowed) -> None:
        """Report a refusal. Requests without a token are not reported: a browser sends its first request so, before it
        prompts for a token."""
        if grant is None and "authorization" not in request.headers and not self._authenticator.knows_addresses:
            return
        if self._report is not None:
            self._report(request.peer, error, "" if grant is None else grant.name)

    def delay(self, request: Request) -> float:
        """Return the seconds to delay this request because its address sent too many wrong tokens; almost always 0."""
        return (
            self._authenticator.delay(_token_of(request), request.peer) if "authorization" in request.headers else 0.0
        )

    def record_attempt(self, request: Request, is_right: bool) -> None:
        """Record the outcome for a token that a route compared itself."""
        self._authenticator.record_attempt(_token_of(request), request.peer, is_right)

    def admit(self, request: Request) -> None:
        """Raise ``QuotaExceeded`` if the client exceeds its request rate."""
        if self._rate is None:
            return
        grant = self._authenticator.look_up(_token_of(request), request.peer)
        is_by_token = grant is not None and grant.token
        self._rate.take(_digest(grant.token) if grant and is_by_token else request.peer.rpartition(":")[0])


def _token_of(request: Request) -> str:
    return _bearer(request.headers)


def _bearer(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


class RequestRateLimiter:
    """Rate limiter: a token bucket per client, of ``burst`` requests, refilled with ``per_second`` requests/s."""

    def __init__(self, per_second: float, burst: float, seconds: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = max(1.0, burst)
        self._seconds = seconds
        self._buckets: dict[bytes | str, tuple[float, float]] = {}
        """By client: remaining requests, and the instant of that count."""

    def take(self, client: bytes | str) -> None:
        """Charge one request to the client; raise ``QuotaExceeded`` if its bucket is empty."""
        now = self._seconds()
        left, at = self._buckets.get(client, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        if left < 1:
            wait = (1 - left) / self._per_second
            raise QuotaExceeded(f"more than {self._per_second:g} requests a second; try again in {wait:.3f} s")
        if client not in self._buckets and len(self._buckets) >= MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[client] = (left - 1, now)
