"""Reconnecting connection, pending requests, and a pipeline of requests in order.

A request connects if need be, is sent and awaited. After a loss the client reconnects, to the next address if there
is one, and sends the request again, a bounded number of times. ``Unreachable`` means that the last request may or
may not have been executed. Ids assigned by the client keep a repeated publish from being stored twice.

The client leaves a standby for the active node that the standby names. It skips a node with a lower term than one
seen before. With several addresses, or a limit on silence, it pings a silent server and then leaves it. It detects a
TLS mismatch and raises it immediately, because no retry can repair it.

The pipeline keeps several requests unanswered and preserves their order: after a loss all unanswered ones are sent
again before the next. Everything is written as coroutines over the ports of ``client.transport``."""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from yirangmq.client.address import ServerAddress, parse_named_address
from yirangmq.client.session import ConnectionLost, Reply, Slot
from yirangmq.client.transport import ClientOptions, Transport, TransportFactory
from yirangmq.core.backoff import Backoff
from yirangmq.core.errors import NotActive, QueueError, TlsFailed, Unavailable, Unreachable
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind

# -- pending requests --------------------------------------------------------------------------------------------------


class PendingRequest:
    """Pending request: one request until its reply, over as many connections as needed."""

    __slots__ = ("body", "kind", "losses", "reply", "sent", "slot", "transport")

    def __init__(self, kind: FrameKind, body: msgspec.Struct) -> None:
        self.kind = kind
        self.body = body
        self.transport: Transport | None = None
        self.slot: Slot | None = None
        self.sent = 0
        self.losses = 0
        self.reply: Reply | None = None

    async def send(self, transport: Transport) -> None:
        if self.slot is not None and self.slot.has_data and not self.slot.is_retryable:
            return
        self.slot, self.transport = None, transport
        self.sent += 1
        try:
            self.slot = await transport.request(self.kind, self.body)
        except ConnectionLost as lost:
            self.sent -= lost.is_unsent
            raise

    async def answer(self, seconds: float, silence_limit: float) -> Reply:
        """Wait for the reply, up to ``seconds``.

        A server that is silent for ``silence_limit`` seconds is pinged. A CALL may take longer than ``seconds`` as long
        as the server answers pings."""
        slot, transport = self.slot, self.transport
        if slot is None or transport is None:
            raise ConnectionLost("not sent yet")
        if silence_limit < seconds or self.kind is FrameKind.CALL:
            try:
                await self._ping_until_data(transport, slot, seconds, silence_limit)
            except BaseException:
                transport.abandon(slot)
                raise
            seconds = silence_limit
        reply = await transport.answer(slot, seconds)
        if reply.kind == FrameKind.ERROR and isinstance(error := reply.error(), Unavailable):
            raise ConnectionLost(str(error)) from error  # the request was not executed, so a retry may succeed
        return reply

    async def _ping_until_data(self, transport: Transport, slot: Slot, seconds: float, silence_limit: float) -> None:
        until = time.monotonic() + seconds
        while not await transport.wait_for_data(slot, silence_limit) and (
            self.kind is FrameKind.CALL or time.monotonic() < until
        ):
            await transport.answer(await transport.request(FrameKind.PING, messages.Empty()), silence_limit)

    def value(self, wanted: FrameKind) -> Any:
        """Return the reply's value if it is of the kind ``wanted``. Raise the error that the server sent instead."""
        if self.reply is None:
            raise QueueError("not answered yet")
        return self.reply.wanted(wanted)

    @property
    def resent(self) -> bool:
        """True if an earlier send may have reached the server although its reply was lost."""
        return self.sent > 1


# -- connection --------------------------------------------------------------------------------------------------------

BACKOFF = Backoff(first=0.05, limit=2.0, jitter=0.5)
"""Backoff between two attempts to reach the server, in seconds."""
FAILOVER_BACKOFF = replace(BACKOFF, limit=1.0)
"""Backoff with several addresses, in seconds: the node that takes over is found within 5 s."""
SILENCE_LIMIT_SECONDS = 3.0
"""Silence, in seconds, after which the client pings the server if there is another address; also the timeout of that
ping. A frozen node, or one with a cut cable, is left after twice that."""
MAX_ADDRESSES = 16
SILENCE_DIVISOR = 4
"""Parts of ``ClientOptions.silence``: one quarter passes before the server is pinged and one before the ping times out.
The rest is for reconnecting."""
PROBE_SECONDS = 3.0
"""Timeout of the test whether a port speaks TLS, in seconds."""


class ReconnectingConnection:
    """Reconnecting connection to a server, or to a group of servers given by several addresses.

    ``_transport`` is the open connection, or None. ``_dialing`` lets one caller at a time connect; the others wait for
    it."""

    def __init__(self, factory: TransportFactory, options: ClientOptions, random: Callable[[], float]) -> None:
        self.options = options
        self._factory = factory
        self._random = random
        self._transport: Transport | None = None
        self._next = 0
        self.lock = factory.lock
        self._dialing = factory.lock()
        self._closed = False
        self._term = 0
        """Highest term of a pair seen so far. A node with a lower term was cut off and does not know yet."""
        self.welcome = messages.Welcome("", "", "", 0)
        self._addresses = list(options.addresses)
        """The configured addresses, and those that a standby named."""

    def clone(self, retries: int) -> "ReconnectingConnection":
        """Return another instance for the same server, with a separate connection."""
        return ReconnectingConnection(self._factory, replace(self.options, retries=retries), self._random)

    @property
    def silence_limit(self) -> float:
        """Silence, in seconds, after which the server is pinged; also the timeout of that ping."""
        if len(self._addresses) > 1:
            return min(self.options.timeout, SILENCE_LIMIT_SECONDS)
        silence = self.options.silence
        return self.options.timeout if silence is None else min(self.options.timeout, silence / SILENCE_DIVISOR)

    @property
    def _is_watchful(self) -> bool:
        """True if a silent server is pinged and then left."""
        return len(self._addresses) > 1 or self.options.silence is not None

    def ping_interval(self, seconds: float) -> float:
        """Return how long, in seconds, a listener waits for pushed data before it pings the server: ``seconds`` if a
        silent server is not left."""
        return min(self.silence_limit, seconds) if self._is_watchful else seconds

    async def sleep(self, seconds: float) -> None:
        await self._factory.sleep(seconds)

    def jittered(self, seconds: float) -> float:
        """Return ``seconds`` with ±50 % jitter."""
        return seconds * (0.5 + self._random())

    async def execute(self, request: PendingRequest, seconds: float) -> PendingRequest:
        """Execute one request until its reply.

        The fast path comes first: nearly always there is a connection and it holds."""
        transport = self._usable_transport()
        if transport is not None:
            try:
                await request.send(transport)
                request.reply = await request.answer(seconds, self.silence_limit)
                return request
            except ConnectionLost as lost:
                request.slot = None
                request.losses += 1
                await self.pause(request.losses, lost)
        pipeline = Pipeline(self, 1, seconds)
        await pipeline.put(request)
        await pipeline.finish()
        return request

    def _usable_transport(self) -> Transport | None:
        transport = self._transport
        return transport if transport is not None and transport.is_alive and transport.process == os.getpid() else None

    async def transport(self) -> Transport:
        """Return the open connection. Connect first if there is none, or it is lost."""
        transport = self._usable_transport()
        if transport is not None:
            return transport
        async with self._dialing:
            transport = self._usable_transport()
            if transport is not None:
                return transport
            if self._transport is not None:
                gone, self._transport = self._transport, None
                await gone.close()
            self._transport = transport = await self._connect()
            if self._closed:
                await self.close()
            return transport

    async def close(self) -> None:
        self._closed = True
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    async def disconnect(self, *, onward: bool = False) -> None:
        """Close the connection, so that the next request opens another one; ``onward``: to the next address."""
        transport, self._transport = self._transport, None
        self._next = (self._next + onward) % len(self._addresses)
        if transport is not None:
            await transport.close()

    async def pause(self, tries: int, why: Exception) -> None:
        """Wait before the next try. Raise ``Unreachable`` if there were enough tries; the error of the last one is its
        cause."""
        cause = why.__cause__
        is_left_again = tries > 1 and isinstance(cause, TimeoutError) and self.options.silence is not None
        if tries > self.options.retries or (is_left_again and len(self._addresses) == 1):
            raise Unreachable(f"{self._names()}: no connection after {tries} attempts: {why}") from cause or why
        if isinstance(cause, NotActive):
            await self._leave_node(cause)
        elif isinstance(cause, TimeoutError) and self._transport is not None and not self._transport.is_alive:
            await self._leave_node(None)
        if tries > 1:
            await self._factory.sleep(self.seconds(tries - 1))

    async def _leave_node(self, standby: NotActive | None) -> None:
        """Close the connection because the node is a standby or silent. Continue with an address that the standby
        names, else with the next one."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()
        self._select_next_address(() if standby is None else standby.addresses)

    def _select_next_address(self, names: Sequence[str]) -> None:
        here = self._addresses[self._next]
        self._next = (self._next + 1) % len(self._addresses)
        for text in names:
            found = parse_named_address(text, here)
            if found is not None and found not in self._addresses and len(self._addresses) < MAX_ADDRESSES:
                self._addresses.append(found)
            if found in self._addresses:
                self._next = self._addresses.index(found)
                return

    def seconds(self, tries: int) -> float:
        """Return the backoff before the next try, in seconds."""
        backoff = BACKOFF if len(self._addresses) == 1 else FAILOVER_BACKOFF
        return backoff.delay(tries, self._random())

    def _names(self) -> str:
        return ", ".join(map(str, self.options.addresses))

    async def _connect(self) -> Transport:
        """Try each address in turn, starting with the last one that worked, then all of them again after a backoff."""
        problems: dict[ServerAddress, Exception] = {}
        silence = self.options.silence
        until = None if silence is None else time.monotonic() + silence * (1 if len(self._addresses) > 1 else 0.5)
        tries = 0
        for tries in range(self.options.retries + 1):
            if tries:
                await self._factory.sleep(self.seconds(tries))
            if until is not None and tries and time.monotonic() >= until:
                break
            for _ in self._addresses[:]:
                if self._closed:
                    raise Unreachable("this client was closed")
                address = self._addresses[self._next]
                left = (
                    self.silence_limit
                    if until is None
                    else max(0.001, min(self.silence_limit, until - time.monotonic()))
                )
                try:
                    return await self._handshake(address, left)
                except (OSError, ConnectionLost) as error:
                    problems[address] = await self._tls_failure(address, error) or error
                    self._next = (self._next + 1) % len(self._addresses)
            if all(isinstance(error, TlsFailed) for error in problems.values()):
                raise next(iter(problems.values()))
        summary = "; ".join(f"{address}: {_describe(error)}" for address, error in problems.items())
        raise Unreachable(f"{summary} (tried {tries + 1} times)")

    async def _tls_failure(self, address: ServerAddress, error: Exception) -> TlsFailed | None:
        """Return the error if client and server disagree on TLS, which no retry can repair; else None.

        A TLS server closes a clear-text connection without a reply. One TLS handshake then shows the cause."""
        if address.scheme != "tcp":
            return None
        cause = error.__cause__ if isinstance(error, ConnectionLost) else error
        if address.tls:
            from yirangmq.client.tls import permanent_failure, refused_certificate

            is_cut_off = isinstance(error, ConnectionLost) and isinstance(cause, ConnectionError)
            if is_cut_off and address.cert and await self._answers(replace(address, cert="", key="", token="")):
                return refused_certificate(address)
            return permanent_failure(address, cause)
        if not isinstance(error, ConnectionLost) or not isinstance(cause, ConnectionError):
            return None
        if not await self._factory.speaks_tls(address, min(self.silence_limit, PROBE_SECONDS)):
            return None
        from yirangmq.client.tls import speaks_tls

        return speaks_tls(address)

    async def _answers(self, address: ServerAddress) -> bool:
        """Return True if the server at this address sends any reply to HELLO, even a refusal.

        With TLS 1.3 a server rejects a certificate after the handshake, and may close without an alert."""
        try:
            transport = await self._factory.dial(address, min(self.silence_limit, PROBE_SECONDS), self.options.timeout)
            try:
                slot = await transport.request(FrameKind.HELLO, messages.Hello(self.options.name, ""))
                await transport.answer(slot, min(self.silence_limit, PROBE_SECONDS))
            finally:
                await transport.close()
        except (OSError, ConnectionLost):
            return False
        return True

    async def _handshake(self, address: ServerAddress, seconds: float) -> Transport:
        """Open a connection and exchange HELLO and WELCOME. ``seconds`` applies to each of the two steps."""
        transport = await self._factory.dial(address, seconds, self.options.timeout)
        try:
            slot = await transport.request(FrameKind.HELLO, messages.Hello(self.options.name, address.token))
            self.welcome = (await transport.answer(slot, seconds)).wanted(FrameKind.WELCOME)
        except BaseException as error:
            await transport.close()
            cause = error.__cause__
            if (
                isinstance(error, ConnectionLost)
                and isinstance(cause, QueueError)
                and not isinstance(cause, Unavailable)
            ):
                raise cause from None  # the server did reply, so it is not unreachable
            raise
        self._term = max(self._term, self.welcome.term)
        is_standby = self.welcome.role == "STANDBY" or self.welcome.term < self._term
        if is_standby and len(self._addresses) > 1:
            await transport.close()
            raise ConnectionLost(f"{self.welcome.node} is a standby")
        transport.apply_welcome(self.welcome)
        return transport


class Pipeline:
    """Requests in order, with several in flight. Each ends with its reply, or the pipeline raises ``Unreachable``."""

    def __init__(
        self,
        connection: ReconnectingConnection,
        window: int,
        timeout: float | None = None,
        *,
        processes_received: bool = False,
    ) -> None:
        """``processes_received``: process replies that have arrived before each send, also if no caller waits for
        them."""
        self._connection = connection
        self._window = window
        self._seconds = connection.options.timeout if timeout is None else timeout
        self._processes_received = processes_received
        self._out: deque[PendingRequest] = deque()

    @property
    def has_unanswered(self) -> bool:
        return bool(self._out)

    async def put(self, request: PendingRequest) -> None:
        """Send a request. If the window is full, wait for the oldest reply first. A request never overtakes one that
        must be sent again."""
        transport = await self._transport()
        self.collect()
        while len(self._out) >= self._window or self._is_first_retryable():
            await self.settle_first()
            transport = await self._connection.transport()
        self._out.append(request)
        try:
            await self._send_all(transport)
        except ConnectionLost:
            pass  # ``settle_first`` sends it again
        except BaseException:
            self.abandon(request)
            raise

    def abandon(self, request: PendingRequest) -> None:
        """Abandon a request: its reply is no longer awaited."""
        if request in self._out:
            self._out.remove(request)

    async def _transport(self) -> Transport:
        transport = await self._connection.transport()
        if not self._processes_received:
            return transport
        transport.process_received()
        return transport if transport.is_alive else await self._connection.transport()

    async def finish(self) -> None:
        while self._out:
            await self.settle_first()

    def collect(self) -> None:
        """Remove the oldest requests as far as their replies have arrived, without waiting."""
        while self._out and (slot := self._out[0].slot) is not None and slot.reply is not None:
            if slot.is_retryable:
                return
            self._out.popleft().reply = slot.reply

    def _is_first_retryable(self) -> bool:
        """True if the oldest request was refused as unavailable. The requests after it wait while it is retried."""
        slot = self._out[0].slot if self._out else None
        return slot is not None and slot.is_retryable

    async def resume(self, transport: Transport) -> None:
        """Send all unanswered requests on this connection unless they were sent on it already."""
        await self._send_all(transport)

    async def settle_first(self) -> None:
        """Wait for the reply to the oldest request."""
        first = self._out[0]
        while True:
            try:
                if first.slot is None:
                    await self._send_all(await self._connection.transport())
                first.reply = await first.answer(self._seconds, self._connection.silence_limit)
                break
            except ConnectionLost as lost:
                first.slot = None
                first.losses += 1
                await self._connection.pause(first.losses, lost)
            except BaseException:
                first.slot = None  # the reply has no reader now; the same ids make a resend safe
                raise
        self._out.popleft()

    async def _send_all(self, transport: Transport) -> None:
        """Send the newest request. After a loss, send all unanswered ones before it as well, so that the order is
        kept."""
        for request in self._out:
            if request.transport is not transport or request.slot is None:
                await request.send(transport)


def _describe(error: Exception) -> str:
    if type(error) in (ConnectionRefusedError, FileNotFoundError, PermissionError):
        return os.strerror(error.errno)  # type: ignore[attr-defined]
    return str(error) or type(error).__name__
