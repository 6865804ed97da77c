"""Commands ``consumer list | status | pause | resume | drain``: consumer processes, and requests to them.

Consumer processes report to the registry every second, and follow a request within a second."""

import argparse
import time
from typing import Any

from yirangmq.broker.queues import Queues
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import count_text, format_duration
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar
from yirangmq.cli.table import TableColumn
from yirangmq.core import validation
from yirangmq.core.consumer_registry import SILENT, WISHES
from yirangmq.core.errors import BadInput, NotFound, Unavailable
from yirangmq.format.envelope import iso

POLL_SECONDS = 0.1
COLUMNS = (
    TableColumn("consumer"),
    TableColumn("state", marks=True),
    TableColumn("queues", shrinks=True),
    TableColumn("in work", right=True),
    TableColumn("done", right=True, rank=1),
    TableColumn("failed", right=True, rank=2, alarms=True),
    TableColumn("lost", right=True, rank=5, hides_zero=True, alarms=True),
    TableColumn("stuck", right=True, rank=2, hides_zero=True, alarms=True),
    TableColumn("runs for", right=True, rank=4),
    TableColumn("last report", right=True, rank=3),
)


def list_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, needed=False, what="only consumers of this queue")
    arguments.store(parser)


def status_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="consumer id, as 'consumer list' prints it")
    arguments.store(parser)


def request_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="consumer id, as 'consumer list' prints it")
    arguments.queue_filter(parser, "all consumers of this queue")
    parser.add_argument("--all", action="store_true", help="all consumers")
    parser.add_argument(
        "--wait",
        type=float,
        default=0,
        metavar="SECONDS",
        help="time to wait until they have followed the request (default: 0)",
    )
    arguments.store(parser)


# -- list and status ---------------------------------------------------------------------------------------------------


def run_list(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_read_only(args, screen) as queues:
        consumers = _of_queue(queues.consumer_list(), args.queue)
    if screen.json:
        screen.document({"ok": True, "consumers": [_document(consumer) for consumer in consumers]})
    elif consumers:
        screen.table(COLUMNS, [_row(consumer) for consumer in consumers])
    else:
        screen.note("no consumer process reports here")
    return output.OK


def run_status(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_read_only(args, screen) as queues:
        consumer = _named(queues.consumer_list(), args.id)
    document = _document(consumer)
    if screen.json:
        screen.document({"ok": True, **document})
        return output.OK
    for name, value in document.items():
        if value is not None:
            screen.report(f"{name:<14}{', '.join(value) if isinstance(value, list) else value}")
    return output.OK


def _row(consumer: dict[str, Any]) -> tuple[object, ...]:
    runs = format_duration((consumer["seenAt"] - consumer["startedAt"]) / 1000)
    numbers = (consumer[name] for name in ("inWork", "done", "failed", "lost", "stuck"))
    state = f"{consumer['state']} (asked to {consumer['wish']})" if consumer["wish"] else consumer["state"]
    return (
        consumer["consumerId"],
        state,
        ", ".join(consumer["queues"]),
        *numbers,
        runs,
        f"{format_duration(consumer['silentSec'])} ago",
    )


def _document(consumer: dict[str, Any]) -> dict[str, Any]:
    """Return the consumer's JSON document, with instants in ISO 8601."""
    return {**consumer, "startedAt": iso(consumer["startedAt"]), "seenAt": iso(consumer["seenAt"])}


def _of_queue(consumers: list[dict[str, Any]], queue: str | None) -> list[dict[str, Any]]:
    if queue is None:
        return consumers
    validation.check_queue(queue)
    return [consumer for consumer in consumers if queue in consumer["queues"]]


def _named(consumers: list[dict[str, Any]], id: str) -> dict[str, Any]:
    validation.check_consumer(id)
    for consumer in consumers:
        if consumer["consumerId"] == id:
            return consumer
    raise NotFound(f"there is no consumer {id!r} here", field="consumerId")


# -- pause, resume and drain -------------------------------------------------------------------------------------------


def run_request(args: argparse.Namespace, screen: Screen) -> int:
    request = args.verb
    validation.check_milliseconds(args.wait, "wait")
    with connection.open_existing(args) as queues:
        ids = _chosen(args, queues)
        for id in ids:
            queues.consumer_wish(id, request)
        with ProgressBar(f"waiting for {count_text(len(ids), 'consumer')}", shown=screen.shows_progress):
            left = _wait(queues, ids, request, args.wait) if args.wait else []
    if left:
        raise Unavailable(f"asked to {request}, but not done yet by {', '.join(left)}")
    did = f"asked {count_text(len(ids), 'consumer')} to {request}"
    screen.answer({"wish": request, "consumers": ids}, did if ids else "there is no consumer to ask")
    return output.OK


def _chosen(args: argparse.Namespace, queues: Queues) -> list[str]:
    """Return the consumer ids selected by id, by queue, or with --all. Silent consumers are selected only by id."""
    if sum((bool(args.ids), args.queue is not None, args.all)) != 1:
        raise BadInput("give one or more ids, or --queue, or --all", field="consumerId")
    consumers = queues.consumer_list()
    if args.ids:
        return [str(_named(consumers, id)["consumerId"]) for id in args.ids]
    return [str(consumer["consumerId"]) for consumer in _of_queue(consumers, args.queue) if consumer["state"] != SILENT]


def _wait(queues: Queues, ids: list[str], request: str, seconds: float) -> list[str]:
    """Wait until all consumers have followed the request; return those that have not within ``seconds``.

    A drain is complete when the consumer is no longer listed."""
    until = time.monotonic() + seconds
    while True:
        states = {consumer["consumerId"]: consumer["state"] for consumer in queues.consumer_list()}
        goal = None if request == "drain" else WISHES[request]
        left = [id for id in ids if states.get(id, goal) != goal]
        if not left or time.monotonic() >= until:
            return left
        time.sleep(POLL_SECONDS)


def _request_command(about: str, examples: tuple[tuple[str, str], ...]) -> Command:
    return Command(about=about, examples=examples, options=request_options, run=run_request)


COMMANDS = {
    "consumer": Command(
        about="List and control consumer processes: those started with 'yirangmq consume --handler' or '--exec', "
        "and programs that use yirangmq.Consumer. Each reports every second and follows a request within a "
        "second.",
        examples=(
            ("the consumers", "yirangmq consumer list"),
            ("stop leasing messages for a while", "yirangmq consumer pause --queue mail"),
            ("drain one, and wait until it has ended", "yirangmq consumer drain box-4711 --wait 60"),
        ),
        subcommands={
            "list": (
                "list the consumer processes",
                Command(
                    about="List the consumer processes. One that has not reported for ten seconds is silent; "
                    "after an hour it is no longer listed.",
                    examples=(
                        ("those of one queue", "yirangmq consumer list --queue mail"),
                        ("for programs", "yirangmq consumer list --json"),
                    ),
                    options=list_options,
                    run=run_list,
                ),
            ),
            "status": (
                "print the report of a consumer",
                Command(
                    about="Print the latest report of one consumer process.",
                    examples=(
                        ("for people", "yirangmq consumer status box-4711"),
                        ("for programs", "yirangmq consumer status box-4711 --json"),
                    ),
                    options=status_options,
                    run=run_status,
                ),
            ),
            "pause": (
                "ask consumers to lease no messages for now",
                _request_command(
                    "Ask consumer processes to lease no more messages. Messages in process are finished; those "
                    "not begun are released.",
                    (
                        ("one", "yirangmq consumer pause box-4711"),
                        (
                            "all consumers of a queue, and wait for them",
                            "yirangmq consumer pause --queue mail --wait 5",
                        ),
                    ),
                ),
            ),
            "resume": (
                "ask paused consumers to continue",
                _request_command(
                    "Ask paused consumer processes to lease messages again.",
                    (
                        ("one", "yirangmq consumer resume box-4711"),
                        ("all", "yirangmq consumer resume --all"),
                    ),
                ),
            ),
            "drain": (
                "ask consumers to finish and exit",
                _request_command(
                    "Ask consumer processes to lease no more messages, finish those in process, and exit.",
                    (
                        ("one, before it is started again", "yirangmq consumer drain box-4711"),
                        ("all, before the machine goes down", "yirangmq consumer drain --all --wait 60"),
                    ),
                ),
            ),
        },
    )
}
