"""The settings of a server: one frozen value, read once. Defaults < JSON file < environment < flags.

A setting ``max_frame_bytes`` is the member ``max_frame_bytes`` of the file, the variable ``YIRANGMQ_MAX_FRAME_BYTES``
and the flag ``--max-frame-bytes``. docs/configuration.md is printed from the fields below."""

import re
import socket
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Any

from yirangmq.core.access import TokenRule
from yirangmq.core.alert_settings import AlertSettings
from yirangmq.core.bridges import NewBridge
from yirangmq.core.chain import Chain, check_hooks
from yirangmq.core.dayfiles import KEEP_DAYS
from yirangmq.core.errors import BadInput
from yirangmq.core.inherited import Defaults
from yirangmq.core.names import MAX_SECONDS
from yirangmq.core.policy import MAX_BODY, MOST_AT_WORK
from yirangmq.core.programs import Program, Route, check_routes
from yirangmq.core.settings import (
    MIB,
    Reader,
    a_number,
    a_text,
    alert_settings,
    bridge_rules,
    byte_size,
    file_mode,
    module_names,
    one_of,
    plain_name,
    processor_rules,
    program_rules,
    route_rules,
    syslog_or_nothing,
    token_rules,
    topic_names,
    topic_or_nothing,
    whole_number,
    yes_or_no,
)
from yirangmq.core.strict import kind

PREFIX = "YIRANGMQ_"
FOREIGN = "mq_"
"""Settings that are variables of the HTTP queue whose API we speak; those are read too, and are weaker than ours."""
OFF = "off"
LONGEST_ADDRESS = 150
"""Of what the other node tells clients; it is in every heartbeat."""
WITNESS = re.compile(r"file:/.*|etcd://[^/?]+/[A-Za-z0-9._-]{1,64}(\?.*)?")
LEVELS = ("debug", "info", "warning", "error")


def _setting(default: Any, read: Reader, about: str, *, shown: str = "", secret: bool = False) -> Any:
    """``shown`` is the default as people should see it."""
    return field(default=default, repr=not secret, metadata={"read": read, "about": about, "shown": shown})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    data: str = _setting(
        "yirang-data", a_text, "folder for the store, the socket and the lock; made if it is not there"
    )
    store: str = _setting(
        "",
        a_text,
        "where messages are kept: `sqlite:FILE`, `files:FOLDER`, `etcd://HOST,HOST` (docs/cluster.md) or `memory:`",
        shown="sqlite:DATA/queue.db",
    )
    durability: str = _setting(
        "full", one_of("full", "os"), "`full`: a reply survives a power cut; `os`: it survives a killed process"
    )
    socket: str = _setting(
        "",
        a_text,
        "path of the unix socket, or `off`; whoever may write the file is trusted",
        shown="DATA/yirangmq.sock",
    )
    socket_mode: int = _setting(0o660, file_mode, "file mode of the unix socket", shown="660")
    tcp: str = _setting(
        OFF, a_text, "`HOST:PORT` to listen at, or `off`; beyond this machine it needs a token, or `insecure`"
    )
    insecure: bool = _setting(False, yes_or_no, "listen beyond this machine without a token", shown="false")
    token: str = _setting(
        "",
        a_text,
        "what TCP clients must show, and HTTP and STOMP clients that may do everything; rather in a file",
        secret=True,
    )
    token_file: str = _setting("", a_text, "file with the token; its first line counts")
    http: str = _setting(
        "127.0.0.1:8080",
        a_text,
        "`HOST:PORT` or `unix:PATH` to serve HTTP at, or `off`; beyond this machine it needs a token, or `insecure`",
    )
    http_tokens: tuple[TokenRule, ...] = _setting(
        (), token_rules, "what HTTP and STOMP clients may show, and do with it (below); a JSON array", secret=True
    )
    programs: tuple[Program, ...] = _setting(
        (),
        program_rules,
        "the programs that may come over TCP, HTTP and STOMP, and no others (docs/dispatch.md); a JSON array",
        secret=True,
    )
    routes: tuple[Route, ...] = _setting(
        (), route_rules, "which of them sends to which: the table of sources and targets; a JSON array"
    )
    webhook_secrets: str = _setting(
        "", a_text, "folder with the secrets that webhooks are signed with, a file each", shown="DATA/secrets"
    )
    tls_cert: str = _setting("", a_text, "certificate chain for TCP, HTTP and STOMP, a PEM file; with `tls_key`")
    tls_key: str = _setting("", a_text, "its private key, a PEM file")
    node: str = _setting("", plain_name, "the name of this server in replies and logs", shown="the name of the host")
    max_frame_bytes: int = _setting(
        16 * MIB, byte_size(1024, 1024 * MIB), "largest frame a client may send; refused by its head", shown="16MiB"
    )
    max_connections: int = _setting(1000, whole_number(1, 100_000), "clients connected at the same time")
    idle_seconds: float = _setting(
        600.0, a_number(0.1, 10**7), "a client that waits for nothing and says nothing for so long is closed"
    )
    frame_seconds: float = _setting(
        30.0,
        a_number(0.1, 10**6),
        "a frame, the first one with its token, a TLS handshake or the head of an HTTP request may take so long",
    )
    http_max_connections: int = _setting(10_000, whole_number(1, 1_000_000), "HTTP connections open at the same time")
    http_idle_seconds: float = _setting(
        72.0, a_number(0.1, 10**7), "an HTTP connection between two requests is closed after so long"
    )
    http_rate: float = _setting(
        0.0, a_number(0, 10**9), "requests a second of one HTTP client, by its token or its address; 0: no limit"
    )
    http_burst: float = _setting(
        0.0, a_number(0, 10**9), "requests an HTTP client may make at once within its rate; 0: those of two seconds"
    )
    mq_admin_password: str = _setting(
        "", a_text, "what `/admin` of the HTTP document's API asks for; without one it is closed", secret=True
    )
    mq_payload_limit: int = _setting(MIB, byte_size(1, MAX_BODY), "largest body of a request to that API", shown="1MiB")
    mq_set_payload_limit: int = _setting(
        0,
        byte_size(1, MAX_BODY),
        "the same for set; a queue with a `maxBytes` of its own has the last word",
        shown="mq_payload_limit",
    )
    mq_unique: bool = _setting(
        False,
        yes_or_no,
        "no two messages of a queue may have the same payload, where its policy does not say",
        shown="false",
    )
    mq_drafting_timeout: float = _setting(
        60.0, a_number(0.001, MAX_SECONDS), "seconds a message may be a draft, where the queue's policy does not say"
    )
    mq_ordered_timeout: float = _setting(
        60.0, a_number(0.001, MAX_SECONDS), "seconds between order and get, where the queue's policy does not say"
    )
    mq_active_timeout: float = _setting(
        300.0,
        a_number(0.001, MAX_SECONDS),
        "seconds between get and complete or fail, where the queue's policy does not say",
    )
    mq_concurrency: int | None = _setting(
        None,
        whole_number(1, MOST_AT_WORK),
        "messages of a queue that may be at work at the same time, where its policy does not say",
        shown="unlimited",
    )
    write_buffer_bytes: int = _setting(
        MIB,
        byte_size(4096, 1024 * MIB),
        "bytes waiting for a client past which nothing is pushed to it or read from it, until it reads",
        shown="1MiB",
    )
    client_memory_bytes: int = _setting(
        64 * MIB,
        byte_size(64 * 1024, 64 * 1024 * MIB),
        "bytes waiting for a client past which it is closed",
        shown="64MiB",
    )
    max_pending: int = _setting(
        256, whole_number(1, 100_000), "requests of one client not yet answered past which nothing more is read from it"
    )
    on_stop: str = _setting(
        "keep",
        one_of("keep", "release"),
        "leases when the server stops: `keep` (a consumer that comes again settles them) or `release` (back in line)",
    )
    stop_seconds: float = _setting(
        10.0, a_number(0, 3600), "a stopping server waits so long for clients to read answers"
    )
    disk_low_bytes: int = _setting(
        64 * MIB,
        byte_size(0, 2**60),
        "free bytes of the store's disk below which publishing is refused, and consuming goes on; 0: never",
        shown="64MiB",
    )
    max_store_bytes: int = _setting(
        0,
        byte_size(0, 2**60),
        "bytes in use of the store past which publishing is refused, and consuming goes on; 0: no limit",
        shown="0",
    )
    processors: Mapping[str, Chain] = _setting(
        None,
        processor_rules,
        "by queue, or `*` for every other: what messages pass before they are stored (docs/processor.md), where the "
        "queue's policy does not say; a JSON object",
        shown="{}",
    )
    hooks: tuple[str, ...] = _setting(
        (), module_names, "Python modules and packages whose functions processors may run, with commas between"
    )
    backlog_limit: int = _setting(
        0, whole_number(0, 2**53), "waiting messages of a queue past which `health` says degraded; 0: never"
    )
    topics: str = _setting(
        "", a_text, "folder for the log of the topics, made when it is first used, or `off`", shown="DATA/topics"
    )
    topic_durability: str = _setting(
        "full", one_of("full", "os"), "the same for records of topics; `os` is for feeds that prefer speed"
    )
    topic_cursors: str = _setting(
        "",
        a_text,
        "where durable subscribers' cursors are kept: `file:FILE` or `sqlite:FILE`",
        shown="file:TOPICS/cursors",
    )
    topic_retention_seconds: float = _setting(
        604800.0, a_number(0, 10**10), "records are kept for so long, and longer if somebody needs them; 0: for ever"
    )
    topic_retention_bytes: int = _setting(
        0, byte_size(0, 2**60), "bytes of the log past which the oldest records go first; 0: no limit", shown="0"
    )
    topic_cursor_seconds: float = _setting(
        604800.0,
        a_number(0, 10**10),
        "a durable subscriber that was not heard of for so long holds the log back no longer",
    )
    topic_buffer_bytes: int = _setting(
        2 * MIB,
        byte_size(4096, 1024 * MIB),
        "bytes waiting for a subscriber past which it is sent the rest from the log",
        shown="2MiB",
    )
    topic_lag_limit: int = _setting(
        1000, whole_number(0, 2**53), "records a subscriber may be behind before `health` says degraded; 0: any number"
    )
    topic_masks: tuple[str, ...] = _setting(
        ("TOPIC1", "TOPIC2", "MISC"),
        topic_names,
        "topics that have a bit in masks, up to 32 with commas between: that of the first is 1, then 2, 4 …",
        shown="TOPIC1,TOPIC2,MISC",
    )
    bridges: tuple[NewBridge, ...] = _setting(
        (), bridge_rules, "topics that feed queues (docs/bridges.md); a JSON array"
    )
    events_topic: str = _setting(
        "", topic_or_nothing, "the topic in which the events of queues are told (docs/bridges.md)"
    )
    recovery_workers: int = _setting(2, whole_number(1, 64), "threads that send history to subscribers")
    recovery_bytes_beside_live: int = _setting(
        300_000_000,
        whole_number(0, 2**40),
        "bytes of history a second, to all subscribers together, while live records pass; 0: as fast as they are read",
    )
    publisher_id: int = _setting(1000, whole_number(0, 9999), "the number of this server as a publisher of topics")
    feed_socket: str = _setting(
        OFF, a_text, "path of a unix socket for subscribers that speak the six frames of docs/feed.md, or `off`"
    )
    feed_tcp: str = _setting(
        OFF, a_text, "`HOST:PORT` for such subscribers, or `off`; they show no token: other machines need `insecure`"
    )
    stomp: str = _setting(
        OFF, a_text, "`HOST:PORT` to serve STOMP at, or `off`; beyond this machine it needs a token, or `insecure`"
    )
    pair_peer: str = _setting(
        "", a_text, "`HOST:PORT` of the other node's `pair_listen`; this node is then one of a pair (docs/pair.md)"
    )
    pair_listen: str = _setting(
        "0.0.0.0:9091", a_text, "`HOST:PORT` for heartbeats (UDP) and the test of the connection (TCP)"
    )
    pair_key: str = _setting("", a_text, "what both nodes sign heartbeats with; rather in a file", secret=True)
    pair_key_file: str = _setting("", a_text, "file with that key; its first line counts")
    pair_interval_seconds: float = _setting(5.0, a_number(0.05, 3600), "seconds between heartbeats")
    pair_misses: int = _setting(3, whole_number(2, 100), "heartbeats missed before the peer is looked into")
    pair_cooldown_seconds: float = _setting(
        30.0, a_number(0, 10**6), "after a switch no takeover for so long, unless ordered"
    )
    pair_witness: str = _setting(
        "",
        a_text,
        "a third party to ask before a takeover: `file:/PATH` on storage that both nodes reach, or "
        "`etcd://HOST:PORT,HOST:PORT/NAME`",
    )
    pair_address: str = _setting(
        "",
        a_text,
        "addresses of this node for clients, as the other one tells them",
        shown="its TCP and HTTP addresses",
    )
    pair_data: str = _setting("", a_text, "folder for the pair's term and history", shown="DATA/pair")
    pair_drain_seconds: float = _setting(
        10.0, a_number(0, 3600), "at a switch by hand queues may take so long to run empty, while publishers wait"
    )
    files_by_date: str = _setting(
        OFF,
        a_text,
        "every accepted message and its outcome as JSON lines by day (docs/files-by-date.md): `on` for DATA/by-date, a "
        "folder, or `off`",
    )
    files_by_date_days: int = _setting(
        KEEP_DAYS, whole_number(1, 36_500), "days before today whose files are kept; longer where a message waits"
    )
    alerts: AlertSettings = _setting(  # noqa: RUF009  (it is frozen)
        AlertSettings(),
        alert_settings,
        "what is watched, and who is told (docs/alerts.md); a JSON object",
        shown="the rules' own limits; to the log",
    )
    cluster_listen: str = _setting(
        "127.0.0.1:0",
        a_text,
        "with a store in etcd: `HOST:PORT` of this node at which the other nodes pass calls on to it "
        "(docs/cluster.md); on several machines an address that the others reach",
    )
    log_level: str = _setting("info", one_of(*LEVELS), "what is logged: `debug`, `info`, `warning` or `error`")
    log_format: str = _setting("json", one_of("json", "text"), "one JSON document a line, or text for people")
    syslog: str = _setting(
        "", syslog_or_nothing, "where log lines go as well: `unix:PATH`, such as `unix:/dev/log`, or `udp:HOST:PORT`"
    )

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:{self.data}/queue.db"

    @property
    def is_clustered(self) -> bool:
        """The store is in etcd, and other nodes may serve it too."""
        return self.store_url.startswith("etcd:")

    @property
    def secrets_folder(self) -> str:
        return self.webhook_secrets or f"{self.data}/secrets"

    @property
    def socket_path(self) -> str:
        """ "" is off."""
        return "" if self.socket == OFF else self.socket or f"{self.data}/yirangmq.sock"

    @property
    def tcp_address(self) -> tuple[str, int] | None:
        return None if self.tcp in ("", OFF) else _host_and_port(self.tcp, "tcp")

    @property
    def http_address(self) -> tuple[str, int] | str | None:
        """Host and port, or the path of a unix socket, or nothing."""
        if self.http in ("", OFF):
            return None
        if self.http.startswith("unix:"):
            return self.http.removeprefix("unix:")
        return _host_and_port(self.http, "http")

    @property
    def inherited(self) -> Defaults:
        """What the policies of queues leave open."""
        return Defaults(
            unique=self.mq_unique,
            draft_ms=round(self.mq_drafting_timeout * 1000),
            claim_ms=round(self.mq_ordered_timeout * 1000),
            active_ms=round(self.mq_active_timeout * 1000),
            concurrency=self.mq_concurrency,
            set_body=self.mq_set_payload_limit or self.mq_payload_limit,
            chains=self.processors or {},
            hooks=self.hooks,
        )

    @property
    def topics_folder(self) -> str:
        """ "" is off."""
        if self.topics == OFF or (self.is_clustered and not self.topics):
            return ""
        return self.topics or f"{self.data}/topics"

    @property
    def cursors_url(self) -> str:
        return self.topic_cursors or f"file:{self.topics_folder}/cursors"

    @property
    def feed_path(self) -> str:
        """ "" is off."""
        return "" if self.feed_socket == OFF else self.feed_socket

    @property
    def feed_address(self) -> tuple[str, int] | None:
        return None if self.feed_tcp in ("", OFF) else _host_and_port(self.feed_tcp, "feed_tcp")

    @property
    def stomp_address(self) -> tuple[str, int] | None:
        return None if self.stomp in ("", OFF) else _host_and_port(self.stomp, "stomp")

    @property
    def day_files_folder(self) -> str:
        """ "" is off."""
        return {OFF: "", "": "", "on": f"{self.data}/by-date"}.get(self.files_by_date, self.files_by_date)

    @property
    def pair_peer_address(self) -> tuple[str, int] | None:
        return _host_and_port(self.pair_peer, "pair_peer") if self.pair_peer else None

    @property
    def pair_listen_address(self) -> tuple[str, int]:
        return _host_and_port(self.pair_listen, "pair_listen")

    @property
    def cluster_address(self) -> tuple[str, int]:
        return _host_and_port(self.cluster_listen, "cluster_listen")

    @property
    def pair_folder(self) -> str:
        return self.pair_data or f"{self.data}/pair"

    @property
    def alerts_folder(self) -> str:
        return f"{self.data}/alerts"

    @property
    def node_name(self) -> str:
        plain = "".join(c if c.isalnum() and c.isascii() else "-" for c in socket.gethostname())[:40]
        return self.node or plain.strip("-") or "node"


def variable(setting: str) -> str:
    return PREFIX + setting.upper()


def flag(setting: str) -> str:
    return "--" + setting.replace("_", "-")


def default_of(setting: "Field[Any]") -> str:
    """The default as people should see it."""
    shown = str(setting.metadata["shown"] or ("" if setting.default in (MISSING, ()) else setting.default))
    return shown.removesuffix(".0")


def load(document: object, env: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """The settings in force. ``flags`` are by name of the setting; those not given are None."""
    if not isinstance(document, Mapping):
        raise BadInput(f"must be a JSON object, not {kind(document)}", field="config")
    known = {setting.name: setting for setting in fields(Config)}
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name not in known:
            raise BadInput(f"is not a setting; {_hint(str(name), known)}", field=str(name))
        found[name] = _read(known[name], value, name)
    found |= _foreign(known, env)
    variables = {variable(name): name for name in known}
    for text, value in env.items():
        if text in variables:
            found[variables[text]] = _read(known[variables[text]], value, text)
        elif text.startswith(PREFIX) and get_close_matches(text, variables, 1, 0.9):
            raise BadInput(f"is not a setting; {_hint(text, variables)}", field=text)
    for name, given in flags.items():
        if given is not None:
            found[name] = _read(known[name], given, flag(name))
    return checked(Config(**found))


def _foreign(known: "Mapping[str, Field[Any]]", env: Mapping[str, str]) -> dict[str, Any]:
    """Variables of the HTTP queue whose API we speak; an empty one says nothing."""
    found = {
        name: _read(setting, env[name.upper()], name.upper())
        for name, setting in known.items()
        if name.startswith(FOREIGN) and env.get(name.upper())
    }
    if env.get("MQ_DATA"):
        found["data"] = env["MQ_DATA"]
    if env.get("MQ_HOST") or env.get("MQ_PORT"):
        address = f"{env.get('MQ_HOST') or 'localhost'}:{env.get('MQ_PORT') or 8080}"
        found["http"] = _read(known["http"], address, "MQ_HOST")
    return found


def _hint(name: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def _read(setting: "Field[Any]", value: object, field: str) -> Any:
    try:
        return setting.metadata["read"](value)
    except ValueError as error:
        raise BadInput(str(error), field=field) from None


def checked(config: Config) -> Config:
    """Settings that must fit each other."""
    if config.token and config.token_file:
        raise BadInput("stands beside token_file; give one of them", field="token")
    if bool(config.tls_cert) != bool(config.tls_key):
        raise BadInput("a certificate and its key go together", field="tls_key" if config.tls_cert else "tls_cert")
    if config.write_buffer_bytes > config.client_memory_bytes:
        raise BadInput("must not be larger than client_memory_bytes", field="write_buffer_bytes")
    if not config.topics_folder and (config.feed_path or config.feed_address):
        raise BadInput("is off: there is nothing to feed", field="topics")
    if not config.topics_folder and (config.bridges or config.events_topic):
        raise BadInput("is off, and bridges and events_topic need them", field="topics")
    if config.topic_buffer_bytes > config.client_memory_bytes:
        raise BadInput("must not be larger than client_memory_bytes", field="topic_buffer_bytes")
    if config.max_store_bytes and config.store_url.startswith("memory:"):
        raise BadInput("a store in memory has no size on disk; give queues a quota instead", field="max_store_bytes")
    ways = (config.tcp_address, config.socket_path, config.http_address, config.stomp_address)
    if not any(ways):
        raise BadInput("is off, and so are tcp, http and stomp: nobody could reach the server", field="socket")
    for queue, chain in (config.processors or {}).items():
        _check_hooks(queue, chain, config.hooks)
    _check_pair(config)
    check_routes(config.programs, config.routes)
    has_token = bool(config.token or config.token_file or config.insecure or config.programs)
    if config.is_clustered:
        _check_cluster(config)
    _check_reach(config.feed_address, "feed_tcp", config.insecure, "it to an address of this machine")
    _check_reach(config.tcp_address, "tcp", has_token, "token or token_file")
    _check_reach(config.http_address, "http", has_token or bool(config.http_tokens), "token, token_file or http_tokens")
    _check_reach(
        config.stomp_address, "stomp", has_token or bool(config.http_tokens), "token, token_file or http_tokens"
    )
    return config


def _check_hooks(queue: str, chain: Chain, allowed: tuple[str, ...]) -> None:
    try:
        check_hooks(chain, allowed)
    except BadInput as error:
        raise BadInput(str(error), field=f"processors.{queue}") from None


def _check_cluster(config: Config) -> None:
    _host_and_port(config.cluster_listen, "cluster_listen")
    if config.topics_folder:
        raise BadInput("are kept on one machine's disk; a store in etcd has queues alone", field="topics")
    if config.pair_peer:
        raise BadInput("a store in etcd has as many nodes as you like; a pair is for two disks", field="pair_peer")
    if config.day_files_folder:
        raise BadInput("are files of one machine; a store in etcd is every node's", field="files_by_date")
    if config.max_store_bytes:
        raise BadInput("etcd has its own, --quota-backend-bytes; say it as ?quota=BYTES", field="max_store_bytes")


def _check_pair(config: Config) -> None:
    if not config.pair_peer:
        return
    _host_and_port(config.pair_peer, "pair_peer")
    _host_and_port(config.pair_listen, "pair_listen")
    if bool(config.pair_key) == bool(config.pair_key_file):
        raise BadInput("a pair needs a key: set pair_key_file, or pair_key, and not both", field="pair_key")
    if config.pair_witness and not WITNESS.fullmatch(config.pair_witness):
        raise BadInput("must be file:/PATH or etcd://HOST:PORT,HOST:PORT/NAME", field="pair_witness")
    if len(config.pair_address) > LONGEST_ADDRESS:
        raise BadInput(f"longer than {LONGEST_ADDRESS} characters", field="pair_address")
    if not config.node:
        raise BadInput("a node of a pair needs a name, and the other one another", field="node")


def _check_reach(address: tuple[str, int] | str | None, field: str, is_guarded: bool, ways: str) -> None:
    """Beyond this machine only with a token."""
    if isinstance(address, tuple) and not (is_guarded or _is_local(address[0])):
        where = f"{address[0]}:{address[1]}"
        raise BadInput(f"{where} can be reached from other machines: set {ways}, or say insecure", field=field)


def _host_and_port(text: str, field: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise BadInput(f"{text!r} is not HOST:PORT, such as 127.0.0.1:7411", field=field)
    return host, int(port)


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
