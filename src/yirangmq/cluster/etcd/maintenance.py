"""Maintenance of etcd members: status, alarms, defragmentation, moving the leader; sizes from ``/metrics``.

A call to a particular member opens a connection to it, so it does not belong on the fast path. A member that is
defragmented answers no other call meanwhile.

``/metrics`` is read without credentials. It shows the quota, which the status omits before etcd 3.6, and the sizes,
which only root may ask for where etcd has users. Sizes are bytes; 0 means that they are not shown."""

import asyncio
import math
import ssl
import urllib.request
from typing import Any, NamedTuple

from yirangmq.cluster.etcd import channel
from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.etcd.channel import ClusterConnection

# -- status and maintenance calls --------------------------------------------------------------------------------------

DEFRAGMENT_SECONDS = 120.0
NOSPACE = 1
GET, DISARM = 0, 2


class MemberStatus(NamedTuple):
    """Status of one member, as it reports it. Sizes in bytes."""

    endpoint: str
    id: int
    name: str
    version: str
    leads: bool
    learner: bool
    size: int
    in_use: int
    quota: int
    revision: int
    term: int
    errors: tuple[str, ...]

    @property
    def is_full(self) -> bool:
        """The NOSPACE alarm is raised: etcd rejects writes until the alarm is lifted."""
        return any("NOSPACE" in error for error in self.errors)


class Maintenance:
    """Maintenance calls to a cluster and to its single members."""

    def __init__(self, address: EtcdAddress, connection: ClusterConnection) -> None:
        self._address = address
        self._connection = connection

    async def members(self) -> list[Any]:
        return list((await self._connection.call(channel.MEMBERS, channel.MEMBERS.request(), repeat=True)).members)

    async def health(self, endpoint: str, names: dict[int, str] | None = None) -> MemberStatus:
        found = await self._call_member(endpoint, channel.STATUS, channel.STATUS.request())
        me = found.header.member_id
        return MemberStatus(
            endpoint=endpoint,
            id=me,
            name=(names or {}).get(me, ""),
            version=found.version,
            leads=found.leader == me,
            learner=found.isLearner,
            size=found.dbSize,
            in_use=found.dbSizeInUse,
            quota=found.dbSizeQuota,
            revision=found.header.revision,
            term=found.raftTerm,
            errors=tuple(found.errors),
        )

    async def alarms(self) -> list[Any]:
        return list((await self._connection.call(channel.ALARM, channel.ALARM.request(action=GET), repeat=True)).alarms)

    async def disarm(self, alarm: Any) -> None:
        request = channel.ALARM.request(action=DISARM, memberID=alarm.memberID, alarm=alarm.alarm)
        await self._connection.call(channel.ALARM, request, repeat=True)

    async def defragment(self, endpoint: str) -> None:
        """Defragment one member; it answers no other call meanwhile."""
        await self._call_member(endpoint, channel.DEFRAGMENT, channel.DEFRAGMENT.request(), DEFRAGMENT_SECONDS)

    async def move_leader(self, endpoint: str, member: int) -> None:
        """Move etcd's leadership to another member. ``endpoint`` must be the current leader."""
        await self._call_member(endpoint, channel.MOVE_LEADER, channel.MOVE_LEADER.request(targetID=member))

    async def _call_member(self, endpoint: str, method: channel.Method, request: Any, seconds: float = 0) -> Any:
        only = EtcdAddress(
            endpoints=(endpoint,),
            tls=self._address.tls,
            user=self._address.user,
            password=self._address.password,
            timeout=self._address.timeout,
        )
        connection = ClusterConnection(only)
        try:
            return await connection.call(method, request, seconds=seconds)
        finally:
            await connection.close()


# -- sizes from the metrics page ---------------------------------------------------------------------------------------

SECONDS = 2.0
MAX_PAGE_BYTES = 4 * 1024**2
NAMES = {
    b"etcd_server_quota_backend_bytes": "quota",
    b"etcd_mvcc_db_total_size_in_bytes": "size",
    b"etcd_mvcc_db_total_size_in_use_in_bytes": "in_use",
}


class Gauges(NamedTuple):
    """Sizes from the metrics page, in bytes; 0: not shown."""

    quota: int = 0
    size: int = 0
    in_use: int = 0


def read_gauges(page: bytes) -> Gauges:
    found: dict[str, int] = {}
    for line in page.splitlines():
        name, _, value = line.partition(b" ")
        if name in NAMES:
            try:
                number = float(value)
            except ValueError:
                continue
            found[NAMES[name]] = int(number) if math.isfinite(number) and number > 0 else 0
    return Gauges(**found)


async def fetch_gauges(endpoint: str, address: EtcdAddress) -> Gauges:
    """Read the metrics page of a member. Return zeros if it is at another address or requires a client certificate."""
    if address.tls is not None and address.tls.cert is not None:
        return Gauges()
    return await asyncio.to_thread(_fetch, endpoint, address)


def _fetch(endpoint: str, address: EtcdAddress) -> Gauges:
    try:
        context = None
        if address.tls is not None:
            authority = address.tls.ca
            context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        scheme = "http" if context is None else "https"
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(f"{scheme}://{endpoint}/metrics", timeout=SECONDS) as answer:
            return read_gauges(answer.read(MAX_PAGE_BYTES))
    except (OSError, ValueError):
        return Gauges()
