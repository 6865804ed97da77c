"""Quota of etcd: how many bytes may still be written, and freeing space by compaction and defragmentation.

etcd rejects every write once its file reaches the quota, however little of the file is in use. It keeps rejecting
until an operator lifts the alarm (``cluster.etcd.diagnostics``). A message that is moved and delivered needs its size
twice more before the first copies are gone. So writers take from a budget of bytes first, and wait when it is too
small.

Deleted keys take space until their history is compacted. Compaction leaves holes in the file, which are reused as
far as new values fit; only defragmentation makes the file smaller. One node at a time defragments, under a leased
key."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from yirangmq.cluster.etcd.address import QUOTA, EtcdAddress
from yirangmq.cluster.etcd.channel import RevisionCompacted
from yirangmq.cluster.etcd.client import Etcd, create_revision_equals, put
from yirangmq.cluster.etcd.maintenance import Gauges, Maintenance, MemberStatus, fetch_gauges
from yirangmq.core.errors import NotAllowed, NotFound, QueueError, StoreFull, Unavailable

WRITE_LIMIT_FRACTION = 0.92
"""Fraction of the quota up to which our writes may grow the file."""
COMPACT_FRACTION = 0.8
"""Fraction of the quota from which on the file is compacted, and defragmented if that helps."""
DEFRAGMENT_FRACTION = 0.75
"""Defragmentation helps if less than this fraction of the file is in use."""
BUDGET_DIVISOR = 4
"""Divisor of the free space that may be written between two measurements: other clients write too, pages are never
quite full, and holes may be too small."""
MAX_GROWTH = 2
"""Upper bound of the space that a value takes, as a multiple of its size: a body of 2 kB fills a page of 4 kB."""
MIN_SECONDS = 0.1
SIZES_MAX_AGE_SECONDS = 3.0
"""Minimum age of sizes from the public metrics page before it is read again: the page is long, and a member renders it
for each request."""
QUOTA_MAX_AGE_SECONDS = 300.0
"""Age at which the quota from the metrics page is read again: a restarted member may have another quota, and a member
that did not show it may have been slow."""
UPKEEP = b"/yirangmq/upkeep"
"""Key held by the node that defragments, so that no two members are unavailable at the same time."""
UPKEEP_LEASE = 150
log = logging.getLogger("yirangmq.cluster")


class EtcdQuota:
    """Write budget below etcd's quota.

    ``full`` is the fraction of the quota in use; once the file is nearly as large as the quota, the file size counts.
    Writers call ``take`` before a write. If the budget is too small, they request a measurement with
    ``request_measurement`` and wait for ``measurement_done``. Not thread-safe: used in the event loop of the etcd
    client."""

    def __init__(self) -> None:
        self.full = 0.0
        self.quota = 0
        """Quota in bytes at the last measurement."""
        self.is_full = False
        """etcd has raised its NOSPACE alarm."""
        self.left: float = float("inf")
        """Bytes that may be written before the next measurement."""
        self.taken = 0
        """Bytes that were written since the last measurement."""
        self.measurement_requested = asyncio.Event()
        self.measurement_done = asyncio.Event()

    def record(self, size: int, in_use: int, quota: int, *, is_full: bool = False) -> None:
        """Record a measurement, in bytes. ``is_full``: etcd rejects writes until its alarm is lifted."""
        self.quota, self.is_full, self.taken = quota, is_full, 0
        if is_full:
            self.full, self.left = 1.0, 0.0
            self._notify()
            return
        share = size / quota
        self.full = share if share >= COMPACT_FRACTION else in_use / quota
        holes = max(0, size - in_use)
        to_grow = max(0.0, WRITE_LIMIT_FRACTION * quota - size)
        self.left = (to_grow + holes) / BUDGET_DIVISOR if share < (1 + WRITE_LIMIT_FRACTION) / 2 else 0.0
        self._notify()

    def record_unknown(self) -> None:
        """Record that this user may not read sizes: the budget is unlimited until etcd rejects a write."""
        self.left = float("inf")
        self._notify()

    def take(self, count: int) -> None:
        self.left -= count
        self.taken += count

    @property
    def estimated_fullness(self) -> float:
        """Estimated fraction of the quota in use: the last measurement, and the bytes written since."""
        return self.full + (MAX_GROWTH * self.taken / self.quota if self.quota else 0.0)

    def request_measurement(self) -> None:
        self.measurement_requested.set()

    async def wait(self, seconds: float) -> None:
        """Request a measurement and wait for it, at most ``seconds``."""
        self.request_measurement()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.measurement_done.wait()

    def _notify(self) -> None:
        self.measurement_done.set()
        self.measurement_done = asyncio.Event()


class Upkeep:
    """Background task that measures sizes, compacts history and defragments members.

    With ``compact`` 0 it only measures. ``is_busy`` returns whether this node serves any queue; idle nodes do not
    compact, so that not all nodes do the same work."""

    def __init__(
        self, etcd: Etcd, address: EtcdAddress, quota: int, interval: float, compact: float, is_busy: Callable[[], bool]
    ) -> None:
        self._etcd = etcd
        self._calls = Maintenance(address, etcd.connection)
        self._endpoints = address.endpoints
        self._quota = quota
        self._interval = interval
        self._compact_seconds = compact
        self._is_busy = is_busy
        self._address = address
        self._may_free_space = True
        self._shown: dict[str, tuple[float, Gauges]] = {}
        self.quota = EtcdQuota()
        self.probe = b"/q/"
        """A key that this user may read; every answer carries the current revision."""

    async def run(self) -> None:
        await asyncio.gather(self._measure(), self._compact())

    async def _measure(self) -> None:
        while True:
            try:
                await self._measure_once()
            except NotAllowed:
                self.quota.record_unknown()
                return
            except QueueError:
                pass
            await asyncio.sleep(MIN_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._interval - MIN_SECONDS)):
                    await self.quota.measurement_requested.wait()

    async def _measure_once(self) -> None:
        self.quota.measurement_requested.clear()
        fullest = await self._fullest()
        quota = await self._quota_of(fullest)
        is_tight = fullest.is_full or fullest.size >= COMPACT_FRACTION * quota
        if is_tight and fullest.revision and self._is_busy() and self._compact_seconds and self._may_free_space:
            await self._free_space(fullest, quota)
            fullest = await self._fullest()
        self.quota.record(fullest.size, fullest.in_use or fullest.size, quota, is_full=fullest.is_full)

    async def _fullest(self) -> MemberStatus:
        """Return the fullest reachable member: the first full member stops the whole cluster."""
        asked = await asyncio.gather(*map(self._health, self._endpoints), return_exceptions=True)
        found = [one for one in asked if isinstance(one, MemberStatus)]
        if not found:
            raise next(one for one in asked if isinstance(one, BaseException))
        return max(found, key=lambda one: (one.is_full, one.size))

    async def _health(self, endpoint: str) -> MemberStatus:
        """Return the status of a member; from its public metrics page if this user may not request it."""
        try:
            return await self._calls.health(endpoint)
        except NotAllowed:
            reported = await self._gauges(endpoint, SIZES_MAX_AGE_SECONDS)
            if not reported.size:
                raise
            return status_from_gauges(endpoint, reported)

    async def _gauges(self, endpoint: str, seconds: float) -> Gauges:
        """Return sizes from the metrics page that are at most ``seconds`` old."""
        now = asyncio.get_running_loop().time()
        at, known = self._shown.get(endpoint, (-QUOTA_MAX_AGE_SECONDS, Gauges()))
        if now - at >= (seconds if known.quota else SIZES_MAX_AGE_SECONDS):
            known = await fetch_gauges(endpoint, self._address)
            self._shown[endpoint] = (now, known)
        return known

    async def _quota_of(self, member: MemberStatus) -> int:
        return effective_quota(
            member.quota or (await self._gauges(member.endpoint, QUOTA_MAX_AGE_SECONDS)).quota, self._quota
        )

    async def _free_space(self, fullest: MemberStatus, quota: int) -> None:
        """Compact all history. If the file then has many holes, defragment; lift an alarm once it is below the
        limit."""
        try:
            await self._compact_to(fullest.revision)
            fullest = await self._fullest()
            if fullest.size < COMPACT_FRACTION * quota:
                await self._lift_alarms()
            elif fullest.in_use < DEFRAGMENT_FRACTION * fullest.size:
                await self._defragment_exclusively(quota)
        except NotAllowed:
            self._may_free_space = False
            log.warning("etcd_space_recovery_denied")

    async def _defragment_exclusively(self, quota: int) -> None:
        lease = await self._acquire_upkeep_key()
        if lease is None:
            return
        try:
            await self._defragment(quota)
        finally:
            if lease:
                await self._etcd.revoke(lease)

    async def _acquire_upkeep_key(self) -> int | None:
        """Try to acquire the upkeep key. Return its lease, None if another node holds the key, or 0 if etcd is full and
        rejects the key."""
        try:
            lease, _ = await self._etcd.grant(UPKEEP_LEASE)
            held = await self._etcd.txn([create_revision_equals(UPKEEP, 0)], [put(UPKEEP, b"", lease)])
        except StoreFull:
            return 0
        if held.succeeded:
            return lease
        await self._etcd.revoke(lease)
        return None

    async def _defragment(self, quota: int) -> None:
        members = [await self._calls.health(endpoint) for endpoint in self._endpoints]
        for member in sorted(members, key=lambda one: one.leads):
            log.warning(
                "etcd_defragmentation_started", extra={"values": {"member": member.endpoint, "bytes": member.size}}
            )
            await self._calls.defragment(member.endpoint)
        if (await self._fullest()).size < COMPACT_FRACTION * quota:
            await self._lift_alarms()

    async def _lift_alarms(self) -> None:
        for alarm in await self._calls.alarms():
            await self._calls.disarm(alarm)

    async def _compact(self) -> None:
        """Compact periodically to the revision of one period ago, which our watches have passed long before."""
        if not self._compact_seconds:
            return
        before = 0
        while True:
            try:
                with contextlib.suppress(Unavailable):
                    now = int((await self._etcd.range(self.probe, limit=1, keys_only=True)).header.revision)
                    if before and self._is_busy():
                        await self._compact_to(before)
                    before = now
            except NotAllowed:
                log.warning("etcd_compaction_denied")
                return
            await asyncio.sleep(self._compact_seconds)

    async def _compact_to(self, revision: int) -> None:
        with contextlib.suppress(RevisionCompacted, NotFound):
            await self._etcd.compact(revision)


def effective_quota(reported: int, configured: int) -> int:
    """Choose the quota: the reported one, or a lower configured one. A configured ``QUOTA`` counts as not configured;
    ``reported`` 0 means that no member reported its quota."""
    if not reported:
        return configured
    return reported if configured == QUOTA else min(reported, configured)


def status_from_gauges(endpoint: str, reported: Gauges) -> MemberStatus:
    return MemberStatus(
        endpoint, 0, "", "", leads=False, learner=False, size=reported.size, in_use=reported.in_use,
        quota=reported.quota, revision=0, term=0, errors=(),
    )  # fmt: skip
