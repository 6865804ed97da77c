"""Where a server is, as text."""

import pytest

from yirangmq.client.address import ServerAddress, is_address, parse_named_address, read_addresses
from yirangmq.core.errors import BadInput


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/y.sock", ServerAddress("unix", path="/run/y.sock")),
        ("unix:///run/y.sock", ServerAddress("unix", path="/run/y.sock")),
        ("unix:y.sock", ServerAddress("unix", path="y.sock")),
        ("unix:/run/y.sock?token=a%26b", ServerAddress("unix", path="/run/y.sock", token="a&b")),
        ("tcp://host:7000", ServerAddress("tcp", host="host", port=7000)),
        ("tcp://[::1]:7000", ServerAddress("tcp", host="::1", port=7000)),
        ("tcp://host:7000?token=s%2C", ServerAddress("tcp", host="host", port=7000, token="s,")),
        (
            "tcp://host:7000?tls=1&ca=/etc/ca.pem",
            ServerAddress("tcp", host="host", port=7000, tls=True, ca="/etc/ca.pem"),
        ),
        ("tls://host:7000", ServerAddress("tcp", host="host", port=7000, tls=True)),
    ],
)
def test_address_of_every_scheme_is_parsed(text: str, address: ServerAddress) -> None:
    assert read_addresses(text) == (address,)
    assert is_address(text)


def test_address_list_is_split_by_commas_and_shares_a_token_unless_an_address_has_its_own() -> None:
    found = read_addresses("unix:/a, tcp://b:1?token=own ,tls://c:2", "shared")
    assert [str(one) for one in found] == ["unix:/a", "tcp://b:1", "tls://c:2"]
    assert [one.token for one in found] == ["shared", "own", "shared"]


def test_address_as_text_round_trips_and_its_repr_hides_the_token() -> None:
    for text in ("unix:/a", "tcp://b:1", "tcp://[::1]:1", "tls://c:2"):
        [address] = read_addresses(text, "secret")
        assert str(address) == text
        assert "secret" not in repr(address)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host:7000",
        "http://host:7000",
        "unix:",
        "unix:/a#b",
        "unix:/a?tls=1",
        "tcp://host",
        "tcp://:7000",
        "tcp://host:port",
        "tcp://host:70000",
        "tcp://host:7000/path",
        "tcp://me@host:7000",
        "tcp://host:7000?tls=yes",
        "tls://host:7000?tls=0",
        "tcp://host:7000?ca=/etc/ca.pem",
        "tcp://host:7000?tokne=x",
        "tcp://host:7000?token",
        "unix:/a,",
    ],
)
def test_address_that_is_invalid_is_refused_without_showing_a_token(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_addresses(text + ("&token=hush" if "?" in text else ""))
    assert caught.value.field == "address"
    assert "hush" not in str(caught.value)


def test_address_check_does_not_accept_a_store_url() -> None:
    assert not any(map(is_address, ("sqlite:a.db", "files:./a", "memory:", "unixsocket", "/run/y.sock")))


def test_address_list_may_name_the_scheme_once() -> None:
    found = read_addresses("tls://a:1,b:2, tcp://c:3,unix:/d", "t")
    assert [str(one) for one in found] == ["tls://a:1", "tls://b:2", "tcp://c:3", "unix:/d"]
    assert {one.token for one in found} == {"t"}


@pytest.mark.parametrize(
    ("here", "text", "wanted"),
    [
        ("tcp://a:1?token=t", "tcp://b:2", "tcp://b:2"),
        ("tls://a:1?ca=/c", "tls://b:2", "tls://b:2"),
        ("tls://a:1", "tcp://b:2", None),
        ("unix:/a", "tcp://b:2", None),
        ("tcp://a:1", "http://b:80", None),
    ],
)
def test_address_named_by_a_server_is_accepted_only_if_it_is_as_secure(
    here: str, text: str, wanted: str | None
) -> None:
    [like] = read_addresses(here)
    found = parse_named_address(text, like)
    assert (None if found is None else str(found)) == wanted
    if found is not None:
        assert (found.token, found.ca) == (like.token, like.ca)
