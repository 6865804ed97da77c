"""Transport ports of the client: a connection, how connections are opened, how long to try; socket options.

``client.asyncio_transport`` and ``client.blocking_transport`` implement the ports. Socket options make small frames
leave at once, detect a dead peer, and give a unix socket room for all requests in flight."""

import contextlib
import socket
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from yirangmq.client.address import Address
from yirangmq.client.session import Feed, News, Reply, Slot, Stream
from yirangmq.wire import messages
from yirangmq.wire.frames import Kind

# -- ports -------------------------------------------------------------------------------------------------------------


class Line(Protocol):
    """One connection. Every method raises ``Lost`` when it is gone."""

    process: int
    """The process that opened it: a child must not speak on its parent's connection."""

    @property
    def is_alive(self) -> bool: ...

    def greeted(self, welcome: messages.Welcome) -> None:
        """The server has said what it takes."""

    async def ask(self, kind: Kind, body: msgspec.Struct) -> Slot:
        """Send a request; ``answer`` waits for what comes back."""

    async def answer(self, slot: Slot, seconds: float) -> Reply:
        """A server that does not answer in time is lost."""

    def forget(self, slot: Slot) -> None:
        """Nobody waits for it any more."""

    async def subscribe(self, stream: Stream, body: messages.Subscribe) -> int: ...

    def cancelled(self, number: int) -> None: ...

    def follow(self, feed: Feed) -> None:
        """From now on records of topics go there."""

    def taken(self) -> None:
        """Some of the feed was taken: there is room for more."""

    def glance(self) -> None:
        """Hear what has come, without waiting; also that it is gone."""

    async def listen(self, one: News, seconds: float) -> bool:
        """Wait until there is something for it; False if there was nothing in all this time."""

    async def close(self) -> None: ...


class Wires(Protocol):
    """What a face brings: connections, sleep, and a turn-taking among callers."""

    def turn(self) -> AbstractAsyncContextManager[Any]: ...

    async def dial(self, address: Address, seconds: float, patience: float) -> Line:
        """``OSError`` if there is nobody within ``seconds``; ``patience``: how long there may be no room to send."""

    async def speaks_tls(self, address: Address, seconds: float) -> bool:
        """Whether a TLS handshake succeeds at this port; no certificate is verified and nothing is sent."""

    async def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """How a client behaves: whom it calls, by which name, and how long it tries."""

    addresses: tuple[Address, ...]
    name: str
    timeout: float
    retries: int
    silence: float | None = None
    """Seconds after which the client gives up on a server that says nothing at all, counted over all its tries; None:
    ``retries`` alone decide. Commands have it, so that each of them ends."""


# -- socket options ----------------------------------------------------------------------------------------------------

IDLE_SECONDS = 15
PROBE_SECONDS = 5
PROBES = 3
"""A server that vanished without a word is noticed after half a minute of silence."""

ROOM = 1024 * 1024
"""Bytes a unix socket holds for a server that is busy with its commit: all of them join the next one. With the system's
200 KB a third as many do, and publishing many is a quarter slower. (TCP finds its own size.)"""


def prepare(channel: socket.socket) -> None:
    if channel.family == socket.AF_UNIX:
        with contextlib.suppress(OSError):
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        return
    if channel.family not in (socket.AF_INET, socket.AF_INET6):
        return
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", IDLE_SECONDS), ("TCP_KEEPINTVL", PROBE_SECONDS), ("TCP_KEEPCNT", PROBES)):
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                channel.setsockopt(socket.IPPROTO_TCP, option, value)
