"""Shared context of all protocols: authentication, rate limiter for wrong tokens, refused clients, server parts.

Authentication finds the grant of a client by token, by address, or by both; a grant may also ask for a certificate.
Tokens are looked up by their digest, so timing reveals nothing about them. A server without grants is open to every
client that can reach it.

The rate limiter counts wrong tokens by address, for all protocols together. An address may show ``BURST`` wrong tokens
at once and ``PER_SECOND`` more each second. Past that, every token that it shows waits up to ``LONGEST_SECONDS`` before
it is examined, right or wrong, so that a quick answer reveals nothing. No client is locked out: a right token is
accepted after the delay, and a pair of address and token that was right before is accepted at once. So an attacker
behind the same NAT or proxy does not stop clients that work there.

Callers wait with a timer, never on the event loop, and hold one attempt a connection. So the limits of connections
bound how many wait. IPv6 addresses count by their /64. Memory is bounded: past ``MOST`` addresses or pairs the oldest
is forgotten.

Refused clients are counted, reported as events, and logged. The same refusal of the same address is reported once in
``QUIET_MS``, with how often it happened. Loop thread only."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from yirangmq.admin.health import Disk
from yirangmq.admin.registry import Calls
from yirangmq.broker.group_commit import Desk
from yirangmq.core.access import ALLOWED, SCOPES, Attributes, Grant
from yirangmq.core.errors import NotAllowed, QueueError, Stranger
from yirangmq.core.events import ClientRefused, Event
from yirangmq.core.ports import Clock, Ids
from yirangmq.format.envelope import iso
from yirangmq.observe.events import Feed

if TYPE_CHECKING:
    from yirangmq.broker.sink_batches import Batches
    from yirangmq.topics.publisher import Publisher


# -- rate limiter for wrong tokens -------------------------------------------------------------------------------------

BURST = 10.0
"""Wrong tokens at once: a person who mistypes, a few programs with an old token."""
PER_SECOND = 1.0
LONGEST_SECONDS = 5.0
"""Shorter than the time-outs of clients and of ``frame_seconds``."""
QUIET_SECONDS = 600.0
"""Between two log lines about one address."""
MOST = 10_000
HOST_BITS = 64

K = TypeVar("K")
V = TypeVar("V")
Later = Callable[[float, Callable[[], None]], Any]
log = logging.getLogger("yirangmq")


class Attempts:
    def __init__(self, seconds: Callable[[], float], later: Later) -> None:
        """``later`` calls back after some seconds."""
        self._seconds = seconds
        self._later = later
        self._left: dict[str, tuple[float, float]] = {}
        """By network: wrong tokens it may still show, and when that was so. Below 1 it is limited."""
        self._right: dict[tuple[str, bytes], None] = {}
        """Pairs of host and digest that were right, in order of their first time."""
        self._told: dict[str, float] = {}
        """When each network was logged."""
        self.delayed = 0
        """Attempts since the start that had to wait."""

    @property
    def is_quiet(self) -> bool:
        """No address has shown a wrong token: nothing is delayed."""
        return not self._left

    def delay(self, host: str, digest: bytes) -> float:
        """Seconds to wait before this token is looked at."""
        if not self._left or (host, digest) in self._right:
            return 0.0
        left = self._left_of(network_of(host))
        return 0.0 if left >= 1 else min(LONGEST_SECONDS, (1 - left) / PER_SECOND)

    def wait(self, seconds: float, act: Callable[[], None]) -> Any:
        """Call back when the delay is over. The result can be cancelled."""
        self.delayed += 1
        return self._later(seconds, act)

    def tried(self, host: str, digest: bytes, is_right: bool) -> None:
        """A token was looked at."""
        pair = host, digest
        if pair in self._right:
            return
        if is_right:
            _put(self._right, pair, None)
            return
        network = network_of(host)
        before = self._left_of(network)
        after = max(1 - LONGEST_SECONDS * PER_SECOND, before - 1)
        _put(self._left, network, (after, self._seconds()))
        if before >= 1 > after and self._seconds() - self._told.get(network, -QUIET_SECONDS) >= QUIET_SECONDS:
            _put(self._told, network, self._seconds())
            log.warning("wrong_tokens_delayed", extra={"values": {"address": network}})

    def _left_of(self, network: str) -> float:
        left, at = self._left.get(network, (BURST, 0.0))
        return min(BURST, left + (self._seconds() - at) * PER_SECOND)


def _put(table: dict[K, V], key: K, value: V) -> None:
    """As the latest one; the oldest goes if there are too many."""
    table.pop(key, None)
    if len(table) >= MOST:
        del table[next(iter(table))]
    table[key] = value


def network_of(host: str) -> str:
    """What one attacker has: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> HOST_BITS << HOST_BITS)}/{HOST_BITS}"


# -- authentication ----------------------------------------------------------------------------------------------------


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


# -- refused clients ---------------------------------------------------------------------------------------------------

QUIET_MS = 10_000
"""The same refusal of the same address is told once in so long, with how often it happened."""
MOST_KNOWN = 1_000
MOST_KEPT = 100


class Refusals:
    """``tell`` takes the events. Used from the loop's thread."""

    def __init__(self, clock: Clock, tell: Callable[[Sequence[Event]], None]) -> None:
        self._clock = clock
        self._tell = tell
        self.counts: Counter[tuple[str, str]] = Counter()
        """By door and reason, since the start."""
        self._latest: deque[dict[str, Any]] = deque(maxlen=MOST_KEPT)
        self._told: dict[tuple[str, str, str, str], tuple[int, int]] = {}
        """When each was told last, and how often it happened since."""

    def add(self, door: str, address: str, error: QueueError, who: str = "") -> None:
        why, host = reason_of(error), host_of(address)
        self.counts[door, why] += 1
        now = self._clock.now_ms()
        key = door, host, who, why
        at, untold = self._told.get(key, (0, 0))
        if at and 0 <= now - at < QUIET_MS:
            self._told[key] = at, untold + 1
            return
        if len(self._told) >= MOST_KNOWN:
            self._told.clear()
        self._told[key] = now, 0
        event = ClientRefused(door, host, who, why, str(error)[:200], untold + 1)
        self._latest.appendleft(
            {
                "at": iso(self._clock.wall_ms()),
                "door": door,
                "address": host,
                "program": who or None,
                "reason": why,
                "text": event.text,
            }
            | {"count": event.count}
        )
        log.warning(
            "client refused",
            extra={"values": {"door": door, "address": host, "program": who, "reason": why, "count": event.count}},
        )
        self._tell([event])

    def document(self) -> dict[str, Any]:
        """For operators."""
        counts = [{"door": door, "reason": why, "count": n} for (door, why), n in sorted(self.counts.items())]
        return {"counts": counts, "latest": list(self._latest)}


def reason_of(error: QueueError) -> str:
    """``unknown``: nobody that is known; ``forbidden``: known, and not allowed this."""
    return "unknown" if isinstance(error, Stranger) else "forbidden"


# -- server context ----------------------------------------------------------------------------------------------------


class Introduction(NamedTuple):
    """Who this server is: what a client of our own protocol is welcomed with."""

    server: str
    node: str
    durability: str
    max_frame: int
    role: str = ""
    term: int = 0


@dataclass(frozen=True, slots=True)
class House:
    """What every session of a door shares."""

    desk: Desk
    clock: Clock
    ids: Ids
    methods: Calls
    welcome: Introduction
    token: str = ""
    disk: Disk | None = None
    consumers: set[str] = field(default_factory=set)
    """The names under which anything was leased through this door."""
    topics: "Publisher | None" = None
    feed: Feed | None = None
    """The latest events, where the server keeps them."""
    batches: "Callable[[], Batches] | None" = None
    greet: Callable[[Introduction], Introduction] | None = None
    """What a welcome says of this node's place in a pair."""
    gate: Gate = field(default_factory=Gate)
    """Programs that may come, where only these may."""
    attempts: Attempts | None = None
    """The limiter of wrong tokens, for the doors that have grants of their own."""
    refusing: Refusals | None = None
    """Who was refused, with names and addresses, where somebody keeps that."""

    def check_room(self) -> None:
        """Raises what a publisher is told while the disk is low, the store as large as it may be, or the work is being
        handed over to another node."""
        if not self.desk.duty.takes_in:
            raise self.desk.duty.refusal()
        full = None if self.disk is None else self.disk.refusal()
        if full is not None:
            raise full.with_traceback(None)  # else each refusal would be kept in it
