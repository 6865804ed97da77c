"""A server that accepts connections and says nothing, as one stopped with SIGSTOP: every command gives up on it."""

import argparse
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.server_process import daemon
from yirangmq.cli import output
from yirangmq.cli.command import QueueArgument
from yirangmq.cli.main import build

DIRECT_ONLY = {"check", "repair", "import", "files list", "files show", "files check", "files housekeep"}
"""They need the files of the store and say so, or ask no server."""
VALUES = {"--queue": "mail", "--to": "x", "--from": "y", "--filter": "attempt>=1", "--topic": "NEWS", "--source": "a"}
EXTRA = {
    "consume": ["--limit", "1"],
    "publish": ["{}"],
    "dispatch set": ["--strategy", "round_robin"],
    "dlq purge": ["--all"],
    "dlq quarantine": ["--all"],
    "dlq redrive": ["--all"],
    "dlq requeue": ["--all"],
    "drop": ["--whole-queue"],
    "purge": ["--all"],
    "processor set": ["{}"],
    "topic publish": ["NEWS", "text"],
    "topic trim": ["--before-seq", "1"],
    "policy set": ["{}"],
    "policy check": ["{}"],
    "dispatch callback": ["--off"],
}


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    todo: list[tuple[str, argparse.ArgumentParser]] = [("", build())]
    while todo:
        words, parser = todo.pop()
        inner = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
        for action in inner:
            todo += [(f"{words} {name}".strip(), one) for name, one in action.choices.items()]
        if not inner and any("--server-timeout" in action.option_strings for action in parser._actions):
            yield words, parser


def needed(parser: argparse.ArgumentParser) -> list[str]:
    """The words and options that a command insists on, with values of their kind."""
    found: list[str] = []
    for action in parser._actions:
        value = next((VALUES[option] for option in action.option_strings if option in VALUES), "1")
        if action.choices:
            value = str(next(iter(action.choices)))
        if action.option_strings and action.required:
            found += [action.option_strings[-1], value]
        elif isinstance(action, QueueArgument) and action.is_needed:
            found.append("mail")
        elif not action.option_strings and action.nargs not in ("?", "*"):
            found.append("-" if action.metavar == "FILE" else value)
    return found


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "silent.sock"))
        listener.listen(64)
        yield f"unix:{tmp_path / 'silent.sock'}"


COMMANDS = dict(commands())


def test_server_timeout_is_an_option_of_the_usual_commands() -> None:
    assert {"publish", "consume", "status", "health", "dlq requeue", "topic publish", "pair status"} <= COMMANDS.keys()


@pytest.mark.parametrize("words", sorted(COMMANDS.keys() - DIRECT_ONLY))
def test_server_timeout_makes_every_command_report_a_silent_server_as_unreachable(
    cli: Cli, silent: str, words: str
) -> None:
    line = [*words.split(), *needed(COMMANDS[words]), *EXTRA.get(words, [])]
    result = cli("", *line, "--store", silent, "--server-timeout", "0.1", "--json", stdin=b"{}\n")
    assert result.code == output.exit_code("unreachable"), (line, result)
    assert "unreachable" in result.err + result.out


@pytest.mark.process
def test_server_timeout_makes_commands_report_a_stopped_server_as_unreachable(cli: Cli, tmp_path: Path) -> None:
    with daemon(tmp_path, "--http", "off") as server:
        assert cli(f"publish -q mail 1 --store {server.address}").code == 0
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for line in ("status", "health", "publish -q mail 2", "consume -q mail"):
                result = cli(f"{line} --store {server.address} --server-timeout 0.5")
                assert result.code == output.exit_code("unreachable"), (line, result)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert cli(f"status --store {server.address} --json").code == 0


def test_server_timeout_comes_from_the_environment(cli: Cli, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YIRANGMQ_SERVER_TIMEOUT", "0.3")
    assert cli(f"status --store {silent}").code == output.exit_code("unreachable")
    monkeypatch.setenv("YIRANGMQ_SERVER_TIMEOUT", "soon")
    result = cli(f"status --store {silent}")
    assert (result.code, "YIRANGMQ_SERVER_TIMEOUT: must be a number of seconds" in result.err) == (2, True), result
    assert cli(f"status --store {silent} --server-timeout 0").code == 2
