"""From options and environment to the topics: through the server that has them, or their log itself where none runs."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from yirangmq.cli import options, place, remote
from yirangmq.cli.topic_local import LocalTopics
from yirangmq.client.sync_client import Topics
from yirangmq.core.errors import Unavailable

FOLDER = "topics"
"""Of the log, in the folder of the store; where ``yirangmq serve`` has it."""


def add_options(parser: argparse.ArgumentParser, *, has_own_key: bool = False) -> None:
    options.store(parser, has_own_key=has_own_key)
    parser.add_argument(
        "--log",
        metavar="FOLDER",
        help="the log's folder, opened directly (default, where no server runs: topics beside the store, or "
        "yirang-data/topics)",
    )


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[Topics]:
    address = address_of(args)
    if address:
        try:
            client = remote.client_at(address, remote.contact_of(args, os.environ))
        except Unavailable:
            if place.of(args).is_server or address_of(args):
                raise
        else:
            with client:
                yield client.topics
            return
    with LocalTopics(folder_of(args), args.durability) as topics:
        yield cast("Topics", topics)  # a stand-in: it has every method that the commands use


def address_of(args: argparse.Namespace) -> str:
    """Of the server; "" where the log itself is to be opened."""
    if args.log is not None:
        return ""
    at = place.of(args)
    return at.url if at.is_server else place.server_of(at, args)


def folder_of(args: argparse.Namespace) -> Path:
    if args.log is not None:
        return Path(args.log)
    is_said = any(getattr(args, name) is not None for name in ("store", "backend", "db", "path"))
    is_said = is_said or any(os.environ.get(f"YIRANGMQ_{name}") for name in ("STORE", "DB", "PATH"))
    store = place.of(args).path if is_said else place.SERVED.partition(":")[2]
    return Path(store).parent / FOLDER
