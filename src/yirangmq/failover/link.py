"""Heartbeat link between the nodes of a pair: UDP datagrams, and a TCP probe at the same port number.

Every heartbeat is authenticated with the pair's shared key (``wire.heartbeat``). Datagrams that fail verification are
counted by error code. When the peer falls silent, the node probes it over TCP: each side sends one heartbeat, framed by
a two-byte big-endian length, and each is processed like a datagram.

Datagrams never wait for the network: one that cannot be sent immediately is dropped, and the next heartbeat replaces
it."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

from yirangmq.core.errors import QueueError
from yirangmq.core.failover import PeerHeartbeat
from yirangmq.observe.port_in_use import cannot_listen
from yirangmq.wire.heartbeat import MAX_BYTES, read, write

SIZE_BYTES = 2
MAX_PROBES = 16
"""Maximum number of open probe connections. A pair of nodes needs one."""

BeatListener = Callable[[PeerHeartbeat], None]


class HeartbeatLink(asyncio.DatagramProtocol):
    """Heartbeat link of one node. ``on_beat`` is called with each verified heartbeat; ``answer`` builds the reply to a
    probe. Runs in the loop's thread."""

    def __init__(
        self, peer: tuple[str, int], key: bytes, on_beat: BeatListener, answer: Callable[[], PeerHeartbeat]
    ) -> None:
        self._peer = peer
        self._key = key
        self._on_beat = on_beat
        self._answer = answer
        self._transport: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None
        self._open_probes = 0
        self.refused: dict[str, int] = {}
        """Number of heartbeats that failed verification, by error code."""
        self.sent = self.received = 0

    async def open(self, host: str, port: int) -> None:
        kind = socket.SOCK_DGRAM
        try:
            bound = await _bound(host, port)
            await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=bound)
            kind = socket.SOCK_STREAM
            self._server = await asyncio.start_server(self._serve_probe, host, port)
        except OSError as error:
            self.close()
            raise cannot_listen("pair_listen", (host, port), error, kind) from None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        if self._server is not None:
            self._server.close()
            self._server = None

    # -- datagrams ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[object, ...]) -> None:
        self._receive(data)

    def error_received(self, error: Exception) -> None:
        """Ignore the error: the peer does not listen now, and the next heartbeat is sent anyway."""

    def send(self, beat: PeerHeartbeat) -> None:
        if self._transport is None:
            return
        with contextlib.suppress(OSError):
            self._transport.sendto(write(beat, self._key), self._peer)
            self.sent += 1

    def _receive(self, data: bytes) -> bool:
        try:
            beat = read(data, self._key)
        except QueueError as error:
            self.refused[error.code] = self.refused.get(error.code, 0) + 1
            return False
        self.received += 1
        self._on_beat(beat)
        return True

    # -- TCP probe ------------------------------------------------------------------------------------------------

    async def probe_peer(self, beat: PeerHeartbeat, seconds: float) -> bool:
        """Probe the peer: send a heartbeat over TCP. Return True if a valid one came back; it is processed like any
        other."""
        writer = None
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_connection(*self._peer)
                writer.write(_framed(write(beat, self._key)))
                return self._receive(await _framed_from(reader))
        except (OSError, EOFError, TimeoutError, ValueError):
            return False
        finally:
            if writer is not None:
                writer.close()

    async def _serve_probe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open_probes += 1
        try:
            if self._open_probes <= MAX_PROBES:
                async with asyncio.timeout(5):
                    if self._receive(await _framed_from(reader)):
                        writer.write(_framed(write(self._answer(), self._key)))
                        await writer.drain()
        except (OSError, EOFError, TimeoutError, ValueError):
            pass
        finally:
            self._open_probes -= 1
            writer.close()


async def _bound(host: str, port: int) -> socket.socket:
    """Bind the UDP socket here, because not every event loop reports why a bind failed."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(SIZE_BYTES, "big") + data


async def _framed_from(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(SIZE_BYTES), "big")
    if size > MAX_BYTES:
        raise ValueError(f"{size} bytes")
    return await reader.readexactly(size)
