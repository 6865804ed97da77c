"""Server as a cluster node of a store in etcd: starts its work when it becomes leader, and stops it when it loses that.

The store reports leadership and inbox changes in its etcd thread. Both are passed to the loop's thread, where
everything else here runs.

A new leader resumes store time, releases what connections of the former leader held, and adopts changed defaults.
Then it serves; if the store refuses, it tries again after a second. A former leader stops its work and redirects its
clients. A follower passes the connections of its clients on to the leader (``protocols.leader_proxy``). The address,
secret and certificate pin of the leader are in the leader's key."""

import asyncio
import hashlib
import os
import secrets
import socket
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

from yirangmq.broker.bulk import Wholesale
from yirangmq.broker.group_commit import Desk
from yirangmq.broker.group_commit_threads import Lane
from yirangmq.broker.housekeeping import check_unmarked
from yirangmq.cluster.etcd.address import read_address
from yirangmq.cluster.keys import Put
from yirangmq.cluster.leadership import Leader
from yirangmq.config.config import Config
from yirangmq.core.errors import NotActive, QueueError
from yirangmq.core.ports import Clock, Transaction
from yirangmq.observe.logs import log, values
from yirangmq.protocols.etcd_inbox import KeysDoor
from yirangmq.protocols.leader_proxy import Gate, Target
from yirangmq.stores.etcd.store import EtcdStore

EVERYWHERE = ("0.0.0.0", "[::]")


class ClusterNodeParts(NamedTuple):
    """Parts of the server that a cluster node controls."""

    desk: Desk
    clock: Clock
    start: Callable[[], None]
    """Starts background work."""
    stop: Callable[[], None]
    move: Callable[[QueueError], None]
    """Redirects the clients."""
    tidy: Callable[[Transaction], None]
    """Releases the leases that connections of a former leader held."""
    publish_refusal: Callable[[], QueueError | None]
    """Returns the reason for which publishing is refused, or None."""


class ClusterWay:
    """Cluster node of a server: ``core.active_guard.Duty`` and ``protocols.leader_proxy.Lead``.

    Created on the loop's thread. Only the callbacks of the store are called in the etcd thread."""

    def __init__(self, config: Config, store: EtcdStore, tls: ssl.SSLContext | None) -> None:
        self._config = config
        self._store = store
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._secret = secrets.token_urlsafe(24)
        self._parts: ClusterNodeParts | None = None
        self._serving = 0
        """Number of the leader term in which this node serves; 0 if it does not serve."""
        self.proxy = Gate(self, self._secret)

    def attach(self, parts: ClusterNodeParts) -> None:
        self._parts = parts
        parts.desk.duty = self
        self._keys = KeysDoor(parts.desk, parts.clock, parts.publish_refusal)
        self._store.changed = self._heard
        self._store.arrived = self._arrived
        self._store.ask_work = self._loop.call_soon_threadsafe

    async def open(self, addresses: list[str]) -> None:
        self._store.check_free()
        forward = await self.proxy.listen(self._config.cluster_address, self._tls)
        host, _, port = forward.rpartition(":")
        if host in EVERYWHERE:
            forward = f"{socket.gethostname()}:{port}"
        me = Leader(self._config.node_name, forward, self._secret, self._pin(), tuple(addresses))
        self._store.stand(me)

    def _pin(self) -> str:
        if not self._config.tls_cert:
            return ""
        with open(self._config.tls_cert, encoding="ascii", errors="ignore") as file:  # noqa: PTH123
            text = file.read()
        first = text[text.index(ssl.PEM_HEADER) : text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)]
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()

    def close(self) -> None:
        self._store.changed = _nothing
        self.proxy.close()

    def facts(self) -> dict[str, Any]:
        """Return the facts for ``status``."""
        leader = self._store.leader
        return {
            "leads": self.is_on,
            "leader": None if leader is None else leader.node,
            "passedOn": len(self.proxy.passages),
            "full": round(self._store.room.full, 3),
        }

    # -- core.active_guard.Duty, protocols.leader_proxy.Lead -----------------------------------------------------------

    @property
    def is_on(self) -> bool:
        return bool(self._serving) and self._serving == self._store.reigns and self._store.is_on

    @property
    def takes_in(self) -> bool:
        return self.is_on

    def refusal(self) -> NotActive:
        return self._store.refusal()

    def target(self) -> Target | None:
        leader = self._store.leader
        if leader is None or not leader.forward or leader.secret == self._secret:
            return None
        host, _, port = leader.forward.rpartition(":")
        return Target(host.strip("[]"), int(port), leader.secret, leader.pin)

    # -- gain and loss of the lead -------------------------------------------------------------------------------------

    def _arrived(self, puts: list[Put]) -> None:
        """Called in the etcd thread when messages arrive in the inbox."""
        self._loop.call_soon_threadsafe(self._keys.arrived, puts)

    def _heard(self) -> None:
        """Called in the etcd thread when the leadership changes."""
        self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        number = self._store.reigns if self._store.is_on else 0
        if self._serving and self._serving != number:
            self._end()
        if number and not self._serving:
            self._begin(number)
        self.proxy.changed()

    def _begin(self, number: int) -> None:
        assert self._parts is not None
        desk = self._parts.desk
        desk.resume_time()
        try:
            with self._store.transaction() as transaction:
                self._parts.tidy(transaction)
            Wholesale(Lane(self._store), desk.verbs, self._parts.clock).adopt_defaults()
            desk.read(check_unmarked)
        except QueueError as error:
            log.warning("server_activation_failed", extra=values(error=str(error)))
            self._loop.call_later(1.0, self._look)
            return
        self._serving = number
        log.info("server_activated", extra=values(node=self._config.node_name))
        desk.awake()
        self._parts.start()
        self._keys.arrived([])

    def _end(self) -> None:
        assert self._parts is not None
        self._serving = 0
        self._keys.end()
        log.warning("server_deactivated", extra=values(node=self._config.node_name))
        self._parts.stop()
        self._parts.move(self.refusal())


def store_for(config: Config) -> EtcdStore:
    """Create the store. It does not join the election yet: the address of this node must be known first."""
    return EtcdStore(read_address(config.store_url, os.environ), Leader(config.node_name))


def _nothing() -> None:
    """Ignore changes after ``close``."""
