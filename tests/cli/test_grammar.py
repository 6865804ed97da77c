"""One grammar for all commands: how the queue is given, and how the number of rows is limited.

Every command is walked, so that a new one follows the rules too."""

import argparse
from collections.abc import Iterator

import pytest

from tests.support.cli import Cli
from yirangmq.cli import main
from yirangmq.cli.command import Command, Parser, QueueArgument
from yirangmq.cli.commands.dlq import SUBCOMMANDS
from yirangmq.core.errors import BadInput

FILTERS = {"consumer pause", "consumer resume", "consumer drain"}
"""Commands whose positional arguments are consumers: there ``--queue`` selects those of a queue."""
OTHER_LIMITS = {"--max", "--count", "-n"}


def parsers() -> Iterator[tuple[str, Parser]]:
    for name in main.COMMAND_MODULES:
        command = main.load(name)
        for verb, one in {"": command, **{verb: inner for verb, (_, inner) in command.subcommands.items()}}.items():
            if one.run is not None:
                yield f"{name} {verb}".strip(), _parser(f"{name} {verb}".strip(), one)


def _parser(name: str, command: Command) -> Parser:
    made = Parser(prog=f"yirangmq {name}")
    command.configure(made)
    return made


PARSERS = dict(parsers())
WITH_QUEUE = {
    name: (made, word) for name, made in PARSERS.items() for word in made._actions if isinstance(word, QueueArgument)
}
ONE_QUEUE = sorted(name for name, (_, word) in WITH_QUEUE.items() if not word.is_list)


def others(made: Parser) -> tuple[list[str], list[str], list[str]]:
    """Values of the positional arguments before the queue and after it, and of the options that are needed."""
    before: list[str] = []
    after: list[str] = []
    options: list[str] = []
    found = before
    for action in made._actions:
        value = str(next(iter(action.choices))) if action.choices else "7"
        if isinstance(action, QueueArgument):
            found = after
        elif action.option_strings and action.required:
            options += [action.option_strings[-1], value]
        elif not action.option_strings:
            found.append(value)
    return before, after, options


def test_cli_grammar_finds_every_command_that_names_a_queue() -> None:
    assert {"publish", "consume", "peek", "purge", "status", "dlq redrive", "cluster create", "export"} <= {*WITH_QUEUE}
    for name, made in PARSERS.items():
        actions = [action for action in made._actions if "queue" in action.dest or "QUEUE" in str(action.metavar)]
        named = [action for action in actions if action.dest in ("queue", "queues", "queue_argument")]
        if name in FILTERS:
            assert [action.option_strings for action in named] == [["-q", "--queue"]], name
        elif named:
            assert [type(action) for action in named if not action.option_strings] == [QueueArgument], name
            assert [action.option_strings for action in named if action.option_strings] == [["-q", "--queue"]], name


@pytest.mark.parametrize("name", ONE_QUEUE)
def test_cli_queue_is_given_as_an_argument_or_as_an_option(name: str) -> None:
    made, _ = WITH_QUEUE[name]
    before, after, options = others(made)
    as_argument = made.parse_args([*options, *before, "mail", *after])
    assert as_argument.queue == "mail"
    for option in ("-q", "--queue"):
        assert made.parse_args([option, "mail", *options, *before, *after]) == as_argument
        assert made.parse_args([*before, *after, *options, option, "mail"]) == as_argument
        if before + after:
            assert made.parse_args([*before, *options, option, "mail", *after]) == as_argument
    assert made.parse_args([*before, "mail", *options, *after]) == as_argument
    assert made.parse_args([*before, "mail", *after, *options, "-q", "mail"]) == as_argument


@pytest.mark.parametrize("name", ONE_QUEUE)
def test_cli_queue_that_is_given_twice_with_two_names_is_refused(name: str) -> None:
    made, _ = WITH_QUEUE[name]
    before, after, options = others(made)
    lists = [action for action in made._get_positional_actions() if action.nargs in ("*", "+")]
    if lists:  # a word beside --queue belongs to the list
        found = made.parse_args([*options, "-q", "mail", "news"])
        assert (found.queue, getattr(found, lists[0].dest)) == ("mail", ["news"])
        return
    with pytest.raises(BadInput, match="QUEUE is 'news' and --queue is 'mail'; give one of them"):
        made.parse_args([*options, *before, "news", *after, "-q", "mail"])


@pytest.mark.parametrize("name", sorted(WITH_QUEUE))
def test_cli_queue_that_is_needed_and_missing_is_named(name: str) -> None:
    made, word = WITH_QUEUE[name]
    before, after, options = others(made)
    if not word.is_needed:
        assert not made.parse_args([*options, *before, *after]).queue
        return
    with pytest.raises(BadInput, match=r"the queue is missing; give QUEUE, or --queue QUEUE|are required"):
        made.parse_args([*options, *before])


def test_cli_commands_that_take_several_queues_take_them_in_both_ways() -> None:
    pause = PARSERS["queue pause"]
    assert pause.parse_args(["a", "b"]).queue == pause.parse_args(["-q", "a", "-q", "b"]).queue == ["a", "b"]
    assert pause.parse_args(["a", "--json", "b", "-q", "c"]).queue == ["a", "b", "c"]
    export = PARSERS["export"]
    args = export.parse_args(["out.jsonl", "a", "--force", "-q", "b"])
    assert (args.file, args.queue) == ("out.jsonl", ["a", "b"])
    assert (export.parse_args([]).file, export.parse_args([]).queue) == ("-", [])


def test_cli_arguments_are_found_behind_options_in_commands_with_lists() -> None:
    drop = PARSERS["drop"].parse_args(["mail", "--dry-run", "m-1", "--json", "m-2"])
    assert (drop.queue, drop.ids) == ("mail", ["m-1", "m-2"])
    check = PARSERS["processor check"].parse_args(["mail", "--type", "x", "one.dat", "two.dat"])
    assert (check.queue, check.files) == ("mail", ["one.dat", "two.dat"])
    show = PARSERS["show"].parse_args(["mail", "--json", "m-1"])
    assert (show.queue, show.id) == ("mail", "m-1")


@pytest.mark.parametrize("name", PARSERS)
def test_cli_number_of_rows_is_limited_by_one_option(name: str) -> None:
    for action in PARSERS[name]._actions:
        if OTHER_LIMITS & {*action.option_strings}:
            assert "--limit" in action.option_strings
        if "--limit" in action.option_strings:
            assert (action.dest, action.type, action.metavar) == ("limit", int, "N")


def test_cli_redrive_has_requeue_as_another_name_and_consume_limit_has_max(cli: Cli) -> None:
    assert SUBCOMMANDS["redrive"][1] is SUBCOMMANDS["requeue"][1]
    for _ in range(3):
        assert cli("publish mail 1").code == 0
    assert cli("consume mail --limit 1 --raw").out == "1\n"
    assert cli("consume mail --max 1 --raw").out == "1\n"
    assert cli("consume --max 5 -q mail --raw").out == "1\n"


def test_cli_positional_arguments_work_from_publishing_to_redrive(cli: Cli) -> None:
    """The lines of a first hour, with the queue as an argument."""
    assert cli("policy set mail", '{"retry": {"limit": 0}}').code == 0
    assert cli("publish mail --id m-1", '{"to": "ann"}').code == 0
    assert "ready" in cli("status mail").out
    assert cli("show mail m-1 --json").json["message"]["payload"] == {"to": "ann"}
    assert "m-1" in cli("peek mail").out
    lease = cli("consume mail --limit 1 --no-ack --json").json["lease"]["leaseId"]
    assert cli(f"nack {lease} --reason REJECTED").code == 0
    assert "m-1" in cli("dlq list mail").out
    assert cli("dlq show mail-dlq m-1 --json").json["originalMessage"]["messageId"] == "m-1"
    assert cli("dlq redrive mail-dlq --all --json").json["count"] == 1
    assert cli("drop mail m-1 --json").json["count"] == 1
    assert cli("drop mail --whole-queue").code == 0


def test_cli_grammar_parsers_are_those_of_the_program() -> None:
    whole = main.build()
    (action,) = (one for one in whole._actions if isinstance(one, argparse._SubParsersAction))
    assert {name.split()[0] for name in PARSERS} == {*action.choices}
