"""Commands ``status``, ``queues``, ``peek`` and ``show``: counts of queues, and messages without leasing them."""

import argparse
import os
from itertools import islice
from typing import Any

from yirangmq.broker.message_moves import search
from yirangmq.broker.queries import TOTALS
from yirangmq.broker.queue_api import QueueStore
from yirangmq.cli import arguments, connection, output, queue_rows
from yirangmq.cli.arguments import format_instant
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.queue_rows import age_text, rate_text
from yirangmq.cli.render import header_text, message_line, payload_text, show_server_status
from yirangmq.cli.table import Instant, TableColumn, cut
from yirangmq.clock import SystemClock
from yirangmq.core import validation
from yirangmq.core.filter import parse
from yirangmq.core.states import State
from yirangmq.format.delivery import MessageView

# -- status and queues -------------------------------------------------------------------------------------------------


def status_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(
        parser, needed=False, what="this queue only; the name of a dead-letter queue shows its source queues"
    )
    queue_rows.queue_options(parser)
    arguments.store(parser)


def queues_options(parser: argparse.ArgumentParser) -> None:
    queue_rows.queue_options(parser)
    arguments.store(parser)


def run_status(args: argparse.Namespace, screen: Screen) -> int:
    at = connection.store_location(args)
    unused = connection.unused_store(args, os.environ)
    limit = queue_rows.limit_of(args, screen)
    with connection.open_read_only(args, screen) as queues:
        shown = connection.shown_sources(queues, args.queue) if args.queue is not None else []
        site = queue_rows.page(queues, limit=1)
        if args.queue is not None:
            rows = queue_rows.rows_of_queues(queues, shown or [args.queue])
        else:
            rows = queue_rows.first_rows(queues, limit, args.prefix)
        durability = queues.durability()
        server = connection.address_of(queues)
        subscribers = connection.topic_subscribers(queues, site)
        consumers = {} if screen.json else queue_rows.count_consumers(queues, rows)
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
    _print(args, screen, {**value, "consumers": consumers})
    if args.queue is None:
        queue_rows.note_more(screen, len(rows), site["all"]["queues"], args.prefix)
        show_server_status(screen, value)
    return output.OK


def _print(args: argparse.Namespace, screen: Screen, value: dict[str, Any]) -> None:
    through = f"  through {value['server']}" if value["server"] else ""
    screen.report(f"{value['store']}  backend {value['backend']}  durability {value['durability']}{through}")
    if value["deadLettersOf"]:
        screen.report(f"{args.queue} shows the dead letters of {', '.join(value['deadLettersOf'])}")
    rows = value["queues"]
    if not rows:
        screen.note("no queues yet; publishing to one creates it")
        return
    consumers = value["consumers"]
    screen.table(QUEUE_COLUMNS, [_cells(row, consumers.get(row["queue"])) for row in rows])
    for row in rows:
        if not row["exists"]:
            screen.note(f"nothing was ever published to {row['queue']}")
        if row["policyError"]:
            screen.note(
                f"the policy of {row['queue']} is invalid, so its messages are not delivered: {row['policyError']}"
            )
        if row["paused"]:
            screen.note(f"{row['queue']} is paused; 'yirangmq queue resume {row['queue']}' resumes it")
        if row["strategy"]:
            screen.note(
                f"{row['queue']} is dispatched by {row['strategy']}; see 'yirangmq dispatch show {row['queue']}'"
            )
    if value["overdue"]:
        screen.note("some messages are due to move; 'yirangmq sweep' moves them now, and so does the next consume")


QUEUE_COLUMNS = (
    TableColumn("queue", spills=True),
    TableColumn("ready", right=True),
    TableColumn("leased", right=True),
    TableColumn("delayed", right=True, rank=1),
    TableColumn("dead", right=True, alarms=True),
    TableColumn("oldest", right=True, rank=1),
    TableColumn("in/s", right=True, rank=2),
    TableColumn("out/s", right=True, rank=2),
    TableColumn("consumers", right=True, rank=2),
    TableColumn("held", right=True, rank=5, hides_zero=True),
    TableColumn("parked", right=True, rank=5, hides_zero=True),
    TableColumn("done", right=True, rank=6, hides_zero=True),
    *(TableColumn(name, right=True, rank=7, hides_zero=True) for name in TOTALS),
)


def _cells(row: dict[str, Any], consumers: int | None) -> list[object]:
    rates = row["rates"] or {}
    first = (row[name] for name in ("ready", "leased", "delayed", "dead"))
    per_second = (rate_text(rates.get(name)) for name in ("publishedPerSec", "ackedPerSec"))
    others = (row[name] for name in ("held", "parked", "done"))
    totals = (row["totals"][name] for name in TOTALS)
    return [row["queue"], *first, age_text(row["headAgeSec"]), *per_second, consumers, *others, *totals]


def run_queues(args: argparse.Namespace, screen: Screen) -> int:
    limit = queue_rows.limit_of(args, screen)
    with connection.open_read_only(args, screen) as queues:
        everything = queue_rows.page(queues, limit=1)["all"]
        rows = _listed(queues, limit, args.prefix)
    if screen.json:
        screen.document({"ok": True, "queues": rows})
    elif rows:
        columns = [TableColumn("queue"), TableColumn("backlog", right=True)]
        columns += [TableColumn("dead", right=True, alarms=True), TableColumn("dead-letter queue", rank=2)]
        columns += [TableColumn("policy", rank=1)]
        cells = [
            (row["queue"], row["backlog"], row["dead"], row["dlqQueue"], "own" if row["hasPolicy"] else "defaults")
            for row in rows
        ]
        screen.table(columns, cells)
        queue_rows.note_more(screen, len(rows), everything["queues"], args.prefix)
    elif args.prefix:
        screen.note(f"no queue's name begins with {args.prefix}")
    else:
        screen.note("no queues yet; publishing to one creates it")
    return output.OK


def _listed(queues: QueueStore, limit: int | None, prefix: str) -> list[dict[str, Any]]:
    queues_with_policy = {*queues.read(lambda transaction: transaction.queues_with_policy())}
    shown = ("queue", "backlog", "dead", "dlqQueue")
    return [
        {**{name: row[name] for name in shown}, "hasPolicy": row["queue"] in queues_with_policy}
        for row in queue_rows.first_rows(queues, limit, prefix)
    ]


COUNT_COMMANDS = {
    "status": Command(
        about="Count the messages of each queue by state, with the age of the oldest, the rates and the "
        "consumers. Of a server with topics the command also shows the state of its feed, subscribers and "
        "bridges; of a node of a pair, both nodes; and the number of open alerts.\n\n"
        "On a narrow terminal, columns of lower priority are left out. --json has all of them. oldest is "
        "the age of the first ready message. Rates are those of the last minute; only a server reports "
        "them.",
        examples=(
            ("all queues", "yirangmq status"),
            ("one queue, in a folder of JSON files", "yirangmq status --backend fs --queue telemetry"),
            ("the first ten queues whose names have a prefix", "yirangmq status --prefix telemetry- --limit 10"),
            ("by the name of its dead-letter queue, for programs", "yirangmq status --queue telemetry-dlq --json"),
        ),
        options=status_options,
        run=run_status,
    ),
    "queues": Command(
        about="List the queues of a store. A queue is created with its first message or its policy.",
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
    arguments.limit(parser, "number of messages (default: 10)", default=10)
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
    TableColumn("message"),
    TableColumn("priority", right=True, rank=2),
    TableColumn("attempt", right=True, rank=1, hides_zero=True),
    TableColumn("since", rank=3),
    TableColumn("due", rank=1),
    TableColumn("payload", shrinks=True),
)


def _row(view: MessageView) -> tuple[object, ...]:
    row, message = view.row(), view.message
    payload = cut(payload_text(view.envelope).replace("\n", " "), PREVIEW) if view.envelope is not None else None
    since, due = Instant(message.changed_at), Instant(message.due_at)
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
        about="Print the first messages of a state without leasing them: ready messages in the order of delivery, "
        "dead and parked ones oldest first.",
        examples=(
            ("the next messages", "yirangmq peek --queue telemetry"),
            (
                "messages that wait for their next attempt, with the reason",
                "yirangmq peek --queue telemetry --state delayed --json",
            ),
            ("by content", "yirangmq peek --queue telemetry --filter 'payload.temp>40' --limit 100"),
        ),
        options=peek_options,
        run=run_peek,
    ),
    "show": Command(
        about="Print one message in whatever state it is: its state, its envelope and its latest failure.",
        examples=(
            ("for people", "yirangmq show --queue telemetry 9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71"),
            ("for programs", "yirangmq show --queue telemetry 9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71 --json"),
        ),
        options=show_options,
        run=run_show,
    ),
}
