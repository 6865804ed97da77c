"""Listeners of a server as one object: native socket, HTTP, feed and STOMP, opened, watched and closed together.

HTTP, feed and STOMP are loaded only where they are on. In a pair, STOMP listens on the active node alone: its clients
recognise a standby only by a refused connection.

Shutdown is ``close`` (no new connections), ``stop`` (no new requests, waiting consumers get an empty answer),
``say_bye`` (every request is answered or refused), ``abort``. Loop thread only."""

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yirangmq.config.config import Config
from yirangmq.core.access import Grant
from yirangmq.core.errors import QueueError
from yirangmq.protocols.context import House
from yirangmq.protocols.listen import WayIn, clear_socket, shown, sockets_of
from yirangmq.protocols.stream_server import Door, Limits, listen_tcp, listen_unix

if TYPE_CHECKING:
    from yirangmq.server.feed_listener import FeedWay
    from yirangmq.server.http_listener import Web
    from yirangmq.server.stomp_listener import StompWay


class Entrance:
    """All listeners of a server."""

    def __init__(self, config: Config, house: House, way: WayIn, grants: Iterable[Grant]) -> None:
        self._config = config
        self._house = house
        self._tls, self._guard = way
        self._door = Door(house, _limits(config))
        grants = tuple(grants)
        self._web = _web(config, house, way, grants)
        self._feed = _feed(config, house)
        self.stomp = _stomp(config, house, way, grants)
        self._path = Path(config.socket_path).absolute() if config.socket_path else None
        self._servers: list[asyncio.AbstractServer] = []
        self.addresses: list[str] = []
        """Addresses at which the server can be reached."""
        if self._web is not None:
            self._web.door.flush_after(house.desk)
        if house.topics is not None:
            house.topics.after_turn.append(self._door.flush)
            if self._web is not None:
                house.topics.after_turn.append(self._web.door.flush)

    async def open(self) -> None:
        config = self._config
        if self._path is not None:
            self._servers.append(await listen_unix(self._door, self._path, config.unix_mode, self._guard))
            self.addresses.append(f"unix:{self._path}")
        if config.tcp_address is not None:
            server = await listen_tcp(self._door, *config.tcp_address, self._tls, self._guard)
            self._servers.append(server)
            scheme = "tls" if self._tls is not None else "tcp"
            self.addresses += [f"{scheme}://{shown(one.getsockname())}" for one in sockets_of(server)]
        if self._web is not None:
            self.addresses += await self._web.listen()
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
                clear_socket(self._path)
        self._servers.clear()
        if self._web is not None:
            self._web.close()
        if self._feed is not None:
            self._feed.close()
        if self.stomp is not None:
            self.stomp.close()

    # -- connections ---------------------------------------------------------------------------------------------------

    @property
    def _others(self) -> "list[Web | FeedWay | StompWay]":
        """Listeners other than the native socket."""
        return [way for way in (self._web, self._feed, self.stomp) if way is not None]

    @property
    def _doors(self) -> list[Door]:
        """Servers of native and STOMP connections, which have the same type."""
        return [self._door, *([] if self.stomp is None else [self.stomp.door])]

    @property
    def clients(self) -> int:
        return len(self._door.connections) + sum(len(way.door.connections) for way in self._others)

    @property
    def accepted(self) -> int:
        """Number of connections accepted since the start."""
        return self._door.accepted + sum(way.door.accepted for way in self._others)

    def sent_away(self) -> dict[str, int]:
        """Return the number of clients refused or closed, by reason. Other listeners than the native one prefix it."""
        web = {} if self._web is None else {f"http {why}": n for why, n in self._web.door.closed_for.items()}
        feed = {} if self._feed is None else {f"feed {why}": n for why, n in self._feed.door.closed_for.items()}
        stomp = {} if self.stomp is None else {f"stomp {why}": n for why, n in self.stomp.door.closed_for.items()}
        return {**self._door.closed_for, **web, **feed, **stomp}

    def refused(self) -> dict[str, int]:
        """Return the number of clients refused since the start for their rights or for the connection limit."""
        found = {why: count for why, count in self.sent_away().items() if why.endswith("connections")}
        refusing = self._house.refusing
        return found | ({} if refusing is None else {f"{door} {why}": n for (door, why), n in refusing.counts.items()})

    def describe(self) -> list[dict[str, Any]]:
        return self._door.describe() + [one for way in self._others for one in way.door.describe()]

    def look_around(self, now: float) -> None:
        """Check the timeouts of all connections. Called once a second."""
        for door in self._doors:
            door.look_around(now)
        if self._web is not None:
            self._web.door.look_around(now)

    def move(self, why: QueueError) -> None:
        """Redirect waiting clients: another node is active now."""
        for connection in [one for door in self._doors for one in door.connections]:
            connection.move(why)
        if self.stomp is not None and not self._config.is_clustered:
            self.stomp.close()
        if self._web is not None:
            self._web.move()

    # -- shutdown, in this order ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Accept no more requests. Waiting consumers get an empty answer."""
        for connection in [one for door in self._doors for one in door.connections]:
            connection.stop()
        if self._web is not None:
            self._web.door.stop()

    def say_bye(self) -> None:
        """Say goodbye and close the connections; requests without an answer are refused."""
        for connection in [one for door in self._doors for one in door.connections]:
            connection.say_bye()
        if self._web is not None:
            self._web.door.send_away()
        if self._feed is not None:
            self._feed.close_connections()

    def abort(self) -> None:
        for connection in [one for door in self._doors for one in door.connections]:
            connection.abort()
        if self._web is not None:
            self._web.door.abort()
        if self._feed is not None:
            self._feed.abort()


def _web(config: Config, house: House, way: WayIn, grants: Iterable[Grant]) -> "Web | None":
    if config.http_address is None:
        return None
    from yirangmq.server.http_listener import Web  # a server without HTTP does not load it

    return Web(config, house, grants, way)


def _feed(config: Config, house: House) -> "FeedWay | None":
    if house.topics is None or (not config.feed_path and config.feed_address is None):
        return None
    from yirangmq.server.feed_listener import FeedWay  # a server without it does not load it

    return FeedWay(config, house.topics, _limits(config))


def _stomp(config: Config, house: House, way: WayIn, grants: Iterable[Grant]) -> "StompWay | None":
    if config.stomp_address is None:
        return None
    from yirangmq.server.stomp_listener import StompWay  # a server without it does not load it

    return StompWay(config, house, _limits(config), grants, way)


def _limits(config: Config) -> Limits:
    return Limits(
        connections=config.max_connections,
        idle_seconds=config.idle_seconds,
        frame_seconds=config.frame_seconds,
        write_buffer=config.write_buffer_bytes,
        client_memory=config.client_memory_bytes,
        pending=config.max_pending,
    )
