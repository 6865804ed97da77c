"""Commands ``bridge add | list | show | remove | pause | resume``: topics that feed queues.

Bridges are kept by the server and run in it, so every command needs one."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from yirangmq.broker.queues import Queues
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.table import TableColumn
from yirangmq.core.bridges import check_bridge, read_new
from yirangmq.core.errors import BadInput, Unavailable

COLUMNS = (
    TableColumn("name"),
    TableColumn("queue"),
    TableColumn("topics", shrinks=True, rank=1),
    TableColumn("state", marks=True),
    TableColumn("sequence", right=True, rank=3),
    TableColumn("lag", right=True),
    TableColumn("delivered", right=True, rank=2),
    TableColumn("refused", right=True, rank=2, hides_zero=True, alarms=True),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the bridge")
    arguments.queue(parser, what="the queue that gets the messages")
    parser.add_argument(
        "-t", "--topic", action="append", default=[], metavar="PATTERN", help="a topic or a pattern; may be repeated"
    )
    parser.add_argument(
        "--no-groups", action="store_true", help="do not use a record's key as the group of its message"
    )
    _start_options(parser, "only what is published from now on")
    arguments.store(parser)


def one_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the bridge")
    arguments.store(parser)


def resume_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the bridge")
    _start_options(parser, "where it was")
    arguments.store(parser)


def list_options(parser: argparse.ArgumentParser) -> None:
    arguments.store(parser)


def _start_options(parser: argparse.ArgumentParser, usual: str) -> None:
    group = parser.add_argument_group(f"where it begins (default: {usual})").add_mutually_exclusive_group()
    group.add_argument("--from-beginning", action="store_true", help="the first record that is kept")
    group.add_argument("--from-now", action="store_true", help="the records published from now on")
    group.add_argument("--from-seq", type=int, metavar="N", help="this sequence of the log")
    group.add_argument("--from-time", metavar="TIME", help="the first record at or after this time, in ISO 8601")


def _start(args: argparse.Namespace) -> dict[str, Any]:
    if args.from_beginning:
        return {"start": "beginning"}
    if args.from_now:
        return {"start": "new"}
    if args.from_seq is not None:
        return {"start": "sequence", "at": args.from_seq}
    if args.from_time is not None:
        return {"start": "time", "at": _nanoseconds(args.from_time)}
    return {}


def _nanoseconds(text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"must be a time such as 2026-01-13T09:21:00Z, not {text[:60]!r}", field="--from-time") from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000) * 1_000_000


@contextmanager
def _server(args: argparse.Namespace) -> Iterator[Queues]:
    with connection.open_existing(args) as queues:
        if connection.address_of(queues) is None:
            raise Unavailable("no server holds this store; bridges run in a server: start it with 'yirangmq serve'")
        yield queues


def run_add(args: argparse.Namespace, screen: Screen) -> int:
    given = {"name": args.name, "queue": args.queue, "topics": args.topic, "groups": not args.no_groups, **_start(args)}
    read_new(given)
    return _call_and_print(
        args, screen, "bridge_add", given, lambda row: f"{_topics(row)} feed {row['queue']}: {row['name']}"
    )


def run_pause(args: argparse.Namespace, screen: Screen) -> int:
    return _call_and_print(
        args, screen, "bridge_pause", _named(args), lambda row: f"paused: {row['name']}, {row['lag']} behind"
    )


def run_resume(args: argparse.Namespace, screen: Screen) -> int:
    given = {**_named(args), **_start(args)}
    return _call_and_print(
        args, screen, "bridge_resume", given, lambda row: f"resumed: {row['name']}, {row['lag']} behind"
    )


def run_remove(args: argparse.Namespace, screen: Screen) -> int:
    return _call_and_print(args, screen, "bridge_remove", _named(args), lambda row: f"removed: {row['name']}")


def run_show(args: argparse.Namespace, screen: Screen) -> int:
    return _call_and_print(args, screen, "bridge_show", _named(args), _all_of)


def run_list(args: argparse.Namespace, screen: Screen) -> int:
    with _server(args) as queues:
        rows: list[dict[str, Any]] = connection.call(queues, "bridges")
    if screen.json:
        screen.document({"ok": True, "bridges": rows})
        return output.OK
    if not rows:
        screen.note("there are no bridges; 'yirangmq bridge add' adds one")
        return output.OK
    screen.table(COLUMNS, [_cells(row) for row in rows])
    for row in rows:
        if row["reason"]:
            screen.note(f"{row['name']} is {row['state']}: {row['reason']}")
    return output.OK


def _call_and_print(
    args: argparse.Namespace, screen: Screen, method: str, given: dict[str, Any], text: Callable[[dict[str, Any]], str]
) -> int:
    with _server(args) as queues:
        row: dict[str, Any] = connection.call(queues, method, **given)
    screen.answer({"bridge": row}, text(row))
    return output.OK


def _named(args: argparse.Namespace) -> dict[str, Any]:
    return {"name": check_bridge(args.name)}


def _topics(row: dict[str, Any]) -> str:
    return ", ".join(row["topics"]) or "all topics"


def _cells(row: dict[str, Any]) -> list[object]:
    shown = [row["name"], row["queue"], _topics(row), row["state"]]
    return shown + [row[name] for name in ("sequence", "lag", "delivered", "refused")]


def _all_of(row: dict[str, Any]) -> str:
    width = max(map(len, row))
    return "\n".join(f"{name:{width}}  {_topics(row) if name == 'topics' else value}" for name, value in row.items())


def _subcommand(
    about: str,
    examples: tuple[tuple[str, str], ...],
    configure: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace, Screen], int],
) -> Command:
    return Command(about=about, examples=examples, options=configure, run=run)


COMMANDS = {
    "bridge": Command(
        about="Bridges copy records of topics into queues: each record becomes one message of the queue, exactly "
        "once. The server keeps the bridges and runs them (docs/bridges.md).",
        examples=(
            ("copy orders to a queue", "yirangmq bridge add billing --topic 'orders.*' --queue billing"),
            ("their state and lag", "yirangmq bridge list"),
        ),
        subcommands={
            "add": (
                "add a bridge from topics to a queue",
                _subcommand(
                    "Add a bridge from topics to a queue, from now on or from an earlier position. A record's key "
                    "becomes the group of its message, so that records of one key are processed in order.",
                    (
                        ("records published from now on", "yirangmq bridge add billing -t 'orders.*' -q billing"),
                        ("all records that are kept, too", "yirangmq bridge add audit -q audit --from-beginning"),
                        ("from a sequence on", "yirangmq bridge add late -t trades -q late --from-seq 41208"),
                    ),
                    add_options,
                    run_add,
                ),
            ),
            "list": (
                "list the bridges with their lag",
                _subcommand(
                    "List every bridge with its topics, queue, state, position and lag.",
                    (("for people", "yirangmq bridge list"), ("for programs", "yirangmq bridge list --json")),
                    list_options,
                    run_list,
                ),
            ),
            "show": (
                "show a bridge",
                _subcommand(
                    "Show all details of one bridge.",
                    (
                        ("for people", "yirangmq bridge show billing"),
                        ("for programs", "yirangmq bridge show billing --json"),
                    ),
                    one_options,
                    run_show,
                ),
            ),
            "remove": (
                "remove a bridge; its messages stay",
                _subcommand(
                    "Remove a bridge with its position. Messages in the queue stay there.",
                    (
                        ("one", "yirangmq bridge remove billing"),
                        ("for programs", "yirangmq bridge remove billing --json"),
                    ),
                    one_options,
                    run_remove,
                ),
            ),
            "pause": (
                "pause a bridge",
                _subcommand(
                    "Pause a bridge: it copies no more records. Records wait in the log for at most "
                    "topic_cursor_seconds.",
                    (
                        ("one", "yirangmq bridge pause billing"),
                        ("for programs", "yirangmq bridge pause billing --json"),
                    ),
                    one_options,
                    run_pause,
                ),
            ),
            "resume": (
                "resume a bridge",
                _subcommand(
                    "Resume a bridge at its position. A bridge that stopped because its records were removed, or "
                    "because the log is a different one, needs a new start position.",
                    (
                        ("at its position", "yirangmq bridge resume billing"),
                        ("the first record that is kept", "yirangmq bridge resume billing --from-beginning"),
                        ("skip the missed records", "yirangmq bridge resume billing --from-now"),
                    ),
                    resume_options,
                    run_resume,
                ),
            ),
        },
    )
}
