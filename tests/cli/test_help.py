"""Help, examples, completion and the page that is printed from them."""

import argparse
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.cli import Cli
from tools import cli_docs
from yirangmq.cli import main, synonyms
from yirangmq.cli.command import Command, Parser


def every_command() -> Iterator[tuple[str, Command]]:
    for name in main.COMMAND_MODULES:
        command = main.load(name)
        yield name, command
        for verb, (_, inner) in command.subcommands.items():
            yield f"{name} {verb}", inner


COMMANDS = dict(every_command())
EXAMPLES = [line for command in COMMANDS.values() for _, line in command.examples]


@pytest.mark.parametrize("name", COMMANDS)
def test_cli_help_of_every_command_shows_at_least_two_examples(cli: Cli, name: str) -> None:
    shown = cli(f"{name} --help")
    assert shown.code == 0
    assert "examples:" in shown.out
    assert len(COMMANDS[name].examples) >= 2
    for what, line in COMMANDS[name].examples:
        assert f"  # {what}\n  {line}\n" in shown.out


@pytest.mark.parametrize("line", EXAMPLES)
def test_cli_help_examples_are_parsed_by_the_command_line(line: str) -> None:
    if line.startswith("eval"):
        line = line.removeprefix('eval "$(').removesuffix(')"')
    words = shlex.split(line.partition(" > ")[0])
    assert words[0] == "yirangmq"
    args = main.build().parse_args(words[1:])
    assert callable(args.run)


def test_cli_json_option_exists_on_every_command_that_runs() -> None:
    for name, command in COMMANDS.items():
        made = Parser()
        command.configure(made)
        assert ("--json" in made.format_help()) == (command.run is not None), name


def test_cli_dry_run_option_exists_on_every_command_that_moves_or_deletes() -> None:
    moving = (
        "dlq requeue",
        "dlq quarantine",
        "dlq purge",
        "drop",
        "sweep",
        "repair",
        "import",
        "policy set",
        "log repair",
        "topic replay",
        "topic trim",
    )
    for name in moving:
        made = Parser()
        COMMANDS[name].configure(made)
        assert "--dry-run" in made.format_help(), name


def test_cli_parser_loads_only_the_requested_command() -> None:
    made = main.build(only="status")
    (action,) = (action for action in made._actions if isinstance(action, argparse._SubParsersAction))
    assert "--queue" in action.choices["status"].format_help()
    assert list(action.choices) == ["status"]


def test_cli_docs_pages_are_current_with_the_commands() -> None:
    pages = cli_docs.render()
    assert {name: (cli_docs.DOCS / name).read_text() for name in pages} == pages, "run: python tools/cli_docs.py"
    printed = {name for name in pages if "/" in name}
    assert {f"cli/{path.name}" for path in (cli_docs.DOCS / "cli").iterdir()} == printed


def test_cli_help_without_a_command_lists_all_commands_by_group(cli: Cli) -> None:
    shown = cli("").out
    for group, commands in main.COMMAND_GROUPS.items():
        section = shown.partition(f"\n{group}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in section.splitlines()] == list(commands)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("send", "publish"),
        ("receive", "consume"),
        ("redrive", "dlq redrive"),
        ("requeue", "dlq redrive"),
        ("list", "queues"),
        ("flush", "purge"),
        ("delete", "drop"),
        ("dlq retry", "redrive"),
        ("dlq delete", "purge"),
        ("dlq lst", "list"),
        ("topic consume", "subscribe"),
        ("queue stop", "pause"),
        ("policy edit", "set"),
        ("help", "--help"),
        ("version", "--version"),
        ("pulish", "publish"),
    ],
)
def test_cli_unknown_command_suggests_the_command_that_is_meant(cli: Cli, typed: str, meant: str) -> None:
    refused = cli(typed)
    assert refused.code == 2
    assert f"there is no command {typed.split()[-1]!r}; did you mean {meant!r}?\n" in refused.err


def test_cli_suggestions_name_commands_that_exist() -> None:
    top = {"", "--help", "--version", *COMMANDS}
    assert {word for words in synonyms.COMMANDS.values() for word in words} <= top
    verbs = {name.split()[-1] for name in COMMANDS if " " in name}
    assert all(verbs & {*words} for words in synonyms.VERBS.values())
    assert not synonyms.COMMANDS.keys() & main.COMMAND_MODULES.keys()


def test_cli_docs_command_lists_prints_and_searches_pages(cli: Cli) -> None:
    topics = {row["topic"] for row in cli("docs --json").json["pages"]}
    assert {"policy", "start/first-queue", "cli/messages"} <= topics
    assert cli("docs policy").out == (cli_docs.DOCS / "policy.md").read_text()
    assert cli("docs first-queue --json").json["title"].startswith("The first queue")
    found = cli("docs --find visibilityTimeoutSec --json").json["matches"]
    assert "policy" in {row["topic"] for row in found}
    refused = cli("docs polcy")
    assert (refused.code, "did you mean 'policy'?" in refused.err) == (3, True)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_cli_completion_scripts_of_bash_and_zsh_name_commands_and_options(cli: Cli, shell: str) -> None:
    script = cli(f"completion {shell}").out
    assert cli(f"completion {shell} --json").json["script"] + "\n" == script
    for word in ("publish", "requeue", "--dry-run", "--backend"):
        assert word in script


def test_cli_completion_script_of_bash_parses(cli: Cli) -> None:
    script = cli("completion bash").out
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_cli_completion_for_an_unknown_shell_is_bad_input(cli: Cli) -> None:
    assert cli("completion fish --json").complaint["code"] == "bad_input"
