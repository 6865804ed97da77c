"""Discovery of queues in etcd, and of keys of clients that no node acts on.

A scan reads the first key of each queue, so its cost grows with the number of queues and not with their messages. A key
is ignored if its queue cannot have that name, or if it is at a place below the queue that has no meaning. For the
second, the gaps between the known places are read: one request for each queue, whatever the queue holds.

``IgnoredKeysMonitor`` repeats the search in a node, logs each ignored key once, and keeps the latest result for metrics
and status."""

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

from yirangmq.cluster.etcd.address import DEFAULT_NAME
from yirangmq.cluster.etcd.client import Etcd, get
from yirangmq.cluster.keys import CONSUMERS, INBOX, POLICY, ROOTS, Keys, printable, queue_of_segment
from yirangmq.cluster.leadership import find_leader
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotAllowed, QueueError

# -- queues ------------------------------------------------------------------------------------------------------------


class IgnoredKey(NamedTuple):
    """A key that no node acts on, in printable form, and the reason."""

    key: str
    reason: str


class QueueScan(NamedTuple):
    """Queues that have any key, and one key of each name that no queue can have. Both are sorted."""

    queues: list[str]
    ignored: list[IgnoredKey]


async def scan_queues(etcd: Etcd) -> QueueScan:
    """Return the dispatched queues. Costs one read per queue, because the scan skips over its other keys."""
    found: set[str] = set()
    ignored: list[IgnoredKey] = []
    for root in ROOTS:
        start, end = root, root[:-1] + b"0"
        while True:
            kvs = (await etcd.range(start, end, limit=1, keys_only=True)).kvs
            if not kvs:
                break
            key = kvs[0].key
            name = key[len(root) :].split(b"/", 1)[0]
            try:
                found.add(queue_of_segment(name))
            except BadInput as error:
                ignored.append(IgnoredKey(printable(key), str(error)))
            # "jobs-dlq" sorts between "jobs" and "jobs/…", so from the bare name the scan advances by one key only.
            start = root + name + b"0" if key.startswith(root + name + b"/") else key + b"\0"
    return QueueScan(sorted(found), ignored)


async def find_queues(etcd: Etcd) -> list[str]:
    return (await scan_queues(etcd)).queues


async def find_dispatched_queues(etcd: Etcd) -> list[str]:
    """Return the queues that nodes of ``cluster serve`` have dispatched: those with a state key."""
    queues = await find_queues(etcd)
    found: list[str] = []
    for at in range(0, len(queues), 50):
        part = queues[at : at + 50]
        answer = await etcd.txn([], [get(Keys(queue).state, keys_only=True) for queue in part], repeat=True)
        found += [queue for queue, one in zip(part, answer.responses, strict=True) if one.response_range.kvs]
    return found


# -- ignored keys ------------------------------------------------------------------------------------------------------

MAX_IGNORED = 1_000
"""Ignored keys that are listed; the search ends there."""
MAX_KEYS_PER_GAP = 5
"""Keys that are listed of one gap between known places: examples, not all."""
_INBOXES = [place + b"/" for place in INBOX]
_CLIENT_PLACES = [b"0", *_INBOXES, *(place + b"/" for place in CONSUMERS)]
"""Places below both roots. Numbers in line have 20 digits, so all of them begin with 0."""
_NODE_PLACES = [b"s", POLICY, b"r/", b"dead/", b"why/"]
"""Places below the short root only. One without a slash is a single key."""


async def is_served(etcd: Etcd) -> bool:
    """Return whether a server serves the inboxes of this etcd; otherwise nodes of ``cluster serve`` dispatch."""
    try:
        leader = await find_leader(etcd, DEFAULT_NAME)
    except NotAllowed:  # the role is older than served stores
        return False
    return leader is not None and bool(leader.forward)


async def find_ignored_keys(etcd: Etcd, *, served: bool) -> list[IgnoredKey]:
    """Return at most ``MAX_IGNORED`` keys that no node acts on, and of them at most ``MAX_KEYS_PER_GAP`` between two
    known places of a queue."""
    scan = await scan_queues(etcd)
    found = list(scan.ignored)
    for queue in scan.queues:
        if len(found) >= MAX_IGNORED:
            break
        try:
            name = validation.check_queue(queue) if served else queue
        except BadInput as error:
            key = printable(ROOTS[0] + queue.encode() + b"/")
            found.append(IgnoredKey(key, f"a served queue cannot have this name: {error}"))
            continue
        found += await _find_misplaced(etcd, name, served)
    return found[:MAX_IGNORED]


async def _find_misplaced(etcd: Etcd, queue: str, served: bool) -> list[IgnoredKey]:
    gaps = [gap for root in ROOTS for gap in _gaps(root + queue.encode(), _places(root, served))]
    reads = [get(start, end, limit=MAX_KEYS_PER_GAP, keys_only=True) for start, end in gaps]
    answer = await etcd.txn([], reads, repeat=True)
    reason = "a served queue has only an inbox in etcd: p/CLIENT/KEY" if served else "no queue uses this key"
    return [IgnoredKey(printable(kv.key), reason) for one in answer.responses for kv in one.response_range.kvs]


def _places(root: bytes, served: bool) -> list[bytes]:
    if served:
        return _INBOXES
    return _CLIENT_PLACES + (_NODE_PLACES if root == ROOTS[0] else [])


def _gaps(queue_key: bytes, places: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the ranges between the places below a queue's key, from its first to its last key."""
    start, gaps = queue_key + b"/", []
    for place in sorted(places):
        first = queue_key + b"/" + place
        gaps.append((start, first))
        is_single_key = place != b"0" and not place.endswith(b"/")
        start = first + b"\0" if is_single_key else first[:-1] + bytes([first[-1] + 1])
    return [*gaps, (start, queue_key + b"0")]


# -- monitor -----------------------------------------------------------------------------------------------------------

SEARCH_SECONDS = 10.0
"""Pause between two searches for ignored keys."""
log = logging.getLogger("yirangmq.cluster")


class IgnoredKeysMonitor:
    """Periodic search for ignored keys, in the loop of its etcd client. ``found`` is the latest result."""

    def __init__(self, etcd: Etcd, *, served: bool) -> None:
        self._etcd = etcd
        self._served = served
        self._logged: set[IgnoredKey] = set()
        self.found: list[IgnoredKey] = []

    async def run(self) -> None:
        while True:
            try:
                self.found = await find_ignored_keys(self._etcd, served=self._served)
            except QueueError as error:
                log.debug("ignored_keys_search_failed", extra={"values": {"error": str(error)}})
            self._log_new()
            await asyncio.sleep(SEARCH_SECONDS)

    def _log_new(self) -> None:
        """Log the keys that were not found before. One that is deleted and put again is logged again."""
        self._logged &= set(self.found)
        for one in self.found:
            if one not in self._logged:
                self._logged.add(one)
                log.warning("etcd_key_ignored", extra={"values": {"key": one.key, "reason": one.reason}})
