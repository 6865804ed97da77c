"""How the members are, and what an operator asks of them. Knows: etcd's upkeep calls, each member by its own address.
Does not know: queues. Not for the fast path: it opens a connection to each member it asks."""

from typing import Any, NamedTuple

from yirangmq.cluster import wire
from yirangmq.cluster.address import Address
from yirangmq.cluster.lines import Lines

DEFRAGMENT_SECONDS = 120.0
NOSPACE = 1
GET, DISARM = 0, 2


class Health(NamedTuple):
    """One member as it says of itself."""

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
        """It takes nothing until somebody lifts the alarm."""
        return any("NOSPACE" in error for error in self.errors)


class Maintenance:
    def __init__(self, address: Address, lines: Lines) -> None:
        self._address = address
        self._lines = lines

    async def members(self) -> list[Any]:
        return list((await self._lines.call(wire.MEMBERS, wire.MEMBERS.request(), repeat=True)).members)

    async def health(self, endpoint: str, names: dict[int, str] | None = None) -> Health:
        found = await self._at(endpoint, wire.STATUS, wire.STATUS.request())
        me = found.header.member_id
        return Health(
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
        return list((await self._lines.call(wire.ALARM, wire.ALARM.request(action=GET), repeat=True)).alarms)

    async def disarm(self, alarm: Any) -> None:
        request = wire.ALARM.request(action=DISARM, memberID=alarm.memberID, alarm=alarm.alarm)
        await self._lines.call(wire.ALARM, request, repeat=True)

    async def defragment(self, endpoint: str) -> None:
        """That member answers nobody meanwhile."""
        await self._at(endpoint, wire.DEFRAGMENT, wire.DEFRAGMENT.request(), DEFRAGMENT_SECONDS)

    async def move_leader(self, endpoint: str, member: int) -> None:
        """``endpoint`` is that of the member which leads now."""
        await self._at(endpoint, wire.MOVE_LEADER, wire.MOVE_LEADER.request(targetID=member))

    async def _at(self, endpoint: str, method: wire.Method, request: Any, seconds: float = 0) -> Any:
        only = Address(
            endpoints=(endpoint,),
            tls=self._address.tls,
            user=self._address.user,
            password=self._address.password,
            timeout=self._address.timeout,
        )
        lines = Lines(only)
        try:
            return await lines.call(method, request, seconds=seconds)
        finally:
            await lines.close()
