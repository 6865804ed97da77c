"""``consume``: take messages, print them, acknowledge what was printed. With a handler or a program for each message
it is a consumer process (``cli.working``)."""

import argparse
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from yirangmq.broker.dead_letters import DeadLetters
from yirangmq.broker.queues import Queues
from yirangmq.cli import exits, options, place, working
from yirangmq.cli.command import Command
from yirangmq.cli.screen import Screen
from yirangmq.cli.settling import SETTLE_COMMANDS
from yirangmq.cli.views import delivery_block
from yirangmq.core.errors import QueueError
from yirangmq.core.validation import nearest
from yirangmq.format.delivery import Delivery

FOLLOW_SECONDS = 3600
"""One wait of --follow; then it waits again."""


def add_options(parser: argparse.ArgumentParser) -> None:
    options.queue(parser)
    parser.add_argument("--max", type=int, metavar="N", help="stop after so many")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="take so many at a time (default: 1)")
    parser.add_argument("--wait", type=float, default=0, metavar="SECONDS", help="wait so long for a message to come")
    parser.add_argument("--follow", action="store_true", help="wait for more until stopped")
    parser.add_argument("--no-ack", action="store_true", help="leave them leased; ack, nack or extend by lease id")
    parser.add_argument("--lease-seconds", type=float, metavar="SECONDS", help="how long (default: the queue's policy)")
    options.consumer(parser)
    parser.add_argument("--raw", action="store_true", help="print the payload's bytes and a line feed, nothing else")
    parser.add_argument("--fail-empty", action="store_true", help=f"exit with {exits.EMPTY} if there was nothing")
    working.add_worker_options(parser)
    options.store(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    if working.is_wanted(args):
        return working.run_workers(args, screen)
    with stopping_on_terminate(), place.opened(args) as queues:
        shown = DeadLetters(queues).shown_by(args.queue)
        if shown:
            screen.note(f"{args.queue} shows the dead letters of {shown[0]}; see 'yirangmq dlq list' and 'dlq requeue'")
        count = 0
        while args.max is None or count < args.max:
            taken = _taken(args, queues, count)
            if not taken and not args.follow:
                break
            _hand_over(args, queues, screen, taken)
            count += len(taken)
        why = "" if count or shown else _why_nothing(queues, args.queue)
    if count == 0:
        screen.note(f"nothing to consume in {args.queue}{why}")
        return exits.EMPTY if args.fail_empty else exits.OK
    return exits.OK


def _why_nothing(queues: Queues, queue: str) -> str:
    """For people; a client that may not look is told no more."""
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
    told = ", ".join(f"{number} {state}" for state, number in waits.items() if number)
    return f" now: {told}" if told else ""


def _taken(args: argparse.Namespace, queues: Queues, count: int) -> list[Delivery]:
    limit = args.batch if args.max is None else min(args.batch, args.max - count)
    wait = FOLLOW_SECONDS if args.follow else args.wait
    return queues.lease(args.queue, limit, wait=wait, lease_seconds=args.lease_seconds)


def _hand_over(args: argparse.Namespace, queues: Queues, screen: Screen, taken: list[Delivery]) -> None:
    """Print, then acknowledge. If printing is cut short, they go back in line at once instead of at the lease's end."""
    printed = 0
    try:
        for delivery in taken:
            _print(args, screen, delivery)
            printed += 1
        screen.flush()
    except BaseException:
        left = taken[printed:] if args.no_ack else taken
        queues.release_many([delivery.lease_id for delivery in left])
        raise
    if not args.no_ack:
        queues.ack([delivery.lease_id for delivery in taken])


def _print(args: argparse.Namespace, screen: Screen, delivery: Delivery) -> None:
    if args.raw:
        screen.write(delivery.payload + b"\n")
    elif screen.json:
        screen.line(delivery.as_json())
    else:
        screen.say(delivery_block(delivery))


@contextmanager
def stopping_on_terminate() -> Iterator[None]:
    """SIGTERM ends like Ctrl-C: what is in hand goes back."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(exits.TERMINATED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


COMMANDS = {
    **SETTLE_COMMANDS,
    "consume": Command(
        about="Take messages from a queue, print each and acknowledge it once it is printed, until the queue is "
        "empty.\n\n"
        'With --json each message is one line: {"message": …, "lease": …, "policy": …}.\n\n'
        "With --handler or --exec it is a consumer process: it waits for messages and works on each until it is "
        "stopped. Leases are extended while the work goes on; SIGTERM and SIGINT finish what is in work, give back "
        "what is not, and exit with 0; a second one does not wait (docs/consumers.md).",
        examples=(
            ("everything that is ready now", "yirangmq consume --queue telemetry"),
            ("as a service: wait for more, for programs", "yirangmq consume --queue telemetry --follow --json"),
            (
                "take one, work on it, then: yirangmq ack LEASE",
                "yirangmq consume --queue telemetry --max 1 --no-ack --lease-seconds 300",
            ),
            (
                "a consumer process in Python: four at a time",
                "yirangmq consume --queue mail --handler shop.mail:send --concurrency 4",
            ),
            (
                "any program: the message on stdin, the exit code decides",
                "yirangmq consume --queue mail --exec './send-mail --quiet' --timeout 60",
            ),
        ),
        options=add_options,
        run=run,
    ),
}
