"""Transaction of the SQLite store: its parts, and the methods of ``core.ports.Transaction`` that they implement."""

from collections.abc import Callable

from yirangmq.stores.sqlite.cache import StoreCache
from yirangmq.stores.sqlite.deletions import MessageDeletions
from yirangmq.stores.sqlite.inserts import MessageInserts
from yirangmq.stores.sqlite.reads import MessageLookup
from yirangmq.stores.sqlite.run_operations import RunOperations
from yirangmq.stores.sqlite.statements import StatementExecutor
from yirangmq.stores.sqlite.tables import tables_of
from yirangmq.stores.sqlite.writes import StateChanges


class SqliteTransaction:
    """Transaction of the SQLite store (``core.ports.Transaction``).

    The parts are made once and used by one transaction after the other, because making them takes longer than a small
    transaction. The store makes new ones after a transaction that failed: its parts may hold uncommitted changes."""

    def __init__(self, db: StatementExecutor, cache: StoreCache) -> None:
        tables = tables_of(db, cache)
        queues, self._contents, self._runs = tables.queues, tables.contents, tables.runs
        lookup, changes = MessageLookup(tables), StateChanges(tables)
        deletions = MessageDeletions(tables, lookup, changes)
        self._queues = queues
        self._run_operations = RunOperations(tables, changes)
        self._inserts = MessageInserts(tables)
        # The methods of the parts are attributes: a method here that calls them would be one more call.
        self.places, self.policy, self.counts, self.totals = queues.places, queues.policy, queues.counts, queues.totals
        self.policy_text, self.set_policy = queues.policy_text, queues.set_policy
        self.queues, self.queue_count, self.has_queue = queues.queues, queues.queue_count, queues.has_queue
        self.queues_with_policy = queues.queues_with_policy
        self.note, self.notes, self.set_note = queues.note, queues.notes, queues.set_note
        self.by_seq, self.by_id, self.group_first = lookup.by_seq, lookup.by_id, lookup.group_first
        self.envelopes, self.failures, self.scan = lookup.envelopes, lookup.failures, lookup.scan
        self.due, self.next_due = lookup.due, lookup.next_due
        self.swap = changes.swap
        self.heads, self.rewrite, self.forget, self.trim = (
            deletions.heads,
            deletions.rewrite,
            deletions.forget,
            deletions.trim,
        )
        self.add, self.key_holders, self.hold_keys = (
            self._inserts.add,
            self._inserts.key_holders,
            self._inserts.hold_keys,
        )
        self.free_keys, self.forget_keys = self._inserts.free_keys, self._inserts.forget_keys

    def run_operations(self) -> RunOperations:
        return self._run_operations

    def delete_queue(self, queue: str) -> None:
        self._runs.write()
        self._queues.delete_queue(queue)

    # -- for the store --------------------------------------------------------------------------------------------

    def start(self, on_add: Callable[[], None] | None) -> "SqliteTransaction":
        """Return a new transaction with the parts of this one, and drop what they keep for the duration of one: callers
        tell transactions apart by identity. ``on_add`` is called before messages are added, if the store has a reserve
        that may be in use."""
        self._queues.deltas.clear()
        self._run_operations.offered.clear()
        inserts = self._inserts
        inserts.on_add, inserts.has_added, inserts.written = on_add, False, 0
        started = SqliteTransaction.__new__(SqliteTransaction)
        started.__dict__ = self.__dict__
        return started

    def flush(self) -> None:
        """Write the ready runs and counters that were kept in memory; called once, just before the commit."""
        self._runs.write()
        self._contents.sweep()
        self._queues.write_counters()

    @property
    def has_added(self) -> bool:
        """True if the transaction was to add messages."""
        return self._inserts.has_added

    @property
    def written(self) -> int:
        """Bytes of payloads and headers that the transaction published."""
        return self._inserts.written
