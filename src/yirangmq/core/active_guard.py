"""Active guard: the check that a protocol makes before it changes or delivers anything.

A server without other nodes always passes. A node of a failover pair passes while it is the active one, a node of a
cluster while it leads the store. During a switch by hand the node finishes messages in flight but takes no new ones.

The guard returns the refusal to send to the client. ``failover.node`` and ``stores.etcd.store`` decide whether the node
is active."""

from typing import Protocol

from yirangmq.core.errors import NotActive

MAX_NORMAL_SWITCHES = 5
"""Switches of a node of a pair in a day that are normal. More than this count as flapping, and an operator should
examine the pair."""


class ActiveGuard(Protocol):
    """Active guard of a server: whether this node may change or deliver messages."""

    @property
    def is_on(self) -> bool: ...

    @property
    def accepts_new(self) -> bool:
        """True if new messages are accepted. False during a switch by hand, while messages in flight are finished."""

    def refusal(self) -> NotActive:
        """Return the error to send to a client while the node is not active."""


class AlwaysActive:
    """Guard of a server without other nodes: it always passes."""

    is_on = True
    accepts_new = True

    def refusal(self) -> NotActive:
        return NotActive("this server is not active")


def check(guard: ActiveGuard) -> None:
    if not guard.is_on:
        raise guard.refusal()
