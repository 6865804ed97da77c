"""Paged lists of queues with their status rows, and long answers made in slices.

A slice is a job in the next commit; requests of other clients are served between two slices. No request waits for more
than a slice, however long the answer.

The parameters of a list are the same everywhere: at most ``limit`` rows, of queues after ``cursor`` with names that
begin with ``prefix`` and contain ``find``, ordered by ``sort``. The answer has the ``cursor`` of the next page, "" at
the end. Ordering by a count reads the counts of all queues and keeps a page of them in memory."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import Any

from yirangmq.admin.registry import Done, Values
from yirangmq.broker import queries
from yirangmq.broker.group_commit import Desk
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import Counts
from yirangmq.core.ports import Clock, Transaction

# -- answers in slices -------------------------------------------------------------------------------------------------

Slice = Callable[[Transaction], Any]
Slices = Generator[Slice | None, Any, Any]
"""Yields the work of each slice and is sent its result; None lets others go first. What it returns is the answer."""


def in_slices(desk: Desk, steps: Slices, done: Done) -> None:
    """``done(answer, error)`` once, on the desk's thread."""

    def go_on(value: Any, error: QueueError | None) -> None:
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
                desk.later(0, lambda: go_on(None, None))
            else:
                desk.submit(work, go_on)

    go_on(None, None)


# -- lists of queues ---------------------------------------------------------------------------------------------------

PAGE = 1000
"""Rows of a page where nothing else is said, and at most."""
ROWS_PER_SLICE = 50
"""About 25 µs each."""
NAMES_PER_SLICE = 500
"""Queues that are searched or counted for their order in one slice, at about 3 µs each."""
BY_NAME = "queue"
SORTS = (BY_NAME, "backlog", *queries.STATES, *queries.TOTALS)
Rates = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class ListQuery:
    queue: str | None = None
    limit: int = PAGE
    cursor: str = ""
    prefix: str = ""
    find: str = ""
    sort: str = BY_NAME
    """With "-" in front the largest come first."""
    sees: Callable[[str], bool] | None = None
    """Which queues the client may hear of; None: all."""

    @property
    def key(self) -> str:
        return self.sort.removeprefix("-")

    def wants(self, name: str) -> bool:
        return self.find in name.lower() and (self.sees is None or self.sees(name))


def read_query(values: Values) -> ListQuery:
    sees: Any = values.take("sees", None)
    if sees is not None and not callable(sees):  # it comes from a protocol of ours, never from a client
        raise BadInput("not a known field", field="sees")
    query = ListQuery(
        values.some_queue(),
        values.whole("limit", PAGE, least=1, most=PAGE),
        values.text("cursor", most=300),
        values.text("prefix", most=200),
        values.text("find", most=200).lower(),
        values.text("sort", BY_NAME, most=30),
        sees,
    )
    if query.key not in SORTS or query.sort == f"-{BY_NAME}":
        raise BadInput(f"must be one of {', '.join(SORTS)}; '-' in front turns a count round", field="sort")
    return query


def page(clock: Clock, query: ListQuery, rates: Rates) -> Slices:
    """``{"overdue", "queues", "cursor", "all"}``: the rows of a page, and what all queues are together."""
    now = clock.now_ms()
    if query.queue is None:
        names, following = yield from (_by_name(query) if query.key == BY_NAME else _by_count(query))
    else:
        names, following = [query.queue] if query.sees is None or query.sees(query.queue) else [], ""
    rows: list[dict[str, Any]] = []
    for begin in range(0, len(names), ROWS_PER_SLICE):
        some = names[begin : begin + ROWS_PER_SLICE]
        rows += yield partial(queries.rows, wanted=some, now=now)
    if query.queue is None:
        rows = [row for row in rows if row["exists"]]  # one may have gone since its name was read
    for row in rows:
        row["rates"] = rates(row["queue"])
    is_overdue = yield lambda transaction: queries.is_overdue(transaction, now)
    everything = (yield queries.together) if query.sees is None else _together(rows)
    return {"overdue": is_overdue, "queues": rows, "cursor": following, "all": everything}


def _together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """As ``overview.together``, of the rows that a client with a filter is shown."""
    return {
        "queues": len(rows),
        "backlog": sum(row["ready"] + row["delayed"] + row.get("held", 0) for row in rows),
        **{state: sum(row[state] for row in rows) for state in queries.STATES},
        "totals": {name: sum(row["totals"][name] for row in rows) for name in queries.TOTALS},
    }


def _by_name(query: ListQuery) -> Slices:
    """The names of the page, and the cursor of the next one."""
    found: list[str] = []
    after, step = query.cursor, NAMES_PER_SLICE if query.find or query.sees else query.limit + 1
    while len(found) <= query.limit:
        some: list[str] = yield partial(_names, after=after, limit=step, prefix=query.prefix)
        found += [name for name in some if query.wants(name)]
        if len(some) < step:
            break
        after = some[-1]
    names = found[: query.limit]
    return names, names[-1] if len(found) > query.limit else ""


def _by_count(query: ListQuery) -> Slices:
    """All queues are counted, slice by slice; in memory are no more than a page. Its cursor is the count and the name
    of the last one."""
    turn = -1 if query.sort.startswith("-") else 1
    behind = _read_cursor(query.cursor, turn)
    best: list[tuple[int, str]] = []
    after = ""
    while True:
        counted = yield partial(_counted, after=after, query=query)
        some = [(turn * _worth(counts, query.key), name) for name, counts in counted if query.wants(name)]
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


def _worth(counts: Counts, key: str) -> int:
    return counts.ready + counts.delayed + counts.held if key == "backlog" else int(getattr(counts, key))


def _read_cursor(text: str, turn: int) -> tuple[int, str] | None:
    if not text:
        return None
    count, _, name = text.partition(":")
    try:
        return turn * int(count), name
    except ValueError:
        raise BadInput(f"{text!r} is not a cursor of this listing", field="cursor") from None
