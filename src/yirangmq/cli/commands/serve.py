"""Command ``serve``: its texts and options, one for each setting of ``config.config``.

The server itself is loaded when the options have been read (``server.process``)."""

import argparse
import gc
import os
from dataclasses import fields
from functools import partial

from yirangmq import __version__
from yirangmq.cli import output
from yirangmq.cli.arguments import read_json
from yirangmq.cli.command import Command, name_pages
from yirangmq.cli.output import Screen
from yirangmq.config.config import Config, load
from yirangmq.config.default_store import DefaultStore, default_store
from yirangmq.config.settings import OFF, SECTIONS, default_of, flag
from yirangmq.observe.logs import log, values

MAX_CONFIG_BYTES = 1024 * 1024


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [--config FILE] [SETTING …]"
    parser.add_argument("--config", metavar="FILE", help="JSON file of settings; environment and flags override it")
    titles = {first: title for title, first in SECTIONS.items()}
    group = parser.add_argument_group("settings ('yirangmq docs configuration' explains them)")
    for setting in fields(Config):
        if setting.name in titles:
            group = parser.add_argument_group(titles[setting.name])
        about = name_pages(str(setting.metadata["about"]).replace("`", ""))
        text = f"{about} (default: {default_of(setting) or 'none'})".replace("%", "%%")
        if setting.type is bool or setting.type == "bool":
            group.add_argument(flag(setting.name), action="store_const", const=True, default=None, help=text)
        else:
            group.add_argument(flag(setting.name), metavar="X", default=None, help=text)
            if setting.name == "pair_handover":
                group.add_argument(
                    "--no-handover",
                    action="store_const",
                    const=OFF,
                    dest=setting.name,
                    help="the same as --pair-handover off",
                )


def run(args: argparse.Namespace, screen: Screen) -> int:
    document = read_json(args.config, MAX_CONFIG_BYTES, "config") if args.config else {}
    chosen = load(document, os.environ, {one.name: getattr(args, one.name) for one in fields(Config)})
    gc.collect()  # free the parser and its options, so that long-lived objects reuse their memory
    from yirangmq.server.process import serve

    serve(chosen, partial(_announce, chosen, screen))
    return output.OK


# -- what a user sees when the server is ready -------------------------------------------------------------------------


def _announce(chosen: Config, screen: Screen, addresses: list[str], durability: str) -> None:
    value = {"ready": True, "version": __version__, "addresses": addresses, "store": chosen.store_url}
    where = f"store {chosen.store_url}, durability {durability}"
    text = f"yirangmq {__version__} is ready at {', '.join(addresses)}; {where}"
    dashboard = _dashboard(addresses)
    if dashboard is not None:
        text += f"\nThe dashboard is at {dashboard}"
    unused = _unused_store(chosen)
    if unused is not None:
        log.warning("former_store_unused", extra=values(file=unused.unused_file, store=chosen.store_url))
        text += f"\n{unused.unused_text}"
    screen.answer({**value, "dashboard": dashboard, "durability": durability, "pid": os.getpid()}, text)
    screen.flush()


WILDCARDS = {"://0.0.0.0:": "://127.0.0.1:", "://[::]:": "://[::1]:"}
"""Addresses that stand for every address of the machine, and what a browser on it opens instead."""


def _dashboard(addresses: list[str]) -> str | None:
    """Return the address at which a browser on this machine opens the dashboard; None without HTTP over TCP."""
    page = next((f"{address}/" for address in addresses if address.startswith(("http://", "https://"))), None)
    for wildcard, local in WILDCARDS.items():
        page = page.replace(wildcard, local) if page is not None else None
    return page


def _unused_store(chosen: Config) -> DefaultStore | None:
    """Return the default store if this server serves it beside a former default store of commands."""
    default = default_store(os.environ)
    return default if default.unused_file and chosen.store_url == f"sqlite:{default.file}" else None


COMMANDS = {
    "serve": Command(
        about="Run the server: programs on this machine reach its queues over a unix socket and HTTP at port 8080, "
        "others over TCP, TLS or HTTP if their settings name an address. Without any setting it keeps its queues in "
        "one SQLite file in ./yirang-data.\n\n"
        "A setting is a flag, an environment variable (--max-connections is YIRANGMQ_MAX_CONNECTIONS) or a member of "
        "the JSON file; flags win over the environment, the environment over the file.\n\n"
        "SIGTERM and SIGINT stop it: it replies to the requests that it has received, then it exits with 0.",
        examples=(
            ("here, with defaults", "yirangmq serve"),
            ("another folder, and TCP on this machine", "yirangmq serve --data /var/lib/yirangmq --tcp 127.0.0.1:7411"),
            ("HTTP at another port, or not at all", "yirangmq serve --http 127.0.0.1:9000"),
            (
                "one of several nodes before queues in etcd",
                "yirangmq serve --store etcd://h1,h2,h3 --tcp 127.0.0.1:7411 --cluster-listen 10.0.0.1:7412",
            ),
            ("STOMP too, for programs that spoke it to ActiveMQ", "yirangmq serve --stomp 127.0.0.1:61613"),
            ("from a file", "yirangmq serve --config /etc/yirangmq.json"),
        ),
        options=add_options,
        run=run,
    )
}
