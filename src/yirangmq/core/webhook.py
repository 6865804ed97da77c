"""Webhook of a queue's policy, and the networks that webhooks and alert sinks may call.

The setting ``outgoing_networks`` is applied to the resolved IP address, and the connection is made to that same
address. A host name therefore cannot be pointed elsewhere between the check and the connection."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from yirangmq.core import validation
from yirangmq.core.errors import BadInput, BadPolicy
from yirangmq.core.validation import Fields, kind

# -- webhook of a policy -----------------------------------------------------------------------------------------------

MAX_URL_CHARS = 2_000
MAX_HEADERS = 50
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
VALUE = re.compile(r"[\x20-\x7e]{0,2000}")
RESERVED_HEADERS = frozenset(
    {"host", "connection", "content-length", "content-type", "transfer-encoding", "expect", "upgrade"}
)
"""Headers that a policy may not set; the same applies to those that start with ``X-MQ-``."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Webhook of a queue. ``secret``: the name of a secret of the server; "" is none, and requests are not signed."""

    url: str
    secret: str = ""
    timeout_ms: int = 30_000
    concurrency: int = 4
    headers: Mapping[str, str] = field(default_factory=dict)


_DEFAULT = Webhook("")


def read_webhook(given: object) -> Webhook | None:
    """Parse the policy's member ``webhook``; null is None."""
    if given is None:
        return None
    part = Fields(given, "webhook", BadPolicy)
    hook = Webhook(
        url=_read_url(part.take("url", None), part.name("url")),
        secret=_read_secret(part.take("secret", None), part.name("secret")),
        timeout_ms=round(part.number("timeoutSec", _DEFAULT.timeout_ms / 1000, least=0.001, most=3600) * 1000),
        concurrency=part.whole("concurrency", _DEFAULT.concurrency, least=1, most=1000),
        headers=_read_headers(part.take("headers", {}), part.name("headers")),
    )
    part.done()
    return hook


def _read_url(given: object, field: str) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= MAX_URL_CHARS or not VALUE.fullmatch(given) or " " in given:
        raise BadPolicy(f"must be an address of at most {MAX_URL_CHARS} plain characters", field=field)
    try:
        parts = urlsplit(given)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not is_whole:
        raise BadPolicy("must begin with http:// or https:// and name a host", field=field)
    if parts.username is not None or parts.fragment:
        raise BadPolicy("must contain neither a user nor a fragment; put credentials into headers", field=field)
    return given


def _read_secret(given: object, field: str) -> str:
    if given is None:
        return ""
    try:
        return validation.check_id(given, field)
    except BadInput as error:
        raise BadPolicy(str(error).removeprefix(f"{field}: "), field=field) from None


def _read_headers(given: object, field: str) -> Mapping[str, str]:
    if not isinstance(given, Mapping) or len(given) > MAX_HEADERS:
        raise BadPolicy(f"must be an object of at most {MAX_HEADERS} headers, not {kind(given)}", field=field)
    headers: dict[str, str] = {}
    for name, value in given.items():
        where = f"{field}.{str(name)[:60]}"
        if not isinstance(name, str) or not TOKEN.fullmatch(name):
            raise BadPolicy("is not the name of a header", field=where)
        if name.lower() in RESERVED_HEADERS or name.lower().startswith("x-mq-"):
            raise BadPolicy("is set by the server", field=where)
        if not isinstance(value, str) or not VALUE.fullmatch(value):
            raise BadPolicy("must be a text of at most 2000 plain characters", field=where)
        headers[name] = value
    return headers


def show_webhook(hook: Webhook | None) -> dict[str, Any] | None:
    """Return the document; ``read_webhook`` of it returns an equal value."""
    if hook is None:
        return None
    seconds = hook.timeout_ms / 1000
    return {
        "url": hook.url,
        "secret": hook.secret or None,
        "timeoutSec": int(seconds) if seconds == int(seconds) else seconds,
        "concurrency": hook.concurrency,
        "headers": dict(hook.headers),
    }


# -- outgoing networks -------------------------------------------------------------------------------------------------

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

ANY = "any"
"""Value of the setting that allows every address except those of ``DENIED_NETWORKS``."""
DENIED_NETWORKS: tuple[Network, ...] = (
    ip_network("0.0.0.0/8"),  # "this host": the kernel connects to loopback
    ip_network("169.254.0.0/16"),  # link-local: metadata services of clouds, with credentials
    ip_network("224.0.0.0/3"),  # multicast, reserved, broadcast
    ip_network("::/128"),
    ip_network("fe80::/10"),  # link-local
    ip_network("fd00:ec2::/32"),  # metadata service of a cloud, over IPv6
    ip_network("ff00::/8"),  # multicast
)
"""Networks that are refused unless the setting names a network inside one of them."""
IPV4_EMBEDDING_NETWORKS = (
    IPv6Network("64:ff9b::/96"),  # NAT64
    IPv6Network("64:ff9b:1::/48"),  # NAT64 for local use
    IPv6Network("::ffff:0:0:0/96"),  # translated (SIIT)
    IPv6Network("::/96"),  # compatible: a tunnel
)
"""IPv6 networks with addresses that end in the IPv4 address that they reach."""
OWN_IPV6 = IPv6Network("::/127")
"""Unspecified and loopback addresses of IPv6; they contain no IPv4 address."""


@dataclass(frozen=True, slots=True)
class OutgoingNetworks:
    """Networks that webhooks and alert sinks may call. ``allowed`` None: every address except those of
    ``DENIED_NETWORKS``."""

    allowed: tuple[Network, ...] | None = None

    def refusal(self, text: str) -> str:
        """Return the reason for which an address may not be called; "" if it may."""
        try:
            address = _embedded_ipv4(ip_address(text.partition("%")[0]))
        except ValueError:
            return f"{text!r} is no IP address"
        named = self.allowed or ()
        if any(address in one for one in DENIED_NETWORKS):
            inside = [one for one in named if any(_is_inside(one, special) for special in DENIED_NETWORKS)]
            if any(address in one for one in inside):
                return ""
            return (
                f"{address} is link-local, multicast or unspecified; name its network in outgoing_networks to allow it"
            )
        if self.allowed is None or any(address in one for one in named):
            return ""
        return f"{address} is in none of the networks of outgoing_networks"


def read_networks(value: object) -> OutgoingNetworks:
    """Read ``any``, or networks and addresses: a JSON array, or a text with commas between. Raises ``ValueError``
    otherwise."""
    if value == ANY:
        return OutgoingNetworks()
    parts: Sequence[object] = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ()
    if not parts:
        raise ValueError(f"must be {ANY!r}, or networks such as 10.0.0.0/8 with commas between, not {value!r}")
    found: list[Network] = []
    for part in parts:
        try:
            found.append(ip_network(part.strip() if isinstance(part, str) else ""))
        except ValueError:
            raise ValueError(f"{part!r} is not an address or network, such as 10.0.0.7 or 10.0.0.0/24") from None
    return OutgoingNetworks(tuple(found))


def _embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address reaches (mapped, 6to4, Teredo, or of ``IPV4_EMBEDDING_NETWORKS``);
    else the address unchanged."""
    if isinstance(address, IPv4Address) or address in OWN_IPV6:
        return address
    if any(address in one for one in IPV4_EMBEDDING_NETWORKS):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)


def _is_inside(one: Network, other: Network) -> bool:
    if isinstance(one, IPv4Network):
        return isinstance(other, IPv4Network) and one.subnet_of(other)
    return isinstance(other, IPv6Network) and one.subnet_of(other)
