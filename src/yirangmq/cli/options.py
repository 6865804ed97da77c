"""Options that several commands share, each said once."""

import argparse

from yirangmq.core.states import State


def store(parser: argparse.ArgumentParser) -> None:
    """Which store: see ``place.chosen`` for which of them wins."""
    group = parser.add_argument_group("store")
    group.add_argument(
        "--backend", choices=("fs", "sqlite"), help="JSON files in a folder, or one SQLite file (default)"
    )
    group.add_argument("--db", metavar="FILE", help="the SQLite file (default: $YIRANGMQ_DB or ./yirang.db)")
    group.add_argument("--path", metavar="FOLDER", help="the folder (default: $YIRANGMQ_PATH or ./yirang-queues)")
    group.add_argument(
        "--store",
        metavar="URL",
        help="both in one: sqlite:FILE or files:FOLDER; or a server: unix:PATH, tcp://HOST:PORT, tls://HOST:PORT "
        "(or $YIRANGMQ_STORE)",
    )
    group.add_argument(
        "--direct",
        action="store_true",
        help="open the store itself, also where a server holds it (or YIRANGMQ_DIRECT=1)",
    )
    group.add_argument(
        "--durability",
        choices=("full", "os"),
        default="full",
        help="full (default): a reply survives a power cut; os: it survives a killed process",
    )


def queue(parser: argparse.ArgumentParser, *, needed: bool = True, what: str = "the queue") -> None:
    parser.add_argument("-q", "--queue", metavar="NAME", required=needed, help=what)


def filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--filter", metavar="TEXT", default="", help="which ones, such as 'reasonCode=TIMEOUT and attempt>=3'"
    )


def state(parser: argparse.ArgumentParser, default: State) -> None:
    choices = [state.value for state in State if state is not State.DROPPED]
    parser.add_argument("--state", choices=choices, default=default.value, help=f"in which state (default: {default})")


def dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="say what would happen and change nothing")


def consumer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--consumer-id", metavar="NAME", help="who is asking (default: host and process)")


def leases(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("leases", nargs="+", metavar="LEASE", help="lease id, as 'consume --no-ack' prints it")
    parser.add_argument("--consumer-id", metavar="NAME", help="refuse if the lease belongs to another consumer")
