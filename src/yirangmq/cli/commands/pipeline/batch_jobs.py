"""Commands ``pipeline archive | compact | housekeep | report | audit | poison``.

The first three keep messages and records as Parquet files by date. The others analyse queues, topics and archives.
The jobs are in ``pipeline.jobs``; Spark is loaded when one runs."""

import argparse
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from yirangmq.cli import arguments, output
from yirangmq.cli.command import Command
from yirangmq.cli.commands.pipeline import common as sparkwork
from yirangmq.cli.commands.pipeline.common import common, source, table, values
from yirangmq.cli.output import Screen
from yirangmq.core.errors import BadInput
from yirangmq.pipeline.run_registry import parse_source

# -- archive -----------------------------------------------------------------------------------------------------------


def _today() -> Any:
    return datetime.now(UTC).date()


def archive_options(parser: argparse.ArgumentParser) -> None:
    source(
        parser,
        "topic:NAME or topic:PATTERN; done:QUEUE or done:* for messages that are done; files:FOLDER for files by date",
    )
    parser.add_argument("--to", required=True, metavar="FOLDER", help="the archive; each source has its own")
    common(parser)


def run_archive(args: argparse.Namespace, screen: Screen) -> int:
    job_source = parse_source(args.source, kinds=("topic", "done", "dlq", "files"))
    access = sparkwork.access_of(args)
    with sparkwork.job_session(args, screen, "archive") as spark:
        from yirangmq.pipeline import run_registry
        from yirangmq.pipeline.jobs.analysis import settled
        from yirangmq.pipeline.jobs.archive import archive

        is_files = job_source.kind == "files"
        rows = (
            settled(run_registry.read_day_files(spark, job_source))
            if is_files
            else run_registry.read(spark, job_source, access)
        )
        made = archive(rows, Path(args.to).absolute(), str(job_source))
    value = {
        "from": str(job_source),
        "to": args.to,
        **asdict(made.sums),
        "archivedUpTo": made.last,
        "files": made.files,
    }
    days = f" in {made.files} files of {', '.join(made.days)}" if made.days else ""
    screen.answer(value | {"days": [*made.days]}, f"archived {made.sums.rows:,} rows of {job_source}{days}")
    return output.OK


def _folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--archive", required=True, metavar="FOLDER", help="the folder of 'pipeline archive'")


def compact_options(parser: argparse.ArgumentParser) -> None:
    _folder(parser)
    parser.add_argument("--day", required=True, metavar="DATE", help="a day that is over, such as 2026-03-01 (UTC)")
    arguments.dry_run(parser)
    common(parser, broker=False)


def run_compact(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.pipeline.jobs import manifest

    folder = Path(args.archive).absolute()
    if args.dry_run:
        files = manifest.load(folder).files(args.day)
        sums = manifest.RowSummary.combine(file.sums for file in files)
        value = {"day": args.day, "before": len(files), "dryRun": True, **asdict(sums)}
        screen.answer(value, f"{args.day}: {len(files)} files with {sums.rows:,} rows would be written anew")
        return output.OK
    with sparkwork.job_session(args, screen, "compact") as spark:
        from yirangmq.pipeline.jobs.archive import compact

        made = compact(spark, folder, args.day, _today())
    value = {"day": made.day, "before": made.before, "after": made.after, "dryRun": False, **asdict(made.sums)}
    screen.answer(value, f"{made.day}: {made.before} files became {made.after}, {made.sums.rows:,} rows compared")
    return output.OK


def housekeep_options(parser: argparse.ArgumentParser) -> None:
    _folder(parser)
    parser.add_argument("--keep-days", type=int, default=7, metavar="N", help="days to keep before today (7)")
    arguments.dry_run(parser)
    common(parser, broker=False)


def run_housekeep(args: argparse.Namespace, screen: Screen) -> int:
    with sparkwork.job_session(args, screen, "housekeep") as spark:
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
    return output.OK


SUBCOMMANDS: dict[str, tuple[str, Command]] = {
    "archive": (
        "archive records and done messages as Parquet, by date",
        Command(
            about="Append new records of a topic, or done messages, to Parquet files by date: each exactly once, "
            "with the members of its envelope as columns, compared with the source before it is listed.",
            examples=(
                ("a topic", "yirangmq pipeline archive --from topic:orders --to archive/orders"),
                ("done messages of all queues", "yirangmq pipeline archive --from 'done:*' --to archive/done"),
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
        "write a past day of an archive as few files",
        Command(
            about="Write the files of a past day as few large ones. The old files are removed last, after rows, "
            "first and last sequence and checksum were found equal.",
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
        "compact past days of an archive, remove old ones",
        Command(
            about="Keep the last days of an archive, compacted, and remove older ones. Days are those of UTC.",
            examples=(
                ("list what would be removed", "yirangmq pipeline housekeep --archive archive/orders --dry-run"),
                ("keep a month", "yirangmq pipeline housekeep --archive archive/orders --keep-days 31"),
            ),
            options=housekeep_options,
            run=run_housekeep,
        ),
    ),
}


# -- analysis ----------------------------------------------------------------------------------------------------------


def report_options(parser: argparse.ArgumentParser) -> None:
    about = "queue:*, queue:NAME, topic:NAME, archive:FOLDER or files:FOLDER for files by date (default: queue:*)"
    source(parser, about, needed=False, default="queue:*")
    parser.add_argument("--html", metavar="FILE", help="write a page with charts to this file too")
    common(parser)


def run_report(args: argparse.Namespace, screen: Screen) -> int:
    job_source = parse_source(args.source)
    access = sparkwork.access_of(args)
    now = datetime.now(UTC)
    with sparkwork.job_session(args, screen, "report") as spark:
        from yirangmq.pipeline import run_registry
        from yirangmq.pipeline.jobs import report as page
        from yirangmq.pipeline.jobs.report import report

        rows = run_registry.read_states(spark, job_source, access).cache()
        found = page.values(report(rows, now))
        rows.unpersist()
    if args.html:
        title = f"Report of {job_source}"
        Path(args.html).write_text(page.page(found, title, now.isoformat(timespec="seconds")))
    if screen.json:
        screen.document({"ok": True, "from": str(job_source), **found})
        return output.OK
    for name, part in found.items():
        screen.report(page.TITLES[name])
        table(screen, part)
        screen.report()
    if args.html:
        screen.report(f"the page: {args.html}")
    return output.OK


def audit_options(parser: argparse.ArgumentParser) -> None:
    source(parser, "topic:NAME, topic:PATTERN or archive:FOLDER")
    common(parser)


def run_audit(args: argparse.Namespace, screen: Screen) -> int:
    job_source = parse_source(args.source, kinds=("topic", "archive"))
    access = sparkwork.access_of(args)
    with sparkwork.job_session(args, screen, "audit") as spark:
        from yirangmq.pipeline import run_registry
        from yirangmq.pipeline.jobs.analysis import audit, gaps, repeats

        rows = run_registry.read(spark, job_source, access)
        if "offset" not in rows.columns:
            raise BadInput("is an archive of messages; only records of topics have a sequence to audit", field="from")
        found = {"topics": values(audit(rows)), "gaps": values(gaps(rows)), "repeats": values(repeats(rows))}
    is_whole = not found["gaps"] and not found["repeats"]
    if screen.json:
        screen.document({"ok": True, "from": str(job_source), "whole": is_whole, **found})
        return output.OK
    table(screen, found["topics"])
    for name in ("gaps", "repeats"):
        if found[name]:
            screen.report(f"\n{name}:")
            table(screen, found[name])
    screen.report("nothing is missing, nothing is there twice" if is_whole else "\nnot whole")
    return output.OK


def poison_options(parser: argparse.ArgumentParser) -> None:
    source(parser, "dlq:NAME, dlq:* (default), archive:FOLDER or files:FOLDER", needed=False, default="dlq:*")
    parser.add_argument("--least", type=int, default=3, metavar="N", help="minimum number of failures (3)")
    common(parser)


def run_poison(args: argparse.Namespace, screen: Screen) -> int:
    job_source = parse_source(args.source, kinds=("dlq", "queue", "archive", "files"))
    access = sparkwork.access_of(args)
    with sparkwork.job_session(args, screen, "poison") as spark:
        from yirangmq.pipeline import run_registry
        from yirangmq.pipeline.jobs.analysis import poison_messages, poison_shapes

        rows = run_registry.read_states(spark, job_source, access)
        found = {
            "payloads": values(poison_messages(rows, args.least)),
            "shapes": values(poison_shapes(rows, args.least)),
        }
    if screen.json:
        screen.document({"ok": True, "from": str(job_source), **found})
        return output.OK
    for name, part in found.items():
        screen.report(f"{name} that failed {args.least} times or more:")
        table(screen, part)
        screen.report()
    return output.OK


INSIGHT_SUBCOMMANDS: dict[str, tuple[str, Command]] = {
    "report": (
        "report rates, times, failures and volume",
        Command(
            about="Report the traffic: messages per minute, failure rate, wait and processing times, dead letters "
            "by reason and their growth, retries, volume by week.",
            examples=(
                ("all queues of a server, as a page", "yirangmq pipeline report --html report.html"),
                ("an archive, for programs", "yirangmq pipeline report --from archive:archive/done --json"),
            ),
            options=report_options,
            run=run_report,
        ),
    ),
    "audit": (
        "find gaps and duplicates of topics",
        Command(
            about="Check every sequence of a topic, or of its archive: list missing and repeated ones.",
            examples=(
                ("all topics of a server", "yirangmq pipeline audit --from 'topic:*'"),
                ("an archive", "yirangmq pipeline audit --from archive:archive/orders --json"),
            ),
            options=audit_options,
            run=run_audit,
        ),
    ),
    "poison": (
        "find payloads that fail repeatedly",
        Command(
            about="List payloads that failed repeatedly, in one message or in several, and the forms of payload "
            "that do.",
            examples=(
                ("dead letters of all queues", "yirangmq pipeline poison"),
                ("of one queue", "yirangmq pipeline poison --from dlq:mail --least 10 --json"),
            ),
            options=poison_options,
            run=run_poison,
        ),
    ),
}
