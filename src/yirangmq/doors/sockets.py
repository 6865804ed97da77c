"""The socket door on asyncio: unix and TCP at once, any number of sessions, with limits that keep one client from
hurting another. All replies of a commit go out with one write per connection."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from yirangmq.doors.session import House, Session

BUFFER = 256 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may cost."""

    connections: int = 1000
    idle_seconds: float = 600
    frame_seconds: float = 30
    write_buffer: int = 8 * 1024 * 1024
    pending: int = 256


@dataclass(slots=True)
class Door:
    """Every open connection, and those with something to send."""

    house: House
    limits: Limits
    connections: set["Connection"] = field(default_factory=set)
    dirty: set["Connection"] = field(default_factory=set)

    def flush(self) -> None:
        """After a commit: one write per connection, each by itself, so that a dead one takes no other with it."""
        dirty, self.dirty = self.dirty, set()
        for connection in dirty:
            connection.flush()


class Connection(asyncio.BufferedProtocol):
    """Bytes between one socket and its session."""

    def __init__(self, door: Door, trusted: bool) -> None:
        self._door = door
        self._session = Session(door.house, trusted, self._collect, self.shut)
        self._buffer = bytearray(BUFFER)
        self._view = memoryview(self._buffer)
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self.heard_at = 0.0

    # -- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its type
        self._transport.set_write_buffer_limits(high=self._door.limits.write_buffer)
        self.heard_at = asyncio.get_running_loop().time()
        if len(self._door.connections) >= self._door.limits.connections:
            self._transport.abort()
            return
        self._door.connections.add(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        self._session.receive(bytes(self._view[:nbytes]))
        if self._reading and self._session.pending > self._door.limits.pending and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._door.connections.discard(self)
        self._door.dirty.discard(self)
        self._session.end()
        self._transport = None

    def pause_writing(self) -> None:
        """It does not read what it asked for: nothing more is kept for it."""
        if self._transport is not None:
            self._transport.abort()

    # -- ours -----------------------------------------------------------------------------------------------------

    def _collect(self, data: bytes) -> None:
        self._out.append(data)
        if self not in self._door.dirty:
            self._door.dirty.add(self)
            asyncio.get_running_loop().call_soon(self._door.flush)

    def flush(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            self._out.clear()
            return
        data, self._out = self._out, []
        if data:
            transport.write(b"".join(data))
        if not self._reading and self._session.pending <= self._door.limits.pending // 2:
            self._reading = True
            transport.resume_reading()

    def shut(self) -> None:
        """Send what is there, then close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def is_stale(self, now: float) -> bool:
        return now - self.heard_at > self._door.limits.idle_seconds


async def listen_unix(door: Door, path: Path, mode: int = 0o660) -> asyncio.Server:
    """A unix socket; whoever may write the file may use it. A socket file nobody answers on is replaced."""
    _clear(path)
    old = os.umask(0o777 & ~mode)
    try:
        return await asyncio.get_running_loop().create_unix_server(_maker(door, trusted=True), str(path), backlog=512)
    finally:
        os.umask(old)


async def listen_tcp(door: Door, host: str, port: int, tls: ssl.SSLContext | None = None) -> asyncio.Server:
    server = await asyncio.get_running_loop().create_server(
        _maker(door, trusted=False), host, port, ssl=tls, backlog=512, reuse_address=True
    )
    for one in server.sockets:
        with contextlib.suppress(OSError):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server


def _clear(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _maker(door: Door, *, trusted: bool) -> Callable[[], Connection]:
    return lambda: Connection(door, trusted)
