"""Entry point of the command line: the table of commands, the parser, errors and exit codes.

Only the module of the command that is run is loaded; the others are known by name and summary. Every error becomes
one line on stderr, or JSON, and an exit code. ``YIRANGMQ_TRACEBACK`` shows the traceback of an internal error."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib import import_module

from yirangmq import __version__
from yirangmq.cli import output
from yirangmq.cli.command import Command, Parser, epilog
from yirangmq.cli.output import Screen
from yirangmq.core.errors import QueueError, Unreachable

# -- commands and parser -----------------------------------------------------------------------------------------------

COMMAND_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "messages": {
        "publish": ("commands.publish", "publish messages to a queue"),
        "consume": ("commands.consume", "lease messages and print them, or run a handler or a program for each"),
        "ack": ("commands.consume", "acknowledge leased messages: the work is done"),
        "nack": ("commands.consume", "report a failure: the message is retried later, or becomes a dead letter"),
        "extend": ("commands.consume", "extend the lease of messages"),
        "peek": ("commands.inspect", "print the next messages without leasing them"),
        "show": ("commands.inspect", "print a message with its history, in whatever state it is"),
        "drop": ("commands.maintenance", "drop messages, or a whole queue"),
        "purge": ("commands.maintenance", "drop the backlog of a queue"),
    },
    "queues": {
        "status": ("commands.inspect", "count the messages of each queue by state"),
        "queues": ("commands.inspect", "list the queues"),
        "queue": ("commands.queue", "pause and resume a queue"),
        "policy": ("commands.policy", "print, check and set the policy of a queue"),
        "schedule": ("commands.queue", "publish messages by a cron line"),
        "processor": ("commands.policy", "check messages before a queue stores them"),
        "dispatch": ("commands.queue", "choose the strategy that assigns messages to consumers"),
        "deliveries": ("commands.queue", "list which consumer got which message, with the outcome"),
        "consumer": ("commands.consumer", "list, pause, resume and drain consumer processes"),
    },
    "dead letters": {
        "dlq": ("commands.dlq", "list, count, redrive, quarantine and purge dead letters"),
    },
    "topics": {
        "topic": ("commands.topic", "publish to topics, subscribe to them, replay records"),
        "bridge": ("commands.bridge", "copy the records of topics into queues"),
        "log": ("commands.log", "check and print the files of a topic log"),
    },
    "server": {
        "serve": ("commands.serve", "run the server"),
        "health": ("commands.health", "report whether the server and the store work"),
        "top": ("commands.top", "show all queues live"),
        "watch": ("commands.watch", "print events as they happen"),
        "alert": ("commands.alert", "list and acknowledge alerts, test their sinks"),
        "metrics": ("commands.watch", "print all metrics in the format of Prometheus"),
        "connections": ("commands.health", "list the clients that are connected to the server"),
        "programs": ("commands.health", "list the programs that may use the server, and refused clients"),
        "token": ("commands.token", "make a token for clients or for a pair"),
    },
    "pair and cluster": {
        "pair": ("commands.pair", "status, switch and history of a pair of nodes"),
        "cluster": ("commands.cluster", "queues on an etcd cluster"),
    },
    "data": {
        "export": ("commands.transfer", "write queues to a file of JSON lines"),
        "import": ("commands.transfer", "read such a file into a store of any kind"),
        "files": ("commands.files", "list, check and remove files by date"),
        "pipeline": ("commands.pipeline", "process messages in bulk with Spark"),
        "spark": ("commands.spark", "check that Spark works here, and make it start faster"),
    },
    "tools": {
        "check": ("commands.maintenance", "verify a store and report damage"),
        "repair": ("commands.maintenance", "repair what check finds"),
        "sweep": ("commands.maintenance", "apply now what is due: delays, expired leases, retention"),
        "torture": ("commands.torture", "simulate power cuts of a store and count what was lost"),
        "demo": ("commands.demo", "publish, lease, ack, retry and a dead letter, step by step"),
        "docs": ("commands.docs", "print a page of the documentation"),
        "completion": ("commands.completion", "print a completion script for your shell"),
    },
}
"""Commands by group, the most common first: the module that defines each one, and its summary."""
COMMAND_MODULES = {name: row for group in COMMAND_GROUPS.values() for name, row in group.items()}
ABOUT = "Yi-Rang MQ: a durable message queue, on one device, behind a server or on a cluster."
EXAMPLES = (
    ("publish a message, count the messages, consume one", 'yirangmq publish --queue mail \'{"to": "ann"}\''),
    ("", "yirangmq status"),
    ("", "yirangmq consume --queue mail"),
    ("help of a command; a page of the documentation", "yirangmq publish --help"),
    ("", "yirangmq docs first-queue"),
)


class MainParser(Parser):
    """Parser of ``yirangmq`` itself: its help lists the commands by group."""

    synonyms = "COMMANDS"

    def format_help(self) -> str:
        width = max(map(len, COMMAND_MODULES))
        groups = (
            f"{title}:\n" + "\n".join(f"  {name:{width}}  {summary}" for name, (_, summary) in group.items())
            for title, group in COMMAND_GROUPS.items()
        )
        return "\n\n".join(
            (
                f"usage: {self.prog} COMMAND [OPTION …]",
                ABOUT,
                *groups,
                f"{self.prog} COMMAND --help describes a command; --version prints the version",
                epilog(EXAMPLES) + "\n",
            )
        )


def load(name: str) -> Command:
    module = import_module(f"yirangmq.cli.{COMMAND_MODULES[name][0]}")
    commands: dict[str, Command] = module.COMMANDS
    return commands[name]


def build(*, only: str | None = None) -> ArgumentParser:
    """Build the parser. With ``only``, configure that command alone; if it is unknown, add only the names of all."""
    parser = MainParser(prog="yirangmq")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", prog=parser.prog, parser_class=Parser
    )
    for name in (only,) if only in COMMAND_MODULES else COMMAND_MODULES:
        inner = commands.add_parser(name, help=COMMAND_MODULES[name][1])
        if only in (None, name):
            load(name).configure(inner)
    return parser


# -- running a command -------------------------------------------------------------------------------------------------


def run(argv: Sequence[str] | None = None) -> int:
    """Run ``yirangmq`` and return the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    screen = Screen(json="--json" in given)
    try:
        code = _run(given, screen)
        screen.flush()
        return code
    except QueueError as error:
        return _failed(screen, error)
    except KeyboardInterrupt:
        return output.INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return output.PIPE_CLOSED
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0
    except Exception as error:
        if os.environ.get("YIRANGMQ_TRACEBACK"):
            raise
        return _failed(screen, QueueError(f"{type(error).__name__}: {error}"))


def _run(given: list[str], screen: Screen) -> int:
    if given[:1] == ["--version"]:
        return _version(screen)
    parser = build(only=given[0] if given else "")
    _refuse_option_before_command(parser, given)
    args = parser.parse_args(given)
    if args.version:
        return _version(screen)
    if args.command is None:
        parser.print_help()
        return output.OK
    del parser  # frees its memory: a server may run for years
    if getattr(args, "chooses_store", False):
        _note_unused_store(args, screen)
    code: int = args.run(args, screen)
    return code


def _refuse_option_before_command(parser: ArgumentParser, given: Sequence[str]) -> None:
    """Name an option that stands before the command. argparse would take its value for the command."""
    command = next((word for word in given if word in COMMAND_MODULES), None)
    if command is not None and given[0].startswith("-") and given[0] not in ("-h", "--help", "--version"):
        option = given[0].partition("=")[0]
        parser.error(
            f"{option} stands before the command; options follow it, as in '{parser.prog} {command} {option} …'"
        )


def _note_unused_store(args: Namespace, screen: Screen) -> None:
    """Report a former default store that the command does not use. ``status --json`` has it as a member."""
    from yirangmq.cli.connection import unused_store

    default = unused_store(args, os.environ)
    if default is not None:
        screen.note(default.unused_text)


def _version(screen: Screen) -> int:
    screen.answer({"version": __version__}, f"yirangmq {__version__}")
    return output.OK


def _failed(screen: Screen, error: QueueError) -> int:
    """Flush stdout, then print the error, so that earlier output comes before it."""
    try:
        screen.flush()
    except BrokenPipeError:
        _discard_stdout()
    screen.problem(error)
    if isinstance(error, Unreachable):
        screen.note("is a server running there? 'yirangmq serve' starts one")
    return output.exit_code(error.code)


def _discard_stdout() -> None:
    """Point stdout to /dev/null after a broken pipe. Otherwise the interpreter reports the error again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
