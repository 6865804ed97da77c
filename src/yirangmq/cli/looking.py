"""``peek`` and ``show``: messages seen without being taken."""

import argparse
from itertools import islice

from yirangmq.broker.dead_letters import search
from yirangmq.cli import exits, options, place
from yirangmq.cli.command import Command
from yirangmq.cli.counting import COUNT_COMMANDS
from yirangmq.cli.screen import Screen
from yirangmq.cli.table import Column, cut
from yirangmq.cli.values import moment
from yirangmq.cli.views import header_text, look_line, payload_text
from yirangmq.core import validation
from yirangmq.core.filter import parse
from yirangmq.core.states import State
from yirangmq.format.delivery import Look

PREVIEW = 200
"""Characters of a payload in a table."""


def peek_options(parser: argparse.ArgumentParser) -> None:
    options.queue(parser)
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="how many (default: 10)")
    options.state(parser, State.READY)
    options.filter_option(parser)
    options.store(parser)


def show_options(parser: argparse.ArgumentParser) -> None:
    options.queue(parser)
    parser.add_argument("id", metavar="ID", help="message id")
    options.store(parser)


def run_peek(args: argparse.Namespace, screen: Screen) -> int:
    validation.check_queue(args.queue)
    validation.check_count(args.limit, "limit")
    node = parse(args.filter)
    with place.seen(args, screen) as queues:
        found = islice(search(queues, args.queue, State(args.state), node), args.limit)
        if screen.json:
            for look in found:
                screen.line(look_line(look))
            return exits.OK
        rows = [_row(look) for look in found]
    if rows:
        screen.table(COLUMNS, rows)
    else:
        screen.note(f"no {args.state} messages in {args.queue}")
    return exits.OK


COLUMNS = (
    Column("message", shrinks=True),
    Column("priority", right=True),
    Column("attempt", right=True),
    Column("since"),
    Column("due"),
    Column("payload", shrinks=True),
)


def _row(look: Look) -> tuple[object, ...]:
    card, message = look.card(), look.message
    payload = cut(payload_text(look.envelope).replace("\n", " "), PREVIEW) if look.envelope is not None else None
    since, due = moment(message.changed_at), moment(message.due_at)
    return message.id, card["priority"], message.attempt, since, due, payload


def run_show(args: argparse.Namespace, screen: Screen) -> int:
    with place.seen(args, screen) as queues:
        look = queues.show(args.queue, args.id)
    if screen.json:
        screen.line(look_line(look))
        return exits.OK
    for name, value in look.card().items():
        if value is not None:
            screen.say(f"{name:<14}{value}")
    if look.failure is not None:
        screen.say(f"{'failedAt':<14}{moment(look.failure.failed_at)}")
        screen.say(f"{'reasonMessage':<14}{look.failure.reason_message}")
    if look.envelope is not None:
        screen.say(f"{'envelope':<14}{header_text(look.envelope)}")
        screen.say(payload_text(look.envelope))
    return exits.OK


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
