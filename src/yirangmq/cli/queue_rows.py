"""Rows of queues for commands, a page at a time: from a server by its ``status``, or from a store that is open here.

Knows: pages. Does not know: how rows are printed."""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from yirangmq.admin.queue_lists import PAGE
from yirangmq.broker import queries
from yirangmq.broker.queues import Queues
from yirangmq.cli import remote
from yirangmq.cli.screen import Screen
from yirangmq.core import validation
from yirangmq.core.ports import Transaction

SHOWN = 1000
"""Rows that a terminal gets where nothing else is said."""
Row = dict[str, Any]


def queue_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prefix", default="", metavar="TEXT", help="queues whose names begin so")
    parser.add_argument(
        "--limit",
        type=int,
        metavar="COUNT",
        help=f"at most so many queues, in the order of their names (default: {SHOWN}; with --json all)",
    )
    parser.add_argument("--all", action="store_true", help="all of them, however many")


def limit_of(args: argparse.Namespace, screen: Screen) -> int | None:
    """How many rows are wanted; None: all."""
    if args.limit is not None:
        return validation.check_count(args.limit, "--limit", most=10**9)
    return None if args.all or screen.json else SHOWN


def page(queues: Queues, cursor: str = "", prefix: str = "", limit: int = PAGE, queue: str | None = None) -> Row:
    """As a server answers ``status``: ``queues``, ``cursor``, ``all``, ``overdue`` and what a server says of itself."""
    if remote.address_of(queues) is not None:
        found: Row = remote.call(queues, "status", queue=queue, limit=limit, cursor=cursor, prefix=prefix)
        return found
    now = queues.now_ms()

    def work(transaction: Transaction) -> Row:
        chosen = transaction.queues(cursor, limit + 1, prefix) if queue is None else [queue]
        shown = chosen[:limit]
        return {
            "overdue": queries.is_overdue(transaction, now),
            "queues": queries.rows(transaction, shown, now),
            "cursor": shown[-1] if len(chosen) > limit else "",
            "all": queries.together(transaction),
        }

    return queues.read(work)


def rows(queues: Queues, prefix: str = "") -> Iterator[Row]:
    """Every queue's, a page at a time."""
    cursor, is_first = "", True
    while cursor or is_first:
        found = page(queues, cursor, prefix)
        yield from found["queues"]
        cursor, is_first = found["cursor"], False


def first_rows(queues: Queues, limit: int | None, prefix: str = "") -> list[Row]:
    return list(islice(rows(queues, prefix), limit))


def of_queues(queues: Queues, wanted: Sequence[str]) -> list[Row]:
    """Those of these queues."""
    return [row for queue in wanted for row in page(queues, queue=validation.check_queue(queue))["queues"]]


def note_more(screen: Screen, shown: int, all_queues: int, prefix: str) -> None:
    if prefix or shown >= all_queues:
        return
    screen.note(f"{all_queues - shown} more queues; --all shows them, --prefix those whose names begin so")


def counts_of_all(queues: Queues, queue: str | None) -> dict[str, dict[str, int]]:
    """What has passed through each queue, counted in pages: no other process waits for long."""
    found: dict[str, dict[str, int]] = {}
    chosen = queues.queues() if queue is None else [queue]
    for begin in range(0, len(chosen), PAGE):
        found |= queues.read(partial(_totals, some=chosen[begin : begin + PAGE]))
    return found


def _totals(transaction: Transaction, some: Sequence[str]) -> dict[str, dict[str, int]]:
    counted = ((name, transaction.counts(name)) for name in some)
    return {name: {what: getattr(counts, what) for what in queries.TOTALS} for name, counts in counted}
