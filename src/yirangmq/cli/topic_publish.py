"""``topic publish``: one record, files, lines, or the JSON lines that ``topic subscribe --json`` prints."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from yirangmq.cli import exits, topic_place
from yirangmq.cli.command import Command
from yirangmq.cli.records import header_of
from yirangmq.cli.screen import Screen
from yirangmq.cli.values import counted, open_input, read_input
from yirangmq.client.sync_client import Topics
from yirangmq.client.values import Receipt
from yirangmq.core.errors import BadInput, QueueError, TooLarge
from yirangmq.core.topics import NO_HEADERS, NewRecord, check_topic
from yirangmq.format.topic_record import from_json
from yirangmq.observe.progress import Progress
from yirangmq.wire.frames import MAX_FRAME
from yirangmq.wire.records import check_record

MOST_PER_BATCH = 1000
BYTES_PER_READ = 1 << 20
LONGEST = MAX_FRAME * 4 // 3 + 1024
"""The largest record as Base64 with its members."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="the topic; it need not exist")
    parser.add_argument("payload", nargs="?", metavar="TEXT", help="the payload, taken as it is")
    parser.add_argument("--payload", dest="text", metavar="TEXT", help="the same, as an option")
    parser.add_argument(
        "--file", action="append", metavar="FILE", help="a file's bytes, or stdin with -; one record for each"
    )
    parser.add_argument("--lines", action="store_true", help="each line of the files is a record")
    parser.add_argument(
        "--ndjson",
        action="store_true",
        help='each line is a JSON object {"topic", "key", "headers", "payload" or "payloadBase64"}, or a bare payload',
    )
    parser.add_argument("--key", metavar="KEY", help="the key of the records")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="may be repeated")
    topic_place.add_options(parser, has_own_key=True)


def run(args: argparse.Namespace, screen: Screen) -> int:
    make = _maker(args)
    with topic_place.opened(args) as topics:
        if args.lines or args.ndjson:
            return _publish_lines(args, screen, topics, make)
        return _publish_each(args, screen, topics, make)


def _maker(args: argparse.Namespace) -> Callable[[bytes], NewRecord]:
    """From bytes to a record, by what was said on the command line."""
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


# -- one, or a few files ----------------------------------------------------------------------------------------------


def _publish_each(args: argparse.Namespace, screen: Screen, topics: Topics, make: Callable[[bytes], NewRecord]) -> int:
    if args.file is None:
        given = [(args.payload if args.payload is not None else args.text).encode("utf-8", "surrogateescape")]
    else:
        given = [read_input(name, LONGEST) for name in args.file]
    receipts = topics.publish_many([make(data) for data in given])
    for receipt in receipts:
        screen.answer(_shown(args.topic, receipt), _said_receipt(args.topic, receipt))
    return exits.OK


def _shown(topic: str, receipt: Receipt) -> dict[str, object]:
    return {
        "topic": topic,
        "epoch": receipt.epoch,
        "sequence": receipt.sequence,
        "topicSequence": receipt.topic_sequence,
        "resent": receipt.resent,
    }


def _said_receipt(topic: str, receipt: Receipt) -> str:
    twice = " (its answer was lost once, so it may be there twice)" if receipt.resent else ""
    return f"published {receipt.sequence}, {topic}#{receipt.topic_sequence}{twice}"


# -- many -------------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    name: str
    number: int
    text: bytes


def _publish_lines(args: argparse.Namespace, screen: Screen, topics: Topics, make: Callable[[bytes], NewRecord]) -> int:
    """Files are checked to their last line before anything is published; a stream is published as it comes."""
    size = _size(args.file)
    if size is not None:
        for batch in _batches(args.file):
            for line in batch:
                _made(make, line, 0)
    count = read = resent = 0
    receipts: list[Receipt] = []
    with Progress("publishing", size, shown=screen.shows_progress) as show:
        for batch in _batches(args.file):
            receipts = [*topics.publish_many([_made(make, line, count) for line in batch])]
            count += len(receipts)
            resent += sum(receipt.resent for receipt in receipts)
            read += sum(len(line.text) + 1 for line in batch)
            show(read if size else count, f"{count:,} records")
    last = receipts[-1].sequence if receipts else None
    text = f"published {counted(count, 'record')}" + (f", the last is {last}" if last else "")
    if resent:
        text += f"; {resent:,} were sent again after a loss, and may be there twice"
    screen.answer({"published": count, "resent": resent, "last": last}, text)
    return exits.OK


def _size(names: list[str]) -> int | None:
    """None: not all of them can be read twice."""
    if not all(name != "-" and Path(name).is_file() for name in names):
        return None
    return sum(Path(name).stat().st_size for name in names)


def _made(make: Callable[[bytes], NewRecord], line: Line, before: int) -> NewRecord:
    try:
        return make(line.text)
    except QueueError as error:
        where = f"{line.name} line {line.number}"
        done = f"{before} before it are published" if before else "nothing was published"
        raise type(error)(f"{where}: {error}; {done}", field="file") from None


def _batches(names: list[str]) -> Iterator[list[Line]]:
    """What is there, as soon as it is there: a stream that pauses holds nothing back."""
    for name in names:
        with open_input(name) as stream:
            for lines in _lines(name, stream):
                for at in range(0, len(lines), MOST_PER_BATCH):
                    yield lines[at : at + MOST_PER_BATCH]


def _lines(name: str, stream: BinaryIO) -> Iterator[list[Line]]:
    """Those of each read, without their end; empty ones are passed over."""
    number, rest = 0, b""
    while True:
        data = stream.read1(BYTES_PER_READ)  # type: ignore[attr-defined]  # every stream that we open has it
        *whole, rest = (rest + data).split(b"\n") if data else [rest, b""]
        found = [Line(name, number + at, text.rstrip(b"\r")) for at, text in enumerate(whole, 1)]
        number += len(whole)
        if max(map(len, (rest, *whole))) > LONGEST:
            raise TooLarge(f"{name}: a line after line {number} is longer than {LONGEST} bytes", field="file")
        if kept := [line for line in found if line.text.strip()]:
            yield kept
        if not data:
            return


COMMAND = Command(
    about="Put records into a topic. Returns when they are on disk. A payload is any bytes, and passes untouched.\n\n"
    "Files of lines are checked to their last line before the first record is published; what comes from a pipe is "
    "published as it comes.",
    examples=(
        ("one record", "yirangmq topic publish quotes.krx '{\"price\": 71200}' --key 005930"),
        ("a file's bytes, with a header", "yirangmq topic publish photos --file front.png --header type=image/png"),
        ("each line of a log, as it is written", "yirangmq topic publish logs --lines --file -"),
        ("records that were printed by subscribe --json", "yirangmq topic publish --ndjson --file records.jsonl"),
    ),
    options=add_options,
    run=run,
)
