"""What stands before the doors of a node: who leads is reached, whoever cannot show the secret is not let in."""

import asyncio
import hashlib
import json
import ssl
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import stomp

from tests.support.credentials import TOKEN, certificate, server_context
from tests.support.etcd import EtcdCluster
from tests.support.etcd_servers import Served
from tests.support.server_process import until as wait_until
from tests.support.stomp_server import LiveClient
from tests.support.wait import soon
from yirangmq.client.connect import connect
from yirangmq.cluster.etcd.address import read_address
from yirangmq.core.errors import NotAllowed
from yirangmq.protocols.leader_proxy import LeaderAddress, LeaderProxy, ProxiedConnection
from yirangmq.stores.etcd.store import find_current_leader

PATIENCE = 60.0


class Echo(asyncio.Protocol):
    """A door behind the gate."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"<" + data + b">")


class Lead:
    def __init__(self, *, is_on: bool, leader_address: LeaderAddress | None = None) -> None:
        self.is_on = is_on
        self._target = leader_address

    def leader_address(self) -> LeaderAddress | None:
        return self._target


async def listening(gate: LeaderProxy) -> tuple[asyncio.AbstractServer, int]:
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
def test_leader_proxy_forwards_a_connection_to_the_leader_only_with_the_secret(
    tmp_path: Path, is_encrypted: bool
) -> None:
    tls = server_context(tmp_path) if is_encrypted else None
    pin = _digest(certificate(tmp_path)[0]) if is_encrypted else ""

    async def game() -> None:
        leader = LeaderProxy(Lead(is_on=True), "secret")
        leader.guard("echo", Echo)
        host, _, port = (await leader.listen(("127.0.0.1", 0), tls)).rpartition(":")
        other = LeaderProxy(Lead(is_on=False, leader_address=LeaderAddress(host, int(port), "secret", pin)), "another")
        server, door = await listening(other)
        assert await said(door, b"hello", 7) == b"<hello>"
        assert (await said(door, b"x" * 1_000_000, 1_000_000)).count(b"x") > 900_000
        stranger = LeaderProxy(
            Lead(is_on=False, leader_address=LeaderAddress(host, int(port), "guessed", pin)), "another"
        )
        its_server, its_door = await listening(stranger)
        assert await said(its_door, b"hello", 7) == b""
        for one in (server, its_server):
            one.close()
        for gate in (leader, other, stranger):
            gate.close()

    asyncio.run(game())


def test_leader_proxy_does_not_trust_a_certificate_that_is_not_the_leaders(tmp_path: Path) -> None:
    async def game() -> None:
        leader = LeaderProxy(Lead(is_on=True), "secret")
        leader.guard("echo", Echo)
        host, _, port = (await leader.listen(("127.0.0.1", 0), server_context(tmp_path))).rpartition(":")
        gate = LeaderProxy(Lead(is_on=False), "another")
        passage = ProxiedConnection(gate, "echo", Echo)
        assert not await passage._connect(LeaderAddress(host, int(port), "secret", "0" * 64))
        assert not await passage._connect(LeaderAddress(host, 1, "secret"))
        leader.close()

    asyncio.run(game())


def test_leader_proxy_gives_a_waiting_connection_to_this_node_when_it_leads() -> None:
    async def game() -> None:
        lead = Lead(is_on=False)
        gate = LeaderProxy(lead, "secret")
        server, door = await listening(gate)
        asking = asyncio.ensure_future(said(door, b"hello", 7))
        await soon(lambda: bool(gate.connections))
        lead.is_on = True
        assert await asking == b"<hello>"
        assert not gate.connections
        server.close()
        gate.close()

    asyncio.run(game())


def test_leader_proxy_ends_forwarded_connections_when_the_leader_is_lost() -> None:
    async def game() -> None:
        leader = LeaderProxy(Lead(is_on=True), "secret")
        leader.guard("echo", Echo)
        host, _, port = (await leader.listen(("127.0.0.1", 0), None)).rpartition(":")
        lead = Lead(is_on=False, leader_address=LeaderAddress(host, int(port), "secret"))
        gate = LeaderProxy(lead, "another")
        server, door = await listening(gate)
        reader, writer = await asyncio.open_connection("127.0.0.1", door)
        async with asyncio.timeout(PATIENCE):
            writer.write(b"a")
            assert await reader.readexactly(3) == b"<a>"
            gate.on_change()  # the same leads: nothing ends
            writer.write(b"b")
            assert await reader.readexactly(3) == b"<b>"
            lead._target = None
            gate.on_change()
            assert await reader.read() == b""
        writer.close()
        server.close()
        for one in (gate, leader):
            one.close()

    asyncio.run(game())


@pytest.mark.process
def test_leader_proxy_forwards_encrypted_between_servers_with_certificates_of_their_own(
    etcd: EtcdCluster, queue: str, tmp_path: Path
) -> None:
    """By socket, HTTP and STOMP through the node that does not lead, whose certificate clients see; what is between the
    nodes is encrypted with the leader's."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    pairs = {name: certificate(_folder(tmp_path / f"of-{name}")) for name in "ab"}

    def options(name: str) -> list[str]:
        cert, key = map(str, pairs[name])
        return ["--tls-cert", cert, "--tls-key", key, "--token-file", str(tmp_path / "token")]

    nodes = Served(tmp_path, etcd.endpoints, queue, lease=60)
    nodes.options = options
    try:
        nodes.start("a")
        first = nodes.leader()
        nodes.start("b")
        cert = pairs["b"][0]
        with connect(f"{nodes.address('b', 'tls')}?token={TOKEN}&ca={cert}", retries=100) as client:
            client.publish(queue, {"n": 1})
            with pytest.raises(NotAllowed):
                connect(f"{nodes.address('b', 'tls')}?token=guess&ca={cert}", retries=0)
            context = ssl.create_default_context(cafile=str(cert))
            web = HTTPSConnection("127.0.0.1", nodes.port("b", "https"), timeout=PATIENCE, context=context)
            web.request("GET", f"/v1/queues/{queue}", headers={"Authorization": f"Bearer {TOKEN}"})
            answer = web.getresponse()
            assert (answer.status, json.loads(answer.read())["queue"]) == (200, queue)
            web.close()
            port = nodes.port("b", "stomp+ssl")
            program = LiveClient(port)
            program.line.set_ssl([("127.0.0.1", port)], ca_certs=str(cert))
            program.connect(username="any", passcode=TOKEN)
            program.confirm(program.line.subscribe, f"/queue/{queue}", id="1", ack="client-individual")
            [message] = program.messages(1)
            assert message.body == b'{"n":1}'
            program.ack(message)
            wait_until(lambda: client.counts(queue).acked == 1)
            program.close()
        leader = find_current_leader(read_address(nodes.url, {}))
        assert leader is not None
        assert (leader.node, leader.pin) == (first, _digest(pairs[first][0]))
        assert not asyncio.run(said(int(leader.forward.rpartition(":")[2]), _opening(leader.secret), 20)).startswith(
            b"HTTP"
        )
    finally:
        nodes.kill()


def test_leader_proxy_tells_the_leader_the_address_of_the_client(etcd: EtcdCluster, queue: str, tmp_path: Path) -> None:
    """A program that is known by its address is the same at every node, and so is a stranger."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    rules = {"name": "ATMH", "addresses": ["127.0.1.11"], "tokenFile": str(tmp_path / "token")}
    nodes = Served(tmp_path, etcd.endpoints, queue, lease=60)
    nodes.options = lambda name: ("--programs", json.dumps([rules]))
    try:
        nodes.start("a")
        first = nodes.leader()
        nodes.start("b")
        assert first == "a"
        for name in ("a", "b"):
            client = LiveClient(nodes.port(name, "stomp"), bind_host_port=("127.0.1.11", 0))
            client.connect(username="atmh", passcode=TOKEN)
            client.confirm(client.line.subscribe, "/queue/ATMH", id="1", ack="auto")
            client.close()
            with pytest.raises(stomp.exception.ConnectFailedException):
                LiveClient(nodes.port(name, "stomp")).connect(username="atmh", passcode=TOKEN)
        with connect(nodes.nodes["a"].address) as operator:
            refused = operator.call("programs")["refused"]
        assert {one["address"] for one in refused["latest"]} == {"127.0.0.1"}
    finally:
        nodes.kill()


def _opening(secret: str) -> bytes:
    """What a node would say first, in the clear, before a request for a page that everybody may see."""
    line = json.dumps({"door": "http", "secret": secret}).encode()
    return line + b"\nGET /v1/health HTTP/1.1\r\nHost: here\r\n\r\n"


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(path.read_text())).hexdigest()
