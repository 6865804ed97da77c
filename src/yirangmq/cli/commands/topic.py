"""Commands ``topic list | show | tune``, and the command group ``topic``.

The other commands of the group are in ``cli.commands.topic_io`` and ``cli.commands.topic_replay``. ``tune`` changes
delivery limits of a running server until it stops."""

import argparse
from typing import Any

from yirangmq.cli import arguments, output
from yirangmq.cli.command import Command
from yirangmq.cli.commands import topic_common, topic_io, topic_replay
from yirangmq.cli.commands.topic_common import record_line
from yirangmq.cli.output import Screen
from yirangmq.cli.render import publisher_line, show_subscribers
from yirangmq.cli.table import TableColumn, instant_of
from yirangmq.core.errors import Unavailable
from yirangmq.core.topic_filter import make_filter

# -- tune --------------------------------------------------------------------------------------------------------------

NAMES = ("recovery_workers", "buffer_bytes", "lag_limit")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recovery-workers", type=int, metavar="N", help="number of threads that send history")
    parser.add_argument(
        "--buffer-bytes",
        type=int,
        metavar="N",
        help="maximum of unsent bytes of one subscriber; further records wait in the log",
    )
    parser.add_argument("--lag-limit", type=int, metavar="N", help="lag from which health is degraded; 0: no limit")
    topic_common.add_options(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    if not topic_common.address_of(args):
        raise Unavailable("no server runs here; its settings are in docs/configuration.md")
    given: dict[str, Any] = {name: getattr(args, name) for name in NAMES}
    with topic_common.open_topics(args) as topics:
        found = topics.tune(**given)
    screen.answer(found, "\n".join(f"{name} {found[name]}" for name in NAMES))
    return output.OK


COMMAND = Command(
    about="Show and change how the running server sends topics. A change lasts until the server stops; the "
    "settings recovery_workers, topic_buffer_bytes and topic_lag_limit apply from its start "
    "(docs/configuration.md).",
    examples=(
        ("the values now", "yirangmq topic tune"),
        ("for many subscribers that reconnect at the same time", "yirangmq topic tune --recovery-workers 8"),
    ),
    options=add_options,
    run=run,
)


# -- list and show -----------------------------------------------------------------------------------------------------

TOPIC_COLUMNS = (
    TableColumn("topic"),
    TableColumn("records", right=True),
    TableColumn("bytes", right=True, rank=2),
    TableColumn("topic seq", right=True, rank=4),
    TableColumn("sequence", right=True, rank=3),
    TableColumn("last at"),
    TableColumn("per sec", right=True, rank=1),
)


def list_options(parser: argparse.ArgumentParser) -> None:
    topic_common.add_options(parser)


def show_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    topic_common.add_options(parser)


def run_list(args: argparse.Namespace, screen: Screen) -> int:
    with topic_common.open_topics(args) as topics:
        about = topics.list()
        subscribers = [*topics.subscribers()]
    if screen.json:
        screen.document({"ok": True, **about, "following": subscribers})
        return output.OK
    screen.report(publisher_line(about))
    for first, last in about.get("gaps", ()):
        screen.note(f"the log has lost the records {first} to {last}")
    if about["topics"]:
        screen.table(TOPIC_COLUMNS, [_cells(row) for row in about["topics"]])
    else:
        screen.note("no topics yet; publishing to one creates it")
    if subscribers:
        screen.report()
        show_subscribers(screen, subscribers)
    return output.OK


def run_show(args: argparse.Namespace, screen: Screen) -> int:
    with topic_common.open_topics(args) as topics:
        row = topics.show(args.topic)
        following = [one for one in topics.subscribers() if _may_follow(one, args.topic)]
        page = topics.read(args.topic, sequence=row["sequence"], limit=1) if row["records"] else None
    if screen.json:
        screen.document({"ok": True, **row, "following": following})
        return output.OK
    screen.table(TOPIC_COLUMNS, [_cells(row)])
    if page is not None and page.records:
        screen.report(f"last: {record_line(page.records[0])}")
    if following:
        screen.report()
        show_subscribers(screen, following)
    else:
        screen.note(f"{args.topic} has no subscribers")
    return output.OK


def _cells(row: dict[str, Any]) -> list[object]:
    names = ("topic", "records", "bytes", "topicSequence", "sequence")
    return [*(row[name] for name in names), instant_of(row["at"]), row["publishedPerSec"]]


def _may_follow(row: dict[str, Any], topic: str) -> bool:
    """Return True if a subscriber may follow the topic, judged by the text of its filter.

    Only the server knows which topics a mask selects, so a filter with a mask matches every topic."""
    words = [word for word in row["filter"].split(",") if word]
    plain = [word for word in words if not word.startswith("mask=")]
    return len(plain) < len(words) or make_filter(plain).wants(topic)


def forget_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="durable subscriber, as 'topic list' prints it")
    arguments.dry_run(parser)
    topic_common.add_options(parser)


def run_forget(args: argparse.Namespace, screen: Screen) -> int:
    with topic_common.open_topics(args) as topics:
        known = {row["name"]: row for row in topics.subscribers() if row["name"]}
        topics.drop_subscriber(args.name, dry_run=args.dry_run)
    row = known.get(args.name, {})
    value = {"name": args.name, "confirmed": row.get("confirmed"), "lag": row.get("lag"), "dryRun": args.dry_run}
    text = f"{'would have been forgotten' if args.dry_run else 'forgotten'}: {args.name}"
    if row:
        text += f", confirmed up to {row['confirmed']}, {row['lag']:,} records behind"
    screen.answer(value, text)
    return output.OK


FORGET = Command(
    about="Forget a durable subscriber that is not connected: its cursor is deleted, and the log no longer keeps "
    "records for it. If it subscribes again under its name, it starts as a new one.",
    examples=(
        ("show what would be forgotten", "yirangmq topic forget ledger --dry-run"),
        ("forget it", "yirangmq topic forget ledger"),
    ),
    options=forget_options,
    run=run_forget,
)
COMMANDS = {
    "topic": Command(
        about="Topics: every subscriber gets every record, in order (docs/topics.md). The commands use the server "
        "if one runs, and otherwise open the log.",
        examples=(
            ("publish", "yirangmq topic publish quotes.krx '{\"price\": 71200}'"),
            ("print the last records", "yirangmq topic tail"),
            ("follow from the beginning", "yirangmq topic subscribe 'quotes.*' --from-beginning"),
        ),
        subcommands={
            "publish": ("publish records to a topic", topic_io.COMMAND),
            "subscribe": ("subscribe to topics, from any position", topic_io.SUBSCRIBE),
            "list": (
                "list the topics and their subscribers",
                Command(
                    about="List all topics with their numbers, the state of the feed, and all subscribers with "
                    "state, sequence and lag. Durable subscribers are listed also while they are absent.",
                    examples=(
                        ("for people", "yirangmq topic list"),
                        ("of another server, for programs", "yirangmq topic list --store tcp://127.0.0.1:7411 --json"),
                    ),
                    options=list_options,
                    run=run_list,
                ),
            ),
            "show": (
                "show a topic, its last record and its subscribers",
                Command(
                    about="Show one topic: its numbers, its last record, and its subscribers.",
                    examples=(
                        ("for people", "yirangmq topic show quotes.krx"),
                        ("for programs", "yirangmq topic show quotes.krx --json"),
                    ),
                    options=show_options,
                    run=run_show,
                ),
            ),
            "tail": ("print the last records", topic_io.TAIL),
            "replay": ("print or publish stored records again", topic_replay.REPLAY),
            "trim": ("remove the oldest records", topic_replay.TRIM),
            "forget": ("forget a durable subscriber", FORGET),
            "tune": ("show and change how a running server sends", COMMAND),
        },
    ),
}
