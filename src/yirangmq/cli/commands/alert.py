"""Commands ``alert list | show | ack | test | rules``: alerts of a server.

All of them call a method of the server, and fail without one. Alerts are kept and evaluated by ``alerts.monitor``."""

import argparse
import getpass
from typing import Any

from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import count_text
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.table import TableColumn, instant_of
from yirangmq.core.alerts import Level
from yirangmq.core.errors import Unavailable

COLUMNS = (
    TableColumn("id", right=True),
    TableColumn("level", marks=True),
    TableColumn("state", marks=True, rank=1),
    TableColumn("rule", rank=2),
    TableColumn("since", rank=1),
    TableColumn("acknowledged", rank=3),
    TableColumn("what", shrinks=True),
)
RULE_COLUMNS = (
    TableColumn("rule"),
    TableColumn("on", marks=True),
    TableColumn("limit", right=True),
    TableColumn("unit", rank=1),
    TableColumn("level", marks=True, rank=2),
    TableColumn("about", shrinks=True),
)
SINK_COLUMNS = (
    TableColumn("sink"),
    TableColumn("kind", rank=1),
    TableColumn("level", rank=2),
    TableColumn("sent", right=True),
    TableColumn("failed", right=True, alarms=True),
    TableColumn("lost", right=True, alarms=True),
    TableColumn("pending", right=True, rank=3),
    TableColumn("last error", shrinks=True),
)


def _call(args: argparse.Namespace, method: str, **values: Any) -> Any:
    with connection.open_existing(args) as queues:
        if connection.address_of(queues) is None:
            raise Unavailable("no server holds this store; alerts are a server's: begin with 'yirangmq serve'")
        return connection.call(queues, method, **values)


# -- list and show ----------------------------------------------------------------------------------------------------


def list_options(parser: argparse.ArgumentParser) -> None:
    arguments.store(parser)
    parser.add_argument("--all", action="store_true", help="also alerts that are over")
    parser.add_argument("--sinks", action="store_true", help="also list the sinks with their results")


def run_list(args: argparse.Namespace, screen: Screen) -> int:
    found = _call(args, "alerts", state="all" if args.all else "open")
    if screen.json:
        screen.document({"ok": True, **found})
        return output.OK
    if not found["enabled"]:
        screen.note("alerts are off: the setting alerts.enabled is false")
    if found["alerts"]:
        screen.table(COLUMNS, [_cells(one) for one in found["alerts"]])
    else:
        screen.note("no alerts" if args.all else "no open alerts; --all shows those that are over")
    withheld = sum(one["withheld"] for one in found["alerts"])
    if withheld:
        screen.note(f"{count_text(withheld, 'notice')} withheld: there were too many in this hour")
    if args.sinks:
        screen.report()
        screen.table(SINK_COLUMNS, [_sink(one) for one in found["sinks"]])
    return output.OK


def _cells(one: dict[str, Any]) -> tuple[object, ...]:
    acked = one["acknowledgedBy"] or ("yes" if one["acknowledgedAt"] else None)
    return one["id"], one["level"], one["state"], one["rule"], instant_of(one["openedAt"]), acked, one["text"]


def _sink(one: dict[str, Any]) -> tuple[object, ...]:
    names = ("sink", "kind", "level", "sent", "failed", "lost", "pending", "lastError")
    return tuple(one[name] for name in names)


def one_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="alert id, as 'alert list' prints it")
    arguments.store(parser)


def run_show(args: argparse.Namespace, screen: Screen) -> int:
    found = _call(args, "alert_show", id=args.id)
    lines = [f"{name:<15} {value}" for name, value in found.items() if value is not None]
    screen.answer({"alert": found}, "\n".join(lines))
    return output.OK


# -- ack --------------------------------------------------------------------------------------------------------------


def ack_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+", help="alert id, as 'alert list' prints it")
    parser.add_argument("--by", metavar="NAME", help="name of the person (default: your user name)")
    parser.add_argument("--note", metavar="TEXT", default="", help="note about the work on it")
    arguments.store(parser)


def run_ack(args: argparse.Namespace, screen: Screen) -> int:
    by = _myself() if args.by is None else args.by
    for id in args.ids:
        found = _call(args, "alert_ack", id=id, by=by, note=args.note)
        who = f" by {found['acknowledgedBy']}" if found["acknowledgedBy"] else ""
        screen.answer({"alert": found}, f"acknowledged{who}: {found['text']}")
    return output.OK


def _myself() -> str:
    try:
        return getpass.getuser()[:100]
    except (KeyError, OSError):  # the user has no name in the password database
        return ""


# -- test and rules ---------------------------------------------------------------------------------------------------


def test_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sink", metavar="NAME", default="", help="this sink only")
    parser.add_argument(
        "--level", choices=tuple(Level), default=Level.INFO.value, help="level of the notice (default: INFO)"
    )
    arguments.store(parser)


def run_test(args: argparse.Namespace, screen: Screen) -> int:
    rows = _call(args, "alert_test", sink=args.sink, level=args.level)["sinks"]
    is_well = all(row["ok"] for row in rows)
    if screen.json:
        screen.document({"ok": is_well, "sinks": rows})
    for row in rows if not screen.json else ():
        screen.report(f"{row['sink']}: " + (f"took it in {row['seconds']:g} s" if row["ok"] else row["error"]))
    return output.OK if is_well else output.UNHEALTHY


def rules_options(parser: argparse.ArgumentParser) -> None:
    arguments.store(parser)


def run_rules(args: argparse.Namespace, screen: Screen) -> int:
    rows = _call(args, "alert_rules")
    if screen.json:
        screen.document({"ok": True, "rules": rows})
        return output.OK
    screen.table(RULE_COLUMNS, [_rule(row) for row in rows])
    return output.OK


def _rule(row: dict[str, Any]) -> tuple[object, ...]:
    limit = None if row["limit"] is None else f"{row['limit']:g}"
    own = "".join(f", {pattern}: {value:g}" for pattern, value in row["queues"].items())
    about = f"{row['about']}{own}"
    return row["rule"], "yes" if row["enabled"] else "no", limit, row["unit"], row["level"], about


COMMANDS = {
    "alert": Command(
        about="Faults of a server, and the notices about them (docs/alerts.md). There is one alert for each "
        "fault, from its first detection until it has been absent for a while.",
        examples=(
            ("open alerts", "yirangmq alert list"),
            ("acknowledge one", "yirangmq alert ack 17 --note 'a new disk is on its way'"),
        ),
        subcommands={
            "list": (
                "list open alerts, the worst first",
                Command(
                    about="List open alerts, the worst first. open: the fault is present; settling: it is absent, "
                    "and the alert is over if it stays so.",
                    examples=(
                        ("open alerts", "yirangmq alert list"),
                        ("with those that are over, for programs", "yirangmq alert list --all --json"),
                        ("with the sinks", "yirangmq alert list --sinks"),
                    ),
                    options=list_options,
                    run=run_list,
                ),
            ),
            "show": (
                "print one alert",
                Command(
                    about="Print all details of one alert.",
                    examples=(
                        ("for people", "yirangmq alert show 17"),
                        ("for programs", "yirangmq alert show 17 --json"),
                    ),
                    options=one_options,
                    run=run_show,
                ),
            ),
            "ack": (
                "acknowledge alerts",
                Command(
                    about="Acknowledge alerts: there are no more reminders of them, unless they get worse. An "
                    "alert stays open until its fault is absent. A repeated acknowledgement changes "
                    "nothing.",
                    examples=(
                        ("one", "yirangmq alert ack 17"),
                        ("several, with a note", "yirangmq alert ack 17 18 --by night-shift --note 'vendor called'"),
                    ),
                    options=ack_options,
                    run=run_ack,
                ),
            ),
            "test": (
                "send a test notice",
                Command(
                    about="Send a test notice to every sink, whatever its levels and rules, and report the "
                    "results. The command exits with 11 if a sink rejected it.",
                    examples=(
                        ("to all", "yirangmq alert test"),
                        ("to one", "yirangmq alert test --sink email --level CRITICAL"),
                    ),
                    options=test_options,
                    run=run_test,
                ),
            ),
            "rules": (
                "list the rules and their limits",
                Command(
                    about="List every rule with its limit, as the setting alerts has it. 0 turns a rule off.",
                    examples=(
                        ("for people", "yirangmq alert rules"),
                        ("for programs", "yirangmq alert rules --json"),
                    ),
                    options=rules_options,
                    run=run_rules,
                ),
            ),
        },
    )
}
