"""Paged lists of queues with their status rows, and long answers produced in slices.

A slice is a job in the next commit; requests of other clients are served between two slices. No request waits for more
than one slice, however long the answer is.

The parameters of a list are the same everywhere: at most ``limit`` rows, of queues after ``cursor`` with names that
begin with ``prefix`` and contain ``find``, ordered by ``sort``. The answer has the ``cursor`` of the next page, "" at
the end. Ordering by a count reads the counts of all queues and keeps a page of them in memory."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import Any

from yirangmq.admin.registry import Done, MethodArguments
from yirangmq.broker import queries
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.waiting_consumers import WaitingConsumers
from yirangmq.core.consumer_registry import SILENT, ConsumerRegistry
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import Counts
from yirangmq.core.ports import Clock, Transaction

# -- answers in slices -------------------------------------------------------------------------------------------------

Slice = Callable[[Transaction], Any]
Slices = Generator[Slice | None, Any, Any]
"""Generator of a long answer. It yields the work of each slice and receives its result; a yielded None lets other
requests run first. The return value is the answer."""


def run_slices(committer: GroupCommitter, steps: Slices, done: Done) -> None:
    """Run the slices one after another. Call ``done(answer, error)`` once, on the loop thread."""

    def run_next(value: Any, error: QueueError | None) -> None:
        if error is not None:
            steps.close()
            done(None, error)
            return
        try:
            work = steps.send(value)
        except StopIteration as end:
            done(end.value, None)
        except QueueError as problem:
            done(None, problem)
        else:
            if work is None:
                committer.later(0, lambda: run_next(None, None))
            else:
                committer.submit(work, run_next)

    run_next(None, None)


# -- lists of queues ---------------------------------------------------------------------------------------------------

PAGE = 1000
"""Default and maximum of rows per page."""
ROWS_PER_SLICE = 50
"""Status rows per slice, at about 25 µs per row."""
NAMES_PER_SLICE = 500
"""Queues per slice whose name is searched or whose counts are read for the order, at about 3 µs per queue."""
BY_NAME = "queue"
SORTS = (BY_NAME, "backlog", *queries.STATES, *queries.TOTALS)
Rates = Callable[[str], Any]
ConsumerCount = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Parameters of a list of queues."""

    queue: str | None = None
    limit: int = PAGE
    cursor: str = ""
    prefix: str = ""
    find: str = ""
    sort: str = BY_NAME
    """A name of ``SORTS``. A count with the prefix "-" sorts in descending order."""
    is_visible: Callable[[str], bool] | None = None
    """Predicate of the queues that the client may see, or None for all."""

    @property
    def key(self) -> str:
        return self.sort.removeprefix("-")

    def wants(self, name: str) -> bool:
        return self.find in name.lower() and (self.is_visible is None or self.is_visible(name))


def read_query(values: MethodArguments) -> ListQuery:
    is_visible: Any = values.take("sees", None)
    if is_visible is not None and not callable(is_visible):  # the HTTP API passes it; a client cannot send a callable
        raise BadInput("not a known field", field="sees")
    query = ListQuery(
        values.optional_queue(),
        values.whole("limit", PAGE, least=1, most=PAGE),
        values.text("cursor", most=300),
        values.text("prefix", most=200),
        values.text("find", most=200).lower(),
        values.text("sort", BY_NAME, most=30),
        is_visible,
    )
    if query.key not in SORTS or query.sort == f"-{BY_NAME}":
        raise BadInput(f"must be one of {', '.join(SORTS)}; a '-' in front reverses the order", field="sort")
    return query


def count_consumers(registry: ConsumerRegistry, waiting: WaitingConsumers) -> ConsumerCount:
    """Return a function from a queue to the number of its consumers, by their ids.

    Counted are those that reported the queue within 10 s, and those that wait on a connection: subscriptions, lease
    requests and webhooks. A client that leases now and then without waiting is not counted; it is in the rates. The
    cost grows with the number of consumers, not of queues."""
    reported: dict[str, set[str]] = {}
    for entry in registry.entries():
        if entry["state"] != SILENT:
            for queue in entry["queues"]:
                reported.setdefault(queue, set()).add(entry["consumerId"])

    def count(queue: str) -> int:
        return len({waiter.consumer for waiter in waiting.waiters.get(queue, ())} | reported.get(queue, set()))

    return count


def page(clock: Clock, query: ListQuery, rates: Rates, consumers: ConsumerCount) -> Slices:
    """Return ``{"overdue", "queues", "cursor", "all"}``: the rows of a page, and the totals of all queues."""
    now = clock.now_ms()
    if query.queue is None:
        names, following = yield from (_by_name(query) if query.key == BY_NAME else _by_count(query))
    else:
        names, following = [query.queue] if query.is_visible is None or query.is_visible(query.queue) else [], ""
    rows: list[dict[str, Any]] = []
    for begin in range(0, len(names), ROWS_PER_SLICE):
        some = names[begin : begin + ROWS_PER_SLICE]
        rows += yield partial(queries.rows, wanted=some, now=now)
    if query.queue is None:
        rows = [row for row in rows if row["exists"]]  # a queue may be deleted after its name was read
    for row in rows:
        row["rates"] = rates(row["queue"])
        row["consumers"] = consumers(row["queue"])
    is_overdue = yield lambda transaction: queries.is_overdue(transaction, now)
    everything = (yield queries.queue_totals) if query.is_visible is None else _sum_rows(rows)
    return {"overdue": is_overdue, "queues": rows, "cursor": following, "all": everything}


def _sum_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return totals like ``queries.queue_totals``, of the rows that a client with a filter may see."""
    return {
        "queues": len(rows),
        "backlog": sum(row["ready"] + row["delayed"] + row.get("held", 0) for row in rows),
        **{state: sum(row[state] for row in rows) for state in queries.STATES},
        "totals": {name: sum(row["totals"][name] for row in rows) for name in queries.TOTALS},
    }


def _by_name(query: ListQuery) -> Slices:
    """Return the names of the page and the cursor of the next page."""
    found: list[str] = []
    after, step = query.cursor, NAMES_PER_SLICE if query.find or query.is_visible else query.limit + 1
    while len(found) <= query.limit:
        some: list[str] = yield partial(_names, after=after, limit=step, prefix=query.prefix)
        found += [name for name in some if query.wants(name)]
        if len(some) < step:
            break
        after = some[-1]
    names = found[: query.limit]
    return names, names[-1] if len(found) > query.limit else ""


def _by_count(query: ListQuery) -> Slices:
    """Return the names of the page and the cursor of the next page, ordered by a count.

    The counts of all queues are read, slice by slice; at most a page of them is kept in memory. The cursor is the
    count and the name of the last queue of the page."""
    turn = -1 if query.sort.startswith("-") else 1
    behind = _read_cursor(query.cursor, turn)
    best: list[tuple[int, str]] = []
    after = ""
    while True:
        counted = yield partial(_counted, after=after, query=query)
        some = [(turn * _count_of(counts, query.key), name) for name, counts in counted if query.wants(name)]
        best = nsmallest(query.limit + 1, [*best, *(one for one in some if behind is None or one > behind)])
        if len(counted) < NAMES_PER_SLICE:
            break
        after = counted[-1][0]
    shown = best[: query.limit]
    following = f"{shown[-1][0] * turn}:{shown[-1][1]}" if len(best) > query.limit else ""
    return [name for _, name in shown], following


def _names(transaction: Transaction, after: str, limit: int, prefix: str) -> list[str]:
    return transaction.queues(after, limit, prefix)


def _counted(transaction: Transaction, after: str, query: ListQuery) -> list[tuple[str, Counts]]:
    return [(name, transaction.counts(name)) for name in transaction.queues(after, NAMES_PER_SLICE, query.prefix)]


def _count_of(counts: Counts, key: str) -> int:
    return counts.ready + counts.delayed + counts.held if key == "backlog" else int(getattr(counts, key))


def _read_cursor(text: str, turn: int) -> tuple[int, str] | None:
    if not text:
        return None
    count, _, name = text.partition(":")
    try:
        return turn * int(count), name
    except ValueError:
        raise BadInput(f"{text!r} is not a cursor of this listing", field="cursor") from None
