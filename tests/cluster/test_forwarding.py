"""What stands before the doors of a node: who leads is reached, whoever cannot show the secret is not let in."""

import asyncio
import hashlib
import ssl
from pathlib import Path

import pytest

from tests.certificates import certificate, server_context
from tests.cluster.parts import until
from yirangmq.doors.forwarding import Gate, Passage, Target

PATIENCE = 60.0


class Echo(asyncio.Protocol):
    """A door behind the gate."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.WriteTransport)
        self.transport.write(b"<" + data + b">")


class Lead:
    def __init__(self, *, is_on: bool, target: Target | None = None) -> None:
        self.is_on = is_on
        self._target = target

    def target(self) -> Target | None:
        return self._target


async def listening(gate: Gate) -> tuple[asyncio.AbstractServer, int]:
    server = await asyncio.get_running_loop().create_server(gate.guard("echo", Echo), "127.0.0.1", 0)
    return server, int(server.sockets[0].getsockname()[1])


async def said(port: int, text: bytes, wanted: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(text)
            return await reader.readexactly(wanted)
    except asyncio.IncompleteReadError as error:
        return error.partial
    finally:
        writer.close()


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_connection_is_passed_on_to_the_leader(tmp_path: Path, is_encrypted: bool) -> None:
    tls = server_context(tmp_path) if is_encrypted else None
    pin = _digest(certificate(tmp_path)[0]) if is_encrypted else ""

    async def game() -> None:
        leader = Gate(Lead(is_on=True), "secret")
        leader.guard("echo", Echo)
        host, _, port = (await leader.listen(("127.0.0.1", 0), tls)).rpartition(":")
        other = Gate(Lead(is_on=False, target=Target(host, int(port), "secret", pin)), "another")
        server, door = await listening(other)
        assert await said(door, b"hello", 7) == b"<hello>"
        assert (await said(door, b"x" * 1_000_000, 1_000_000)).count(b"x") > 900_000
        stranger = Gate(Lead(is_on=False, target=Target(host, int(port), "guessed", pin)), "another")
        its_server, its_door = await listening(stranger)
        assert await said(its_door, b"hello", 7) == b""
        for one in (server, its_server):
            one.close()
        for gate in (leader, other, stranger):
            gate.close()

    asyncio.run(game())


def test_a_certificate_that_is_not_the_leaders_is_not_trusted(tmp_path: Path) -> None:
    async def game() -> None:
        leader = Gate(Lead(is_on=True), "secret")
        leader.guard("echo", Echo)
        host, _, port = (await leader.listen(("127.0.0.1", 0), server_context(tmp_path))).rpartition(":")
        gate = Gate(Lead(is_on=False), "another")
        passage = Passage(gate, "echo", Echo)
        assert not await passage._reach(Target(host, int(port), "secret", "0" * 64))
        assert not await passage._reach(Target(host, 1, "secret"))
        leader.close()

    asyncio.run(game())


def test_who_waits_for_a_leader_is_given_to_this_node_when_it_leads() -> None:
    async def game() -> None:
        lead = Lead(is_on=False)
        gate = Gate(lead, "secret")
        server, door = await listening(gate)
        asking = asyncio.ensure_future(said(door, b"hello", 7))
        await until(lambda: bool(gate.passages))
        lead.is_on = True
        assert await asking == b"<hello>"
        assert not gate.passages
        server.close()
        gate.close()

    asyncio.run(game())


def test_what_was_passed_on_ends_with_the_one_it_was_passed_on_to() -> None:
    async def game() -> None:
        leader = Gate(Lead(is_on=True), "secret")
        leader.guard("echo", Echo)
        host, _, port = (await leader.listen(("127.0.0.1", 0), None)).rpartition(":")
        lead = Lead(is_on=False, target=Target(host, int(port), "secret"))
        gate = Gate(lead, "another")
        server, door = await listening(gate)
        reader, writer = await asyncio.open_connection("127.0.0.1", door)
        async with asyncio.timeout(PATIENCE):
            writer.write(b"a")
            assert await reader.readexactly(3) == b"<a>"
            gate.changed()  # the same leads: nothing ends
            writer.write(b"b")
            assert await reader.readexactly(3) == b"<b>"
            lead._target = None
            gate.changed()
            assert await reader.read() == b""
        writer.close()
        server.close()
        for one in (gate, leader):
            one.close()

    asyncio.run(game())


def _digest(path: Path) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(path.read_text())).hexdigest()
