"""The way out when etcd is full: compact, defragment one member after the other, the leader last, then lift the
alarm. Knows: that order, which matters. Does not know: queues. Lifting the alarm first would raise it again at once:
the quota counts the file."""

from collections.abc import Callable
from typing import NamedTuple

from yirangmq.cluster.address import Address
from yirangmq.cluster.etcd import Etcd
from yirangmq.cluster.lines import Compacted
from yirangmq.cluster.maintenance import Maintenance
from yirangmq.core.errors import StoreFull

PROBE_SECONDS = 10


class Repair(NamedTuple):
    compacted_to: int
    before: dict[str, int]
    after: dict[str, int]
    lifted: int
    full: bool
    """Still: what is in it is in use."""


async def repair(etcd: Etcd, address: Address, say: Callable[[str], None]) -> Repair:
    upkeep = Maintenance(address, etcd.lines)
    members = [await upkeep.health(endpoint) for endpoint in address.endpoints]
    revision = max(member.revision for member in members)
    say(f"compacts to revision {revision}")
    try:
        await etcd.compact(revision)
    except Compacted:
        say("was compacted already")
    after: dict[str, int] = {}
    for member in sorted(members, key=lambda one: one.leads):
        say(f"defragments {member.endpoint}")
        await upkeep.defragment(member.endpoint)
        after[member.endpoint] = (await upkeep.health(member.endpoint)).size
    alarms = await upkeep.alarms()
    for alarm in alarms:
        await upkeep.disarm(alarm)
    before = {member.endpoint: member.size for member in members}
    return Repair(revision, before, after, len(alarms), await _is_full(etcd))


async def _is_full(etcd: Etcd) -> bool:
    """A lease is a write like any other."""
    try:
        lease, _ = await etcd.grant(PROBE_SECONDS)
    except StoreFull:
        return True
    await etcd.revoke(lease)
    return False
