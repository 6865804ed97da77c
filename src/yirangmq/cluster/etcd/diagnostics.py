"""Health checks of an etcd cluster, and the repair of one that is full.

The checks cover releases of etcd with known faults, sizes against the quota, alarms and the number of members. They
also cover kept history, leader clocks that are ahead, and the latency of a write. They change nothing but a lease,
which they grant and revoke.

The repair compacts, defragments one member after the other with the leader last, and then lifts the alarm. Lifting
the alarm first would raise it again immediately, because the quota counts the size of the file."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from yirangmq.cluster.admin import views
from yirangmq.cluster.etcd.address import Address
from yirangmq.cluster.etcd.channel import FULL as FULL_TEXT
from yirangmq.cluster.etcd.channel import Compacted
from yirangmq.cluster.etcd.client import Etcd
from yirangmq.cluster.etcd.maintenance import NOSPACE, Health, Maintenance, ask_gauges
from yirangmq.cluster.etcd.quota import chosen_quota
from yirangmq.core.errors import NotAllowed, QueueError, StoreFull

# -- health checks -----------------------------------------------------------------------------------------------------

FINE, WARN, FAIL = "ok", "warn", "fail"
LEAST = {(3, 4): 22, (3, 5): 6}
"""The first release of each line without a known loss of data or a crash while it is defragmented."""
GUARDED = {(3, 4): 42, (3, 5): 28, (3, 6): 9}
"""The first release of each line in which a nested transaction cannot bypass a user's role."""
TIGHT = {(3, 4): 44, (3, 5): 30, (3, 6): 11}
"""The first release of each line in which a put in a transaction does not reveal a value that the user may not
read."""
LOSES = ((3, 5, 0), (3, 5, 2))
NEARLY_FULL, FULL = 0.6, 0.9
SLOW_MS = 50.0
LONG_HISTORY = 200_000
CLOCKS_MS = 5_000


class Sign(NamedTuple):
    """Finding of a health check: level (``FINE``, ``WARN`` or ``FAIL``), code and text."""

    level: str
    code: str
    text: str


async def examine(etcd: Etcd, address: Address, quota: int, now: int) -> list[Sign]:
    upkeep = Maintenance(address, etcd.lines)
    members: list[Health] = []
    signs: list[Sign] = []
    for endpoint in address.endpoints:
        try:
            members.append(await upkeep.health(endpoint))
        except NotAllowed:
            signs.append(Sign(WARN, "not_told", f"{endpoint} does not tell us its state; ask as a user with role root"))
        except QueueError as error:
            signs.append(Sign(FAIL, "unreachable", str(error)))
    signs += count(await upkeep.members(), members)
    for member in members:
        signs += judge_version(member.version, member.endpoint, bool(address.user))
        shown = member.quota or (await ask_gauges(member.endpoint, address)).quota
        signs += judge_size(member, chosen_quota(shown, quota))
    signs += [judge_alarm(alarm.alarm, alarm.memberID) for alarm in await upkeep.alarms()]
    signs += await _history(etcd)
    signs += await _speed(etcd)
    signs += [
        Sign(WARN, "clocks_differ", f"{one.queue}: its leader's clock is {(one.at - now) / 1000:.0f} s before ours")
        for one in await views(etcd)
        if one.at - now > CLOCKS_MS
    ]
    return signs


def read_version(text: str) -> tuple[int, int, int]:
    parts = [int(part) if part.isdecimal() else 0 for part in text.split("-")[0].split(".")[:3]]
    major, minor, patch = (*parts, 0, 0, 0)[:3]
    return major, minor, patch


def judge_version(text: str, endpoint: str, has_users: bool) -> list[Sign]:
    major, minor, patch = version = read_version(text)
    line, signs = (major, minor), []
    if LOSES[0] <= version <= LOSES[1]:
        signs.append(Sign(FAIL, "loses_data", f"{endpoint}: etcd {text} loses what it confirmed; take 3.5.6 or later"))
    elif line < (3, 4) or patch < LEAST.get(line, 0):
        signs.append(Sign(FAIL, "known_bad", f"{endpoint}: etcd {text} has known faults; take 3.4.22, 3.5.6 or later"))
    if has_users and (line < (3, 4) or patch < GUARDED.get(line, 0)):
        signs.append(Sign(FAIL, "roles_void", f"{endpoint}: in etcd {text} users pass by their roles; {_take(line)}"))
    elif has_users and patch < TIGHT.get(line, 0):
        what = "users who may only write a key can read what was there, and use leases of others"
        signs.append(Sign(WARN, "roles_leak", f"{endpoint}: in etcd {text} {what}; {_take(line)}"))
    if line == (3, 4):
        signs.append(Sign(WARN, "end_of_life", f"{endpoint}: etcd {text} is of a line that is no longer mended"))
    return signs or [Sign(FINE, "version", f"{endpoint}: etcd {text}")]


def _take(line: tuple[int, int]) -> str:
    """Format the advice which release to use: of this line, or of the next line if this one was never fixed."""
    major, minor = line if line in TIGHT else (3, 5)
    return f"take {major}.{minor}.{TIGHT[major, minor]} or later"


def judge_size(member: Health, quota: int) -> list[Sign]:
    part = member.size / quota
    level = FAIL if part >= FULL else WARN if part >= NEARLY_FULL else FINE
    text = f"{member.endpoint}: {member.size >> 20} MiB of {quota >> 20} ({part:.0%}), {member.in_use >> 20} in use"
    return [Sign(level, "size", text)]


def judge_alarm(kind: int, member: int) -> Sign:
    if kind == NOSPACE:
        return Sign(FAIL, "alarm", f"member {member:x}: {FULL_TEXT}")
    return Sign(FAIL, "alarm", f"member {member:x} says that its data is damaged; take it out and make it anew")


def count(known: Sequence[object], seen: Sequence[Health]) -> list[Sign]:
    total, leaders = len(known), sum(member.leads for member in seen)
    signs = [] if leaders == 1 or len(seen) < total else [Sign(FAIL, "no_leader", f"{leaders} members say they lead")]
    if total == 1:
        return [*signs, Sign(WARN, "alone", "one member: its machine's end is the end of the queues")]
    if total % 2 == 0:
        return [*signs, Sign(WARN, "even", f"{total} members bear no more losses than {total - 1}")]
    return [*signs, Sign(FINE, "members", f"{total} members, {(total - 1) // 2} may be lost")]


async def _history(etcd: Etcd) -> list[Sign]:
    revision = int((await etcd.range(b"/q/", limit=1, keys_only=True)).header.revision)
    if revision > LONG_HISTORY:
        try:
            await etcd.range(b"/q/", limit=1, keys_only=True, revision=revision - LONG_HISTORY)
            text = f"the last {LONG_HISTORY} changes are all kept; set --auto-compaction-retention or --compact"
            return [Sign(WARN, "history", text)]
        except Compacted:
            pass
    return [Sign(FINE, "history", f"revision {revision}, old history goes or is short")]


async def _speed(etcd: Etcd) -> list[Sign]:
    """Measure the latency of a write by granting leases: like a message, a lease is on the disks of a majority."""
    taken = []
    for _ in range(5):
        begun = time.perf_counter()
        try:
            lease, _ = await etcd.grant(10)
        except StoreFull as error:
            return [Sign(FAIL, "full", str(error))]
        taken.append((time.perf_counter() - begun) * 1000)
        await etcd.revoke(lease)
    middle = sorted(taken)[len(taken) // 2]
    return [Sign(WARN if middle > SLOW_MS else FINE, "latency", f"a write takes {middle:.1f} ms")]


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
    """Check by granting a lease, which is a write."""
    try:
        lease, _ = await etcd.grant(PROBE_SECONDS)
    except StoreFull:
        return True
    await etcd.revoke(lease)
    return False
