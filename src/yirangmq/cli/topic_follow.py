"""``topic subscribe`` and ``topic tail``: records as they come, and the last ones."""

import argparse
from collections import deque
from collections.abc import Iterable
from typing import Any

from yirangmq.cli import exits, topic_place
from yirangmq.cli.command import Command
from yirangmq.cli.consuming import stopping_on_terminate
from yirangmq.cli.records import moment_of, sequence_of, show_records
from yirangmq.cli.screen import Screen
from yirangmq.client.sync_client import Topics
from yirangmq.client.values import Event, LostRecords, Missing, NewEpoch, TopicRecord
from yirangmq.core import validation
from yirangmq.core.errors import BadInput
from yirangmq.core.topics import MOST_SEQUENCE, ClientState

PAGE = 1000
MOST_TAIL = 1_000_000


def subscribe_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="names and patterns (default: all topics)")
    where = parser.add_argument_group("where it begins (default: with what is published from now on)")
    where.add_argument("--from-beginning", action="store_true", help="with the first record that is kept")
    where.add_argument("--from-seq", type=int, metavar="N", help="at this sequence")
    where.add_argument("--from-time", metavar="TIME", help="2026-01-13T10:21:00Z, seconds since 1970, or ago: 15m")
    where.add_argument("--name", metavar="NAME", help="durable: the server keeps how far it is, and it goes on there")
    where.add_argument("--anew", action="store_true", help="with --name: not where it left off")
    where.add_argument("--cursor", metavar="FILE", help="keep how far it is in a file here, and go on there")
    parser.add_argument("--mask", type=int, default=0, metavar="N", help="topics by their bits, beside those named")
    parser.add_argument("--limit", type=int, metavar="N", help="stop after so many")
    parser.add_argument("--idle", type=float, metavar="SECONDS", help="stop when nothing came for so long")
    _shape(parser)


def tail_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="names and patterns (default: all topics)")
    parser.add_argument("-n", "--lines", type=int, default=10, metavar="N", help="so many (default: 10)")
    parser.add_argument("-f", "--follow", action="store_true", help="then go on with what is published")
    _shape(parser)


def _shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", action="store_true", help="print the payload's bytes and a line feed, nothing else")
    topic_place.add_options(parser)


# -- subscribe --------------------------------------------------------------------------------------------------------


def run_subscribe(args: argparse.Namespace, screen: Screen) -> int:
    given = _terms(args)
    limit = MOST_SEQUENCE if args.limit is None else validation.check_count(args.limit, "--limit", most=MOST_SEQUENCE)
    with stopping_on_terminate(), topic_place.opened(args) as topics:
        _follow(args, screen, topics, given, limit)
    return exits.OK


def _terms(args: argparse.Namespace) -> dict[str, Any]:
    said = [name for name in ("from_beginning", "from_seq", "from_time") if getattr(args, name) not in (None, False)]
    if len(said) > 1:
        raise BadInput(f"stands beside --{said[0].replace('_', '-')}", field=f"--{said[1].replace('_', '-')}")
    if args.anew and not (args.name or args.cursor):
        raise BadInput("goes with --name or --cursor", field="--anew")
    given: dict[str, Any] = {"mask": args.mask, "resume": not args.anew}
    if args.from_beginning:
        given["start"] = "beginning"
    if args.from_seq is not None:
        given["sequence"] = sequence_of(args.from_seq, "--from-seq")
    if args.from_time is not None:
        given["time"] = moment_of(args.from_time, "--from-time")
    if args.name is not None:
        given["name"] = args.name
    if args.cursor is not None:
        given["cursor_file"] = args.cursor
    return given


def _follow(args: argparse.Namespace, screen: Screen, topics: Topics, given: dict[str, Any], limit: int) -> None:
    """Each record is confirmed after it was printed."""

    def tell(event: Event) -> None:
        text = _said(event)
        if text:
            screen.note(text)

    idle = None if args.idle is None else validation.check_milliseconds(args.idle, "--idle") / 1000
    with topics.subscribe(args.topics, confirm="manual", on_event=tell, **given) as subscription:
        while limit and (batch := subscription.next_batch(idle)):
            show_records(args, screen, batch[:limit])
            subscription.confirm(batch[:limit][-1].sequence)
            limit -= len(batch[:limit])


def _said(event: Event) -> str:
    if isinstance(event, LostRecords):
        return f"the log has lost the records {event.first} to {event.last}"
    if isinstance(event, NewEpoch):
        return f"the feed began anew: its epoch is {event.after}"
    if isinstance(event, Missing):
        return f"something after {event.after} did not arrive ({event.why}); asked for again"
    if event.after is ClientState.OFFLINE and event.before is not ClientState.CONNECTED and event.why != "closed":
        return f"offline: {event.why}"
    return ""


# -- tail -------------------------------------------------------------------------------------------------------------


def run_tail(args: argparse.Namespace, screen: Screen) -> int:
    count = validation.check_count(args.lines, "-n", least=0, most=MOST_TAIL)
    with stopping_on_terminate(), topic_place.opened(args) as topics:
        about = topics.list()
        if "last" not in about and not args.follow:
            screen.note("no topics yet; publishing to one makes it")
            return exits.OK
        last = about.get("last", 0)
        found = latest(topics, args.topics, count, about.get("first", 1), last)
        show_records(args, screen, found)
        if args.follow:
            args.idle = None
            begin = {"sequence": last + 1, "epoch": about["epoch"]} if "last" in about else {"start": "new"}
            _follow(args, screen, topics, begin, MOST_SEQUENCE)
    return exits.OK


def latest(topics: Topics, wanted: list[str], count: int, first: int, last: int) -> Iterable[TopicRecord]:
    """The last ``count`` that are wanted, up to ``last``, in order: looked for from the end on, further and further."""
    found: deque[TopicRecord] = deque()
    end, span = last + 1, max(count, 1)
    while len(found) < count and end > first:
        begin = max(first, end - span)
        found.extendleft(reversed(_between(topics, wanted, begin, end, count)))
        end, span = begin, span * 4
    return [*found][-count:] if count else []


def _between(topics: Topics, wanted: list[str], begin: int, end: int, most: int) -> "deque[TopicRecord]":
    found: deque[TopicRecord] = deque(maxlen=most)
    while begin < end:
        page = topics.read(wanted, sequence=begin, limit=min(PAGE, end - begin))
        found.extend(one for one in page.records if one.sequence < end)
        begin = page.next
    return found


SUBSCRIBE = Command(
    about="Follow topics: print each record as it comes, in order, each once. After a loss it connects again and goes "
    "on where it was.\n\n"
    "In a pattern * is any characters, ? is one, + is one level (no dot). With --name it is a durable subscriber: the "
    "server keeps how far it has come, after each record was printed. Without a server the log is read directly; "
    "under a name then only what is there.",
    examples=(
        ("everything from now on", "yirangmq topic subscribe"),
        ("some topics, from an hour ago, for programs", "yirangmq topic subscribe 'quotes.*' --from-time 1h --json"),
        ("durable: go on where it was when it stopped", "yirangmq topic subscribe trades --name ledger"),
        ("a range, and then stop", "yirangmq topic subscribe --from-seq 1000 --limit 50"),
    ),
    options=subscribe_options,
    run=run_subscribe,
)
TAIL = Command(
    about="The last records of topics, in order.",
    examples=(
        ("the last ten of all", "yirangmq topic tail"),
        ("the last three of one topic, and what comes", "yirangmq topic tail trades -n 3 --follow"),
    ),
    options=tail_options,
    run=run_tail,
)
