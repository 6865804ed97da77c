"""What every part of a batch of work on the queue tables needs: numbers, names, policies, counters.

Counters and the numbers given out are gathered in memory and written once, just before the commit."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import apsw

from yirangmq.core import validation
from yirangmq.core.message import Counts, Message, sum_of
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.format.json_codec import loads
from yirangmq.stores import sqlite_rows as sql
from yirangmq.stores.sqlite_arrivals import Arrivals
from yirangmq.stores.sqlite_content import END_CONTENT, Contents, Row
from yirangmq.stores.sqlite_line import Span
from yirangmq.stores.sqlite_named import Named
from yirangmq.stores.sqlite_runs import Held, Runs

AHEAD = 1000
"""Numbers reserved at once, so that not every commit has to write down the last one given out. A process that ends
leaves a gap."""
MOST_POLICIES = 20_000
"""Policies kept in memory, about 1 KB each. When there are more, all are forgotten and read again as they are used."""
MOST_NUMBERS = 200_000
"""The same for what is remembered of a queue in about 100 bytes: its number, its newest id."""


@dataclass(slots=True)
class Known:
    """What a process remembers between transactions, until another one has written or a transaction has failed."""

    numbers: dict[str, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    policies: dict[str, tuple[str | None, QueuePolicy]] = field(default_factory=dict)
    """Policies and the text they were read from: the text may change, and change back."""
    rules: dict[str, QueuePolicy] = field(default_factory=dict)
    """Policies whose text is known to be the one that is stored."""
    leased: dict[int, Message] = field(default_factory=dict)
    """Cards this process leased out, so that an ack need not read them back. Thrown away with the rest when another
    process has written, or a transaction of ours failed."""
    named: Named = field(default_factory=Named)
    tails: dict[tuple[int, int], Span] = field(default_factory=dict)
    """By queue and rank the last run in line."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    held: dict[int, Held] = field(default_factory=dict)
    """By their first number, batches this process leased out."""
    newest: dict[int, str] = field(default_factory=dict)
    """By queue, an id that none of its messages has a greater one than."""
    contents: list[Row] = field(default_factory=list)
    """Payloads of messages published together, as they were read last."""
    due: tuple[int | None, bool] | None = None
    """The earliest moment at which time has something to do, and whether it has, or had when that was last looked up;
    None: to be looked up."""
    queue_count: int | None = None
    """How many queues there are; None: to be counted."""
    totals: dict[str, int] | None = None
    """The counts of all queues together; None: to be summed up."""
    policied: set[str] | None = None
    """Queues with a policy of their own; None: to be looked up."""
    finished: set[int] = field(default_factory=set)
    """Queues that got done messages since their history was last trimmed."""
    trimmed_to: int = -1
    """The number of the queue up to which the rotation of ``trim`` has come; -1: it has not begun."""
    last: int = 0
    """The last number given out, of those up to ``reserved`` that nobody else gives out."""
    reserved: int = 0


class Ledger:
    def __init__(self, db: apsw.Connection, known: Known) -> None:
        self._db = db
        self._known = known
        self._contents = Contents(db, known.contents)
        self._runs = Runs(db, known.tails, known.arrivals, known.held, self._contents)
        self._deltas: dict[int, defaultdict[str, int]] = {}
        self.written = 0
        """Bytes of payloads and headers that came in."""

    # -- numbers and names ----------------------------------------------------------------------------------------

    def places(self, count: int) -> int:
        known = self._known
        if known.last + count > known.reserved:
            self._reserve(count)
        first = known.last + 1
        known.last += count
        return first

    def _reserve(self, count: int) -> None:
        """What is left of the last reservation is used first if nobody has made one since: runs stay whole."""
        known = self._known
        mark = self._value("SELECT last FROM sequence")
        if mark != known.reserved:
            known.last = mark
        known.reserved = known.last + count + AHEAD
        self._db.execute("UPDATE sequence SET last = ?", (known.reserved,))

    def _value(self, statement: str, *bindings: Any) -> Any:
        """The first column of the first row; None without one."""
        row = next(self._db.execute(statement, bindings), None)
        return None if row is None else row[0]

    def _queue(self, name: str) -> int | None:
        number: int | None = self._known.numbers.get(name)
        if number is None:
            number = self._value("SELECT n FROM queue WHERE name = ?", name)
            if number is not None:
                if len(self._known.numbers) >= MOST_NUMBERS:
                    self._known.numbers.clear()
                self._known.numbers[name] = number
        return number

    def _made_queue(self, name: str) -> int:
        number = self._known.numbers.get(name) or self._queue(name)
        if number is None:
            number = int(self._value("INSERT INTO queue (name) VALUES (?) RETURNING n", name))
            self._known.numbers[name] = number
            if self._known.queue_count is not None:
                self._known.queue_count += 1
        return number

    def _queue_name(self, number: int) -> str:
        name = self._known.names.get(number)
        if name is None:
            name = self._known.names[number] = str(self._value("SELECT name FROM queue WHERE n = ?", number))
        return name

    def _message(self, row: Sequence[Any]) -> Message:
        return sql.message_of(row, self._queue_name(row[1]))

    # -- counters -------------------------------------------------------------------------------------------------

    def _deltas_of(self, queue: int) -> defaultdict[str, int]:
        deltas = self._deltas.get(queue)
        if deltas is None:
            deltas = self._deltas[queue] = defaultdict(int)
        return deltas

    def flush(self) -> None:
        """Write what was kept back and counted up in memory; called once, just before the commit."""
        self._runs.write()
        self._contents.sweep()
        totals = self._known.totals
        for queue, deltas in self._deltas.items():
            if deltas.keys() == sql.OF_NEW:
                published, ready, size = deltas["published"], deltas["ready"], deltas["bytes"]
                if totals is not None:
                    totals["published"] += published
                    totals["ready"] += ready
                    totals["bytes"] += size
                self._db.execute(sql.ADD_NEW, (published, ready, size, queue))
                continue
            if totals is not None:
                for name, delta in deltas.items():
                    totals[name] += delta
            changed = [deltas.get(name, 0) for name in sql.COUNTED]
            if deltas.get("done", 0) > 0:
                self._known.finished.add(queue)
            if any(changed):
                self._db.execute(sql.ADD_COUNTS, (*changed, queue))

    def counts(self, queue: str) -> Counts:
        row = self._db.execute(f"SELECT n, {', '.join(sql.COUNTED)} FROM queue WHERE name = ?", (queue,)).fetchone()
        if row is None:
            return Counts()
        stored = Counts(*row[1:])
        pending: dict[str, int] = self._deltas.get(row[0]) or {}
        return stored._replace(**{name: getattr(stored, name) + delta for name, delta in pending.items()})

    def totals(self) -> Counts:
        known = self._known
        if known.totals is None:
            sums = ", ".join(f"coalesce(sum({name}), 0)" for name in sql.COUNTED)
            row = next(iter(self._db.execute(f"SELECT {sums} FROM queue")))
            known.totals = dict(zip(sql.COUNTED, row, strict=True))
        return sum_of([Counts(**known.totals), *(Counts(**deltas) for deltas in self._deltas.values())])

    # -- policies and queues --------------------------------------------------------------------------------------

    def policy(self, queue: str) -> QueuePolicy:
        policy = self._known.rules.get(queue)
        if policy is None:
            if len(self._known.rules) >= MOST_POLICIES:
                self._known.rules.clear()
                self._known.policies.clear()
            policy = self._known.rules[queue] = self._read_policy(queue)
        return policy

    def _read_policy(self, queue: str) -> QueuePolicy:
        text = self.policy_text(queue)
        known = self._known.policies.get(queue)
        if known is None or known[0] != text:
            known = (text, read_policy(loads(text.encode()) if text else {}, queue))
            self._known.policies[queue] = known
        return known[1]

    def policy_text(self, queue: str) -> str | None:
        text: str | None = self._value("SELECT policy FROM queue WHERE name = ?", queue)
        return text

    def set_policy(self, queue: str, text: str | None) -> None:
        self._db.execute("UPDATE queue SET policy = ? WHERE n = ?", (text, self._made_queue(queue)))
        self._known.rules.pop(queue, None)
        if self._known.policied is not None:
            (self._known.policied.discard if text is None else self._known.policied.add)(queue)

    def queues(self, after: str = "", limit: int | None = None, prefix: str = "") -> list[str]:
        most = -1 if limit is None else limit
        return [row[0] for row in self._db.execute(sql.QUEUES, (after, prefix, prefix + "\uffff", most))]

    def queue_count(self) -> int:
        known = self._known
        if known.queue_count is None:
            known.queue_count = int(self._value("SELECT count(*) FROM queue"))
        return known.queue_count

    def has_queue(self, queue: str) -> bool:
        return queue in self._known.numbers or self._queue(queue) is not None

    def policied(self) -> list[str]:
        known = self._known
        if known.policied is None:
            rows = self._db.execute("SELECT name FROM queue WHERE policy IS NOT NULL")
            known.policied = {row[0] for row in rows}
        return sorted(known.policied)

    def delete_queue(self, queue: str) -> None:
        number = self._queue(queue)
        if number is None:
            return
        self._runs.write()
        self._db.execute(END_CONTENT, (number,))
        for table in ("failure", "message", "life"):  # these are by number; a look at all of them would take long
            self._db.execute(f"DELETE FROM {table} WHERE seq IN (SELECT seq FROM name WHERE queue = ?)", (number,))
        for table in ("name", "ready", "fresh", "batch", "member", "dedup"):
            self._db.execute(f"DELETE FROM {table} WHERE queue = ?", (number,))
        self._db.execute("DELETE FROM queue WHERE n = ?", (number,))
        self._deltas.pop(number, None)
        self._known.leased.clear()
        self._known.named.clear()
        self._known.tails.clear()
        self._known.arrivals.clear()
        self._known.held.clear()
        self._known.contents.clear()
        self._known.newest.clear()
        self._known.due = None
        self._known.numbers.pop(queue, None)
        self._known.names.pop(number, None)
        self._known.policies.pop(queue, None)
        self._known.rules.pop(queue, None)
        self._known.finished.discard(number)
        self._known.totals = None
        if self._known.queue_count is not None:
            self._known.queue_count -= 1
        if self._known.policied is not None:
            self._known.policied.discard(queue)

    # -- notes ----------------------------------------------------------------------------------------------------

    def note(self, key: str) -> str | None:
        text: str | None = self._value("SELECT text FROM note WHERE key = ?", key)
        return text

    def notes(self, prefix: str) -> dict[str, str]:
        return dict(self._db.execute(sql.NOTES, (prefix, prefix + "\uffff")))

    def set_note(self, key: str, text: str | None) -> None:
        validation.check_note(key)
        if text is None:
            self._db.execute("DELETE FROM note WHERE key = ?", (key,))
        else:
            self._db.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", (key, text))
