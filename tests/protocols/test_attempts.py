"""Wrong tokens are slowed down by address, through every protocol, and nobody is locked out."""

import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.support.credentials import TOKEN
from tests.support.server_process import Daemon, daemon
from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect
from yirangmq.core.access import AccessGrant
from yirangmq.core.errors import NotAllowed
from yirangmq.protocols.context import (
    MAX_DELAY_SECONDS,
    MAX_TABLE_ENTRIES,
    WRONG_TOKEN_BURST,
    Authenticator,
    WrongTokenLimiter,
    network_of,
)

WRONG = [f"wrong-token-{number:06}" for number in range(1000)]


class Seconds:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def never(seconds: float, act: Callable[[], None]) -> None:
    """Nothing waits here."""


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def gate(seconds: Seconds) -> Authenticator:
    return Authenticator([AccessGrant(TOKEN)], WrongTokenLimiter(seconds, never))


def guess(gate: Authenticator, count: int, address: str = "10.0.0.1:5") -> None:
    for token in WRONG[:count]:
        assert gate.find(token, address) is None


def test_token_attempts_below_the_burst_are_not_delayed(gate: Authenticator) -> None:
    guess(gate, int(WRONG_TOKEN_BURST) - 1)
    assert gate.delay("another-wrong-token", "10.0.0.1:6") == 0


def test_token_attempts_past_the_burst_are_delayed_whether_right_or_wrong(gate: Authenticator) -> None:
    """A guesser cannot tell a wrong token by its delay, and a client with the right one is let in after it."""
    guess(gate, int(WRONG_TOKEN_BURST))
    assert gate.delay("another-wrong-token", "10.0.0.1:6") == gate.delay(TOKEN, "10.0.0.1:7") == 1
    guess(gate, 100)
    assert gate.delay(TOKEN, "10.0.0.1:7") == MAX_DELAY_SECONDS
    assert gate.find(TOKEN, "10.0.0.1:7") is not None
    assert gate.delay(TOKEN, "10.0.0.1:8") == 0


def test_token_attempts_of_others_do_not_delay_a_client_whose_token_was_right_before(gate: Authenticator) -> None:
    assert gate.find(TOKEN, "10.0.0.1:4") is not None
    guess(gate, 500)
    assert gate.delay(TOKEN, "10.0.0.1:9") == 0
    assert gate.delay("another-wrong-token", "10.0.0.1:9") == MAX_DELAY_SECONDS


def test_token_attempts_are_counted_by_address_and_expire_with_time(gate: Authenticator, seconds: Seconds) -> None:
    guess(gate, 500)
    assert gate.delay(TOKEN, "10.0.0.2:5") == 0
    seconds.now += 2
    assert gate.delay(TOKEN, "10.0.0.1:5") == MAX_DELAY_SECONDS - 2
    seconds.now += MAX_DELAY_SECONDS
    assert gate.delay(TOKEN, "10.0.0.1:5") == 0


def test_token_attempts_without_a_token_by_unix_socket_or_by_known_address_do_not_count(seconds: Seconds) -> None:
    from ipaddress import ip_network

    program = AccessGrant("", name="A", addresses=(ip_network("10.0.0.1/32"),))
    gate = Authenticator([AccessGrant(TOKEN), program], WrongTokenLimiter(seconds, never))
    for _ in range(50):
        assert gate.find("", "10.0.0.9:1") is None
        assert gate.find("guest", "10.0.0.1:1") is program
        gate.record_attempt("wrong-password", "unix:77", is_right=False)
    assert all(gate.delay("x", address) == 0 for address in ("10.0.0.9:1", "10.0.0.1:1", "unix:77"))


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("tcp", "tcp"),
    ],
)
def test_token_attempts_from_ipv6_count_by_their_network(host: str, network: str) -> None:
    assert network_of(host) == network


def test_token_attempts_from_any_number_of_addresses_take_bounded_memory(seconds: Seconds) -> None:
    attempts = WrongTokenLimiter(seconds, never)
    for number in range(MAX_TABLE_ENTRIES + 100):
        attempts.record_attempt(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", b"wrong", is_right=False)
        attempts.record_attempt(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", b"right", is_right=True)
    assert len(attempts._left) == len(attempts._accepted) == MAX_TABLE_ENTRIES


# -- through every protocol -----------------------------------------------------------------------------------------

Try = Callable[[Daemon, str], bool]


def by_socket(server: Daemon, token: str) -> bool:
    with contextlib.suppress(NotAllowed), connect(server.address_of("tcp"), token=token, retries=0) as client:
        client.publish("mail", 1)
        return True
    return False


def by_http(server: Daemon, token: str) -> bool:
    return server.request("GET", "/v1/queues", token=token)[0] == 200


def by_admin_password(server: Daemon, token: str) -> bool:
    return server.request("GET", "/admin/mq-with-config", token=token)[0] == 200


def by_stomp(server: Daemon, token: str) -> bool:
    host, _, port = server.address_of("stomp").removeprefix("stomp://").rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as line:
        line.sendall(f"CONNECT\naccept-version:1.2\nhost:x\npasscode:{token}\n\n\0".encode())
        return line.recv(4096).startswith(b"CONNECTED")


def delayed(server: Daemon) -> int:
    with connect(server.address) as client:
        page: str = client.call("metrics")
    return int(page.partition("\nyirangmq_delayed_attempts_total ")[2].split()[0])


WAYS: dict[str, Try] = {
    "socket": by_socket, "http": by_http, "admin": by_admin_password, "stomp": by_stomp,
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    ways = ("--http", "127.0.0.1:0", "--tcp", "127.0.0.1:0", "--stomp", "127.0.0.1:0")
    with daemon(tmp_path_factory.mktemp("server"), *ways, "--token", TOKEN, "--mq-admin-password", TOKEN) as running:
        yield running


@pytest.mark.process
def test_token_attempts_of_every_protocol_share_one_limit_and_a_right_token_is_accepted(server: Daemon) -> None:
    """On the version before 10,000 wrong tokens a second were answered."""
    wrong = iter(WRONG)
    for way in itertools.islice(itertools.cycle(WAYS.values()), int(WRONG_TOKEN_BURST)):
        assert not way(server, next(wrong))
    for way in WAYS.values():
        before = delayed(server)
        assert not way(server, next(wrong))
        assert delayed(server) == before + 1
    before = delayed(server)
    assert by_socket(server, TOKEN)
    assert delayed(server) == before + 1
    for way in WAYS.values():  # known here from now on
        assert way(server, TOKEN)
    assert delayed(server) == before + 1
    assert [one["address"] for one in server.events() if one["event"] == "wrong_tokens_delayed"] == ["127.0.0.1"]


@pytest.mark.process
@pytest.mark.parametrize(("path", "source"), [("/mq/mail/stats", "127.0.0.2"), ("/v1/queues", "127.0.0.3")])
def test_token_attempts_pipelined_in_one_write_are_counted_one_by_one(server: Daemon, path: str, source: str) -> None:
    """On the version before all heads were looked at before the first token was tried, so that none was delayed."""
    host, _, port = server.address_of("http").removeprefix("http://").rpartition(":")
    head = "GET {} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n"
    with socket.create_connection((host, int(port)), PATIENCE, (source, 0)) as line, line.makefile("rb") as answers:
        line.sendall("".join(head.format(path, token) for token in WRONG[:40]).encode())
        assert answers.read().count(b"HTTP/1.1 401 ") == WRONG_TOKEN_BURST + 1
