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

COMMAND_MODULES: dict[str, tuple[str, str]] = {
    "publish": ("commands.publish", "put messages into a queue"),
    "consume": ("commands.consume", "take messages and print them, or run a handler or a program for each"),
    "ack": ("commands.consume", "say that the work on a leased message is done"),
    "nack": ("commands.consume", "say that it failed: retried later, or dead"),
    "extend": ("commands.consume", "keep a leased message longer"),
    "consumer": ("commands.consumer", "see and steer the consumer processes"),
    "peek": ("commands.inspect", "see the next messages without taking them"),
    "show": ("commands.inspect", "see one message, wherever it stands"),
    "status": ("commands.inspect", "how many messages are where"),
    "queues": ("commands.inspect", "list the queues"),
    "top": ("commands.watch", "a live view of all queues"),
    "watch": ("commands.watch", "follow what happens, line by line"),
    "metrics": ("commands.watch", "everything counted, for Prometheus"),
    "queue": ("commands.queue", "pause and resume a queue"),
    "dispatch": ("commands.queue", "by which strategy messages are given to consumers"),
    "deliveries": ("commands.queue", "who got which message, and how that ended"),
    "schedule": ("commands.queue", "messages by the clock, and when they come next"),
    "health": ("commands.health", "is the server well?"),
    "pair": ("commands.pair", "see, switch and mend a pair of nodes"),
    "programs": ("commands.health", "which programs may use the server, and who was refused"),
    "connections": ("commands.health", "who is connected to the server"),
    "policy": ("commands.policy", "see, check and set the numbers that govern a queue"),
    "processor": ("commands.policy", "what messages must pass before a queue stores them"),
    "dlq": ("commands.dlq", "find, count and move the dead letters"),
    "drop": ("commands.maintenance", "give messages up, or a whole queue"),
    "purge": ("commands.maintenance", "drop the backlog of a queue"),
    "sweep": ("commands.maintenance", "do at once what time brings: delays, lapsed leases, retention"),
    "check": ("commands.maintenance", "look for damage in a store"),
    "repair": ("commands.maintenance", "mend what check finds"),
    "export": ("commands.transfer", "write queues to a file of JSON lines"),
    "import": ("commands.transfer", "read such a file into a store, of either kind"),
    "serve": ("commands.serve", "run the server that programs connect to"),
    "token": ("commands.token", "make a token for clients or for a pair"),
    "alert": ("commands.alert", "what is wrong with a server, and who is told"),
    "cluster": ("commands.cluster", "the same queues on an etcd cluster"),
    "demo": ("commands.demo", "publish, lease, ack, retry and bury, step by step"),
    "topic": ("commands.topic", "publish to topics, follow them, replay them"),
    "bridge": ("commands.bridge", "topics that feed queues"),
    "files": ("commands.files", "see, check and clear away the files by date"),
    "log": ("commands.log", "check and print the files of a log of topics"),
    "pipeline": ("commands.pipeline", "work on messages in bulk, with Spark"),
    "spark": ("commands.spark", "is Spark ready here? a quicker start for it"),
    "torture": ("commands.torture", "cut the power of a store again and again, and count what was promised"),
    "completion": ("commands.completion", "print a completion script for your shell"),
}
ABOUT = "Yi-Rang MQ: a durable message queue that begins as a folder on one device."
EXAMPLES = (
    ("put a message in, see it, take it", 'yirangmq publish --queue mail \'{"to": "ann"}\''),
    ("", "yirangmq status"),
    ("", "yirangmq consume --queue mail"),
    ("see what the others do", "yirangmq publish --help"),
)


def load(name: str) -> Command:
    module = import_module(f"yirangmq.cli.{COMMAND_MODULES[name][0]}")
    commands: dict[str, Command] = module.COMMANDS
    return commands[name]


def build(*, only: str | None = None) -> ArgumentParser:
    """Build the parser. With ``only``, configure that command alone; if it is unknown, add only the names of all."""
    parser = Parser(prog="yirangmq", description=ABOUT, epilog=epilog(EXAMPLES))
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", prog=parser.prog)
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
