"""Objects that every request touches keep to the number of attributes that CPython 3.11 looks up fastest."""

import asyncio
from pathlib import Path

from yirangmq.broker.context import TransactionContext
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.clock import SystemClock, TimeOrderedIds
from yirangmq.stores.memory import MemoryStore
from yirangmq.stores.sqlite.server_store import open_served_store

MOST = 29
"""Of an instance; with more, each access is a lookup in a dict that is its own."""


def test_committer_has_no_more_attributes_than_are_looked_up_fast() -> None:
    clock, loop = SystemClock(), asyncio.new_event_loop()
    try:
        desk = GroupCommitter(
            MemoryStore(), TransactionContext(clock, TimeOrderedIds()), clock, loop.call_soon, loop.call_later
        )
        assert len(vars(desk)) <= MOST
    finally:
        loop.close()


def test_served_sqlite_store_has_no_more_attributes_than_are_looked_up_fast(tmp_path: Path) -> None:
    store = open_served_store(tmp_path / "queue.db", reserve_bytes=1024 * 1024)
    try:
        assert all(len(vars(part)) <= MOST for part in (store.file, store.committer))
    finally:
        store.close()
