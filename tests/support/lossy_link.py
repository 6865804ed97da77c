"""The cable between two nodes, in a test's hands: it loses, delays and can be cut one way or both.

Heartbeats (UDP) and the test of the connection (TCP) go through it. TCP needs both ways, as a real cable's does."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

from tests.support.ports import free_port
from tests.support.wait import PATIENCE


class Way(asyncio.DatagramProtocol):
    """From one node to the other."""

    def __init__(self, cable: "Cable", name: str, port: int) -> None:
        self._cable = cable
        self.name = name
        self.port = port
        self.is_cut = False
        self.loss = 0.0
        self.delay = 0.0
        self.carried = 0
        self._chance = random.Random(name)
        self._transport: Any = None

    def itself(self) -> "Way":
        return self

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if self.is_cut or self._chance.random() < self.loss:
            return
        self._cable.loop.call_later(self._chance.uniform(0, self.delay), self._carry, data)

    def _carry(self, data: bytes) -> None:
        if not self.is_cut:
            self.carried += 1
            self._transport.sendto(data, ("127.0.0.1", self.port))

    async def tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._cable.is_cut:
                return
            there = await asyncio.open_connection("127.0.0.1", self.port)
            await asyncio.gather(self._copy(reader, there[1]), self._copy(there[0], writer))
        except OSError:
            pass
        finally:
            writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while (data := await reader.read(65536)) and not self._cable.is_cut:
                await asyncio.sleep(self.delay / 2)
                writer.write(data)
                await writer.drain()
        writer.close()


class Cable:
    """``ports[name]``: where node ``name`` listens; ``peers[name]``: what it is told to be the other one's address."""

    def __init__(self, names: tuple[str, str] = ("a", "b")) -> None:
        self.ports = {name: free_port() for name in names}
        first, second = names
        self.ways = {first: Way(self, first, self.ports[second]), second: Way(self, second, self.ports[first])}
        self.peers = dict.fromkeys(names, 0)
        self.loop: asyncio.AbstractEventLoop

    @property
    def is_cut(self) -> bool:
        return any(way.is_cut for way in self.ways.values())

    def cut(self, *senders: str) -> None:
        for name in senders or self.ways:
            self.ways[name].is_cut = True

    def mend(self) -> None:
        for way in self.ways.values():
            way.is_cut, way.loss, way.delay = False, 0.0, 0.0

    async def carry(self, ready: threading.Event) -> None:
        """Until ``stop``."""
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            for name, way in self.ways.items():
                port = self.peers[name] = free_port()
                transport, _ = await self.loop.create_datagram_endpoint(way.itself, ("127.0.0.1", port))
                stack.callback(transport.close)
                server = await asyncio.start_server(way.tcp, "127.0.0.1", port)
                stack.callback(server.close)
            ready.set()
            await self._over.wait()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._over.set)


@contextlib.contextmanager
def cable() -> Iterator[Cable]:
    made, ready = Cable(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(made.carry(ready)))
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield made
    finally:
        made.stop()
        thread.join(PATIENCE)
