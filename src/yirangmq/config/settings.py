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
from yirangmq.core.processor import Chain
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
    module_names,
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


# -- the table ---------------------------------------------------------------------------------------------------------

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data: str = setting(
        DATA_FOLDER,
        a_path(default=f"./{DATA_FOLDER}"),
        "folder for the store, the socket and the lock; made if it is not there",
    )
    file_access: str = setting(
        "owner",
        one_of("owner", "group"),
        "who may use the files, folders and sockets that the server makes: `owner` (modes 0600 and 0700), or its "
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
        "between quick requests look out for the next one instead of sleeping, for 0.15 ms at most, where there is "
        "more than one processor; `off` saves power",
    )
    socket: str = setting(
        "",
        a_path(OFF, default="DATA/yirangmq.sock"),
        "path of the unix socket, or `off`; whoever may write the file is trusted",
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
        "what TCP clients must show, and HTTP and STOMP clients that may do everything, at least 16 characters (as "
        "every secret); rather in a file",
        secret=True,
    )
    token_file: str = setting("", a_path(), "file with the token; its first line counts")
    http: str = setting(
        "127.0.0.1:8080",
        a_text,
        "`HOST:PORT` or `unix:PATH` to serve HTTP at, or `off`; beyond this machine it needs a token and TLS, or "
        "`insecure`",
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        origin_names,
        "origins whose pages may use HTTP without a token (docs/security.md), such as `https://app.example`, with "
        "commas between them; `*`: any page that a browser shows may do everything here",
        shown="this server's own",
    )
    http_hosts: tuple[str, ...] = setting(
        (),
        host_names,
        "host names by which clients without a token reach HTTP (docs/security.md), besides localhost and the "
        "addresses it listens on, with commas between them; `*`: any, without protection from DNS rebinding",
    )
    http_tokens: tuple[TokenRule, ...] = setting(
        (), token_rules, "what HTTP and STOMP clients may show, and do with it (below); a JSON array", secret=True
    )
    programs: tuple[ProgramRule, ...] = setting(
        (),
        program_rules,
        "the programs that may come over TCP, HTTP and STOMP, and no others (docs/dispatch.md); a JSON array",
        secret=True,
    )
    routes: tuple[ProgramRoute, ...] = setting(
        (), route_rules, "which of them sends to which: the table of sources and targets; a JSON array"
    )
    webhook_secrets: str = setting(
        "",
        a_path(default="DATA/secrets"),
        "folder with the secrets that webhooks are signed with, a file each",
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
        "authority that signed the certificates of clients, a PEM file: `programs` may be known by them "
        "(docs/security.md)",
    )
    node: str = setting("", plain_name, "the name of this server in replies and logs", shown="the name of the host")
    max_frame_bytes: int = setting(
        16 * MIB, byte_size(1024, 1024 * MIB), "largest frame a client may send; refused by its head", shown="16MiB"
    )
    max_connections: int = setting(1000, whole_number(1, 100_000), "clients connected at the same time")
    idle_seconds: float = setting(
        600.0, a_number(0.1, 10**7), "a client that waits for nothing and says nothing for so long is closed"
    )
    frame_seconds: float = setting(
        30.0,
        a_number(0.1, 10**6),
        "a frame, the first one with its token, a TLS handshake or the head of an HTTP request may take so long",
    )
    http_max_connections: int = setting(10_000, whole_number(1, 1_000_000), "HTTP connections open at the same time")
    http_idle_seconds: float = setting(
        72.0, a_number(0.1, 10**7), "an HTTP connection between two requests is closed after so long"
    )
    http_rate: float = setting(
        0.0, a_number(0, 10**9), "requests a second of one HTTP client, by its token or its address; 0: no limit"
    )
    http_burst: float = setting(
        0.0, a_number(0, 10**9), "requests an HTTP client may make at once within its rate; 0: those of two seconds"
    )
    mq_admin_password: str = setting(
        "", a_text, "what `/admin` of the HTTP queue's API asks for; without one it is closed", secret=True
    )
    mq_payload_limit: int = setting(MIB, byte_size(1, MAX_BODY), "largest body of a request to that API", shown="1MiB")
    mq_set_payload_limit: int = setting(
        0,
        byte_size(1, MAX_BODY),
        "the same for set; a queue with a `maxBytes` of its own has the last word",
        shown="mq_payload_limit",
    )
    mq_unique: bool = setting(
        False,
        yes_or_no,
        "no two messages of a queue may have the same payload, where its policy does not say",
        shown="false",
    )
    mq_drafting_timeout: float = setting(
        60.0, a_number(0.001, MAX_SECONDS), "seconds a message may be a draft, where the queue's policy does not say"
    )
    mq_ordered_timeout: float = setting(
        60.0, a_number(0.001, MAX_SECONDS), "seconds between order and get, where the queue's policy does not say"
    )
    mq_active_timeout: float = setting(
        300.0,
        a_number(0.001, MAX_SECONDS),
        "seconds between get and complete or fail, where the queue's policy does not say",
    )
    mq_concurrency: int | None = setting(
        None,
        whole_number(1, MAX_CONCURRENCY),
        "messages of a queue that may be at work at the same time, where its policy does not say",
        shown="unlimited",
    )
    write_buffer_bytes: int = setting(
        MIB,
        byte_size(4096, 1024 * MIB),
        "bytes waiting for a client past which nothing is pushed to it or read from it, until it reads",
        shown="1MiB",
    )
    client_memory_bytes: int = setting(
        64 * MIB,
        byte_size(64 * 1024, 64 * 1024 * MIB),
        "bytes waiting for a client past which it is closed",
        shown="64MiB",
    )
    max_pending: int = setting(
        256, whole_number(1, 100_000), "requests of one client not yet answered past which nothing more is read from it"
    )
    on_stop: str = setting(
        "keep",
        one_of("keep", "release"),
        "leases when the server stops: `keep` (a consumer that comes again settles them) or `release` (back in line)",
    )
    stop_seconds: float = setting(
        10.0, a_number(0, 3600), "a stopping server waits so long for clients to read answers"
    )
    disk_low_bytes: int = setting(
        64 * MIB,
        byte_size(0, 2**60),
        "free bytes of the store's disk below which publishing is refused, and consuming goes on; 0: never",
        shown="64MiB",
    )
    reserve_bytes: int = setting(
        RESERVE_BYTES,
        byte_size(0, 2**40),
        "disk space reserved beside the store, about an eighth of the disk at most: on a full disk consuming goes on "
        "with it; 0: none",
        shown="16MiB",
    )
    max_store_bytes: int = setting(
        0,
        byte_size(0, 2**60),
        "bytes in use of the store past which publishing is refused, and consuming goes on; 0: no limit",
        shown="0",
    )
    max_queues: int = setting(
        10_000,
        whole_number(0, 10_000_000),
        "queues past which no new one is made, and those that exist go on; 0: no limit",
        shown="10000",
    )
    metrics_max_queues: int = setting(
        1000,
        whole_number(0, 1_000_000),
        "queues that have series of their own in `/v1/metrics`; the others are summed up as `_other`",
        shown="1000",
    )
    processors: Mapping[str, Chain] = setting(
        None,
        processor_rules,
        "by queue, or `*` for every other: what messages pass before they are stored (docs/processor.md), where the "
        "queue's policy does not say; a JSON object",
        shown="{}",
    )
    hooks: tuple[str, ...] = setting(
        (), module_names, "Python modules and packages whose functions processors may run, with commas between"
    )
    busy_seconds: float = setting(
        5.0,
        a_number(0.1, 60),
        "seconds that a request waits while another process holds the store's lock; then it is refused with "
        "`store_busy`, and nothing of it is stored",
    )
    backlog_limit: int = setting(
        0, whole_number(0, 2**53), "waiting messages of a queue past which `health` says degraded; 0: never"
    )
    topics: str = setting(
        "",
        a_path(OFF, default="DATA/topics"),
        "folder for the log of the topics, made when it is first used, or `off`",
        shown="DATA/topics",
    )
    topic_durability: str = setting(
        "full", one_of("full", "os"), "the same for records of topics; `os` is for feeds that prefer speed"
    )
    topic_cursors: str = setting(
        "",
        cursors_or_nothing,
        "where durable subscribers' cursors are kept: `file:FILE` or `sqlite:FILE`",
        shown="file:TOPICS/cursors",
    )
    topic_retention_seconds: float = setting(
        604800.0, a_number(0, 10**10), "records are kept for so long, and longer if somebody needs them; 0: for ever"
    )
    topic_retention_bytes: int = setting(
        0, byte_size(0, 2**60), "bytes of the log past which the oldest records go first; 0: no limit", shown="0"
    )
    topic_cursor_seconds: float = setting(
        604800.0,
        a_number(0, 10**10),
        "a durable subscriber that was not heard of for so long holds the log back no longer",
    )
    topic_buffer_bytes: int = setting(
        2 * MIB,
        byte_size(4096, 1024 * MIB),
        "bytes waiting for a subscriber past which it is sent the rest from the log",
        shown="2MiB",
    )
    topic_lag_limit: int = setting(
        1000, whole_number(0, 2**53), "records a subscriber may be behind before `health` says degraded; 0: any number"
    )
    topic_masks: tuple[str, ...] = setting(
        ("TOPIC1", "TOPIC2", "MISC"),
        topic_names,
        "topics that have a bit in masks, up to 32 with commas between: that of the first is 1, then 2, 4 …",
        shown="TOPIC1,TOPIC2,MISC",
    )
    bridges: tuple[NewBridge, ...] = setting(
        (), bridge_rules, "topics that feed queues (docs/bridges.md); a JSON array"
    )
    events_topic: str = setting(
        "", topic_or_nothing, "the topic in which the events of queues are told (docs/bridges.md)"
    )
    recovery_workers: int = setting(2, whole_number(1, 64), "threads that send history to subscribers")
    recovery_bytes_beside_live: int = setting(
        300_000_000,
        whole_number(0, 2**40),
        "bytes of history a second, to all subscribers together, while live records pass; 0: as fast as they are read",
    )
    publisher_id: int = setting(1000, whole_number(0, 9999), "the number of this server as a publisher of topics")
    feed_socket: str = setting(
        OFF, a_path(OFF), "path of a unix socket for subscribers that speak the six frames of docs/feed.md, or `off`"
    )
    feed_tcp: str = setting(
        OFF,
        a_text,
        "`HOST:PORT` for such subscribers, or `off`; they show no token: where `programs` are listed, those known by "
        "their address alone may connect; other machines need `insecure`",
    )
    stomp: str = setting(
        OFF,
        a_text,
        "`HOST:PORT` to serve STOMP at, or `off`; beyond this machine it needs a token and TLS, or `insecure`",
    )
    pair_peer: str = setting(
        "", a_text, "`HOST:PORT` of the other node's `pair_listen`; this node is then one of a pair (docs/pair.md)"
    )
    pair_listen: str = setting(
        "0.0.0.0:9091", a_text, "`HOST:PORT` for heartbeats (UDP) and the test of the connection (TCP)"
    )
    pair_key: str = setting("", a_text, "what both nodes sign heartbeats with; rather in a file", secret=True)
    pair_key_file: str = setting("", a_path(), "file with that key; its first line counts")
    pair_interval_seconds: float = setting(5.0, a_number(0.05, 3600), "seconds between heartbeats")
    pair_misses: int = setting(3, whole_number(2, 100), "heartbeats missed before the peer is looked into")
    pair_cooldown_seconds: float = setting(
        30.0, a_number(0, 10**6), "after a switch no takeover for so long, unless ordered"
    )
    pair_witness: str = setting(
        "",
        a_text,
        "a third party to ask before a takeover: `file:/PATH` on storage that both nodes reach, or "
        "`etcd://HOST:PORT,HOST:PORT/NAME`",
    )
    pair_address: str = setting(
        "",
        a_text,
        "addresses of this node for clients, as the other one tells them",
        shown="its TCP and HTTP addresses",
    )
    pair_data: str = setting(
        "", a_path(default="DATA/pair"), "folder for the pair's term and history", shown="DATA/pair"
    )
    pair_drain_seconds: float = setting(
        10.0, a_number(0, 3600), "at a switch by hand queues may take so long to run empty, while publishers wait"
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
        KEEP_DAYS, whole_number(1, 36_500), "days before today whose files are kept; longer where a message waits"
    )
    alerts: AlertSettings = setting(  # noqa: RUF009  (it is frozen)
        AlertSettings(),
        alert_settings,
        "what is watched, and who is told (docs/alerts.md); a JSON object",
        shown="the rules' own limits; to the log",
    )
    cluster_listen: str = setting(
        "127.0.0.1:0",
        a_text,
        "with a store in etcd: `HOST:PORT` of this node at which the other nodes pass calls on to it "
        "(docs/cluster.md); on several machines an address that the others reach",
    )
    log_level: str = setting("info", one_of(*LEVELS), "what is logged: `debug`, `info`, `warning` or `error`")
    log_format: str = setting(
        "auto",
        one_of("auto", "json", "text"),
        "one JSON document a line, or text for people; `auto`: text if stderr is a terminal, JSON otherwise",
    )
    syslog: str = setting(
        "", syslog_or_nothing, "where log lines go as well: `unix:PATH`, such as `unix:/dev/log`, or `udp:HOST:PORT`"
    )
