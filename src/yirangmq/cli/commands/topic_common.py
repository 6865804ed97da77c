"""Shared parts of the topic commands: printing records, parsing instants, and opening the topics.

Topics are reached through the server that holds the store. If none runs, their log is opened directly
(``cli.local_topics``)."""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from yirangmq.cli import arguments, connection
from yirangmq.cli.arguments import shorten_instant
from yirangmq.cli.local_topics import LocalTopics
from yirangmq.cli.output import PROGRAM, Screen
from yirangmq.cli.table import cut, safe
from yirangmq.client.sync_client import ClientTopics
from yirangmq.config.default_store import data_folder
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, Unavailable
from yirangmq.core.topics import MAX_SEQUENCE, Record
from yirangmq.format.topic_record import as_json, instant

# -- records and instants ----------------------------------------------------------------------------------------------

PREVIEW = 200
"""Maximum number of characters of a payload in a printed line."""
AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def record_line(record: Record) -> str:
    key = "" if record.key is None else f" key={safe(record.key)}"
    headers = "".join(f" {safe(name)}={safe(value)}" for name, value in record.headers.items())
    try:
        text = safe(record.payload.decode())
    except UnicodeDecodeError:
        text = f"{len(record.payload)} bytes: {record.payload[: PREVIEW // 3].hex(' ')}"
    title = f"{record.sequence} {record.topic}#{record.topic_sequence} {shorten_instant(instant(record.at_ns))}"
    return f"{title}{key}{headers} {cut(text, PREVIEW)}".rstrip()


def show_records(args: argparse.Namespace, screen: Screen, records: Iterable[Record]) -> None:
    """Print records in the requested format, and flush the output before returning."""
    for record in records:
        if args.raw:
            screen.write(record.payload + b"\n")
        elif screen.json:
            screen.line(as_json(record))
        else:
            screen.report(record_line(record))
    screen.flush()


def sequence_of(number: int | None, field: str) -> int | None:
    return None if number is None else validation.check_count(number, field, most=MAX_SEQUENCE)


def moment_of(text: str | None, field: str) -> datetime | None:
    """Parse an instant: ``2026-01-13T10:21:00+09:00`` (UTC without a zone), seconds since 1970, or an age: ``2h``."""
    if text is None:
        return None
    try:
        if ago := AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{UNITS[ago[2]]: float(ago[1])})
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return datetime.fromtimestamp(float(text), UTC)
        found = datetime.fromisoformat(text)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadInput(
            f"{text!r} is no moment; write 2026-01-13T10:21:00+09:00, seconds since 1970, or how long ago: 90s, 15m, "
            "2h, 3d",
            field=field,
        ) from None


def header_of(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadInput(f"{text!r} is not NAME=VALUE", field="--header")
    return name, value


# -- opening the topics ------------------------------------------------------------------------------------------------

FOLDER = "topics"
"""Name of the log's folder beside the store, as ``yirangmq serve`` creates it."""


def add_options(parser: argparse.ArgumentParser, *, has_own_key: bool = False) -> None:
    arguments.store(parser, has_own_key=has_own_key)
    parser.add_argument(
        "--log",
        metavar="FOLDER",
        help="the log's folder, opened directly (default if no server runs: topics beside the store, or "
        "yirang-data/topics)",
    )


@contextmanager
def open_topics(args: argparse.Namespace) -> Iterator[ClientTopics]:
    address = address_of(args)
    if address:
        try:
            client = connection.client_for(address, connection.read_connection_options(args, os.environ))
        except Unavailable:
            if connection.store_location(args).is_server or address_of(args):
                raise
        else:
            with client:
                yield client.topics
            return
    with LocalTopics(folder_of(args), args.durability) as topics:
        try:
            yield cast("ClientTopics", topics)  # it has every method of ``ClientTopics`` that the commands use
        finally:
            if topics.loss:
                print(f"{PROGRAM}: {topics.loss}", file=sys.stderr)


def address_of(args: argparse.Namespace) -> str:
    """Return the address of the server, or "" if the log is opened directly."""
    if args.log is not None:
        return ""
    at = connection.store_location(args)
    return at.url if at.is_server else connection.server_of(at, args)


def folder_of(args: argparse.Namespace) -> Path:
    if args.log is not None:
        return Path(args.log)
    is_said = any(getattr(args, name) is not None for name in ("store", "backend", "db", "path"))
    is_said = is_said or any(os.environ.get(f"YIRANGMQ_{name}") for name in ("STORE", "DB", "PATH"))
    folder = Path(connection.store_location(args).path).parent if is_said else Path(data_folder(os.environ))
    return folder / FOLDER
