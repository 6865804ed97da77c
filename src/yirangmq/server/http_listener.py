"""HTTP listener: mounts the APIs under their prefixes, and sets authentication, origin policy and limits.

``/v1`` is the native API, the prefixes of ``protocols.http.mq.api`` are the API of the HTTP queue. Everything else
is the dashboard or a plain-text answer. Loaded only where the settings turn HTTP on."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic

from yirangmq.config.config import Config
from yirangmq.core.access import AccessGrant
from yirangmq.core.errors import NotAllowed, QueueError
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.http.auth import HttpAccess, OriginPolicy, RequestRateLimiter
from yirangmq.protocols.http.context import TokenDelays
from yirangmq.protocols.http.limits import HttpLimits
from yirangmq.protocols.http.mq.api import PREFIXES, MqApi, MqSettings
from yirangmq.protocols.http.router import MountedRoutes
from yirangmq.protocols.http.server import HttpSocketServer, RequestCoalescer, listen_tcp, listen_unix
from yirangmq.protocols.http.static import ServerRoutes, add_dashboard
from yirangmq.protocols.http.v1.api import NativeApi
from yirangmq.protocols.http.v1.endpoint import allow_all
from yirangmq.protocols.listen import ListenerOptions, format_address, remove_stale_socket, sockets_of

BURST_SECONDS = 2


def mounts(
    context: ServerContext, guard: HttpAccess, api: NativeApi, terms: MqSettings, coalescer: RequestCoalescer
) -> MountedRoutes:
    """Return the mounts: each API under its prefix. Paths under no prefix get the dashboard or a plain-text answer."""
    plain = ServerRoutes(context, guard).routes()
    add_dashboard(plain)
    found = MountedRoutes(fallback=plain)
    found.mount("/v1", api)
    document = MqApi(context, guard, terms, coalescer)
    for prefix in PREFIXES:
        found.mount(prefix, document)
    return found


def _refusal_counter(context: ServerContext) -> Callable[[str, NotAllowed, str], None] | None:
    refusals = context.refused_clients
    return None if refusals is None else lambda peer, error, who: refusals.add("http", peer, error, who)


def _policy(config: Config, guard: HttpAccess, context: ServerContext) -> OriginPolicy:
    address = config.http_address
    hosts = (*config.http_hosts, address[0]) if isinstance(address, tuple) else config.http_hosts
    is_unix = isinstance(address, str)
    return OriginPolicy(guard, config.cors_origins, hosts, is_unix=is_unix, report=_refusal_counter(context))


def _limits(config: Config) -> HttpLimits:
    return HttpLimits(
        connections=config.http_max_connections,
        pipelined=config.max_pending,
        idle_seconds=config.http_idle_seconds,
        head_seconds=config.frame_seconds,
        body_seconds=config.frame_seconds,
        write_seconds=config.frame_seconds,
        write_buffer=config.write_buffer_bytes,
        client_memory=config.client_memory_bytes,
    )


class HttpListener:
    """HTTP listener, from ``listen`` to ``close``."""

    prefix = "http "
    is_active_only = False

    def __init__(
        self, config: Config, context: ServerContext, grants: Iterable[AccessGrant], transport: ListenerOptions
    ) -> None:
        burst = config.http_burst or config.http_rate * BURST_SECONDS
        rate = RequestRateLimiter(config.http_rate, burst, monotonic) if config.http_rate else None
        guard = HttpAccess(grants, rate, _refusal_counter(context), context.attempts)
        coalescer = RequestCoalescer(context.committer)
        self._api = NativeApi(context, guard=allow_all if guard.is_open else guard.check, coalescer=coalescer)
        admit = guard.admit if config.http_rate else None
        address = config.http_address
        self._policy = _policy(config, guard, context)
        mq = MqSettings(config.mq_payload_limit, config.policy_defaults.set_body, config.mq_admin_password)
        routes = mounts(context, guard, self._api, mq, coalescer)
        self.protocol_server = HttpSocketServer(routes, _limits(config), admit, self._policy)
        self.protocol_server.flush_after(context.committer)
        if context.topics is not None:
            context.topics.after_commit.append(self.protocol_server.flush)
        if context.attempts is not None and (config.mq_admin_password or not guard.is_open):
            self.protocol_server.context.token_delays = TokenDelays(guard.delay, context.attempts.wait)
        self._address = Path(address).absolute() if isinstance(address, str) else address
        self._mode = config.unix_mode
        self._tls, self._connection_guard = transport
        self._server: asyncio.AbstractServer | None = None

    async def listen(self) -> list[str]:
        """Listen, and return the addresses."""
        if isinstance(self._address, tuple):
            self._server = await listen_tcp(self.protocol_server, self._address, self._tls, self._connection_guard)
            scheme = "http" if self._tls is None else "https"
            names = [one.getsockname() for one in sockets_of(self._server)]
            for name in names:
                self._policy.add_address(name[0])
            return [f"{scheme}://{format_address(name)}" for name in names]
        assert self._address is not None
        self._server = await listen_unix(self.protocol_server, self._address, self._mode, self._connection_guard)
        return [f"http+unix:{self._address}"]

    def redirect(self, why: QueueError) -> None:
        """Answer long polls with no messages and end the connections: another node is active now."""
        self._api.redirect()
        self.protocol_server.send_goodbye()

    def close(self) -> None:
        """Stop accepting connections, and answer long polls with no messages."""
        if self._server is None:
            return
        self._api.stop()
        self._server.close()
        self._server = None
        if isinstance(self._address, Path):
            with contextlib.suppress(OSError):
                remove_stale_socket(self._address, "http")
