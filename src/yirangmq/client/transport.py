"""Transport ports of the client: one connection, how connections are opened, and the retry options; socket options.

``client.asyncio_transport`` and ``client.blocking_transport`` implement the ports. The socket options disable
Nagle's algorithm, detect a dead peer, and enlarge a unix socket's send buffer so that all requests in flight fit."""

import contextlib
import socket
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from yirangmq.client.address import ServerAddress
from yirangmq.client.session import DataSource, QueueInbox, Reply, Slot, TopicInbox
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind

# -- ports -------------------------------------------------------------------------------------------------------------


class Transport(Protocol):
    """One open connection to a server. Every method raises ``Lost`` after the connection is lost."""

    process: int
    """Id of the process that opened the connection. A forked child must not use its parent's connection."""

    @property
    def is_alive(self) -> bool: ...

    def apply_welcome(self, welcome: messages.Welcome) -> None:
        """Apply the limits of the server's WELCOME frame."""

    async def request(self, kind: FrameKind, body: msgspec.Struct) -> Slot:
        """Send a request. ``answer`` waits for its reply."""

    async def answer(self, slot: Slot, seconds: float) -> Reply:
        """Wait for the reply. If the server does not reply within ``seconds``, the connection is lost."""

    def abandon(self, slot: Slot) -> None:
        """Abandon a request: its reply is no longer awaited."""

    async def subscribe(self, queue_inbox: QueueInbox, body: messages.Subscribe) -> int: ...

    def remove_subscription(self, number: int) -> None: ...

    def set_topic_inbox(self, topic_inbox: TopicInbox) -> None:
        """Deliver topic records into ``topic_inbox`` from now on."""

    def notify_taken(self) -> None:
        """Report that records were removed from the feed, so that reading may continue."""

    def process_received(self) -> None:
        """Process received data without waiting, and detect a lost connection."""

    async def exchange(self) -> None:
        """Let requests leave, and process received data, without waiting for more. A full topic inbox is not filled
        further."""

    async def wait_for_data(self, one: DataSource, seconds: float) -> bool:
        """Wait until ``one`` has data. Return False after ``seconds`` without any."""

    async def close(self) -> None: ...


class TransportFactory(Protocol):
    """Port that opens connections; it also provides sleep and mutual exclusion in the style of its concurrency
    model."""

    def lock(self) -> AbstractAsyncContextManager[Any]: ...

    async def dial(self, address: ServerAddress, seconds: float, send_timeout: float) -> Transport:
        """Open a connection. Raises ``OSError`` if that fails within ``seconds``. ``send_timeout`` is the longest time,
        in seconds, that a send may be blocked."""

    async def speaks_tls(self, address: ServerAddress, seconds: float) -> bool:
        """Return True if a TLS handshake succeeds at this port. No certificate is verified and no data is sent."""

    async def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of a client: its addresses, its name, its timeout and its retries."""

    addresses: tuple[ServerAddress, ...]
    name: str
    timeout: float
    retries: int
    silence: float | None = None
    """Seconds after which the client stops retrying if the server sends nothing at all, counted over all its tries.
    None: only ``retries`` limits them. Commands set it, so that each of them ends."""


# -- socket options ----------------------------------------------------------------------------------------------------

IDLE_SECONDS = 15
PROBE_SECONDS = 5
PROBES = 3
"""TCP keep-alive detects a vanished server after 30 s of silence: 15 s idle, then 3 probes at intervals of 5 s."""

UNIX_SEND_BUFFER_BYTES = 1024 * 1024
"""Send buffer of a unix socket, in bytes. While the server is busy with a commit, requests gather there and join the
next commit. With the system's default of 200 KB only a third as many fit, and publishing many messages is a quarter
slower. TCP tunes its own buffer."""


def set_socket_options(sock: socket.socket) -> None:
    if sock.family == socket.AF_UNIX:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_BUFFER_BYTES)
        return
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", IDLE_SECONDS), ("TCP_KEEPINTVL", PROBE_SECONDS), ("TCP_KEEPCNT", PROBES)):
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
