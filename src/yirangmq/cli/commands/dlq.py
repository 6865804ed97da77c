"""Commands ``dlq list | show | stats | redrive | quarantine | purge``: dead letters of a queue.

Commands that move letters need a filter, ids or ``--all``, because a forgotten filter must not move everything.
``requeue`` is another name of ``redrive``."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from yirangmq.broker.dead_letters import KINDS
from yirangmq.broker.queue_api import DeadLetterApi, QueueStore
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import shorten_instant
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar
from yirangmq.cli.render import dead_letter_record, dead_letter_row
from yirangmq.cli.table import TableColumn, instant_of
from yirangmq.core import validation
from yirangmq.core.ports import MoveResult
from yirangmq.format.json_codec import loads

SHOWN = 100
"""Default number of table rows for people; programs get all rows."""
QUEUE_HELP = "the source queue, or the name in its policy's dlq.queue"


def list_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, what=QUEUE_HELP)
    arguments.filter_option(parser)
    _state_option(parser)
    arguments.limit(parser, f"at most this many (default: {SHOWN}; with --json or --records all)")
    parser.add_argument(
        "--records", action="store_true", help="complete records with the original message, one per line"
    )
    arguments.store(parser)


def show_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, what=QUEUE_HELP)
    parser.add_argument("id", metavar="ID", help="message id")
    arguments.store(parser)


def stats_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, needed=False, what=f"{QUEUE_HELP} (default: all queues)")
    arguments.store(parser)


def move_options(parser: argparse.ArgumentParser) -> None:
    _which_options(parser)
    _state_option(parser)
    arguments.dry_run(parser)
    arguments.store(parser)


def quarantine_options(parser: argparse.ArgumentParser) -> None:
    _which_options(parser)
    arguments.dry_run(parser)
    arguments.store(parser)


def _which_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, what=QUEUE_HELP)
    arguments.filter_option(parser)
    parser.add_argument("--id", action="append", metavar="ID", help="this dead letter; may be repeated")
    parser.add_argument("--all", action="store_true", help="all dead letters")
    arguments.limit(parser, "at most this many, in the order of arrival")


def _state_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", choices=[*KINDS], default="dead", help="dead (default), parked, or both")


# -- list, show and stats ----------------------------------------------------------------------------------------------


def run_list(args: argparse.Namespace, screen: Screen) -> int:
    if args.limit is not None:
        validation.check_count(args.limit, "limit", most=10**9)
    with connection.open_read_only(args, screen) as queues:
        found = queues.dead_letters.list(args.queue, args.filter, state=args.state)
        if args.records or screen.json:
            for view in islice(found, args.limit):
                screen.line(dead_letter_record(view)) if args.records else screen.document(dead_letter_row(view))
            return output.OK
        limit = args.limit or SHOWN
        rows = [dead_letter_row(view) for view in islice(found, limit + 1)]
    if not rows:
        screen.note(f"no {'' if args.state == 'all' else args.state + ' '}letters under {args.queue}")
        return output.OK
    screen.table(COLUMNS, [[_cell(row, name) for name in SHOWN_MEMBERS] for row in rows[:limit]])
    if len(rows) > limit:
        screen.note(f"only the first {limit} are shown; --limit N shows more, 'dlq stats' counts them all")
    return output.OK


COLUMNS = (
    TableColumn("message"),
    TableColumn("source queue", rank=3),
    TableColumn("state", rank=5),
    TableColumn("reason"),
    TableColumn("failed", rank=1),
    TableColumn("attempt", right=True, rank=2),
    TableColumn("consumer", rank=4),
    TableColumn("text", shrinks=True, rank=1),
)
SHOWN_MEMBERS = (
    "messageId", "sourceQueue", "state", "reasonCode", "failedAt", "attempt", "consumerId", "reasonMessage",
)  # fmt: skip
"""Members of a row, in the order of ``COLUMNS``."""

BY_QUEUE = (TableColumn("queue"), TableColumn("dead", right=True, alarms=True), TableColumn("parked", right=True))


def _cell(row: dict[str, Any], name: str) -> object:
    return instant_of(row[name]) if name == "failedAt" else row[name]


def run_show(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_read_only(args, screen) as queues:
        record = dead_letter_record(queues.dead_letters.show(args.queue, args.id))
    if screen.json:
        screen.line(record)
    else:
        screen.report(json.dumps(loads(record), indent=2, ensure_ascii=False))
    return output.OK


def run_stats(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_read_only(args, screen) as queues, ProgressBar("counting", shown=screen.shows_progress):
        stats = queues.dead_letters.stats(args.queue)
    if screen.json:
        screen.document({"ok": True, **stats})
        return output.OK
    screen.report(f"{args.queue or 'all queues'}: {stats['total']} dead, {stats['parked']} parked")
    if stats["total"]:
        screen.report(f"oldest {shorten_instant(stats['oldest'])}  newest {shorten_instant(stats['newest'])}")
        screen.report()
        codes = list(stats["byReason"])
        columns = [
            TableColumn("day"),
            *(TableColumn(code, right=True) for code in codes),
            TableColumn("total", right=True),
        ]
        rows = [[day["day"], *(day["byReason"].get(code, 0) for code in codes), day["total"]] for day in stats["byDay"]]
        rows.append(["all", *stats["byReason"].values(), stats["total"]])
        screen.table(columns, rows)
    if len(stats["byQueue"]) > 1 or (args.queue is None and stats["byQueue"]):
        screen.report()
        counted = [[row["queue"], row["total"], row["parked"]] for row in stats["byQueue"]]
        screen.table(BY_QUEUE, counted)
    return output.OK


# -- redrive, quarantine and purge -------------------------------------------------------------------------------------


def run_redrive(args: argparse.Namespace, screen: Screen) -> int:
    with _open_dead_letters(args, screen) as dead_letters:
        moved = dead_letters.redrive(**_chosen(args), state=args.state)
    return _report(args, screen, "requeued", moved)


def run_quarantine(args: argparse.Namespace, screen: Screen) -> int:
    with _open_dead_letters(args, screen) as dead_letters:
        moved = dead_letters.quarantine(**_chosen(args))
    return _report(args, screen, "quarantined", moved)


def run_purge(args: argparse.Namespace, screen: Screen) -> int:
    with _open_dead_letters(args, screen) as dead_letters:
        moved = dead_letters.purge(**_chosen(args), state=args.state)
    return _report(args, screen, "purged", moved)


def _chosen(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that all moves have."""
    names = ("queue", "filter", "all", "limit", "dry_run")
    return {**{name: getattr(args, name) for name in names}, "ids": args.id}


@contextmanager
def _open_dead_letters(args: argparse.Namespace, screen: Screen) -> Iterator[DeadLetterApi]:
    """Open the dead letters. A command without a selection is refused before it creates a store."""
    arguments.check_selection(args, "--filter TEXT, --id ID or --all")
    label = {"redrive": "redriving", "requeue": "redriving", "purge": "purging"}.get(args.verb, "parking")
    with (
        connection.open_or_create(args) as queues,
        ProgressBar(label, shown=screen.shows_progress, unit="messages") as show,
        connection.server_progress(args, queues, show, lambda remote: _left(remote, args)),
    ):
        yield connection.dead_letters(queues, lambda done, total: show.update("", done, total))


def _left(queues: QueueStore, args: argparse.Namespace) -> int:
    """Return the number of dead letters that a move may still have before it."""
    counts = [queues.counts(source) for source in queues.dead_letters.sources(args.queue)]
    states = KINDS[args.state] if "state" in args else KINDS["dead"]
    return sum(getattr(count, state.value) for count in counts for state in states)


def _report(args: argparse.Namespace, screen: Screen, did: str, moved: MoveResult) -> int:
    value = {"did": did, "queue": args.queue, "count": moved.count, "ids": moved.ids, "dryRun": args.dry_run}
    done = "redriven" if did == "requeued" else did  # the member of the document is stable
    text = f"{'would have been ' if args.dry_run else ''}{done}: {moved.count:,} of {args.queue}"
    if moved.ids:
        text += f" ({', '.join(moved.ids[:3])}{' …' if moved.count > 3 else ''})"
    screen.answer(value, text)
    return output.OK


REDRIVE = Command(
    about="Make dead letters ready again in the order of arrival, with their attempts counted from the start. "
    "Parked messages stay, unless --id, --state parked or a filter with state=parked selects them.",
    examples=(
        ("those that timed out", "yirangmq dlq redrive --queue telemetry-dlq --filter reasonCode=TIMEOUT"),
        ("the first hundred of them", "yirangmq dlq redrive --queue telemetry --filter reasonCode=TIMEOUT --limit 100"),
        ("count them without a change", "yirangmq dlq redrive --queue telemetry --all --dry-run"),
        ("one", "yirangmq dlq redrive --queue telemetry --id 9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71"),
    ),
    options=move_options,
    run=run_redrive,
)
SUBCOMMANDS = {
    "list": (
        "list dead letters, oldest first",
        Command(
            about="List dead letters, those of each source queue oldest first.",
            examples=(
                ("all of a queue", "yirangmq dlq list --queue telemetry-dlq"),
                (
                    "those that timed out in the third or a later attempt before a day",
                    "yirangmq dlq list --queue telemetry "
                    "--filter 'reasonCode=TIMEOUT and attempt>=3 and failedAt<2026-01-14'",
                ),
                ("complete records into a file", "yirangmq dlq list --queue telemetry --records"),
            ),
            options=list_options,
            run=run_list,
        ),
    ),
    "show": (
        "print a dead letter with its original message",
        Command(
            about="Print one dead letter: the original message, the failure, and the source queue.",
            examples=(
                ("for people", "yirangmq dlq show --queue telemetry 9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71"),
                ("for programs", "yirangmq dlq show --queue telemetry 9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71 --json"),
            ),
            options=show_options,
            run=run_show,
        ),
    ),
    "stats": (
        "count dead letters by reason and day",
        Command(
            about="Count dead letters by reason, and by the day (UTC) on which they failed.",
            examples=(
                ("of all queues", "yirangmq dlq stats"),
                ("for people", "yirangmq dlq stats --queue telemetry"),
                ("for programs", "yirangmq dlq stats --queue telemetry-dlq --json"),
            ),
            options=stats_options,
            run=run_stats,
        ),
    ),
    "redrive": ("make dead letters ready again", REDRIVE),
    "requeue": ("another name of redrive", REDRIVE),
    "quarantine": (
        "park dead letters until an operator names them",
        Command(
            about="Park dead letters: they are kept without a time limit, and later commands change them only if "
            "they are named.",
            examples=(
                ("by reason", "yirangmq dlq quarantine --queue telemetry --filter reasonCode=POISON"),
                ("one", "yirangmq dlq quarantine --queue telemetry --id 9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71"),
            ),
            options=quarantine_options,
            run=run_quarantine,
        ),
    ),
    "purge": (
        "remove dead letters for good",
        Command(
            about="Remove dead letters for good. Parked messages stay, unless they are named.",
            examples=(
                ("old ones", "yirangmq dlq purge --queue telemetry --filter 'failedAt<2026-01-01'"),
                ("count them without a change", "yirangmq dlq purge --queue telemetry --all --dry-run"),
                ("parked messages", "yirangmq dlq purge --queue telemetry --all --state parked"),
            ),
            options=move_options,
            run=run_purge,
        ),
    ),
}
COMMANDS = {
    "dlq": Command(
        about="Dead letters: messages that ran out of attempts or were rejected, each with its reason.",
        examples=(
            ("number of dead letters by reason", "yirangmq dlq stats --queue telemetry"),
            ("list them", "yirangmq dlq list --queue telemetry-dlq"),
            ("make some of them ready again", "yirangmq dlq redrive --queue telemetry-dlq --filter reasonCode=TIMEOUT"),
        ),
        subcommands=SUBCOMMANDS,
    )
}
