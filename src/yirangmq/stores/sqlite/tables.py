"""Tables of a store inside its transactions: the parts that lookups, changes and inserts share."""

from typing import NamedTuple

from yirangmq.stores.sqlite.cache import StoreCache
from yirangmq.stores.sqlite.payloads import Contents
from yirangmq.stores.sqlite.queue_table import QueueTable
from yirangmq.stores.sqlite.runs import Runs
from yirangmq.stores.sqlite.statements import StatementExecutor


class Tables(NamedTuple):
    """The tables of one connection, with the cache that they share."""

    db: StatementExecutor
    cache: StoreCache
    queues: QueueTable
    contents: Contents
    runs: Runs


def tables_of(db: StatementExecutor, cache: StoreCache) -> Tables:
    contents = Contents(db, cache.contents)
    runs = Runs(db, cache.tails, cache.recent_payloads, cache.leased_batches, contents)
    return Tables(db, cache, QueueTable(db, cache), contents, runs)
