"""HTTP listener: mounts the APIs under their prefixes, and sets authentication, origin policy and limits.

``/v1`` is the native API, the prefixes of ``protocols.http.mq.api`` are the API of the HTTP queue. Everything else
is the dashboard or a plain-text answer. Loaded only where the settings turn HTTP on."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic

from yirangmq.config.config import Config
from yirangmq.core.access import Grant
from yirangmq.core.errors import NotAllowed
from yirangmq.protocols.context import House
from yirangmq.protocols.http.auth import Guard, OriginPolicy, Rate
from yirangmq.protocols.http.connection import Delays
from yirangmq.protocols.http.mq.api import PREFIXES, MqApi, Terms
from yirangmq.protocols.http.router import Mounts
from yirangmq.protocols.http.server import HttpDoor, Together, listen_tcp, listen_unix
from yirangmq.protocols.http.static import Pages, add_dashboard
from yirangmq.protocols.http.types import Limits
from yirangmq.protocols.http.v1.api import Api
from yirangmq.protocols.listen import WayIn, clear_socket, shown, sockets_of

BURST_SECONDS = 2


def mounts(house: House, guard: Guard, api: Api, terms: Terms, together: Together) -> Mounts:
    """Return the mounts: each API under its prefix. Paths under no prefix get the dashboard or a plain-text answer."""
    plain = Pages(house, guard).routes()
    add_dashboard(plain)
    found = Mounts(fallback=plain)
    found.mount("/v1", api)
    document = MqApi(house, guard, terms, together)
    for prefix in PREFIXES:
        found.mount(prefix, document)
    return found


def _terms(config: Config) -> Terms:
    return Terms(config.mq_payload_limit, config.inherited.set_body, config.mq_admin_password)


def _rate(config: Config) -> Rate | None:
    if not config.http_rate:
        return None
    return Rate(config.http_rate, config.http_burst or config.http_rate * BURST_SECONDS, monotonic)


def _counting(house: House) -> Callable[[str, NotAllowed, str], None] | None:
    refusals = house.refusing
    return None if refusals is None else lambda peer, error, who: refusals.add("http", peer, error, who)


def _policy(config: Config, guard: Guard, house: House) -> OriginPolicy:
    address = config.http_address
    hosts = (*config.http_hosts, address[0]) if isinstance(address, tuple) else config.http_hosts
    is_unix = isinstance(address, str)
    return OriginPolicy(guard, config.cors_origins, hosts, is_unix=is_unix, tell=_counting(house))


def _limits(config: Config) -> Limits:
    return Limits(
        connections=config.http_max_connections,
        pipelined=config.max_pending,
        idle_seconds=config.http_idle_seconds,
        head_seconds=config.frame_seconds,
        body_seconds=config.frame_seconds,
        write_seconds=config.frame_seconds,
        write_buffer=config.write_buffer_bytes,
        client_memory=config.client_memory_bytes,
    )


class Web:
    """HTTP listener, from ``listen`` to ``close``."""

    def __init__(self, config: Config, house: House, grants: Iterable[Grant], way: WayIn) -> None:
        guard = Guard(grants, _rate(config), _counting(house), house.attempts)
        together = Together(house.desk)
        self._api = Api(house, guard=guard.check, together=together)
        admit = guard.admit if config.http_rate else None
        address = config.http_address
        self._policy = _policy(config, guard, house)
        routes = mounts(house, guard, self._api, _terms(config), together)
        self.door = HttpDoor(routes, _limits(config), admit, self._policy)
        if house.attempts is not None and (config.mq_admin_password or not guard.is_open):
            self.door.shared.delays = Delays(guard.delay, house.attempts.wait)
        self._address = Path(address).absolute() if isinstance(address, str) else address
        self._mode = config.unix_mode
        self._tls, self._before = way
        self._server: asyncio.AbstractServer | None = None

    async def listen(self) -> list[str]:
        """Listen, and return the addresses."""
        if isinstance(self._address, tuple):
            self._server = await listen_tcp(self.door, self._address, self._tls, self._before)
            scheme = "http" if self._tls is None else "https"
            names = [one.getsockname() for one in sockets_of(self._server)]
            for name in names:
                self._policy.add_address(name[0])
            return [f"{scheme}://{shown(name)}" for name in names]
        assert self._address is not None
        self._server = await listen_unix(self.door, self._address, self._mode, self._before)
        return [f"http+unix:{self._address}"]

    def move(self) -> None:
        """Answer long polls with no messages and end the connections: another node is active now."""
        self._api.move()
        self.door.send_away()

    def close(self) -> None:
        """Stop accepting connections, and answer long polls with no messages."""
        if self._server is None:
            return
        self._api.stop()
        self._server.close()
        self._server = None
        if isinstance(self._address, Path):
            with contextlib.suppress(OSError):
                clear_socket(self._address, "http")
