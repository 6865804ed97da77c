"""Socket server on asyncio for the native protocol and STOMP: connections, backpressure, client limits.

It serves unix sockets and TCP. All answers of a commit leave with one write per connection, by a flush after the
commit. Reading pauses while a session has too many unanswered requests or its client does not read, and resumes at
half the limit. The connection of a client is closed if the client is silent for ``idle_seconds``, or in the middle of a
frame for ``frame_seconds``.

After an error that ends the session the connection lingers: received bytes are read and discarded until the client
closes. A socket that is closed with unread bytes sends a reset, and a reset discards the error that the client has not
read yet.

A session reads into a buffer shared by all connections, or into a separate one for a large frame. Loop thread only."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import Any, Protocol, cast

from yirangmq.core.errors import QueueError, TimedOut, Unavailable
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.listen import (
    ProtocolGuard,
    enlarge_send_buffer,
    peer_process,
    prepare_tcp,
    tcp_server,
    unguarded,
    unix_server,
)
from yirangmq.protocols.stream_sender import NativeDeliveryConnection, SendBuffer
from yirangmq.wire.frames import FrameKind

BUFFER = 256 * 1024
"""Size of the read buffer, in bytes. All connections share one buffer: its content is consumed before the next read."""

LINGER_IDLE_SECONDS = 2.0
"""A lingering connection is closed after this time without received bytes. (nginx: ``lingering_timeout``, 5 s.)"""
LINGER_SECONDS = 30.0
"""Longest time for which a connection lingers. (nginx: ``lingering_time``, 30 s.)"""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of one client, and of the number of clients."""

    connections: int = 1000
    idle_seconds: float = 600
    frame_seconds: float = 30
    write_buffer: int = 1024 * 1024
    """High-water mark of unsent bytes of a client; above it nothing is pushed to the client, and nothing read from
    it unless it subscribes to topics: its confirmations are read."""
    client_memory: int = 64 * 1024 * 1024
    """Upper bound of unsent bytes of a client; its connection is closed before they exceed it."""
    pending: int = 256
    """Maximum number of unanswered requests of a session."""


class StreamSession(Protocol):
    """Protocol session as its connection sees it."""

    closed: bool
    has_failed: bool
    """The session was ended by an error, which was its last frame."""
    frames: int
    is_authenticated: bool
    is_write_paused: bool
    max_pending: int
    pending: int

    @property
    def is_full(self) -> bool: ...

    @property
    def is_waiting(self) -> bool: ...

    @property
    def held(self) -> int: ...

    def free_space(self) -> memoryview | None:
        """Return the buffer for the next bytes, or None to read into the shared buffer.

        ``filled`` reports bytes in the returned buffer; ``receive`` passes bytes of the shared one."""

    def filled(self, count: int) -> None: ...

    def receive(self, data: bytes | memoryview) -> None:
        """Process bytes. The memory of ``data`` is reused after the call."""

    def on_writable(self) -> None: ...

    def refuse(self, error: QueueError) -> None: ...

    def stop(self) -> None: ...

    def redirect(self, why: QueueError) -> None:
        """End the session because another node is active now."""

    def send_goodbye(self) -> None: ...

    def close(self) -> None: ...

    def describe(self) -> dict[str, Any]: ...


def _native_session(connection: "StreamConnection") -> StreamSession:
    """Create a session of the native protocol, whose modules are imported for the first connection."""
    from yirangmq.protocols.native.session import NativeSession

    context = connection.server.context
    line = NativeDeliveryConnection(connection.sender, connection, context.topics)
    return NativeSession(
        context, connection.is_trusted, connection.sender.send, connection.close, line, lambda: connection.peer
    )


def _native_refusal(error: QueueError) -> bytes:
    from yirangmq.wire.messages import failed, frame

    return frame(FrameKind.ERROR, 0, failed(error))


@dataclass(slots=True)
class StreamServer:
    """Socket server of one protocol: its open connections, and the sets of those to flush or to resume.

    ``make_session`` creates the session of a new connection; ``encode_refusal`` encodes the error for a connection over
    the limit. Loop thread only."""

    context: ServerContext
    limits: StreamLimits
    make_session: Callable[["StreamConnection"], StreamSession] = _native_session
    encode_refusal: Callable[[QueueError], bytes] = _native_refusal
    connections: set["StreamConnection"] = field(default_factory=set)
    dirty: set["StreamConnection"] = field(default_factory=set)
    paused: set["StreamConnection"] = field(default_factory=set)
    """Connections whose reading is paused until some of their requests are done. Some requests have no answer, so a
    write to the connection cannot be the signal to check it."""
    is_flush_scheduled: bool = False
    """A flush is scheduled for the end of this loop iteration, without a commit."""
    buffer: memoryview = field(default_factory=lambda: memoryview(mmap(-1, BUFFER)))
    """Shared read buffer. Mapped, so that only pages that were filled take memory. A view, because asyncio's TLS slices
    it: slices of a bytearray would be copies."""
    accepted: int = 0
    """Connections accepted since the start."""
    closed_for: dict[str, int] = field(default_factory=dict)
    """Refused or disconnected clients since the start, by reason."""

    def __post_init__(self) -> None:
        self.context.committer.after_commit.append(self.flush)

    def flush(self) -> None:
        """Send the buffered bytes of all connections, one write per connection; runs after each commit.

        Paused connections are checked for resuming. The connections are independent: a dead one does not affect the
        others."""
        self.is_flush_scheduled = False
        if self.dirty:
            dirty, self.dirty = self.dirty, set()
            for connection in dirty:
                connection.sender.flush()
        if self.paused:
            for connection in [*self.paused]:
                connection.update_reading()

    def count(self, reason: str) -> None:
        self.closed_for[reason] = self.closed_for.get(reason, 0) + 1

    def check_timeouts(self, now: float) -> None:
        """Disconnect clients that have been silent for too long. Called about once per second."""
        for connection in list(self.connections):
            connection.check(now)

    def redirect(self, why: QueueError) -> None:
        """Redirect the clients: another node is active now."""
        for connection in list(self.connections):
            connection.redirect(why)

    def stop(self) -> None:
        """Begin the drain: read no more requests, answer those in flight."""
        for connection in list(self.connections):
            connection.stop()

    def send_goodbye(self) -> None:
        for connection in list(self.connections):
            connection.send_goodbye()

    def abort(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    def describe(self) -> list[dict[str, Any]]:
        now = asyncio.get_running_loop().time()
        return [connection.describe(now) for connection in self.connections]


class StreamConnection(asyncio.BufferedProtocol):
    """Connection between one socket and its session: reads, backpressure and timeouts."""

    def __init__(self, server: StreamServer, trusted: bool) -> None:
        self.server = server
        self.is_trusted = trusted
        self.sender = SendBuffer(server.limits.write_buffer, server.limits.client_memory, self._mark_dirty, self.cut)
        self._session = server.make_session(self)
        self._session.max_pending = server.limits.pending
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading = True
        self._stopping = False
        self._lingering_since = 0.0
        """Loop time at which lingering began, or 0."""
        self._has_own_buffer = False
        self._frames = 0
        self.peer = "unix"
        self._since = self._received_at = self._frame_started_at = 0.0

    # -- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport has the interface, not the type
        self._loop = asyncio.get_running_loop()
        self._since = self._received_at = self._loop.time()
        limits = self.server.limits
        if len(self.server.connections) >= limits.connections:
            self.server.count("connections")
            error = Unavailable(f"{limits.connections} clients are connected, and no more are taken; try again later")
            self._transport.write(self.server.encode_refusal(error))
            self._transport.close()
            return
        self.sender.start(self._transport)
        if self.is_trusted:
            enlarge_send_buffer(transport)
        self.peer = peer_process(transport) if self.is_trusted else prepare_tcp(transport)
        self.server.accepted += 1
        self.server.connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        free_space = None if self._lingering_since else self._session.free_space()
        self._has_own_buffer = free_space is not None
        return self.server.buffer if free_space is None else free_space

    def buffer_updated(self, nbytes: int) -> None:
        if self not in self.server.connections or self._stopping:
            return
        if self._lingering_since:
            self._received_at = self._loop.time() if self._loop is not None else 0.0
        elif self._has_own_buffer:
            self._session.filled(nbytes)
            self._received()
        else:
            self._session.receive(self.server.buffer[:nbytes])
            self._received()

    def _received(self) -> None:
        session = self._session
        now = self._received_at = self._loop.time() if self._loop is not None else 0.0
        if not session.held:
            self._frame_started_at = 0.0
        elif session.frames != self._frames or not self._frame_started_at:
            self._frame_started_at = now
        self._frames = session.frames
        if session.is_full:
            self.update_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.server.connections.discard(self)
        self.server.dirty.discard(self)
        self.server.paused.discard(self)
        self._session.close()
        self._transport = None
        self.sender.close()

    def pause_writing(self) -> None:
        """Backpressure: the client does not read. Stop reading requests and pushing messages until it does."""
        self.sender.paused()
        self._session.is_write_paused = True
        self.update_reading()

    def resume_writing(self) -> None:
        self._session.on_writable()
        self.sender.resumed()
        self.update_reading()

    # -- flush, backpressure and checks --------------------------------------------------------------------------------

    def _mark_dirty(self) -> None:
        server = self.server
        server.dirty.add(self)
        if not server.is_flush_scheduled and not server.context.committer.is_answering and self._loop is not None:
            server.is_flush_scheduled = True
            self._loop.call_soon(server.flush)

    def update_reading(self) -> None:
        """Pause or resume reading. Before reading resumes, the session processes bytes that it has buffered."""
        transport, session = self._transport, self._session
        if transport is None or transport.is_closing() or self._stopping or self._lingering_since:
            return
        may_resume = not session.is_full and session.pending <= self.server.limits.pending // 2
        if self._reading and session.is_full:
            self._reading = False
            self.server.paused.add(self)
            transport.pause_reading()
        elif not self._reading and may_resume:
            if session.held:
                session.receive(b"")
                self._received()
            if not session.is_full and not session.closed:
                self._reading = True
                self.server.paused.discard(self)
                transport.resume_reading()

    def refuse(self, error: QueueError) -> None:
        """Send the error, then close."""
        self._session.refuse(error)

    def cut(self, reason: str) -> None:
        """Abort the connection and discard unsent bytes. ``reason`` is counted; "" if the client has disconnected."""
        if reason:
            self.server.count(reason)
        self.sender.drop()
        self._session.close()
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Flush, then close. After an error of the session the connection lingers first."""
        self.sender.flush()
        if self._transport is None or self._transport.is_closing():
            return
        if self._session.has_failed and not self._lingering_since and not self._stopping:
            self._linger(self._transport)
        else:
            self._transport.close()

    def _linger(self, transport: asyncio.Transport) -> None:
        """Send no more, and discard what is received, until the client closes or a timeout passes (``check``)."""
        if self._loop is None or self.sender.is_detached:
            transport.close()
            return
        self._lingering_since = self._received_at = self._loop.time()
        self.server.paused.discard(self)
        if not self._reading:
            self._reading = True
            transport.resume_reading()
        if transport.can_write_eof():  # over TLS the client sees the end when it closes, or after the timeout
            transport.write_eof()

    def stop(self) -> None:
        """Begin the drain at server shutdown: read no more requests, answer those in flight."""
        self._stopping = True
        if self._transport is not None and self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()
        self._session.stop()

    def redirect(self, why: QueueError) -> None:
        self._session.redirect(why)

    def send_goodbye(self) -> None:
        self._session.send_goodbye()
        self.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def check(self, now: float) -> None:
        """Refuse the session if a frame or the silence of the client exceeds its timeout; close one that lingered."""
        limits, session = self.server.limits, self._session
        if self._lingering_since:
            if now - self._received_at > LINGER_IDLE_SECONDS or now - self._lingering_since > LINGER_SECONDS:
                self.close()
            return
        started_at = self._frame_started_at if session.is_authenticated else self._since
        if started_at and self._reading and now - started_at > limits.frame_seconds:
            self.server.count("frame")
            what = "a frame took" if session.is_authenticated else "the first frame took"
            session.refuse(TimedOut(f"{what} longer than {limits.frame_seconds:g} seconds", field="frame"))
        elif not session.is_waiting and now - self._received_at > limits.idle_seconds:
            self.server.count("idle")
            session.refuse(TimedOut(f"no data was received for {limits.idle_seconds:g} seconds", field="idle"))

    def describe(self, now: float) -> dict[str, Any]:
        return {
            "peer": self.peer,
            "connectedSec": round(now - self._since, 3),
            "silentSec": round(now - self._received_at, 3),
            "bytesHeld": self._session.held + self.sender.unsent_bytes,
            **self._session.describe(),
        }


async def listen_unix(
    server: StreamServer, path: Path, mode: int = 0o600, guard: ProtocolGuard = unguarded
) -> asyncio.AbstractServer:
    return await unix_server(guard("unix", _maker(server, trusted=True)), path, mode)


async def listen_tcp(
    server: StreamServer, host: str, port: int, tls: ssl.SSLContext | None = None, guard: ProtocolGuard = unguarded
) -> asyncio.AbstractServer:
    make = guard("tcp", _maker(server, trusted=False))
    return await tcp_server(make, (host, port), tls, server.limits.frame_seconds)


def _maker(server: StreamServer, *, trusted: bool) -> Callable[[], StreamConnection]:
    return lambda: StreamConnection(server, trusted)
