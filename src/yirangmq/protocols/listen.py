"""Listening sockets of every protocol: unix sockets and TCP, their files, options and peer addresses.

A unix socket has its mode before a client can connect. A socket file that a dead server left behind is replaced; one
at which a process listens is refused as in use. Every process that may write the file may connect. Errors are
``CannotListen`` or ``BadInput`` with the setting at fault. ``TlsServer`` aborts TLS handshakes when it closes."""

import asyncio
import contextlib
import os
import socket
import ssl
import stat
import struct
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from yirangmq.core.access import subject_of
from yirangmq.core.errors import BadInput, CannotListen
from yirangmq.observe.port_in_use import CREDENTIALS, cannot_listen, in_use, process_on_socket
from yirangmq.protocols.context import CertifiedPeer

UNIX_SEND_BUFFER = 1024 * 1024
"""Send buffer of a unix socket, in bytes. (TCP tunes its buffers automatically.)"""
TCP_OPTIONS = (
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 60),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 15),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
)
"""Socket options: answers are sent without delay (no Nagle), and keep-alive detects a vanished peer within two minutes.
Some systems lack some of them."""
MAX_UNIX_PATH = 107
"""Maximum length of a socket path, in bytes: the size of ``sun_path`` in the kernel less the final NUL."""
BACKLOG = 512
"""Length of the kernel's queue of connections that are not accepted yet."""

ProtocolFactory = Callable[[], asyncio.BaseProtocol]
ProtocolGuard = Callable[[str, ProtocolFactory], ProtocolFactory]
"""(name of a protocol, its factory) → a factory to use instead, such as that of the leader proxy."""


class ListenerOptions(NamedTuple):
    """Options of a listener: TLS, and the guard in front of the protocol."""

    tls: ssl.SSLContext | None
    guard: ProtocolGuard


def unguarded(name: str, make: ProtocolFactory) -> ProtocolFactory:
    """A ``ProtocolGuard`` that changes nothing."""
    return make


def peer_process(transport: asyncio.BaseTransport) -> str:
    """Return the peer of a unix socket as ``unix:PID``, or ``unix`` if the system does not report the process."""
    try:
        raw = transport.get_extra_info("socket")
        pid, _, _ = CREDENTIALS.unpack(raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    except (OSError, AttributeError, struct.error):
        return "unix"
    return f"unix:{pid}"


def enlarge_send_buffer(transport: asyncio.BaseTransport) -> None:
    """Enlarge the send buffer of a unix socket to hold the messages that one commit delivers to a consumer, so that the
    consumer can read them during the next commit."""
    with contextlib.suppress(OSError, AttributeError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_BUFFER)


def prepare_tcp(transport: asyncio.BaseTransport) -> str:
    """Set the options of a TCP connection. Return the peer's address, a ``CertifiedPeer`` if it showed a
    certificate."""
    raw = transport.get_extra_info("socket")
    for level, name, value in TCP_OPTIONS:
        with contextlib.suppress(OSError, AttributeError):
            raw.setsockopt(level, getattr(socket, name), value)
    peer = transport.get_extra_info("peername")
    address = format_address(peer) if isinstance(peer, tuple) else "tcp"
    certificate = transport.get_extra_info("peercert")
    return CertifiedPeer(address, subject_of(certificate)) if certificate else address


def local_host(transport: asyncio.BaseTransport) -> str:
    """Return the address of this machine that a TCP client connected to, or "" if it is not known."""
    name = transport.get_extra_info("sockname")
    return str(name[0]) if isinstance(name, tuple) else ""


async def unix_server(make: ProtocolFactory, path: Path, mode: int, field: str = "socket") -> asyncio.AbstractServer:
    """Listen on a unix socket. A stale socket file is replaced; one at which a process listens is an error."""
    if len(os.fsencode(path)) > MAX_UNIX_PATH:
        raise BadInput(f"{path} is longer than the {MAX_UNIX_PATH} bytes a socket path may have", field=field)
    listener = process_on_socket(path)
    if listener is not None:
        raise in_use(field, str(path), listener, "unix:PATH" if field == "http" else "PATH")
    remove_stale_socket(path, field)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind_unix(bound, path, mode)
        return await asyncio.get_running_loop().create_unix_server(make, sock=bound, backlog=BACKLOG)
    except OSError as error:
        bound.close()
        raise CannotListen(f"{path} cannot be made: {error.strerror or error}", field=field) from None


def _bind_unix(bound: socket.socket, path: Path, mode: int) -> None:
    """Bind, and set the mode of the file before a client can connect: the socket does not listen yet.

    On Linux the file has its mode from its creation, because bind applies the mode of the socket itself. The umask is
    not changed: it is shared by all threads."""
    with contextlib.suppress(OSError):  # on other systems a socket has no mode
        os.fchmod(bound.fileno(), mode)
    bound.bind(str(path))
    if stat.S_IMODE(path.stat().st_mode) != mode:  # the umask removed bits
        path.chmod(mode)


async def tcp_server(
    make: ProtocolFactory,
    address: tuple[str, int],
    tls: ssl.SSLContext | None,
    handshake_seconds: float,
    field: str = "tcp",
) -> asyncio.AbstractServer:
    """Listen on TCP, with TLS if ``tls`` is given.

    ``handshake_seconds``: timeout of a TLS handshake. Closing the server aborts handshakes in progress."""
    host, port = address
    loop = asyncio.get_running_loop()
    bound = None
    try:
        bound = _bound(host, port)
        if tls is not None:
            return _tls_server([bound] if bound else await _bound_by_name(host, port), make, tls, handshake_seconds)
        if bound is not None:
            return await loop.create_server(make, sock=bound, backlog=BACKLOG)
        return await loop.create_server(make, host, port, backlog=BACKLOG, reuse_address=True)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise cannot_listen(field, address, error) from None


def _tls_server(
    sockets: list[socket.socket], make: ProtocolFactory, tls: ssl.SSLContext, handshake_seconds: float
) -> asyncio.AbstractServer:
    server = TlsServer(sockets, make, tls, handshake_seconds)
    try:
        server.start(BACKLOG)
    except OSError:  # another process listens there since the sockets were bound
        server.close()
        raise
    return server


async def _bound_by_name(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to every address of this host name, in the way the loop binds them."""
    server = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, host, port, reuse_address=True, start_serving=False
    )
    try:
        return [one.dup() for one in sockets_of(server)]
    finally:
        server.close()


def _bound(host: str, port: int) -> socket.socket | None:
    """Return a socket bound to a numeric address, without a name lookup and its threads. None if ``host`` is a name."""
    try:
        version = ip_address(host).version
    except ValueError:
        return None
    made = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if version == 6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def remove_stale_socket(path: Path, field: str = "socket") -> None:
    """Remove a socket file if it exists. Any other kind of file is kept and is an error."""
    with contextlib.suppress(FileNotFoundError):
        try:
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise BadInput(f"{path} exists and is not a socket", field=field)
            path.unlink()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CannotListen(f"{path} cannot be checked or removed: {error.strerror}", field=field) from error


def sockets_of(server: asyncio.AbstractServer) -> Any:
    return getattr(server, "sockets", ())


def format_address(name: tuple[Any, ...]) -> str:
    """Format the address of a TCP socket as ``HOST:PORT``, an IPv6 address in brackets."""
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# -- TLS ---------------------------------------------------------------------------------------------------------------

ACCEPT_RETRY_SECONDS = 1.0
"""Pause in seconds before accepting is retried after a failure such as EMFILE (no file descriptor left) or ENOMEM."""


class TlsServer(asyncio.AbstractServer):
    """A TCP server with TLS that can abort the handshakes under way when it closes.

    asyncio's servers report a connection only after its handshake, and their ``close`` leaves handshakes in progress
    open. This server accepts connections itself and keeps the socket of each handshake until it ends. ``sockets``
    are bound already; the server listens from ``start`` to ``close``. A handshake takes at most
    ``handshake_seconds``. Loop thread only."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        make: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext,
        handshake_seconds: float,
    ) -> None:
        self.sockets = sockets
        self._make = make
        self._context = context
        self._handshake_seconds = handshake_seconds
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        """Handshakes in progress, each with its socket."""

    def start(self, backlog: int) -> None:
        """Start listening. ``backlog``: length of the kernel's queue, and maximum of connections accepted per call."""
        for listening in self.sockets:
            listening.setblocking(False)
            listening.listen(backlog)
            self._listen(listening, backlog)

    def _listen(self, listening: socket.socket, backlog: int) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening, backlog)

    def _accept(self, listening: socket.socket, most: int) -> None:
        for _ in range(most):
            try:
                raw, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._loop.call_exception_handler({"message": "no connection can be accepted", "exception": error})
                self._loop.remove_reader(listening)
                self._loop.call_later(ACCEPT_RETRY_SECONDS, self._listen, listening, most)
                return
            raw.setblocking(False)
            task = self._loop.create_task(self._handshake(raw))
            self._handshakes[task] = raw
            task.add_done_callback(self._handshakes.pop)

    async def _handshake(self, raw: socket.socket) -> None:
        with contextlib.suppress(OSError):  # includes ssl.SSLError; the loop has already closed the connection
            transport, _ = await self._loop.connect_accepted_socket(
                self._make, raw, ssl=self._context, ssl_handshake_timeout=self._handshake_seconds
            )
            if self._is_closed and transport is not None:
                transport.abort()  # the last handshake bytes had arrived before close()

    # -- asyncio.AbstractServer -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening and shut the sockets of handshakes down; their transports then read end of file and close."""
        self._is_closed = True
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self.sockets = ()
        for raw in self._handshakes.values():
            with contextlib.suppress(OSError):  # already closed
                raw.shutdown(socket.SHUT_RDWR)

    async def wait_closed(self) -> None:
        """Wait until every handshake has ended."""
        if self._handshakes:
            await asyncio.wait(self._handshakes)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return not self._is_closed

    async def start_serving(self) -> None:
        """Part of the interface; ``start`` starts serving."""

    async def serve_forever(self) -> NoReturn:
        await self._loop.create_future()
        raise AssertionError("unreachable")
