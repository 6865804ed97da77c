"""``torture``: named here, made in ``yirangmq.torture``."""

import argparse

from yirangmq.cli.command import Command
from yirangmq.cli.screen import Screen
from yirangmq.torture import command


def run(args: argparse.Namespace, screen: Screen) -> int:
    return command.run(args)


COMMANDS = {
    "torture": Command(
        about="Play verbs on a fresh store, rebuild every disk that a power cut could have left at every point, open "
        "each and count: what was confirmed must be there, what was half-written must be set aside.",
        examples=(
            ("the SQLite store", "yirangmq torture --backend sqlite --steps 100"),
            ("JSON files, another game", "yirangmq torture --backend fs --seed 7"),
            ("a log of topics and its cursors", "yirangmq torture --backend log"),
        ),
        options=command.add_arguments,
        run=run,
        has_json=True,
    )
}
