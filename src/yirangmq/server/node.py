"""Role of a server among other nodes: alone, a node of a failover pair, or a node of a cluster.

The role decides when the work of the active node starts and pauses (``server.components``). The modules of a pair and
of a cluster are loaded only where they are configured; their nodes have the methods of ``SingleNode``."""

import ssl
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from yirangmq.admin.registry import PagedMethods
from yirangmq.config.config import Config
from yirangmq.core.alert_rules import ServerFacts
from yirangmq.core.ports import Store
from yirangmq.protocols.context import ServerContext, ServerIdentity
from yirangmq.protocols.listen import unguarded
from yirangmq.server.components import Component
from yirangmq.server.lifecycle import Lifecycle
from yirangmq.server.listeners import ServerListeners

if TYPE_CHECKING:
    from yirangmq.server.cluster import ServerClusterNode
    from yirangmq.server.failover import ServerPairNode

ServerNode: TypeAlias = "SingleNode | ServerPairNode | ServerClusterNode"


class SingleNode:
    """Node without others: it is active from start to stop.

    A node is created before the other parts, and connected to them when all are built."""

    guard = staticmethod(unguarded)
    """Return the factory that a listener uses instead of its own (``protocols.listen.ProtocolGuard``)."""

    def connect(
        self, context: ServerContext, pages: PagedMethods, listeners: ServerListeners, lifecycle: Lifecycle
    ) -> None:
        """Register the methods of the node, and keep what it controls."""
        self._components = lifecycle.components

    async def open(self) -> None:
        """Start to take part, before the listeners open."""

    async def run(self) -> None:
        """The listeners are open: start the work now, or when this node becomes active."""
        self._components.start()

    async def prepare_stop(self) -> None:
        """Hand over before an orderly stop. Clients are served until it returns."""

    def add_role(self, identity: ServerIdentity) -> ServerIdentity:
        """Add the role and the term of this node to the welcome."""
        return identity

    def alert_facts(self, window: int) -> ServerFacts:
        """Return the facts about the other node of a pair, of the last ``window`` ms."""
        return ServerFacts()

    def health_members(self) -> dict[str, Any]:
        """Return the members that the node adds to the health report."""
        return {}

    def component(self) -> Component:
        return Component("node")


def create_node(config: Config, store: Store, pair_key: str, tls: ssl.SSLContext | None) -> ServerNode:
    if config.pair_peer:
        from yirangmq.server.failover import ServerPairNode

        return ServerPairNode(config, pair_key)
    if config.is_clustered:
        from yirangmq.server.cluster import ServerClusterNode

        return ServerClusterNode(config, cast("Any", store), tls)
    return SingleNode()
