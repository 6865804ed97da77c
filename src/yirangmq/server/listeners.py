"""Listeners of a server as one object: native socket, HTTP, feed and STOMP, opened, watched and closed together.

HTTP, feed and STOMP are loaded only where they are on. In a pair, STOMP listens on the active node alone: its clients
recognise a standby only by a refused connection.

Shutdown is ``drain`` (no new connections and no new requests, waiting consumers get an empty answer), ``send_goodbye``
(every request is answered or refused), ``abort``. Loop thread only."""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from yirangmq.config.config import Config
from yirangmq.core.access import AccessGrant
from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Transaction
from yirangmq.observe.logs import log, values
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.listen import ListenerOptions, format_address, remove_stale_socket, sockets_of
from yirangmq.protocols.stream_server import StreamLimits, StreamServer, listen_tcp, listen_unix

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import MetricValue
    from yirangmq.server.feed_listener import FeedListener
    from yirangmq.server.http_listener import HttpListener
    from yirangmq.server.stomp_listener import StompListener

Listener: TypeAlias = "NativeListener | HttpListener | FeedListener | StompListener"


class NativeListener:
    """Listener of the native protocol: a unix socket, TCP or both."""

    prefix = ""
    """Prefix of the reasons in ``sentAway``: the name of the protocol and a space; "" for the native protocol."""
    is_active_only = False
    """True if the protocol listens only on the active node of a pair."""

    def __init__(self, config: Config, context: ServerContext, transport: ListenerOptions) -> None:
        self._config = config
        self._tls, self._guard = transport
        self._path = Path(config.socket_path).absolute() if config.socket_path else None
        self._servers: list[asyncio.AbstractServer] = []
        self.protocol_server = StreamServer(context, limits_of(config))
        if context.topics is not None:
            context.topics.after_commit.append(self.protocol_server.flush)

    async def listen(self) -> list[str]:
        """Listen, and return the addresses."""
        config, addresses = self._config, []
        if self._path is not None:
            self._servers.append(await listen_unix(self.protocol_server, self._path, config.unix_mode, self._guard))
            addresses.append(f"unix:{self._path}")
        if config.tcp_address is not None:
            server = await listen_tcp(self.protocol_server, *config.tcp_address, self._tls, self._guard)
            self._servers.append(server)
            scheme = "tls" if self._tls is not None else "tcp"
            addresses += [f"{scheme}://{format_address(one.getsockname())}" for one in sockets_of(server)]
        return addresses

    def redirect(self, why: QueueError) -> None:
        """Redirect waiting clients: another node is active now."""
        self.protocol_server.redirect(why)

    def close(self) -> None:
        """Stop accepting connections."""
        for server in self._servers:
            server.close()
        if self._servers and self._path is not None:
            with contextlib.suppress(OSError):
                remove_stale_socket(self._path)
        self._servers.clear()


class ServerListeners:
    """All listeners of a server."""

    def __init__(
        self, config: Config, context: ServerContext, transport: ListenerOptions, grants: Iterable[AccessGrant]
    ) -> None:
        self._context = context
        self._is_pair = bool(config.pair_peer)
        self._is_clustered = config.is_clustered
        self._stomp: StompListener | None = None
        self._listeners = tuple(self._build(config, context, transport, tuple(grants)))
        self._reported_counts: dict[str, int] = {}
        self.addresses: list[str] = []
        """Addresses at which the server can be reached."""

    def _build(
        self, config: Config, context: ServerContext, transport: ListenerOptions, grants: tuple[AccessGrant, ...]
    ) -> Iterator[Listener]:
        """Yield the listeners that are on. A server without a protocol does not load its modules."""
        yield NativeListener(config, context, transport)
        if config.http_address is not None:
            from yirangmq.server.http_listener import HttpListener

            yield HttpListener(config, context, grants, transport)
        if context.topics is not None and (config.feed_path or config.feed_address is not None):
            from yirangmq.server.feed_listener import FeedListener

            yield FeedListener(config, context, context.topics, limits_of(config))
        if config.stomp_address is not None:
            from yirangmq.server.stomp_listener import StompListener

            self._stomp = StompListener(config, context, limits_of(config), grants, transport)
            yield self._stomp

    async def open(self) -> None:
        """Open the listeners. Then the publisher of topics is online."""
        topics = self._context.topics
        for listener in self._listeners:
            if not (self._is_pair and listener.is_active_only):
                self.addresses += await listener.listen()
        if topics is not None:
            topics.mark_listening()
            topics.mark_online()

    async def open_for_active(self) -> None:
        """Open the listeners that only the active node of a pair has."""
        for listener in self._listeners:
            if listener.is_active_only:
                found = await listener.listen()
                self.addresses += [one for one in found if one not in self.addresses]

    def redirect(self, why: QueueError) -> None:
        """Redirect waiting clients: another node is active now."""
        for listener in self._listeners:
            listener.redirect(why)
            if listener.is_active_only and not self._is_clustered:
                listener.close()

    def release_stale_leases(self, transaction: Transaction) -> None:
        """Release the leases that connections of a former leader held. No client is served before it is done."""
        if self._stomp is not None:
            self._stomp.release_stale_leases(transaction)

    def close(self) -> None:
        """Stop accepting connections."""
        for listener in self._listeners:
            listener.close()

    # -- connections ---------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        return sum(len(one.protocol_server.connections) for one in self._listeners)

    def disconnect_counts(self) -> dict[str, int]:
        """Return the number of clients refused or closed, by reason. Other listeners than the native one prefix it."""
        return {
            f"{one.prefix}{why}": count
            for one in self._listeners
            for why, count in one.protocol_server.closed_for.items()
        }

    def refused(self) -> dict[str, int]:
        """Return the number of clients refused since the start for their rights or for the connection limit."""
        found = {why: count for why, count in self.disconnect_counts().items() if why.endswith("connections")}
        refused_clients = self._context.refused_clients
        counts = {} if refused_clients is None else refused_clients.counts
        return found | {f"{protocol} {why}": n for (protocol, why), n in counts.items()}

    def describe(self) -> list[dict[str, Any]]:
        return [row for one in self._listeners for row in one.protocol_server.describe()]

    def tick(self) -> None:
        """Check the timeouts of all connections, and log disconnected clients. Called about once a second."""
        now = asyncio.get_running_loop().time()
        for listener in self._listeners:
            listener.protocol_server.check_timeouts(now)
        counts = self.disconnect_counts()
        if counts != self._reported_counts:
            self._reported_counts = counts
            log.warning("clients_disconnected", extra=values(since_start=counts))

    # -- status and metrics --------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        return {
            "addresses": self.addresses,
            "connections": self.clients,
            "accepted": self._accepted,
            "sentAway": self.disconnect_counts(),
            "stomp": None if self._stomp is None else self._stomp.describe(),
        }

    @property
    def _accepted(self) -> int:
        return sum(one.protocol_server.accepted for one in self._listeners)

    def samples(self) -> "dict[str, MetricValue]":
        refused_clients = self._context.refused_clients
        refused = {} if refused_clients is None else refused_clients.counts
        attempts = self._context.attempts
        return {
            "yirangmq_connections": [({}, self.clients)],
            "yirangmq_connections_total": [({}, self._accepted)],
            "yirangmq_sent_away_total": [({"reason": why}, n) for why, n in sorted(self.disconnect_counts().items())],
            "yirangmq_clients_refused_total": [
                ({"door": protocol, "reason": why}, n) for (protocol, why), n in sorted(refused.items())
            ],
            "yirangmq_delayed_attempts_total": [({}, 0 if attempts is None else attempts.delayed)],
            **({} if self._stomp is None else self._stomp.samples()),
        }

    # -- shutdown, in this order ---------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Accept no more connections and no more requests. Waiting consumers get an empty answer."""
        self.close()
        for listener in self._listeners:
            listener.protocol_server.stop()

    def send_goodbye(self) -> None:
        """Say goodbye and close the connections; requests without an answer are refused."""
        for listener in self._listeners:
            listener.protocol_server.send_goodbye()

    def abort(self) -> None:
        for listener in self._listeners:
            listener.protocol_server.abort()


def limits_of(config: Config) -> StreamLimits:
    return StreamLimits(
        connections=config.max_connections,
        idle_seconds=config.idle_seconds,
        frame_seconds=config.frame_seconds,
        write_buffer=config.write_buffer_bytes,
        client_memory=config.client_memory_bytes,
        pending=config.max_pending,
    )
