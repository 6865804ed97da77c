"""Rows of queues for several commands, page by page: from a server's ``status``, or from the store that is open here.

Also the options that select queues, and the texts of rates and ages."""

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from yirangmq.admin.queue_lists import PAGE
from yirangmq.broker import queries
from yirangmq.broker.queues import Queues
from yirangmq.cli import arguments, connection
from yirangmq.cli.arguments import count_text
from yirangmq.cli.output import Screen
from yirangmq.core import validation
from yirangmq.core.consumer_registry import SILENT
from yirangmq.core.ports import Transaction

SHOWN = 1000
"""Default maximum of rows on a terminal."""
Row = dict[str, Any]


def queue_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prefix", default="", metavar="TEXT", help="only queues whose names have this prefix")
    arguments.limit(parser, f"at most this many queues, by name (default: {SHOWN}; with --json all)")
    parser.add_argument("--all", action="store_true", help="all of them, however many")


def limit_of(args: argparse.Namespace, screen: Screen) -> int | None:
    """Return the maximum number of rows, or None for all."""
    if args.limit is not None:
        return validation.check_count(args.limit, "--limit", most=10**9)
    return None if args.all or screen.json else SHOWN


def page(queues: Queues, cursor: str = "", prefix: str = "", limit: int = PAGE, queue: str | None = None) -> Row:
    """Return a page of rows as ``status`` does: ``queues``, ``cursor``, ``all``, ``overdue``. A server adds its own
    facts."""
    if connection.address_of(queues) is not None:
        found: Row = connection.call(queues, "status", queue=queue, limit=limit, cursor=cursor, prefix=prefix)
        return found
    now = queues.now_ms()

    def work(transaction: Transaction) -> Row:
        chosen = transaction.queues(cursor, limit + 1, prefix) if queue is None else [queue]
        shown = chosen[:limit]
        return {
            "overdue": queries.is_overdue(transaction, now),
            "queues": queries.rows(transaction, shown, now),
            "cursor": shown[-1] if len(chosen) > limit else "",
            "all": queries.queue_totals(transaction),
        }

    return queues.read(work)


def rows(queues: Queues, prefix: str = "") -> Iterator[Row]:
    """Yield the rows of all queues, reading one page at a time."""
    cursor, is_first = "", True
    while cursor or is_first:
        found = page(queues, cursor, prefix)
        yield from found["queues"]
        cursor, is_first = found["cursor"], False


def first_rows(queues: Queues, limit: int | None, prefix: str = "") -> list[Row]:
    return list(islice(rows(queues, prefix), limit))


def rows_of_queues(queues: Queues, wanted: Sequence[str]) -> list[Row]:
    """Return the rows of the named queues."""
    return [row for queue in wanted for row in page(queues, queue=validation.check_queue(queue))["queues"]]


def note_more(screen: Screen, shown: int, all_queues: int, prefix: str) -> None:
    if prefix or shown >= all_queues:
        return
    screen.note(
        f"{count_text(all_queues - shown, 'more queue')}; --all shows them, --prefix those whose names begin so"
    )


def count_consumers(queues: Queues, rows: Sequence[Row]) -> dict[str, int | None]:
    """Return the number of consumers of each queue: as the server counts them, or those that report to this store."""
    if connection.address_of(queues) is not None:
        return {row["queue"]: row.get("consumers") for row in rows}
    found: dict[str, int | None] = dict.fromkeys((row["queue"] for row in rows), 0)
    for consumer in queues.consumer_list():
        for queue in consumer["queues"] if consumer["state"] != SILENT else ():
            found[queue] = (found.get(queue) or 0) + 1
    return found


# -- texts -------------------------------------------------------------------------------------------------------------


def rate_text(value: float | None) -> str | None:
    """Format messages per second."""
    if value is None:
        return None
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def age_text(seconds: float | None) -> str | None:
    """Format an age in its largest unit, such as 45s, 12m, 3h or 5d."""
    if seconds is None:
        return None
    for unit, size, limit in (("s", 1, 60), ("m", 60, 3600), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds // 86_400)}d"
