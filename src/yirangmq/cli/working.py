"""``consume --handler`` and ``consume --exec``: their options, and which of them go together. What they do is in
``cli.worker``, loaded when it is wanted."""

import argparse
import os

from yirangmq.cli.screen import Screen
from yirangmq.core.errors import BadInput

DRAIN_SECONDS = 30.0
GRACE_SECONDS = 5.0
OURS = ("concurrency", "timeout", "prefetch", "drain_seconds", "poison_after", "schema", "until_empty")
PROGRAMS = ("shell", "retry_after", "kill_after")
"""Options that mean something with ``--exec`` only."""
PRINTING = {"no_ack": False, "batch": 1, "wait": 0, "fail_empty": False}
"""Options that mean something for plain ``consume`` only, and what they are if nothing is said."""


def add_worker_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("consumer process")
    group.add_argument("--handler", metavar="MODULE:FUNCTION", help="the Python function that works on each message")
    group.add_argument(
        "--exec",
        dest="program",
        metavar="COMMAND",
        help="the program that does: the envelope as one line of JSON on stdin (with --raw the payload's bytes); "
        f"exit code 0 acks, {os.EX_DATAERR} rejects, {os.EX_TEMPFAIL} asks for another try, any other is a failure",
    )
    group.add_argument("--shell", action="store_true", help="COMMAND is a line for the shell")
    group.add_argument("--concurrency", type=int, metavar="N", help="work on so many at a time (default: 1)")
    group.add_argument("--timeout", type=float, metavar="SECONDS", help="for one message (default: none)")
    group.add_argument(
        "--kill-after",
        type=float,
        metavar="SECONDS",
        help=f"between asking a program to end and killing it (default: {GRACE_SECONDS:g})",
    )
    group.add_argument(
        "--retry-after", type=float, metavar="SECONDS", help=f"after exit code {os.EX_TEMPFAIL} (default: the policy's)"
    )
    group.add_argument("--prefetch", type=int, metavar="N", help="lease so many more, for quick handlers (default: 0)")
    group.add_argument("--schema", metavar="FILE", help="JSON Schema that payloads must fit")
    group.add_argument(
        "--poison-after", type=int, metavar="N", help="the same error so many times in a row: dead (default: never)"
    )
    group.add_argument(
        "--drain-seconds",
        type=float,
        metavar="SECONDS",
        help=f"for the work in hand when stopped (default: {DRAIN_SECONDS:g})",
    )
    group.add_argument("--until-empty", action="store_true", help="end when nothing is ready and nothing in work")


def is_wanted(args: argparse.Namespace) -> bool:
    if args.handler is not None or args.program is not None:
        return True
    _refuse(args, (*OURS, *PROGRAMS), "needs --handler or --exec")
    return False


def run_workers(args: argparse.Namespace, screen: Screen) -> int:
    if args.handler is not None and args.program is not None:
        raise BadInput("give this or --exec, not both", field="--handler")
    if args.handler is not None:
        _refuse(args, (*PROGRAMS, "raw"), "needs --exec")
    for name, default in PRINTING.items():
        if getattr(args, name) != default:
            raise BadInput("is not for a consumer process", field=_flag(name))
    from yirangmq.cli import worker

    return worker.run(args, screen)


def _refuse(args: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(args, name) is not None and getattr(args, name) is not False:
            raise BadInput(why, field=_flag(name))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
