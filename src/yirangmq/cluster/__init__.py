"""The same queues on an etcd cluster: a client of etcd, leader election, and a fenced dispatcher per queue.

``Producer`` and ``Consumer`` are for programs that reach etcd themselves. The names below are loaded on first access,
because gRPC is an extra."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yirangmq.cluster.clients import EtcdConsumer as Consumer
    from yirangmq.cluster.clients import Producer
    from yirangmq.cluster.etcd.address import read_address
    from yirangmq.cluster.etcd.client import Etcd

__all__ = [
    "Consumer",
    "Etcd",
    "Producer",
    "read_address",
]
_LATE = {
    "Consumer": ("yirangmq.cluster.clients", "EtcdConsumer"),
    "Etcd": ("yirangmq.cluster.etcd.client", "Etcd"),
    "Producer": ("yirangmq.cluster.clients", "Producer"),
    "read_address": ("yirangmq.cluster.etcd.address", "read_address"),
}

if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, attribute = _LATE[name]
        return getattr(import_module(module), attribute)
