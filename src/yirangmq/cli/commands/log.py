"""Commands ``log check | repair | dump``: the segment files of a log of topics.

They work on the files themselves, also while a server writes to them. Only ``repair`` needs the lock of the log."""

import argparse
import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

from yirangmq.cli import arguments, output
from yirangmq.cli.arguments import count_text
from yirangmq.cli.command import Command
from yirangmq.cli.commands.topic_common import record_line
from yirangmq.cli.local_topics import cursor_positions
from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar
from yirangmq.cli.table import TableColumn
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.ports import Finding
from yirangmq.core.topics import MAX_SEQUENCE, Record, TopicPredicate
from yirangmq.format.topic_record import as_json
from yirangmq.stores.log.check import QUARANTINED, LogCheckResult, check, has_segments, sound_records
from yirangmq.stores.log.log import SegmentLog
from yirangmq.stores.log.readonly import SegmentView


def check_options(parser: argparse.ArgumentParser) -> None:
    _folder(parser)


def repair_options(parser: argparse.ArgumentParser) -> None:
    _folder(parser)
    arguments.dry_run(parser)


def dump_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", help="the log's folder, or the file of one segment, also a damaged one"
    )
    parser.add_argument("--from-seq", type=int, metavar="N", help="first sequence (default: the first that is kept)")
    parser.add_argument("--to-seq", type=int, metavar="N", help="last sequence (default: the last one)")
    parser.add_argument("--topic", metavar="NAME", help="only this topic; * stands for any characters")
    arguments.limit(parser, "at most this many records")
    parser.add_argument("--frames", action="store_true", help="write the stored frames unchanged to stdout")


def _folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the log's folder")


# -- check and repair -----------------------------------------------------------------------------------------------


def run_check(args: argparse.Namespace, screen: Screen) -> int:
    view = SegmentView(args.folder)
    return _report(screen, view, _checked(view, screen))


def _checked(view: SegmentView, screen: Screen) -> LogCheckResult:
    size = sum(segment.size for segment in view.chain)
    with ProgressBar("checking", size, shown=screen.shows_progress, unit="MB") as show:
        return check(view, lambda done, total: show(done, round(done / 1e6)))


def run_repair(args: argparse.Namespace, screen: Screen) -> int:
    if args.dry_run:
        return run_check(args, screen)
    if not has_segments(args.folder):
        raise NotFound(f"there is no log in {args.folder}", field="folder")  # ``SegmentLog`` would create one
    with (
        ProgressBar("repairing", shown=screen.shows_progress),
        SegmentLog(args.folder, known=cursor_positions(Path(args.folder))) as log,
    ):
        done = [*log.notes, *log.mend()]
    view = SegmentView(args.folder)
    return _report(screen, view, _checked(view, screen), done)


def _report(screen: Screen, view: SegmentView, found: LogCheckResult, done: Iterable[str] = ()) -> int:
    done = list(done)
    wrong = [finding for finding in found.findings if finding.kind != QUARANTINED]
    facts = {
        "epoch": view.epoch,
        "first": view.first,
        "last": view.last,
        "records": found.records,
        "segments": len(view.chain),
        "topics": len(view.topics()),
    }
    if screen.json:
        gaps = [{"first": gap.first, "last": gap.last} for gap in view.gaps()]
        findings = [_document(finding) for finding in found.findings]
        screen.document({"ok": not wrong, **facts, "gaps": gaps, "findings": findings, "done": done})
    else:
        for text in done:
            screen.report(f"done: {text}")
        held = f"{count_text(found.records, 'record')} of {count_text(len(view.topics()), 'topic')}"
        where = f"{view.first} to {view.last}, in {count_text(len(view.chain), 'segment')}"
        screen.report(f"{held}, {where}; epoch {view.epoch}")
        _print_findings(screen, found.findings)
    return output.exit_code("store_damaged") if wrong else output.OK


def _print_findings(screen: Screen, findings: list[Finding]) -> None:
    if not findings:
        screen.report("in order: nothing is wrong")
        return
    columns = (TableColumn("kind"), TableColumn("where"), TableColumn("what", shrinks=True))
    screen.table(columns, [(finding.kind, finding.where, finding.text) for finding in findings])


def _document(finding: Finding) -> dict[str, Any]:
    return {"kind": finding.kind, "where": finding.where, "text": finding.text, "mended": finding.is_repaired}


# -- dump -----------------------------------------------------------------------------------------------------------


def run_dump(args: argparse.Namespace, screen: Screen) -> int:
    start = None if args.from_seq is None else validation.check_count(args.from_seq, "fromSeq", most=MAX_SEQUENCE)
    last = None if args.to_seq is None else validation.check_count(args.to_seq, "toSeq", least=0, most=MAX_SEQUENCE)
    limit = None if args.limit is None else validation.check_count(args.limit, "limit", least=0, most=MAX_SEQUENCE)
    wanted = _wanted(args.topic)
    if args.frames:
        return _dump_frames(args, screen, start, last, wanted)
    for record in islice(_records(args.folder, start, last, wanted), limit):
        if screen.json:
            screen.line(as_json(record))
        else:
            screen.report(record_line(record))
    return output.OK


def _wanted(topic: str | None) -> TopicPredicate | None:
    if topic is None:
        return None
    return lambda name: fnmatchcase(name, topic.replace("[", "[[]").replace("?", "[?]"))


def _records(folder: str, start: int | None, last: int | None, wanted: TopicPredicate | None) -> Iterator[Record]:
    if os.path.isfile(folder):  # noqa: PTH113
        return _records_of_file(folder, start or 0, MAX_SEQUENCE if last is None else last, wanted)
    view = SegmentView(folder)
    stop = None if last is None else last + 1
    return view.reader().records(view.first if start is None else start, stop, wanted)


def _records_of_file(path: str, start: int, last: int, wanted: TopicPredicate | None) -> Iterator[Record]:
    for record in sound_records(path):
        if start <= record.sequence <= last and (wanted is None or wanted(record.topic)):
            yield record


def _dump_frames(
    args: argparse.Namespace, screen: Screen, start: int | None, last: int | None, wanted: TopicPredicate | None
) -> int:
    if screen.json or screen.is_terminal or args.limit is not None:
        raise BadInput("goes to a file or a pipe, without --json and --limit", field="frames")
    view = SegmentView(args.folder)
    first = view.first if start is None else start
    total = view.reader().count(first, None if last is None else last + 1, wanted)
    done = 0
    with ProgressBar("dumping", total, shown=screen.shows_progress, unit="records") as show:
        for part in view.reader().frames(first, None if last is None else last + 1, wanted):
            screen.write(part.data)
            done += part.records
            show(done)
    return output.OK


COMMANDS = {
    "log": Command(
        about="Check, repair and print the folder of a topic log (docs/log.md). check and dump work also while a "
        "server writes to it.",
        examples=(
            ("check the log", "yirangmq log check yirang-data/topics"),
            ("the records of a topic", "yirangmq log dump yirang-data/topics --topic trades"),
        ),
        subcommands={
            "check": (
                "check every byte of the log",
                Command(
                    about="Read every byte of the log and compare it with its checksums. The command changes "
                    "nothing. It exits with 5 if it finds a problem: a damaged record, a gap, an index that "
                    "cannot be used.",
                    examples=(
                        ("a folder", "yirangmq log check yirang-data/topics"),
                        ("for programs", "yirangmq log check yirang-data/topics --json"),
                    ),
                    options=check_options,
                    run=run_check,
                ),
            ),
            "repair": (
                "move damaged segments to quarantine",
                Command(
                    about="Open the log for writing, which cuts off an incomplete end, and move damaged segments "
                    "to quarantine/. Their sound records stay in the log; lost records become a gap with "
                    "both ends. A server that writes to the log must be stopped first.",
                    examples=(
                        ("list the problems", "yirangmq log repair yirang-data/topics --dry-run"),
                        ("repair", "yirangmq log repair yirang-data/topics"),
                    ),
                    options=repair_options,
                    run=run_repair,
                ),
            ),
            "dump": (
                "print the records of a log",
                Command(
                    about="Print the records of a log, or all sound records in the file of one segment, also of a "
                    "damaged one.",
                    examples=(
                        ("the last records", "yirangmq log dump yirang-data/topics --from-seq 1200"),
                        ("for programs", "yirangmq log dump yirang-data/topics --topic 'quotes.*' --limit 10 --json"),
                        ("as they are stored and sent", "yirangmq log dump yirang-data/topics --frames > records.bin"),
                    ),
                    options=dump_options,
                    run=run_dump,
                ),
            ),
        },
    ),
}
