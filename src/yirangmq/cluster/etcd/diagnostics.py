"""Health checks of an etcd cluster, and the repair of one that is full.

The checks cover releases of etcd with known faults, sizes against the quota, alarms and the number of members. They
also cover kept history, leader clocks that are ahead, keys that no node acts on, and the latency of a write. They
change nothing but a lease, which they grant and revoke.

The repair compacts, defragments one member after the other with the leader last, and then lifts the alarm. Lifting
the alarm first would raise it again immediately, because the quota counts the size of the file."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from yirangmq.cluster.admin import queue_statuses
from yirangmq.cluster.discovery import find_ignored_keys, is_served
from yirangmq.cluster.etcd.address import EtcdAddress
from yirangmq.cluster.etcd.channel import FULL as FULL_TEXT
from yirangmq.cluster.etcd.channel import RevisionCompacted
from yirangmq.cluster.etcd.client import Etcd
from yirangmq.cluster.etcd.maintenance import NOSPACE, Maintenance, MemberStatus, fetch_gauges
from yirangmq.cluster.etcd.quota import effective_quota
from yirangmq.core.errors import NotAllowed, QueueError, StoreFull

# -- health checks -----------------------------------------------------------------------------------------------------

OK, WARN, FAIL = "ok", "warn", "fail"
MIN_RELEASE = {(3, 4): 22, (3, 5): 6}
"""The first release of each line without a known loss of data or a crash while it is defragmented."""
MIN_RELEASE_FOR_ROLES = {(3, 4): 42, (3, 5): 28, (3, 6): 9}
"""The first release of each line in which a nested transaction cannot bypass a user's role."""
MIN_RELEASE_FOR_PRIVACY = {(3, 4): 44, (3, 5): 30, (3, 6): 11}
"""The first release of each line in which a put in a transaction does not reveal a value that the user may not
read."""
DATA_LOSS_RELEASES = ((3, 5, 0), (3, 5, 2))
NEARLY_FULL, FULL = 0.6, 0.9
SLOW_MS = 50.0
LONG_HISTORY = 200_000
MAX_CLOCK_AHEAD_MS = 5_000


class HealthFinding(NamedTuple):
    """Finding of a health check: level (``OK``, ``WARN`` or ``FAIL``), code and text."""

    level: str
    code: str
    text: str


async def run_checks(etcd: Etcd, address: EtcdAddress, quota: int, now: int) -> list[HealthFinding]:
    upkeep = Maintenance(address, etcd.connection)
    members: list[MemberStatus] = []
    findings: list[HealthFinding] = []
    for endpoint in address.endpoints:
        try:
            members.append(await upkeep.health(endpoint))
        except NotAllowed:
            findings.append(
                HealthFinding(WARN, "not_told", f"{endpoint} does not report its state; use a user with the role root")
            )
        except QueueError as error:
            findings.append(HealthFinding(FAIL, "unreachable", str(error)))
    findings += check_members(await upkeep.members(), members)
    for member in members:
        findings += check_version(member.version, member.endpoint, bool(address.user))
        shown = member.quota or (await fetch_gauges(member.endpoint, address)).quota
        findings += check_size(member, effective_quota(shown, quota))
    findings += [alarm_finding(alarm.alarm, alarm.memberID) for alarm in await upkeep.alarms()]
    findings += await _check_history(etcd)
    findings += await _check_latency(etcd)
    findings += [
        HealthFinding(
            WARN, "clocks_differ", f"{one.queue}: its leader's clock is {(one.at - now) / 1000:.0f} s before ours"
        )
        for one in await queue_statuses(etcd)
        if one.at - now > MAX_CLOCK_AHEAD_MS
    ]
    ignored = await find_ignored_keys(etcd, served=await is_served(etcd))
    findings += [HealthFinding(WARN, "ignored_key", f"{one.key}: {one.reason}") for one in ignored]
    return findings


def read_version(text: str) -> tuple[int, int, int]:
    parts = [int(part) if part.isdecimal() else 0 for part in text.split("-")[0].split(".")[:3]]
    major, minor, patch = (*parts, 0, 0, 0)[:3]
    return major, minor, patch


def check_version(text: str, endpoint: str, has_users: bool) -> list[HealthFinding]:
    major, minor, patch = version = read_version(text)
    line, findings = (major, minor), []
    if DATA_LOSS_RELEASES[0] <= version <= DATA_LOSS_RELEASES[1]:
        findings.append(
            HealthFinding(FAIL, "loses_data", f"{endpoint}: etcd {text} loses what it confirmed; take 3.5.6 or later")
        )
    elif line < (3, 4) or patch < MIN_RELEASE.get(line, 0):
        findings.append(
            HealthFinding(FAIL, "known_bad", f"{endpoint}: etcd {text} has known faults; take 3.4.22, 3.5.6 or later")
        )
    if has_users and (line < (3, 4) or patch < MIN_RELEASE_FOR_ROLES.get(line, 0)):
        findings.append(
            HealthFinding(
                FAIL, "roles_void", f"{endpoint}: in etcd {text} users pass by their roles; {_upgrade_advice(line)}"
            )
        )
    elif has_users and patch < MIN_RELEASE_FOR_PRIVACY.get(line, 0):
        what = "users with write permission only can read the previous value of a key and use leases of other users"
        findings.append(
            HealthFinding(WARN, "roles_leak", f"{endpoint}: in etcd {text} {what}; {_upgrade_advice(line)}")
        )
    if line == (3, 4):
        findings.append(
            HealthFinding(WARN, "end_of_life", f"{endpoint}: etcd {text} is a version without further fixes")
        )
    return findings or [HealthFinding(OK, "version", f"{endpoint}: etcd {text}")]


def _upgrade_advice(line: tuple[int, int]) -> str:
    """Format the advice which release to use: of this line, or of the next line if this one was never fixed."""
    major, minor = line if line in MIN_RELEASE_FOR_PRIVACY else (3, 5)
    return f"take {major}.{minor}.{MIN_RELEASE_FOR_PRIVACY[major, minor]} or later"


def check_size(member: MemberStatus, quota: int) -> list[HealthFinding]:
    part = member.size / quota
    level = FAIL if part >= FULL else WARN if part >= NEARLY_FULL else OK
    text = f"{member.endpoint}: {member.size >> 20} MiB of {quota >> 20} ({part:.0%}), {member.in_use >> 20} in use"
    return [HealthFinding(level, "size", text)]


def alarm_finding(kind: int, member: int) -> HealthFinding:
    if kind == NOSPACE:
        return HealthFinding(FAIL, "alarm", f"member {member:x}: {FULL_TEXT}")
    return HealthFinding(
        FAIL, "alarm", f"member {member:x} says that its data is damaged; take it out and make it anew"
    )


def check_members(known: Sequence[object], seen: Sequence[MemberStatus]) -> list[HealthFinding]:
    total, leaders = len(known), sum(member.leads for member in seen)
    findings = (
        []
        if leaders == 1 or len(seen) < total
        else [HealthFinding(FAIL, "no_leader", f"{leaders} members report that they lead")]
    )
    if total == 1:
        return [*findings, HealthFinding(WARN, "alone", "one member: its machine's end is the end of the queues")]
    if total % 2 == 0:
        return [*findings, HealthFinding(WARN, "even", f"{total} members bear no more losses than {total - 1}")]
    return [*findings, HealthFinding(OK, "members", f"{total} members, {(total - 1) // 2} may be lost")]


async def _check_history(etcd: Etcd) -> list[HealthFinding]:
    revision = int((await etcd.range(b"/q/", limit=1, keys_only=True)).header.revision)
    if revision > LONG_HISTORY:
        try:
            await etcd.range(b"/q/", limit=1, keys_only=True, revision=revision - LONG_HISTORY)
            text = f"the last {LONG_HISTORY} changes are all retained; set --auto-compaction-retention or --compact"
            return [HealthFinding(WARN, "history", text)]
        except RevisionCompacted:
            pass
    return [HealthFinding(OK, "history", f"revision {revision}, old history goes or is short")]


async def _check_latency(etcd: Etcd) -> list[HealthFinding]:
    """Measure the latency of a write by granting leases: like a message, a lease is on the disks of a majority."""
    taken = []
    for _ in range(5):
        begun = time.perf_counter()
        try:
            lease, _ = await etcd.grant(10)
        except StoreFull as error:
            return [HealthFinding(FAIL, "full", str(error))]
        taken.append((time.perf_counter() - begun) * 1000)
        await etcd.revoke(lease)
    middle = sorted(taken)[len(taken) // 2]
    return [HealthFinding(WARN if middle > SLOW_MS else OK, "latency", f"a write takes {middle:.1f} ms")]


# -- repair of a full cluster ------------------------------------------------------------------------------------------

PROBE_SECONDS = 10


class Repair(NamedTuple):
    """Result of a repair; sizes in bytes by endpoint."""

    compacted_to: int
    before: dict[str, int]
    after: dict[str, int]
    lifted: int
    full: bool
    """Still full after the repair: its data is in use."""
    left_out: tuple[str, ...]
    """Names of the members that the address does not name: they were not defragmented."""

    @property
    def freed(self) -> dict[str, int]:
        """Bytes freed by endpoint. A small file may be larger after its defragmentation: that frees 0."""
        return {endpoint: max(0, size - self.after[endpoint]) for endpoint, size in self.before.items()}


async def repair(etcd: Etcd, address: EtcdAddress, report: Callable[[str], None]) -> Repair:
    upkeep = Maintenance(address, etcd.connection)
    members = [await upkeep.health(endpoint) for endpoint in address.endpoints]
    revision = max(member.revision for member in members)
    report(f"compacts to revision {revision}")
    try:
        await etcd.compact(revision, physical=True)
    except RevisionCompacted:
        report("was compacted already")
    after: dict[str, int] = {}
    for member in sorted(members, key=lambda one: one.leads):
        report(f"defragments {member.endpoint}")
        await upkeep.defragment(member.endpoint)
        after[member.endpoint] = (await upkeep.health(member.endpoint)).size
    alarms = await upkeep.alarms()
    for alarm in alarms:
        await upkeep.disarm(alarm)
    before = {member.endpoint: member.size for member in members}
    done = {member.id for member in members}
    left_out = tuple(sorted(one.name or f"{one.ID:x}" for one in await upkeep.members() if one.ID not in done))
    return Repair(revision, before, after, len(alarms), await _is_full(etcd), left_out)


async def _is_full(etcd: Etcd) -> bool:
    """Check by granting a lease, which is a write."""
    try:
        lease, _ = await etcd.grant(PROBE_SECONDS)
    except StoreFull:
        return True
    await etcd.revoke(lease)
    return False
