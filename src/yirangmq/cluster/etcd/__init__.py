"""A client of etcd: connections, leases, watches, quotas and upkeep.

``Etcd`` and ``read_address`` are loaded on first access, because gRPC is an extra."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yirangmq.cluster.etcd.address import read_address
    from yirangmq.cluster.etcd.client import Etcd

__all__ = [
    "Etcd",
    "read_address",
]
_LATE = {
    "Etcd": "yirangmq.cluster.etcd.client",
    "read_address": "yirangmq.cluster.etcd.address",
}

if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_LATE[name]), name)
