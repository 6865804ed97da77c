"""What a client's coroutines stand on: one connection (``Line``), where connections come from (``Wires``), and how long
it tries (``Terms``). Over asyncio they wait; over blocking sockets they block (``client.blocking``)."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from yirangmq.client.address import Address
from yirangmq.client.core import News, Reply, Slot, Stream
from yirangmq.client.feed import Feed
from yirangmq.wire import messages
from yirangmq.wire.frames import Kind


class Line(Protocol):
    """One connection. Every method raises ``Lost`` when it is gone."""

    process: int
    """The process that opened it: a child must not speak on its parent's connection."""

    @property
    def is_alive(self) -> bool: ...

    def greeted(self, welcome: messages.Welcome) -> None:
        """The server has said what it takes."""

    async def ask(self, kind: Kind, body: msgspec.Struct) -> Slot:
        """Send a request; ``answer`` waits for what comes back."""

    async def answer(self, slot: Slot, seconds: float) -> Reply:
        """A server that does not answer in time is lost."""

    def forget(self, slot: Slot) -> None:
        """Nobody waits for it any more."""

    async def subscribe(self, stream: Stream, body: messages.Subscribe) -> int: ...

    def cancelled(self, number: int) -> None: ...

    def follow(self, feed: Feed) -> None:
        """From now on records of topics go there."""

    def taken(self) -> None:
        """Some of the feed was taken: there is room for more."""

    def glance(self) -> None:
        """Hear what has come, without waiting; also that it is gone."""

    async def listen(self, one: News, seconds: float) -> bool:
        """Wait until there is something for it; False if there was nothing in all this time."""

    async def close(self) -> None: ...


class Wires(Protocol):
    """What a face brings: connections, sleep, and a turn-taking among callers."""

    def turn(self) -> AbstractAsyncContextManager[Any]: ...

    async def dial(self, address: Address, seconds: float, patience: float) -> Line:
        """``OSError`` if there is nobody within ``seconds``; ``patience``: how long there may be no room to send."""

    async def speaks_tls(self, address: Address, seconds: float) -> bool:
        """Whether a TLS handshake succeeds at this port; no certificate is verified and nothing is sent."""

    async def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """How a client behaves: whom it calls, by which name, and how long it tries."""

    addresses: tuple[Address, ...]
    name: str
    timeout: float
    retries: int
    silence: float | None = None
    """Seconds after which the client gives up on a server that says nothing at all, counted over all its tries; None:
    ``retries`` alone decide. Commands have it, so that each of them ends."""
