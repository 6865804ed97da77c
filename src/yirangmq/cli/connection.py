"""Opening a store or a server from options and environment; a server's queues behind the interface of a store.

The store is named by options, the environment, or a server of this folder. If a server holds the store, commands go
through it, unless ``--direct`` is given. A store that cannot be written is opened for reading.

Through a server, operations use the client library (``cli.remote_queues``)."""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import yirangmq
from yirangmq.broker.queue_api import DeadLetterApi, QueueStore
from yirangmq.broker.queues import Queues
from yirangmq.cli.output import Screen
from yirangmq.client.address import SCHEMES as ADDRESSES
from yirangmq.config.default_store import DefaultStore, default_store
from yirangmq.core.errors import BadInput, NotFound, QueueError, StoreReadOnly, Unavailable
from yirangmq.core.processor import module_names
from yirangmq.fsio.atomic_file import make_folder
from yirangmq.stores.lock import find_holder, lock_path
from yirangmq.stores.open import SCHEMES

if TYPE_CHECKING:
    from yirangmq.cli.progress import ProgressBar
    from yirangmq.client.sync_client import Client


# -- server behind the interface of a store ----------------------------------------------------------------------------

RETRIES = 3
"""Number of retries of a command with one address; fewer than the default of a long-running program. With several
addresses the client's default applies, because a takeover may be in progress."""
SERVER_TIMEOUT = 30.0
"""Silence timeout with one address, in seconds: the command fails if the server is silent for this long. A long call,
such as a redrive of a million dead letters, continues as long as the server answers pings."""
NEEDS_FILES = "this needs the files of the store: run it on the server's machine, with --db or --path"
SERVER_TIMEOUT_OF_MANY = 60.0
"""Silence timeout with more than one address, in seconds; long enough for a takeover."""
MAX_SERVER_TIMEOUT = 86_400.0
POLL_SECONDS = 0.5


class ConnectionOptions(NamedTuple):
    """Connection options of a command, from its flags and the environment: token, TLS files, silence timeout."""

    token: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    silence: float | None = None
    """Silence timeout in seconds. None: the default for the number of addresses."""
    retries: int | None = None
    """Number of retries of a request. None: the default for the number of addresses."""


def read_connection_options(args: argparse.Namespace, env: Mapping[str, str]) -> ConnectionOptions:
    ca, cert, key = (
        getattr(args, option, None) or env.get(variable, "")
        for option, variable in (("ca", "YIRANGMQ_CA"), ("cert", "YIRANGMQ_CERT"), ("tls_key", "YIRANGMQ_KEY"))
    )
    silence = getattr(args, "server_timeout", None)
    field = "--server-timeout"
    if silence is None and env.get("YIRANGMQ_SERVER_TIMEOUT"):
        field, text = "YIRANGMQ_SERVER_TIMEOUT", env["YIRANGMQ_SERVER_TIMEOUT"]
        try:
            silence = float(text)
        except ValueError:
            raise BadInput(f"must be a number of seconds, not {text!r}", field=field) from None
    if silence is not None and not 0 < silence <= MAX_SERVER_TIMEOUT:
        raise BadInput(f"must be above 0 and at most {MAX_SERVER_TIMEOUT:g} seconds", field=field)
    return ConnectionOptions(env.get("YIRANGMQ_TOKEN", ""), ca, cert, key, silence, getattr(args, "retries", None))


def client_for(address: str, options: ConnectionOptions, consumer: str | None = None) -> "Client":
    """Open a client that fails if the server is silent for ``ConnectionOptions.silence`` seconds."""
    from yirangmq.client.connect import connect as open_client  # not imported by a command on a local store

    silence = options.silence or (SERVER_TIMEOUT_OF_MANY if "," in address else SERVER_TIMEOUT)
    return open_client(
        address,
        consumer=consumer,
        token=options.token,
        ca=options.ca,
        cert=options.cert,
        key=options.key,
        timeout=silence / 2,
        silence=silence,
        retries=retries_for(address) if options.retries is None else options.retries,
    )


def connect(address: str, consumer: str | None, options: ConnectionOptions) -> QueueStore:
    """Connect to a server; its queues are used like those of an opened store."""
    from yirangmq.cli.remote_queues import RemoteQueues  # not imported by a command on a local store

    return RemoteQueues(client_for(address, options, consumer), address)


def retries_for(address: str) -> int | None:
    """Return the number of retries. None with several addresses: the client's default, enough for a takeover."""
    return None if "," in address else RETRIES


def shown_sources(queues: QueueStore, name: str) -> list[str]:
    """Return the source queues whose dead letters this name shows; [] if it is the name of a queue."""
    sources = queues.dead_letters.sources(name)
    return [] if name in sources else sources


def local_store(queues: QueueStore) -> Queues:
    """Return the opened store; raise ``Unavailable`` if ``queues`` are those of a server."""
    if not isinstance(queues, Queues):
        raise Unavailable(NEEDS_FILES)
    return queues


@runtime_checkable
class ServerQueues(Protocol):
    """Queues of a server (``cli.remote_queues.RemoteQueues``): they have an address, and methods by name."""

    address: str

    def call(self, method: str, /, **values: Any) -> Any: ...


def call(queues: QueueStore, method: str, **values: Any) -> Any:
    """Call a method of the server by name. Raises ``Unavailable`` if ``queues`` is an opened store."""
    if not isinstance(queues, ServerQueues):
        raise Unavailable("this needs a server, and none serves the store")
    return queues.call(method, **values)


def address_of(queues: QueueStore) -> str | None:
    """Return the address of the server for display, without its options, which may hold a token.

    Return None if the store itself is open."""
    return queues.address.partition("?")[0] if isinstance(queues, ServerQueues) else None


def topic_subscribers(queues: QueueStore, site: dict[str, Any]) -> list[Any]:
    """Return the subscribers of a server's topics. ``site`` is the server's status document."""
    return [] if site.get("topics") is None else [*call(queues, "topic_subscribers")]


@contextmanager
def server_progress(
    args: argparse.Namespace, queues: QueueStore, show: "ProgressBar", left: Callable[[QueueStore], int]
) -> Iterator[None]:
    """Show the progress of a move that a server runs, from the number of messages left, read on a second connection.

    Does nothing if the store is open here, or if no progress is shown. A move of all has a total; one by filter or ids
    only a count."""
    if not isinstance(queues, ServerQueues) or not show.is_shown or args.dry_run:
        yield
        return
    from yirangmq.cli.progress import polled

    with ExitStack() as stack:
        try:
            other = stack.enter_context(connect(queues.address, None, read_connection_options(args, os.environ)))
            before = left(other)
        except QueueError:  # the token may not read counts, or the server takes no more connections
            yield
            return
        if args.all:
            show.update("", 0, before if args.limit is None else min(before, args.limit))
        stack.enter_context(polled(show, lambda: max(0, before - left(other)), POLL_SECONDS))
        yield


def dead_letters(queues: QueueStore, progress: Callable[[int, int], None]) -> DeadLetterApi:
    """Return the dead letters of the open store, with ``progress``, or those of the server."""
    from yirangmq.broker.dead_letters import DeadLetters  # not imported by other commands

    return DeadLetters(queues, progress) if isinstance(queues, Queues) else queues.dead_letters


# -- choosing and opening a store --------------------------------------------------------------------------------------

BACKENDS = {"sqlite": "sqlite", "files": "fs", "etcd": "etcd", "memory": "memory"} | dict.fromkeys(ADDRESSES, "server")


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Location of a store or a server: a scheme, and a path or an address."""

    scheme: str
    path: str

    @property
    def url(self) -> str:
        return f"{self.scheme}:{self.path}"

    @property
    def shown_url(self) -> str:
        """The URL for display, without the options of a server's address, which may hold a token."""
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
        """True if the store is a file or a folder on this machine."""
        return self.scheme in ("sqlite", "files")


def choose_store(args: argparse.Namespace, env: Mapping[str, str]) -> StoreLocation:
    """Choose the store. In order of precedence: ``--store``; ``--backend``, ``--db``, ``--path``; $YIRANGMQ_STORE;
    $YIRANGMQ_DB or $YIRANGMQ_PATH; the default store of the working folder, which is also the server's."""
    given = [name for name in ("backend", "db", "path") if getattr(args, name) is not None]
    if args.store is not None:
        if given:
            raise BadInput(f"says where already; leave --{given[0]} out", field="--store")
        return _from_url(args.store, "--store")
    if not given and env.get("YIRANGMQ_STORE"):
        return _from_url(env["YIRANGMQ_STORE"], "YIRANGMQ_STORE")
    if args.db is not None and args.path is not None:
        raise BadInput("belongs to sqlite and --path to fs; give one of them", field="--db")
    backend = args.backend or ("fs" if args.path is not None else "sqlite")
    if backend == "fs":
        if args.db is not None:
            raise BadInput("belongs to --backend sqlite; the files store has --path FOLDER", field="--db")
        return StoreLocation("files", args.path or env.get("YIRANGMQ_PATH") or "yirang-queues")
    if args.path is not None:
        raise BadInput("belongs to --backend fs; the SQLite store has --db FILE", field="--path")
    return StoreLocation("sqlite", args.db or env.get("YIRANGMQ_DB") or default_store(env).file)


def unused_store(args: argparse.Namespace, env: Mapping[str, str]) -> DefaultStore | None:
    """Return the default store if the command uses it and leaves a former default file unused; otherwise None."""
    default = default_store(env)
    return default if default.unused_file and choose_store(args, env).path == default.file else None


def _from_url(url: str, field: str) -> StoreLocation:
    scheme, _, path = url.partition(":")
    if scheme not in (*SCHEMES, *ADDRESSES) or (scheme != "memory" and not path):
        known = "sqlite:FILE, files:FOLDER or etcd://HOSTS, or a server: unix:PATH, tcp://HOST:PORT or tls://HOST:PORT"
        raise BadInput(f"{url!r} is not a store; use {known}", field=field)
    return StoreLocation(scheme, path)


def store_location(args: argparse.Namespace) -> StoreLocation:
    """Choose the store from the options and the process environment."""
    return choose_store(args, os.environ)


def open_or_create(args: argparse.Namespace, *, bypass_server: bool = False) -> QueueStore:
    """Open the store for a command that may change it. Create the store and its folder if they do not exist.

    ``bypass_server``: open the store itself even if a server holds it."""
    location = store_location(args)
    if location.is_file:
        folder = Path(location.path).absolute()
        make_folder(folder.parent)
    return _open(location, args, bypass_server)


def open_read_only(args: argparse.Namespace, screen: Screen, *, bypass_server: bool = False) -> QueueStore:
    """Open the store for a command that only reads. If it does not exist, return an empty one and create nothing."""
    location = store_location(args)
    if location.exists:
        return _open(location, args, bypass_server, screen)
    screen.note(
        f"there is no store at {location.path}; the command shows an empty one and creates nothing. Check the path"
    )
    return yirangmq.open("memory:")


def open_existing(args: argparse.Namespace, *, bypass_server: bool = False) -> QueueStore:
    """Open a store that must exist; raise ``NotFound`` if it does not."""
    location = store_location(args)
    if not location.exists:
        raise NotFound(f"there is no store at {location.path}", field="store")
    return _open(location, args, bypass_server)


def _open(
    location: StoreLocation, args: argparse.Namespace, bypass_server: bool, screen: Screen | None = None
) -> QueueStore:
    """Connect to the server that holds the store, if there is one; otherwise open the store itself.

    A store that exists and cannot be written is opened read-only: reads work, and the store rejects writes."""
    consumer = getattr(args, "consumer_id", None)
    address = location.url if location.is_server else "" if bypass_server else server_of(location, args)
    if address:
        try:
            return connect(address, consumer, read_connection_options(args, os.environ))
        except Unavailable:
            if location.is_server or server_of(location, args):
                raise
    hooks = module_names(os.environ.get("YIRANGMQ_HOOKS", ""))
    try:
        return yirangmq.open(location.url, durability=args.durability, consumer=consumer, hooks=hooks)
    except StoreReadOnly:
        if not location.is_file or not location.exists:
            raise
        queues = yirangmq.open(location.url, durability=args.durability, consumer=consumer, hooks=hooks, read_only=True)
    if screen is not None:
        screen.note(f"{location.path} cannot be written; it is read only")
    return queues


def server_of(location: StoreLocation, args: argparse.Namespace) -> str:
    """Return the address of the server that holds the store; "" if there is none, or with ``--direct``."""
    if args.direct or os.environ.get("YIRANGMQ_DIRECT", "") not in ("", "0"):
        return ""
    if location.scheme == "etcd":
        return _leader_of(location.url)
    found = find_holder(location.url)
    return "" if found is None else found.address


def expects_server(location: StoreLocation, args: argparse.Namespace) -> bool:
    """Return True if the address of a server was given, or if a server has served the store before.

    The server's lock file next to the store shows that: it remains after the server stops or is killed. With
    ``--direct`` no server is expected for a local store."""
    if location.is_server:
        return True
    if args.direct or os.environ.get("YIRANGMQ_DIRECT", "") not in ("", "0"):
        return False
    lock = lock_path(location.url)
    return location.is_file and lock is not None and lock.exists()


def _leader_of(url: str) -> str:
    """Return an address of the node that leads the store in etcd, unix sockets of this machine first.

    Return "" if no node serves the store, or if the leader has no address for forwarded calls."""
    from yirangmq.cluster.etcd.address import read_address
    from yirangmq.stores.etcd.store import find_current_leader

    leader = find_current_leader(read_address(url, os.environ))
    if leader is None or not leader.forward:
        return ""
    near = [one for one in leader.addresses if one.startswith("unix:") and Path(one.removeprefix("unix:")).exists()]
    far = [one for one in leader.addresses if one.startswith(("tcp:", "tls:"))]
    if not near and not far:
        raise Unavailable(f"node {leader.node} serves this store, and has no --tcp address; ask it on its own machine")
    return (near or far)[0]
