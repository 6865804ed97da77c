"""When a queue's lead should come to this node: all its consumers have been here for a while, and there is nothing to
do that a change would delay. Knows: the keys of a queue, as they are from time to time. Does not know: elections."""

import asyncio

from yirangmq.cluster.etcd import Etcd, get
from yirangmq.cluster.keys import Definition, Keys, Registration
from yirangmq.core.errors import Unavailable

LOOKS = 3
"""In the time that it must have been so."""
MOST_CONSUMERS = 64
Consumers = tuple[tuple[bytes, int], ...]
"""Their keys, and the revision at which each was made."""


async def becomes_near(etcd: Etcd, keys: Keys, node: str, seconds: float) -> None:
    """Until it has been so for that long."""
    loop = asyncio.get_running_loop()
    known: Consumers = ()
    since = loop.time()
    while True:
        await asyncio.sleep(seconds / LOOKS)
        try:
            found = await _all_here(etcd, keys, node.encode())
        except Unavailable:
            found = ()
        if not found or found != known:
            known, since = found, loop.time()
        elif loop.time() - since >= seconds:
            return


async def _all_here(etcd: Etcd, keys: Keys, node: bytes) -> Consumers:
    """The consumers, if each of them is at this node and nothing lies in the inbox, in line or with any of them."""
    ranges = [get(start, end, limit=MOST_CONSUMERS + 2, keys_only=True) for start, end in keys.watched()]
    line = get(keys.base + b"0", keys.ordered_end, limit=1, keys_only=True)
    answer = await etcd.txn([], [line, *ranges], repeat=True)
    waiting, *others = (one.response_range.kvs for one in answer.responses)
    found = [(kv.key, keys.meaning(kv.key)) for kvs in others for kv in kvs]
    homes = [key for key, meaning in found if isinstance(meaning, Registration)]
    is_idle = not waiting and all(isinstance(meaning, Registration | Definition) for _, meaning in found)
    if not is_idle or not 0 < len(homes) <= MOST_CONSUMERS:
        return ()
    answer = await etcd.txn([], [get(key) for key in homes], repeat=True)
    kvs = [kv for one in answer.responses for kv in one.response_range.kvs]
    return tuple((kv.key, kv.create_revision) for kv in kvs) if all(kv.value == node for kv in kvs) else ()
