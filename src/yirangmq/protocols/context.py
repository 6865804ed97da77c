"""Shared context of all protocols: authentication, rate limiter for wrong tokens, refused clients, server parts.

Authentication finds the grant of a client by token, by address, or by both; a grant may also ask for a certificate.
Tokens are looked up by their digest, so timing reveals nothing about them. A server without grants is open to every
client that can reach it.

The rate limiter counts wrong tokens by address, for all protocols together. An address may show ``WRONG_TOKEN_BURST``
wrong tokens in a burst and ``WRONG_TOKENS_PER_SECOND`` more per second. Past that, every token that it shows waits up
to ``MAX_DELAY_SECONDS`` before it is examined, right or wrong, so that a quick answer reveals nothing. No client is
locked out: a right token is accepted after the delay, and a pair of address and token that was right before is accepted
without delay. So an attacker behind the same NAT or proxy does not stop clients that work there.

Callers wait with a timer, never on the event loop, and hold one attempt per connection. So the limits of connections
bound the number of waiting callers. IPv6 addresses count by their /64. Memory is bounded: past ``MAX_TABLE_ENTRIES``
addresses or pairs the oldest is evicted.

Refused clients are counted, reported as events, and logged. The same refusal of the same address is reported at most
once per ``REPORT_INTERVAL_MS``, with the number of repetitions. Loop thread only."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from yirangmq.admin.health import FullStoreLatch, StoreDisk
from yirangmq.admin.registry import MethodRegistry
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.core.access import ALLOWED, SCOPES, AccessGrant, Attributes
from yirangmq.core.errors import NotAllowed, QueueError, UnknownClient
from yirangmq.core.events import ClientRefused, Event
from yirangmq.core.ports import Clock, Ids
from yirangmq.format.envelope import iso
from yirangmq.observe.events import EventStream

if TYPE_CHECKING:
    from yirangmq.broker.sink_batches import SinkBatches
    from yirangmq.topics.publisher import Publisher


# -- rate limiter for wrong tokens -------------------------------------------------------------------------------------

WRONG_TOKEN_BURST = 10.0
"""Burst size of the token bucket: wrong tokens that are examined without delay. It covers a few
typing mistakes of a user and a few programs with an old token."""
WRONG_TOKENS_PER_SECOND = 1.0
"""Refill rate of the token bucket, in wrong tokens per second."""
MAX_DELAY_SECONDS = 5.0
"""Upper bound of a delay, in seconds; shorter than the timeouts of clients and than ``frame_seconds``."""
LOG_INTERVAL_SECONDS = 600.0
"""Minimum interval between two log lines about one address, in seconds."""
MAX_TABLE_ENTRIES = 10_000
"""Maximum number of entries of each table: networks, and pairs of host and digest."""
HOST_BITS = 64
"""Host part of an IPv6 address, in bits: an attacker usually owns a whole /64."""

K = TypeVar("K")
V = TypeVar("V")
CallLater = Callable[[float, Callable[[], None]], Any]
log = logging.getLogger("yirangmq")


class WrongTokenLimiter:
    """Rate limiter for wrong tokens: a token bucket per network, shared by all protocols. Loop thread only."""

    def __init__(self, seconds: Callable[[], float], later: CallLater) -> None:
        """``seconds``: a monotonic clock. ``later``: call a function after a number of seconds."""
        self._seconds = seconds
        self._later = later
        self._left: dict[str, tuple[float, float]] = {}
        """By network: remaining wrong tokens, and the instant of that count. Below 1 the network is limited."""
        self._accepted: dict[tuple[str, bytes], None] = {}
        """Pairs of host and digest that were right, in insertion order."""
        self._reported: dict[str, float] = {}
        """By network: the instant of its latest log line."""
        self.delayed = 0
        """Number of delayed attempts since the start."""

    @property
    def is_quiet(self) -> bool:
        """True if no address has shown a wrong token, so that nothing is delayed."""
        return not self._left

    def delay(self, host: str, digest: bytes) -> float:
        """Return the seconds to wait before this token is examined."""
        if not self._left or (host, digest) in self._accepted:
            return 0.0
        left = self._left_of(network_of(host))
        return 0.0 if left >= 1 else min(MAX_DELAY_SECONDS, (1 - left) / WRONG_TOKENS_PER_SECOND)

    def wait(self, seconds: float, act: Callable[[], None]) -> Any:
        """Call ``act`` after the delay. Return a timer handle that can be cancelled."""
        self.delayed += 1
        return self._later(seconds, act)

    def record_attempt(self, host: str, digest: bytes, is_right: bool) -> None:
        """Record the outcome of examining a token. A wrong one is charged to the network of ``host``."""
        pair = host, digest
        if pair in self._accepted:
            return
        if is_right:
            _put(self._accepted, pair, None)
            return
        network = network_of(host)
        before = self._left_of(network)
        after = max(1 - MAX_DELAY_SECONDS * WRONG_TOKENS_PER_SECOND, before - 1)
        _put(self._left, network, (after, self._seconds()))
        if (
            before >= 1 > after
            and self._seconds() - self._reported.get(network, -LOG_INTERVAL_SECONDS) >= LOG_INTERVAL_SECONDS
        ):
            _put(self._reported, network, self._seconds())
            log.warning("wrong_tokens_delayed", extra={"values": {"address": network}})

    def _left_of(self, network: str) -> float:
        left, at = self._left.get(network, (WRONG_TOKEN_BURST, 0.0))
        return min(WRONG_TOKEN_BURST, left + (self._seconds() - at) * WRONG_TOKENS_PER_SECOND)


def _put(table: dict[K, V], key: K, value: V) -> None:
    """Insert or move to the end; evict the oldest entry if the table is full."""
    table.pop(key, None)
    if len(table) >= MAX_TABLE_ENTRIES:
        del table[next(iter(table))]
    table[key] = value


def network_of(host: str) -> str:
    """Return the network that one attacker controls: an IPv4 address, or the /64 of an IPv6 address."""
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


class Authenticator:
    """Authentication: finds the grant of a client by its token or address. Loop thread only."""

    def __init__(self, grants: Iterable[AccessGrant] = (), attempts: WrongTokenLimiter | None = None) -> None:
        """``attempts``: the server's rate limiter for wrong tokens, shared by all protocols."""
        found = tuple(grants)
        self.attempts = attempts
        self._by_token = {_digest(grant.token): grant for grant in found if grant.token}
        self._by_address = [grant for grant in found if not grant.token]
        self.is_open = not found
        """True if no grants are configured: every client that can connect may do everything. An attribute, not a
        property, because every request reads it."""

    @property
    def accepts_tokens(self) -> bool:
        return bool(self._by_token)

    @property
    def trusts_addresses(self) -> bool:
        """True if the address alone is enough for some clients."""
        return bool(self._by_address)

    @property
    def knows_addresses(self) -> bool:
        """True if grants name programs, so that a client without a token may be an unknown program."""
        return any(grant.name for grant in (*self._by_token.values(), *self._by_address))

    def find(self, token: str, address: str) -> AccessGrant | None:
        """Return the grant of a client, or None if there is none.

        Tokens are looked up by digest, so that the duration reveals nothing about existing tokens. A token used from an
        address outside its grant is not valid. The call counts as an attempt (``WrongTokenLimiter``), unless the
        address alone is enough."""
        digest = _digest(token) if token else b""
        grant = self._by_token.get(digest)
        found = grant if grant is not None and is_from(grant, address) else None
        if grant is None and self._by_address:
            found = next((one for one in self._by_address if is_from(one, address)), None)
        if self.attempts is not None and token and (grant is not None or found is None):
            self.attempts.record_attempt(host_of(address), digest, found is not None)
        return found

    def look_up(self, token: str, address: str) -> AccessGrant | None:
        """Return the grant of a token without counting an attempt."""
        grant = self._by_token.get(_digest(token)) if token else None
        return grant if grant is not None and is_from(grant, address) else None

    def delay(self, token: str, address: str) -> float:
        """Return the seconds to wait before this token is examined; 0 unless its address sent too many wrong tokens."""
        if self.attempts is None or self.attempts.is_quiet or not token or address.startswith("unix"):
            return 0.0
        return self.attempts.delay(host_of(address), _digest(token))

    def wait(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` after a delay that ``delay`` returned."""
        if self.attempts is not None:
            self.attempts.wait(seconds, act)

    def record_attempt(self, token: str, address: str, is_right: bool) -> None:
        """Record the outcome for a secret that the caller compared itself."""
        if self.attempts is not None and token and not address.startswith("unix"):
            self.attempts.record_attempt(host_of(address), _digest(token), is_right)


class CertifiedPeer(str):
    """Address of a client with a certificate that TLS verified; ``subject`` holds the certificate's attributes."""

    __slots__ = ("subject",)
    subject: Attributes

    def __new__(cls, address: str, subject: Attributes) -> "CertifiedPeer":
        made = super().__new__(cls, address)
        made.subject = subject
        return made


def is_from(grant: AccessGrant, address: str) -> bool:
    """True if the address and the certificate of a client match the grant.

    ``address``: a host, or a host and a port; a ``CertifiedPeer`` if the client has a certificate."""
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
    """Return the host of ``1.2.3.4:56``, ``[::1]:56`` or a host without a port."""
    if address.startswith("["):
        return address[1:].partition("]")[0].partition("%")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address.partition("%")[0]


def check(grant: AccessGrant | None, verb: str, name: str | None, field: str) -> None:
    """Raise ``NotAllowed`` unless the grant allows the verb by the table of ``core.access``.

    Every protocol authorises here. A grant of None allows everything."""
    if grant is not None and not grant.allows(verb, name):
        program = f"program {grant.name!r} may not" if grant.name else "this token does not allow to"
        where = "the server as a whole" if name is None else repr(name) if name else "any queue"
        scopes = [scope for scope in SCOPES if scope in ALLOWED[verb]]
        raise NotAllowed(f"{program} {verb} in {where} (scopes that allow it: {', '.join(scopes)})", field=field)


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


# -- refused clients ---------------------------------------------------------------------------------------------------

REPORT_INTERVAL_MS = 10_000
"""Minimum interval in ms between two reports of the same refusal of the same address."""
MAX_COUNTED_REFUSALS = 1_000
"""Maximum number of refusals with a repetition counter; the table is cleared when it is full."""
MAX_KEPT_REFUSALS = 100
"""Latest refusals that are kept for operators."""


class RefusedClients:
    """Refused clients: counters, the latest refusals, and rate-limited reports. Loop thread only."""

    def __init__(self, clock: Clock, report: Callable[[Sequence[Event]], None]) -> None:
        """``report`` receives the events."""
        self._clock = clock
        self._report = report
        self.counts: Counter[tuple[str, str]] = Counter()
        """Number of refusals by protocol and reason, since the start."""
        self._latest: deque[dict[str, Any]] = deque(maxlen=MAX_KEPT_REFUSALS)
        self._reported: dict[tuple[str, str, str, str], tuple[int, int]] = {}
        """By refusal: the instant of its latest report, and the number of repetitions since."""

    def add(self, protocol: str, address: str, error: QueueError, program: str = "") -> None:
        """Count a refusal; report and log it unless the same refusal was reported within ``REPORT_INTERVAL_MS``.

        ``protocol``: the protocol. ``program``: the name of the program, if it is known."""
        why, host = reason_of(error), host_of(address)
        self.counts[protocol, why] += 1
        now = self._clock.now_ms()
        key = protocol, host, program, why
        at, suppressed = self._reported.get(key, (0, 0))
        if at and 0 <= now - at < REPORT_INTERVAL_MS:
            self._reported[key] = at, suppressed + 1
            return
        if len(self._reported) >= MAX_COUNTED_REFUSALS:
            self._reported.clear()
        self._reported[key] = now, 0
        event = ClientRefused(protocol, host, program, why, str(error)[:200], suppressed + 1)
        self._latest.appendleft(
            {
                "at": iso(self._clock.wall_ms()),
                "door": protocol,
                "address": host,
                "program": program or None,
                "reason": why,
                "text": event.text,
            }
            | {"count": event.count}
        )
        log.warning(
            "client_refused",
            extra={
                "values": {"door": protocol, "address": host, "program": program, "reason": why, "count": event.count}
            },
        )
        self._report([event])

    def document(self) -> dict[str, Any]:
        """Return counters and latest refusals as a JSON document for operators."""
        counts = [{"door": protocol, "reason": why, "count": n} for (protocol, why), n in sorted(self.counts.items())]
        return {"counts": counts, "latest": list(self._latest)}


def reason_of(error: QueueError) -> str:
    """Return ``unknown`` for a client without a valid grant, ``forbidden`` if its grant is not sufficient."""
    return "unknown" if isinstance(error, UnknownClient) else "forbidden"


# -- server context ----------------------------------------------------------------------------------------------------


class ServerIdentity(NamedTuple):
    """Identity of the server, sent in the WELCOME frame of the native protocol."""

    server: str
    node: str
    durability: str
    max_frame: int
    role: str = ""
    term: int = 0


@dataclass(frozen=True, slots=True)
class ServerContext:
    """Server context: what all sessions of a protocol share."""

    committer: GroupCommitter
    clock: Clock
    ids: Ids
    methods: MethodRegistry
    identity: ServerIdentity
    token: str = ""
    disk: StoreDisk | None = None
    consumers: set[str] = field(default_factory=set)
    """Names of the consumers that leased messages through this protocol."""
    topics: "Publisher | None" = None
    feed: EventStream | None = None
    """The latest events, if the server keeps them."""
    batches: "Callable[[], SinkBatches] | None" = None
    add_role: Callable[[ServerIdentity], ServerIdentity] | None = None
    """Adds the role and the term of this node of a pair to the welcome."""
    authenticator: Authenticator = field(default_factory=Authenticator)
    """Authentication of programs; open if no grants are configured."""
    attempts: WrongTokenLimiter | None = None
    """The rate limiter for wrong tokens, for protocols that have separate grants."""
    refused_clients: RefusedClients | None = None
    """Refused clients with names and addresses, if they are recorded."""
    full_latch: FullStoreLatch | None = None

    def check_capacity(self) -> None:
        """Raise the error for a publisher if it cannot publish now.

        This is so while the disk is low, while the store has its maximum size, and while the node hands its work over
        to another node."""
        if not self.committer.guard.accepts_new:
            raise self.committer.guard.refusal()
        disk = self.disk
        full = None if disk is None else disk.full if disk.refuse is None else disk.refuse()
        if full is not None:
            raise full.with_traceback(None)  # the error object is reused: its traceback would grow with each refusal
