"""Over TLS the same verbs go, and a server that nobody vouches for is not spoken to."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.parts import Connect
from tests.support.credentials import certificate, server_context
from tests.support.server import RunningServer
from yirangmq import BadInput, NotAllowed, TlsFailed
from yirangmq.client.connect import connect
from yirangmq.stores.memory import MemoryStore


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[RunningServer]:
    server = RunningServer(MemoryStore(), tmp_path, tls=server_context(tmp_path), token="sesame").start()
    yield server
    server.stop()


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    return certificate(tmp_path)[0]


def test_tls_carries_large_and_small_messages(secret: RunningServer, connecting: Connect, ca: Path) -> None:
    queues = connecting(f"{secret.tcp}?ca={ca}&token=sesame")
    payloads = [b"", b"small", bytes(range(256)) * 4000, b"last"]
    queues.publish_many("mail", payloads)
    got: list[bytes] = []
    while batch := queues.lease("mail", 9):
        got += [delivery.payload for delivery in batch]
        queues.ack_many([delivery.lease_id for delivery in batch])
    assert got == payloads
    assert queues.counts("mail").done == 4


def test_tls_certificate_that_does_not_verify_is_a_permanent_error(secret: RunningServer, connecting: Connect) -> None:
    with pytest.raises(TlsFailed, match=r"does not verify: self-signed certificate.*--ca FILE"):
        connecting(secret.tcp, token="sesame", retries=1000)


def test_tls_certificate_for_another_name_is_a_permanent_error(tmp_path: Path, connecting: Connect) -> None:
    other = RunningServer(MemoryStore(), tmp_path, tls=server_context(tmp_path, "elsewhere")).start()
    try:
        with pytest.raises(TlsFailed, match=r"Hostname mismatch.*host name it is issued for"):
            connecting(f"{other.tcp}?ca={certificate(tmp_path, 'elsewhere')[0]}", retries=1000)
    finally:
        other.stop()


def test_tls_port_addressed_in_clear_text_is_a_permanent_error(secret: RunningServer, connecting: Connect) -> None:
    with pytest.raises(TlsFailed, match=r"TLS is spoken at this port; use tls://localhost:"):
        connecting(secret.tcp.replace("tls:", "tcp:"), token="sesame", retries=1000)


def test_tls_spoken_to_a_plain_port_is_a_permanent_error(tmp_path: Path, connecting: Connect) -> None:
    plain = RunningServer(MemoryStore(), tmp_path).start()
    try:
        with pytest.raises(TlsFailed, match="no TLS is spoken at this port; use tcp://"):
            connecting(plain.tcp.replace("tcp:", "tls:"), retries=1000)
    finally:
        plain.stop()


def test_tls_failure_at_one_address_leaves_the_others(secret: RunningServer, connecting: Connect, ca: Path) -> None:
    good = f"{secret.tcp}?ca={ca}"
    queues = connecting(f"{secret.tcp.replace('tls:', 'tcp:')},{good}", token="sesame")
    assert queues.publish("mail", b"x").id


@pytest.mark.parametrize("name", ["ca", "cert"])
def test_tls_files_that_cannot_be_read_are_named(
    secret: RunningServer, connecting: Connect, tmp_path: Path, name: str
) -> None:
    files = {"ca": str(certificate(tmp_path)[0])} | {name: str(tmp_path / "nothing.pem")}
    files |= {"key": str(tmp_path / "nothing.key")} if name == "cert" else {}
    with pytest.raises(BadInput, match=rf"{name}: .*nothing\.pem"):
        connecting(secret.tcp, token="sesame", **files)


def test_tls_certificate_without_its_key_is_refused(secret: RunningServer, connecting: Connect, ca: Path) -> None:
    with pytest.raises(BadInput, match="key: a client certificate and its key go together"):
        connecting(secret.tcp, token="sesame", ca=str(ca), cert=str(ca))


def test_token_is_required_over_tls_too(secret: RunningServer, connecting: Connect, ca: Path) -> None:
    with pytest.raises(NotAllowed, match="set YIRANGMQ_TOKEN"):
        connecting(f"{secret.tcp}?ca={ca}")
    with pytest.raises(NotAllowed, match="not the token of this server"):
        connecting(f"{secret.tcp}?ca={ca}&token=guess")


def test_tls_connection_is_written_and_read_by_several_threads_at_once(secret: RunningServer, ca: Path) -> None:
    with connect(f"{secret.tcp}?ca={ca}", token="sesame") as client:
        threads = [
            threading.Thread(target=lambda n=n: client.publish_many(f"q{n}", [b"x" * 5000] * 300)) for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [client.counts(f"q{n}").ready for n in range(4)] == [300] * 4
