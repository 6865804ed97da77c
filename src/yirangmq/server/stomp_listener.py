"""STOMP listener: opens and closes with the active role, and releases leases of earlier connections.

A STOMP connection owns its leases, and there is none when the listener opens. Leases of STOMP consumers that a
killed server left behind are released in place, and temporary queues are deleted. A new leader of a cluster does the
same in one transaction, before it serves. Loaded only where the settings turn STOMP on."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from yirangmq import __version__
from yirangmq.admin.queue_lists import Slices
from yirangmq.config.config import Config
from yirangmq.core.access import AccessGrant
from yirangmq.core.errors import QueueError
from yirangmq.core.ports import Transaction
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.listen import ListenerOptions, format_address, sockets_of, tcp_server
from yirangmq.protocols.stomp.codec import TEMPORARY
from yirangmq.protocols.stomp.commands import StompAccess
from yirangmq.protocols.stomp.queue_subscriptions import CONSUMERS
from yirangmq.protocols.stomp.session import StompContext, StompSession, refusal
from yirangmq.protocols.stomp.topic_hub import TopicHub
from yirangmq.protocols.stream_server import StreamConnection, StreamLimits, StreamServer
from yirangmq.server.lifecycle import release_leases, run_in_commits, run_in_transaction

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import MetricValue


class StompListener:
    """STOMP listener, from ``listen`` to ``close``, and again each time the node becomes active."""

    prefix = "stomp "
    is_active_only = True

    def __init__(
        self,
        config: Config,
        context: ServerContext,
        limits: StreamLimits,
        grants: Iterable[AccessGrant],
        transport: ListenerOptions,
    ) -> None:
        self._config = config
        self._context = context
        self._tls, self._guard = transport
        self._server: asyncio.AbstractServer | None = None
        self._close_count = 0
        self.stomp_context = StompContext(
            context, StompAccess(grants, context.attempts), TopicHub(context.topics), f"yirangmq/{__version__}"
        )
        self.protocol_server = StreamServer(context, limits, self._new_session, refusal)
        if context.topics is not None:
            context.topics.after_commit.append(self.protocol_server.flush)

    def _new_session(self, connection: StreamConnection) -> StompSession:
        return StompSession(self.stomp_context, connection.sender.send, connection.close, lambda: connection.peer)

    async def listen(self) -> list[str]:
        """Listen, and return the addresses; [] if the listener was closed meanwhile."""
        assert self._config.stomp_address is not None
        close_count = self._close_count
        if not self._config.is_clustered:  # in a cluster the new leader does it
            await run_in_commits(self._context.committer, self._clean_up())
        seconds = self._config.frame_seconds
        make = self._guard("stomp", partial(StreamConnection, self.protocol_server, False))
        server = await tcp_server(make, self._config.stomp_address, self._tls, seconds, "stomp")
        if self._close_count != close_count:
            server.close()
            return []
        self._server = server
        scheme = "stomp" if self._tls is None else "stomp+ssl"
        return [f"{scheme}://{format_address(one.getsockname())}" for one in sockets_of(server)]

    def redirect(self, why: QueueError) -> None:
        self.protocol_server.redirect(why)

    def close(self) -> None:
        """Stop accepting connections."""
        self._close_count += 1
        if self._server is not None:
            self._server.close()
            self._server = None

    def describe(self) -> dict[str, Any]:
        """Return the facts for ``status``."""
        return {
            "connections": len(self.protocol_server.connections),
            "accepted": self.protocol_server.accepted,
            "frames": dict(sorted(self.stomp_context.frames.items())),
            "errors": dict(sorted(self.stomp_context.errors.items())),
        }

    def samples(self) -> "dict[str, MetricValue]":
        frames, errors = self.stomp_context.frames, self.stomp_context.errors
        return {
            "yirangmq_stomp_connections": [({}, len(self.protocol_server.connections))],
            "yirangmq_stomp_frames_total": [({"command": name}, count) for name, count in sorted(frames.items())],
            "yirangmq_stomp_errors_total": [({"code": code}, count) for code, count in sorted(errors.items())],
        }

    # -- recovery after a crash ----------------------------------------------------------------------------------------

    def _clean_up(self) -> Slices:
        """Release the leases of earlier STOMP connections, and delete their temporary queues.

        A STOMP connection owns its leases, and no connection exists yet."""
        temporary: list[str] = yield lambda transaction: transaction.queues(prefix=TEMPORARY)
        for queue in temporary:
            yield partial(_delete, queue)
        operations = self._context.committer.operations
        yield from release_leases(operations, lambda consumer: consumer.startswith(CONSUMERS), in_place=True)

    def release_stale_leases(self, transaction: Transaction) -> None:
        """Clean up in one transaction, for a new leader. No client is served before it is done."""
        run_in_transaction(transaction, self._clean_up())


def _delete(queue: str, transaction: Transaction) -> None:
    transaction.delete_queue(queue)
