"""Heartbeat link between the nodes of a pair: UDP datagrams, and a TCP probe at the same port number.

Every heartbeat is authenticated with the pair's shared key (``wire.heartbeat``). Rejected ones are counted by reason.
If one from the peer's address fails authentication, the node is informed: the peer lives, and the keys differ.

When the peer falls silent, the node probes it over TCP: each side sends one heartbeat, framed by a two-byte big-endian
length, and each is processed like a datagram. The prober's heartbeat is the challenge: its boot and sequence are never
used again. The answer must show, signed, that it was made after that heartbeat arrived (``heardBoot`` and
``heardSequence``). So neither another program at that port nor a recorded answer passes for the peer.

Datagrams never wait for the network: one that cannot be sent immediately is dropped, and the next heartbeat replaces
it."""

import asyncio
import contextlib
import socket
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol, cast

from yirangmq.core.errors import NotAllowed, QueueError
from yirangmq.core.failover import PeerHeartbeat, Probe
from yirangmq.core.failover_node import HeartbeatResult
from yirangmq.observe.port_in_use import cannot_listen
from yirangmq.wire.heartbeat import MAX_BYTES, read, write

SIZE_BYTES = 2
MAX_PROBES = 16
"""Maximum number of open probe connections. A pair of nodes needs one."""
RESOLVE_SECONDS = 2.0
"""Time limit for resolving the peer's name."""


class LinkListener(Protocol):
    """Port of the link to its node."""

    def on_heartbeat(self, heartbeat: PeerHeartbeat, *, is_datagram: bool) -> HeartbeatResult:
        """Process a heartbeat with a valid tag."""

    def on_rejected(self) -> None:
        """Process that a heartbeat from the peer's address failed authentication."""

    def make_heartbeat(self) -> PeerHeartbeat:
        """Build the answer to a probe."""


class HeartbeatLink(asyncio.DatagramProtocol):
    """Heartbeat link of one node. Runs in the loop's thread."""

    def __init__(self, peer: tuple[str, int], key: bytes, listener: LinkListener) -> None:
        self._peer = peer
        self._key = key
        self._listener = listener
        self._family = socket.AF_UNSPEC
        self._destination: tuple[Any, ...] | None = None
        self._peer_hosts: frozenset[str] = frozenset()
        """IP addresses of the peer, as last resolved."""
        self._transport: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None
        self._open_probes = 0
        self.refused: dict[str, int] = {}
        """Number of heartbeats that were not accepted: by error code, or by ``HeartbeatResult``."""
        self.sent = self.received = 0

    async def open(self, host: str, port: int) -> None:
        kind = socket.SOCK_DGRAM
        try:
            bound = await _bound(host, port)
            self._family = bound.family
            await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=bound)
            kind = socket.SOCK_STREAM
            self._server = await asyncio.start_server(self._serve_probe, host, port)
        except OSError as error:
            self.close()
            raise cannot_listen("pair_listen", (host, port), error, kind) from None
        await self.resolve_peer()

    async def resolve_peer(self) -> None:
        """Resolve the peer's name. If that fails, the addresses known before stay."""
        flags = socket.AI_V4MAPPED if self._family == socket.AF_INET6 else 0
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(RESOLVE_SECONDS):
                loop = asyncio.get_running_loop()
                kind = socket.SOCK_DGRAM
                found = await loop.getaddrinfo(*self._peer, family=self._family, type=kind, flags=flags)
            self._destination = found[0][4]
            self._peer_hosts = frozenset(_unmapped(str(one[4][0])) for one in found)

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
        with contextlib.suppress(QueueError):
            self._accept(data, str(addr[0]), is_datagram=True)

    def error_received(self, error: Exception) -> None:
        """Ignore the error: the peer does not listen now, and the next heartbeat is sent anyway."""

    def send(self, beat: PeerHeartbeat) -> None:
        if self._transport is None or self._destination is None:
            return
        with contextlib.suppress(OSError):
            self._transport.sendto(write(beat, self._key), self._destination)
            self.sent += 1

    def _accept(self, data: bytes, host: str, *, is_datagram: bool) -> PeerHeartbeat:
        """Verify a heartbeat that came from ``host``, count it and process it. Raise its error if it is not valid."""
        try:
            beat = read(data, self._key)
        except QueueError as error:
            self._refuse(error.code)
            if isinstance(error, NotAllowed) and self._is_peer(host):
                self._listener.on_rejected()
            raise
        found = self._listener.on_heartbeat(beat, is_datagram=is_datagram)
        if found is HeartbeatResult.TAKEN:
            self.received += 1
        else:
            self._refuse(found)
        return beat

    def _refuse(self, why: str) -> None:
        self.refused[why] = self.refused.get(why, 0) + 1

    def _is_peer(self, host: str) -> bool:
        return _unmapped(host) in self._peer_hosts

    # -- TCP probe ------------------------------------------------------------------------------------------------

    async def probe_peer(self, beat: PeerHeartbeat, seconds: float) -> Probe:
        """Probe the peer: send ``beat`` over TCP as the challenge, and process the answer like any heartbeat."""
        writer = None
        try:
            async with asyncio.timeout(seconds):
                await self.resolve_peer()
                reader, writer = await asyncio.open_connection(*self._peer)
                writer.write(_framed(write(beat, self._key)))
                answer = self._accept(await _framed_from(reader), _host_of(writer), is_datagram=False)
        except NotAllowed:
            return Probe.REJECTED
        except (QueueError, ValueError):
            return Probe.FOREIGN
        except asyncio.IncompleteReadError as error:
            return Probe.FOREIGN if error.partial else Probe.SILENT
        except (OSError, TimeoutError):
            return Probe.SILENT
        finally:
            if writer is not None:
                writer.close()
        is_answer = answer.heard_boot == beat.boot and answer.heard_sequence >= beat.sequence
        return Probe.REACHED if is_answer else Probe.FOREIGN

    async def _serve_probe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open_probes += 1
        try:
            if self._open_probes <= MAX_PROBES:
                async with asyncio.timeout(5):
                    await self._answer_probe(reader, writer)
        except (OSError, EOFError, TimeoutError, ValueError, QueueError):
            pass
        finally:
            self._open_probes -= 1
            writer.close()

    async def _answer_probe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a probe. One from the peer's address is answered even if it fails authentication, so that the peer
        can see that the keys differ."""
        host = _host_of(writer)
        try:
            self._accept(await _framed_from(reader), host, is_datagram=False)
        except NotAllowed:
            if not self._is_peer(host):
                raise
        writer.write(_framed(write(self._listener.make_heartbeat(), self._key)))
        await writer.drain()


def _host_of(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return str(name[0]) if name else ""


def _unmapped(host: str) -> str:
    """Return an IP address without scope, and an IPv4 address that is mapped into IPv6 as IPv4."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


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
