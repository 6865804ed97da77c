"""Active guard: the check that a protocol makes before it changes or delivers anything.

A server without other nodes always passes. A node of a failover pair passes while it is the active one, a node of a
cluster while it leads the store. During a switch by hand the node finishes messages in flight but takes no new ones.

The guard gives the refusal to send to the client. Why the node is not active is known to ``failover.node`` and
``stores.etcd.store``."""

from typing import Protocol

from yirangmq.core.errors import NotActive

MOST_SWITCHES = 5
"""Of a node of a pair in a day; more, and somebody should look at the pair."""


class Duty(Protocol):
    @property
    def is_on(self) -> bool: ...

    @property
    def takes_in(self) -> bool:
        """New messages are welcome. Not while the work is being handed over: then only what is there is finished."""

    def refusal(self) -> NotActive:
        """What somebody who wants work done is told while it is not."""


class Always:
    """Of a server that is alone."""

    is_on = True
    takes_in = True

    def refusal(self) -> NotActive:
        return NotActive("this server is not active")


def check(duty: Duty) -> None:
    if not duty.is_on:
        raise duty.refusal()
