"""Commands ``drop``, ``sweep``, ``check`` and ``repair``: maintenance of a store.

``drop`` by ids drops all of them or none. ``check`` and ``repair`` open the store itself; ``repair`` refuses while a
server holds it, and rebuilds a store that cannot even be opened."""

import argparse
from collections import Counter
from functools import partial
from typing import Any

from yirangmq.broker import expiry_sweeper, message_moves
from yirangmq.broker.message_moves import BACKLOG
from yirangmq.broker.queue_api import QueueStore
from yirangmq.broker.queues import Queues
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import count_text
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar
from yirangmq.cli.table import TableColumn
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound, QueueError, StoreBusy, StoreDamaged, WrongState
from yirangmq.core.ports import Finding, ReadTransaction
from yirangmq.core.states import STORED_STATES, State
from yirangmq.stores.open import find_wide_permissions, salvage_store

MAX_DUE = 1_000_000
"""Maximum number of due messages that a dry run of ``sweep`` counts."""


def drop_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    parser.add_argument("ids", nargs="*", metavar="ID", help="message ids, in any state")
    parser.add_argument("--whole-queue", action="store_true", help="the queue with all its messages and its policy")
    parser.add_argument("--force", action="store_true", help="with --whole-queue: also while messages are leased")
    arguments.dry_run(parser)
    arguments.store(parser)


def sweep_options(parser: argparse.ArgumentParser) -> None:
    arguments.dry_run(parser)
    arguments.store(parser)


def check_options(parser: argparse.ArgumentParser) -> None:
    arguments.store(parser)


def repair_options(parser: argparse.ArgumentParser) -> None:
    arguments.dry_run(parser)
    arguments.store(parser)


# -- drop -----------------------------------------------------------------------------------------------------------


def run_drop(args: argparse.Namespace, screen: Screen) -> int:
    if args.ids and args.whole_queue:
        raise BadInput("are given together with --whole-queue; give only one of them", field="ids")
    if not args.ids and not args.whole_queue:
        raise BadInput(
            "nothing is selected; give the ID of each message, or --whole-queue for the queue with all its messages",
            field="ids",
        )
    with connection.open_existing(args) as queues:
        if args.whole_queue:
            return _drop_queue(args, screen, queues)
        return _drop_ids(args, screen, queues)


def _drop_ids(args: argparse.Namespace, screen: Screen, queues: QueueStore) -> int:
    """Drop all of the messages, or none if one of them does not exist."""
    ids = list(dict.fromkeys(validation.check_id(id) for id in args.ids))
    validation.check_queue(args.queue)
    found = queues.read(lambda transaction: transaction.by_id(args.queue, ids))
    for id, message in zip(ids, found, strict=True):
        if message is None:
            raise NotFound(f"queue {args.queue!r} has no message {id!r}", field="id")
    gone = sum(message is not None and message.state is State.DROPPED for message in found)
    if not args.dry_run:
        _raise_first(queues.drop(args.queue, ids))
    value = {"did": "dropped", "queue": args.queue, "count": len(ids) - gone, "ids": ids, "dryRun": args.dry_run}
    screen.answer(value, f"{_did(args, 'dropped')}: {len(ids) - gone} of {args.queue}")
    return output.OK


def _raise_first(errors: list[QueueError | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


def _drop_queue(args: argparse.Namespace, screen: Screen, queues: QueueStore) -> int:
    validation.check_queue(args.queue)
    if not queues.read(lambda transaction: transaction.has_queue(args.queue)):
        raise NotFound(f"there is no queue {args.queue!r}", field="queue")
    counts = queues.counts(args.queue)
    if counts.leased and not args.force:
        raise WrongState(
            f"{counts.leased} messages of {args.queue!r} are leased; --force drops them too", field="queue"
        )
    count = sum(getattr(counts, state.value) for state in STORED_STATES)
    if not args.dry_run:
        with ProgressBar("dropping", shown=screen.shows_progress):
            queues.delete_queue(args.queue)
    value = {"did": "dropped", "queue": args.queue, "count": count, "wholeQueue": True, "dryRun": args.dry_run}
    screen.answer(value, f"{_did(args, 'dropped')}: queue {args.queue} with {count_text(count, 'message')}")
    return output.OK


def _did(args: argparse.Namespace, did: str) -> str:
    return f"would have been {did}" if args.dry_run else did


# -- purge ----------------------------------------------------------------------------------------------------------


def purge_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    arguments.filter_option(parser)
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument(
        "--state", choices=[*BACKLOG], default="backlog", help="state of the messages (default: backlog, all three)"
    )
    arguments.limit(parser, "at most this many, in the order of arrival")
    arguments.dry_run(parser)
    arguments.store(parser)


def run_purge(args: argparse.Namespace, screen: Screen) -> int:
    names = ("filter", "all", "state", "limit", "dry_run")
    arguments.check_selection(args, "--filter TEXT or --all")
    with connection.open_existing(args) as queues:
        given = {name: getattr(args, name) for name in names}
        with (
            ProgressBar("purging", shown=screen.shows_progress, unit="messages") as show,
            connection.server_progress(args, queues, show, lambda remote: _backlog(remote, args)),
        ):
            if isinstance(queues, Queues):
                moved = message_moves.purge(queues, args.queue, **given, progress=lambda *step: show.update("", *step))
            else:
                moved = queues.purge(args.queue, **given)
    value = {"did": "purged", "queue": args.queue, "count": moved.count, "ids": moved.ids, "dryRun": args.dry_run}
    screen.answer(value, f"{_did(args, 'purged')}: {count_text(moved.count, 'message')} of {args.queue}")
    return output.OK


def _backlog(queues: QueueStore, args: argparse.Namespace) -> int:
    counts = queues.counts(args.queue)
    return sum(getattr(counts, state.value) for state in BACKLOG[args.state])


# -- sweep ----------------------------------------------------------------------------------------------------------


def run_sweep(args: argparse.Namespace, screen: Screen) -> int:
    if args.dry_run:
        with connection.open_read_only(args, screen) as queues:
            due = _due(queues)
        count = sum(due.values())
        text = ", ".join(f"{number:,} {state}" for state, number in due.items()) or "nothing"
        screen.answer({"did": "swept", "count": count, "byState": due, "dryRun": True}, f"due to move: {text}")
        return output.OK
    bar = ProgressBar("sweeping", shown=screen.shows_progress, unit="changes")
    with connection.open_or_create(args) as queues, bar as show:
        count = _sweep_in_steps(queues, show) if isinstance(queues, Queues) else queues.sweep()
    screen.answer({"did": "swept", "count": count, "dryRun": False}, f"swept: {count_text(count, 'change')}")
    return output.OK


def _sweep_in_steps(queues: Queues, show: ProgressBar) -> int:
    """Sweep the store that is open here, one commit at a time, with progress after each."""
    total = 0
    while changed := queues.run(partial(expiry_sweeper.sweep, queues.context)):
        total += changed
        show(total)
    return total


def _due(queues: QueueStore) -> dict[str, int]:
    now = queues.now_ms()

    def work(transaction: ReadTransaction) -> dict[str, int]:
        return dict(Counter(message.state.value for message in transaction.due(now, MAX_DUE)))

    return queues.read(work)


# -- check and repair -----------------------------------------------------------------------------------------------


def run_check(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_existing(args, bypass_server=True) as queues:
        with ProgressBar("checking", shown=screen.shows_progress) as show:
            found = [*queues.check(progress=show.update)]
        found += find_wide_permissions(connection.store_location(args).url)
        return _report(screen, found, repairing=False)


def run_repair(args: argparse.Namespace, screen: Screen) -> int:
    server = connection.server_of(connection.store_location(args), args)
    if server and not args.dry_run:
        raise StoreBusy(f"a server holds this store, at {server}; stop it first", field="store")
    with ProgressBar("repairing", shown=screen.shows_progress) as show:
        found = _repair(args, show)
    return _report(screen, found, repairing=not args.dry_run)


def _repair(args: argparse.Namespace, show: ProgressBar) -> list[Finding]:
    try:
        with connection.open_existing(args, bypass_server=True) as queues:
            found = queues.check(repair=not args.dry_run, progress=show.update)
            return [*found, *find_wide_permissions(connection.store_location(args).url, repair=not args.dry_run)]
    except StoreDamaged:
        if args.dry_run:
            raise
        show.update("salvage", 0, 0)
        return salvage_store(connection.store_location(args).url)  # the store cannot even be opened


def _report(screen: Screen, findings: list[Finding], *, repairing: bool) -> int:
    left = sum(not finding.is_repaired for finding in findings)
    if screen.json:
        screen.document({"ok": left == 0, "findings": [_document(finding) for finding in findings], "left": left})
    elif not findings:
        screen.report("in order: nothing is wrong")
    else:
        columns = (
            TableColumn("kind"),
            TableColumn("where"),
            TableColumn("what", shrinks=True),
            TableColumn("mended", marks=True),
        )
        rows = [(f.kind, f.where, f.text, "yes" if f.is_repaired else "no") for f in findings]
        screen.table(columns, rows)
        if not repairing:
            screen.note("'yirangmq repair' repairs what can be repaired; back up the store first")
    return output.OK if left == 0 else output.exit_code("store_damaged")


def _document(finding: Finding) -> dict[str, Any]:
    return {"kind": finding.kind, "where": finding.where, "text": finding.text, "mended": finding.is_repaired}


COMMANDS = {
    "drop": Command(
        about="Drop messages by id, in whatever state they are, or a whole queue. This cannot be undone.",
        examples=(
            ("one message", "yirangmq drop --queue telemetry 9b2f2f2a-6f64-4f8b-a9b5-1e0d6f3a0d71"),
            (
                "count the messages of the queue without a change",
                "yirangmq drop --queue telemetry --whole-queue --dry-run",
            ),
            ("the queue with all its messages", "yirangmq drop --queue telemetry --whole-queue"),
        ),
        options=drop_options,
        run=run_drop,
    ),
    "purge": Command(
        about="Drop the backlog of a queue: the messages that are ready, delayed, or held behind another message "
        "of their group. Messages that are leased, dead, parked or done stay, and so does the policy. This "
        "cannot be undone.",
        examples=(
            ("count them without a change", "yirangmq purge --queue telemetry --all --dry-run"),
            ("all of them", "yirangmq purge --queue telemetry --all"),
            ("those that are older than a day", "yirangmq purge --queue telemetry --filter 'publishedAt<1d ago'"),
        ),
        options=purge_options,
        run=run_purge,
    ),
    "sweep": Command(
        about="Apply now what is due: delayed messages become ready, expired leases end, old history is removed. "
        "Each consume does a part of it; this command does all of it.",
        examples=(
            ("now", "yirangmq sweep"),
            ("count what is due", "yirangmq sweep --dry-run"),
        ),
        options=sweep_options,
        run=run_sweep,
    ),
    "check": Command(
        about="Look for damage: broken files or pages, messages in two states, wrong counters; and for files that "
        "other users can access. The command changes nothing. It exits with 5 if it finds a problem.",
        examples=(
            ("./yirang-data/queue.db", "yirangmq check"),
            ("a folder of JSON files, for programs", "yirangmq check --path /var/yirang/queues --json"),
        ),
        options=check_options,
        run=run_check,
    ),
    "repair": Command(
        about="Repair what check finds. Other users lose their access to the store. Unreadable files are moved to "
        "quarantine and never deleted. A damaged SQLite file is copied into a new one as far as it is "
        "readable, and kept under another name. Back up the store first.",
        examples=(
            ("list what would be repaired", "yirangmq repair --dry-run"),
            ("repair", "yirangmq repair --db /data/yirang.db"),
        ),
        options=repair_options,
        run=run_repair,
    ),
}
