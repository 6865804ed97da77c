"""Feed protocol: topics as bits of a mask, and connections of subscribers. The frames are in ``wire.feed``.

Subscribers connect over unix sockets and TCP. The protocol has no token, so it listens only where the settings say, and
over TCP programs are identified by their address alone. Stored records are rewritten as topic messages. Dialects with
equal masks compare equal, so the bytes for their subscribers are encoded once."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from yirangmq.core.access import FOLLOW, AccessGrant
from yirangmq.core.errors import NotAllowed, QueueError, Retired, StoreDamaged, TooLarge, UnknownClient
from yirangmq.core.topic_filter import Filter, masked
from yirangmq.core.topics import SubscriberState
from yirangmq.protocols.context import Authenticator, RefusedClients
from yirangmq.protocols.listen import peer_process, prepare_tcp, tcp_server, unix_server
from yirangmq.protocols.stream_sender import SendBuffer
from yirangmq.protocols.stream_server import StreamLimits
from yirangmq.topics.cursors import SubscriptionParameters
from yirangmq.topics.live import FROM_FIRST, Subscriber
from yirangmq.topics.ports import DetachedCallback, EncodedRecords, Recovering, Subscribed
from yirangmq.topics.publisher import Publisher
from yirangmq.wire import records as wire_records
from yirangmq.wire.feed import (
    MAX_SEQUENCE,
    FeedDecoder,
    FeedMessage,
    FeedRecoveryComplete,
    FeedRecoveryRequest,
    FeedRecoveryResponse,
    FeedSubscribe,
    FeedSubscribeOk,
    encode,
    topic_message,
)

# -- stored records as topic messages ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeedDialect:
    """Dialect of the feed protocol for topic delivery (``topics.ports``).

    ``topics``: the topics that have a bit, in the order of their bits. ``mask``: the requested bits."""

    topics: tuple[str, ...]
    mask: int
    sends_stored = False
    needs_count = True

    @property
    def approved(self) -> int:
        return self.mask & ((1 << len(self.topics)) - 1)

    def subscribed(self, request: int, about: Subscribed) -> bytes:
        return encode(FeedSubscribeOk(0, self.approved, _capped(about.last)))

    def recovering(self, request: int, about: Recovering) -> bytes:
        start, end = _capped(about.start), _capped(about.end)
        return encode(FeedRecoveryResponse(0, start, end, _capped(about.total or 0)))

    def complete(self, request: int, sequence: int, sent: int, at_ns: int) -> bytes:
        return encode(FeedRecoveryComplete(_capped(sent), at_ns))

    def refused(self, request: int, error: QueueError) -> bytes:
        asked, first = (error.asked, error.first) if isinstance(error, Retired) else (0, 0)
        return encode_refused_recovery(asked, first)

    def progress(self, sequence: int, sent: int, last: int, at_ns: int) -> bytes:
        return b""

    def records(self, batch: EncodedRecords) -> bytes:
        bits = {topic.encode(): 1 << position for position, topic in enumerate(self.topics)}
        view = memoryview(batch.data)
        found: list[bytes] = []
        at = 0
        while at < len(view):
            head = wire_records.read_head(view, at)
            if head is None or not wire_records.is_sound(view, at, head):  # frames have no checksum
                raise StoreDamaged("a record does not hold what was written")
            bit = bits[wire_records.topic_at(view, at, head)]
            start = at + wire_records.HEAD + head.topic_size + head.key_size + head.headers_size
            payload = view[start : at + head.size]
            found.append(topic_message(bit, head.sequence, head.topic_sequence, head.at_ns, payload))
            at += head.size
        return b"".join(found)


def encode_refusal(last: int) -> bytes:
    """Encode the SUOK frame for a subscriber that is refused."""
    return encode(FeedSubscribeOk(1, 0, _capped(last)))


def encode_refused_recovery(asked: int, bound: int) -> bytes:
    """Encode the RECS frame of a refused recovery; start is the requested sequence, end the first or the last stored
    one, whichever is the bound that it exceeds."""
    return encode(FeedRecoveryResponse(1, _capped(asked), _capped(bound), 0))


def _capped(number: int) -> int:
    """Cap a number that is informative only, so that it fits in 32 bits."""
    return min(number, MAX_SEQUENCE)


# -- connections -------------------------------------------------------------------------------------------------------

MAX_SKIPPED_BYTES = 64 * 1024
"""Maximum number of skipped bytes of a connection; a client that sends more speaks a different protocol."""


@dataclass(slots=True)
class FeedServer:
    """Feed protocol server: its open connections, and the set of connections with unsent bytes. Loop thread only."""

    topics: Publisher
    limits: StreamLimits
    authenticator: Authenticator = field(default_factory=Authenticator)
    refused_clients: RefusedClients | None = None
    connections: set["FeedConnection"] = field(default_factory=set)
    dirty: set["FeedConnection"] = field(default_factory=set)
    is_flush_scheduled: bool = False
    accepted: int = 0
    closed_for: dict[str, int] = field(default_factory=dict)

    def flush(self) -> None:
        dirty, self.dirty, self.is_flush_scheduled = self.dirty, set(), False
        for connection in dirty:
            connection.flush()

    def count(self, reason: str) -> None:
        self.closed_for[reason] = self.closed_for.get(reason, 0) + 1

    def refuse(self, peer: str, error: QueueError, program: str = "") -> None:
        """Count a client that has no right to connect, or to follow what it asks for."""
        if self.refused_clients is not None:
            self.refused_clients.add("feed", peer, error, program)

    def check_timeouts(self, now: float) -> None:
        """Disconnect clients that follow nothing and are silent for too long. Called about once per second."""
        for connection in list(self.connections):
            connection.check(now)

    def stop(self) -> None:
        """Begin the drain. A subscriber has no request in flight: its connection stays open until the goodbye."""

    def send_goodbye(self) -> None:
        """Flush and close the connections. The protocol has no goodbye."""
        for connection in list(self.connections):
            connection.close()

    def abort(self) -> None:
        for connection in list(self.connections):
            connection.cut("stopping")

    def describe(self) -> list[dict[str, Any]]:
        return [connection.describe() for connection in self.connections]


class FeedConnection(asyncio.Protocol):
    """Connection of one subscriber; implements ``topics.ports.Line``. Loop thread only, except ``deferred``."""

    def __init__(self, server: FeedServer, trusted: bool) -> None:
        self._server = server
        self._trusted = trusted
        self._sender = SendBuffer(server.limits.write_buffer, server.limits.client_memory, self._mark_dirty, self.cut)
        self._decoder = FeedDecoder(0)
        self._subscriber: Subscriber | None = None
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._grant: AccessGrant | None = None
        self._follows_any = False
        self._since = self._received_at = self._loop.time()
        self._frame_started_at = 0.0
        self.peer = "unix"
        self.send = self._sender.send
        self.deferred = self._sender.deferred
        self.attach = self._sender.attach

    # -- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if len(self._server.connections) >= self._server.limits.connections:
            self._server.count("connections")
            self._transport.close()
            return
        self._sender.start(self._transport)
        self.peer = peer_process(transport) if self._trusted else prepare_tcp(transport)
        self._server.accepted += 1
        self._server.connections.add(self)
        if not self._trusted and not self._server.authenticator.is_open:
            self._grant = self._server.authenticator.find("", self.peer)
            if self._grant is None:
                error = UnknownClient("no program has this address alone", field="programs")
                self._server.refuse(self.peer, error)
                self.fail(error)

    def data_received(self, data: bytes) -> None:
        if self not in self._server.connections or (self._transport is not None and self._transport.is_closing()):
            return
        self._received_at = self._loop.time()
        is_continued = bool(self._decoder.held)
        try:
            for message in self._decoder.feed(data):
                is_continued = False
                self._handle(message)
        except TooLarge:  # subscribers send no topic messages, so the maximum payload is 0
            self.cut("frame")
        if self._decoder.skipped > MAX_SKIPPED_BYTES:
            self.cut("nonsense")
        if not self._decoder.held:
            self._frame_started_at = 0.0
        elif not is_continued:
            self._frame_started_at = self._received_at

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._server.dirty.discard(self)
        self._end_subscription()
        self._transport = None
        self._sender.close()

    def pause_writing(self) -> None:
        self._sender.paused()

    def resume_writing(self) -> None:
        self._sender.resumed()

    # -- requests ------------------------------------------------------------------------------------------------------

    def _handle(self, message: FeedMessage) -> None:
        if isinstance(message, FeedSubscribe):
            self._subscribe(message)
        elif isinstance(message, FeedRecoveryRequest):
            self._recover(message)

    def _subscribe(self, message: FeedSubscribe) -> None:
        """Start a subscription at the head. ``last_seq`` is ignored: the client requests missed records with RECR."""
        topics = self._server.topics
        if self._subscriber is not None:
            return  # already subscribed
        requested = FeedDialect(topics.settings.masked, message.topic_mask)
        dialect = FeedDialect(requested.topics, self._allowed(requested))
        wanted = Filter(masked(dialect.approved, dialect.topics), (), f"mask={dialect.approved}")
        self.peer = f"{self.peer} {message.client_id} {message.name}".rstrip()
        try:
            if requested.approved and not dialect.approved:
                raise NotAllowed("this program may follow none of these topics", field="programs")
            last = topics.ensure_open().feed.log.last
            if last >= MAX_SEQUENCE:
                raise TooLarge("sequences have no room in this layout any more", field="sequence")
            self._subscriber = topics.connect(self, dialect)
            topics.subscribe(
                self._subscriber, SubscriptionParameters(wanted, progress_seconds=0.0), 0, self._on_subscribed
            )
            self._follows_any = dialect.approved != 0
        except NotAllowed as error:
            self._server.refuse(self.peer, error, "" if self._grant is None else self._grant.name)
            self.fail(error)
        except QueueError as error:
            self.fail(error)

    def _allowed(self, requested: FeedDialect) -> int:
        """Return the bits of the requested topics that the program may follow."""
        grant, mask = self._grant, requested.mask
        if grant is None:
            return mask
        topics = enumerate(requested.topics)
        return sum(1 << bit for bit, topic in topics if mask >> bit & 1 and grant.allows(FOLLOW, topic))

    def _on_subscribed(self, error: QueueError | None) -> None:
        if error is not None:
            self.fail(error)

    def _recover(self, message: FeedRecoveryRequest) -> None:
        """Answer RECR with a catch-up, or refuse it. A ``last_seq`` of 0 means the first stored record."""
        subscriber, topics = self._subscriber, self._server.topics
        if subscriber is None:
            self.send(encode_refused_recovery(message.last_seq + 1, 0))
            return
        try:
            topics.recover(subscriber, message.last_seq or FROM_FIRST, "", 0)
        except Retired as error:
            self.send(encode_refused_recovery(error.asked, error.first))
        except QueueError:
            self.send(encode_refused_recovery(message.last_seq + 1, topics.ensure_open().feed.log.last))

    # -- topics.ports.Line ---------------------------------------------------------------------------------------------

    def has_capacity(self, size: int) -> bool:
        return self._sender.has_capacity(size, self._server.topics.settings.buffer_bytes)

    def detach(self, take: DetachedCallback, wake: Callable[[], None]) -> None:
        self._sender.detach(take, wake)

    def fail(self, error: QueueError) -> None:
        """Close the connection. The protocol has no error frame; a new subscriber gets a negative SUOK first."""
        if self._subscriber is None or self._subscriber.state is SubscriberState.CONNECTED:
            self.send(encode_refusal(0))
        self._server.count(error.code)
        self.close()

    def close(self) -> None:
        """Flush, then close the connection."""
        self.flush()
        self._end_subscription()
        if self._transport is not None:
            self._transport.close()

    def cut(self, reason: str) -> None:
        if reason:
            self._server.count(reason)
        self._sender.drop()
        self._end_subscription()
        if self._transport is not None:
            self._transport.abort()

    def _end_subscription(self) -> None:
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            self._server.topics.remove(subscriber)

    def _mark_dirty(self) -> None:
        self._server.dirty.add(self)
        if not self._server.is_flush_scheduled:
            self._server.is_flush_scheduled = True
            self._loop.call_soon(self._server.flush)

    def flush(self) -> None:
        self._sender.flush()

    def check(self, now: float) -> None:
        """Disconnect the client if a frame, or its silence while it follows nothing, exceeds its timeout.

        Like a client that has shown no token, a TCP client that has not subscribed has the time of one frame."""
        limits = self._server.limits
        is_new = self._subscriber is None and not self._trusted
        started_at = self._since if is_new else self._frame_started_at
        if started_at and now - started_at > limits.frame_seconds:
            self.cut("frame")
        elif not self._follows_any and now - self._received_at > limits.idle_seconds:
            self.cut("idle")

    def describe(self) -> dict[str, Any]:
        state = "" if self._subscriber is None else str(self._subscriber.state)
        return {
            "peer": self.peer,
            "bytesHeld": self._decoder.held + self._sender.unsent_bytes,
            "topics": {"state": state},
        }


async def listen_feed_unix(server: FeedServer, path: Path, mode: int = 0o600) -> asyncio.AbstractServer:
    return await unix_server(lambda: FeedConnection(server, True), path, mode, "feed_socket")


async def listen_feed_tcp(server: FeedServer, host: str, port: int) -> asyncio.AbstractServer:
    def make() -> FeedConnection:
        return FeedConnection(server, False)

    return await tcp_server(make, (host, port), None, server.limits.frame_seconds, "feed_tcp")
