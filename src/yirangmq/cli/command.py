"""Command as a value (texts, options, function), and the argument parser made from it.

The parser, the help, ``docs/cli.md`` and the tests read the same value. Errors of argparse become ``BadInput``, so
they are one line with an exit code, or JSON."""

import argparse
import os
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from yirangmq.cli.output import Screen
from yirangmq.core.errors import BadInput
from yirangmq.core.validation import nearest

Run = Callable[[argparse.Namespace, Screen], int]
HELP_WIDTH = 90
PAGE = re.compile(r"docs/([\w/-]+)\.md")
"""A page of the documentation, as texts of commands and settings name it."""
ARGPARSE_PHRASES = {
    "invalid int value:": "must be a whole number, not",
    "invalid float value:": "must be a number, not",
}
"""Error texts of argparse, and the texts that replace them."""
STDOUT = 1
NO_TERMINAL = 80


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help formatter that is as wide as the terminal.

    argparse itself would import shutil for the width, even if no help is printed."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


def _columns() -> int:
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(STDOUT).columns or NO_TERMINAL
    except OSError:
        return NO_TERMINAL


class Parser(argparse.ArgumentParser):
    """Argument parser that raises ``BadInput`` on errors, so they have one line, an exit code and a JSON form."""

    synonyms: Mapping[str, str] = {}
    """Words that users of other tools may type for a choice, each with what it is called here."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=Formatter, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        for said, meant in ARGPARSE_PHRASES.items():
            message = message.replace(said, meant)
        raise BadInput(f"{message}; see '{self.prog} --help'")

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        if settings.get("help"):
            settings["help"] = name_pages(settings["help"])
        return super().add_argument(*names, **settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Reject unknown arguments in the parser of the command, which can suggest a near option.

        argparse passes them up to the top parser, which knows no options of commands."""
        found, unknown = super().parse_known_args(args, namespace)
        self._take_late(found, unknown)
        if unknown:
            near = next(filter(None, (nearest(word, self._option_string_actions, 0.8) for word in unknown)), None)
            hint = f"; did you mean {near!r}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown

    def _take_late(self, found: Any, unknown: list[str]) -> None:
        """Assign an optional positional argument that follows an option.

        argparse sets such an argument to its default at the first option."""
        for action in self._get_positional_actions():
            if action.nargs == "?" and getattr(found, action.dest, None) is action.default:
                if not unknown or (unknown[0].startswith("-") and unknown[0] != "-"):
                    return
                setattr(found, action.dest, self._get_value(action, unknown.pop(0)))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            near = self.synonyms.get(str(value)) or nearest(str(value), known)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
            if isinstance(action, argparse._SubParsersAction):
                raise argparse.ArgumentError(None, f"there is no command {value!r}; {hint}")
            raise argparse.ArgumentError(action, f"{value!r} is not one of them; {hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command as a value. It has ``run``, or ``verbs`` (subcommands).

    ``examples`` are pairs of a description and the command line as typed."""

    about: str
    examples: tuple[tuple[str, str], ...] = ()
    options: Callable[[argparse.ArgumentParser], None] | None = None
    run: Run | None = None
    subcommands: Mapping[str, tuple[str, "Command"]] = field(default_factory=dict)
    has_json: bool = False
    """True if ``options`` adds ``--json``; for other commands ``configure`` adds it."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.description = wrap_text(self.about)
        parser.epilog = epilog(self.examples)
        if self.options is not None:
            self.options(parser)
        if self.run is not None:
            if not self.has_json:
                parser.add_argument("--json", action="store_true", help="one JSON document a line, for programs")
            parser.set_defaults(run=self.run)
        if self.subcommands:
            inner = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True, prog=parser.prog)
            for name, (summary, command) in self.subcommands.items():
                command.configure(inner.add_parser(name, help=summary))


def name_pages(text: str) -> str:
    """Name the command that prints a page, in place of its file: the help is also read without a clone."""
    return PAGE.sub(r"'yirangmq docs \1'", text)


def wrap_text(text: str) -> str:
    """Wrap each paragraph to ``HELP_WIDTH`` columns."""
    text = name_pages(text)
    return "\n\n".join(textwrap.fill(part, HELP_WIDTH) for part in text.split("\n\n"))


def epilog(examples: tuple[tuple[str, str], ...]) -> str:
    lines = [f"  # {what}\n  {line}" if what else f"  {line}" for what, line in examples]
    return "examples:\n" + "\n".join(lines)
