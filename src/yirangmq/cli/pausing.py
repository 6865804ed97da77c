"""``queue pause | resume`` and ``schedule list``: what an operator sets a queue to do, or not to do."""

import argparse
from typing import Any

from yirangmq.cli import exits, options, place
from yirangmq.cli.command import Command
from yirangmq.cli.dispatch import DISPATCH_COMMANDS
from yirangmq.cli.screen import Screen
from yirangmq.cli.table import Column
from yirangmq.cli.values import brief
from yirangmq.core import validation

COLUMNS = (
    Column("queue", shrinks=True),
    Column("name", shrinks=True),
    Column("cron"),
    Column("time zone"),
    Column("next"),
    Column("there"),
)


def pause_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queues", nargs="+", metavar="NAME", help="the queue, or several")
    options.store(parser)


def list_options(parser: argparse.ArgumentParser) -> None:
    options.queue(parser, needed=False, what="this one only")
    options.store(parser)


def run_pause(args: argparse.Namespace, screen: Screen) -> int:
    return _steer(args, screen, paused=True)


def run_resume(args: argparse.Namespace, screen: Screen) -> int:
    return _steer(args, screen, paused=False)


def _steer(args: argparse.Namespace, screen: Screen, *, paused: bool) -> int:
    """All names are checked before the first queue is touched."""
    wanted = list(dict.fromkeys(validation.check_queue(name) for name in args.queues))
    done: list[dict[str, Any]] = []
    with place.existing(args) as queues:
        for queue in wanted:
            changed = queues.pause(queue) if paused else queues.resume(queue)
            done.append({"queue": queue, "paused": paused, "changed": changed})
    word = "paused" if paused else "resumed"
    same = "was paused already" if paused else "was not paused"
    if screen.json:
        screen.document({"ok": True, "queues": done})
    for row in done if not screen.json else []:
        screen.say(f"{word}: {row['queue']}" if row["changed"] else f"{row['queue']} {same}")
    return exits.OK


def run_schedules(args: argparse.Namespace, screen: Screen) -> int:
    with place.seen(args, screen) as queues:
        rows = queues.schedules(args.queue)
    if screen.json:
        screen.document({"ok": True, "schedules": rows})
        return exits.OK
    if not rows:
        screen.note("no queue has a schedule; they stand in its policy")
        return exits.OK
    screen.table(COLUMNS, [_cells(row) for row in rows])
    for row in rows:
        if row["error"]:
            screen.note(f"{row['name']} of {row['queue']} does not fire: {row['error']}")
    return exits.OK


def _cells(row: dict[str, Any]) -> list[str | None]:
    at = None if row["nextAt"] is None else brief(row["nextAt"])
    return [row["queue"], row["name"], row["cron"], row["timezone"], at, row["nextLocal"]]


COMMANDS = {
    **DISPATCH_COMMANDS,
    "queue": Command(
        about="Stop handing the messages of a queue out, and begin again. It lasts: a restart changes nothing.",
        examples=(
            ("while a system behind is down", "yirangmq queue pause telemetry"),
            ("go on", "yirangmq queue resume telemetry"),
        ),
        verbs={
            "pause": (
                "hand nothing out; publishing goes on",
                Command(
                    about="Hand nothing out of these queues until they are resumed. Publishing goes on, and consumers "
                    "may finish what they hold.",
                    examples=(
                        ("one queue", "yirangmq queue pause telemetry"),
                        ("two, for programs", "yirangmq queue pause telemetry mail --json"),
                    ),
                    options=pause_options,
                    run=run_pause,
                ),
            ),
            "resume": (
                "hand out again",
                Command(
                    about="Hand messages out again. Consumers that wait are served at once.",
                    examples=(
                        ("one queue", "yirangmq queue resume telemetry"),
                        ("in a folder of JSON files", "yirangmq queue resume telemetry --path /var/yirang/queues"),
                    ),
                    options=pause_options,
                    run=run_resume,
                ),
            ),
        },
    ),
    "schedule": Command(
        about="Messages that a server publishes by the clock. They stand in the policies of their queues "
        "(docs/policy.md).",
        examples=(
            ("when does what fire?", "yirangmq schedule list"),
            ("of one queue", "yirangmq schedule list --queue telemetry"),
        ),
        verbs={
            "list": (
                "every schedule, and when it fires next",
                Command(
                    about="Every schedule, and when it fires next: in UTC, and by the clocks of its time zone.",
                    examples=(
                        ("of all queues", "yirangmq schedule list"),
                        ("of one queue, for programs", "yirangmq schedule list --queue telemetry --json"),
                    ),
                    options=list_options,
                    run=run_schedules,
                ),
            ),
        },
    ),
}
