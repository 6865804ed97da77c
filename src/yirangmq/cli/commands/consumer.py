"""Commands ``consumer list | status | pause | resume | drain``: consumer processes, and requests to them.

Consumer processes report to the registry every second, and follow a request within a second."""

import argparse
import time
from typing import Any

from yirangmq.broker.queues import Queues
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import counted, span
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.table import Column
from yirangmq.core import validation
from yirangmq.core.consumer_registry import SILENT, WISHES
from yirangmq.core.errors import BadInput, NotFound, Unavailable
from yirangmq.format.envelope import iso

LOOK_SECONDS = 0.1
COLUMNS = (
    Column("consumer", shrinks=True),
    Column("state"),
    Column("queues", shrinks=True),
    Column("in work", right=True),
    Column("done", right=True),
    Column("failed", right=True),
    Column("lost", right=True),
    Column("stuck", right=True),
    Column("runs for", right=True),
    Column("heard of", right=True),
)


def list_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, needed=False, what="only those that work on this queue")
    arguments.store(parser)


def status_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="consumer id, as 'consumer list' prints it")
    arguments.store(parser)


def wish_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="consumer id, as 'consumer list' prints it")
    arguments.queue(parser, needed=False, what="all that work on this queue")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument(
        "--wait", type=float, default=0, metavar="SECONDS", help="wait so long until they have done it (default: 0)"
    )
    arguments.store(parser)


# -- list and status ---------------------------------------------------------------------------------------------------


def run_list(args: argparse.Namespace, screen: Screen) -> int:
    with connection.seen(args, screen) as queues:
        cards = _of_queue(queues.consumer_list(), args.queue)
    if screen.json:
        screen.document({"ok": True, "consumers": [_document(card) for card in cards]})
    elif cards:
        screen.table(COLUMNS, [_row(card) for card in cards])
    else:
        screen.note("no consumer process tells of itself here")
    return output.OK


def run_status(args: argparse.Namespace, screen: Screen) -> int:
    with connection.seen(args, screen) as queues:
        card = _named(queues.consumer_list(), args.id)
    document = _document(card)
    if screen.json:
        screen.document({"ok": True, **document})
        return output.OK
    for name, value in document.items():
        if value is not None:
            screen.say(f"{name:<14}{', '.join(value) if isinstance(value, list) else value}")
    return output.OK


def _row(card: dict[str, Any]) -> tuple[object, ...]:
    runs = span((card["seenAt"] - card["startedAt"]) / 1000)
    numbers = (card[name] for name in ("inWork", "done", "failed", "lost", "stuck"))
    state = f"{card['state']} (asked to {card['wish']})" if card["wish"] else card["state"]
    return card["consumerId"], state, ", ".join(card["queues"]), *numbers, runs, f"{span(card['silentSec'])} ago"


def _document(card: dict[str, Any]) -> dict[str, Any]:
    """Return the consumer's JSON document, with instants in ISO 8601."""
    return {**card, "startedAt": iso(card["startedAt"]), "seenAt": iso(card["seenAt"])}


def _of_queue(cards: list[dict[str, Any]], queue: str | None) -> list[dict[str, Any]]:
    if queue is None:
        return cards
    validation.check_queue(queue)
    return [card for card in cards if queue in card["queues"]]


def _named(cards: list[dict[str, Any]], id: str) -> dict[str, Any]:
    validation.check_consumer(id)
    for card in cards:
        if card["consumerId"] == id:
            return card
    raise NotFound(f"there is no consumer {id!r} here", field="consumerId")


# -- pause, resume and drain -------------------------------------------------------------------------------------------


def run_wish(args: argparse.Namespace, screen: Screen) -> int:
    wish = args.verb
    validation.check_milliseconds(args.wait, "wait")
    with connection.existing(args) as queues:
        ids = _chosen(args, queues)
        for id in ids:
            queues.consumer_wish(id, wish)
        left = _wait(queues, ids, wish, args.wait) if args.wait else []
    if left:
        raise Unavailable(f"asked to {wish}, but not there yet: {', '.join(left)}")
    did = f"asked {counted(len(ids), 'consumer')} to {wish}"
    screen.answer({"wish": wish, "consumers": ids}, did if ids else "there is no consumer to ask")
    return output.OK


def _chosen(args: argparse.Namespace, queues: Queues) -> list[str]:
    """Return the consumer ids selected by id, by queue, or with --all. Silent consumers are selected only by id."""
    if sum((bool(args.ids), args.queue is not None, args.all)) != 1:
        raise BadInput("give one or more ids, or --queue, or --all", field="consumerId")
    cards = queues.consumer_list()
    if args.ids:
        return [str(_named(cards, id)["consumerId"]) for id in args.ids]
    return [str(card["consumerId"]) for card in _of_queue(cards, args.queue) if card["state"] != SILENT]


def _wait(queues: Queues, ids: list[str], wish: str, seconds: float) -> list[str]:
    """Wait until all consumers have followed the request; return those that have not within ``seconds``.

    A drain is complete when the consumer is no longer listed."""
    until = time.monotonic() + seconds
    while True:
        states = {card["consumerId"]: card["state"] for card in queues.consumer_list()}
        goal = None if wish == "drain" else WISHES[wish]
        left = [id for id in ids if states.get(id, goal) != goal]
        if not left or time.monotonic() >= until:
            return left
        time.sleep(LOOK_SECONDS)


def _asking(about: str, examples: tuple[tuple[str, str], ...]) -> Command:
    return Command(about=about, examples=examples, options=wish_options, run=run_wish)


COMMANDS = {
    "consumer": Command(
        about="See and steer consumer processes: those started with 'yirangmq consume --handler' or '--exec', and "
        "programs that use yirangmq.Consumer. Each tells of itself every second and follows what is asked of it "
        "within a second.",
        examples=(
            ("who is at work", "yirangmq consumer list"),
            ("stop taking messages for a while", "yirangmq consumer pause --queue mail"),
            ("end one in good order, and wait for it", "yirangmq consumer drain box-4711 --wait 60"),
        ),
        subcommands={
            "list": (
                "list them",
                Command(
                    about="List the consumer processes. One that was not heard of for ten seconds is silent; it is "
                    "forgotten after an hour.",
                    examples=(
                        ("those of one queue", "yirangmq consumer list --queue mail"),
                        ("for programs", "yirangmq consumer list --json"),
                    ),
                    options=list_options,
                    run=run_list,
                ),
            ),
            "status": (
                "see one",
                Command(
                    about="See all that is known of one consumer process.",
                    examples=(
                        ("for people", "yirangmq consumer status box-4711"),
                        ("for programs", "yirangmq consumer status box-4711 --json"),
                    ),
                    options=status_options,
                    run=run_status,
                ),
            ),
            "pause": (
                "ask them to take no messages for now",
                _asking(
                    "Ask consumer processes to take no more messages. What is in work goes on; what was not begun goes "
                    "back in line.",
                    (
                        ("one", "yirangmq consumer pause box-4711"),
                        ("all of a queue, and wait for them", "yirangmq consumer pause --queue mail --wait 5"),
                    ),
                ),
            ),
            "resume": (
                "ask them to go on",
                _asking(
                    "Ask paused consumer processes to go on.",
                    (
                        ("one", "yirangmq consumer resume box-4711"),
                        ("all", "yirangmq consumer resume --all"),
                    ),
                ),
            ),
            "drain": (
                "ask them to finish and end",
                _asking(
                    "Ask consumer processes to take no more messages, finish what is in work, and end.",
                    (
                        ("one, to start it anew", "yirangmq consumer drain box-4711"),
                        ("all, before the machine goes down", "yirangmq consumer drain --all --wait 60"),
                    ),
                ),
            ),
        },
    )
}
