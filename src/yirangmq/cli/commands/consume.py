"""Commands ``consume``, ``ack``, ``nack`` and ``extend``.

``consume`` leases messages, prints them, and acks the printed messages. If printing is interrupted, the messages are
released immediately. With ``--no-ack`` the lease stays, and the other three commands settle it.

With ``--handler`` or ``--exec`` it is a consumer process. Its options, and which of them go together, are checked
here; the work is in ``cli.commands.consume_handlers``, loaded when it is needed."""

import argparse
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from yirangmq.broker.queues import Queues
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen
from yirangmq.cli.render import delivery_block
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.message import Reason
from yirangmq.core.stop_signals import StopSignals, StopStep
from yirangmq.core.validation import nearest
from yirangmq.format.delivery import MessageDelivery

# -- ack, nack and extend ----------------------------------------------------------------------------------------------


def ack_options(parser: argparse.ArgumentParser) -> None:
    arguments.leases(parser)
    arguments.store(parser)


def nack_options(parser: argparse.ArgumentParser) -> None:
    arguments.leases(parser)
    parser.add_argument(
        "--reason", choices=[*Reason], default=Reason.HANDLER_ERROR.value, help="reason code (default: HANDLER_ERROR)"
    )
    parser.add_argument("--text", default="", metavar="TEXT", help="description of the failure")
    parser.add_argument(
        "--delay", type=float, metavar="SECONDS", help="time until the next attempt (default: the policy's backoff)"
    )
    arguments.store(parser)


def extend_options(parser: argparse.ArgumentParser) -> None:
    arguments.leases(parser)
    parser.add_argument(
        "--seconds", type=float, metavar="SECONDS", help="new duration from now (default: the queue's policy)"
    )
    arguments.store(parser)


def run_ack(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_existing(args) as queues:
        errors = queues.ack_many(args.leases, consumer=args.consumer_id)
    return _report(args, screen, "acked", errors)


def run_nack(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_existing(args) as queues:
        errors = queues.nack_many(args.leases, args.reason, args.text, delay=args.delay, consumer=args.consumer_id)
    return _report(args, screen, "nacked", errors)


def run_extend(args: argparse.Namespace, screen: Screen) -> int:
    with connection.open_existing(args) as queues:
        errors = queues.extend_many(args.leases, args.seconds, consumer=args.consumer_id)
    return _report(args, screen, "extended", errors)


def _report(args: argparse.Namespace, screen: Screen, did: str, errors: list[QueueError | None]) -> int:
    """Print the result of each lease to stdout and each error to stderr. A stale lease is an error and does not affect
    the others.

    Return the exit code of the first error."""
    first = next((error for error in errors if error is not None), None)
    if screen.json:
        results = [_result(lease, error) for lease, error in zip(args.leases, errors, strict=True)]
        screen.document({"ok": first is None, "did": did, "results": results})
    for lease, error in zip(args.leases, errors, strict=True):
        if error is not None:
            screen.problem(error)
        elif not screen.json:
            screen.report(f"{did} {lease}")
    return output.OK if first is None else output.exit_code(first.code)


def _result(lease: str, error: QueueError | None) -> dict[str, Any]:
    if error is None:
        return {"leaseId": lease, "ok": True}
    return {"leaseId": lease, "ok": False, "code": error.code, "error": str(error)}


SETTLE_COMMANDS = {
    "ack": Command(
        about="Acknowledge leased messages: the work is done. A repeated ack succeeds; a lease that has ended is "
        "rejected.",
        examples=(
            ("one", "yirangmq ack 17-1"),
            ("several with one commit, in another store", "yirangmq ack 17-1 18-1 --db /data/yirang.db"),
        ),
        options=ack_options,
        run=run_ack,
    ),
    "nack": Command(
        about="Report that the processing of leased messages failed. The policy of the queue decides between "
        "another attempt and the dead-letter queue; with REJECTED, VALIDATION_ERROR, POISON and CORRUPT the "
        "message is dead at once.",
        examples=(
            ("retry as the policy says", "yirangmq nack 17-1 --text 'no route to host'"),
            ("retry in a minute", "yirangmq nack 17-1 --reason TIMEOUT --delay 60"),
            ("no retry", "yirangmq nack 17-1 --reason REJECTED --text 'unknown account'"),
        ),
        options=nack_options,
        run=run_nack,
    ),
    "extend": Command(
        about="Extend the lease of messages: it then ends the given number of seconds from now.",
        examples=(
            ("by the duration in the queue's policy", "yirangmq extend 17-1"),
            ("five minutes from now", "yirangmq extend 17-1 --seconds 300"),
        ),
        options=extend_options,
        run=run_extend,
    ),
}


# -- options of a consumer process -------------------------------------------------------------------------------------

DRAIN_SECONDS = 30.0
GRACE_SECONDS = 5.0
WORKER_OPTIONS = ("concurrency", "timeout", "prefetch", "drain_seconds", "poison_after", "schema", "until_empty")
PROGRAM_OPTIONS = ("shell", "retry_after", "kill_after")
"""Options that are valid only with ``--exec``."""
PRINT_OPTIONS = {"no_ack": False, "batch": 1, "wait": 0, "fail_empty": False}
"""Options that are valid only for plain ``consume``, with their defaults."""


def add_worker_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("consumer process")
    group.add_argument("--handler", metavar="MODULE:FUNCTION", help="Python function that is called for each message")
    group.add_argument(
        "--exec",
        dest="program",
        metavar="COMMAND",
        help="program that is run for each message: the envelope as one line of JSON on stdin (with --raw the bytes of "
        f"the payload); exit code 0 acks, {os.EX_DATAERR} rejects, {os.EX_TEMPFAIL} retries, any other is a failure",
    )
    group.add_argument("--shell", action="store_true", help="run COMMAND with the shell")
    group.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="number of messages that are processed at the same time (default: 1)",
    )
    group.add_argument("--timeout", type=float, metavar="SECONDS", help="time limit for one message (default: none)")
    group.add_argument(
        "--kill-after",
        type=float,
        metavar="SECONDS",
        help=f"between asking a program to end and killing it (default: {GRACE_SECONDS:g})",
    )
    group.add_argument(
        "--retry-after", type=float, metavar="SECONDS", help=f"after exit code {os.EX_TEMPFAIL} (default: the policy's)"
    )
    group.add_argument(
        "--prefetch",
        type=int,
        metavar="N",
        help="number of messages that are leased in advance, for quick handlers (default: 0)",
    )
    group.add_argument("--schema", metavar="FILE", help="JSON Schema that payloads must match")
    group.add_argument(
        "--poison-after",
        type=int,
        metavar="N",
        help="a message is dead after this many equal errors in a row (default: never)",
    )
    group.add_argument(
        "--drain-seconds",
        type=float,
        metavar="SECONDS",
        help=f"time limit for the messages in process after a stop (default: {DRAIN_SECONDS:g})",
    )
    group.add_argument("--until-empty", action="store_true", help="end when no message is ready or in process")


def wants_workers(args: argparse.Namespace) -> bool:
    if args.handler is not None or args.program is not None:
        return True
    _reject_options(args, (*WORKER_OPTIONS, *PROGRAM_OPTIONS), "needs --handler or --exec")
    return False


def run_workers(args: argparse.Namespace, screen: Screen) -> int:
    if args.handler is not None and args.program is not None:
        raise BadInput("give this or --exec, not both", field="--handler")
    if args.handler is not None:
        _reject_options(args, (*PROGRAM_OPTIONS, "raw"), "needs --exec")
    for name, default in PRINT_OPTIONS.items():
        if getattr(args, name) != default:
            raise BadInput("is not for a consumer process", field=_flag(name))
    from yirangmq.cli.commands import consume_handlers

    return consume_handlers.run(args, screen)


def _reject_options(args: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(args, name) is not None and getattr(args, name) is not False:
            raise BadInput(why, field=_flag(name))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


# -- consume -----------------------------------------------------------------------------------------------------------

FOLLOW_SECONDS = 3600
"""Length of one wait of --follow, in seconds; then the command waits again."""


def add_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser)
    arguments.limit(parser, "stop after this many messages", names=("--limit", "--max"))
    parser.add_argument(
        "--batch", type=int, default=1, metavar="N", help="number of messages leased at a time (default: 1)"
    )
    parser.add_argument("--wait", type=float, default=0, metavar="SECONDS", help="time to wait for a message")
    parser.add_argument("--follow", action="store_true", help="wait for further messages until stopped")
    parser.add_argument(
        "--no-ack", action="store_true", help="leave the messages leased; ack, nack or extend them by lease id"
    )
    parser.add_argument(
        "--lease-seconds", type=float, metavar="SECONDS", help="duration of the lease (default: the queue's policy)"
    )
    arguments.consumer(parser)
    parser.add_argument("--raw", action="store_true", help="print the payload's bytes and a line feed, nothing else")
    parser.add_argument("--fail-empty", action="store_true", help=f"exit with {output.EMPTY} if there was nothing")
    add_worker_options(parser)
    arguments.store(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    if wants_workers(args):
        return run_workers(args, screen)
    with stopping_on_signals(), connection.open_or_create(args) as queues:
        shown = connection.shown_sources(queues, args.queue)
        if shown:
            screen.note(f"{args.queue} shows the dead letters of {shown[0]}; see 'yirangmq dlq list' and 'dlq redrive'")
        count = 0
        while args.limit is None or count < args.limit:
            deliveries = _lease_batch(args, queues, count)
            if not deliveries and not args.follow:
                break
            _print_and_ack(args, queues, screen, deliveries)
            count += len(deliveries)
        why = "" if count or shown else _explain_empty(queues, args.queue)
    if count == 0:
        stay = "" if shown else "; to stay and wait for messages, add --follow"
        screen.note(f"nothing to consume in {args.queue}{why}{stay}")
        return output.EMPTY if args.fail_empty else output.OK
    return output.OK


def _explain_empty(queues: Queues, queue: str) -> str:
    """Explain for people why nothing was consumed; "" if the client may not read the counts."""
    try:
        known = queues.queues()
        if queue not in known:
            near = nearest(queue, known)
            return ": there is no such queue yet" + (f"; did you mean {near}?" if near else "")
        counts = queues.counts(queue)
        if counts.ready and queues.policy(queue)["paused"]:
            return f": it is paused; 'yirangmq queue resume {queue}'"
    except QueueError:
        return ""
    waits = {"leased": counts.leased, "delayed": counts.delayed, "held": counts.held}
    counts_text = ", ".join(f"{number} {state}" for state, number in waits.items() if number)
    return f" now: {counts_text}" if counts_text else ""


def _lease_batch(args: argparse.Namespace, queues: Queues, count: int) -> list[MessageDelivery]:
    limit = args.batch if args.limit is None else min(args.batch, args.limit - count)
    wait = FOLLOW_SECONDS if args.follow else args.wait
    return queues.lease(args.queue, limit, wait=wait, lease_seconds=args.lease_seconds)


def _print_and_ack(args: argparse.Namespace, queues: Queues, screen: Screen, deliveries: list[MessageDelivery]) -> None:
    """Print deliveries, then ack them. If printing is interrupted, release them now instead of at lease expiry.

    With --no-ack the printed ones stay leased."""
    printed = 0
    try:
        for delivery in deliveries:
            _print(args, screen, delivery)
            printed += 1
        screen.flush()
    except BaseException:
        left = deliveries[printed:] if args.no_ack else deliveries
        queues.release_many([delivery.lease_id for delivery in left])
        raise
    if not args.no_ack:
        queues.ack([delivery.lease_id for delivery in deliveries])


def _print(args: argparse.Namespace, screen: Screen, delivery: MessageDelivery) -> None:
    if args.raw:
        screen.write(delivery.payload + b"\n")
    elif screen.json:
        screen.line(delivery.as_json())
    else:
        screen.report(delivery_block(delivery))


@contextmanager
def stopping_on_signals(signals: StopSignals | None = None) -> Iterator[None]:
    """Exit on SIGTERM as on Ctrl-C, so that leased messages are released. Does nothing outside the main thread.

    Copies of the first signal are ignored, so that they do not interrupt the release. After a signal the handlers stay
    until the process ends. ``signals``: those that another handler has received already."""
    received = StopSignals() if signals is None else signals

    def stop(number: int, frame: FrameType | None) -> None:
        if received.receive(time.monotonic()) is not StopStep.IGNORE:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(output.TERMINATED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        if not received.is_stopping:
            for number, handler in before.items():
                signal.signal(number, handler)


COMMANDS = {
    **SETTLE_COMMANDS,
    "consume": Command(
        about="Lease messages from a queue, print each, and ack it after it was printed, until the queue is "
        "empty.\n\n"
        'With --json each message is one line: {"message": …, "lease": …, "policy": …}.\n\n'
        "With --handler or --exec the command is a consumer process: it waits for messages and processes "
        "each until it is stopped. It extends leases during processing. At SIGTERM or SIGINT it finishes "
        "the messages in process, releases the others, and exits with 0; a second signal more than a second "
        "later ends it at once (docs/consumers.md).",
        examples=(
            ("all messages that are ready now", "yirangmq consume --queue telemetry"),
            (
                "as a service: wait for further messages, for programs",
                "yirangmq consume --queue telemetry --follow --json",
            ),
            (
                "lease one, process it, then: yirangmq ack LEASE",
                "yirangmq consume telemetry --limit 1 --no-ack --lease-seconds 300",
            ),
            (
                "a consumer process in Python, four messages at a time",
                "yirangmq consume --queue mail --handler shop.mail:send --concurrency 4",
            ),
            (
                "any program: the message on stdin, the exit code is the result",
                "yirangmq consume --queue mail --exec './send-mail --quiet' --timeout 60",
            ),
        ),
        options=add_options,
        run=run,
    ),
}
