"""Commands ``export`` and ``import``: queues to a file of JSON lines and back, between stores of any kind.

They open the store itself, not the server. The export file appears under its name when it is complete and on disk."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from yirangmq.broker import export_import
from yirangmq.broker.queues import Queues
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import count_text
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar
from yirangmq.core.errors import BadInput, StoreError, StoreFull, StoreReadOnly, Unavailable
from yirangmq.fsio.atomic_file import sync_folder
from yirangmq.fsio.input_file import open_input
from yirangmq.fsio.permissions import open_file


def export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="output file (default: - for stdout)")
    arguments.queue(parser, needed=False, what="these queues (default: all)", several=True)
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    arguments.store(parser)


def import_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="an export, or - for stdin")
    parser.add_argument(
        "--policies",
        choices=export_import.POLICIES,
        default="keep",
        help="keep (default): set a policy only where the queue has none; replace: always; skip: never",
    )
    arguments.dry_run(parser)
    arguments.store(parser)


def run_export(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_existing(args, bypass_server=True) as queues:
        if connection.address_of(queues) is not None:
            raise Unavailable(connection.NEEDS_FILES)
        _wait_for_server(queues)
        total = export_import.total(queues, args.queue or None)
        with (
            _output(args) as stream,
            ProgressBar("exporting", total, shown=screen.shows_progress, unit="messages") as show,
        ):
            done = export_import.export(queues, stream.write, args.queue or None, lambda messages, _: show(messages))
    text = f"exported {count_text(done.messages, 'message')} of {count_text(len(done.queues), 'queue')}"
    if args.file == "-":
        screen.note(text)
    else:
        value = {"file": args.file, "queues": done.queues, "messages": done.messages, "bytes": done.bytes}
        screen.answer(value, f"{text} to {args.file}")
    return output.OK


def _wait_for_server(queues: Queues) -> None:
    """Wait until SQLite has everything that a server confirmed before: up to 2 s of it may be in its redo log only.

    The server holds SQLite's write lock as long as that is so, and a write transaction waits for the lock."""
    with suppress(StoreReadOnly):
        queues.run(lambda transaction: None)


@contextmanager
def _output(args: argparse.Namespace) -> Iterator[BinaryIO]:
    """Open stdout, or a file that appears under its name only when it is complete and on disk."""
    if args.file == "-":
        yield sys.stdout.buffer
        return
    target = Path(args.file)
    if target.exists() and not args.force:
        raise BadInput(f"{target} exists already; --force overwrites it", field="file")
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with os.fdopen(open_file(partial, os.O_WRONLY | os.O_TRUNC), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        kind = StoreFull if error.errno == 28 else StoreError
        raise kind(f"{target} cannot be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)


def run_import(args: argparse.Namespace, screen: Screen) -> int:
    with open_input(args.file) as stream:
        size = Path(args.file).stat().st_size if args.file != "-" and Path(args.file).is_file() else None
        with (
            connection.open_read_only(args, screen, bypass_server=True)
            if args.dry_run
            else connection.open_or_create(args, bypass_server=True) as queues,
            ProgressBar("importing", size, shown=screen.shows_progress, unit="messages") as show,
        ):
            done = export_import.load(
                queues,
                _lines(stream),
                policies=args.policies,
                dry_run=args.dry_run,
                progress=lambda messages, read: show(read if size else messages, messages),
            )
    value = {
        "queues": done.queues,
        "stored": done.stored,
        "duplicates": done.duplicates,
        "policies": done.policies,
        "policiesKept": done.kept,
        "dryRun": args.dry_run,
    }
    text = f"{'would have been imported' if args.dry_run else 'imported'}: {count_text(done.stored, 'message')}"
    if done.duplicates:
        text += f"; {done.duplicates:,} existed already"
    screen.answer(value, text)
    for queue in done.kept:
        screen.note(f"{queue} keeps its own policy, which differs; --policies replace takes the one from the export")
    return output.OK


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(export_import.MAX_LINE_BYTES + 1):
        yield line


COMMANDS = {
    "export": Command(
        about="Write queues with their policies, messages and failures to a file of JSON lines (docs/transfer.md).",
        examples=(
            ("all queues", "yirangmq export backup.jsonl"),
            ("two queues of a folder of JSON files", "yirangmq export some.jsonl --path queues -q mail -q telemetry"),
            ("to a pipe", "yirangmq export - --queue telemetry"),
        ),
        options=export_options,
        run=run_export,
    ),
    "import": Command(
        about="Read an export into a store of any kind. Order and states are kept; a message that was leased "
        "becomes ready. Nothing is stored twice: a repeated import adds only what is missing.",
        examples=(
            ("into ./yirang-data/queue.db", "yirangmq import backup.jsonl"),
            ("count the new messages without a change", "yirangmq import backup.jsonl --dry-run"),
            ("from a SQLite file to a folder", "yirangmq import backup.jsonl --backend fs --path /var/yirang/queues"),
        ),
        options=import_options,
        run=run_import,
    ),
}
