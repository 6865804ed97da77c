"""Commands ``files list | show | check | housekeep``: the files by date.

They work on the folder that the server names, or on one beside the store, or on ``--folder``. If a server holds the
store, ``check`` and ``housekeep`` run in the server."""

import argparse
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from yirangmq.broker.queue_api import QueueStore
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import count_text
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar
from yirangmq.cli.table import TableColumn
from yirangmq.clock import SystemClock, zone_or_local
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.journal import JournalRecordKind, day_of, is_day
from yirangmq.core.setting_types import KEEP_DAYS
from yirangmq.format import journal_line
from yirangmq.server.journal import check_document, housekeeping_document
from yirangmq.stores.journal import files as dayfiles
from yirangmq.stores.journal.maintenance import check, housekeep, size_of

SHOWN = 20
SWITCH_ON = "a server writes them once files_by_date is switched on: yirangmq serve --files-by-date on"
MAX_PREVIEW = 60
CONTENT = (JournalRecordKind.ACCEPTED, JournalRecordKind.REWRITTEN)


def place_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder", metavar="FOLDER", help="folder of the files (default: the server's, or by-date beside the store)"
    )
    arguments.store(parser)


def _folder(args: argparse.Namespace) -> Path:
    """Return the folder of the files: from --folder, from the server that holds the store, or next to the store."""
    if args.folder:
        found = Path(args.folder)
    else:
        here = connection.store_location(args)
        with connection.open_existing(args) as queues:
            facts, is_served = _server_facts(queues), connection.address_of(queues) is not None
        if facts is None and (here.is_server or is_served):
            raise NotFound(f"this server keeps no files by date; {SWITCH_ON}", field="folder")
        found = Path(facts["folder"]) if facts else Path(here.path).absolute().parent / dayfiles.DEFAULT_FOLDER
    if not found.is_dir():
        raise NotFound(f"there are no files by date in {found}; {SWITCH_ON}", field="folder")
    return found


def _server_facts(queues: QueueStore) -> dict[str, Any] | None:
    if connection.address_of(queues) is None:
        return None
    found: dict[str, Any] | None = connection.call(queues, "status").get("filesByDate")
    return found


# -- list -----------------------------------------------------------------------------------------------------------


def run_list(args: argparse.Namespace, screen: Screen) -> int:
    root = _folder(args)
    rows = []
    for day in dayfiles.day_names(root):
        files = dayfiles.files(root, day)
        hours = len(list((root / day).glob("counts-*.json")))
        rows.append({"day": day, "files": len(files), "bytes": size_of(root, day), "snapshots": hours})
    if screen.json:
        screen.document({"ok": True, "folder": str(root), "days": rows})
        return output.OK
    columns = (TableColumn("day"), *(TableColumn(name, right=True) for name in ("files", "bytes", "snapshots")))
    screen.table(columns, [(row["day"], row["files"], f"{row['bytes']:,}", row["snapshots"]) for row in rows])
    return output.OK


# -- show -----------------------------------------------------------------------------------------------------------


def show_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("day", nargs="?", metavar="DAY", help="day, such as 2026-11-15 (default: all days)")
    arguments.queue(parser, needed=False, what="only records of this queue")
    parser.add_argument("--id", metavar="ID", help="only records of this message")
    arguments.limit(parser, f"at most this many (default: {SHOWN})", default=SHOWN)
    parser.add_argument("--payload", action="store_true", help="with --id: write the accepted bytes to stdout")
    place_options(parser)


def run_show(args: argparse.Namespace, screen: Screen) -> int:
    if args.day is not None and not is_day(args.day):
        raise BadInput(f"{args.day!r} is not a day such as 2026-11-15", field="day")
    if args.payload and not args.id:
        raise BadInput("says of which message with --id", field="payload")
    limit = validation.check_count(args.limit, "limit", least=1, most=10**9)
    root = _folder(args)
    if args.payload:
        return _show_payload(args, screen, root)
    found = 0
    for line in islice(_wanted(args, root), limit):
        found += 1
        screen.line(line.rstrip(b"\n")) if screen.json else screen.report(_in_short(journal_line.read(line)))
    if not found and args.id:
        raise NotFound(f"no file has a record of message {args.id!r}", field="id")
    return output.OK


def _show_payload(args: argparse.Namespace, screen: Screen, root: Path) -> int:
    """Write the payload of the latest record with content, after a check of its SHA-256."""
    found = None
    for line in _wanted(args, root):
        if journal_line.head_of(line).kind in CONTENT:
            found = line
    if found is None:
        raise NotFound(f"no file has the payload of message {args.id!r}", field="id")
    screen.write(journal_line.payload_of(journal_line.read(found)) or b"")
    return output.OK


def _wanted(args: argparse.Namespace, root: Path) -> Iterator[bytes]:
    for name in dayfiles.files(root, args.day):
        for line in dayfiles.lines(root / name):
            head = journal_line.head_of(line)
            if args.queue in (None, head.queue) and args.id in (None, head.id):
                yield line


def _in_short(record: dict[str, Any]) -> str:
    words = [record["at"], record["record"], record["queue"], record["messageId"]]
    if record["record"] in CONTENT:
        text = record.get("payloadText") or "(Base64)"
        preview = text if len(text) <= MAX_PREVIEW else f"{text[:MAX_PREVIEW]}…"
        return "  ".join([*words, f"{record['bytes']} bytes", preview.replace("\n", " ").replace("\r", " ")])
    words += [record["state"], record.get("delivery", "")]
    words += [f"attempt {record['attempt']}"] if record.get("attempt") else []
    words += [record.get("consumerId", ""), record.get("reasonCode", ""), record.get("reasonMessage", "")]
    return "  ".join(word for word in words if word)


# -- check ----------------------------------------------------------------------------------------------------------


def run_check(args: argparse.Namespace, screen: Screen) -> int:
    with ProgressBar("checking", shown=screen.shows_progress):
        if args.folder:
            found = check_document(check(_folder(args), None))
        else:
            found = _call_or_run_locally(
                args,
                "files_check",
                {},
                lambda root, queues: check_document(check(root, connection.local_store(queues).read)),
            )
    findings = found["findings"]
    if screen.json:
        screen.document({"ok": not findings, **found})
    else:
        held = f"{count_text(found['messages'], 'message')} in {count_text(found['records'], 'record')}"
        screen.report(f"{held} of {count_text(found['files'], 'file')}")
        if findings:
            columns = (TableColumn("kind"), TableColumn("where"), TableColumn("what", shrinks=True))
            screen.table(columns, [(one["kind"], one["where"], one["text"]) for one in findings])
        else:
            screen.report("in order: nothing is wrong")
    return output.exit_code("store_damaged") if findings else output.OK


# -- housekeep ------------------------------------------------------------------------------------------------------


def housekeep_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--days", type=int, metavar="N", help=f"days before today to keep (default: the server's, or {KEEP_DAYS})"
    )
    parser.add_argument(
        "--zone", default="UTC", metavar="NAME", help="without a server: its files_by_date_zone (default: UTC)"
    )
    arguments.dry_run(parser)
    place_options(parser)


def run_housekeep(args: argparse.Namespace, screen: Screen) -> int:
    days = None if args.days is None else validation.check_count(args.days, "days", least=1, most=36_500)
    today = day_of(SystemClock().wall_ms(), zone_or_local(args.zone, "zone"))

    def run_locally(root: Path, queues: QueueStore) -> dict[str, Any]:
        facts = housekeep(root, connection.local_store(queues).read, today, days or KEEP_DAYS, dry_run=args.dry_run)
        return housekeeping_document(facts, dry_run=args.dry_run)

    given = {"dry_run": args.dry_run, **({} if days is None else {"days": days})}
    with ProgressBar("removing days", shown=screen.shows_progress):
        found = _call_or_run_locally(args, "files_housekeep", given, run_locally)
    would = "would go" if args.dry_run else "went"
    lines = [f"{count_text(len(found['removed']), 'day')} {would}, {found['freedBytes']:,} bytes"]
    lines += [f"  {would}: {day}" for day in found["removed"]]
    lines += [f"  kept: {one['day']}, {one['why']}" for one in found["kept"]]
    screen.answer(found, "\n".join(lines))
    return output.OK


def _call_or_run_locally(
    args: argparse.Namespace,
    method: str,
    given: dict[str, Any],
    run_locally: Callable[[Path, QueueStore], dict[str, Any]],
) -> dict[str, Any]:
    """Call the server if one holds the store and writes files; otherwise run ``run_locally`` on the folder and the
    store."""
    with connection.open_existing(args) as queues:
        if args.folder and connection.address_of(queues) is not None:
            raise BadInput("a server holds this store; leave it out, or stop the server", field="folder")
        if _server_facts(queues) is not None:
            answer: dict[str, Any] = connection.call(queues, method, **given)
            return answer
        if connection.address_of(queues) is not None:
            raise NotFound("this server keeps no files by date (setting files_by_date)", field="store")
        return run_locally(_folder(args), queues)


COMMANDS = {
    "files": Command(
        about="Every accepted message and its outcome, as JSON lines in a folder for each day "
        "(docs/files-by-date.md). A server writes them with the setting files_by_date.",
        examples=(
            ("the days", "yirangmq files list"),
            ("the records of a message", "yirangmq files show --id 9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71"),
        ),
        subcommands={
            "list": (
                "list the days with their files and sizes",
                Command(
                    about="List the days that have files. Days are those of UTC.",
                    examples=(
                        ("of the server here", "yirangmq files list"),
                        ("of a copied folder", "yirangmq files list --folder /backup/by-date"),
                    ),
                    options=place_options,
                    run=run_list,
                ),
            ),
            "show": (
                "print records of a day, a queue or a message",
                Command(
                    about="Print records in the order of writing. With --json each is the line of its file. With "
                    "--id and --payload the accepted bytes are written to stdout, after they were compared "
                    "with their SHA-256.",
                    examples=(
                        ("the first of a day", "yirangmq files show 2026-11-15"),
                        ("one queue, for programs", "yirangmq files show 2026-11-15 --queue atm --limit 1000 --json"),
                        ("the bytes of a message", "yirangmq files show --id order-7 --payload"),
                    ),
                    options=show_options,
                    run=run_show,
                ),
            ),
            "check": (
                "check every line, and compare with the store",
                Command(
                    about="Read all lines: each must be a record whose payload has its SHA-256, each message must "
                    "be there once, and each waiting message of the store must be there (with --folder only "
                    "the files are checked). The command changes nothing. It exits with 5 if it finds a "
                    "problem.",
                    examples=(
                        ("of the server here", "yirangmq files check"),
                        ("a copy, without a store", "yirangmq files check --folder /backup/by-date"),
                    ),
                    options=place_options,
                    run=run_check,
                ),
            ),
            "housekeep": (
                "remove old days whose messages are settled",
                Command(
                    about="Run the daily housekeeping of the server now: remove days older than seven, except those "
                    "with a message that is not settled. A day also stays until files of more than seven later days "
                    "exist, so that a wrong clock removes at most one day.",
                    examples=(
                        ("list what would be removed", "yirangmq files housekeep --dry-run"),
                        ("keep a month", "yirangmq files housekeep --days 31"),
                    ),
                    options=housekeep_options,
                    run=run_housekeep,
                ),
            ),
        },
    )
}
