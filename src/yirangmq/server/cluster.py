"""Server as a cluster node of a store in etcd: starts its work when it becomes leader, and stops it when it loses that.

The store reports leadership and inbox changes in its etcd thread. Both are passed to the loop's thread, where
everything else here runs.

A new leader resumes store time, opens its files by date, releases what connections of the former leader held, and
adopts changed defaults. Then it serves; if the store refuses, it tries again after a second. A former leader stops its
work and redirects its clients. A follower passes the connections of its clients on to the leader
(``protocols.leader_proxy``). The address, secret and certificate pin of the leader are in the leader's key."""

import asyncio
import hashlib
import os
import secrets
import socket
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from yirangmq.admin.health import publish_refusal
from yirangmq.admin.registry import PagedMethods
from yirangmq.broker.bulk import BulkOperations
from yirangmq.broker.expiry_sweeper import check_unmarked
from yirangmq.broker.group_commit_threads import ThreadedGroupCommitter
from yirangmq.cluster.etcd.address import read_address
from yirangmq.cluster.keys import InboxMessage
from yirangmq.cluster.leadership import Leader
from yirangmq.config.config import Config
from yirangmq.core.alert_rules import ServerFacts
from yirangmq.core.errors import NotActive, QueueError
from yirangmq.core.ports import Store
from yirangmq.observe.logs import log, values
from yirangmq.protocols.context import ServerContext
from yirangmq.protocols.etcd_inbox import EtcdInbox
from yirangmq.protocols.leader_proxy import LeaderAddress, LeaderProxy
from yirangmq.server.components import Component, no_op
from yirangmq.server.journal import log_repairs
from yirangmq.server.lifecycle import Lifecycle
from yirangmq.server.listeners import ServerListeners
from yirangmq.stores.etcd.store import EtcdStore
from yirangmq.stores.journal.store import JournaledStore

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import MetricValue

WILDCARD_HOSTS = ("0.0.0.0", "[::]")


class ServerClusterNode:
    """Cluster node of a server: ``server.server.ServerNode``, ``core.active_guard.ActiveGuard`` and
    ``protocols.leader_proxy.LeadershipView``.

    Created on the loop's thread. Only the callbacks of the store are called in the etcd thread."""

    def __init__(self, config: Config, store: EtcdStore | JournaledStore, tls: ssl.SSLContext | None) -> None:
        self._config = config
        self._journal = store if isinstance(store, JournaledStore) else None
        self._store = cast("EtcdStore", store.inner_store) if isinstance(store, JournaledStore) else store
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self.add_role = None
        self._secret = secrets.token_urlsafe(24)
        self._served_term = 0
        """Number of the leader term in which this node serves; 0 if it does not serve."""
        self._proxy = LeaderProxy(self, self._secret)
        self.guard = self._proxy.guard

    def connect(
        self, context: ServerContext, pages: PagedMethods, listeners: ServerListeners, lifecycle: Lifecycle
    ) -> None:
        self._committer = context.committer
        self._clock = context.clock
        self._listeners = listeners
        self._components = lifecycle.components
        context.committer.guard = self
        self._inbox = EtcdInbox(context.committer, context.clock, partial(publish_refusal, context.disk))
        self._store.on_change = self._on_leadership_change
        self._store.on_inbox_messages = self._on_inbox_change
        self._store.probe_loop = self._loop.call_soon_threadsafe

    async def open(self) -> None:
        """The node joins the election when its listeners are open."""

    async def run(self) -> None:
        self._store.check_not_dispatched()
        forward = await self._proxy.listen(self._config.cluster_address, self._tls)
        host, _, port = forward.rpartition(":")
        if host in WILDCARD_HOSTS:
            forward = f"{socket.gethostname()}:{port}"
        addresses = tuple(self._listeners.addresses)
        self._store.join_election(Leader(self._config.node_name, forward, self._secret, self._pin(), addresses))

    async def prepare_stop(self) -> None:
        """Another node is elected when this one has stopped."""

    def _pin(self) -> str:
        if not self._config.tls_cert:
            return ""
        with open(self._config.tls_cert, encoding="ascii", errors="ignore") as file:  # noqa: PTH123
            text = file.read()
        first = text[text.index(ssl.PEM_HEADER) : text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)]
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()

    def component(self) -> Component:
        return Component("cluster", status="cluster", close=self.close, facts=self.facts, samples=self.samples)

    def close(self) -> None:
        self._store.on_change = no_op
        self._proxy.close()

    def alert_facts(self, window: int) -> ServerFacts:
        return ServerFacts()

    def health_members(self) -> dict[str, Any]:
        return {}

    def facts(self) -> dict[str, Any]:
        """Return the facts for ``status``."""
        leader = self._store.leader
        return {
            "leads": self.is_on,
            "leader": None if leader is None else leader.node,
            "passedOn": len(self._proxy.connections),
            "full": round(self._store.quota.full, 3),
            "ignoredKeys": self._ignored_keys(),
        }

    def samples(self) -> "dict[str, MetricValue]":
        return {"yirangmq_cluster_ignored_keys": [({}, self._ignored_keys())]}

    def _ignored_keys(self) -> int:
        monitor = self._store.ignored_keys
        return 0 if monitor is None else len(monitor.found)

    # -- core.active_guard.Duty, protocols.leader_proxy.Lead -----------------------------------------------------------

    @property
    def is_on(self) -> bool:
        return bool(self._served_term) and self._served_term == self._store.term_count and self._store.is_on

    @property
    def accepts_new(self) -> bool:
        return self.is_on

    def refusal(self) -> NotActive:
        return self._store.refusal()

    def leader_address(self) -> LeaderAddress | None:
        leader = self._store.leader
        if leader is None or not leader.forward or leader.secret == self._secret:
            return None
        host, _, port = leader.forward.rpartition(":")
        return LeaderAddress(host.strip("[]"), int(port), leader.secret, leader.pin)

    # -- gain and loss of the lead -------------------------------------------------------------------------------------

    def _on_inbox_change(self, puts: list[InboxMessage]) -> None:
        """Called in the etcd thread when messages arrive in the inbox."""
        self._loop.call_soon_threadsafe(self._inbox.on_inbox_messages, puts)

    def _on_leadership_change(self) -> None:
        """Called in the etcd thread when the leadership changes."""
        self._loop.call_soon_threadsafe(self._check_leadership)

    def _check_leadership(self) -> None:
        number = self._store.term_count if self._store.is_on else 0
        if self._served_term and self._served_term != number:
            self._end_term()
        if number and not self._served_term:
            self._start_term(number)
        self._proxy.on_change()

    def _start_term(self, number: int) -> None:
        committer = self._committer
        committer.resume_time()
        try:
            store: Store = self._store
            if self._journal is not None:
                store = self._journal
                log_repairs(self._journal.begin_term())
            with store.transaction() as transaction:
                self._listeners.release_stale_leases(transaction)
            BulkOperations(ThreadedGroupCommitter(store), committer.operations, self._clock).adopt_defaults()
            committer.read(check_unmarked)
        except QueueError as error:
            log.warning("server_activation_failed", extra=values(error=str(error)))
            self._loop.call_later(1.0, self._check_leadership)
            return
        self._served_term = number
        log.info("server_activated", extra=values(node=self._config.node_name))
        committer.on_role_change()
        self._components.start()
        self._inbox.on_inbox_messages([])

    def _end_term(self) -> None:
        self._served_term = 0
        self._inbox.clear()
        log.warning("server_deactivated", extra=values(node=self._config.node_name))
        self._components.pause()
        self._listeners.redirect(self.refusal())


def store_for(config: Config) -> EtcdStore:
    """Create the store. It does not join the election yet: the address of this node must be known first."""
    return EtcdStore(read_address(config.store_url, os.environ), Leader(config.node_name))
