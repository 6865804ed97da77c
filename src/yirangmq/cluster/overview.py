"""The queues of a cluster as they are: who leads, how much is where. Knows: the keys. Does not know: how to print."""

from typing import NamedTuple

from yirangmq.cluster.etcd import Etcd, created_at, delete, get
from yirangmq.cluster.following import follow
from yirangmq.cluster.keys import Keys, Registration
from yirangmq.cluster.node import find_queues
from yirangmq.core.errors import BadInput, NotFound, WrongState
from yirangmq.format.json_codec import loads


class View(NamedTuple):
    """One queue. ``line`` counts all in line, ``given`` those of them that a consumer has, ``waiting`` those nobody
    has had yet, ``again`` those that came back; ``at`` is when its leader wrote last, by that node's clock."""

    queue: str
    leader: str
    inbox: int
    line: int
    waiting: int
    given: int
    again: int
    dead: int
    consumers: int
    moved: int
    acked: int
    at: int


async def view(etcd: Etcd, queue: str) -> View:
    """One call, as of one moment."""
    keys = Keys(queue)
    base = keys.base
    counted = [(base + b"0", keys.ordered_end), (base + b"r/", base + b"r0"), (base + b"dead/", base + b"dead0")]
    counted += [(start[:-1] + b"i", end) for start, end in keys.watched()]
    homes = [get(start, start[:-1] + b"d", keys_only=True) for start, _ in keys.watched()]
    looks = [get(keys.leader), get(keys.state), get(keys.policy, count_only=True)]
    looks += [get(start, end, count_only=True) for start, end in counted]
    answer = await etcd.txn([], [*looks, *homes], repeat=True)
    found = [one.response_range for one in answer.responses]
    leader, state = (one.kvs[0].value if one.kvs else b"" for one in found[:2])
    policies, line, notes, dead, *inboxes = (one.count for one in found[2:8])
    under = [keys.meaning(kv.key) for one in found[8:] for kv in one.kvs]
    consumers = sum(isinstance(one, Registration) for one in under)
    kept = _numbers(state)
    return View(
        queue=queue,
        leader=leader.decode("utf-8", "backslashreplace"),
        inbox=sum(inboxes) - policies,
        line=line,
        waiting=kept["next"] - 1 - kept["assigned"] if kept["next"] else 0,
        given=len(under) - consumers,
        again=notes,
        dead=dead,
        consumers=consumers,
        moved=kept["moved"],
        acked=kept["acked"],
        at=kept["at"],
    )


async def views(etcd: Etcd) -> list[View]:
    return [await view(etcd, queue) for queue in await find_queues(etcd)]


async def depose(etcd: Etcd, queue: str) -> str:
    """Take the lead from whoever has it; who that was. The fence makes this safe at any time."""
    keys = Keys(queue)
    held = await etcd.get(keys.leader)
    if held is None:
        raise NotFound(f"nobody leads {queue}", field="queue")
    answer = await etcd.txn([created_at(keys.leader, held.create_revision)], [delete(keys.leader)], repeat=True)
    if not answer.succeeded:
        raise WrongState(f"the leader of {queue} has just changed")
    return str(held.value.decode("utf-8", "backslashreplace"))


async def next_leader(etcd: Etcd, queue: str) -> str:
    """Who leads, as soon as somebody does."""
    async for changes in follow(etcd, Keys(queue).leader, b"", deletes=False):
        for one in changes.events:
            kv = one if changes.anew else one.kv
            return str(kv.value.decode("utf-8", "backslashreplace"))
    raise AssertionError("following does not end by itself")


def _numbers(text: bytes) -> dict[str, int]:
    names = ("next", "assigned", "moved", "acked", "at")
    try:
        kept = loads(text) if text else {}
        return {name: int(kept.get(name, 0)) for name in names}
    except (BadInput, ValueError, TypeError, AttributeError):
        return dict.fromkeys(names, 0)
