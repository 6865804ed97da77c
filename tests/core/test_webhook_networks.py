"""Which addresses may be called by webhooks and alert sinks."""

import pytest

from yirangmq.core.webhook import read_networks

LINK_LOCAL = [
    "169.254.169.254",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "64:ff9b:1::a9fe:a9fe",
    "::169.254.169.254",
    "::ffff:0:169.254.169.254",
    "2001:0:7f00:1::5601:5601",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "0.0.0.0",
    "::",
    "224.0.0.1",
    "255.255.255.255",
    "ff02::1",
]


@pytest.mark.parametrize("address", LINK_LOCAL)
@pytest.mark.parametrize("networks", ["any", "0.0.0.0/0,::/0", "10.0.0.0/8"])
def test_outgoing_link_local_address_is_refused(address: str, networks: str) -> None:
    assert "outgoing_networks" in read_networks(networks).refusal(address)


@pytest.mark.parametrize(
    ("networks", "address"),
    [
        ("any", "127.0.0.1"),
        ("any", "::1"),
        ("any", "10.1.2.3"),
        ("any", "93.184.216.34"),
        ("10.0.0.0/8", "10.1.2.3"),
        ("10.0.0.0/8", "::ffff:10.1.2.3"),
        ("10.0.0.7", "10.0.0.7"),
        ("169.254.0.0/16", "169.254.169.254"),
        ("fe80::/64", "fe80::1%eth0"),
    ],
)
def test_outgoing_address_of_a_named_network_is_allowed(networks: str, address: str) -> None:
    assert read_networks(networks).refusal(address) == ""


@pytest.mark.parametrize(
    ("networks", "address"),
    [("10.0.0.0/8", "127.0.0.1"), ("10.0.0.0/8", "::1"), ("127.0.0.1", "127.0.0.2"), ("10.0.0.0/8", "mail.example")],
)
def test_outgoing_address_outside_of_the_networks_is_refused(networks: str, address: str) -> None:
    assert read_networks(networks).refusal(address)


@pytest.mark.parametrize("given", ["", "all", "10.0.0.0/33", "10.0.0.1/8", [], [7], None, "example.org"])
def test_outgoing_networks_are_checked(given: object) -> None:
    with pytest.raises(ValueError, match="such as 10"):
        read_networks(given)
