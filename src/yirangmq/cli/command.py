"""Command as a value (texts, options, function), and the argument parser made from it.

The parser, the help, ``docs/cli.md`` and the tests read the same value. Errors of argparse become ``BadInput``, so
they are one line with an exit code, or JSON."""

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, cast

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
    """Help formatter: names the positional arguments in the usage, and pages of the documentation by their command.

    argparse makes one for each argument that is added, so what only a printed help needs is done when it is printed."""

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None) -> str:
        """Show the positional arguments and ``[OPTION …]``: the options are listed below with their texts."""
        if usage is not None:
            return super()._format_usage(usage, actions, groups, prefix)
        words = [self._usage_word(action) for action in actions if not action.option_strings]
        shown = " ".join([self._prog, "[OPTION …]", *(word.replace("...", "…") for word in words)])
        return f"{'usage: ' if prefix is None else prefix}{shown}\n\n"

    def _usage_word(self, action: argparse.Action) -> str:
        """Show a needed queue without brackets, although ``--queue`` may replace it."""
        if isinstance(action, QueueArgument) and action.is_needed:
            return "QUEUE …" if action.is_list else "QUEUE"
        return self._format_args(action, str(action.dest))

    def _get_help_string(self, action: argparse.Action) -> str:
        return name_pages(action.help or "")


def _columns() -> int:
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(STDOUT).columns or NO_TERMINAL
    except OSError:
        return NO_TERMINAL


class QueueArgument(argparse._StoreAction):
    """The queue as a positional argument, beside ``-q/--queue``; ``Parser`` merges the two into ``args.queue``.

    ``is_needed``: the command needs a queue. Otherwise it gets a word only after all other arguments have theirs."""

    is_needed = True

    @property
    def is_list(self) -> bool:
        return self.nargs == "*"


class Parser(argparse.ArgumentParser):
    """Argument parser that raises ``BadInput`` on errors, so they have one line, an exit code and a JSON form."""

    synonyms = "VERBS"
    """Table in ``cli.synonyms`` of the words that users of other tools may type for a command."""
    command: "Command | None" = None
    """The command with the texts of the help; None: the help has only the options."""

    def __init__(self, **settings: Any) -> None:
        # argparse itself would import shutil for the width, even if no help is printed
        formatter = partial(Formatter, width=_columns() - 2)
        super().__init__(formatter_class=cast("type[Formatter]", formatter), allow_abbrev=False, **settings)

    def format_help(self) -> str:
        if self.command is not None:
            self.description, self.epilog = wrap_text(self.command.about), epilog(self.command.examples)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        for said, meant in ARGPARSE_PHRASES.items():
            message = message.replace(said, meant)
        raise BadInput(message if message.endswith("?") else f"{message}; see '{self.prog} --help'")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Reject unknown arguments in the parser of the command, which can suggest a near option.

        argparse passes them up to the top parser, which knows no options of commands."""
        found, unknown = super().parse_known_args(args, namespace)
        self._place_words(found, unknown)
        if unknown:
            near = next(filter(None, (nearest(word, self._option_string_actions, 0.8) for word in unknown)), None)
            hint = f"; did you mean {near!r}?" if near else ""
            if unknown[0] in ("-q", "--queue"):
                hint = "; this command takes no queue"
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown

    def _place_words(self, found: Any, unknown: list[str]) -> None:
        """Assign positional arguments, also those that follow an option, and merge the queue into ``args.queue``.

        argparse assigns them at the first option, and takes the later ones for unknown arguments."""
        if self._subparsers is not None:
            return
        actions = self._get_positional_actions()
        named = None
        for action in actions:
            if isinstance(action, QueueArgument):
                named = action
        if unknown and (any(_is_option(word) for word in unknown) or not actions):
            return
        words = [word for action in actions for word in _given(found, action)] + unknown
        if named is not None:
            self._place_queue(found, named, actions, words)
        elif not unknown:
            return
        others = [action for action in actions if action is not named]
        for at, action in enumerate(others):
            reserved = _least_words(others[at + 1 :])
            size = (
                max(0, len(words) - reserved) if action.nargs in ("*", "+") else min(1, max(0, len(words) - reserved))
            )
            taken, words = [self._get_value(action, word) for word in words[:size]], words[size:]
            if action.choices is not None:
                for value in taken:
                    self._check_value(action, value)
            if taken or action.nargs is None:
                setattr(found, action.dest, taken if action.nargs in ("*", "+") else taken[0])
            else:
                setattr(found, action.dest, [] if action.nargs == "*" else action.default)
        unknown[:] = words

    def _place_queue(
        self, found: Any, named: QueueArgument, actions: Sequence[argparse.Action], words: list[str]
    ) -> None:
        """Take the queue out of ``words`` and merge it with ``--queue``."""
        others = [action for action in actions if action is not named]
        least = _least_words(others)
        counts = [action.nargs for action in others]
        most = None if "*" in counts or "+" in counts else len(others)
        delattr(found, named.dest)
        if named.is_list:
            found.queue = [*words[len(others) :], *(found.queue or ())]
            del words[len(others) :]
        elif found.queue is None:
            at = actions.index(named)
            is_word = len(words) > (least if named.is_needed else len(others)) and at < len(words)
            found.queue = words.pop(at) if is_word else None
            if found.queue is not None and found.queue[:1] in ("{", "["):
                self.error(f"{found.queue[:40]!r} is not the name of a queue; give QUEUE first, or --queue QUEUE")
        elif len(words) - 1 == most:
            again = words.pop(actions.index(named))
            if again != found.queue:
                self.error(f"QUEUE is {again!r} and --queue is {found.queue!r}; give one of them")
        elif most is None and len(words) > 1 and words[0] == found.queue:
            del words[0]
        if named.is_needed and not found.queue:
            self.error("the queue is missing; give QUEUE, or --queue QUEUE")

    def _meant(self, word: str, known: Sequence[str]) -> str | None:
        """Return the command that a word of another tool means."""
        from yirangmq.cli import synonyms

        table: Mapping[str, Sequence[str]] = getattr(synonyms, self.synonyms)
        return next((one for one in table.get(word, ()) if one in known or self.synonyms == "COMMANDS"), None)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            near = self._meant(str(value), known) or nearest(str(value), known)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
            if isinstance(action, argparse._SubParsersAction):
                raise argparse.ArgumentError(None, f"there is no command {value!r}; {hint}")
            raise argparse.ArgumentError(action, f"{value!r} is not one of them; {hint}")


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _least_words(actions: Sequence[argparse.Action]) -> int:
    """Return the number of words that these positional arguments need at least."""
    counts = [action.nargs for action in actions]
    return counts.count(None) + counts.count("+")


def _given(found: Any, action: argparse.Action) -> list[str]:
    """Return the words that argparse assigned to a positional argument."""
    value = getattr(found, action.dest)
    if isinstance(value, list):
        return value
    return [] if value is action.default else [value]


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

    def configure(self, parser: Parser) -> None:
        parser.command = self
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
    import textwrap  # only a printed help needs it

    text = name_pages(text)
    return "\n\n".join(textwrap.fill(part, HELP_WIDTH) for part in text.split("\n\n"))


def epilog(examples: tuple[tuple[str, str], ...]) -> str:
    lines = [f"  # {what}\n  {line}" if what else f"  {line}" for what, line in examples]
    return "examples:\n" + "\n".join(lines)
