"""``pipeline report | audit | poison``: what there is to know of messages and records."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

from yirangmq.cli import exits, sparkwork
from yirangmq.cli.command import Command
from yirangmq.cli.pipeline_common import common, source, table, values
from yirangmq.cli.screen import Screen
from yirangmq.core.errors import BadInput
from yirangmq.pipeline.run_registry import read_place


def report_options(parser: argparse.ArgumentParser) -> None:
    about = "queue:*, queue:NAME, topic:NAME, archive:FOLDER or files:FOLDER for files by date (default: queue:*)"
    source(parser, about, needed=False, default="queue:*")
    parser.add_argument("--html", metavar="FILE", help="also as a page with charts")
    common(parser)


def run_report(args: argparse.Namespace, screen: Screen) -> int:
    place = read_place(args.source)
    reach = sparkwork.reach_of(args)
    now = datetime.now(UTC)
    with sparkwork.working(args, screen, "report") as spark:
        from yirangmq.pipeline import run_registry
        from yirangmq.pipeline.jobs import report as page
        from yirangmq.pipeline.jobs.report import report

        rows = run_registry.read_states(spark, place, reach).cache()
        found = page.values(report(rows, now))
        rows.unpersist()
    if args.html:
        title = f"Report of {place}"
        Path(args.html).write_text(page.page(found, title, now.isoformat(timespec="seconds")))
    if screen.json:
        screen.document({"ok": True, "from": str(place), **found})
        return exits.OK
    for name, part in found.items():
        screen.say(page.TITLES[name])
        table(screen, part)
        screen.say()
    if args.html:
        screen.say(f"the page: {args.html}")
    return exits.OK


def audit_options(parser: argparse.ArgumentParser) -> None:
    source(parser, "topic:NAME, topic:PATTERN or archive:FOLDER")
    common(parser)


def run_audit(args: argparse.Namespace, screen: Screen) -> int:
    place = read_place(args.source, kinds=("topic", "archive"))
    reach = sparkwork.reach_of(args)
    with sparkwork.working(args, screen, "audit") as spark:
        from yirangmq.pipeline import run_registry
        from yirangmq.pipeline.jobs.analysis import audit, gaps, repeats

        rows = run_registry.read(spark, place, reach)
        if "offset" not in rows.columns:
            raise BadInput("is an archive of messages; only records of topics have a sequence to audit", field="from")
        found = {"topics": values(audit(rows)), "gaps": values(gaps(rows)), "repeats": values(repeats(rows))}
    is_whole = not found["gaps"] and not found["repeats"]
    if screen.json:
        screen.document({"ok": True, "from": str(place), "whole": is_whole, **found})
        return exits.OK
    table(screen, found["topics"])
    for name in ("gaps", "repeats"):
        if found[name]:
            screen.say(f"\n{name}:")
            table(screen, found[name])
    screen.say("nothing is missing, nothing is there twice" if is_whole else "\nnot whole")
    return exits.OK


def poison_options(parser: argparse.ArgumentParser) -> None:
    source(parser, "dlq:NAME, dlq:* (default), archive:FOLDER or files:FOLDER", needed=False, default="dlq:*")
    parser.add_argument("--least", type=int, default=3, metavar="N", help="failures from which on it is shown (3)")
    common(parser)


def run_poison(args: argparse.Namespace, screen: Screen) -> int:
    place = read_place(args.source, kinds=("dlq", "queue", "archive", "files"))
    reach = sparkwork.reach_of(args)
    with sparkwork.working(args, screen, "poison") as spark:
        from yirangmq.pipeline import run_registry
        from yirangmq.pipeline.jobs.analysis import poison_messages, poison_shapes

        rows = run_registry.read_states(spark, place, reach)
        found = {
            "payloads": values(poison_messages(rows, args.least)),
            "shapes": values(poison_shapes(rows, args.least)),
        }
    if screen.json:
        screen.document({"ok": True, "from": str(place), **found})
        return exits.OK
    for name, part in found.items():
        screen.say(f"{name} that failed {args.least} times or more:")
        table(screen, part)
        screen.say()
    return exits.OK


INSIGHT_VERBS: dict[str, tuple[str, Command]] = {
    "report": (
        "rates, times, failures and volume, as tables and charts",
        Command(
            about="What went through: messages a minute, failure rate, wait and processing times, dead letters by "
            "reason and how they grow, retries, volume by week.",
            examples=(
                ("all queues of a server, as a page", "yirangmq pipeline report --html report.html"),
                ("an archive, for programs", "yirangmq pipeline report --from archive:archive/done --json"),
            ),
            options=report_options,
            run=run_report,
        ),
    ),
    "audit": (
        "gaps and duplicates of topics",
        Command(
            about="Look at every sequence of a topic, or of an archive of it: what is missing, what is there twice.",
            examples=(
                ("all topics of a server", "yirangmq pipeline audit --from 'topic:*'"),
                ("an archive", "yirangmq pipeline audit --from archive:archive/orders --json"),
            ),
            options=audit_options,
            run=run_audit,
        ),
    ),
    "poison": (
        "messages and shapes of payload that keep failing",
        Command(
            about="Payloads that failed again and again, in one message or in several, and shapes of payload that do.",
            examples=(
                ("dead letters of all queues", "yirangmq pipeline poison"),
                ("of one queue", "yirangmq pipeline poison --from dlq:mail --least 10 --json"),
            ),
            options=poison_options,
            run=run_poison,
        ),
    ),
}
