"""Which addresses webhooks and alert sinks may call (setting ``outgoing_networks``).

The rule is applied to the resolved IP address, and the connection is made to that same address, so that a host name
cannot be pointed elsewhere between the check and the connection."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

ANY = "any"
"""The setting's word for every address but those of ``SPECIAL``."""
SPECIAL: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # "this host": the kernel connects to loopback
        "169.254.0.0/16",  # link-local: metadata services of clouds, with credentials
        "224.0.0.0/3",  # multicast, reserved, broadcast
        "::/128",
        "fe80::/10",  # link-local
        "fd00:ec2::/32",  # metadata service of a cloud, over IPv6
        "ff00::/8",  # multicast
    )
)
"""Refused unless the setting names a network inside one of them."""
CARRIERS = (
    IPv6Network("64:ff9b::/96"),  # NAT64
    IPv6Network("64:ff9b:1::/48"),  # NAT64 of one's own network
    IPv6Network("::ffff:0:0:0/96"),  # translated (SIIT)
    IPv6Network("::/96"),  # compatible: a tunnel
)
"""IPv6 networks whose addresses end in an IPv4 address that they reach."""
OWN_IPV6 = IPv6Network("::/127")
"""Unspecified and loopback: no IPv4 address is inside."""


@dataclass(frozen=True, slots=True)
class OutgoingNetworks:
    """``allowed`` None: every address but the special ones."""

    allowed: tuple[Network, ...] | None = None

    def refusal(self, text: str) -> str:
        """Why an address may not be called; "" if it may."""
        try:
            address = _plain(ip_address(text.partition("%")[0]))
        except ValueError:
            return f"{text!r} is no IP address"
        named = self.allowed or ()
        if any(address in one for one in SPECIAL):
            inside = [one for one in named if any(_is_inside(one, special) for special in SPECIAL)]
            if any(address in one for one in inside):
                return ""
            return (
                f"{address} is link-local, multicast or unspecified; name its network in outgoing_networks to allow it"
            )
        if self.allowed is None or any(address in one for one in named):
            return ""
        return f"{address} is in none of the networks of outgoing_networks"


def read_networks(value: object) -> OutgoingNetworks:
    """``any``, or networks and addresses: a JSON array, or a text with commas between. ``ValueError`` otherwise."""
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
            raise ValueError(f"{part!r} is no address or network, such as 10.0.0.7 or 10.0.0.0/24") from None
    return OutgoingNetworks(tuple(found))


def _plain(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one that reaches it: mapped, 6to4, Teredo, or of ``CARRIERS``."""
    if isinstance(address, IPv4Address) or address in OWN_IPV6:
        return address
    if any(address in one for one in CARRIERS):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)


def _is_inside(one: Network, other: Network) -> bool:
    if isinstance(one, IPv4Network):
        return isinstance(other, IPv4Network) and one.subnet_of(other)
    return isinstance(other, IPv6Network) and one.subnet_of(other)
