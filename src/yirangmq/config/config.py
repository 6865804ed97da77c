"""Settings in force: addresses and paths derived from them, cross-checks, and their loading.

Sources, the weakest first: defaults, the JSON file, the variables of the HTTP queue's API (``MQ_…``), the variables
``YIRANGMQ_…``, flags. An unknown name or a bad value raises ``BadInput`` under the name by which it was given. An
unknown environment variable is refused only if it resembles a setting's name.

``checked`` refuses combinations of settings that are invalid although each setting is valid. The main rule: an address
that other machines reach needs a token and TLS, unless ``insecure`` is set."""

import re
import socket
from collections.abc import Mapping
from dataclasses import Field, fields
from ipaddress import ip_address
from typing import Any

from yirangmq.config.default_store import STORE_FILE
from yirangmq.config.settings import OFF, PREFIX, Settings, flag, variable
from yirangmq.core.access import check_routes, check_secret, check_token
from yirangmq.core.errors import BadInput
from yirangmq.core.policy import Defaults
from yirangmq.core.processor import Chain, check_hooks
from yirangmq.core.validation import kind, nearest

# -- addresses ---------------------------------------------------------------------------------------------------------


def host_and_port(text: str, field: str, *, form: str = "HOST:PORT") -> tuple[str, int]:
    """Split an address. ``form`` names in an error what the setting may be."""
    if "," in text:
        raise BadInput(f"{text!r} is not one address; give one {form}, such as 127.0.0.1:7411", field=field)
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if port.isdecimal() and int(port) > 65535:
        raise BadInput(f"{text!r}: the port must be at most 65535", field=field)
    if not colon or not port.isdecimal():
        raise BadInput(f"{text!r} is not {form}, such as 127.0.0.1:7411", field=field)
    return host, int(port)


def is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


# -- derived values ----------------------------------------------------------------------------------------------------


class Config(Settings):
    __slots__ = ()

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:{self.data}/{STORE_FILE}"

    @property
    def is_clustered(self) -> bool:
        """True if the store is in etcd. Other nodes may serve it too."""
        return self.store_url.startswith("etcd:")

    @property
    def secrets_folder(self) -> str:
        return self.webhook_secrets or f"{self.data}/secrets"

    @property
    def socket_path(self) -> str:
        """Path of the unix socket, or "" if it is off."""
        return "" if self.socket == OFF else self.socket or f"{self.data}/yirangmq.sock"

    @property
    def unix_mode(self) -> int:
        """File mode of unix sockets."""
        return self.socket_mode or (0o660 if self.file_access == "group" else 0o600)

    @property
    def tcp_address(self) -> tuple[str, int] | None:
        return None if self.tcp in ("", OFF) else host_and_port(self.tcp, "tcp")

    @property
    def http_address(self) -> tuple[str, int] | str | None:
        """Host and port, or the path of a unix socket, or None if HTTP is off."""
        if self.http in ("", OFF):
            return None
        if self.http.startswith("unix:"):
            return self.http.removeprefix("unix:")
        return host_and_port(self.http, "http", form="HOST:PORT or unix:PATH")

    @property
    def policy_defaults(self) -> Defaults:
        """Defaults for members that the policy of a queue does not set."""
        return Defaults(
            unique=self.mq_unique,
            draft_ms=round(self.mq_drafting_timeout * 1000),
            claim_ms=round(self.mq_ordered_timeout * 1000),
            active_ms=round(self.mq_active_timeout * 1000),
            concurrency=self.mq_concurrency,
            set_body=self.mq_set_payload_limit or self.mq_payload_limit,
            chains=self.processors or {},
            hooks=self.hooks,
            max_queues=self.max_queues,
        )

    @property
    def topics_folder(self) -> str:
        """Folder of the topic log, or "" if topics are off."""
        if self.topics == OFF or (self.is_clustered and not self.topics):
            return ""
        return self.topics or f"{self.data}/topics"

    @property
    def cursors_url(self) -> str:
        return self.topic_cursors or f"file:{self.topics_folder}/cursors"

    @property
    def feed_path(self) -> str:
        """Path of the unix socket of the feed protocol, or "" if it is off."""
        return "" if self.feed_socket == OFF else self.feed_socket

    @property
    def feed_address(self) -> tuple[str, int] | None:
        return None if self.feed_tcp in ("", OFF) else host_and_port(self.feed_tcp, "feed_tcp")

    @property
    def stomp_address(self) -> tuple[str, int] | None:
        return None if self.stomp in ("", OFF) else host_and_port(self.stomp, "stomp")

    @property
    def day_files_folder(self) -> str:
        """Folder of the files by date, or "" if they are off."""
        return {OFF: "", "": "", "on": f"{self.data}/by-date"}.get(self.files_by_date, self.files_by_date)

    @property
    def pair_peer_address(self) -> tuple[str, int] | None:
        return host_and_port(self.pair_peer, "pair_peer") if self.pair_peer else None

    @property
    def pair_listen_address(self) -> tuple[str, int]:
        return host_and_port(self.pair_listen, "pair_listen")

    @property
    def cluster_address(self) -> tuple[str, int]:
        return host_and_port(self.cluster_listen, "cluster_listen")

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


# -- settings that must fit each other ---------------------------------------------------------------------------------

MAX_ADDRESS_CHARS = 150
"""Maximum length of ``pair_address``, in characters, because every heartbeat carries it."""
WITNESS = re.compile(r"file:/.*|etcd://[^/?]+/[A-Za-z0-9._-]{1,64}(\?.*)?")


def checked(config: Config) -> Config:
    """Return the settings, or raise ``BadInput`` if two of them do not fit each other."""
    if config.token and config.token_file:
        raise BadInput("is set together with token_file; set only one", field="token")
    _check_secrets(config)
    if bool(config.tls_cert) != bool(config.tls_key):
        raise BadInput("a certificate and its key go together", field="tls_key" if config.tls_cert else "tls_cert")
    if config.tls_client_ca and not config.tls_cert:
        raise BadInput("certificates of clients need TLS: set tls_cert and tls_key", field="tls_client_ca")
    if any(program.certificate for program in config.programs) and not config.tls_client_ca:
        raise BadInput("programs with a certificate need the authority in tls_client_ca", field="programs")
    if config.write_buffer_bytes > config.client_memory_bytes:
        raise BadInput("must not be larger than client_memory_bytes", field="write_buffer_bytes")
    if not config.topics_folder and (config.feed_path or config.feed_address):
        raise BadInput("is off, and the feed needs topics", field="topics")
    if not config.topics_folder and (config.bridges or config.events_topic):
        raise BadInput("is off, and bridges and events_topic need them", field="topics")
    if config.topic_buffer_bytes > config.client_memory_bytes:
        raise BadInput("must not be larger than client_memory_bytes", field="topic_buffer_bytes")
    if config.max_store_bytes and config.store_url.startswith("memory:"):
        raise BadInput("a store in memory has no size on disk; give queues a quota instead", field="max_store_bytes")
    ways = (config.tcp_address, config.socket_path, config.http_address, config.stomp_address)
    if not any(ways):
        raise BadInput("is off, and so are tcp, http and stomp: no client could reach the server", field="socket")
    for queue, chain in (config.processors or {}).items():
        _check_hooks(queue, chain, config.hooks)
    _check_pair(config)
    check_routes(config.programs, config.routes)
    if config.is_clustered:
        _check_cluster(config)
    _check_exposure(config)
    return config


def _check_hooks(queue: str, chain: Chain, allowed: tuple[str, ...]) -> None:
    try:
        check_hooks(chain, allowed)
    except BadInput as error:
        raise BadInput(str(error), field=f"processors.{queue}") from None


def _check_cluster(config: Config) -> None:
    host_and_port(config.cluster_listen, "cluster_listen")
    if config.topics_folder:
        raise BadInput("are kept on one machine's disk; a store in etcd has only queues", field="topics")
    if config.pair_peer:
        raise BadInput("a store in etcd has any number of nodes; a pair is for two disks", field="pair_peer")
    if config.max_store_bytes:
        raise BadInput("etcd has its own limit, --quota-backend-bytes; set it as ?quota=BYTES", field="max_store_bytes")


def _check_pair(config: Config) -> None:
    if not config.pair_peer:
        return
    host_and_port(config.pair_peer, "pair_peer")
    host_and_port(config.pair_listen, "pair_listen")
    if bool(config.pair_key) == bool(config.pair_key_file):
        raise BadInput("a pair needs a key: set pair_key_file, or pair_key, and not both", field="pair_key")
    if config.pair_witness and not WITNESS.fullmatch(config.pair_witness):
        raise BadInput("must be file:/PATH or etcd://HOST:PORT,HOST:PORT/NAME", field="pair_witness")
    if len(config.pair_address) > MAX_ADDRESS_CHARS:
        raise BadInput(f"longer than {MAX_ADDRESS_CHARS} characters", field="pair_address")
    if not config.node:
        raise BadInput("the two nodes of a pair need different names", field="node")


def _check_secrets(config: Config) -> None:
    """Check the secrets that are given as settings. Secrets in files are checked when they are read."""
    if config.token:
        check_token(config.token, "token")
    if config.pair_key:
        check_secret(config.pair_key, "pair_key")
    if config.mq_admin_password:
        check_secret(config.mq_admin_password, "mq_admin_password")


def _check_exposure(config: Config) -> None:
    """Refuse an address that other machines reach without a token or without TLS, unless ``insecure`` is set."""
    if config.insecure:
        return
    has_token = bool(config.token or config.token_file or config.programs)
    has_any = has_token or bool(config.http_tokens)
    ways = "token, token_file or http_tokens"
    for setting, where in exposed(config):
        reached = f"{where} can be reached from other machines"
        if setting == "feed_tcp":
            raise BadInput(f"{reached}: set it to an address of this machine, or set insecure", field=setting)
        if setting in ("http", "stomp") and not has_any:
            raise BadInput(f"{reached}: set {ways}, or set insecure", field=setting)
        if setting == "tcp" and not has_token:
            raise BadInput(f"{reached}: set token or token_file, or set insecure", field=setting)
        if not config.tls_cert:
            raise BadInput(
                f"{reached}, and tokens and messages would be sent in clear text: set tls_cert and tls_key, or set "
                "insecure",
                field=setting,
            )


def exposed(config: Config) -> list[tuple[str, str]]:
    """Return the settings with an address that other machines reach, and that address.

    ``pair_listen`` is not among them, because heartbeats of a pair are signed and hold no secret."""
    addresses: list[tuple[str, tuple[str, int] | str | None]] = [
        ("feed_tcp", config.feed_address),
        ("tcp", config.tcp_address),
        ("http", config.http_address),
        ("stomp", config.stomp_address),
        ("cluster_listen", config.cluster_address if config.is_clustered else None),
    ]
    found = [(setting, one) for setting, one in addresses if isinstance(one, tuple) and not is_local(one[0])]
    return [(setting, f"{one[0]}:{one[1]}") for setting, one in found]


# -- loading -----------------------------------------------------------------------------------------------------------

MQ_PREFIX = "mq_"
"""Prefix of settings that are also read from variables of the HTTP queue's API. ``YIRANGMQ_…`` overrides those."""


def load(document: object, env: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """Return the settings in force. ``flags`` is by name of the setting; flags that are not given are None."""
    if not isinstance(document, Mapping):
        raise BadInput(f"must be a JSON object, not {kind(document)}", field="config")
    known = {setting.name: setting for setting in fields(Config)}
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name not in known:
            raise BadInput(f"is not a setting; {_hint(str(name), known)}", field=str(name))
        found[name] = _read(known[name], value, name)
    found |= _mq_variables(known, env)
    variables = {variable(name): name for name in known}
    for text, value in env.items():
        if text in variables:
            found[variables[text]] = _read(known[variables[text]], value, text)
        elif text.startswith(PREFIX) and nearest(text, variables, 0.9):
            raise BadInput(f"is not a setting; {_hint(text, variables)}", field=text)
    for name, given in flags.items():
        if given is not None:
            found[name] = _read(known[name], given, flag(name))
    return checked(Config(**found))


def _mq_variables(known: "Mapping[str, Field[Any]]", env: Mapping[str, str]) -> dict[str, Any]:
    """Read the variables of the HTTP queue's API. An empty variable counts as not set."""
    found = {
        name: _read(setting, env[name.upper()], name.upper())
        for name, setting in known.items()
        if name.startswith(MQ_PREFIX) and env.get(name.upper())
    }
    if env.get("MQ_DATA"):
        found["data"] = _read(known["data"], env["MQ_DATA"], "MQ_DATA")
    if env.get("MQ_HOST") or env.get("MQ_PORT"):
        address = f"{env.get('MQ_HOST') or 'localhost'}:{env.get('MQ_PORT') or 8080}"
        found["http"] = _read(known["http"], address, "MQ_HOST")
    return found


def _hint(name: str, known: Mapping[str, object]) -> str:
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"


def _read(setting: "Field[Any]", value: object, field: str) -> Any:
    try:
        return setting.metadata["read"](value)
    except ValueError as error:
        raise BadInput(str(error), field=field) from None
