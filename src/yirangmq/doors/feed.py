"""The feed door: subscribers that speak the six frames of the public layout, over unix sockets and TCP at once.

Knows: their frames, the publisher. Does not know: our own protocol. Nobody shows a token here, so it listens where it
was told to and nowhere else. ``docs/feed.md`` says what is understood and answered."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from yirangmq.core.errors import QueueError, Retired, TooLarge
from yirangmq.core.topic_filter import Filter, masked
from yirangmq.core.topics import ClientState
from yirangmq.doors.listening import peer_process, prepare_tcp, tcp_server, unix_server
from yirangmq.doors.sender import Sender
from yirangmq.doors.sockets import Limits
from yirangmq.topics import dialect_layout as layout
from yirangmq.topics.cursors import Ask
from yirangmq.topics.dialect_public import Public, not_kept, refused
from yirangmq.topics.live import Subscriber
from yirangmq.topics.ports import Take
from yirangmq.topics.publisher import Publisher

MOST_NONSENSE = 64 * 1024
"""Bytes that belong to no frame; whoever sends more speaks something else."""


@dataclass(slots=True)
class FeedDoor:
    topics: Publisher
    limits: Limits
    connections: set["FeedConnection"] = field(default_factory=set)
    dirty: set["FeedConnection"] = field(default_factory=set)
    is_planned: bool = False
    accepted: int = 0
    closed_for: dict[str, int] = field(default_factory=dict)

    def flush(self) -> None:
        dirty, self.dirty, self.is_planned = self.dirty, set(), False
        for connection in dirty:
            connection.flush()

    def count(self, reason: str) -> None:
        self.closed_for[reason] = self.closed_for.get(reason, 0) + 1

    def describe(self) -> list[dict[str, Any]]:
        return [connection.describe() for connection in self.connections]


class FeedConnection(asyncio.Protocol):
    """One subscriber, and its ``topics.ports.Line``."""

    def __init__(self, door: FeedDoor, trusted: bool) -> None:
        self._door = door
        self._trusted = trusted
        self._sender = Sender(door.limits.write_buffer, door.limits.client_memory, self._mark, self.cut)
        self._scanner = layout.Scanner(0)
        self._subscriber: Subscriber | None = None
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.peer = "unix"
        self.send = self._sender.send
        self.owed = self._sender.owed
        self.give_back = self._sender.give_back

    # -- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if len(self._door.connections) >= self._door.limits.connections:
            self._door.count("connections")
            self._transport.close()
            return
        self._sender.begin(self._transport)
        self.peer = peer_process(transport) if self._trusted else prepare_tcp(transport)
        self._door.accepted += 1
        self._door.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self not in self._door.connections:
            return
        try:
            for message in self._scanner.feed(data):
                self._handle(message)
        except TooLarge:  # a topic message is none of a subscriber's frames
            self.cut("frame")
        if self._scanner.passed > MOST_NONSENSE:
            self.cut("nonsense")

    def connection_lost(self, error: Exception | None) -> None:
        self._door.connections.discard(self)
        self._door.dirty.discard(self)
        self._leave()
        self._transport = None
        self._sender.end()

    def pause_writing(self) -> None:
        self._sender.paused()

    def resume_writing(self) -> None:
        self._sender.resumed()

    # -- what it asks for -----------------------------------------------------------------------------------------

    def _handle(self, message: layout.Message) -> None:
        if isinstance(message, layout.Subscription):
            self._subscribe(message)
        elif isinstance(message, layout.RecoveryRequest):
            self._recover(message)

    def _subscribe(self, message: layout.Subscription) -> None:
        """``last_seq`` is not looked at: what it missed it asks for."""
        topics = self._door.topics
        if self._subscriber is not None:
            return  # it follows already
        dialect = Public(topics.settings.masked, message.topic_mask)
        wanted = Filter(masked(dialect.approved, dialect.topics), (), f"mask={dialect.approved}")
        self.peer = f"{self.peer} {message.client_id} {message.name}".rstrip()
        try:
            last = topics.opened().feed.log.last
            if last >= layout.MOST:
                raise TooLarge("sequences have no room in this layout any more", field="sequence")
            self._subscriber = topics.connect(self, dialect)
            topics.subscribe(self._subscriber, Ask(wanted, progress_seconds=0.0), 0, self._told)
        except QueueError as error:
            self.fail(error)

    def _told(self, error: QueueError | None) -> None:
        if error is not None:
            self.fail(error)

    def _recover(self, message: layout.RecoveryRequest) -> None:
        """Answered while it is ONLINE, as this layout has it; otherwise a recovery is under way already. 0 is the
        beginning, wherever that is now."""
        subscriber, topics = self._subscriber, self._door.topics
        if subscriber is None or subscriber.state is not ClientState.ONLINE:
            return
        after = message.last_seq or topics.opened().feed.log.first - 1
        try:
            topics.recover(subscriber, after, "", 0)
        except Retired as error:
            self.send(not_kept(error.asked, error.first))
        except QueueError:
            self.send(not_kept(after + 1, topics.opened().feed.log.last))

    # -- its line -------------------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        return self._sender.has_room(size, self._door.topics.settings.buffer_bytes)

    def lend(self, take: Take, wake: Callable[[], None]) -> None:
        self._sender.lend(take, wake)

    def fail(self, error: QueueError) -> None:
        """There are no words for why; one that has just come is told that it cannot follow."""
        if self._subscriber is None or self._subscriber.state is ClientState.CONNECTED:
            self.send(refused(0))
        self._door.count(error.code)
        self.shut()

    def shut(self) -> None:
        """Send what is there, then close."""
        self.flush()
        self._leave()
        if self._transport is not None:
            self._transport.close()

    def cut(self, reason: str) -> None:
        if reason:
            self._door.count(reason)
        self._sender.drop()
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            self._door.topics.leave(subscriber)

    def _mark(self) -> None:
        self._door.dirty.add(self)
        if not self._door.is_planned:
            self._door.is_planned = True
            self._loop.call_soon(self._door.flush)

    def flush(self) -> None:
        self._sender.flush()

    def describe(self) -> dict[str, Any]:
        state = "" if self._subscriber is None else str(self._subscriber.state)
        return {"peer": self.peer, "bytesHeld": self._scanner.held + self._sender.waiting, "topics": {"state": state}}


async def listen_feed_unix(door: FeedDoor, path: Path, mode: int = 0o600) -> asyncio.AbstractServer:
    return await unix_server(lambda: FeedConnection(door, True), path, mode, "feed_socket")


async def listen_feed_tcp(door: FeedDoor, host: str, port: int) -> asyncio.AbstractServer:
    def make() -> FeedConnection:
        return FeedConnection(door, False)

    return await tcp_server(make, (host, port), None, door.limits.frame_seconds, "feed_tcp")
