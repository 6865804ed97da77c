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
        "--strategy", choices=[*Strategy, NONE], help="how messages are given out; none: whoever is first, unrecorded"
    )
    parser.add_argument(
        "--weight",
        action="append",
        metavar="CONSUMER=N",
        help="of a consumer, or of all that fit a pattern, for priority; 0: a reserve. May be given several times",
    )
    parser.add_argument("--key", metavar="ATTRIBUTE", help="the attribute for key_hash; '' is the group id")
    parser.add_argument("--grace", type=float, metavar="SECONDS", help="a consumer may be away for so long")
    parser.add_argument("--outcomes", metavar="QUEUE", help="tell the end of each delivery to this queue; '' ends it")
    arguments.store(parser, has_own_key=True)


def register_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    parser.add_argument("consumers", nargs="+", metavar="CONSUMER", help="the name under which it takes messages")
    arguments.store(parser)


def callback_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, what="the queue whose deliveries are reported")
    parser.add_argument("--url", metavar="URL", help="POST each outcome to this address")
    parser.add_argument("--secret", metavar="NAME", help="sign them with this secret of the server")
    parser.add_argument("--outcomes", metavar="QUEUE", help="the queue they go through (default: QUEUE-outcomes)")
    parser.add_argument("--off", action="store_true", help="tell them no longer; what is not told yet still is")
    arguments.store(parser)


def deliveries_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, needed=False, what="of this one only")
    parser.add_argument("--id", metavar="MESSAGE", help="of this message only")
    parser.add_argument("--consumer", metavar="NAME", help="to this consumer only")
    parser.add_argument("--status", choices=[*DeliveryStatus], help="in this status only")
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
    about = MEANING[Strategy(strategy)] if strategy else "whoever is first takes them, and nothing is recorded"
    screen.report(f"{found['queue']}: {strategy or NONE} ({about})")
    counts = "  ".join(f"{status} {count}" for status, count in found["deliveries"].items())
    if strategy:
        screen.report(f"in flight {found['inFlight']}  {counts}")
    if found["outcomes"]:
        screen.report(f"outcomes are told to {found['outcomes']}")
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
        screen.answer({"queue": queue, "outcomes": None}, f"outcomes of {queue} are told no longer")
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
        screen.note("no delivery is known; those of queues with a strategy are recorded, while the server runs")
    return output.OK


def _document(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "begunAt": iso(row["begunAt"]), "endedAt": None if row["endedAt"] is None else iso(row["endedAt"])}


def _delivery(row: dict[str, Any]) -> tuple[object, ...]:
    took = "-" if row["endedAt"] is None else format_duration((row["endedAt"] - row["begunAt"]) / 1000)
    who = row["queue"], row["messageId"], row["consumerId"], row["attempt"]
    return Instant(row["begunAt"]), took, *who, row["status"], row["became"], row["reason"] or ""


DISPATCH_COMMANDS = {
    "dispatch": Command(
        about="By which strategy the messages of a queue are given to its consumers, and who they are. It can be "
        "changed while consumers are at work: nothing is lost, and nothing that is in hand is touched.\n\n"
        + "\n\n".join(f"{strategy.value}: {meaning}" for strategy, meaning in MEANING.items()),
        examples=(
            ("one message each, in turn", "yirangmq dispatch set orders --strategy round_robin"),
            ("strictly one after the other", "yirangmq dispatch set orders --strategy ordered"),
            ("how is it, and who is there?", "yirangmq dispatch show orders"),
        ),
        subcommands={
            "show": (
                "the strategy of a queue, and its consumers",
                Command(
                    about="The strategy of a queue, its consumers with what each has in flight, and how many "
                    "deliveries ended in which status since the server started.",
                    examples=(
                        ("one queue", "yirangmq dispatch show orders"),
                        ("for programs", "yirangmq dispatch show orders --json"),
                    ),
                    options=show_options,
                    run=run_show,
                ),
            ),
            "set": (
                "change the strategy, and what belongs to it",
                Command(
                    about="Change how the messages of a queue are given out, from the next commit on. What is not "
                    "said stays as it is.",
                    examples=(
                        ("a copy for everybody", "yirangmq dispatch set prices --strategy broadcast"),
                        (
                            "three for one, one for the other",
                            "yirangmq dispatch set orders --strategy priority --weight big=3 --weight small=1",
                        ),
                        (
                            "one account, one consumer",
                            "yirangmq dispatch set orders --strategy key_hash --key account",
                        ),
                        ("as without any", "yirangmq dispatch set orders --strategy none"),
                    ),
                    options=set_options,
                    run=run_set,
                ),
            ),
            "register": (
                "make programs consumers of a queue, also while they are away",
                Command(
                    about="Make programs consumers of a queue, also while they are away: broadcast keeps copies for "
                    "them, key_hash keeps their keys for them. Whoever takes messages is one anyway, for as long as "
                    "it is there.",
                    examples=(
                        ("two of them", "yirangmq dispatch register prices ledger archive"),
                        ("for programs", "yirangmq dispatch register prices ledger --json"),
                    ),
                    options=register_options,
                    run=run_register,
                ),
            ),
            "deregister": (
                "they are consumers only while they are there",
                Command(
                    about="Programs are consumers of a queue no longer, but for as long as they are there. Copies that "
                    "broadcast kept for them go to the dead letters.",
                    examples=(
                        ("one of them", "yirangmq dispatch deregister prices archive"),
                        ("for programs", "yirangmq dispatch deregister prices archive --json"),
                    ),
                    options=register_options,
                    run=run_deregister,
                ),
            ),
            "callback": (
                "tell the end of each delivery to an address",
                Command(
                    about="Tell the end of each delivery (DELIVERED, FAILED, TIMEOUT) to an address: at least once, "
                    "with retries, and without delaying any delivery. They go through a queue of their own, whose "
                    "policy says how often it is tried; a program may as well subscribe to that queue.",
                    examples=(
                        ("by webhook", "yirangmq dispatch callback orders --url https://example.com/outcomes"),
                        ("no longer", "yirangmq dispatch callback orders --off"),
                    ),
                    options=callback_options,
                    run=run_callback,
                ),
            ),
        },
    ),
    "deliveries": Command(
        about="The latest deliveries of queues that have a strategy: to whom, which attempt, when it began and ended, "
        "and how. DELIVERING: in a consumer's hands; DELIVERED: confirmed; FAILED: failed, rejected or given back; "
        "TIMEOUT: its time ran out. The server remembers the latest 20 000 since it started.",
        examples=(
            ("of one queue", "yirangmq deliveries --queue orders"),
            ("what went wrong with a consumer", "yirangmq deliveries --consumer worker-1 --status FAILED"),
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
    arguments.queue(parser, needed=False, what="this one only")
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
        screen.note("no queue has a schedule; they stand in its policy")
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
        about="Stop handing the messages of a queue out, and begin again. It lasts: a restart changes nothing.",
        examples=(
            ("while a system behind is down", "yirangmq queue pause telemetry"),
            ("go on", "yirangmq queue resume telemetry"),
        ),
        subcommands={
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
        subcommands={
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
