"""Listeners of a server as one object: native socket, HTTP, feed and STOMP, opened, watched and closed together.

HTTP, feed and STOMP are loaded only where they are on. In a pair, STOMP listens on the active node alone: its clients
recognise a standby only by a refused connection.

Shutdown is ``close`` (no new connections), ``stop`` (no new requests, waiting consumers get an empty answer),
``send_goodbye`` (every request is answered or refused), ``abort``. Loop thread only."""

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yirangmq.config.config import Config
from yirangmq.core.access import AccessGrant
from yirangmq.core.errors import QueueError
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.listen import ListenerOptions, format_address, remove_stale_socket, sockets_of
from yirangmq.protocols.stream_server import StreamLimits, StreamServer, listen_tcp, listen_unix

if TYPE_CHECKING:
    from yirangmq.server.feed_listener import FeedListener
    from yirangmq.server.http_listener import HttpListener
    from yirangmq.server.stomp_listener import StompListener


class ServerListeners:
    """All listeners of a server."""

    def __init__(
        self, config: Config, context: ServerContext, transport: ListenerOptions, grants: Iterable[AccessGrant]
    ) -> None:
        self._config = config
        self._context = context
        self._tls, self._guard = transport
        self._native_server = StreamServer(context, _limits(config))
        grants = tuple(grants)
        self._http = _http(config, context, transport, grants)
        self._feed = _feed(config, context)
        self.stomp = _stomp(config, context, transport, grants)
        self._path = Path(config.socket_path).absolute() if config.socket_path else None
        self._servers: list[asyncio.AbstractServer] = []
        self.addresses: list[str] = []
        """Addresses at which the server can be reached."""
        if self._http is not None:
            self._http.protocol_server.flush_after(context.committer)
        if context.topics is not None:
            context.topics.after_commit.append(self._native_server.flush)
            if self._http is not None:
                context.topics.after_commit.append(self._http.protocol_server.flush)

    async def open(self) -> None:
        config = self._config
        if self._path is not None:
            self._servers.append(await listen_unix(self._native_server, self._path, config.unix_mode, self._guard))
            self.addresses.append(f"unix:{self._path}")
        if config.tcp_address is not None:
            server = await listen_tcp(self._native_server, *config.tcp_address, self._tls, self._guard)
            self._servers.append(server)
            scheme = "tls" if self._tls is not None else "tcp"
            self.addresses += [f"{scheme}://{format_address(one.getsockname())}" for one in sockets_of(server)]
        if self._http is not None:
            self.addresses += await self._http.listen()
        if self._feed is not None:
            self.addresses += await self._feed.listen()
        if self.stomp is not None and not self._config.pair_peer:
            self.addresses += await self.stomp.listen()

    async def open_stomp(self) -> None:
        """Open STOMP when this node of a pair becomes active. STOMP clients recognise a standby by a closed port."""
        if self.stomp is not None:
            found = await self.stomp.listen()
            self.addresses += [one for one in found if one not in self.addresses]

    def close(self) -> None:
        """Stop accepting connections."""
        for server in self._servers:
            server.close()
        if self._servers and self._path is not None:
            with contextlib.suppress(OSError):
                remove_stale_socket(self._path)
        self._servers.clear()
        if self._http is not None:
            self._http.close()
        if self._feed is not None:
            self._feed.close()
        if self.stomp is not None:
            self.stomp.close()

    # -- connections ---------------------------------------------------------------------------------------------------

    @property
    def _other_listeners(self) -> "list[HttpListener | FeedListener | StompListener]":
        """Listeners other than the native socket."""
        return [transport for transport in (self._http, self._feed, self.stomp) if transport is not None]

    @property
    def _stream_servers(self) -> list[StreamServer]:
        """Servers of native and STOMP connections, which have the same type."""
        return [self._native_server, *([] if self.stomp is None else [self.stomp.protocol_server])]

    @property
    def clients(self) -> int:
        return len(self._native_server.connections) + sum(
            len(transport.protocol_server.connections) for transport in self._other_listeners
        )

    @property
    def accepted(self) -> int:
        """Number of connections accepted since the start."""
        return self._native_server.accepted + sum(
            transport.protocol_server.accepted for transport in self._other_listeners
        )

    def disconnect_counts(self) -> dict[str, int]:
        """Return the number of clients refused or closed, by reason. Other listeners than the native one prefix it."""
        http = (
            {} if self._http is None else {f"http {why}": n for why, n in self._http.protocol_server.closed_for.items()}
        )
        feed = (
            {} if self._feed is None else {f"feed {why}": n for why, n in self._feed.protocol_server.closed_for.items()}
        )
        stomp = (
            {}
            if self.stomp is None
            else {f"stomp {why}": n for why, n in self.stomp.protocol_server.closed_for.items()}
        )
        return {**self._native_server.closed_for, **http, **feed, **stomp}

    def refused(self) -> dict[str, int]:
        """Return the number of clients refused since the start for their rights or for the connection limit."""
        found = {why: count for why, count in self.disconnect_counts().items() if why.endswith("connections")}
        refused_clients = self._context.refused_clients
        return found | (
            {}
            if refused_clients is None
            else {f"{protocol_server} {why}": n for (protocol_server, why), n in refused_clients.counts.items()}
        )

    def describe(self) -> list[dict[str, Any]]:
        return self._native_server.describe() + [
            one for transport in self._other_listeners for one in transport.protocol_server.describe()
        ]

    def check_timeouts(self, now: float) -> None:
        """Check the timeouts of all connections. Called once a second."""
        for protocol_server in self._stream_servers:
            protocol_server.check_timeouts(now)
        for other in (self._http, self._feed):
            if other is not None:
                other.protocol_server.check_timeouts(now)

    def redirect(self, why: QueueError) -> None:
        """Redirect waiting clients: another node is active now."""
        for connection in [one for protocol_server in self._stream_servers for one in protocol_server.connections]:
            connection.redirect(why)
        if self.stomp is not None and not self._config.is_clustered:
            self.stomp.close()
        if self._http is not None:
            self._http.redirect()

    # -- shutdown, in this order ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Accept no more requests. Waiting consumers get an empty answer."""
        for connection in [one for protocol_server in self._stream_servers for one in protocol_server.connections]:
            connection.stop()
        if self._http is not None:
            self._http.protocol_server.stop()

    def send_goodbye(self) -> None:
        """Say goodbye and close the connections; requests without an answer are refused."""
        for connection in [one for protocol_server in self._stream_servers for one in protocol_server.connections]:
            connection.send_goodbye()
        if self._http is not None:
            self._http.protocol_server.refuse_all()
        if self._feed is not None:
            self._feed.close_connections()

    def abort(self) -> None:
        for connection in [one for protocol_server in self._stream_servers for one in protocol_server.connections]:
            connection.abort()
        if self._http is not None:
            self._http.protocol_server.abort()
        if self._feed is not None:
            self._feed.abort()


def _http(
    config: Config, context: ServerContext, transport: ListenerOptions, grants: Iterable[AccessGrant]
) -> "HttpListener | None":
    if config.http_address is None:
        return None
    from yirangmq.server.http_listener import HttpListener  # a server without HTTP does not load it

    return HttpListener(config, context, grants, transport)


def _feed(config: Config, context: ServerContext) -> "FeedListener | None":
    if context.topics is None or (not config.feed_path and config.feed_address is None):
        return None
    from yirangmq.server.feed_listener import FeedListener  # a server without it does not load it

    return FeedListener(config, context, context.topics, _limits(config))


def _stomp(
    config: Config, context: ServerContext, transport: ListenerOptions, grants: Iterable[AccessGrant]
) -> "StompListener | None":
    if config.stomp_address is None:
        return None
    from yirangmq.server.stomp_listener import StompListener  # a server without it does not load it

    return StompListener(config, context, _limits(config), grants, transport)


def _limits(config: Config) -> StreamLimits:
    return StreamLimits(
        connections=config.max_connections,
        idle_seconds=config.idle_seconds,
        frame_seconds=config.frame_seconds,
        write_buffer=config.write_buffer_bytes,
        client_memory=config.client_memory_bytes,
        pending=config.max_pending,
    )
