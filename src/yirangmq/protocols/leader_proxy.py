"""Leader proxy: a follower relays client connections to the leader, byte for byte.

While this node leads, a connection goes to its own protocol. Otherwise the node connects to the leader and relays both
directions with backpressure. If no leader is found within ``PATIENCE_SECONDS``, the connection goes to this node's own
protocol, which answers that it is not active.

The leader accepts relayed connections of all protocols at one address. Their first line is JSON; it names the
protocol, and shows the secret from the leader's key in etcd. With TLS the leader's certificate is pinned by its
SHA-256 in that key. A relayed connection is closed when its target loses the lead: the client reconnects and is
relayed to the next leader."""

import asyncio
import contextlib
import hashlib
import hmac
import json
import ssl
from typing import Any, NamedTuple, Protocol, cast

from yirangmq.protocols.listen import Make, prepare_tcp, shown, sockets_of, tcp_server

PATIENCE_SECONDS = 10.0
"""How long a client waits for a leader: the duration of a leader's lease, and a little more."""
STEP_SECONDS = 0.1
"""Poll interval while no leader is known or reachable, in seconds."""
CONNECT_SECONDS = 2.0
"""Timeout of a connection attempt to the leader, and of a TLS handshake of a relayed connection, in seconds."""
FIRST_SECONDS = 10.0
"""Timeout of the first line of a relayed connection, in seconds."""
LONGEST_LINE = 1024
"""Maximum length of the first line, in bytes."""
MOST_HELD = 256 * 1024
"""Bytes that are buffered for a client until the leader is connected; past them its reading pauses."""


class Target(NamedTuple):
    """Address at which the leader accepts relayed connections, and the secret for it.

    ``pin``: the SHA-256 of the leader's certificate; "" without TLS."""

    host: str
    port: int
    secret: str
    pin: str = ""


class Lead(Protocol):
    """Leadership as the proxy sees it."""

    @property
    def is_on(self) -> bool:
        """True while this node leads."""

    def target(self) -> Target | None:
        """Return the address of the leader if another node leads, otherwise None."""


class Gate:
    """Leader proxy of a node, in front of all its protocols. Loop thread only.

    Call ``guard`` for each protocol before it listens."""

    def __init__(self, lead: Lead, secret: str) -> None:
        self.lead = lead
        self._secret = secret
        self._doors: dict[str, Make] = {}
        self.passages: set[Passage] = set()
        self._server: asyncio.AbstractServer | None = None

    def guard(self, name: str, make: Make) -> Make:
        self._doors[name] = make
        return lambda: make() if self.lead.is_on else Passage(self, name, make)

    async def listen(self, address: tuple[str, int], tls: ssl.SSLContext | None) -> str:
        """Listen for connections that other nodes relay. Return the bound address as ``HOST:PORT``."""
        self._server = await tcp_server(lambda: Intake(self), address, tls, CONNECT_SECONDS, "cluster_listen")
        return shown(next(iter(sockets_of(self._server))).getsockname())

    def opened(self, line: bytes) -> Make | None:
        """Return the protocol factory that this first line names.

        None if the line or the secret is invalid, or if this node does not lead."""
        try:
            given = json.loads(line)
            is_right = hmac.compare_digest(str(given["secret"]).encode(), self._secret.encode())
            return self._doors.get(given["door"]) if is_right and self.lead.is_on else None
        except (ValueError, TypeError, KeyError):
            return None

    def changed(self) -> None:
        """Close the connections that are relayed to a former leader. Called when the leader changes or is lost."""
        target = self.lead.target()
        for passage in [one for one in self.passages if one.target not in (None, target)]:
            passage.end()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for passage in list(self.passages):
            passage.end()


class Passage(asyncio.Protocol):
    """Client connection that is buffered until a leader is found, then relayed to it or handed to this node's own
    protocol."""

    def __init__(self, gate: Gate, name: str, make: Make) -> None:
        self._gate = gate
        self._name = name
        self._make = make
        self._near: asyncio.Transport | None = None
        self._far: asyncio.Transport | None = None
        self._held = bytearray()
        self._search: asyncio.Task[None] | None = None
        self.target: Target | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._near = cast("asyncio.Transport", transport)
        self._gate.passages.add(self)
        self._search = asyncio.get_running_loop().create_task(self._find())

    def data_received(self, data: bytes) -> None:
        if self._far is not None:
            self._far.write(data)
            return
        self._held += data
        if len(self._held) > MOST_HELD and self._near is not None:
            self._near.pause_reading()

    def eof_received(self) -> bool:
        if self._far is not None and self._far.can_write_eof():
            self._far.write_eof()
            return self._near is not None and self._near.get_extra_info("sslcontext") is None
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._near = None
        self._gate.passages.discard(self)
        if self._search is not None:
            self._search.cancel()
        if self._far is not None:
            self._far.close()

    def pause_writing(self) -> None:
        if self._far is not None:
            self._far.pause_reading()

    def resume_writing(self) -> None:
        if self._far is not None:
            _resume(self._far)

    def end(self) -> None:
        for transport in (self._near, self._far):
            if transport is not None:
                transport.close()

    # -- finding the leader --------------------------------------------------------------------------------------------

    async def _find(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_SECONDS
        while not self._gate.lead.is_on and loop.time() < until:
            target = self._gate.lead.target()
            if target is not None and await self._reach(target):
                return
            await asyncio.sleep(STEP_SECONDS)
        if self._near is not None:
            self._gate.passages.discard(self)
            hand_over(self._near, self._make(), bytes(self._held))

    async def _reach(self, target: Target) -> bool:
        """Connect to the leader and send the first line. Return False if the leader is not reachable or not the one
        that etcd names."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                far, _ = await loop.create_connection(
                    lambda: _Far(self), target.host, target.port, ssl=_unchecked() if target.pin else None
                )
        except (OSError, TimeoutError, ssl.SSLError):
            return False
        if self._near is None or not _is_pinned(far, target.pin):
            far.abort()
            return False
        prepare_tcp(far)
        self.target, self._far = target, far
        far.write(json.dumps({"door": self._name, "secret": target.secret}).encode() + b"\n" + self._held)
        self._held.clear()
        _resume(self._near)
        return True

    # -- from the leader -----------------------------------------------------------------------------------------------

    def answer(self, data: bytes) -> None:
        if self._near is not None:
            self._near.write(data)

    def far_is_full(self) -> None:
        if self._near is not None:
            self._near.pause_reading()

    def far_has_room(self) -> None:
        if self._near is not None:
            _resume(self._near)

    def far_ended(self) -> None:
        if self._near is not None:
            self._near.close()


class _Far(asyncio.Protocol):
    """The connection to the leader of a ``Passage``."""

    def __init__(self, passage: Passage) -> None:
        self._passage = passage

    def data_received(self, data: bytes) -> None:
        self._passage.answer(data)

    def pause_writing(self) -> None:
        self._passage.far_is_full()

    def resume_writing(self) -> None:
        self._passage.far_has_room()

    def connection_lost(self, error: Exception | None) -> None:
        self._passage.far_ended()


class Intake(asyncio.Protocol):
    """Connection that another node relays to this one; after its first line it is handed to a protocol."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._transport: asyncio.Transport | None = None
        self._held = bytearray()
        self._alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._alarm = asyncio.get_running_loop().call_later(FIRST_SECONDS, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._held += data
        line, newline, rest = bytes(self._held).partition(b"\n")
        if not newline and len(self._held) <= LONGEST_LINE:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        make = self._gate.opened(line) if newline else None
        if make is None:
            self._transport.abort()
            return
        hand_over(self._transport, make(), rest)

    def connection_lost(self, error: Exception | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


def hand_over(transport: asyncio.Transport, protocol: asyncio.BaseProtocol, held: bytes) -> None:
    """Transfer a connection to another protocol, together with the bytes that were already read from it."""
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if isinstance(protocol, asyncio.BufferedProtocol):
        while held and not transport.is_closing():
            room: Any = protocol.get_buffer(len(held))
            count = min(len(room), len(held))
            room[:count] = held[:count]
            protocol.buffer_updated(count)
            held = held[count:]
    elif held:
        cast("asyncio.Protocol", protocol).data_received(held)
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
