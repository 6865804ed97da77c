"""All commands, and the parser made of them. Only the module of the command that was asked for is loaded; the others
are known by name and summary."""

from argparse import ArgumentParser
from importlib import import_module

from yirangmq.cli.command import Command, Parser, epilog

TABLE: dict[str, tuple[str, str]] = {
    "publish": ("publishing", "put messages into a queue"),
    "consume": ("consuming", "take messages and print them, or run a handler or a program for each"),
    "ack": ("consuming", "say that the work on a leased message is done"),
    "nack": ("consuming", "say that it failed: retried later, or dead"),
    "extend": ("consuming", "keep a leased message longer"),
    "consumer": ("consumers", "see and steer the consumer processes"),
    "peek": ("looking", "see the next messages without taking them"),
    "show": ("looking", "see one message, wherever it stands"),
    "status": ("looking", "how many messages are where"),
    "queues": ("looking", "list the queues"),
    "top": ("watching", "a live view of all queues"),
    "watch": ("watching", "follow what happens, line by line"),
    "metrics": ("watching", "everything counted, for Prometheus"),
    "queue": ("pausing", "pause and resume a queue"),
    "dispatch": ("pausing", "by which strategy messages are given to consumers"),
    "deliveries": ("pausing", "who got which message, and how that ended"),
    "schedule": ("pausing", "messages by the clock, and when they come next"),
    "health": ("wellbeing", "is the server well?"),
    "pair": ("pairing", "see, switch and mend a pair of nodes"),
    "programs": ("wellbeing", "which programs may use the server, and who was refused"),
    "connections": ("wellbeing", "who is connected to the server"),
    "policy": ("processing", "see, check and set the numbers that govern a queue"),
    "processor": ("processing", "what messages must pass before a queue stores them"),
    "dlq": ("burials", "find, count and move the dead letters"),
    "drop": ("upkeep", "give messages up, or a whole queue"),
    "sweep": ("upkeep", "do at once what time brings: delays, lapsed leases, retention"),
    "check": ("upkeep", "look for damage in a store"),
    "repair": ("upkeep", "mend what check finds"),
    "export": ("moving", "write queues to a file of JSON lines"),
    "import": ("moving", "read such a file into a store, of either kind"),
    "serve": ("serve", "run the server that programs connect to"),
    "token": ("tokens", "make a token for clients or for a pair"),
    "alert": ("alerts", "what is wrong with a server, and who is told"),
    "cluster": ("clustering", "the same queues on an etcd cluster"),
    "demo": ("demo", "publish, lease, ack, retry and bury, step by step"),
    "topic": ("topics", "publish to topics, follow them, replay them"),
    "bridge": ("bridges", "topics that feed queues"),
    "files": ("datefiles", "see, check and clear away the files by date"),
    "log": ("logbook", "check and print the files of a log of topics"),
    "pipeline": ("pipelines", "work on messages in bulk, with Spark"),
    "spark": ("sparking", "is Spark ready here? a quicker start for it"),
    "torture": ("torture", "cut the power of a store again and again, and count what was promised"),
    "completion": ("completion", "print a completion script for your shell"),
}
ABOUT = "Yi-Rang MQ: a durable message queue that begins as a folder on one device."
EXAMPLES = (
    ("put a message in, see it, take it", 'yirangmq publish --queue mail \'{"to": "ann"}\''),
    ("", "yirangmq status"),
    ("", "yirangmq consume --queue mail"),
    ("see what the others do", "yirangmq publish --help"),
)


def load(name: str) -> Command:
    module = import_module(f"yirangmq.cli.{TABLE[name][0]}")
    commands: dict[str, Command] = module.COMMANDS
    return commands[name]


def build(*, only: str | None = None) -> ArgumentParser:
    """The parser; with ``only`` that command alone, or where it is none of them the names of all."""
    parser = Parser(prog="yirangmq", description=ABOUT, epilog=epilog(EXAMPLES))
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", prog=parser.prog)
    for name in (only,) if only in TABLE else TABLE:
        inner = commands.add_parser(name, help=TABLE[name][1])
        if only in (None, name):
            load(name).configure(inner)
    return parser
