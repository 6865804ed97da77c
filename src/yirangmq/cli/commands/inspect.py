"""Commands ``status``, ``queues``, ``peek`` and ``show``: counts of queues, and messages without leasing them."""

import argparse
import os
from itertools import islice
from typing import Any

from yirangmq.broker.message_moves import search
from yirangmq.broker.queries import STATES, TOTALS
from yirangmq.broker.queue_api import QueueStore
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import format_duration, format_instant
from yirangmq.cli.command import Command
from yirangmq.cli.commands import watch
from yirangmq.cli.output import Screen
from yirangmq.cli.render import header_text, message_line, payload_text, show_server_status
from yirangmq.cli.table import TableColumn, cut
from yirangmq.clock import SystemClock
from yirangmq.core import validation
from yirangmq.core.filter import parse
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageView

# -- status and queues -------------------------------------------------------------------------------------------------


def status_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, needed=False, what="this one only; the name of a dead-letter queue shows its source")
    watch.queue_options(parser)
    arguments.store(parser)


def queues_options(parser: argparse.ArgumentParser) -> None:
    watch.queue_options(parser)
    arguments.store(parser)


def run_status(args: argparse.Namespace, screen: Screen) -> int:
    at = connection.store_location(args)
    unused = connection.unused_store(args, os.environ)
    limit = watch.limit_of(args, screen)
    with connection.open_read_only(args, screen) as queues:
        shown = connection.shown_sources(queues, args.queue) if args.queue is not None else []
        site = watch.page(queues, limit=1)
        if args.queue is not None:
            rows = watch.rows_of_queues(queues, shown or [args.queue])
        else:
            rows = watch.first_rows(queues, limit, args.prefix)
        durability = queues.durability()
        server = connection.address_of(queues)
        subscribers = connection.topic_subscribers(queues, site)
    for row in rows:
        row.setdefault("rates", None)
    value = {
        "store": at.shown_url,
        "server": server,
        "backend": at.backend,
        "path": at.shown_url.partition(":")[2],
        "unusedStore": None if unused is None else unused.unused_file,
        "durability": args.durability if not at.exists else durability,
        "overdue": site["overdue"],
        "deadLettersOf": shown if args.queue is not None and shown else None,
        "queues": rows,
        "all": site["all"],
        "topics": site.get("topics"),
        "following": subscribers,
        "bridges": site.get("bridges"),
        "pair": site.get("pair"),
        "alerts": site.get("alerts"),
    }
    if screen.json:
        screen.document({"ok": True, **value})
        return output.OK
    _print(args, screen, value)
    if args.queue is None:
        watch.note_more(screen, len(rows), site["all"]["queues"], args.prefix)
        show_server_status(screen, value)
    return output.OK


def _print(args: argparse.Namespace, screen: Screen, value: dict[str, Any]) -> None:
    through = f"  through {value['server']}" if value["server"] else ""
    screen.report(f"{value['store']}  backend {value['backend']}  durability {value['durability']}{through}")
    if value["deadLettersOf"]:
        screen.report(f"{args.queue} shows the dead letters of {', '.join(value['deadLettersOf'])}")
    rows = value["queues"]
    if not rows:
        screen.note("no queues yet; publishing to one makes it")
        return
    columns = [TableColumn("queue", shrinks=True), TableColumn("backlog", right=True)]
    columns += [TableColumn(name, right=True) for name in STATES]
    columns += [TableColumn("head age", right=True)] + [TableColumn(name, right=True) for name in TOTALS]
    screen.table(columns, [_cells(row) for row in rows])
    for row in rows:
        if not row["exists"]:
            screen.note(f"nothing was ever published to {row['queue']}")
        if row["policyError"]:
            screen.note(f"the policy of {row['queue']} is broken, so nothing moves there: {row['policyError']}")
        if row["paused"]:
            screen.note(f"{row['queue']} is paused; 'yirangmq queue resume {row['queue']}' lets it go on")
        if row["strategy"]:
            screen.note(
                f"{row['queue']} is dispatched by {row['strategy']}; see 'yirangmq dispatch show {row['queue']}'"
            )
    if value["overdue"]:
        screen.note("some messages are due to move; 'yirangmq sweep' does it now, the next consume does it anyway")


def _cells(row: dict[str, Any]) -> list[object]:
    counted = [row[name] for name in STATES]
    totals = [row["totals"][name] for name in TOTALS]
    return [row["queue"], row["backlog"], *counted, format_duration(row["headAgeSec"]), *totals]


def run_queues(args: argparse.Namespace, screen: Screen) -> int:
    limit = watch.limit_of(args, screen)
    with connection.open_read_only(args, screen) as queues:
        everything = watch.page(queues, limit=1)["all"]
        rows = _listed(queues, limit, args.prefix)
    if screen.json:
        screen.document({"ok": True, "queues": rows})
    elif rows:
        columns = [TableColumn("queue"), TableColumn("backlog", right=True), TableColumn("dead", right=True)]
        columns += [TableColumn("dead letters shown as"), TableColumn("policy")]
        cells = [
            (row["queue"], row["backlog"], row["dead"], row["dlqQueue"], "own" if row["hasPolicy"] else "defaults")
            for row in rows
        ]
        screen.table(columns, cells)
        watch.note_more(screen, len(rows), everything["queues"], args.prefix)
    elif args.prefix:
        screen.note(f"no queue's name begins with {args.prefix}")
    else:
        screen.note("no queues yet; publishing to one makes it")
    return output.OK


def _listed(queues: QueueStore, limit: int | None, prefix: str) -> list[dict[str, Any]]:
    queues_with_policy = {*queues.read(lambda transaction: transaction.queues_with_policy())}
    shown = ("queue", "backlog", "dead", "dlqQueue")
    return [
        {**{name: row[name] for name in shown}, "hasPolicy": row["queue"] in queues_with_policy}
        for row in watch.first_rows(queues, limit, prefix)
    ]


COUNT_COMMANDS = {
    "status": Command(
        about="How many messages of each queue are where, and what has passed through it; of a server with topics "
        "also the state of its feed, of everybody who follows it and of its bridges; of one of a pair both nodes; and "
        "how many alerts are open. With --json a server adds the rates of the last minute.\n\n"
        "backlog is ready and delayed together; head age is how long ago the message next in line was published.",
        examples=(
            ("all queues", "yirangmq status"),
            ("one queue, in a folder of JSON files", "yirangmq status --backend fs --queue telemetry"),
            ("queues whose names begin so, the first ten", "yirangmq status --prefix telemetry- --limit 10"),
            ("by the name of its dead-letter queue, for programs", "yirangmq status --queue telemetry-dlq --json"),
        ),
        options=status_options,
        run=run_status,
    ),
    "queues": Command(
        about="List the queues of a store. A queue comes to be with the first message, or with its policy.",
        examples=(
            ("in ./yirang-data/queue.db", "yirangmq queues"),
            ("in a folder of JSON files, for programs", "yirangmq queues --path /var/yirang/queues --json"),
        ),
        options=queues_options,
        run=run_queues,
    ),
}


# -- peek and show -----------------------------------------------------------------------------------------------------

PREVIEW = 200
"""Maximum characters of a payload in a table."""


def peek_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="how many (default: 10)")
    arguments.state(parser, State.READY)
    arguments.filter_option(parser)
    arguments.store(parser)


def show_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    parser.add_argument("id", metavar="ID", help="message id")
    arguments.store(parser)


def run_peek(args: argparse.Namespace, screen: Screen) -> int:
    validation.check_queue(args.queue)
    validation.check_count(args.limit, "limit")
    node = parse(args.filter, SystemClock().wall_ms())
    with connection.open_read_only(args, screen) as queues:
        found = islice(search(queues, args.queue, State(args.state), node), args.limit)
        if screen.json:
            for view in found:
                screen.line(message_line(view))
            return output.OK
        rows = [_row(view) for view in found]
    if rows:
        screen.table(COLUMNS, rows)
    else:
        screen.note(f"no {args.state} messages in {args.queue}")
    return output.OK


COLUMNS = (
    TableColumn("message", shrinks=True),
    TableColumn("priority", right=True),
    TableColumn("attempt", right=True),
    TableColumn("since"),
    TableColumn("due"),
    TableColumn("payload", shrinks=True),
)


def _row(view: MessageView) -> tuple[object, ...]:
    row, message = view.row(), view.message
    payload = cut(payload_text(view.envelope).replace("\n", " "), PREVIEW) if view.envelope is not None else None
    since, due = format_instant(message.changed_at), format_instant(message.due_at)
    return message.id, row["priority"], message.attempt, since, due, payload


def run_show(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_read_only(args, screen) as queues:
        view = queues.show(args.queue, args.id)
    if screen.json:
        screen.line(message_line(view))
        return output.OK
    for name, value in view.row().items():
        if value is not None:
            screen.report(f"{name:<14}{value}")
    if view.failure is not None:
        screen.report(f"{'failedAt':<14}{format_instant(view.failure.failed_at)}")
        screen.report(f"{'reasonMessage':<14}{view.failure.reason_message}")
        if view.failure.traceback:
            screen.report(f"{'traceback':<14}{view.failure.traceback.rstrip()}")
    if view.envelope is not None:
        screen.report(f"{'envelope':<14}{header_text(view.envelope)}")
        screen.report(payload_text(view.envelope))
    return output.OK


COMMANDS = {
    **COUNT_COMMANDS,
    "peek": Command(
        about="See the first messages of a state without taking them: ready ones in the order in which they will be "
        "taken, dead and parked ones oldest first.",
        examples=(
            ("what comes next", "yirangmq peek --queue telemetry"),
            ("what waits for another try, with its reason", "yirangmq peek --queue telemetry --state delayed --json"),
            ("by content", "yirangmq peek --queue telemetry --filter 'payload.temp>40' --limit 100"),
        ),
        options=peek_options,
        run=run_peek,
    ),
    "show": Command(
        about="See one message, wherever it stands: its state, its envelope, its latest failure.",
        examples=(
            ("for people", "yirangmq show --queue telemetry 9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71"),
            ("for programs", "yirangmq show --queue telemetry 9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71 --json"),
        ),
        options=show_options,
        run=run_show,
    ),
}
