"""From options and environment to an open store. The only reader of the environment."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yirangmq
from yirangmq.broker.queues import Queues
from yirangmq.cli import remote
from yirangmq.cli.screen import Screen
from yirangmq.client.address import SCHEMES as ADDRESSES
from yirangmq.core.errors import BadInput, NotFound, StoreReadOnly, Unavailable
from yirangmq.core.setting_types import module_names
from yirangmq.fsio.atomic_file import make_folder
from yirangmq.stores.lock import lock_path, who_serves
from yirangmq.stores.open import SCHEMES

BACKENDS = {"sqlite": "sqlite", "files": "fs", "etcd": "etcd", "memory": "memory"} | dict.fromkeys(ADDRESSES, "server")
SERVED = "sqlite:yirang-data/queue.db"
"""The store of ``yirangmq serve`` without settings, in the folder where it was started."""
PLAIN = "yirang.db"


@dataclass(frozen=True, slots=True)
class Place:
    scheme: str
    path: str

    @property
    def url(self) -> str:
        return f"{self.scheme}:{self.path}"

    @property
    def shown_url(self) -> str:
        """Without the options of a server's address, which may hold a token."""
        return self.url.partition("?")[0] if self.is_server else self.url

    @property
    def backend(self) -> str:
        return BACKENDS[self.scheme]

    @property
    def is_server(self) -> bool:
        return self.scheme in ADDRESSES

    @property
    def exists(self) -> bool:
        return not self.is_file or Path(self.path).exists()

    @property
    def is_file(self) -> bool:
        """Or a folder, on this machine."""
        return self.scheme in ("sqlite", "files")


def chosen(args: argparse.Namespace, env: Mapping[str, str]) -> Place:
    """``--store``; or ``--backend``, ``--db``, ``--path``; or $YIRANGMQ_STORE; or the server of this folder, if one is
    there, or was there; or the defaults."""
    said = [name for name in ("backend", "db", "path") if getattr(args, name) is not None]
    if args.store is not None:
        if said:
            raise BadInput(f"says where already; leave --{said[0]} out", field="--store")
        return _from_url(args.store, "--store")
    if not said and env.get("YIRANGMQ_STORE"):
        return _from_url(env["YIRANGMQ_STORE"], "YIRANGMQ_STORE")
    if not said and not any(env.get(name) for name in ("YIRANGMQ_DB", "YIRANGMQ_PATH")) and _is_served():
        return _from_url(SERVED, "store")
    if args.db is not None and args.path is not None:
        raise BadInput("belongs to sqlite and --path to fs; give one of them", field="--db")
    backend = args.backend or ("fs" if args.path is not None else "sqlite")
    if backend == "fs":
        if args.db is not None:
            raise BadInput("belongs to --backend sqlite; the files store has --path FOLDER", field="--db")
        return Place("files", args.path or env.get("YIRANGMQ_PATH") or "yirang-queues")
    if args.path is not None:
        raise BadInput("belongs to --backend fs; the SQLite store has --db FILE", field="--path")
    return Place("sqlite", args.db or env.get("YIRANGMQ_DB") or PLAIN)


def _is_served() -> bool:
    """A server holds the store of this folder; or one did, and there is no other store."""
    if who_serves(SERVED):
        return True
    return Path(SERVED.partition(":")[2]).exists() and not Path(PLAIN).exists()


def _from_url(url: str, field: str) -> Place:
    scheme, _, path = url.partition(":")
    if scheme not in (*SCHEMES, *ADDRESSES) or (scheme != "memory" and not path):
        known = "sqlite:FILE, files:FOLDER or etcd://HOSTS, or a server: unix:PATH, tcp://HOST:PORT or tls://HOST:PORT"
        raise BadInput(f"{url!r} is not a store; use {known}", field=field)
    return Place(scheme, path)


def of(args: argparse.Namespace) -> Place:
    return chosen(args, os.environ)


def opened(args: argparse.Namespace, *, itself: bool = False) -> Queues:
    """For a command that may change something: a store that is not there yet is made, with its folder. ``itself``: the
    store, not the server that may hold it."""
    place = of(args)
    if place.is_file:
        folder = Path(place.path).absolute()
        make_folder(folder.parent)
    return _open(place, args, itself)


def seen(args: argparse.Namespace, screen: Screen, *, itself: bool = False) -> Queues:
    """For a command that only looks: a store that is not there yet is an empty one, and stays away."""
    place = of(args)
    if place.exists:
        return _open(place, args, itself, screen)
    screen.note(f"there is no store at {place.path} yet")
    return yirangmq.open("memory:")


def existing(args: argparse.Namespace, *, itself: bool = False) -> Queues:
    """For a command that makes no sense without a store."""
    place = of(args)
    if not place.exists:
        raise NotFound(f"there is no store at {place.path}", field="store")
    return _open(place, args, itself)


def _open(place: Place, args: argparse.Namespace, itself: bool, screen: Screen | None = None) -> Queues:
    """Through the server that holds the store, if one does; otherwise the store itself. One that is there and cannot be
    written is opened for reading: commands that look at it work, others are refused by the store."""
    consumer = getattr(args, "consumer_id", None)
    address = place.url if place.is_server else "" if itself else server_of(place, args)
    if address:
        try:
            return remote.connect(address, consumer, remote.contact_of(args, os.environ))
        except Unavailable:
            if place.is_server or server_of(place, args):
                raise
    hooks = module_names(os.environ.get("YIRANGMQ_HOOKS", ""))
    try:
        return yirangmq.open(place.url, durability=args.durability, consumer=consumer, hooks=hooks)
    except StoreReadOnly:
        if not place.is_file or not place.exists:
            raise
        queues = yirangmq.open(place.url, durability=args.durability, consumer=consumer, hooks=hooks, read_only=True)
    if screen is not None:
        screen.note(f"{place.path} cannot be written; it is read only")
    return queues


def server_of(place: Place, args: argparse.Namespace) -> str:
    """The address of the server that holds a store; "" if none does, or if the store itself is wanted."""
    if args.direct or os.environ.get("YIRANGMQ_DIRECT", "") not in ("", "0"):
        return ""
    if place.scheme == "etcd":
        return _leader_of(place.url)
    found = who_serves(place.url)
    return "" if found is None else found.address


def expects_server(place: Place, args: argparse.Namespace) -> bool:
    """A server is expected where its address was given, and where a server has served the store before: its lock file
    lies beside the store, also after a server has stopped or was killed. ``--direct`` asks for the store itself."""
    if place.is_server:
        return True
    if args.direct or os.environ.get("YIRANGMQ_DIRECT", "") not in ("", "0"):
        return False
    lock = lock_path(place.url)
    return place.is_file and lock is not None and lock.exists()


def _leader_of(url: str) -> str:
    """Of the nodes that serve a store in etcd the one that leads, where we can reach it; "" if nobody serves it."""
    from yirangmq.cluster.etcd.address import read_address
    from yirangmq.stores.etcd.store import who_leads

    leader = who_leads(read_address(url, os.environ))
    if leader is None or not leader.forward:
        return ""
    near = [one for one in leader.addresses if one.startswith("unix:") and Path(one.removeprefix("unix:")).exists()]
    far = [one for one in leader.addresses if one.startswith(("tcp:", "tls:"))]
    if not near and not far:
        raise Unavailable(f"node {leader.node} serves this store, and has no --tcp address; ask it on its own machine")
    return (near or far)[0]
