"""Options that several commands share, and conversions between command-line text and values.

Conversions read files or stdin up to a size, JSON, and ``NAME=VALUE``. They format counts, instants (UTC, to the
second) and durations for people."""

import argparse
from collections.abc import Sequence
from typing import Any, cast

from yirangmq.cli.command import QueueArgument
from yirangmq.core.errors import BadInput
from yirangmq.core.states import State
from yirangmq.format.envelope import iso
from yirangmq.format.json_codec import loads
from yirangmq.fsio.input_file import read_input

# -- shared options ----------------------------------------------------------------------------------------------------


def store(parser: argparse.ArgumentParser, *, has_own_key: bool = False) -> None:
    """Add the options that choose the store; ``connection.chosen`` applies their precedence.

    ``has_own_key``: --key has another meaning in this command, so the TLS key has only --tls-key."""
    parser.set_defaults(chooses_store=True)
    group = parser.add_argument_group("store")
    group.add_argument(
        "--backend", choices=("fs", "sqlite"), help="JSON files in a folder, or one SQLite file (default)"
    )
    group.add_argument(
        "--db",
        metavar="FILE",
        help="the SQLite file (default: $YIRANGMQ_DB or ./yirang-data/queue.db, which 'serve' uses too)",
    )
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
    server(group, ("--tls-key",) if has_own_key else ("--key", "--tls-key"))
    group.add_argument(
        "--durability",
        choices=("full", "os"),
        default="full",
        help="full (default): a reply survives a power cut; os: it survives a killed process",
    )


def server(group: argparse._ArgumentGroup, key: Sequence[str]) -> None:
    """Add the options for reaching a server: TLS files, and the silence timeout."""
    group.add_argument(
        "--ca", metavar="FILE", help="authority that signed the server's certificate, a PEM file (or $YIRANGMQ_CA)"
    )
    group.add_argument(
        "--cert",
        metavar="FILE",
        help="client certificate, if the server asks for one, a PEM file (or $YIRANGMQ_CERT)",
    )
    group.add_argument(*key, dest="tls_key", metavar="FILE", help="its private key, a PEM file (or $YIRANGMQ_KEY)")
    group.add_argument(
        "--server-timeout",
        metavar="SECONDS",
        type=float,
        help="fail when the server is silent for this long (or $YIRANGMQ_SERVER_TIMEOUT; default: 30, and 60 "
        "with more than one address)",
    )


def queue(
    parser: argparse.ArgumentParser, *, needed: bool = True, what: str = "the queue", several: bool = False
) -> None:
    """Add the queue as a positional argument and as ``-q/--queue``; ``args.queue`` has it. Call it in the order of the
    positional arguments. ``several``: ``args.queue`` is a list."""
    word = parser.add_argument(
        "queue_argument", action=QueueArgument, nargs="*" if several else "?", metavar="QUEUE", help=what
    )
    cast("QueueArgument", word).is_needed = needed
    again = "the same, as an option" + ("; may be repeated" if several else "")
    parser.add_argument("-q", "--queue", action="append" if several else "store", metavar="QUEUE", help=again)


def queue_filter(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``-q/--queue`` to a command whose positional arguments are not queues."""
    parser.add_argument("-q", "--queue", metavar="QUEUE", help=what)


def limit(
    parser: argparse.ArgumentParser, what: str, *, default: int | None = None, names: Sequence[str] = ("--limit",)
) -> None:
    """Add ``--limit``. ``names``: it and its other names."""
    parser.add_argument(*names, dest="limit", type=int, default=default, metavar="N", help=what)


def filter_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--filter", metavar="TEXT", default="", help="which ones, such as 'reasonCode=TIMEOUT and attempt>=3'"
    )


def check_selection(args: argparse.Namespace, options: str) -> None:
    """Raise ``BadInput`` unless the options of a command that moves or drops messages select some of them.

    The rule is that of ``validation.check_selection``; the text names the options. An empty ``--filter`` selects
    nothing, because a variable of a script may be empty by mistake."""
    is_selected = bool(args.filter.strip()) or getattr(args, "id", None) is not None
    if args.all and is_selected:
        raise BadInput(f"--all is given together with another selection; give only one of {options}", field="all")
    if not args.all and not is_selected:
        raise BadInput(f"nothing is selected; give {options}", field="filter")


def state(parser: argparse.ArgumentParser, default: State) -> None:
    choices = [state.value for state in State if state is not State.DROPPED]
    parser.add_argument("--state", choices=choices, default=default.value, help=f"in which state (default: {default})")


def dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="report what would happen and change nothing")


def consumer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--consumer-id", metavar="NAME", help="name of this consumer (default: host and process)")


def leases(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("leases", nargs="+", metavar="LEASE", help="lease id, as 'consume --no-ack' prints it")
    parser.add_argument("--consumer-id", metavar="NAME", help="refuse leases of another consumer")


# -- values ------------------------------------------------------------------------------------------------------------


def read_json(name: str, max_bytes: int, field: str) -> Any:
    """Read a file, or stdin for ``-``, as one JSON document."""
    text = read_input(name, max_bytes, field)
    try:
        return loads(text)
    except BadInput as error:
        raise BadInput(f"{name}: {error}", field=field) from None


def attribute(text: str) -> tuple[str, Any]:
    """Parse ``name=value``. The value is JSON if it parses as JSON, otherwise text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadInput(f"{text!r} is not NAME=VALUE", field="--attribute")
    try:
        return name, loads(value.encode())
    except BadInput:
        return name, value


def count_text(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def format_instant(milliseconds: int) -> str | None:
    """Format an instant for people: in UTC, to the second. Return None for 0."""
    return shorten_instant(iso(milliseconds)) if milliseconds else None


def shorten_instant(instant: str) -> str:
    """Format an ISO 8601 instant for people: in UTC, to the second."""
    return instant[:19].replace("T", " ") + "Z"


def format_duration(seconds: float | None) -> str | None:
    """Format a duration for people, as its two largest units."""
    if seconds is None:
        return None
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {left}s" if minutes else f"{left}s"
