"""Leader proxy: a follower relays client connections to the leader, byte for byte.

While this node leads, a connection goes to its own protocol. Otherwise the node connects to the leader and relays both
directions with backpressure. If no leader is found within ``LEADER_WAIT_SECONDS``, the connection goes to this node's
own protocol, which answers that it is not active.

The leader accepts relayed connections of all protocols at one address. Their first line is JSON; it names the
protocol, the address of the client and the subject of its certificate, by which programs are known, and shows the
secret from the leader's key in etcd. With TLS the leader's certificate is pinned by its
SHA-256 in that key. A relayed connection is closed when its target loses the lead: the client reconnects and is
relayed to the next leader."""

import asyncio
import contextlib
import hashlib
import hmac
import json
import ssl
from typing import Any, NamedTuple, Protocol, cast

from yirangmq.protocols.listen import ProtocolFactory, format_address, prepare_tcp, sockets_of, tcp_server

LEADER_WAIT_SECONDS = 10.0
"""How long a client waits for a leader: the duration of a leader's lease, and a little more."""
STEP_SECONDS = 0.1
"""Poll interval while no leader is known or reachable, in seconds."""
CONNECT_SECONDS = 2.0
"""Timeout of a connection attempt to the leader, and of a TLS handshake of a relayed connection, in seconds."""
FIRST_LINE_TIMEOUT_SECONDS = 10.0
"""Timeout of the first line of a relayed connection, in seconds."""
MAX_FIRST_LINE = 8192
"""Maximum length of the first line, in bytes."""
MAX_BUFFERED_BYTES = 256 * 1024
"""Bytes that are buffered for a client until the leader is connected; past them its reading pauses."""


class LeaderAddress(NamedTuple):
    """Address at which the leader accepts relayed connections, and the secret for it.

    ``pin``: the SHA-256 of the leader's certificate; "" without TLS."""

    host: str
    port: int
    secret: str
    pin: str = ""


class LeadershipView(Protocol):
    """Leadership as the proxy sees it."""

    @property
    def is_on(self) -> bool:
        """True while this node leads."""

    def leader_address(self) -> LeaderAddress | None:
        """Return the address of the leader if another node leads, otherwise None."""


class LeaderProxy:
    """Leader proxy of a node, in front of all its protocols. Loop thread only.

    Call ``guard`` for each protocol before it listens."""

    def __init__(self, leadership: LeadershipView, secret: str) -> None:
        self.leadership = leadership
        self._secret = secret
        self._protocols: dict[str, ProtocolFactory] = {}
        self.connections: set[ProxiedConnection] = set()
        self._server: asyncio.AbstractServer | None = None

    def guard(self, name: str, make: ProtocolFactory) -> ProtocolFactory:
        self._protocols[name] = make
        return lambda: make() if self.leadership.is_on else ProxiedConnection(self, name, make)

    async def listen(self, address: tuple[str, int], tls: ssl.SSLContext | None) -> str:
        """Listen for connections that other nodes relay. Return the bound address as ``HOST:PORT``."""
        self._server = await tcp_server(
            lambda: RelayedConnection(self), address, tls, CONNECT_SECONDS, "cluster_listen"
        )
        return format_address(next(iter(sockets_of(self._server))).getsockname())

    def find_protocol(self, line: bytes) -> "tuple[ProtocolFactory, ClientFacts] | None":
        """Return the protocol factory that this first line names, and what it says of the client.

        None if the line or the secret is invalid, or if this node does not lead."""
        try:
            given = json.loads(line)
            is_right = hmac.compare_digest(str(given["secret"]).encode(), self._secret.encode())
            make = self._protocols.get(given["door"]) if is_right and self.leadership.is_on else None
            return None if make is None else (make, _client_facts(given))
        except (ValueError, TypeError, KeyError):
            return None

    def on_change(self) -> None:
        """Close the connections that are relayed to a former leader. Called when the leader changes or is lost."""
        leader_address = self.leadership.leader_address()
        for connection in [one for one in self.connections if one.leader_address not in (None, leader_address)]:
            connection.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.close()


class ProxiedConnection(asyncio.Protocol):
    """Client connection that is buffered until a leader is found, then relayed to it or handed to this node's own
    protocol."""

    def __init__(self, proxy: LeaderProxy, name: str, make: ProtocolFactory) -> None:
        self._proxy = proxy
        self._name = name
        self._make = make
        self._client: asyncio.Transport | None = None
        self._leader: asyncio.Transport | None = None
        self._buffered = bytearray()
        self._search: asyncio.Task[None] | None = None
        self.leader_address: LeaderAddress | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = cast("asyncio.Transport", transport)
        self._proxy.connections.add(self)
        self._search = asyncio.get_running_loop().create_task(self._find_leader())

    def data_received(self, data: bytes) -> None:
        if self._leader is not None:
            self._leader.write(data)
            return
        self._buffered += data
        if len(self._buffered) > MAX_BUFFERED_BYTES and self._client is not None:
            self._client.pause_reading()

    def eof_received(self) -> bool:
        if self._leader is not None and self._leader.can_write_eof():
            self._leader.write_eof()
            return self._client is not None and self._client.get_extra_info("sslcontext") is None
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._client = None
        self._proxy.connections.discard(self)
        if self._search is not None:
            self._search.cancel()
        if self._leader is not None:
            self._leader.close()

    def pause_writing(self) -> None:
        if self._leader is not None:
            self._leader.pause_reading()

    def resume_writing(self) -> None:
        if self._leader is not None:
            _resume(self._leader)

    def close(self) -> None:
        for transport in (self._client, self._leader):
            if transport is not None:
                transport.close()

    # -- finding the leader --------------------------------------------------------------------------------------------

    async def _find_leader(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + LEADER_WAIT_SECONDS
        while not self._proxy.leadership.is_on and loop.time() < until:
            leader_address = self._proxy.leadership.leader_address()
            if leader_address is not None and await self._connect(leader_address):
                return
            await asyncio.sleep(STEP_SECONDS)
        if self._client is not None:
            self._proxy.connections.discard(self)
            hand_over(self._client, self._make(), bytes(self._buffered))

    async def _connect(self, leader_address: LeaderAddress) -> bool:
        """Connect to the leader and send the first line. Return False if the leader is not reachable or not the one
        that etcd names."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                leader, _ = await loop.create_connection(
                    lambda: _LeaderConnection(self),
                    leader_address.host,
                    leader_address.port,
                    ssl=_unchecked() if leader_address.pin else None,
                )
        except (OSError, TimeoutError, ssl.SSLError):
            return False
        if self._client is None or not _is_pinned(leader, leader_address.pin):
            leader.abort()
            return False
        prepare_tcp(leader)
        self.leader_address, self._leader = leader_address, leader
        first = {"door": self._name, "secret": leader_address.secret, **_first_line_facts(self._client)}
        leader.write(json.dumps(first).encode() + b"\n" + self._buffered)
        self._buffered.clear()
        _resume(self._client)
        return True

    # -- from the leader -----------------------------------------------------------------------------------------------

    def send_to_client(self, data: bytes) -> None:
        if self._client is not None:
            self._client.write(data)

    def pause_client(self) -> None:
        if self._client is not None:
            self._client.pause_reading()

    def resume_client(self) -> None:
        if self._client is not None:
            _resume(self._client)

    def close_client(self) -> None:
        if self._client is not None:
            self._client.close()


class _LeaderConnection(asyncio.Protocol):
    """The connection to the leader of a ``ProxiedConnection``."""

    def __init__(self, connection: ProxiedConnection) -> None:
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        self._connection.send_to_client(data)

    def pause_writing(self) -> None:
        self._connection.pause_client()

    def resume_writing(self) -> None:
        self._connection.resume_client()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.close_client()


class RelayedConnection(asyncio.Protocol):
    """Connection that another node relays to this one; after its first line it is handed to a protocol."""

    def __init__(self, proxy: LeaderProxy) -> None:
        self._proxy = proxy
        self._transport: asyncio.Transport | None = None
        self._buffered = bytearray()
        self._alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._alarm = asyncio.get_running_loop().call_later(FIRST_LINE_TIMEOUT_SECONDS, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._buffered += data
        line, newline, rest = bytes(self._buffered).partition(b"\n")
        if not newline and len(self._buffered) <= MAX_FIRST_LINE:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        found = self._proxy.find_protocol(line) if newline else None
        if found is None:
            self._transport.abort()
            return
        make, client = found
        hand_over(self._transport, make(), rest, client)

    def connection_lost(self, error: Exception | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


ClientFacts = dict[str, Any]
"""Facts of a relayed client by the names of ``get_extra_info``: its address, and its certificate if it showed one."""


def _first_line_facts(client: asyncio.BaseTransport) -> dict[str, Any]:
    peer, certificate = client.get_extra_info("peername"), client.get_extra_info("peercert")
    found: dict[str, Any] = {"peer": list(peer[:2])} if isinstance(peer, tuple) else {}
    return found | ({"subject": certificate["subject"]} if certificate and certificate.get("subject") else {})


def _client_facts(line: dict[str, Any]) -> ClientFacts:
    """Read the facts of a first line. Nodes of an earlier version send none."""
    if "peer" not in line:
        return {}
    host, port = line["peer"]
    subject = line.get("subject")
    return {"peername": (str(host), int(port)), "peercert": {"subject": subject} if subject else None}


class RelayedTransport:
    """Transport of a relayed connection: it tells the address and the certificate of the client, not of the node."""

    def __init__(self, transport: asyncio.Transport, client: ClientFacts) -> None:
        self._transport = transport
        self._client = client

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._client[name] if name in self._client else self._transport.get_extra_info(name, default)

    def can_write_eof(self) -> bool:
        """Return False: the relaying node closes the client's connection when it reads the end of this one."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def hand_over(
    transport: asyncio.Transport, protocol: asyncio.BaseProtocol, buffered: bytes, client: ClientFacts | None = None
) -> None:
    """Transfer a connection to another protocol, together with the bytes that were already read from it."""
    transport.set_protocol(protocol)
    protocol.connection_made(cast("Any", RelayedTransport(transport, client)) if client else transport)
    if isinstance(protocol, asyncio.BufferedProtocol):
        while buffered and not transport.is_closing():
            buffer: Any = protocol.get_buffer(len(buffered))
            count = min(len(buffer), len(buffered))
            buffer[:count] = buffered[:count]
            protocol.buffer_updated(count)
            buffered = buffered[count:]
    elif buffered:
        cast("asyncio.Protocol", protocol).data_received(buffered)
    _resume(transport)


def _resume(transport: asyncio.Transport) -> None:
    with contextlib.suppress(RuntimeError):  # reading was not paused
        if not transport.is_closing() and not transport.is_reading():
            transport.resume_reading()


def _unchecked() -> ssl.SSLContext:
    """Return a TLS context without verification: ``_is_pinned`` compares the certificate with the pin from etcd."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _is_pinned(transport: asyncio.Transport, pin: str) -> bool:
    if not pin:
        return True
    tls = transport.get_extra_info("ssl_object")
    shown_to_us = tls.getpeercert(binary_form=True) if tls is not None else b""
    return hmac.compare_digest(hashlib.sha256(shown_to_us or b"").hexdigest(), pin)
