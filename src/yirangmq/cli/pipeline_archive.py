"""``pipeline archive | compact | housekeep``: messages as Parquet, by date."""

import argparse
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from yirangmq.cli import exits, options, sparkwork
from yirangmq.cli.command import Command
from yirangmq.cli.pipeline_common import common, source
from yirangmq.cli.screen import Screen
from yirangmq.pipeline.run_registry import read_place


def _today() -> Any:
    return datetime.now(UTC).date()


def archive_options(parser: argparse.ArgumentParser) -> None:
    source(
        parser,
        "topic:NAME or topic:PATTERN; done:QUEUE or done:* for messages that are done; files:FOLDER for files by date",
    )
    parser.add_argument("--to", required=True, metavar="FOLDER", help="the archive; each place has one of its own")
    common(parser)


def run_archive(args: argparse.Namespace, screen: Screen) -> int:
    place = read_place(args.source, kinds=("topic", "done", "dlq", "files"))
    reach = sparkwork.reach_of(args)
    with sparkwork.working(args, screen, "archive") as spark:
        from yirangmq.pipeline import run_registry
        from yirangmq.pipeline.jobs.analysis import settled
        from yirangmq.pipeline.jobs.archive import archive

        is_files = place.kind == "files"
        rows = (
            settled(run_registry.read_day_files(spark, place)) if is_files else run_registry.read(spark, place, reach)
        )
        made = archive(rows, Path(args.to).absolute(), str(place))
    value = {"from": str(place), "to": args.to, **asdict(made.sums), "archivedUpTo": made.last, "files": made.files}
    days = f" in {made.files} files of {', '.join(made.days)}" if made.days else ""
    screen.answer(value | {"days": [*made.days]}, f"archived {made.sums.rows:,} rows of {place}{days}")
    return exits.OK


def _folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--archive", required=True, metavar="FOLDER", help="what 'pipeline archive' made")


def compact_options(parser: argparse.ArgumentParser) -> None:
    _folder(parser)
    parser.add_argument("--day", required=True, metavar="DATE", help="a day that is over, such as 2026-03-01 (UTC)")
    options.dry_run(parser)
    common(parser, broker=False)


def run_compact(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.pipeline.jobs import manifest

    folder = Path(args.archive).absolute()
    if args.dry_run:
        files = manifest.load(folder).files(args.day)
        sums = manifest.Sums.together(file.sums for file in files)
        value = {"day": args.day, "before": len(files), "dryRun": True, **asdict(sums)}
        screen.answer(value, f"{args.day}: {len(files)} files with {sums.rows:,} rows would be written anew")
        return exits.OK
    with sparkwork.working(args, screen, "compact") as spark:
        from yirangmq.pipeline.jobs.archive import compact

        made = compact(spark, folder, args.day, _today())
    value = {"day": made.day, "before": made.before, "after": made.after, "dryRun": False, **asdict(made.sums)}
    screen.answer(value, f"{made.day}: {made.before} files became {made.after}, {made.sums.rows:,} rows compared")
    return exits.OK


def housekeep_options(parser: argparse.ArgumentParser) -> None:
    _folder(parser)
    parser.add_argument("--keep-days", type=int, default=7, metavar="N", help="days to keep before today (7)")
    options.dry_run(parser)
    common(parser, broker=False)


def run_housekeep(args: argparse.Namespace, screen: Screen) -> int:
    with sparkwork.working(args, screen, "housekeep") as spark:
        from yirangmq.pipeline.jobs.archive import housekeep

        made = housekeep(spark, Path(args.archive).absolute(), _today(), args.keep_days, dry_run=args.dry_run)
    value = {
        "removed": [*made.removed],
        "rowsRemoved": made.rows_removed,
        "kept": [*made.kept],
        "compacted": [one.day for one in made.compacted],
        "dryRun": args.dry_run,
    }
    would = "would be removed" if args.dry_run else "removed"
    text = f"{len(made.removed)} days with {made.rows_removed:,} rows {would}, {len(made.kept)} kept"
    if made.compacted:
        text += f", {len(made.compacted)} of them compacted"
    screen.answer(value, text)
    return exits.OK


VERBS: dict[str, tuple[str, Command]] = {
    "archive": (
        "keep records and done messages as Parquet, by date",
        Command(
            about="Add what is new of a topic, or of the messages that are done, to Parquet files by date: each of "
            "them once, the members of its envelope as columns, compared with what was read before it is listed.",
            examples=(
                ("a topic", "yirangmq pipeline archive --from topic:orders --to archive/orders"),
                ("what is done in all queues", "yirangmq pipeline archive --from 'done:*' --to archive/done"),
                (
                    "files by date, once settled",
                    "yirangmq pipeline archive --from files:data/by-date --to archive/week",
                ),
            ),
            options=archive_options,
            run=run_archive,
        ),
    ),
    "compact": (
        "write a closed day of an archive as few files",
        Command(
            about="Write the files of a day that is over as few large ones. The old ones go last, after rows, first "
            "and last sequence and checksum were found equal.",
            examples=(
                ("a day", "yirangmq pipeline compact --archive archive/orders --day 2026-03-01"),
                (
                    "how many files it has",
                    "yirangmq pipeline compact --archive archive/orders --day 2026-03-01 --dry-run",
                ),
            ),
            options=compact_options,
            run=run_compact,
        ),
    ),
    "housekeep": (
        "compact closed days of an archive, remove old ones",
        Command(
            about="Keep the last days of an archive, compacted, and remove those before them. Days are those of UTC.",
            examples=(
                ("what would go", "yirangmq pipeline housekeep --archive archive/orders --dry-run"),
                ("keep a month", "yirangmq pipeline housekeep --archive archive/orders --keep-days 31"),
            ),
            options=housekeep_options,
            run=run_housekeep,
        ),
    ),
}
