"""``torture``: named here, made in ``yirangmq.crashtest``."""

import argparse

from yirangmq.cli.command import Command
from yirangmq.cli.screen import Screen
from yirangmq.torture import command
from yirangmq.torture.faults import command as faults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    command.power_cut_arguments(parser)
    faults.fault_arguments(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    if not args.faults:
        return command.run_power_cuts(args)
    import logging

    from yirangmq.cli.fault_server import FaultServer  # a power cut needs no server

    logging.getLogger("yirangmq").setLevel(logging.CRITICAL)  # of thousands of errors, each of them meant
    return faults.run_faults(args, FaultServer)


COMMANDS = {
    "torture": Command(
        about="Play verbs on a fresh store, rebuild every disk that a power cut could have left at every point, open "
        "each and count: what was confirmed must be there, what was half-written must be set aside.\n\n"
        "With --faults: let every I/O call of every operation fail in turn, once and then for a while, on the store by "
        "itself and below a server through each protocol. The caller must get an error with a code, nothing confirmed "
        "may be lost, nothing refused may appear, and the next operation must work (docs/guarantees.md).",
        examples=(
            ("the SQLite store", "yirangmq torture --backend sqlite --steps 100"),
            ("JSON files, another game", "yirangmq torture --backend fs --seed 7"),
            ("a log of topics and its cursors", "yirangmq torture --backend log"),
            ("failing calls, a sample of them", "yirangmq torture --faults --backend served --sample 50"),
        ),
        options=add_arguments,
        run=run,
        has_json=True,
    )
}
