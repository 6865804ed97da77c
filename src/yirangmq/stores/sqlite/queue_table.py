"""Queue table of the SQLite store: message numbers, queue names, policies, notes and counters.

Counters are summed in memory and written once, just before the commit."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from yirangmq.core import validation
from yirangmq.core.message import Counts, Message, sum_of
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.format.json_codec import loads
from yirangmq.stores.sqlite import sql, statements
from yirangmq.stores.sqlite.cache import MAX_CACHED_POLICIES, StoreCache
from yirangmq.stores.sqlite.statements import COUNTED, Statement, StatementExecutor

RESERVED_AHEAD = 1000
"""Message numbers reserved in advance, so that few commits write the last number. A process that exits leaves a gap."""


class QueueTable:
    """Queue table: message numbers, queue names, counters, policies and notes inside a transaction."""

    def __init__(self, db: StatementExecutor, cache: StoreCache) -> None:
        self._db = db
        self._cache = cache
        self.deltas: dict[int, defaultdict[str, int]] = {}
        """Changes of the counters by queue number that are not written yet."""

    # -- numbers and names ----------------------------------------------------------------------------------------

    def places(self, count: int) -> int:
        cached = self._cache
        if cached.last + count > cached.reserved:
            self._reserve(count)
        first = cached.last + 1
        cached.last += count
        return first

    def _reserve(self, count: int) -> None:
        """Reserve message numbers. If no other process has reserved any since, the rest of the last reservation is used
        first, so that runs stay contiguous."""
        cached = self._cache
        mark = self.value(sql.LAST_NUMBER)
        if mark != cached.reserved:
            cached.last = mark
        cached.reserved = cached.last + count + RESERVED_AHEAD
        self._db.execute(statements.RESERVE, (cached.reserved,))

    def value(self, statement: Statement, *bindings: Any) -> Any:
        """Return the first column of the first row, or None if there is no row."""
        row = next(self._db.execute(statement, bindings), None)
        return None if row is None else row[0]

    def number(self, name: str) -> int | None:
        number: int | None = self._cache.numbers.get(name)
        if number is None:
            number = self.value(sql.QUEUE_BY_NAME, name)
            if number is not None:
                self._cache.add_number(name, number)
        return number

    def ensure(self, name: str) -> int:
        """Return the number of a queue; create the queue if it does not exist."""
        number = self._cache.numbers.get(name) or self.number(name)
        if number is None:
            number = int(self.value(statements.ADD_QUEUE, name))
            self._cache.note_queue(name, number)
        return number

    def name(self, number: int) -> str:
        name = self._cache.names.get(number)
        if name is None:
            name = self._cache.names[number] = str(self.value(sql.QUEUE_NAME, number))
        return name

    def message(self, row: Sequence[Any]) -> Message:
        return sql.message_of(row, self.name(row[1]))

    # -- counters -------------------------------------------------------------------------------------------------

    def deltas_of(self, queue: int) -> defaultdict[str, int]:
        deltas = self.deltas.get(queue)
        if deltas is None:
            deltas = self.deltas[queue] = defaultdict(int)
        return deltas

    def write_counters(self) -> None:
        """Write the counters that were kept in memory; called once, just before the commit."""
        totals = self._cache.totals
        for queue, deltas in self.deltas.items():
            if deltas.keys() == statements.OF_NEW:
                published, ready, size = deltas["published"], deltas["ready"], deltas["bytes"]
                if totals is not None:
                    totals["published"] += published
                    totals["ready"] += ready
                    totals["bytes"] += size
                self._db.execute(statements.ADD_NEW, (published, ready, size, queue))
                continue
            if totals is not None:
                for name, delta in deltas.items():
                    totals[name] += delta
            changed = [deltas.get(name, 0) for name in COUNTED]
            if deltas.get("done", 0) > 0:
                self._cache.finished.add(queue)
            if any(changed):
                self._db.execute(statements.ADD_COUNTS, (*changed, queue))

    def counts(self, queue: str) -> Counts:
        row = self._db.execute(sql.QUEUE_COUNTS, (queue,)).fetchone()
        if row is None:
            return Counts()
        stored = Counts(*row[1:])
        pending: dict[str, int] = self.deltas.get(row[0]) or {}
        return stored._replace(**{name: getattr(stored, name) + delta for name, delta in pending.items()})

    def totals(self) -> Counts:
        cached = self._cache
        if cached.totals is None:
            row = next(iter(self._db.execute(sql.QUEUE_SUMS)))
            cached.totals = dict(zip(COUNTED, row, strict=True))
        return sum_of([Counts(**cached.totals), *(Counts(**deltas) for deltas in self.deltas.values())])

    # -- policies and queues --------------------------------------------------------------------------------------

    def policy(self, queue: str) -> QueuePolicy:
        policy = self._cache.rules.get(queue)
        if policy is None:
            if len(self._cache.rules) >= MAX_CACHED_POLICIES:
                self._cache.forget_policies()
            policy = self._cache.rules[queue] = self._read_policy(queue)
        return policy

    def _read_policy(self, queue: str) -> QueuePolicy:
        text = self.policy_text(queue)
        cached = self._cache.policies.get(queue)
        if cached is None or cached[0] != text:
            cached = (text, read_policy(loads(text.encode()) if text else {}, queue))
            self._cache.policies[queue] = cached
        return cached[1]

    def policy_text(self, queue: str) -> str | None:
        text: str | None = self.value(sql.POLICY, queue)
        return text

    def set_policy(self, queue: str, text: str | None) -> None:
        self._db.execute(statements.SET_POLICY, (text, self.ensure(queue)))
        self._cache.note_policy(queue, text is not None)

    def queues(self, after: str = "", limit: int | None = None, prefix: str = "") -> list[str]:
        most = -1 if limit is None else limit
        return [row[0] for row in self._db.execute(sql.QUEUES, (after, prefix, prefix + "\uffff", most))]

    def queue_count(self) -> int:
        cached = self._cache
        if cached.queue_count is None:
            cached.queue_count = int(self.value(sql.QUEUE_COUNT))
        return cached.queue_count

    def has_queue(self, queue: str) -> bool:
        return queue in self._cache.numbers or self.number(queue) is not None

    def queues_with_policy(self) -> list[str]:
        cached = self._cache
        if cached.queues_with_policy is None:
            rows = self._db.execute(sql.QUEUES_WITH_POLICY)
            cached.queues_with_policy = {row[0] for row in rows}
        return sorted(cached.queues_with_policy)

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with all rows of its messages, except for runs that are not written yet."""
        number = self.number(queue)
        if number is None:
            return
        for statement in (statements.END_CONTENT, *statements.END_QUEUE_ROWS, statements.END_QUEUE):
            self._db.execute(statement, (number,))
        self.deltas.pop(number, None)
        self._cache.forget_queue(queue, number)

    # -- notes ----------------------------------------------------------------------------------------------------

    def note(self, key: str) -> str | None:
        text: str | None = self.value(sql.NOTE, key)
        return text

    def notes(self, prefix: str) -> dict[str, str]:
        return dict(self._db.execute(sql.NOTES, (prefix, prefix + "\uffff")))

    def set_note(self, key: str, text: str | None) -> None:
        validation.check_note(key)
        if text is None:
            self._db.execute(statements.END_NOTE, (key,))
        else:
            self._db.execute(statements.SET_NOTE, (key, text))
