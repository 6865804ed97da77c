"""Settings that must fit each other: what is refused although each setting by itself is right."""

import re

from yirangmq.config.addresses import host_and_port, is_local
from yirangmq.config.config import Config
from yirangmq.core.access import check_routes, check_secret, check_token
from yirangmq.core.errors import BadInput
from yirangmq.core.processor import Chain, check_hooks

LONGEST_ADDRESS = 150
"""Of what the other node tells clients; it is in every heartbeat."""
WITNESS = re.compile(r"file:/.*|etcd://[^/?]+/[A-Za-z0-9._-]{1,64}(\?.*)?")


def checked(config: Config) -> Config:
    """Settings that must fit each other."""
    if config.token and config.token_file:
        raise BadInput("stands beside token_file; give one of them", field="token")
    _check_secrets(config)
    if bool(config.tls_cert) != bool(config.tls_key):
        raise BadInput("a certificate and its key go together", field="tls_key" if config.tls_cert else "tls_cert")
    if config.tls_client_ca and not config.tls_cert:
        raise BadInput("certificates of clients need TLS: set tls_cert and tls_key", field="tls_client_ca")
    if any(program.certificate for program in config.programs) and not config.tls_client_ca:
        raise BadInput("a program is known by its certificate: name the authority in tls_client_ca", field="programs")
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
    if config.is_clustered:
        _check_cluster(config)
    _check_reach(config)
    return config


def _check_hooks(queue: str, chain: Chain, allowed: tuple[str, ...]) -> None:
    try:
        check_hooks(chain, allowed)
    except BadInput as error:
        raise BadInput(str(error), field=f"processors.{queue}") from None


def _check_cluster(config: Config) -> None:
    host_and_port(config.cluster_listen, "cluster_listen")
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
    host_and_port(config.pair_peer, "pair_peer")
    host_and_port(config.pair_listen, "pair_listen")
    if bool(config.pair_key) == bool(config.pair_key_file):
        raise BadInput("a pair needs a key: set pair_key_file, or pair_key, and not both", field="pair_key")
    if config.pair_witness and not WITNESS.fullmatch(config.pair_witness):
        raise BadInput("must be file:/PATH or etcd://HOST:PORT,HOST:PORT/NAME", field="pair_witness")
    if len(config.pair_address) > LONGEST_ADDRESS:
        raise BadInput(f"longer than {LONGEST_ADDRESS} characters", field="pair_address")
    if not config.node:
        raise BadInput("a node of a pair needs a name, and the other one another", field="node")


def _check_secrets(config: Config) -> None:
    """Those of the settings themselves; those in files are checked when they are read."""
    if config.token:
        check_token(config.token, "token")
    if config.pair_key:
        check_secret(config.pair_key, "pair_key")
    if config.mq_admin_password:
        check_secret(config.mq_admin_password, "mq_admin_password")


def _check_reach(config: Config) -> None:
    """Other machines reach the server only with a token and only over TLS, unless ``insecure`` says otherwise."""
    if config.insecure:
        return
    has_token = bool(config.token or config.token_file or config.programs)
    has_any = has_token or bool(config.http_tokens)
    ways = "token, token_file or http_tokens"
    for setting, where in exposed(config):
        reached = f"{where} can be reached from other machines"
        if setting == "feed_tcp":
            raise BadInput(f"{reached}: set it to an address of this machine, or say insecure", field=setting)
        if setting in ("http", "stomp") and not has_any:
            raise BadInput(f"{reached}: set {ways}, or say insecure", field=setting)
        if setting == "tcp" and not has_token:
            raise BadInput(f"{reached}: set token or token_file, or say insecure", field=setting)
        if not config.tls_cert:
            raise BadInput(
                f"{reached}, and tokens and messages would be sent in clear text: set tls_cert and tls_key, or say "
                "insecure",
                field=setting,
            )


def exposed(config: Config) -> list[tuple[str, str]]:
    """Settings whose address other machines reach, with that address. Heartbeats of a pair are signed, and hold no
    secret: ``pair_listen`` is not among them."""
    addresses: list[tuple[str, tuple[str, int] | str | None]] = [
        ("feed_tcp", config.feed_address),
        ("tcp", config.tcp_address),
        ("http", config.http_address),
        ("stomp", config.stomp_address),
        ("cluster_listen", config.cluster_address if config.is_clustered else None),
    ]
    found = [(setting, one) for setting, one in addresses if isinstance(one, tuple) and not is_local(one[0])]
    return [(setting, f"{one[0]}:{one[1]}") for setting, one in found]
