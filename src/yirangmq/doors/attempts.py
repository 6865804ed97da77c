"""Rate limiter for wrong tokens, by address, shared by all protocols.

An address may show ``BURST`` wrong tokens at once and ``PER_SECOND`` more each second. Past that every token that it
shows is looked at only after a delay of up to ``LONGEST_SECONDS``, right or wrong, so that a quick answer says nothing.
No client is locked out: a right token is let in after the delay, and a pair of address and token that was right before
at once. So an attacker behind the same NAT or proxy does not stop clients that work there.

The callers wait with a timer, never on the event loop, and hold one attempt a connection: the limits of connections
bound how many wait. IPv6 addresses count by their /64. Memory is bounded: past ``MOST`` addresses or pairs the oldest
is forgotten. Loop thread only. Knows: addresses, digests of tokens, the time it is given. Does not know: protocols."""

import logging
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Any, TypeVar

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
