"""Listener of the feed protocol: a unix socket, TCP or both, and how its connections end.

The protocol (``protocols.feed``) has no goodbye: at a stop, queued bytes are sent and the connection is closed.
Loaded only where the settings turn the feed on."""

import asyncio
import contextlib
from pathlib import Path

from yirangmq.config.config import Config
from yirangmq.core.errors import QueueError
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.feed import FeedServer, listen_feed_tcp, listen_feed_unix
from yirangmq.protocols.listen import format_address, remove_stale_socket, sockets_of
from yirangmq.protocols.stream_server import StreamLimits
from yirangmq.topics.publisher import Publisher


class FeedListener:
    """Listener of the feed protocol, from ``listen`` to ``close``."""

    prefix = "feed "
    is_active_only = False

    def __init__(self, config: Config, context: ServerContext, topics: Publisher, limits: StreamLimits) -> None:
        self._config = config
        self._path = Path(config.feed_path).absolute() if config.feed_path else None
        self._servers: list[asyncio.AbstractServer] = []
        self.protocol_server = FeedServer(topics, limits, context.authenticator, context.refused_clients)
        topics.after_commit.append(self.protocol_server.flush)

    async def listen(self) -> list[str]:
        """Listen on the unix socket and the TCP address, if they are set. Return the addresses."""
        addresses = []
        if self._path is not None:
            self._servers.append(await listen_feed_unix(self.protocol_server, self._path, self._config.unix_mode))
            addresses.append(f"feed+unix:{self._path}")
        if self._config.feed_address is not None:
            server = await listen_feed_tcp(self.protocol_server, *self._config.feed_address)
            self._servers.append(server)
            addresses += [f"feed://{format_address(one.getsockname())}" for one in sockets_of(server)]
        return addresses

    def close(self) -> None:
        """Stop accepting connections."""
        for server in self._servers:
            server.close()
        if self._servers and self._path is not None:
            with contextlib.suppress(OSError):
                remove_stale_socket(self._path)
        self._servers.clear()

    def redirect(self, why: QueueError) -> None:
        """Subscribers stay connected. The publisher ends their subscriptions when the node stops being active."""
