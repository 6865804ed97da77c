"""``ack``, ``nack``, ``extend``: what becomes of a message that was taken with ``consume --no-ack``."""

import argparse
from typing import Any

from yirangmq.cli import exits, options, place
from yirangmq.cli.command import Command
from yirangmq.cli.screen import Screen
from yirangmq.core.errors import QueueError
from yirangmq.core.message import Reason


def ack_options(parser: argparse.ArgumentParser) -> None:
    options.leases(parser)
    options.store(parser)


def nack_options(parser: argparse.ArgumentParser) -> None:
    options.leases(parser)
    parser.add_argument(
        "--reason", choices=[*Reason], default=Reason.HANDLER_ERROR.value, help="why (default: HANDLER_ERROR)"
    )
    parser.add_argument("--text", default="", metavar="TEXT", help="why, in your words")
    parser.add_argument("--delay", type=float, metavar="SECONDS", help="try again then (default: the policy's backoff)")
    options.store(parser)


def extend_options(parser: argparse.ArgumentParser) -> None:
    options.leases(parser)
    parser.add_argument("--seconds", type=float, metavar="SECONDS", help="from now (default: the queue's policy)")
    options.store(parser)


def run_ack(args: argparse.Namespace, screen: Screen) -> int:
    with place.existing(args) as queues:
        errors = queues.ack_many(args.leases, consumer=args.consumer_id)
    return _report(args, screen, "acked", errors)


def run_nack(args: argparse.Namespace, screen: Screen) -> int:
    with place.existing(args) as queues:
        errors = queues.nack_many(args.leases, args.reason, args.text, delay=args.delay, consumer=args.consumer_id)
    return _report(args, screen, "nacked", errors)


def run_extend(args: argparse.Namespace, screen: Screen) -> int:
    with place.existing(args) as queues:
        errors = queues.extend_many(args.leases, args.seconds, consumer=args.consumer_id)
    return _report(args, screen, "extended", errors)


def _report(args: argparse.Namespace, screen: Screen, did: str, errors: list[QueueError | None]) -> int:
    """Each lease by itself: a stale one is an error and harms no other. The exit code is that of the first error."""
    first = next((error for error in errors if error is not None), None)
    if screen.json:
        results = [_result(lease, error) for lease, error in zip(args.leases, errors, strict=True)]
        screen.document({"ok": first is None, "did": did, "results": results})
    else:
        for lease, error in zip(args.leases, errors, strict=True):
            if error is None:
                screen.say(f"{did} {lease}")
            else:
                screen.problem(error)
    return exits.OK if first is None else exits.exit_code(first.code)


def _result(lease: str, error: QueueError | None) -> dict[str, Any]:
    if error is None:
        return {"leaseId": lease, "ok": True}
    return {"leaseId": lease, "ok": False, "code": error.code, "error": str(error)}


SETTLE_COMMANDS = {
    "ack": Command(
        about="Say that the work on leased messages is done. Repeating it does no harm; a lease that is over is "
        "refused.",
        examples=(
            ("one", "yirangmq ack 17-1"),
            ("several with one commit, in another store", "yirangmq ack 17-1 18-1 --db /data/yirang.db"),
        ),
        options=ack_options,
        run=run_ack,
    ),
    "nack": Command(
        about="Say that the work failed. The queue's policy decides between another try after a while and the dead "
        "letters; REJECTED, VALIDATION_ERROR, POISON and CORRUPT go there at once.",
        examples=(
            ("try again as the policy says", "yirangmq nack 17-1 --text 'no route to host'"),
            ("try again in a minute", "yirangmq nack 17-1 --reason TIMEOUT --delay 60"),
            ("never try again", "yirangmq nack 17-1 --reason REJECTED --text 'unknown account'"),
        ),
        options=nack_options,
        run=run_nack,
    ),
    "extend": Command(
        about="Keep leased messages longer: the lease then ends so many seconds from now.",
        examples=(
            ("as long again as the queue's policy gives", "yirangmq extend 17-1"),
            ("five minutes from now", "yirangmq extend 17-1 --seconds 300"),
        ),
        options=extend_options,
        run=run_extend,
    ),
}
