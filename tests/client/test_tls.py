"""Over TLS the same verbs go, and a server that nobody vouches for is not spoken to."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import certificate, server_context
from tests.client.conftest import Connect
from tests.servers import RunningServer
from yirangmq import NotAllowed, Unreachable
from yirangmq.client.open import connect
from yirangmq.stores.memory import MemoryStore


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[RunningServer]:
    server = RunningServer(MemoryStore(), tmp_path, tls=server_context(tmp_path), token="sesame").start()
    yield server
    server.stop()


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    return certificate(tmp_path)[0]


def test_messages_large_and_small_go_through(secret: RunningServer, connecting: Connect, ca: Path) -> None:
    queues = connecting(f"{secret.tcp}?ca={ca}&token=sesame")
    payloads = [b"", b"small", bytes(range(256)) * 4000, b"last"]
    queues.publish_many("mail", payloads)
    got: list[bytes] = []
    while batch := queues.lease("mail", 9):
        got += [delivery.payload for delivery in batch]
        queues.ack_many([delivery.lease_id for delivery in batch])
    assert got == payloads
    assert queues.counts("mail").done == 4


def test_an_unknown_authority_is_refused(secret: RunningServer, connecting: Connect) -> None:
    with pytest.raises(Unreachable, match="certificate verify failed"):
        connecting(secret.tcp, token="sesame", retries=0)


def test_who_speaks_in_the_clear_is_not_heard(secret: RunningServer, connecting: Connect) -> None:
    with pytest.raises(Unreachable):
        connecting(secret.tcp.replace("tls:", "tcp:"), token="sesame", retries=0)


def test_who_speaks_tls_to_a_server_without_is_told_so(tmp_path: Path, connecting: Connect) -> None:
    plain = RunningServer(MemoryStore(), tmp_path).start()
    try:
        with pytest.raises(Unreachable, match="no TLS is spoken there"):
            connecting(plain.tcp.replace("tcp:", "tls:"), retries=0)
    finally:
        plain.stop()


def test_the_token_is_wanted_here_too(secret: RunningServer, connecting: Connect, ca: Path) -> None:
    with pytest.raises(NotAllowed, match=r"\?token=TOKEN"):
        connecting(f"{secret.tcp}?ca={ca}")
    with pytest.raises(NotAllowed, match="not the token of this server"):
        connecting(f"{secret.tcp}?ca={ca}&token=guess")


def test_threads_write_and_read_at_once(secret: RunningServer, ca: Path) -> None:
    with connect(f"{secret.tcp}?ca={ca}", token="sesame") as client:
        threads = [
            threading.Thread(target=lambda n=n: client.publish_many(f"q{n}", [b"x" * 5000] * 300)) for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [client.counts(f"q{n}").ready for n in range(4)] == [300] * 4
