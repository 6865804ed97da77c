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

from yirangmq.client.address import Address, named
from yirangmq.client.session import Lost, Reply, Slot
from yirangmq.client.transport import Line, Terms, Wires
from yirangmq.core.backoff import Backoff
from yirangmq.core.errors import NotActive, QueueError, TlsFailed, Unavailable, Unreachable
from yirangmq.wire import messages
from yirangmq.wire.frames import Kind

# -- pending requests --------------------------------------------------------------------------------------------------


class Errand:
    """Pending request: one request until its reply, over as many connections as needed."""

    __slots__ = ("body", "kind", "line", "losses", "reply", "sent", "slot")

    def __init__(self, kind: Kind, body: msgspec.Struct) -> None:
        self.kind = kind
        self.body = body
        self.line: Line | None = None
        self.slot: Slot | None = None
        self.sent = 0
        self.losses = 0
        self.reply: Reply | None = None

    async def send(self, line: Line) -> None:
        if self.slot is not None and self.slot.has_news and not self.slot.is_turned_away:
            return
        self.slot, self.line = None, line
        self.sent += 1
        try:
            self.slot = await line.ask(self.kind, self.body)
        except Lost as lost:
            self.sent -= lost.is_unsent
            raise

    async def answer(self, seconds: float, quiet: float) -> Reply:
        """Wait for the reply, up to ``seconds``.

        A server that is silent for ``quiet`` seconds is pinged. A CALL may take longer than ``seconds`` as long as
        the server answers pings."""
        slot, line = self.slot, self.line
        if slot is None or line is None:
            raise Lost("not sent yet")
        if quiet < seconds or self.kind is Kind.CALL:
            try:
                await self._hear(line, slot, seconds, quiet)
            except BaseException:
                line.forget(slot)
                raise
            seconds = quiet
        reply = await line.answer(slot, seconds)
        if reply.kind == Kind.ERROR and isinstance(error := reply.error(), Unavailable):
            raise Lost(str(error)) from error  # the request was not executed, so a retry may succeed
        return reply

    async def _hear(self, line: Line, slot: Slot, seconds: float, quiet: float) -> None:
        until = time.monotonic() + seconds
        while not await line.listen(slot, quiet) and (self.kind is Kind.CALL or time.monotonic() < until):
            await line.answer(await line.ask(Kind.PING, messages.Empty()), quiet)

    def value(self, wanted: Kind) -> Any:
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
QUIET_SECONDS = 3.0
"""Silence, in seconds, after which the client pings the server if there is another address; also the timeout of that
ping. A frozen node, or one with a cut cable, is left after twice that."""
MOST_ADDRESSES = 16
SILENT_PARTS = 4
"""Parts of ``Terms.silence``: one quarter passes before the server is pinged and one before the ping times out. The
rest is for reconnecting."""
PROBE_SECONDS = 3.0
"""Timeout of the test whether a port speaks TLS, in seconds."""


class Courier:
    """Reconnecting connection to a server, or to a group of servers given by several addresses.

    ``_line`` is the open connection, or None. ``_dialing`` lets one caller at a time connect; the others wait for
    it."""

    def __init__(self, wires: Wires, terms: Terms, chance: Callable[[], float]) -> None:
        self.terms = terms
        self._wires = wires
        self._chance = chance
        self._line: Line | None = None
        self._next = 0
        self.turn = wires.turn
        self._dialing = wires.turn()
        self._closed = False
        self._term = 0
        """Highest term of a pair seen so far. A node with a lower term was cut off and does not know yet."""
        self.welcome = messages.Welcome("", "", "", 0)
        self._addresses = list(terms.addresses)
        """The configured addresses, and those that a standby named."""

    def own(self, retries: int) -> "Courier":
        """Return another instance for the same server, with a separate connection."""
        return Courier(self._wires, replace(self.terms, retries=retries), self._chance)

    @property
    def quiet(self) -> float:
        """Silence, in seconds, after which the server is pinged; also the timeout of that ping."""
        if len(self._addresses) > 1:
            return min(self.terms.timeout, QUIET_SECONDS)
        silence = self.terms.silence
        return self.terms.timeout if silence is None else min(self.terms.timeout, silence / SILENT_PARTS)

    @property
    def _is_watchful(self) -> bool:
        """True if a silent server is pinged and then left."""
        return len(self._addresses) > 1 or self.terms.silence is not None

    def attention(self, seconds: float) -> float:
        """Return how long, in seconds, a listener waits for pushed data before it pings the server: ``seconds`` if a
        silent server is not left."""
        return min(self.quiet, seconds) if self._is_watchful else seconds

    async def sleep(self, seconds: float) -> None:
        await self._wires.sleep(seconds)

    def around(self, seconds: float) -> float:
        """Return ``seconds`` with ±50 % jitter."""
        return seconds * (0.5 + self._chance())

    async def see_through(self, errand: Errand, seconds: float) -> Errand:
        """Execute one request until its reply.

        The fast path comes first: nearly always there is a connection and it holds."""
        line = self._alive()
        if line is not None:
            try:
                await errand.send(line)
                errand.reply = await errand.answer(seconds, self.quiet)
                return errand
            except Lost as lost:
                errand.slot = None
                errand.losses += 1
                await self.pause(errand.losses, lost)
        pipeline = Pipeline(self, 1, seconds)
        await pipeline.put(errand)
        await pipeline.finish()
        return errand

    def _alive(self) -> Line | None:
        line = self._line
        return line if line is not None and line.is_alive and line.process == os.getpid() else None

    async def line(self) -> Line:
        """Return the open connection. Connect first if there is none, or it is lost."""
        line = self._alive()
        if line is not None:
            return line
        async with self._dialing:
            line = self._alive()
            if line is not None:
                return line
            if self._line is not None:
                gone, self._line = self._line, None
                await gone.close()
            self._line = line = await self._connect()
            if self._closed:
                await self.close()
            return line

    async def close(self) -> None:
        self._closed = True
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    async def hang_up(self, *, onward: bool = False) -> None:
        """Close the connection, so that the next request opens another one; ``onward``: to the next address."""
        line, self._line = self._line, None
        self._next = (self._next + onward) % len(self._addresses)
        if line is not None:
            await line.close()

    async def pause(self, tries: int, why: Exception) -> None:
        """Wait before the next try. Raise ``Unreachable`` if there were enough tries."""
        cause = why.__cause__
        is_left_again = tries > 1 and isinstance(cause, TimeoutError) and self.terms.silence is not None
        if tries > self.terms.retries or (is_left_again and len(self._addresses) == 1):
            raise Unreachable(f"{self._names()}: gave up after {tries} tries: {why}") from None
        if isinstance(cause, NotActive):
            await self._leave(cause)
        elif isinstance(cause, TimeoutError) and self._line is not None and not self._line.is_alive:
            await self._leave(None)
        if tries > 1:
            await self._wires.sleep(self.seconds(tries - 1))

    async def _leave(self, standby: NotActive | None) -> None:
        """Close the connection because the node is a standby or silent. Continue with an address that the standby
        names, else with the next one."""
        line, self._line = self._line, None
        if line is not None:
            await line.close()
        self._go_on(() if standby is None else standby.addresses)

    def _go_on(self, names: Sequence[str]) -> None:
        here = self._addresses[self._next]
        self._next = (self._next + 1) % len(self._addresses)
        for text in names:
            found = named(text, here)
            if found is not None and found not in self._addresses and len(self._addresses) < MOST_ADDRESSES:
                self._addresses.append(found)
            if found in self._addresses:
                self._next = self._addresses.index(found)
                return

    def seconds(self, tries: int) -> float:
        """Return the backoff before the next try, in seconds."""
        backoff = BACKOFF if len(self._addresses) == 1 else FAILOVER_BACKOFF
        return backoff.delay(tries, self._chance())

    def _names(self) -> str:
        return ", ".join(map(str, self.terms.addresses))

    async def _connect(self) -> Line:
        """Try each address in turn, starting with the last one that worked, then all of them again after a backoff."""
        problems: dict[Address, Exception] = {}
        silence = self.terms.silence
        until = None if silence is None else time.monotonic() + silence * (1 if len(self._addresses) > 1 else 0.5)
        tries = 0
        for tries in range(self.terms.retries + 1):
            if tries:
                await self._wires.sleep(self.seconds(tries))
            if until is not None and tries and time.monotonic() >= until:
                break
            for _ in self._addresses[:]:
                if self._closed:
                    raise Unreachable("this client was closed")
                address = self._addresses[self._next]
                left = self.quiet if until is None else max(0.001, min(self.quiet, until - time.monotonic()))
                try:
                    return await self._greet(address, left)
                except (OSError, Lost) as error:
                    problems[address] = await self._tls_failure(address, error) or error
                    self._next = (self._next + 1) % len(self._addresses)
            if all(isinstance(error, TlsFailed) for error in problems.values()):
                raise next(iter(problems.values()))
        said = "; ".join(f"{address}: {_why(error)}" for address, error in problems.items())
        raise Unreachable(f"{said} (tried {tries + 1} times)")

    async def _tls_failure(self, address: Address, error: Exception) -> TlsFailed | None:
        """Return the error if client and server disagree on TLS, which no retry can repair; else None.

        A TLS server closes a clear-text connection without a reply. One TLS handshake then shows the cause."""
        if address.scheme != "tcp":
            return None
        cause = error.__cause__ if isinstance(error, Lost) else error
        if address.tls:
            from yirangmq.client.tls import permanent_failure, refused_certificate

            is_cut_off = isinstance(error, Lost) and isinstance(cause, ConnectionError)
            if is_cut_off and address.cert and await self._answers(replace(address, cert="", key="", token="")):
                return refused_certificate(address)
            return permanent_failure(address, cause)
        if not isinstance(error, Lost) or not isinstance(cause, ConnectionError):
            return None
        if not await self._wires.speaks_tls(address, min(self.quiet, PROBE_SECONDS)):
            return None
        from yirangmq.client.tls import speaks_tls

        return speaks_tls(address)

    async def _answers(self, address: Address) -> bool:
        """Return True if the server at this address sends any reply to HELLO, even a refusal.

        With TLS 1.3 a server rejects a certificate after the handshake, and may close without an alert."""
        try:
            line = await self._wires.dial(address, min(self.quiet, PROBE_SECONDS), self.terms.timeout)
            try:
                slot = await line.ask(Kind.HELLO, messages.Hello(self.terms.name, ""))
                await line.answer(slot, min(self.quiet, PROBE_SECONDS))
            finally:
                await line.close()
        except (OSError, Lost):
            return False
        return True

    async def _greet(self, address: Address, seconds: float) -> Line:
        """Open a connection and exchange HELLO and WELCOME. ``seconds`` applies to each of the two steps."""
        line = await self._wires.dial(address, seconds, self.terms.timeout)
        try:
            slot = await line.ask(Kind.HELLO, messages.Hello(self.terms.name, address.token))
            self.welcome = (await line.answer(slot, seconds)).wanted(Kind.WELCOME)
        except BaseException as error:
            await line.close()
            cause = error.__cause__
            if isinstance(error, Lost) and isinstance(cause, QueueError) and not isinstance(cause, Unavailable):
                raise cause from None  # the server did reply, so it is not unreachable
            raise
        self._term = max(self._term, self.welcome.term)
        is_standby = self.welcome.role == "STANDBY" or self.welcome.term < self._term
        if is_standby and len(self._addresses) > 1:
            await line.close()
            raise Lost(f"{self.welcome.node} is a standby")
        line.greeted(self.welcome)
        return line


class Pipeline:
    """Requests in order, with several in flight. Each ends with its reply, or the pipeline raises ``Unreachable``."""

    def __init__(self, courier: Courier, window: int, patience: float | None = None, *, glances: bool = False) -> None:
        """``glances``: process replies that have arrived before each send, also if no caller waits for them."""
        self._courier = courier
        self._window = window
        self._seconds = courier.terms.timeout if patience is None else patience
        self._glances = glances
        self._out: deque[Errand] = deque()

    @property
    def is_under_way(self) -> bool:
        return bool(self._out)

    async def put(self, errand: Errand) -> None:
        """Send a request. If the window is full, wait for the oldest reply first. A request never overtakes one that
        must be sent again."""
        line = await self._line()
        self.collect()
        while len(self._out) >= self._window or self._is_turned_away():
            await self.settle_first()
            line = await self._courier.line()
        self._out.append(errand)
        try:
            await self._send_all(line)
        except Lost:
            pass  # ``settle_first`` sends it again
        except BaseException:
            self.give_up(errand)
            raise

    def give_up(self, errand: Errand) -> None:
        """Abandon a request: its reply is no longer awaited."""
        if errand in self._out:
            self._out.remove(errand)

    async def _line(self) -> Line:
        line = await self._courier.line()
        if not self._glances:
            return line
        line.glance()
        return line if line.is_alive else await self._courier.line()

    async def finish(self) -> None:
        while self._out:
            await self.settle_first()

    def collect(self) -> None:
        """Remove the oldest requests as far as their replies have arrived, without waiting."""
        while self._out and (slot := self._out[0].slot) is not None and slot.reply is not None:
            if slot.is_turned_away:
                return
            self._out.popleft().reply = slot.reply

    def _is_turned_away(self) -> bool:
        """True if the oldest request was refused as unavailable. The requests after it wait while it is retried."""
        slot = self._out[0].slot if self._out else None
        return slot is not None and slot.is_turned_away

    async def resume(self, line: Line) -> None:
        """Send all unanswered requests on this connection unless they were sent on it already."""
        await self._send_all(line)

    async def settle_first(self) -> None:
        """Wait for the reply to the oldest request."""
        first = self._out[0]
        while True:
            try:
                if first.slot is None:
                    await self._send_all(await self._courier.line())
                first.reply = await first.answer(self._seconds, self._courier.quiet)
                break
            except Lost as lost:
                first.slot = None
                first.losses += 1
                await self._courier.pause(first.losses, lost)
            except BaseException:
                first.slot = None  # the reply has no reader now; the same ids make a resend safe
                raise
        self._out.popleft()

    async def _send_all(self, line: Line) -> None:
        """Send the newest request. After a loss, send all unanswered ones before it as well, so that the order is
        kept."""
        for errand in self._out:
            if errand.line is not line or errand.slot is None:
                await errand.send(line)


def _why(error: Exception) -> str:
    if type(error) in (ConnectionRefusedError, FileNotFoundError, PermissionError):
        return os.strerror(error.errno)  # type: ignore[attr-defined]
    return str(error) or type(error).__name__
