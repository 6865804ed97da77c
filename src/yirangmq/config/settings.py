"""The table of settings: name, default, value reader and description of each.

A new setting is one more field of ``Settings``. It is then a member of the JSON file (``max_frame_bytes``), an
environment variable (``YIRANGMQ_MAX_FRAME_BYTES``) and a flag (``--max-frame-bytes``). ``tools/config_docs.py`` prints
docs/configuration.md from this table. The value readers are those of ``core.setting_types``; the checks across settings
are in ``config.config``."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field
from typing import Any

from yirangmq.config.default_store import DATA_FOLDER
from yirangmq.core.access import ProgramRoute, ProgramRule, TokenRule
from yirangmq.core.alert_settings import AlertSettings
from yirangmq.core.bridges import NewBridge
from yirangmq.core.policy import MAX_BODY, MAX_CONCURRENCY, RESERVE_BYTES
from yirangmq.core.processor import Chain, module_names
from yirangmq.core.setting_types import (
    KEEP_DAYS,
    MIB,
    Reader,
    a_number,
    a_path,
    a_text,
    alert_settings,
    bridge_rules,
    byte_size,
    cursors_or_nothing,
    file_mode,
    host_names,
    one_of,
    origin_names,
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
    zone_name,
)
from yirangmq.core.validation import MAX_SECONDS
from yirangmq.core.webhook import OutgoingNetworks, read_networks

PREFIX = "YIRANGMQ_"
OFF = "off"


def setting(default: Any, read: Reader, about: str, *, shown: str = "", secret: bool = False) -> Any:
    """Return a field of the table. ``shown`` is the default as documentation shows it."""
    return field(default=default, repr=not secret, metadata={"read": read, "about": about, "shown": shown})


def variable(setting: str) -> str:
    return PREFIX + setting.upper()


def flag(setting: str) -> str:
    return "--" + setting.replace("_", "-")


def default_of(setting: "Field[Any]") -> str:
    """Return the default as documentation shows it."""
    shown = str(setting.metadata["shown"] or ("" if setting.default in (MISSING, ()) else setting.default))
    return shown.removesuffix(".0")


SECTIONS = {
    "Store": "data",
    "Addresses, tokens and TLS": "socket",
    "Limits of clients": "max_frame_bytes",
    "HTTP queue": "mq_admin_password",
    "Backpressure and stop": "write_buffer_bytes",
    "Limits of the store, admission control": "disk_low_bytes",
    "Topics": "topics",
    "STOMP": "stomp",
    "Pair of nodes": "pair_peer",
    "Files by date": "files_by_date",
    "Alerts": "alerts",
    "Cluster": "cluster_listen",
    "Logs": "log_level",
}
"""Sections of the table in documentation and help: each title with its first setting."""

# -- the table ---------------------------------------------------------------------------------------------------------

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data: str = setting(
        DATA_FOLDER,
        a_path(default=f"./{DATA_FOLDER}"),
        "folder for the store, the socket and the lock; created if it does not exist",
    )
    file_access: str = setting(
        "owner",
        one_of("owner", "group"),
        "who may use the files, folders and sockets that the server creates: `owner` (modes 0600 and 0700), or its "
        "`group` too (0660 and 2770; docs/security.md)",
    )
    store: str = setting(
        "",
        a_text,
        "where messages are kept: `sqlite:FILE`, `files:FOLDER`, `etcd://HOST,HOST` (docs/cluster.md) or `memory:`",
        shown="sqlite:DATA/queue.db",
    )
    durability: str = setting(
        "full", one_of("full", "os"), "`full`: a reply survives a power cut; `os`: it survives a killed process"
    )
    stay_awake: str = setting(
        "on",
        one_of("on", OFF),
        "spin for up to 0.15 ms between quick requests before blocking, on machines with more than one processor; "
        "`off` saves power",
    )
    socket: str = setting(
        "",
        a_path(OFF, default="DATA/yirangmq.sock"),
        "path of the unix socket, or `off`; every user who may write to the file is trusted",
        shown="DATA/yirangmq.sock",
    )
    socket_mode: int = setting(
        0, file_mode, "file mode of the unix sockets", shown="600, or 660 with file_access group"
    )
    tcp: str = setting(
        OFF, a_text, "`HOST:PORT` to listen at, or `off`; beyond this machine it needs a token and TLS, or `insecure`"
    )
    insecure: bool = setting(
        False,
        yes_or_no,
        "listen beyond this machine without a token, or in clear text, without TLS (docs/security.md); a warning is "
        "logged",
        shown="false",
    )
    token: str = setting(
        "",
        a_text,
        "the token that allows everything: required from TCP clients, accepted from HTTP and STOMP clients; at least "
        "16 characters, as every secret. Prefer `token_file`",
        secret=True,
    )
    token_file: str = setting("", a_path(), "file with the token in its first line")
    http: str = setting(
        "127.0.0.1:8080",
        a_text,
        "the one address to serve HTTP and the dashboard at: `HOST:PORT` or `unix:PATH`, or `off`; beyond this machine "
        "it needs a token and TLS, or `insecure`",
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        origin_names,
        "origins whose pages may use HTTP without a token (docs/security.md), such as `https://app.example`, "
        "separated by commas; `*`: every page in a browser may do everything",
        shown="this server's own",
    )
    http_hosts: tuple[str, ...] = setting(
        (),
        host_names,
        "host names by which clients without a token reach HTTP (docs/security.md), besides localhost and the "
        "addresses it listens on, separated by commas; `*`: any, without protection from DNS rebinding",
    )
    http_tokens: tuple[TokenRule, ...] = setting(
        (), token_rules, "tokens of HTTP and STOMP clients, with their scopes (below); a JSON array", secret=True
    )
    programs: tuple[ProgramRule, ...] = setting(
        (),
        program_rules,
        "allow-list of the programs that may connect over TCP, HTTP and STOMP (docs/dispatch.md); a JSON array",
        secret=True,
    )
    routes: tuple[ProgramRoute, ...] = setting(
        (), route_rules, "which program may send to which: a table of sources and targets; a JSON array"
    )
    webhook_secrets: str = setting(
        "",
        a_path(default="DATA/secrets"),
        "folder with the secrets that sign webhooks, one file for each",
        shown="DATA/secrets",
    )
    outgoing_networks: OutgoingNetworks = setting(  # noqa: RUF009  (it is frozen)
        OutgoingNetworks(),
        read_networks,
        "networks that webhooks and alert sinks may call: `any`, or a list such as `10.0.0.0/8,127.0.0.1`; link-local "
        "addresses (metadata services of clouds) only where the list names them (docs/security.md)",
        shown="any",
    )
    tls_cert: str = setting("", a_path(), "certificate chain for TCP, HTTP and STOMP, a PEM file; with `tls_key`")
    tls_key: str = setting("", a_path(), "its private key, a PEM file")
    tls_client_ca: str = setting(
        "",
        a_path(),
        "authority that signs client certificates, a PEM file; `programs` can be identified by them (docs/security.md)",
    )
    node: str = setting("", plain_name, "the name of this server in replies and logs", shown="the name of the host")
    max_frame_bytes: int = setting(
        16 * MIB,
        byte_size(1024, 1024 * MIB),
        "maximum size of a frame; a larger one is refused when its header is read",
        shown="16MiB",
    )
    max_connections: int = setting(1000, whole_number(1, 100_000), "maximum number of connected clients")
    idle_seconds: float = setting(
        600.0,
        a_number(0.1, 10**7),
        "seconds after which an idle client is disconnected, if it has no request in flight",
    )
    frame_seconds: float = setting(
        30.0,
        a_number(0.1, 10**6),
        "maximum seconds for a frame, a token, a TLS handshake or the head of an HTTP request to arrive",
    )
    http_max_connections: int = setting(10_000, whole_number(1, 1_000_000), "maximum number of open HTTP connections")
    http_idle_seconds: float = setting(
        72.0, a_number(0.1, 10**7), "seconds after which an idle HTTP connection is closed"
    )
    http_rate: float = setting(
        0.0, a_number(0, 10**9), "maximum requests per second of an HTTP client, by its token or address; 0: no limit"
    )
    http_burst: float = setting(
        0.0, a_number(0, 10**9), "maximum burst of an HTTP client in requests; 0: twice `http_rate`"
    )
    mq_admin_password: str = setting(
        "", a_text, "password of the routes `/admin/mq`; without one they are refused", secret=True
    )
    mq_payload_limit: int = setting(
        MIB, byte_size(1, MAX_BODY), "maximum body of a request to the HTTP queue", shown="1MiB"
    )
    mq_set_payload_limit: int = setting(
        0,
        byte_size(1, MAX_BODY),
        "maximum body of set; a queue's own `maxBytes` overrides it",
        shown="mq_payload_limit",
    )
    mq_unique: bool = setting(
        False,
        yes_or_no,
        "default of the policy member `unique`: no two messages of a queue with the same payload",
        shown="false",
    )
    mq_drafting_timeout: float = setting(
        60.0,
        a_number(0.001, MAX_SECONDS),
        "default of the policy member `draftSec`: seconds after which a draft is removed",
    )
    mq_ordered_timeout: float = setting(
        60.0, a_number(0.001, MAX_SECONDS), "default of the policy member `claimSec`: seconds between order and get"
    )
    mq_active_timeout: float = setting(
        300.0,
        a_number(0.001, MAX_SECONDS),
        "default of the policy member `activeSec`: seconds between get and complete or fail",
    )
    mq_concurrency: int | None = setting(
        None,
        whole_number(1, MAX_CONCURRENCY),
        "default of the policy member `concurrency`: messages of a queue that may be claimed or leased at a time",
        shown="unlimited",
    )
    write_buffer_bytes: int = setting(
        MIB,
        byte_size(4096, 1024 * MIB),
        "high-water mark of a client's output in bytes: above it nothing is pushed to the client or read from it",
        shown="1MiB",
    )
    client_memory_bytes: int = setting(
        64 * MIB,
        byte_size(64 * 1024, 64 * 1024 * MIB),
        "bytes of output at which a client that does not read is disconnected",
        shown="64MiB",
    )
    max_pending: int = setting(
        256, whole_number(1, 100_000), "requests in flight at which the server stops reading from a client"
    )
    on_stop: str = setting(
        "keep",
        one_of("keep", "release"),
        "leases when the server stops: `keep` (consumers reconnect and settle them) or `release` (messages are ready "
        "again)",
    )
    stop_seconds: float = setting(
        10.0, a_number(0, 3600), "maximum seconds that a stopping server waits for clients to read their replies"
    )
    disk_low_bytes: int = setting(
        64 * MIB,
        byte_size(0, 2**60),
        "free bytes of the disk below which publishing is refused; consuming continues; 0: never",
        shown="64MiB",
    )
    reserve_bytes: int = setting(
        RESERVE_BYTES,
        byte_size(0, 2**40),
        "disk space in bytes reserved beside the store, so that consuming continues on a full disk; at most about an "
        "eighth of the disk; 0: none",
        shown="16MiB",
    )
    max_store_bytes: int = setting(
        0,
        byte_size(0, 2**60),
        "size of the store in bytes at which publishing is refused; consuming continues; 0: no limit",
        shown="0",
    )
    max_queues: int = setting(
        10_000,
        whole_number(0, 10_000_000),
        "maximum number of queues; further ones are refused, existing ones continue; 0: no limit",
        shown="10000",
    )
    metrics_max_queues: int = setting(
        1000,
        whole_number(0, 1_000_000),
        "maximum number of queues with metric series of their own; the others are summed up as `_other`",
        shown="1000",
    )
    processors: Mapping[str, Chain] = setting(
        None,
        processor_rules,
        "checks of messages before they are stored, by queue, or `*` for all others (docs/processor.md); a queue's "
        "policy overrides it; a JSON object",
        shown="{}",
    )
    hooks: tuple[str, ...] = setting(
        (), module_names, "Python modules and packages whose functions processors may run, separated by commas"
    )
    busy_seconds: float = setting(
        5.0,
        a_number(0.1, 60),
        "maximum seconds that a request waits while another process holds the store's lock; then it is refused with "
        "`store_busy`, and nothing of it is stored",
    )
    backlog_limit: int = setting(
        0, whole_number(0, 2**53), "backlog of a queue above which `health` is degraded; 0: never"
    )
    topics: str = setting(
        "",
        a_path(OFF, default="DATA/topics"),
        "folder for the topic log, created at its first use, or `off`",
        shown="DATA/topics",
    )
    topic_durability: str = setting(
        "full", one_of("full", "os"), "durability of topic records: `full`, or `os` for feeds that prefer speed"
    )
    topic_cursors: str = setting(
        "",
        cursors_or_nothing,
        "store of the cursors of durable subscribers: `file:FILE` or `sqlite:FILE`",
        shown="file:TOPICS/cursors",
    )
    topic_retention_seconds: float = setting(
        604800.0,
        a_number(0, 10**10),
        "seconds for which records are kept; longer while a durable subscriber or bridge needs them; 0: without end",
    )
    topic_retention_bytes: int = setting(
        0,
        byte_size(0, 2**60),
        "size of the log in bytes above which the oldest records are removed; 0: no limit",
        shown="0",
    )
    topic_cursor_seconds: float = setting(
        604800.0,
        a_number(0, 10**10),
        "seconds after which an absent durable subscriber no longer retains records",
    )
    topic_buffer_bytes: int = setting(
        2 * MIB,
        byte_size(4096, 1024 * MIB),
        "bytes of output above which a slow subscriber is served from the log (catch-up)",
        shown="2MiB",
    )
    topic_lag_limit: int = setting(
        1000, whole_number(0, 2**53), "lag of a subscriber in records above which `health` is degraded; 0: never"
    )
    topic_masks: tuple[str, ...] = setting(
        ("TOPIC1", "TOPIC2", "MISC"),
        topic_names,
        "topics with a bit in masks, up to 32 separated by commas: the first has 1, then 2, 4 …",
        shown="TOPIC1,TOPIC2,MISC",
    )
    bridges: tuple[NewBridge, ...] = setting(
        (), bridge_rules, "bridges: topics whose records become messages of queues (docs/bridges.md); a JSON array"
    )
    events_topic: str = setting(
        "", topic_or_nothing, "topic to which the events of queues are published (docs/bridges.md)"
    )
    recovery_workers: int = setting(2, whole_number(1, 64), "number of catch-up threads")
    recovery_bytes_beside_live: int = setting(
        300_000_000,
        whole_number(0, 2**40),
        "rate limit of catch-up in bytes/s, for all subscribers together, while live records are sent; 0: no limit",
    )
    publisher_id: int = setting(1000, whole_number(0, 9999), "number of this server as a publisher of topics")
    feed_socket: str = setting(
        OFF, a_path(OFF), "path of a unix socket for the public feed protocol (docs/feed.md), or `off`"
    )
    feed_tcp: str = setting(
        OFF,
        a_text,
        "`HOST:PORT` for the public feed protocol, or `off`; it has no tokens: where `programs` are listed, those "
        "identified by their address alone may connect; beyond this machine it needs `insecure`",
    )
    stomp: str = setting(
        OFF,
        a_text,
        "`HOST:PORT` to serve STOMP at, or `off`; beyond this machine it needs a token and TLS, or `insecure`",
    )
    pair_peer: str = setting(
        "", a_text, "`HOST:PORT` of the other node's `pair_listen`; this node is then one of a pair (docs/pair.md)"
    )
    pair_listen: str = setting("0.0.0.0:9091", a_text, "`HOST:PORT` for heartbeats (UDP) and the connection test (TCP)")
    pair_key: str = setting(
        "", a_text, "key with which both nodes sign heartbeats. Prefer `pair_key_file`", secret=True
    )
    pair_key_file: str = setting("", a_path(), "file with the key in its first line")
    pair_interval_seconds: float = setting(5.0, a_number(0.05, 3600), "seconds between heartbeats")
    pair_misses: int = setting(3, whole_number(2, 100), "missed heartbeats after which the peer is suspected")
    pair_cooldown_seconds: float = setting(
        30.0, a_number(0, 10**6), "minimum seconds between a switch and the next automatic takeover"
    )
    pair_witness: str = setting(
        "",
        a_text,
        "witness that must confirm a takeover: `file:/PATH` on storage that both nodes reach, or "
        "`etcd://HOST:PORT,HOST:PORT/NAME`",
    )
    pair_address: str = setting(
        "",
        a_text,
        "addresses of this node that the other node names to clients",
        shown="its TCP and HTTP addresses",
    )
    pair_data: str = setting(
        "", a_path(default="DATA/pair"), "folder for the pair's term and history", shown="DATA/pair"
    )
    pair_drain_seconds: float = setting(
        10.0, a_number(0, 3600), "maximum seconds for queues to drain at a manual switch, while publishers wait"
    )
    pair_handover: str = setting(
        "on",
        one_of("on", OFF),
        "before an orderly stop the active node makes the standby active, if that is ready; `off` (or `serve "
        "--no-handover`): it stops, and no node is active",
    )
    files_by_date: str = setting(
        OFF,
        a_path("on", OFF),
        "every accepted message and its outcome as JSON lines by day (docs/files-by-date.md): `on` for DATA/by-date, a "
        "folder, or `off`",
    )
    files_by_date_zone: str = setting(
        "UTC",
        zone_name,
        "time zone whose calendar days are the folders of the files by date: `UTC`, `local` (that of the machine), or "
        "a name such as `Asia/Hong_Kong`",
    )
    files_by_date_days: int = setting(
        KEEP_DAYS,
        whole_number(1, 36_500),
        "days for which files by date are kept; longer while one of their messages is unfinished",
    )
    alerts: AlertSettings = setting(  # noqa: RUF009  (it is frozen)
        AlertSettings(),
        alert_settings,
        "alert rules and their sinks (docs/alerts.md); a JSON object",
        shown="the rules' own limits; to the log",
    )
    cluster_listen: str = setting(
        "127.0.0.1:0",
        a_text,
        "with a store in etcd: `HOST:PORT` to which the other nodes relay connections when this node leads "
        "(docs/cluster.md); on several machines, an address that the others reach",
    )
    log_level: str = setting(
        "info", one_of(*LEVELS), "lowest level that is logged: `debug`, `info`, `warning` or `error`"
    )
    log_format: str = setting(
        "auto",
        one_of("auto", "json", "text"),
        "one JSON document a line, or text for people; `auto`: text if stderr is a terminal, JSON otherwise",
    )
    syslog: str = setting(
        "",
        syslog_or_nothing,
        "also send log lines to the system log: `unix:PATH`, such as `unix:/dev/log`, or `udp:HOST:PORT`",
    )
