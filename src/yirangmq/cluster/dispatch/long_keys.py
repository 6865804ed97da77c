"""Second copy of a queue's line under ``/queue/QUEUE/``, for clients that watch the long spelling.

A queue has it while the key ``/queue/QUEUE`` exists. The dispatcher then puts each message that it moves into line
under both spellings, and removes both, in the transactions that it makes anyway; only the bytes grow. Messages that
were in line before are not copied. ``/q/QUEUE/NUMBER/NAME`` stays the one that counts: nothing is read from the second
copy.

``purge_long_line`` removes copies without a message in line: all of them after the key was deleted, and those that a
leader of an older version left behind."""

from typing import Any

from yirangmq.cluster.dispatch.recovery import LeadershipLost
from yirangmq.cluster.etcd.client import Etcd, create_revision_equals, delete
from yirangmq.cluster.keys import Keys

MAX_DELETES = 100
"""Deletes in one transaction."""


async def purge_long_line(etcd: Etcd, keys: Keys, fence: int, *, keep: bool) -> None:
    """Delete second copies: all, or with ``keep`` those without a message in line. Raise ``LeadershipLost`` if this
    node does not lead.

    Call it before the dispatcher moves or removes messages. Costs two reads for 500 copies."""
    start, end = keys.long_line
    async for page in etcd.pages(start, end, keys_only=True):
        found = [(kv.key, stands) for kv in page if (stands := keys.in_long_line(kv.key)) is not None]
        if not found:
            continue
        in_line = await _keys_in_line(etcd, keys, found[0][1][0], found[-1][1][0]) if keep else set()
        surplus = [delete(key) for key, stands in found if keys.ordered(*stands) not in in_line]
        for at in range(0, len(surplus), MAX_DELETES):
            await _commit(etcd, keys, fence, surplus[at : at + MAX_DELETES])


async def _keys_in_line(etcd: Etcd, keys: Keys, first: int, last: int) -> set[bytes]:
    start, end = keys.from_index(first), keys.from_index(last + 1)
    return {kv.key async for page in etcd.pages(start, end, keys_only=True) for kv in page}


async def _commit(etcd: Etcd, keys: Keys, fence: int, operations: list[Any]) -> None:
    answer = await etcd.txn([create_revision_equals(keys.leader, fence)], operations, repeat=True)
    if not answer.succeeded:
        raise LeadershipLost(keys.queue)
