"""Who stands at a door: found by token, by address, or both. One for all doors, so that all know the same programs.

Knows: grants. Does not know: protocols, sockets. Without grants it is open to everybody who can reach it."""

from collections.abc import Callable, Iterable
from hashlib import sha256
from ipaddress import ip_address

from yirangmq.core.access import ALLOWED, SCOPES, Attributes, Grant
from yirangmq.core.errors import NotAllowed
from yirangmq.doors.attempts import Attempts


class Gate:
    def __init__(self, grants: Iterable[Grant] = (), attempts: Attempts | None = None) -> None:
        """``attempts``: the server's limiter of wrong tokens, the same for all its doors."""
        found = tuple(grants)
        self.attempts = attempts
        self._by_token = {_digest(grant.token): grant for grant in found if grant.token}
        self._by_address = [grant for grant in found if not grant.token]
        self.is_open = not found
        """Everybody who can reach it may do everything. An attribute, because every request asks."""

    @property
    def takes_tokens(self) -> bool:
        return bool(self._by_token)

    @property
    def trusts_addresses(self) -> bool:
        """Some clients need no token, because of their address."""
        return bool(self._by_address)

    @property
    def knows_addresses(self) -> bool:
        """Programs are listed: whoever comes without a token may be none of them."""
        return any(grant.name for grant in (*self._by_token.values(), *self._by_address))

    def find(self, token: str, address: str) -> Grant | None:
        """Found by its digest, so that the time it takes says nothing about the tokens there are. One whose address is
        not its own is nobody. Counts as an attempt (``Attempts``), unless the address alone is enough."""
        digest = _digest(token) if token else b""
        grant = self._by_token.get(digest)
        found = grant if grant is not None and is_from(grant, address) else None
        if grant is None and self._by_address:
            found = next((one for one in self._by_address if is_from(one, address)), None)
        if self.attempts is not None and token and (grant is not None or found is None):
            self.attempts.tried(host_of(address), digest, found is not None)
        return found

    def look_up(self, token: str, address: str) -> Grant | None:
        """The grant of a token, and no attempt is counted."""
        grant = self._by_token.get(_digest(token)) if token else None
        return grant if grant is not None and is_from(grant, address) else None

    def delay(self, token: str, address: str) -> float:
        """Seconds to wait before this token is looked at: too many wrong ones came from its address."""
        if self.attempts is None or self.attempts.is_quiet or not token or address.startswith("unix"):
            return 0.0
        return self.attempts.delay(host_of(address), _digest(token))

    def wait(self, seconds: float, act: Callable[[], None]) -> None:
        """Call back when such a delay is over."""
        if self.attempts is not None:
            self.attempts.wait(seconds, act)

    def tried(self, token: str, address: str, is_right: bool) -> None:
        """A secret that was compared elsewhere."""
        if self.attempts is not None and token and not address.startswith("unix"):
            self.attempts.tried(host_of(address), _digest(token), is_right)


class CertifiedPeer(str):
    """The address of a client that showed a certificate which TLS verified; ``subject`` holds its attributes."""

    __slots__ = ("subject",)
    subject: Attributes

    def __new__(cls, address: str, subject: Attributes) -> "CertifiedPeer":
        made = super().__new__(cls, address)
        made.subject = subject
        return made


def is_from(grant: Grant, address: str) -> bool:
    """``address``: a host, or a host and a port; of a client with a certificate a ``CertifiedPeer``."""
    if grant.certificate and not (isinstance(address, CertifiedPeer) and grant.certificate <= address.subject):
        return False
    if not grant.addresses:
        return True
    try:
        host = ip_address(host_of(address))
    except ValueError:
        return False
    mapped = getattr(host, "ipv4_mapped", None) or host
    return any(mapped in network for network in grant.addresses)


def host_of(address: str) -> str:
    """Of ``1.2.3.4:56``, ``[::1]:56`` or a host alone."""
    if address.startswith("["):
        return address[1:].partition("]")[0].partition("%")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address.partition("%")[0]


def check(grant: Grant | None, verb: str, name: str | None, field: str) -> None:
    """``NotAllowed`` by the table of ``core.access``; the one place where every protocol asks. None: everything is
    allowed."""
    if grant is not None and not grant.allows(verb, name):
        who = f"program {grant.name!r} may not" if grant.name else "this token does not allow to"
        where = "the server as a whole" if name is None else repr(name) if name else "any queue"
        scopes = [scope for scope in SCOPES if scope in ALLOWED[verb]]
        raise NotAllowed(f"{who} {verb} in {where} (scopes that allow it: {', '.join(scopes)})", field=field)


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
