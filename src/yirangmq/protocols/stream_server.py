"""Socket server on asyncio for the native protocol and STOMP: connections, backpressure, client limits.

It serves unix sockets and TCP. All answers of a commit leave with one write per connection, by a flush after the
commit. Reading pauses while a session has too many unanswered requests or its client does not read, and resumes at
half the limit. The connection of a client is closed if the client is silent for ``idle_seconds``, or in the middle of a
frame for ``frame_seconds``.

A session reads into a buffer shared by all connections, or into a separate one for a large frame. Loop thread only."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import Any, Protocol, cast

from yirangmq.core.errors import QueueError, TimedOut, Unavailable
from yirangmq.protocols.context import House
from yirangmq.protocols.listen import Guard, give_room, open_to_all, peer_process, prepare_tcp, tcp_server, unix_server
from yirangmq.protocols.stream_sender import Sender, SessionLine
from yirangmq.wire.frames import Kind

BUFFER = 256 * 1024
"""Size of the read buffer, in bytes. All connections share one buffer: its content is consumed before the next read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one client, and of the number of clients."""

    connections: int = 1000
    idle_seconds: float = 600
    frame_seconds: float = 30
    write_buffer: int = 1024 * 1024
    """High-water mark of unsent bytes of a client; above it nothing is pushed to the client or read from it."""
    client_memory: int = 64 * 1024 * 1024
    """Upper bound of unsent bytes of a client; its connection is closed before they exceed it."""
    pending: int = 256
    """Maximum number of unanswered requests of a session."""


class Speaker(Protocol):
    """Protocol session as its connection sees it."""

    closed: bool
    frames: int
    is_greeted: bool
    is_clogged: bool
    most_pending: int
    pending: int

    @property
    def is_full(self) -> bool: ...

    @property
    def is_waiting(self) -> bool: ...

    @property
    def held(self) -> int: ...

    def room(self) -> memoryview | None:
        """Return the buffer for the next bytes, or None to read into the shared buffer.

        ``filled`` reports bytes in the returned buffer; ``receive`` passes bytes of the shared one."""

    def filled(self, count: int) -> None: ...

    def receive(self, data: bytes | memoryview) -> None:
        """Process bytes. The memory of ``data`` is reused after the call."""

    def unclog(self) -> None: ...

    def refuse(self, error: QueueError) -> None: ...

    def stop(self) -> None: ...

    def move(self, why: QueueError) -> None:
        """End the session because another node is active now."""

    def say_bye(self) -> None: ...

    def end(self) -> None: ...

    def describe(self) -> dict[str, Any]: ...


def _native(connection: "Connection") -> Speaker:
    """Create a session of the native protocol, whose modules are imported for the first connection."""
    from yirangmq.protocols.native.session import Session

    house = connection.door.house
    line = SessionLine(connection.sender, connection, house.topics)
    return Session(house, connection.is_trusted, connection.sender.send, connection.shut, line, lambda: connection.peer)


def _native_refusal(error: QueueError) -> bytes:
    from yirangmq.wire.messages import failed, frame

    return frame(Kind.ERROR, 0, failed(error))


@dataclass(slots=True)
class Door:
    """Socket server of one protocol: its open connections, and the sets of those to flush or to resume.

    ``speak`` creates the session of a new connection; ``refusal`` encodes the error for a connection over the limit.
    Loop thread only."""

    house: House
    limits: Limits
    speak: Callable[["Connection"], Speaker] = _native
    refusal: Callable[[QueueError], bytes] = _native_refusal
    connections: set["Connection"] = field(default_factory=set)
    dirty: set["Connection"] = field(default_factory=set)
    resting: set["Connection"] = field(default_factory=set)
    """Connections whose reading is paused until some of their requests are done. Some requests have no answer, so a
    write to the connection cannot be the signal to check it."""
    is_planned: bool = False
    """A flush is scheduled for the end of this loop iteration, without a commit."""
    buffer: memoryview = field(default_factory=lambda: memoryview(mmap(-1, BUFFER)))
    """Shared read buffer. Mapped, so that only pages that were filled take memory. A view, because asyncio's TLS slices
    it: slices of a bytearray would be copies."""
    accepted: int = 0
    """Connections accepted since the start."""
    closed_for: dict[str, int] = field(default_factory=dict)
    """Refused or disconnected clients since the start, by reason."""

    def __post_init__(self) -> None:
        self.house.desk.after_commit.append(self.flush)

    def flush(self) -> None:
        """Send the buffered bytes of all connections, one write per connection; runs after each commit.

        Paused connections are checked for resuming. The connections are independent: a dead one does not affect the
        others."""
        self.is_planned = False
        if self.dirty:
            dirty, self.dirty = self.dirty, set()
            for connection in dirty:
                connection.sender.flush()
        if self.resting:
            for connection in [*self.resting]:
                connection.read_or_not()

    def count(self, reason: str) -> None:
        self.closed_for[reason] = self.closed_for.get(reason, 0) + 1

    def look_around(self, now: float) -> None:
        """Disconnect clients that have been silent for too long. Called about once per second."""
        for connection in list(self.connections):
            connection.check(now)

    def describe(self) -> list[dict[str, Any]]:
        now = asyncio.get_running_loop().time()
        return [connection.describe(now) for connection in self.connections]


class Connection(asyncio.BufferedProtocol):
    """Connection between one socket and its session: reads, backpressure and timeouts."""

    def __init__(self, door: Door, trusted: bool) -> None:
        self.door = door
        self.is_trusted = trusted
        self.sender = Sender(door.limits.write_buffer, door.limits.client_memory, self._mark, self.cut)
        self._session = door.speak(self)
        self._session.most_pending = door.limits.pending
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading = True
        self._stopping = False
        self._is_in_room = False
        self._frames = 0
        self.peer = "unix"
        self._since = self._heard_at = self._frame_began = 0.0

    # -- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport has the interface, not the type
        self._loop = asyncio.get_running_loop()
        self._since = self._heard_at = self._loop.time()
        limits = self.door.limits
        if len(self.door.connections) >= limits.connections:
            self.door.count("connections")
            error = Unavailable(f"{limits.connections} clients are connected, and no more are taken; try again later")
            self._transport.write(self.door.refusal(error))
            self._transport.close()
            return
        self.sender.begin(self._transport)
        if self.is_trusted:
            give_room(transport)
        self.peer = peer_process(transport) if self.is_trusted else prepare_tcp(transport)
        self.door.accepted += 1
        self.door.connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._session.room()
        self._is_in_room = room is not None
        return self.door.buffer if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        if self not in self.door.connections or self._stopping:
            return
        if self._is_in_room:
            self._session.filled(nbytes)
            self._received()
        else:
            self._receive(self.door.buffer[:nbytes])

    def _receive(self, data: bytes | memoryview) -> None:
        self._session.receive(data)
        self._received()

    def _received(self) -> None:
        session = self._session
        now = self._heard_at = self._loop.time() if self._loop is not None else 0.0
        if not session.held:
            self._frame_began = 0.0
        elif session.frames != self._frames or not self._frame_began:
            self._frame_began = now
        self._frames = session.frames
        if session.is_full:
            self.read_or_not()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.door.connections.discard(self)
        self.door.dirty.discard(self)
        self.door.resting.discard(self)
        self._session.end()
        self._transport = None
        self.sender.close()

    def pause_writing(self) -> None:
        """Backpressure: the client does not read. Stop reading requests and pushing messages until it does."""
        self.sender.paused()
        self._session.is_clogged = True
        self.read_or_not()

    def resume_writing(self) -> None:
        self._session.unclog()
        self.sender.resumed()
        self.read_or_not()

    # -- flush, backpressure and checks --------------------------------------------------------------------------------

    def _mark(self) -> None:
        door = self.door
        door.dirty.add(self)
        if not door.is_planned and not door.house.desk.is_answering and self._loop is not None:
            door.is_planned = True
            self._loop.call_soon(door.flush)

    def read_or_not(self) -> None:
        """Pause or resume reading. Before reading resumes, the session processes bytes that it has buffered."""
        transport, session = self._transport, self._session
        if transport is None or transport.is_closing() or self._stopping:
            return
        if self._reading and session.is_full:
            self._reading = False
            self.door.resting.add(self)
            transport.pause_reading()
        elif not self._reading and not session.is_clogged and session.pending <= self.door.limits.pending // 2:
            if session.held:
                self._receive(b"")
            if not session.is_full and not session.closed:
                self._reading = True
                self.door.resting.discard(self)
                transport.resume_reading()

    def refuse(self, error: QueueError) -> None:
        """Send the error, then close."""
        self._session.refuse(error)

    def cut(self, reason: str) -> None:
        """Abort the connection and discard unsent bytes. ``reason`` is counted; "" if the client has disconnected."""
        if reason:
            self.door.count(reason)
        self.sender.drop()
        self._session.end()
        if self._transport is not None:
            self._transport.abort()

    def shut(self) -> None:
        """Flush, then close."""
        self.sender.flush()
        if self._transport is not None:
            self._transport.close()

    def stop(self) -> None:
        """Begin the drain at server shutdown: read no more requests, answer those in flight."""
        self._stopping = True
        if self._transport is not None and self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()
        self._session.stop()

    def move(self, why: QueueError) -> None:
        self._session.move(why)

    def say_bye(self) -> None:
        self._session.say_bye()
        self.shut()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def check(self, now: float) -> None:
        """Refuse the session if a frame or the silence of the client exceeds its timeout."""
        limits, session = self.door.limits, self._session
        began = self._frame_began if session.is_greeted else self._since
        if began and self._reading and now - began > limits.frame_seconds:
            self.door.count("frame")
            what = "a frame took" if session.is_greeted else "the first frame took"
            session.refuse(TimedOut(f"{what} longer than {limits.frame_seconds:g} seconds", field="frame"))
        elif not session.is_waiting and now - self._heard_at > limits.idle_seconds:
            self.door.count("idle")
            session.refuse(TimedOut(f"nothing was heard for {limits.idle_seconds:g} seconds", field="idle"))

    def describe(self, now: float) -> dict[str, Any]:
        return {
            "peer": self.peer,
            "connectedSec": round(now - self._since, 3),
            "silentSec": round(now - self._heard_at, 3),
            "bytesHeld": self._session.held + self.sender.waiting,
            **self._session.describe(),
        }


async def listen_unix(door: Door, path: Path, mode: int = 0o600, guard: Guard = open_to_all) -> asyncio.AbstractServer:
    return await unix_server(guard("unix", _maker(door, trusted=True)), path, mode)


async def listen_tcp(
    door: Door, host: str, port: int, tls: ssl.SSLContext | None = None, guard: Guard = open_to_all
) -> asyncio.AbstractServer:
    make = guard("tcp", _maker(door, trusted=False))
    return await tcp_server(make, (host, port), tls, door.limits.frame_seconds)


def _maker(door: Door, *, trusted: bool) -> Callable[[], Connection]:
    return lambda: Connection(door, trusted)
