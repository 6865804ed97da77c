"""``topic``: publish, subscribe, list, show, tail, replay, trim. Here are the two that look; the others have modules
of their own."""

import argparse
from typing import Any

from yirangmq.cli import exits, topic_follow, topic_place, topic_publish, topic_replay, topic_tune
from yirangmq.cli.command import Command
from yirangmq.cli.feedview import feed_line, show_subscribers
from yirangmq.cli.records import record_line
from yirangmq.cli.screen import Screen
from yirangmq.cli.table import Column
from yirangmq.cli.values import brief
from yirangmq.core.topic_filter import make_filter

TOPIC_COLUMNS = (
    Column("topic", shrinks=True),
    Column("records", right=True),
    Column("bytes", right=True),
    Column("topic seq", right=True),
    Column("sequence", right=True),
    Column("last at"),
    Column("per sec", right=True),
)


def list_options(parser: argparse.ArgumentParser) -> None:
    topic_place.add_options(parser)


def show_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="its name")
    topic_place.add_options(parser)


def run_list(args: argparse.Namespace, screen: Screen) -> int:
    with topic_place.opened(args) as topics:
        about = topics.list()
        subscribers = [*topics.subscribers()]
    if screen.json:
        screen.document({"ok": True, **about, "following": subscribers})
        return exits.OK
    screen.say(feed_line(about))
    for first, last in about.get("gaps", ()):
        screen.note(f"the log has lost the records {first} to {last}")
    if about["topics"]:
        screen.table(TOPIC_COLUMNS, [_cells(row) for row in about["topics"]])
    else:
        screen.note("no topics yet; publishing to one makes it")
    if subscribers:
        screen.say()
        show_subscribers(screen, subscribers)
    return exits.OK


def run_show(args: argparse.Namespace, screen: Screen) -> int:
    with topic_place.opened(args) as topics:
        row = topics.show(args.topic)
        following = [one for one in topics.subscribers() if _wants(one, args.topic)]
        page = topics.read(args.topic, sequence=row["sequence"], limit=1) if row["records"] else None
    if screen.json:
        screen.document({"ok": True, **row, "following": following})
        return exits.OK
    screen.table(TOPIC_COLUMNS, [_cells(row)])
    if page is not None and page.records:
        screen.say(f"last: {record_line(page.records[0])}")
    if following:
        screen.say()
        show_subscribers(screen, following)
    else:
        screen.note("nobody follows it")
    return exits.OK


def _cells(row: dict[str, Any]) -> list[object]:
    names = ("topic", "records", "bytes", "topicSequence", "sequence")
    return [*(row[name] for name in names), brief(row["at"]), row["publishedPerSec"]]


def _wants(row: dict[str, Any], topic: str) -> bool:
    """By the text of its filter; what a mask means only the server knows, so that one may follow anything."""
    words = [word for word in row["filter"].split(",") if word]
    plain = [word for word in words if not word.startswith("mask=")]
    return len(plain) < len(words) or make_filter(plain).wants(topic)


COMMANDS = {
    "topic": Command(
        about="Topics: every subscriber gets every record, in order (docs/topics.md). Through the server where one "
        "runs, on its log directly where none does.",
        examples=(
            ("publish", "yirangmq topic publish quotes.krx '{\"price\": 71200}'"),
            ("the last ones", "yirangmq topic tail"),
            ("follow from the beginning", "yirangmq topic subscribe 'quotes.*' --from-beginning"),
        ),
        verbs={
            "publish": ("put records into a topic", topic_publish.COMMAND),
            "subscribe": ("follow topics, from any point", topic_follow.SUBSCRIBE),
            "list": (
                "list the topics and who follows",
                Command(
                    about="All topics with their numbers, the state of the feed, and everybody who follows it: state, "
                    "sequence, lag. Durable subscribers are listed also while they are away.",
                    examples=(
                        ("for people", "yirangmq topic list"),
                        ("of another server, for programs", "yirangmq topic list --store tcp://127.0.0.1:7411 --json"),
                    ),
                    options=list_options,
                    run=run_list,
                ),
            ),
            "show": (
                "one topic, its last record, who follows it",
                Command(
                    about="One topic: its numbers, its last record, and who follows it.",
                    examples=(
                        ("for people", "yirangmq topic show quotes.krx"),
                        ("for programs", "yirangmq topic show quotes.krx --json"),
                    ),
                    options=show_options,
                    run=run_show,
                ),
            ),
            "tail": ("the last records", topic_follow.TAIL),
            "replay": ("records once more, printed or published", topic_replay.REPLAY),
            "trim": ("give up the oldest records", topic_replay.TRIM),
            "tune": ("see and change how a running server sends", topic_tune.COMMAND),
        },
    ),
}
