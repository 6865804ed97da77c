"""The settings in force, and what follows from them: folders in the data folder, addresses, the name of the node."""

import socket

from yirangmq.config.addresses import host_and_port
from yirangmq.config.setting import OFF
from yirangmq.config.table import Settings
from yirangmq.core.policy import Defaults


class Config(Settings):
    __slots__ = ()

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
    def unix_mode(self) -> int:
        """Of unix sockets."""
        return self.socket_mode or (0o660 if self.file_access == "group" else 0o600)

    @property
    def tcp_address(self) -> tuple[str, int] | None:
        return None if self.tcp in ("", OFF) else host_and_port(self.tcp, "tcp")

    @property
    def http_address(self) -> tuple[str, int] | str | None:
        """Host and port, or the path of a unix socket, or nothing."""
        if self.http in ("", OFF):
            return None
        if self.http.startswith("unix:"):
            return self.http.removeprefix("unix:")
        return host_and_port(self.http, "http")

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
            max_queues=self.max_queues,
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
        return None if self.feed_tcp in ("", OFF) else host_and_port(self.feed_tcp, "feed_tcp")

    @property
    def stomp_address(self) -> tuple[str, int] | None:
        return None if self.stomp in ("", OFF) else host_and_port(self.stomp, "stomp")

    @property
    def day_files_folder(self) -> str:
        """ "" is off."""
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
