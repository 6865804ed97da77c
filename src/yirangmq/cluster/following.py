"""What is under a prefix, and then what changes there: list, then watch, and list again when the history in between is
gone. Knows: that order. Does not know: what the keys mean."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from yirangmq.cluster.etcd import Etcd
from yirangmq.cluster.lines import Compacted


class Changes(NamedTuple):
    """``anew``: everything that is there now, as puts; what was known and is not among them is gone."""

    anew: bool
    events: list[Any]
    revision: int


async def follow(etcd: Etcd, key: bytes, end: bytes, *, deletes: bool = True) -> AsyncIterator[Changes]:
    while True:
        try:
            found: list[Any] = []
            head = await etcd.range(key, end, limit=1, keys_only=True)
            revision = int(head.header.revision)
            async for page in etcd.pages(key, end, revision=revision):
                found += page
            yield Changes(True, found, revision)
            async for events in etcd.watch(key, end, revision=revision + 1, deletes=deletes):
                yield Changes(False, events, events[-1].kv.mod_revision)
        except Compacted:
            continue
