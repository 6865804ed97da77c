"""Commands ``topic publish | subscribe | tail``.

``publish`` takes one record, files, lines, or the JSON lines that ``subscribe --json`` prints. Files are checked to
their last line before anything is published; stdin is published as it arrives. ``subscribe`` confirms records after
they were printed, several at a time, also when a signal ends it."""

import argparse
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from yirangmq.cli import arguments, output
from yirangmq.cli.arguments import count_text
from yirangmq.cli.command import Command
from yirangmq.cli.commands import topic_common
from yirangmq.cli.commands.consume import stopping_on_signals
from yirangmq.cli.commands.topic_common import header_of, moment_of, sequence_of, show_records
from yirangmq.cli.lines import InputLine, line_batches
from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar
from yirangmq.client.cursors import CURSOR_SECONDS
from yirangmq.client.sync_client import ClientTopics, TopicSubscription
from yirangmq.client.values import Event, LostRecords, Missing, NewEpoch, Receipt, TopicRecord
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.topics import MAX_SEQUENCE, NO_HEADERS, NewRecord, SubscriberState, check_topic
from yirangmq.format.topic_record import from_json
from yirangmq.fsio.input_file import open_input, read_input
from yirangmq.wire.frames import MAX_FRAME
from yirangmq.wire.records import check_record

# -- publish -----------------------------------------------------------------------------------------------------------

MAX_LINE_BYTES = MAX_FRAME * 4 // 3 + 1024
"""Maximum length of an input, in bytes: the largest record as Base64 with its members."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="the topic; it need not exist")
    parser.add_argument("payload", nargs="?", metavar="TEXT", help="the payload, stored unchanged")
    parser.add_argument("--payload", dest="text", metavar="TEXT", help="the same, as an option")
    parser.add_argument(
        "--file",
        action="append",
        metavar="FILE",
        help="publish the bytes of a file, or of stdin with -; one record for each",
    )
    parser.add_argument("--lines", action="store_true", help="each line of the files is a record")
    parser.add_argument(
        "--ndjson",
        action="store_true",
        help='each line is a JSON object {"topic", "key", "headers", "payload" or "payloadBase64"}, or a bare payload',
    )
    parser.add_argument("--key", metavar="KEY", help="the key of the records")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="may be repeated")
    topic_common.add_options(parser, has_own_key=True)


def run(args: argparse.Namespace, screen: Screen) -> int:
    make = _record_builder(args)
    with topic_common.open_topics(args) as topics:
        if args.lines or args.ndjson:
            return _publish_lines(args, screen, topics, make)
        return _publish_each(args, screen, topics, make)


def _record_builder(args: argparse.Namespace) -> Callable[[bytes], NewRecord]:
    """Return a function that builds a record from input bytes, according to the options."""
    given = [source for source in (args.payload, args.text, args.file) if source is not None]
    if len(given) != 1:
        raise BadInput("give one of: TEXT, --payload TEXT, --file FILE (or --file -)", field="payload")
    if args.lines and args.ndjson:
        raise BadInput("reads JSON objects, --lines any bytes; give one of them", field="--ndjson")
    if (args.lines or args.ndjson) and args.file is None:
        raise BadInput("needs --file FILE (or --file -)", field="--lines" if args.lines else "--ndjson")
    if args.topic is None and not args.ndjson:
        raise BadInput("is missing; only with --ndjson may each line name its own", field="topic")
    if args.topic is not None:
        check_topic(args.topic)
    headers = dict(header_of(text) for text in args.header)
    if not args.ndjson:
        return lambda data: _checked(NewRecord(args.topic, data, args.key, headers or NO_HEADERS))

    def read(line: bytes) -> NewRecord:
        record = from_json(line, args.topic)
        key = args.key if record.key is None else record.key
        return _checked(NewRecord(record.topic, record.payload, key, {**headers, **record.headers}))

    return read


def _checked(record: NewRecord) -> NewRecord:
    check_record(record)
    return record


# -- publish: one record, or a record for each file --------------------------------------------------------------------


def _publish_each(
    args: argparse.Namespace, screen: Screen, topics: ClientTopics, make: Callable[[bytes], NewRecord]
) -> int:
    if args.file is None:
        given = [(args.payload if args.payload is not None else args.text).encode("utf-8", "surrogateescape")]
    else:
        given = [read_input(name, MAX_LINE_BYTES) for name in args.file]
    receipts = topics.publish_many([make(data) for data in given])
    for receipt in receipts:
        screen.answer(_shown(args.topic, receipt), _receipt_text(args.topic, receipt))
    return output.OK


def _shown(topic: str, receipt: Receipt) -> dict[str, object]:
    return {
        "topic": topic,
        "epoch": receipt.epoch,
        "sequence": receipt.sequence,
        "topicSequence": receipt.topic_sequence,
        "resent": receipt.resent,
    }


def _receipt_text(topic: str, receipt: Receipt) -> str:
    twice = " (its answer was lost once, so it may be there twice)" if receipt.resent else ""
    return f"published {receipt.sequence}, {topic}#{receipt.topic_sequence}{twice}"


# -- publish: lines ----------------------------------------------------------------------------------------------------


def _publish_lines(
    args: argparse.Namespace, screen: Screen, topics: ClientTopics, make: Callable[[bytes], NewRecord]
) -> int:
    """Publish a record per line. Files are checked to their last line first; a stream is published as it arrives."""
    size = _size(args.file)
    if size is not None:
        for name, batch in _batches(args.file):
            for line in batch:
                _build_record(make, name, line, 0)
    count = read = resent = 0
    receipts: list[Receipt] = []
    with ProgressBar("publishing", size, shown=screen.shows_progress, unit="records") as show:
        for name, batch in _batches(args.file):
            receipts = [*topics.publish_many([_build_record(make, name, line, count) for line in batch])]
            count += len(receipts)
            resent += sum(receipt.resent for receipt in receipts)
            read += sum(len(line.text) + 1 for line in batch)
            show(read if size else count, count)
    last = receipts[-1].sequence if receipts else None
    text = f"published {count_text(count, 'record')}" + (f", the last is {last}" if last else "")
    if resent:
        text += f"; {resent:,} were sent again after a loss, and may be there twice"
    screen.answer({"published": count, "resent": resent, "last": last}, text)
    return output.OK


def _size(names: list[str]) -> int | None:
    """Return the total size of the files, in bytes, or None if not all of them can be read twice."""
    if not all(name != "-" and Path(name).is_file() for name in names):
        return None
    return sum(Path(name).stat().st_size for name in names)


def _build_record(make: Callable[[bytes], NewRecord], name: str, line: InputLine, before: int) -> NewRecord:
    try:
        return make(line.text)
    except QueueError as error:
        where = f"{name} line {line.number}"
        done = f"{before} before it are published" if before else "nothing was published"
        raise type(error)(f"{where}: {error}; {done}", field="file") from None


def _batches(names: list[str]) -> Iterator[tuple[str, list[InputLine]]]:
    """Yield batches of lines, each with the name of its input."""
    for name in names:
        with open_input(name) as stream:
            for batch in line_batches(stream, MAX_LINE_BYTES, name):
                yield name, batch


COMMAND = Command(
    about="Publish records to a topic. The command returns when they are on disk. A payload is any bytes, stored "
    "unchanged.\n\n"
    "Files of lines are checked to their last line before the first record is published; lines from a pipe "
    "are published as they arrive.",
    examples=(
        ("one record", "yirangmq topic publish quotes.krx '{\"price\": 71200}' --key 005930"),
        ("a file's bytes, with a header", "yirangmq topic publish photos --file front.png --header type=image/png"),
        ("each line of a log, as it is written", "yirangmq topic publish logs --lines --file -"),
        ("records that 'subscribe --json' printed", "yirangmq topic publish --ndjson --file records.jsonl"),
    ),
    options=add_options,
    run=run,
)


# -- options of subscribe and tail -------------------------------------------------------------------------------------

PAGE = 1000
MAX_TAIL = 1_000_000


def subscribe_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="names and patterns (default: all topics)")
    where = parser.add_argument_group("start position (default: the records published from now on)")
    where.add_argument("--from-beginning", action="store_true", help="the first record that is kept")
    where.add_argument("--from-seq", type=int, metavar="N", help="this sequence")
    where.add_argument(
        "--from-time", metavar="TIME", help="an instant: 2026-01-13T10:21:00Z, seconds since 1970, or an age: 15m"
    )
    where.add_argument(
        "--name",
        metavar="NAME",
        help="durable: the server keeps the position under this name, and the next call continues there",
    )
    where.add_argument("--anew", action="store_true", help="with --name or --cursor: ignore the kept position")
    where.add_argument("--cursor", metavar="FILE", help="keep the position in this file, and continue there")
    parser.add_argument(
        "--mask",
        type=int,
        default=0,
        metavar="N",
        help="select topics by the bits of this mask, in addition to those named",
    )
    arguments.limit(parser, "stop after this many records")
    parser.add_argument("--idle", type=float, metavar="SECONDS", help="stop if no record arrives for this time")
    _format_options(parser)


def tail_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="names and patterns (default: all topics)")
    arguments.limit(parser, "number of records (default: 10)", default=10, names=("-n", "--limit", "--lines"))
    parser.add_argument("-f", "--follow", action="store_true", help="then print records as they are published")
    _format_options(parser)


def _format_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", action="store_true", help="print the payload's bytes and a line feed, nothing else")
    topic_common.add_options(parser)


# -- subscribe --------------------------------------------------------------------------------------------------------


def run_subscribe(args: argparse.Namespace, screen: Screen) -> int:
    given = _subscribe_arguments(args)
    limit = MAX_SEQUENCE if args.limit is None else validation.check_count(args.limit, "--limit", most=MAX_SEQUENCE)
    with stopping_on_signals(), topic_common.open_topics(args) as topics:
        _follow(args, screen, topics, given, limit)
    return output.OK


def _subscribe_arguments(args: argparse.Namespace) -> dict[str, Any]:
    positions = [
        name for name in ("from_beginning", "from_seq", "from_time") if getattr(args, name) not in (None, False)
    ]
    if len(positions) > 1:
        raise BadInput(f"stands beside --{positions[0].replace('_', '-')}", field=f"--{positions[1].replace('_', '-')}")
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


def _follow(args: argparse.Namespace, screen: Screen, topics: ClientTopics, given: dict[str, Any], limit: int) -> None:
    """Print records until ``limit``, idle time or the end."""

    def on_event(event: Event) -> None:
        text = _event_text(event)
        if text:
            screen.note(text)

    idle = None if args.idle is None else validation.check_milliseconds(args.idle, "--idle") / 1000
    with topics.subscribe(args.topics, confirm="manual", on_event=on_event, **given) as subscription:
        while limit and (batch := subscription.next_batch(idle)):
            _print_and_confirm(args, screen, subscription, batch[:limit])
            limit -= len(batch[:limit])


PRINT_RECORDS = 64
PRINT_BYTES = 64 * 1024
"""Limits of the records that are written to the output at once. What is written then counts as printed."""


def _print_and_confirm(
    args: argparse.Namespace, screen: Screen, subscription: TopicSubscription, batch: list[TopicRecord]
) -> None:
    """Print a batch. Confirm what is printed, every ``CURSOR_SECONDS`` and at the end, also if an exception ends it."""
    printed = confirmed = 0
    confirmed_at = time.monotonic()
    try:
        for part in _parts(batch):
            show_records(args, screen, part)
            printed = part[-1].sequence
            if time.monotonic() - confirmed_at >= CURSOR_SECONDS:
                subscription.confirm(printed)
                confirmed, confirmed_at = printed, time.monotonic()
    except BaseException:
        if printed > confirmed:
            with contextlib.suppress(QueueError):  # it is printed again next time
                subscription.confirm(printed)
        raise
    subscription.confirm(printed)


def _parts(batch: list[TopicRecord]) -> Iterator[list[TopicRecord]]:
    part: list[TopicRecord] = []
    size = 0
    for record in batch:
        part.append(record)
        size += len(record.payload)
        if len(part) >= PRINT_RECORDS or size >= PRINT_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _event_text(event: Event) -> str:
    if isinstance(event, LostRecords):
        return f"the log has lost the records {event.first} to {event.last}"
    if isinstance(event, NewEpoch):
        return f"the feed began anew: its epoch is {event.after}"
    if isinstance(event, Missing):
        return f"something after {event.after} did not arrive ({event.why}); asked for again"
    if (
        event.after is SubscriberState.OFFLINE
        and event.before is not SubscriberState.CONNECTED
        and event.why != "closed"
    ):
        return f"offline: {event.why}"
    return ""


# -- tail -------------------------------------------------------------------------------------------------------------


def run_tail(args: argparse.Namespace, screen: Screen) -> int:
    count = validation.check_count(args.limit, "-n", least=0, most=MAX_TAIL)
    with stopping_on_signals(), topic_common.open_topics(args) as topics:
        about = topics.list()
        if "last" not in about and not args.follow:
            screen.note("no topics yet; publishing to one creates it")
            return output.OK
        last = about.get("last", 0)
        found = latest(topics, args.topics, count, about.get("first", 1), last)
        show_records(args, screen, found)
        if args.follow:
            args.idle = None
            begin = {"sequence": last + 1, "epoch": about["epoch"]} if "last" in about else {"start": "new"}
            _follow(args, screen, topics, begin, MAX_SEQUENCE)
    return output.OK


def latest(topics: ClientTopics, wanted: list[str], count: int, first: int, last: int) -> Iterable[TopicRecord]:
    """Return the last ``count`` matching records up to ``last``, in order.

    The log is searched backwards, in ranges that grow by a factor of 4."""
    found: deque[TopicRecord] = deque()
    end, span = last + 1, max(count, 1)
    while len(found) < count and end > first:
        begin = max(first, end - span)
        found.extendleft(reversed(_between(topics, wanted, begin, end, count)))
        end, span = begin, span * 4
    return [*found][-count:] if count else []


def _between(topics: ClientTopics, wanted: list[str], begin: int, end: int, most: int) -> "deque[TopicRecord]":
    found: deque[TopicRecord] = deque(maxlen=most)
    while begin < end:
        page = topics.read(wanted, sequence=begin, limit=min(PAGE, end - begin))
        found.extend(one for one in page.records if one.sequence < end)
        begin = page.next
    return found


SUBSCRIBE = Command(
    about="Subscribe to topics: print each record as it arrives, in order, each once. After a lost connection the "
    "command reconnects and continues at its position.\n\n"
    "In a pattern * stands for any characters, ? for one, + for one level (no dot). With --name the "
    "subscriber is durable: the server keeps the position of the printed records. Without a server the "
    "log is read directly; with a name the command then ends after the records that are there.",
    examples=(
        ("all records from now on", "yirangmq topic subscribe"),
        ("some topics, from an hour ago, for programs", "yirangmq topic subscribe 'quotes.*' --from-time 1h --json"),
        ("durable: continue where the last call stopped", "yirangmq topic subscribe trades --name ledger"),
        ("a range", "yirangmq topic subscribe --from-seq 1000 --limit 50"),
    ),
    options=subscribe_options,
    run=run_subscribe,
)
TAIL = Command(
    about="Print the last records of topics, in order.",
    examples=(
        ("the last ten of all topics", "yirangmq topic tail"),
        ("the last three of one topic, and the following ones", "yirangmq topic tail trades -n 3 --follow"),
    ),
    options=tail_options,
    run=run_tail,
)
