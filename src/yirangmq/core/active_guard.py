"""Whether this server may work: the one question that every door asks before it changes anything or hands anything out.

A server without a pair always may. One of a pair may while it is the active node. Knows: what to say if not. Does not
know: why, or since when."""

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
