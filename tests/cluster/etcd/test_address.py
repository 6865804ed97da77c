"""Addresses of clusters, and the messages made from etcd.proto."""

from pathlib import Path

import pytest

from yirangmq.cluster.etcd import channel
from yirangmq.cluster.etcd.address import PASSWORD_VARIABLE, read_address
from yirangmq.cluster.etcd.client import create_revision_equals, delete, get, prefix_end
from yirangmq.core.errors import BadInput


def test_etcd_address_lists_several_members_with_and_without_ports() -> None:
    found = read_address("etcd://h1:2300,h2,[::1]:2301,[::1]", {})
    assert found.endpoints == ("h1:2300", "h2:2379", "[::1]:2301", "[::1]:2379")
    assert found.tls is None
    assert found.user == ""


def test_etcd_address_takes_tls_user_and_password_from_files_and_the_environment(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(name)
    (tmp_path / "word").write_text("open\n")
    files = "&".join(f"{name}={tmp_path / name}" for name in ("ca", "cert", "key"))
    found = read_address(f"etcd://h?{files}&user=ann&password-file={tmp_path / 'word'}", {PASSWORD_VARIABLE: "other"})
    assert found.tls is not None
    assert (found.tls.ca, found.tls.cert, found.tls.key) == (b"ca", b"cert", b"key")
    assert (found.user, found.password) == ("ann", "open")
    assert read_address("etcd://h?user=ann", {PASSWORD_VARIABLE: "other"}).password == "other"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http://h", "not an etcd cluster"),
        ("etcd://", "not HOST"),
        ("etcd://h:0", "not HOST"),
        ("etcd://h:x", "not HOST"),
        ("etcd://h,,g", "not HOST"),
        ("etcd://h?tls=1", "'tls' is not one of"),
        ("etcd://h?password=secret", "is not allowed in the address"),
        ("etcd://h?user=ann", "needs a password"),
        ("etcd://h?ca=/nowhere/ca.pem", "No such file"),
        ("etcd://h?cert=/etc/hostname", "go together"),
    ],
)
def test_etcd_address_that_is_invalid_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as error:
        read_address(text, {})
    assert "secret" not in str(error.value)


def test_etcd_messages_have_the_bytes_of_the_protocol() -> None:
    assert channel.PUT.request(key=b"k", value=b"v", lease=300).SerializeToString() == b"\x0a\x01k\x12\x01v\x18\xac\x02"
    # A comparison with 0 says so: "there is no such key".
    assert create_revision_equals(b"k", 0).SerializeToString() == b"\x08\x00\x10\x01\x1a\x01k\x28\x00"


def test_etcd_request_without_a_range_end_sends_none() -> None:
    """Sent and empty it would mean all keys behind: a delete of one key would be a delete of most."""
    assert delete(b"k").SerializeToString() == b"\x1a\x03\x0a\x01k"
    assert get(b"k").SerializeToString() == b"\x0a\x03\x0a\x01k"


def test_etcd_prefix_end_is_the_first_key_after_all_keys_of_the_prefix() -> None:
    assert prefix_end(b"/q/") == b"/q0"
    assert prefix_end(b"a\xff") == b"b"
    assert prefix_end(b"\xff") == b"\0"
