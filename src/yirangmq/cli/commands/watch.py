"""Commands ``top``, ``watch`` and ``metrics``; pages of queue rows that several commands use.

Rows come from a server's ``status``, or from transactions of a store that is open here. Without a server, rates and
events are computed from the changes between two snapshots."""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from yirangmq.admin.queue_lists import PAGE
from yirangmq.broker import queries
from yirangmq.broker.queue_api import QueueStore
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import count_text, format_duration
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.table import TableColumn, render
from yirangmq.clock import SystemClock
from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.ports import Transaction
from yirangmq.format.envelope import iso
from yirangmq.observe import prometheus
from yirangmq.observe.metrics import Metrics

# -- pages of queue rows -----------------------------------------------------------------------------------------------

SHOWN = 1000
"""Default maximum of rows on a terminal."""
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
    """Return the maximum number of rows, or None for all."""
    if args.limit is not None:
        return validation.check_count(args.limit, "--limit", most=10**9)
    return None if args.all or screen.json else SHOWN


def page(queues: QueueStore, cursor: str = "", prefix: str = "", limit: int = PAGE, queue: str | None = None) -> Row:
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

    return connection.local_store(queues).read(work)


def rows(queues: QueueStore, prefix: str = "") -> Iterator[Row]:
    """Yield the rows of all queues, reading one page at a time."""
    cursor, is_first = "", True
    while cursor or is_first:
        found = page(queues, cursor, prefix)
        yield from found["queues"]
        cursor, is_first = found["cursor"], False


def first_rows(queues: QueueStore, limit: int | None, prefix: str = "") -> list[Row]:
    return list(islice(rows(queues, prefix), limit))


def rows_of_queues(queues: QueueStore, wanted: Sequence[str]) -> list[Row]:
    """Return the rows of the named queues."""
    return [row for queue in wanted for row in page(queues, queue=validation.check_queue(queue))["queues"]]


def note_more(screen: Screen, shown: int, all_queues: int, prefix: str) -> None:
    if prefix or shown >= all_queues:
        return
    screen.note(f"{all_queues - shown} more queues; --all shows them, --prefix those whose names begin so")


def counts_of_all(queues: QueueStore, queue: str | None) -> dict[str, dict[str, int]]:
    """Return the totals of each queue. They are read in pages, so that no other process waits for long."""
    found: dict[str, dict[str, int]] = {}
    chosen = queues.queues() if queue is None else [queue]
    for begin in range(0, len(chosen), PAGE):
        found |= queues.read(partial(_totals, some=chosen[begin : begin + PAGE]))
    return found


def _totals(transaction: Transaction, some: Sequence[str]) -> dict[str, dict[str, int]]:
    queue_counts = ((name, transaction.counts(name)) for name in some)
    return {name: {what: getattr(counts, what) for what in queries.TOTALS} for name, counts in queue_counts}


# -- options of top, watch and metrics ---------------------------------------------------------------------------------

POLL_SECONDS = 0.5
"""Poll interval of a store without a server."""
WAIT_SECONDS = 10.0
"""Long-poll timeout of one ``watch`` request to a server."""
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
COLUMNS = (
    TableColumn("queue", shrinks=True),
    TableColumn("ready", right=True),
    TableColumn("delayed", right=True),
    TableColumn("leased", right=True),
    TableColumn("dead", right=True),
    TableColumn("head age", right=True),
    TableColumn("in/s", right=True),
    TableColumn("done/s", right=True),
    TableColumn("failed/s", right=True),
    TableColumn("failing", right=True),
    TableColumn("works", right=True),
    TableColumn("waits", right=True),
)


def top_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, needed=False, what="this one only")
    parser.add_argument("--once", action="store_true", help="print it once and end")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="time between two looks (default: 1)"
    )
    arguments.store(parser)


def watch_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, needed=False, what="this one only")
    parser.add_argument("--limit", type=int, metavar="COUNT", help="end after so many lines")
    arguments.store(parser)


def metrics_options(parser: argparse.ArgumentParser) -> None:
    arguments.store(parser)


# -- top --------------------------------------------------------------------------------------------------------------


def run_top(args: argparse.Namespace, screen: Screen) -> int:
    if not 0.1 <= args.interval <= 3600:
        raise BadInput("must be from 0.1 to 3600 seconds", field="--interval")
    queue = None if args.queue is None else validation.check_queue(args.queue)
    with connection.open_read_only(args, screen) as queues:
        snapshots = _snapshots(queues, queue)
        if screen.json:
            return _top_documents(args, screen, snapshots)
        if args.once or not screen.is_terminal:
            for line in _view(next(snapshots), None):
                screen.report(line)
            return output.OK
        return _top_live(args, screen, snapshots)


def _top_documents(args: argparse.Namespace, screen: Screen, snapshots: Iterator[Row]) -> int:
    for snapshot in snapshots:
        screen.document({"ok": True, **snapshot})
        screen.flush()
        if args.once:
            break
        time.sleep(args.interval)
    return output.OK


def _top_live(args: argparse.Namespace, screen: Screen, snapshots: Iterator[Row]) -> int:
    """Redraw the view until Ctrl-C."""
    sys.stdout.write(HIDE_CURSOR)
    sys.stdout.flush()  # the view is not written through this buffer
    try:
        for snapshot in snapshots:
            width, height = os.get_terminal_size(sys.stdout.fileno())  # 0: unknown
            lines = _view(snapshot, width or None)[: height - 1 if height else None]
            screen.report(HOME + "\n".join(line + CLEAR_LINE for line in lines) + CLEAR_BELOW)
            screen.flush()
            time.sleep(args.interval)
    except KeyboardInterrupt:
        return output.OK
    finally:
        sys.stdout.write(SHOW_CURSOR)
        sys.stdout.flush()
    return output.OK


def _snapshots(queues: QueueStore, queue: str | None) -> Iterator[Row]:
    """Yield snapshots. A server reports its rates; without one they are computed since the previous snapshot."""
    address = connection.address_of(queues)
    before: dict[str, Any] = {}
    seen_at = time.monotonic()
    while True:
        if address is not None:
            yield {"at": iso(queues.wall_ms()), **page(queues, queue=queue)}
            continue
        now = time.monotonic()
        rows = page(queues, queue=queue)["queues"]
        for row in rows:
            row["rates"] = _rates_since(before.get(row["queue"]), row["totals"], now - seen_at)
        before, seen_at = {row["queue"]: row["totals"] for row in rows}, now
        yield {"at": iso(queues.wall_ms()), "server": None, "durability": queues.durability(), "queues": rows}


def _rates_since(before: Row | None, totals: Row, seconds: float) -> Row | None:
    if before is None or seconds <= 0:
        return None
    done, failed = totals["acked"] - before["acked"], totals["failed"] - before["failed"]
    return {
        "publishedPerSec": round((totals["published"] - before["published"]) / seconds, 3),
        "ackedPerSec": round(done / seconds, 3),
        "failedPerSec": round(failed / seconds, 3),
        "failureRate": round(failed / (done + failed), 6) if done + failed > 0 else None,
        "meanProcessingSec": None,
        "meanWaitSec": None,
    }


def _view(snapshot: Row, width: int | None) -> list[str]:
    where = (
        f"{snapshot['server']}  node {snapshot['node']}  up {format_duration(snapshot['uptimeSec'])}"
        if snapshot["server"]
        else "no server"
    )
    clients = f"  {count_text(snapshot['connections'], 'client')}" if snapshot["server"] else ""
    title = f"{where}  durability {snapshot['durability']}{clients}  {snapshot['at'][11:19]}Z"
    return [title, *render(COLUMNS, [_cells(row) for row in snapshot["queues"]], width)]


def _cells(row: Row) -> list[object]:
    rates = row["rates"] or {}
    share = rates.get("failureRate")
    return [
        f"{row['queue']} (paused)" if row["paused"] else row["queue"],
        *(row[name] for name in ("ready", "delayed", "leased", "dead")),
        format_duration(row["headAgeSec"]),
        *(_rate(rates.get(name)) for name in ("publishedPerSec", "ackedPerSec", "failedPerSec")),
        None if share is None else f"{share:.1%}",
        _short(rates.get("meanProcessingSec")),
        _short(rates.get("meanWaitSec")),
    ]


def _rate(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _short(seconds: float | None) -> str | None:
    """Format a duration, from milliseconds to hours."""
    if seconds is None:
        return None
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


# -- watch ------------------------------------------------------------------------------------------------------------


def run_watch(args: argparse.Namespace, screen: Screen) -> int:
    queue = None if args.queue is None else validation.check_queue(args.queue)
    left = sys.maxsize if args.limit is None else validation.check_count(args.limit, "--limit")
    with connection.open_read_only(args, screen) as queues:
        served = connection.address_of(queues) is not None
        if not served:
            screen.note("no server: what changed in the counts, looked at twice a second")
        try:
            for event in _server_events(queues, queue, screen) if served else _polled_events(queues, queue):
                screen.document(event) if screen.json else screen.report(_line(event))
                screen.flush()
                left -= 1
                if left <= 0:
                    break
        except KeyboardInterrupt:
            return output.OK
    return output.OK


def _server_events(queues: QueueStore, queue: str | None, screen: Screen) -> Iterator[Row]:
    last: int | None = None
    while True:
        part = connection.call(queues, "watch", queue=queue, after=last, wait=WAIT_SECONDS)
        last = part["last"]
        if part["missed"]:
            screen.note(f"{part['missed']} events were missed")
        yield from part["events"]


def _polled_events(queues: QueueStore, queue: str | None) -> Iterator[Row]:
    before: dict[str, Any] | None = None
    while True:
        at, totals = iso(queues.wall_ms()), counts_of_all(queues, queue)
        for name, counts in totals.items() if before is not None else ():
            known = (before or {}).get(name, {})
            for what, count in counts.items():
                if count > known.get(what, 0):
                    yield {"at": at, "event": what, "queue": name, "count": count - known.get(what, 0)}
        before = totals
        time.sleep(POLL_SECONDS)


def _line(event: Row) -> str:
    """Format an event, such as ``09:21:00.000Z  mail  leased 3  meanWaitSec=0.002``."""
    rest = "".join(
        f"  {name}={value}" for name, value in event.items() if name not in ("at", "event", "queue", "count")
    )
    count = f" {event['count']}" if "count" in event else ""
    return f"{event['at'][11:23]}Z  {event['queue']}  {event['event']}{count}{rest}"


# -- metrics ----------------------------------------------------------------------------------------------------------


def run_metrics(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_read_only(args, screen) as queues:
        if connection.address_of(queues) is not None:
            text = connection.call(queues, "metrics")
        else:
            screen.note("no server: only what the store itself can tell")
            found = page(queues)
            text = prometheus.page(Metrics(SystemClock()), found["queues"], {}, found["all"])
    screen.answer({"metrics": text}, text.rstrip("\n"))
    return output.OK


COMMANDS = {
    "top": Command(
        about="A live view of all queues: how many messages are where, and what happened in the last minute, per "
        "second. Ctrl-C ends it.\n\n"
        "failing is the share of attempts that failed; works is the mean time from lease to ack, waits the mean time "
        "from when a message could be taken to its lease. Without a server there are counts, and what changed since "
        "the last look.",
        examples=(
            ("until Ctrl-C", "yirangmq top"),
            ("once, for programs", "yirangmq top --once --json"),
        ),
        options=top_options,
        run=run_top,
    ),
    "watch": Command(
        about="Follow what happens: a line for each batch of messages that was published, leased, acknowledged, failed "
        "or moved, from now on. Ctrl-C ends it.",
        examples=(
            ("one queue", "yirangmq watch --queue telemetry"),
            ("all queues, the next ten events, for programs", "yirangmq watch --limit 10 --json"),
        ),
        options=watch_options,
        run=run_watch,
    ),
    "metrics": Command(
        about="All metrics as the text that Prometheus reads (docs/metrics.md).",
        examples=(
            ("of the server that serves here", "yirangmq metrics"),
            ("of another one", "yirangmq metrics --store unix:/run/yirangmq.sock"),
        ),
        options=metrics_options,
        run=run_metrics,
    ),
}
