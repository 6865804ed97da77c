"""Commands ``topic replay`` and ``topic trim``: print or republish stored records; remove old records.

A replay ends with the record that is last when it begins. Into a queue, message ids are made of epoch and sequence,
so an interrupted replay can be repeated without duplicates. Trimming removes whole segments."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import NamedTuple

from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import count_text
from yirangmq.cli.command import Command
from yirangmq.cli.commands import topic_common
from yirangmq.cli.commands.topic_common import moment_of, sequence_of, show_records
from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar
from yirangmq.client.sync_client import ClientTopics
from yirangmq.client.values import TopicRecord
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.topics import NewRecord, check_topic
from yirangmq.format.envelope import JSON_TYPE, NewMessage
from yirangmq.format.topic_record import is_json

PAGE = 1000
ORIGIN = "replayed-from"
"""Header of a republished record: epoch and sequence of the original."""
Put = Callable[[str, Sequence[TopicRecord]], int]
"""Callback that passes on records of an epoch, and returns the number of duplicates."""


class SequenceRange(NamedTuple):
    """Range of sequences in an epoch; both ends are included."""

    epoch: str
    first: int
    last: int


def replay_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="names and patterns (default: all topics)")
    parser.add_argument("--from-seq", type=int, metavar="N", help="first sequence (default: the first that is kept)")
    parser.add_argument(
        "--from-time",
        metavar="TIME",
        help="begin at an instant: 2026-01-13T10:21:00Z, seconds since 1970, or an age: 15m",
    )
    parser.add_argument("--to-seq", type=int, metavar="N", help="last sequence (default: the last one now)")
    parser.add_argument("--to-time", metavar="TIME", help="end before this time")
    parser.add_argument(
        "--to",
        metavar="queue:NAME|topic:NAME",
        help="publish the records there (default: print them, and change nothing)",
    )
    parser.add_argument(
        "--new-ids", action="store_true", help="into a queue: publish records again that were replayed there before"
    )
    parser.add_argument("--raw", action="store_true", help="print the payload's bytes and a line feed, nothing else")
    arguments.dry_run(parser)
    topic_common.add_options(parser)


def run_replay(args: argparse.Namespace, screen: Screen) -> int:
    target = _target(args)
    start = sequence_of(args.from_seq, "--from-seq"), moment_of(args.from_time, "--from-time")
    end = sequence_of(args.to_seq, "--to-seq"), moment_of(args.to_time, "--to-time")
    for (number, moment), field in ((start, "--from-time"), (end, "--to-time")):
        if number is not None and moment is not None:
            raise BadInput(f"stands beside {field.replace('time', 'seq')}; give one of them", field=field)
    with ExitStack() as stack:
        topics = stack.enter_context(topic_common.open_topics(args))
        span = _span(topics, *start, *end)
        put = _put(args, screen, stack, topics, target)
        count, known = _replay(args, screen, topics, span, put)
    if target is None and not args.dry_run:
        return output.OK
    count -= known
    about = {"first": span.first, "last": span.last, "records": count, "known": known, "dryRun": args.dry_run}
    where = f" to {args.to}" if args.to else ""
    text = f"{'would be replayed' if args.dry_run else 'replayed'}{where}: {count_text(count, 'record')}"
    text += f" from {span.first} to {span.last}" if count else ""
    text += f"; {known:,} existed already (--new-ids replays them too)" if known else ""
    screen.answer({"to": args.to, **about}, text)
    return output.OK


def _target(args: argparse.Namespace) -> tuple[str, str] | None:
    if args.to is None:
        return None
    kind, _, name = args.to.partition(":")
    if kind not in ("queue", "topic") or not name:
        raise BadInput(f"must be queue:NAME or topic:NAME, not {args.to!r}", field="--to")
    return kind, validation.check_queue(name, "--to") if kind == "queue" else check_topic(name, "--to")


def _span(
    topics: ClientTopics, first: int | None, begin: datetime | None, last: int | None, end: datetime | None
) -> SequenceRange:
    """Resolve the range now. Records that arrive during the replay are not replayed."""
    page = topics.read(sequence=first, limit=1) if begin is None else topics.read(time=begin, limit=1)
    if first is None:
        first = page.records[0].sequence if page.records else page.last + 1
    if end is not None:
        last = at_time(topics, end) - 1
    return SequenceRange(page.epoch, first, page.last if last is None else min(last, page.last))


def at_time(topics: ClientTopics, moment: datetime) -> int:
    """Return the first sequence at or after an instant, or the last sequence plus one if there is none."""
    page = topics.read(time=moment, limit=1)
    return page.records[0].sequence if page.records else page.last + 1


def _replay(
    args: argparse.Namespace, screen: Screen, topics: ClientTopics, span: SequenceRange, put: Put
) -> tuple[int, int]:
    count = known = 0
    total = max(0, span.last - span.first + 1)
    shown = screen.shows_progress and (bool(args.to) or args.dry_run)
    with ProgressBar("replaying", total, shown=shown, unit="records") as show:
        for batch, after in _pages(topics, args.topics, span):
            try:
                known += put(span.epoch, batch)
            except QueueError as error:
                began = batch[0].sequence if batch else after
                text = f"{error}; {count} were replayed, go on with --from-seq {began}"
                raise type(error)(text, field=error.field) from None
            count += len(batch)
            show(after - span.first, count)
    return count, known


def _pages(topics: ClientTopics, wanted: list[str], span: SequenceRange) -> Iterator[tuple[list[TopicRecord], int]]:
    begin = span.first
    while begin <= span.last:
        page = topics.read(wanted, sequence=begin, limit=PAGE)
        begin = page.next
        yield [one for one in page.records if one.sequence <= span.last], min(begin, span.last + 1)


def _put(
    args: argparse.Namespace, screen: Screen, stack: ExitStack, topics: ClientTopics, target: tuple[str, str] | None
) -> Put:
    if args.dry_run:
        return lambda epoch, records: 0
    queues = (
        stack.enter_context(connection.open_or_create(args)) if target is not None and target[0] == "queue" else None
    )

    def put(epoch: str, records: Sequence[TopicRecord]) -> int:
        if target is None:
            show_records(args, screen, records)
        elif queues is None:
            topics.publish_many([_replayed_record(target[1], epoch, one) for one in records])
        elif records:
            made = [_message(epoch, one, is_new=args.new_ids) for one in records]
            return sum(stored.duplicate for stored in queues.publish_many(target[1], made))
        return 0

    return put


def _replayed_record(topic: str, epoch: str, record: TopicRecord) -> NewRecord:
    return NewRecord(topic, record.payload, record.key, {**record.headers, ORIGIN: f"{epoch}/{record.sequence}"})


def _message(epoch: str, record: TopicRecord, *, is_new: bool) -> NewMessage:
    """Build a message from a record.

    Unless ``is_new``, its id is derived from epoch and sequence, so that an interrupted replay can be repeated."""
    about = {"topic": record.topic, "sequence": record.sequence, "topicSequence": record.topic_sequence}
    if record.key is not None:
        about["key"] = record.key
    return NewMessage(
        payload=record.payload,
        id=None if is_new else f"replay-{epoch}-{record.sequence}",
        attributes={**record.headers, **about},
        content_type=JSON_TYPE if is_json(record.payload) else None,
    )


# -- trim -------------------------------------------------------------------------------------------------------------


def trim_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before-seq", type=int, metavar="N", help="remove records before this sequence")
    parser.add_argument(
        "--before-time", metavar="TIME", help="remove records before 2026-01-13T10:21:00Z, or older than: 7d"
    )
    arguments.dry_run(parser)
    topic_common.add_options(parser)


def run_trim(args: argparse.Namespace, screen: Screen) -> int:
    before, moment = sequence_of(args.before_seq, "--before-seq"), moment_of(args.before_time, "--before-time")
    if (before is None) == (moment is None):
        raise BadInput("give one of: --before-seq N, --before-time TIME", field="--before-seq")
    with topic_common.open_topics(args) as topics:
        sequence = at_time(topics, moment) if moment is not None else before or 0
        with ProgressBar("trimming", shown=screen.shows_progress):
            done = topics.trim(sequence, dry_run=args.dry_run)
        late = [row["name"] for row in topics.subscribers() if row["name"] and row["confirmed"] + 1 < done["first"]]
    value = {"before": sequence, "segments": done["segments"], "bytes": done["size"], "first": done["first"]}
    verb = "would remove" if args.dry_run else "removed"
    text = f"{verb} {count_text(done['segments'], 'segment')}, {done['size']:,} bytes; the log "
    text += f"{'would begin' if args.dry_run else 'begins'} at {done['first']}"
    screen.answer({**value, "late": late, "dryRun": args.dry_run}, text)
    if done["first"] < sequence:
        screen.note(f"whole segments go, so that {done['first']} to {sequence - 1} are kept")
    for name in late:
        screen.note(f"the durable subscriber {name} {'would need' if args.dry_run else 'needed'} some of them")
    return output.OK


REPLAY = Command(
    about="Print stored records of a range, or publish them to a queue or a topic. The replay ends with the "
    "record that is the last one when it begins.\n\n"
    "Into a queue each record becomes one message with its payload; headers, key, topic and sequence are "
    "attributes. The message id is made of epoch and sequence, so that an interrupted replay can be "
    "repeated: a message that exists is not stored again. Into a topic each record keeps key and headers, "
    "and gets the header replayed-from.",
    examples=(
        ("print a range", "yirangmq topic replay trades --from-seq 1000 --to-seq 1050"),
        ("count them without a change", "yirangmq topic replay 'quotes.*' --from-time 2h --to queue:orders --dry-run"),
        ("the last day, for the consumers of a queue", "yirangmq topic replay trades --from-time 1d --to queue:audit"),
        ("into another topic", "yirangmq topic replay trades --to-time 2026-01-13T10:00:00Z --to topic:trades.again"),
    ),
    options=replay_options,
    run=run_replay,
)
TRIM = Command(
    about="Remove the oldest records of the log, of all topics, to free disk space. Only whole segments are "
    "removed, so that some more records may be kept. The command does not wait for durable subscribers; it "
    "names those that needed removed records. (The settings topic_retention_seconds and "
    "topic_retention_bytes remove records automatically, and wait for durable subscribers.)",
    examples=(
        ("show what would be removed", "yirangmq topic trim --before-time 7d --dry-run"),
        ("everything before a sequence", "yirangmq topic trim --before-seq 100000"),
    ),
    options=trim_options,
    run=run_trim,
)
