"""Commands ``dispatch``, ``deliveries``, ``queue pause | resume`` and ``schedule list``.

They show and change how a queue's messages are delivered: its dispatch strategy and consumers, recent deliveries,
whether it is paused, and its schedules."""

import argparse
from typing import Any
from urllib.parse import urlsplit

from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import format_duration
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.table import Instant, TableColumn, instant_of
from yirangmq.core import validation
from yirangmq.core.dispatch import MEANING, Strategy
from yirangmq.core.errors import BadInput
from yirangmq.core.events import DeliveryStatus
from yirangmq.format.envelope import iso

# -- options of dispatch and deliveries --------------------------------------------------------------------------------

NONE = "none"
CONSUMERS = (
    TableColumn("consumer"),
    TableColumn("registered", rank=2),
    TableColumn("is", rank=1),
    TableColumn("in flight", right=True),
    TableColumn("weight", right=True, rank=3),
)
DELIVERIES = (
    TableColumn("begun"),
    TableColumn("took", right=True, rank=2),
    TableColumn("queue", rank=1),
    TableColumn("message"),
    TableColumn("consumer", rank=1),
    TableColumn("attempt", right=True, rank=3),
    TableColumn("status", marks=True),
    TableColumn("became", rank=4),
    TableColumn("reason", shrinks=True, rank=3),
)


def show_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    arguments.store(parser)


def set_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    parser.add_argument(
        "--strategy",
        choices=[*Strategy, NONE],
        help="strategy; none: the first waiting consumer, without records of deliveries",
    )
    parser.add_argument(
        "--weight",
        action="append",
        metavar="CONSUMER=N",
        help="weight of a consumer, or of all that match a pattern, for the strategy priority; 0: only if no "
        "other can take the message. May be repeated",
    )
    parser.add_argument("--key", metavar="ATTRIBUTE", help="attribute for key_hash; '' is the group id")
    parser.add_argument(
        "--grace", type=float, metavar="SECONDS", help="time that a consumer may be absent and still counts"
    )
    parser.add_argument(
        "--outcomes", metavar="QUEUE", help="publish the outcome of each delivery to this queue; '' ends it"
    )
    arguments.store(parser, has_own_key=True)


def register_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    parser.add_argument("consumers", nargs="+", metavar="CONSUMER", help="consumer id under which it leases messages")
    arguments.store(parser)


def callback_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, what="the queue whose deliveries are reported")
    parser.add_argument("--url", metavar="URL", help="POST each outcome to this address")
    parser.add_argument("--secret", metavar="NAME", help="sign the requests with this secret of the server")
    parser.add_argument("--outcomes", metavar="QUEUE", help="queue for the outcomes (default: QUEUE-outcomes)")
    parser.add_argument("--off", action="store_true", help="stop; outcomes in the queue are still sent")
    arguments.store(parser)


def deliveries_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, needed=False, what="deliveries of this queue only")
    parser.add_argument("--id", metavar="MESSAGE", help="deliveries of this message only")
    parser.add_argument("--consumer", metavar="NAME", help="deliveries to this consumer only")
    parser.add_argument("--status", choices=[*DeliveryStatus], help="deliveries with this status only")
    arguments.limit(parser, "at most this many (default: 20)", default=20)
    arguments.store(parser)


# -- dispatch ---------------------------------------------------------------------------------------------------------


def run_show(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_read_only(args, screen) as queues:
        return _show(queues.dispatch(args.queue), screen)


def _show(found: dict[str, Any], screen: Screen) -> int:
    if screen.json:
        screen.document({"ok": True, **found})
        return output.OK
    strategy = found["strategy"]
    about = MEANING[Strategy(strategy)] if strategy else "first waiting consumer, unrecorded"
    screen.report(f"{found['queue']}: {strategy or NONE} ({about})")
    counts = "  ".join(f"{status} {count}" for status, count in found["deliveries"].items())
    if strategy:
        screen.report(f"in flight {found['inFlight']}  {counts}")
    if found["outcomes"]:
        screen.report(f"outcomes are published to {found['outcomes']}")
    if found["consumers"]:
        screen.table(CONSUMERS, [_consumer(row) for row in found["consumers"]])
    return output.OK


def _consumer(row: dict[str, Any]) -> tuple[object, ...]:
    away = "" if row["awaySec"] is None else f"away for {format_duration(row['awaySec'])}"
    state = "here" if row["here"] else away or "-"
    return row["consumerId"], "yes" if row["registered"] else "-", state, row["inFlight"], row["weight"]


def run_set(args: argparse.Namespace, screen: Screen) -> int:
    members = _members(args)
    if not members:
        raise BadInput("say what to set, such as --strategy round_robin", field="--strategy")
    with connection.open_existing(args) as queues:
        return _show(queues.set_dispatch(validation.check_queue(args.queue), members), screen)


def _members(args: argparse.Namespace) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if args.strategy is not None:
        members["strategy"] = str(args.strategy)
    if args.weight is not None:
        members["weights"] = dict(_weight(text) for text in args.weight)
    if args.key is not None:
        members["key"] = args.key or None
    if args.grace is not None:
        members["graceSec"] = args.grace
    if args.outcomes is not None:
        members["outcomes"] = args.outcomes or None
    return members


def _weight(text: str) -> tuple[str, int]:
    name, equals, weight = text.rpartition("=")
    if not equals or not name or not weight.isdecimal():
        raise BadInput(f"{text!r} is not CONSUMER=N, such as worker-1=3", field="--weight")
    return name, int(weight)


def run_register(args: argparse.Namespace, screen: Screen) -> int:
    return _register(args, screen, registering=True)


def run_deregister(args: argparse.Namespace, screen: Screen) -> int:
    return _register(args, screen, registering=False)


def _register(args: argparse.Namespace, screen: Screen, *, registering: bool) -> int:
    """Register or deregister consumers. All names are validated before the first is changed."""
    wanted = list(dict.fromkeys(validation.check_consumer(name) for name in args.consumers))
    rows = []
    with connection.open_existing(args) as queues:
        for name in wanted:
            changed = queues.register(args.queue, name) if registering else queues.deregister(args.queue, name)
            rows.append({"consumerId": name, "registered": registering, "changed": changed})
    if screen.json:
        screen.document({"ok": True, "queue": args.queue, "consumers": rows})
        return output.OK
    same = "was registered already" if registering else "was not registered"
    for row in rows:
        word = "registered" if registering else "deregistered"
        screen.report(f"{word}: {row['consumerId']}" if row["changed"] else f"{row['consumerId']} {same}")
    return output.OK


def run_callback(args: argparse.Namespace, screen: Screen) -> int:
    """Set the webhook of the outcome queue first, then direct the outcomes to that queue."""
    queue = validation.check_queue(args.queue)
    goal = validation.check_queue(args.outcomes or f"{queue[:190]}-outcomes", "--outcomes")
    if args.off == (args.url is not None):
        raise BadInput("give --url, or --off", field="--url")
    if args.url is not None and urlsplit(args.url).scheme not in ("http", "https"):
        raise BadInput("must begin with http:// or https://; a program on a socket subscribes to the queue of "
                       "outcomes instead", field="--url")  # fmt: skip
    with connection.open_existing(args) as queues:
        if args.url is not None:
            text = queues.read(lambda transaction: transaction.policy_text(goal))
            document = _loaded(text)
            document["webhook"] = {"url": args.url} | ({"secret": args.secret} if args.secret else {})
            queues.set_policy(goal, document)
        found = queues.set_dispatch(queue, {"outcomes": None if args.off else goal})
    if args.off:
        screen.answer({"queue": queue, "outcomes": None}, f"outcomes of {queue} are no longer sent")
    else:
        description = f"outcomes of {queue} go to {args.url}, through {goal}"
        screen.answer({"queue": queue, "outcomes": found["outcomes"], "url": args.url}, description)
    return output.OK


def _loaded(text: str | None) -> dict[str, Any]:
    from yirangmq.format.json_codec import loads

    found: dict[str, Any] = loads(text.encode()) if text else {}
    return found


# -- deliveries -------------------------------------------------------------------------------------------------------


def run_deliveries(args: argparse.Namespace, screen: Screen) -> int:
    validation.check_count(args.limit, "--limit", most=10_000)
    with connection.open_read_only(args, screen) as queues:
        rows = queues.deliveries(args.queue, id=args.id, consumer=args.consumer, status=args.status, limit=args.limit)
    if screen.json:
        screen.document({"ok": True, "deliveries": [_document(row) for row in rows]})
    elif rows:
        screen.table(DELIVERIES, [_delivery(row) for row in rows])
    else:
        screen.note("no deliveries; those of queues with a strategy are recorded while the server runs")
    return output.OK


def _document(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "begunAt": iso(row["begunAt"]), "endedAt": None if row["endedAt"] is None else iso(row["endedAt"])}


def _delivery(row: dict[str, Any]) -> tuple[object, ...]:
    took = "-" if row["endedAt"] is None else format_duration((row["endedAt"] - row["begunAt"]) / 1000)
    who = row["queue"], row["messageId"], row["consumerId"], row["attempt"]
    return Instant(row["begunAt"]), took, *who, row["status"], row["became"], row["reason"] or ""


DISPATCH_COMMANDS = {
    "dispatch": Command(
        about="Show and change the strategy that assigns the messages of a queue to its consumers. It can be "
        "changed at any time: no message is lost, and leased messages are not affected.\n\n"
        + "\n\n".join(f"{strategy.value}: {meaning}" for strategy, meaning in MEANING.items()),
        examples=(
            ("one message each, in turn", "yirangmq dispatch set orders --strategy round_robin"),
            ("in strict order, one at a time", "yirangmq dispatch set orders --strategy ordered"),
            ("the strategy and the consumers", "yirangmq dispatch show orders"),
        ),
        subcommands={
            "show": (
                "show the strategy of a queue and its consumers",
                Command(
                    about="Show the strategy of a queue, its consumers with their messages in flight, and how "
                    "many deliveries ended with which status since the server started.",
                    examples=(
                        ("one queue", "yirangmq dispatch show orders"),
                        ("for programs", "yirangmq dispatch show orders --json"),
                    ),
                    options=show_options,
                    run=run_show,
                ),
            ),
            "set": (
                "change the strategy and its settings",
                Command(
                    about="Change how the messages of a queue are assigned to consumers, from the next commit on. "
                    "Settings that are not named stay as they are.",
                    examples=(
                        ("a copy for every consumer", "yirangmq dispatch set prices --strategy broadcast"),
                        (
                            "three messages to one consumer for each message to another",
                            "yirangmq dispatch set orders --strategy priority --weight big=3 --weight small=1",
                        ),
                        (
                            "messages of one account to one consumer",
                            "yirangmq dispatch set orders --strategy key_hash --key account",
                        ),
                        ("no strategy", "yirangmq dispatch set orders --strategy none"),
                    ),
                    options=set_options,
                    run=run_set,
                ),
            ),
            "register": (
                "register consumers of a queue, so that they count while absent",
                Command(
                    about="Register consumers of a queue, so that they count while they are absent: broadcast "
                    "keeps copies for them, key_hash keeps their keys. A consumer that leases messages "
                    "counts without it, as long as it is connected.",
                    examples=(
                        ("two consumers", "yirangmq dispatch register prices ledger archive"),
                        ("for programs", "yirangmq dispatch register prices ledger --json"),
                    ),
                    options=register_options,
                    run=run_register,
                ),
            ),
            "deregister": (
                "remove the registration of consumers",
                Command(
                    about="Remove the registration of consumers of a queue. They then count only while they are "
                    "connected. Copies that broadcast kept for them become dead letters.",
                    examples=(
                        ("one of them", "yirangmq dispatch deregister prices archive"),
                        ("for programs", "yirangmq dispatch deregister prices archive --json"),
                    ),
                    options=register_options,
                    run=run_deregister,
                ),
            ),
            "callback": (
                "send the outcome of each delivery to a URL",
                Command(
                    about="Send the outcome of each delivery (DELIVERED, FAILED, TIMEOUT) to a URL: at least "
                    "once, with retries, and without a delay of deliveries. The outcomes are published to a "
                    "separate queue, whose policy sets the retries; a program may subscribe to that queue "
                    "instead.",
                    examples=(
                        ("by webhook", "yirangmq dispatch callback orders --url https://example.com/outcomes"),
                        ("stop", "yirangmq dispatch callback orders --off"),
                    ),
                    options=callback_options,
                    run=run_callback,
                ),
            ),
        },
    ),
    "deliveries": Command(
        about="List the latest deliveries of queues with a strategy: consumer, attempt, begin, duration and "
        "status. DELIVERING: leased; DELIVERED: acked; FAILED: nacked, rejected or released; TIMEOUT: the "
        "lease expired. The server remembers the latest 20 000 since it started.",
        examples=(
            ("of one queue", "yirangmq deliveries --queue orders"),
            ("failed deliveries to a consumer", "yirangmq deliveries --consumer worker-1 --status FAILED"),
            ("of one message, for programs", "yirangmq deliveries --queue orders --id o-17 --json"),
        ),
        options=deliveries_options,
        run=run_deliveries,
    ),
}


# -- pause, resume and schedules ---------------------------------------------------------------------------------------

COLUMNS = (
    TableColumn("queue"),
    TableColumn("name"),
    TableColumn("cron"),
    TableColumn("time zone", rank=2),
    TableColumn("next"),
    TableColumn("local time", rank=1),
)


def pause_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, what="the queue, or several", several=True)
    arguments.store(parser)


def list_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, needed=False, what="this queue only")
    arguments.store(parser)


def run_pause(args: argparse.Namespace, screen: Screen) -> int:
    return _set_paused(args, screen, paused=True)


def run_resume(args: argparse.Namespace, screen: Screen) -> int:
    return _set_paused(args, screen, paused=False)


def _set_paused(args: argparse.Namespace, screen: Screen, *, paused: bool) -> int:
    """Pause or resume queues. All names are validated before the first queue is changed."""
    wanted = list(dict.fromkeys(validation.check_queue(name) for name in args.queue))
    done: list[dict[str, Any]] = []
    with connection.open_existing(args) as queues:
        for queue in wanted:
            changed = queues.pause(queue) if paused else queues.resume(queue)
            done.append({"queue": queue, "paused": paused, "changed": changed})
    word = "paused" if paused else "resumed"
    same = "was paused already" if paused else "was not paused"
    if screen.json:
        screen.document({"ok": True, "queues": done})
    for row in done if not screen.json else []:
        screen.report(f"{word}: {row['queue']}" if row["changed"] else f"{row['queue']} {same}")
    return output.OK


def run_schedules(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_read_only(args, screen) as queues:
        rows = queues.schedules(args.queue)
    if screen.json:
        screen.document({"ok": True, "schedules": rows})
        return output.OK
    if not rows:
        screen.note("no queue has a schedule; schedules are members of a policy")
        return output.OK
    screen.table(COLUMNS, [_cells(row) for row in rows])
    for row in rows:
        if row["error"]:
            screen.note(f"{row['name']} of {row['queue']} does not fire: {row['error']}")
    return output.OK


def _cells(row: dict[str, Any]) -> list[object]:
    return [row["queue"], row["name"], row["cron"], row["timezone"], instant_of(row["nextAt"]), row["nextLocal"]]


COMMANDS = {
    **DISPATCH_COMMANDS,
    "queue": Command(
        about="Pause and resume the delivery of a queue's messages. A pause lasts until the queue is resumed, "
        "also across restarts.",
        examples=(
            ("while a system behind the queue is down", "yirangmq queue pause telemetry"),
            ("resume", "yirangmq queue resume telemetry"),
        ),
        subcommands={
            "pause": (
                "stop delivery; publishing continues",
                Command(
                    about="Stop the delivery of these queues until they are resumed. Publishing continues, and "
                    "consumers may finish their leased messages.",
                    examples=(
                        ("one queue", "yirangmq queue pause telemetry"),
                        ("two, for programs", "yirangmq queue pause telemetry mail --json"),
                    ),
                    options=pause_options,
                    run=run_pause,
                ),
            ),
            "resume": (
                "start delivery again",
                Command(
                    about="Start the delivery of these queues again. Waiting consumers get messages at once.",
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
        about="Messages that a server publishes at the times of a cron line. Schedules are members of the "
        "policies of their queues (docs/policy.md).",
        examples=(
            ("all schedules", "yirangmq schedule list"),
            ("of one queue", "yirangmq schedule list --queue telemetry"),
        ),
        subcommands={
            "list": (
                "list the schedules with their next run",
                Command(
                    about="List every schedule with its next run: in UTC, and in the local time of its time zone.",
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
