"""The link between two nodes over real sockets: what counts as the peer, and what does not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from tests.support.ports import free_port
from tests.support.wait import PATIENCE, soon
from yirangmq.core.failover import FailoverTiming, PeerHeartbeat, Probe
from yirangmq.core.failover_node import FailoverNode, HeartbeatResult
from yirangmq.failover.link import HeartbeatLink
from yirangmq.failover.node import boot_clock, wall_clock
from yirangmq.wire.heartbeat import read, write

KEY = b"a key of the two nodes"
HOST = "127.0.0.1"
Answer = Callable[[bytes], bytes]


class Listener:
    """A node without decisions: it takes heartbeats in, and makes its own."""

    def __init__(self, name: str) -> None:
        self.node = FailoverNode(name, FailoverTiming(), 0, f"boot-of-{name}", boot_clock())
        self.rejected = 0

    def on_heartbeat(self, heartbeat: PeerHeartbeat, *, is_datagram: bool) -> HeartbeatResult:
        return self.node.on_heartbeat(heartbeat, boot_clock(), wall_clock(), is_datagram=is_datagram)

    def on_rejected(self) -> None:
        self.rejected += 1

    def make_heartbeat(self) -> PeerHeartbeat:
        return self.node.heartbeat(boot_clock(), wall_clock())


class Ends:
    """Two links, each with its listener."""

    def __init__(self, host: str, theirs: bytes) -> None:
        self.ports = free_port(), free_port()
        self.listeners = Listener("a"), Listener("b")
        keys = KEY, theirs
        self.links = [
            HeartbeatLink((host, self.ports[1 - index]), keys[index], self.listeners[index]) for index in (0, 1)
        ]

    async def probe(self) -> Probe:
        return await self.links[0].probe_peer(self.listeners[0].make_heartbeat(), PATIENCE)


@asynccontextmanager
async def linked(host: str = HOST, theirs: bytes = KEY, *, both: bool = True) -> AsyncIterator[Ends]:
    ends = Ends(host, theirs)
    opened = ends.links if both else ends.links[:1]
    for link, port in zip(opened, ends.ports, strict=False):
        await link.open(HOST, port)
    try:
        yield ends
    finally:
        for link in opened:
            link.close()


@asynccontextmanager
async def program(port: int, answer: Answer) -> AsyncIterator[None]:
    """Another program at the peer's port: it answers to what it reads."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = await reader.readexactly(2)
        writer.write(answer(size + await reader.readexactly(int.from_bytes(size, "big"))))
        writer.close()

    server = await asyncio.start_server(serve, HOST, port)
    try:
        yield
    finally:
        server.close()


def run(test: Awaitable[None]) -> None:
    async def main() -> None:
        await test

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_probe_reaches_a_peer_with_the_same_key() -> None:
    async def test() -> None:
        async with linked() as ends:
            assert await ends.probe() is Probe.REACHED
            assert [link.received for link in ends.links] == [1, 1]

    run(test())


def test_probe_shows_both_nodes_that_their_keys_differ() -> None:
    """S-19: the port is open, and what answers there is a node with another key: it lives."""

    async def test() -> None:
        async with linked(theirs=b"another key") as ends:
            assert await ends.probe() is Probe.REJECTED
            assert [one.rejected for one in ends.listeners] == [1, 1]
            assert [link.received for link in ends.links] == [0, 0]

    run(test())


def _old_heartbeat(ends: Ends) -> Answer:
    """The peer's own heartbeat, made before the probe: its tag is valid."""
    recorded = write(ends.listeners[1].make_heartbeat(), KEY)
    return lambda data: len(recorded).to_bytes(2, "big") + recorded


PROGRAMS: dict[str, Callable[[Ends], Answer]] = {
    "echo": lambda ends: lambda data: data,
    "http": lambda ends: lambda data: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "cut-off": lambda ends: lambda data: b"\x00\xffYRHB",
    "recorded": _old_heartbeat,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_probe_tells_another_program_at_the_port_from_the_peer(name: str) -> None:
    """S-19: an open port of something else counts neither as the peer nor as a peer with another key."""

    async def test() -> None:
        async with linked(both=False) as ends, program(ends.ports[1], PROGRAMS[name](ends)):
            assert await ends.probe() is Probe.FOREIGN
            assert ends.listeners[0].rejected == 0

    run(test())


def test_probe_of_a_closed_port_or_one_that_says_nothing_has_no_answer() -> None:
    async def test() -> None:
        async with linked(both=False) as ends:
            assert await ends.probe() is Probe.SILENT
            async with program(ends.ports[1], lambda data: b""):
                assert await ends.probe() is Probe.SILENT

    run(test())


def test_probe_answer_of_the_version_before_proves_itself() -> None:
    """A node of the version before answers a valid heartbeat with its own, which echoes the challenge."""

    async def test() -> None:
        async with linked(both=False) as ends:
            before = ends.listeners[1].node

            def answer(data: bytes) -> bytes:
                before.on_heartbeat(read(data[2:], KEY), boot_clock(), wall_clock())
                made = write(before.heartbeat(boot_clock(), wall_clock()), KEY)
                return len(made).to_bytes(2, "big") + made

            async with program(ends.ports[1], answer):
                assert await ends.probe() is Probe.REACHED

    run(test())


def test_heartbeat_with_another_key_is_evidence_only_from_the_address_of_the_peer() -> None:
    async def test() -> None:
        async with linked(theirs=b"another key") as ends:
            ours, theirs = ends.links[0], ends.listeners[1]
            loop = asyncio.get_running_loop()
            stranger, _ = await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol, ("127.0.0.2", 0), (HOST, ends.ports[0])
            )
            stranger.sendto(write(theirs.make_heartbeat(), b"another key"))
            await soon(lambda: ours.refused == {"not_allowed": 1})
            stranger.close()
            assert ends.listeners[0].rejected == 0
            ends.links[1].send(theirs.make_heartbeat())
            await soon(lambda: ours.refused == {"not_allowed": 2})
            assert ends.listeners[0].rejected == 1

    run(test())


def test_heartbeat_that_is_replayed_is_counted_as_refused_and_not_as_heard() -> None:
    async def test() -> None:
        async with linked() as ends:
            beat = ends.listeners[1].make_heartbeat()
            for _ in range(3):
                ends.links[1].send(beat)
            await soon(lambda: ends.links[0].refused == {"repeated": 2})
            assert ends.links[0].received == 1

    run(test())


def test_heartbeat_reaches_a_peer_that_is_named_by_host() -> None:
    async def test() -> None:
        async with linked("localhost") as ends:
            ends.links[0].send(ends.listeners[0].make_heartbeat())
            await soon(lambda: ends.links[1].received == 1)
            assert await ends.probe() is Probe.REACHED

    run(test())
