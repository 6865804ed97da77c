"""Witness of a failover pair in etcd: the holder under a lease, and the highest term, which outlives it.

The keys are ``/yirangmq/pair/NAME/holder`` and ``…/term``. Each write compares the revision that was read, so of two
nodes that acquire the witness at the same moment one succeeds.

The lease only removes the holder key of a pair that no longer exists. Neither safety nor takeover depends on it or on
etcd's clock: after a key has vanished, the other node waits as long as for a key that its holder no longer renews.

Calls block and must come from one thread, which owns the event loop inside. Needs the extra ``yirangmq[etcd]``."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from yirangmq.cluster.etcd.address import EtcdAddress, read_address
from yirangmq.cluster.etcd.client import Etcd, mod_revision_equals, prefix_end, put
from yirangmq.core.errors import BadInput, QueueError, Unavailable
from yirangmq.core.failover import FailoverTiming
from yirangmq.core.failover_witness import Witness, WitnessRecord, WitnessRequest, WitnessView
from yirangmq.format.json_codec import dumps, loads

ROOT = "/yirangmq/pair/"
UNKNOWN_HOLDER = "?"
"""Placeholder holder, which is not the name of a node: the key is gone, and its holder is unknown."""
TRIES = 3
LEASE_TIMEOUTS = 3
"""Time to live of the lease, in failover timeouts. The lease is replaced after one timeout, so it never expires while
another node waits to acquire the witness."""
MIN_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS = 1.0, 5.0
"""Bounds of the timeout of one exchange, which is otherwise one heartbeat interval."""


class EtcdWitness:
    """Witness in etcd. ``now`` is the node's monotonic clock, in ms. Used from one thread, which owns the event loop
    inside."""

    def __init__(self, url: str, watching: WitnessView, pace: FailoverTiming, now: Callable[[], int]) -> None:
        self._address, self._prefix = _read_url(url)
        self._holder, self._term = self._prefix + b"holder", self._prefix + b"term"
        self._watching = watching
        self._pace = pace
        self._now = now
        self._seconds = min(max(pace.interval / 1000, MIN_TIMEOUT_SECONDS), MAX_TIMEOUT_SECONDS)
        self._runner: asyncio.Runner | None = None
        self._etcd: Etcd | None = None
        self._lease, self._lease_at = 0, 0

    def exchange(self, wish: WitnessRequest, term: int) -> tuple[Witness, int, int]:
        """Read the witness, and renew, acquire or release it as requested.

        Return its state, the instant before the exchange in ms, and the highest term of another node."""
        begun_at = self._now()
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            found = self._runner.run(self._exchange_within_timeout(wish, term))
        except (QueueError, TimeoutError, KeyError, TypeError, ValueError):
            return Witness.UNREACHABLE, begun_at, 0
        return found, begun_at, self._watching.term

    def close(self) -> None:
        if self._runner is not None:
            if self._etcd is not None:
                self._runner.run(self._etcd.close())
            self._runner.close()
            self._runner = self._etcd = None

    async def _exchange_within_timeout(self, wish: WitnessRequest, term: int) -> Witness:
        if self._etcd is None:
            self._etcd = Etcd(self._address)
        async with asyncio.timeout(self._seconds):
            return await self._exchange(self._etcd, wish, term)

    async def _exchange(self, etcd: Etcd, wish: WitnessRequest, term: int) -> Witness:
        for _ in range(TRIES):
            answer = await etcd.range(self._prefix, prefix_end(self._prefix))
            kept = {one.key: one for one in answer.kvs}
            record = _read(kept.get(self._holder), kept.get(self._term))
            found, after = self._watching.exchange(record, wish, term, self._now())
            if after is None or await self._write(etcd, kept.get(self._holder), after):
                return found
        raise Unavailable("the witness changed repeatedly")

    async def _write(self, etcd: Etcd, kept: Any, after: WitnessRecord) -> bool:
        """Write the record; return False if another node has written meanwhile."""
        if not self._lease or self._now() - self._lease_at > self._pace.timeout:
            granted_at = self._now()
            seconds = -(-self._pace.timeout * LEASE_TIMEOUTS // 1000)
            self._lease, self._lease_at = (await etcd.grant(seconds))[0], granted_at
        value = dumps({"holder": after.holder, "renewal": after.renewal})
        puts = [put(self._holder, value, self._lease), put(self._term, str(after.term).encode())]
        try:
            answer = await etcd.txn(
                [mod_revision_equals(self._holder, kept.mod_revision if kept is not None else 0)], puts
            )
        except QueueError:
            self._lease = 0  # the lease may have expired
            raise
        return bool(answer.succeeded)


def _read(holder: Any, term: Any) -> WitnessRecord | None:
    """Return the record; None if there is no term key, so the pair has never used this witness."""
    if term is None:
        return None
    highest = int(term.value)
    if holder is None:
        return WitnessRecord(UNKNOWN_HOLDER, highest, 0)
    document = loads(holder.value)
    return WitnessRecord(str(document["holder"]), highest, int(document["renewal"]))


def _read_url(url: str) -> tuple[EtcdAddress, bytes]:
    """Parse ``etcd://HOST:PORT,HOST:PORT/NAME?OPTIONS``. Several pairs may share a cluster under different names."""
    hosts, _, options = url.partition("?")
    cluster, _, name = hosts.rpartition("/")
    try:
        address = read_address(cluster + ("?" + options if options else ""), os.environ)
    except BadInput as error:
        raise BadInput(str(error).removeprefix("store: "), field="pair_witness") from None
    return replace(address, timeout=min(address.timeout, MIN_TIMEOUT_SECONDS)), f"{ROOT}{name}/".encode()
