"""``status`` and ``queues``: how many messages are where."""

import argparse
from typing import Any

from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.broker.queries import STATES, TOTALS
from yirangmq.broker.queues import Queues
from yirangmq.cli import exits, options, place, queue_rows, remote
from yirangmq.cli.command import Command
from yirangmq.cli.screen import Screen
from yirangmq.cli.siteview import show_site
from yirangmq.cli.table import Column
from yirangmq.cli.values import span


def status_options(parser: argparse.ArgumentParser) -> None:
    options.queue(parser, needed=False, what="this one only; the name of a dead-letter queue shows its source")
    queue_rows.queue_options(parser)
    options.store(parser)


def queues_options(parser: argparse.ArgumentParser) -> None:
    queue_rows.queue_options(parser)
    options.store(parser)


def run_status(args: argparse.Namespace, screen: Screen) -> int:
    at = place.of(args)
    limit = queue_rows.limit_of(args, screen)
    with place.seen(args, screen) as queues:
        shown = DeadLetters(queues).shown_by(args.queue) if args.queue is not None else []
        site = queue_rows.page(queues, limit=1)
        if args.queue is not None:
            rows = queue_rows.of_queues(queues, shown or [args.queue])
        else:
            rows = queue_rows.first_rows(queues, limit, args.prefix)
        durability = queues.durability()
        server = remote.address_of(queues)
        following = remote.following(queues, site)
    for row in rows:
        row.setdefault("rates", None)
    value = {
        "store": at.shown_url,
        "server": server,
        "backend": at.backend,
        "path": at.shown_url.partition(":")[2],
        "durability": args.durability if not at.exists else durability,
        "overdue": site["overdue"],
        "deadLettersOf": shown if args.queue is not None and shown else None,
        "queues": rows,
        "all": site["all"],
        "topics": site.get("topics"),
        "following": following,
        "bridges": site.get("bridges"),
        "pair": site.get("pair"),
        "alerts": site.get("alerts"),
    }
    if screen.json:
        screen.document({"ok": True, **value})
        return exits.OK
    _print(args, screen, value)
    if args.queue is None:
        queue_rows.note_more(screen, len(rows), site["all"]["queues"], args.prefix)
        show_site(screen, value)
    return exits.OK


def _print(args: argparse.Namespace, screen: Screen, value: dict[str, Any]) -> None:
    through = f"  through {value['server']}" if value["server"] else ""
    screen.say(f"{value['store']}  backend {value['backend']}  durability {value['durability']}{through}")
    if value["deadLettersOf"]:
        screen.say(f"{args.queue} shows the dead letters of {', '.join(value['deadLettersOf'])}")
    rows = value["queues"]
    if not rows:
        screen.note("no queues yet; publishing to one makes it")
        return
    columns = [Column("queue", shrinks=True), Column("backlog", right=True)]
    columns += [Column(name, right=True) for name in STATES]
    columns += [Column("head age", right=True)] + [Column(name, right=True) for name in TOTALS]
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
    return [row["queue"], row["backlog"], *counted, span(row["headAgeSec"]), *totals]


def run_queues(args: argparse.Namespace, screen: Screen) -> int:
    limit = queue_rows.limit_of(args, screen)
    with place.seen(args, screen) as queues:
        everything = queue_rows.page(queues, limit=1)["all"]
        rows = _listed(queues, limit, args.prefix)
    if screen.json:
        screen.document({"ok": True, "queues": rows})
    elif rows:
        columns = [Column("queue"), Column("backlog", right=True), Column("dead", right=True)]
        columns += [Column("dead letters shown as"), Column("policy")]
        cells = [
            (row["queue"], row["backlog"], row["dead"], row["dlqQueue"], "own" if row["hasPolicy"] else "defaults")
            for row in rows
        ]
        screen.table(columns, cells)
        queue_rows.note_more(screen, len(rows), everything["queues"], args.prefix)
    elif args.prefix:
        screen.note(f"no queue's name begins with {args.prefix}")
    else:
        screen.note("no queues yet; publishing to one makes it")
    return exits.OK


def _listed(queues: Queues, limit: int | None, prefix: str) -> list[dict[str, Any]]:
    policied = {*queues.read(lambda transaction: transaction.policied())}
    shown = ("queue", "backlog", "dead", "dlqQueue")
    return [
        {**{name: row[name] for name in shown}, "hasPolicy": row["queue"] in policied}
        for row in queue_rows.first_rows(queues, limit, prefix)
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
            ("in ./yirang.db", "yirangmq queues"),
            ("in a folder of JSON files, for programs", "yirangmq queues --path /var/yirang/queues --json"),
        ),
        options=queues_options,
        run=run_queues,
    ),
}
