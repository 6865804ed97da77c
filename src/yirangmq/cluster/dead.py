"""The dead letters of a queue in etcd: the message under ``dead/``, the reason under ``why/``. Knows: those keys.
Does not know: how a message gets there."""

from yirangmq.cluster.etcd import Etcd, created_at, delete, end_of
from yirangmq.cluster.keys import Keys
from yirangmq.core.errors import BadInput
from yirangmq.format.json_codec import loads

MOST = 50


async def sweep_dead(etcd: Etcd, keys: Keys, fence: int, now: int) -> int:
    """Drop those whose retention is over, the oldest first; how many. Those that are parked stay."""
    start = keys.base + b"why/"
    found = await etcd.range(start, end_of(start), limit=MOST)
    over = [kv.key for kv in found.kvs if 0 < _due(kv.value) <= now]
    gone = []
    for key in over:
        dead = keys.base + b"dead/" + key.removeprefix(start) + b"/"
        gone += [delete(key), delete(dead, end_of(dead))]
    if gone:
        await etcd.txn([created_at(keys.leader, fence)], gone, repeat=True)
    return len(over)


def _due(text: bytes) -> int:
    try:
        return int(loads(text)["due"])
    except (BadInput, ValueError, KeyError, TypeError):
        return 0
