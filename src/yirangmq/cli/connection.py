"""Opening a store or a server from options and environment; a server's queues behind the interface of a store.

The store is named by options, the environment, or a server of this folder. If a server holds the store, commands go
through it, unless ``--direct`` is given. A store that cannot be written is opened for reading.

Through a server, operations go by the client library. Reads are a transaction object that asks the server: each read
is one call, and several reads are not of one moment."""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import yirangmq
from yirangmq.broker.dead_letters import DeadLetters, Moved
from yirangmq.broker.queues import Queues
from yirangmq.cli.output import Screen
from yirangmq.client.address import SCHEMES as ADDRESSES
from yirangmq.clock import SystemClock
from yirangmq.core.errors import BadInput, NotFound, StoreReadOnly, Unavailable
from yirangmq.core.message import Counts, Envelope, Failure, Message
from yirangmq.core.policy import QueuePolicy, read_policy
from yirangmq.core.ports import Finding, Page, Transaction
from yirangmq.core.setting_types import module_names
from yirangmq.core.states import State
from yirangmq.fsio.atomic_file import make_folder
from yirangmq.stores.lock import lock_path, who_serves
from yirangmq.stores.open import SCHEMES

if TYPE_CHECKING:
    from yirangmq.client.sync_client import Client
    from yirangmq.wire.messages import Parts


# -- server behind the interface of a store ----------------------------------------------------------------------------

Answer = TypeVar("Answer")
RETRIES = 3
"""A command gives up sooner than a program that has run for days; not so where there are two nodes, of which one may be
about to take over."""
SERVER_TIMEOUT = 30.0
SERVER_TIMEOUT_OF_MANY = 60.0
"""Seconds after which a command gives up on a silent server. With more than one address it waits for a takeover. A call
that takes long, such as moving a million dead letters, goes on as long as the server answers pings."""
LONGEST_SERVER_TIMEOUT = 86_400.0
MOST_PER_CALL = 10_000
NEEDS_FILES = "this needs the files of the store: run it on the server's machine, with --db or --path"


class Contact(NamedTuple):
    """How a command reaches a server, from its options and the environment."""

    token: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    silence: float | None = None
    """Seconds; None: the default for the number of addresses."""


def contact_of(args: argparse.Namespace, env: Mapping[str, str]) -> Contact:
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
    if silence is not None and not 0 < silence <= LONGEST_SERVER_TIMEOUT:
        raise BadInput(f"must be above 0 and at most {LONGEST_SERVER_TIMEOUT:g} seconds", field=field)
    return Contact(env.get("YIRANGMQ_TOKEN", ""), ca, cert, key, silence)


def client_at(address: str, contact: Contact, consumer: str | None = None) -> "Client":
    """A client that gives up on a server after ``Contact.silence`` seconds without any answer."""
    from yirangmq.client.connect import connect as open_client  # a command on a local store does without

    silence = contact.silence or (SERVER_TIMEOUT_OF_MANY if "," in address else SERVER_TIMEOUT)
    return open_client(
        address,
        consumer=consumer,
        token=contact.token,
        ca=contact.ca,
        cert=contact.cert,
        key=contact.key,
        timeout=silence / 2,
        silence=silence,
        retries=retries_for(address),
    )


def connect(address: str, consumer: str | None, contact: Contact) -> Queues:
    """A stand-in: it has every method that the commands use."""
    return cast("Queues", RemoteQueues(client_at(address, contact, consumer), address))


def retries_for(address: str) -> int | None:
    """None: as long as a takeover of a pair may take."""
    return None if "," in address else RETRIES


class RemoteQueues:
    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self.address = address

    def __getattr__(self, verb: str) -> Any:
        """Every verb of the client has the name, the arguments and the results of the store's."""
        return getattr(self._client, verb)

    def call(self, method: str, **values: Any) -> Any:
        return self._client.call(method, **values)

    def read(self, work: Callable[[Transaction], Answer]) -> Answer:
        return work(cast("Transaction", RemoteLooks(self._client)))

    def run(self, work: Callable[[Transaction], Answer]) -> Answer:
        raise Unavailable(NEEDS_FILES)

    def check(self, *, repair: bool = False) -> Iterator[Finding]:
        raise Unavailable(
            "this needs the store itself; give --direct where its files are, and stop the server to repair"
        )

    def now_ms(self) -> int:
        return SystemClock().now_ms()

    def wall_ms(self) -> int:
        return SystemClock().wall_ms()

    def ahead_ms(self) -> int:
        """What a server shows is on its wall clock already."""
        return 0

    def __enter__(self) -> "RemoteQueues":
        return self

    def __exit__(self, *reason: object) -> None:
        self._client.close()


class RemoteLooks:
    """The reading half of ``core.ports.Transaction``. What came with one look is at hand for the next."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._seen: dict[int, Parts] = {}
        self._policies: dict[str, QueuePolicy] = {}

    def queues(self, after: str = "", limit: int | None = None, prefix: str = "") -> list[str]:
        if limit is None and not after:
            return [*self._client.queues(prefix)]
        return [*self._client.call("queues", after=after, limit=limit or MOST_PER_CALL, prefix=prefix)]

    def queue_count(self) -> int:
        return len(self.queues())

    def has_queue(self, queue: str) -> bool:
        return self.queues(limit=1, prefix=queue) == [queue]

    def policied(self) -> list[str]:
        return [*self._client.call("queues", policied=True)]

    def counts(self, queue: str) -> Counts:
        found: Counts = self._client.counts(queue)
        return found

    def policy(self, queue: str) -> QueuePolicy:
        if queue not in self._policies:
            self._policies[queue] = read_policy(self._client.policy(queue), queue)
        return self._policies[queue]

    def policy_text(self, queue: str) -> str | None:
        found: str | None = self._client.call("policy_text", queue=queue)
        return found

    def scan(self, queue: str, state: State, limit: int, cursor: str = "") -> Page:
        page = self._client.call("peek", queue=queue, state=state.value, limit=min(limit, MOST_PER_CALL), cursor=cursor)
        return Page(*self._noted(page))

    def by_id(self, queue: str, ids: Sequence[str]) -> list[Message | None]:
        found, _ = self._noted(self._client.call("by_id", queue=queue, ids=[*ids]))
        known = {message.id: message for message in found}
        return [known.get(id) for id in ids]

    def due(self, now: int, limit: int) -> list[Message]:
        return self._noted(self._client.call("due", limit=min(limit, MOST_PER_CALL)))[0]

    def next_due(self, before: int | None = None) -> int | None:
        found: int | None = self._client.call("next_due")
        return None if found is None or (before is not None and found >= before) else found

    def envelopes(self, messages: Sequence[Message]) -> list[Envelope | None]:
        return [self._seen[message.seq][1] for message in messages]

    def failures(self, messages: Sequence[Message]) -> list[Failure | None]:
        return [self._seen[message.seq][2] for message in messages]

    def _noted(self, page: Any) -> tuple[list[Message], str]:
        from yirangmq.wire.messages import unpack  # with msgspec, which a store in files needs none of

        looks, cursor = unpack(page)
        self._seen = {parts[0].seq: parts for parts in looks}
        return [parts[0] for parts in looks], cursor


class RemoteLetters:
    """Moves of dead letters, done by the server; looking is done page by page as in a store."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def requeue(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        state: str = "dead",
        dry_run: bool = False,
    ) -> Moved:
        return self._move("dlq_requeue", queue=queue, filter=filter, ids=ids, state=state, dry_run=dry_run)

    def quarantine(
        self, queue: str, filter: str = "", ids: Sequence[str] | None = None, *, dry_run: bool = False
    ) -> Moved:
        return self._move("dlq_quarantine", queue=queue, filter=filter, ids=ids, dry_run=dry_run)

    def purge(
        self,
        queue: str,
        filter: str = "",
        ids: Sequence[str] | None = None,
        *,
        state: str = "dead",
        dry_run: bool = False,
    ) -> Moved:
        return self._move("dlq_purge", queue=queue, filter=filter, ids=ids, state=state, dry_run=dry_run)

    def _move(self, method: str, **values: Any) -> Moved:
        moved = cast("RemoteQueues", self._queues).call(method, **values)
        return Moved(moved["count"], moved["ids"])


def call(queues: Queues, method: str, **values: Any) -> Any:
    """A method of the server that these queues are reached through."""
    return cast("RemoteQueues", queues).call(method, **values)


def address_of(queues: Queues) -> str | None:
    """The server that these queues are reached through, to be shown: without its options, which may hold a token. None
    where the store itself is open."""
    found: object = queues
    return found.address.partition("?")[0] if isinstance(found, RemoteQueues) else None


def following(queues: Queues, site: dict[str, Any]) -> list[Any]:
    """Everybody who follows the topics of a server; ``site``: what it says of itself."""
    return [] if site.get("topics") is None else [*call(queues, "topic_subscribers")]


def dead_letters(queues: Queues, progress: Callable[[int, int], None]) -> DeadLetters:
    """To be moved, wherever they are."""
    if address_of(queues) is None:
        return DeadLetters(queues, progress)
    return cast("DeadLetters", RemoteLetters(queues))


# -- choosing and opening a store --------------------------------------------------------------------------------------

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
            return connect(address, consumer, contact_of(args, os.environ))
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
