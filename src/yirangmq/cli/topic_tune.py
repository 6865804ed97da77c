"""``topic tune``: numbers of a running server's feed, seen and changed."""

import argparse
from typing import Any

from yirangmq.cli import exits, topic_place
from yirangmq.cli.command import Command
from yirangmq.cli.screen import Screen
from yirangmq.core.errors import Unavailable

NAMES = ("recovery_workers", "buffer_bytes", "lag_limit")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recovery-workers", type=int, metavar="N", help="threads that send history")
    parser.add_argument(
        "--buffer-bytes", type=int, metavar="N", help="waiting for one subscriber, past which the rest waits in the log"
    )
    parser.add_argument("--lag-limit", type=int, metavar="N", help="records behind before health says degraded; 0: any")
    topic_place.add_options(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    if not topic_place.address_of(args):
        raise Unavailable("no server runs here, so there is nothing to tune; its settings are in docs/configuration.md")
    given: dict[str, Any] = {name: getattr(args, name) for name in NAMES}
    with topic_place.opened(args) as topics:
        found = topics.tune(**given)
    screen.answer(found, "\n".join(f"{name} {found[name]}" for name in NAMES))
    return exits.OK


COMMAND = Command(
    about="See and change how the running server sends topics. What is changed holds until the server stops; the "
    "settings recovery_workers, topic_buffer_bytes and topic_lag_limit hold from its start (docs/configuration.md).",
    examples=(
        ("what is it now?", "yirangmq topic tune"),
        ("many subscribers come back at once", "yirangmq topic tune --recovery-workers 8"),
    ),
    options=add_options,
    run=run,
)
