"""Command ``completion``: a completion script for the shell, made from the argument parser."""

import argparse
from collections.abc import Mapping

from yirangmq.cli import main, output
from yirangmq.cli.command import Command
from yirangmq.cli.output import Screen

SHELLS = ("bash", "zsh")


def add_options(made: argparse.ArgumentParser) -> None:
    made.add_argument("shell", choices=SHELLS, help="the shell")


def run(args: argparse.Namespace, screen: Screen) -> int:
    import shtab

    whole = main.build()
    _mark(whole, {"FILE": shtab.FILE, "FOLDER": shtab.DIRECTORY, "DIR": shtab.DIRECTORY})
    script = shtab.complete(whole, shell=args.shell)
    screen.answer({"shell": args.shell, "script": script}, script)
    return output.OK


def _mark(made: argparse.ArgumentParser, kinds: Mapping[str, object]) -> None:
    """Set the completer of each option by its metavar, also in subparsers."""
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _mark(inner, kinds)
        elif isinstance(action.metavar, str) and action.metavar in kinds:
            action.complete = kinds[action.metavar]  # type: ignore[attr-defined]


COMMANDS = {
    "completion": Command(
        about="Print a completion script for your shell.",
        examples=(
            ("bash, for this session", 'eval "$(yirangmq completion bash)"'),
            ("zsh, permanently", "yirangmq completion zsh > ~/.zfunc/_yirangmq"),
        ),
        options=add_options,
        run=run,
    )
}
