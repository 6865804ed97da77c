"""Reconnecting connection, pending requests, and a pipeline of requests in order.

A request connects if need be, greets, is sent and awaited. After a loss the client connects again, to the next address
if there is one, and sends the request again, a bounded number of times. ``Unreachable`` means that the last request may
or may not have been done; ids given by the client keep a repeated publish from being stored twice.

A standby is left for the active node that it names; a node with a lower term than one seen before is skipped. With
several addresses, or a limit on silence, a silent server is pinged and then left. A TLS mismatch is recognised and
raised at once, because no retry can mend it.

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
    """One request until it is answered, on as many connections as that takes."""

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
        """Within ``seconds``, but for a call, which may take long; a server that is silent for ``quiet`` is asked
        whether it is there."""
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
            raise Lost(str(error)) from error  # nothing was done, and asking later may help
        return reply

    async def _hear(self, line: Line, slot: Slot, seconds: float, quiet: float) -> None:
        until = time.monotonic() + seconds
        while not await line.listen(slot, quiet) and (self.kind is Kind.CALL or time.monotonic() < until):
            await line.answer(await line.ask(Kind.PING, messages.Empty()), quiet)

    def value(self, wanted: Kind) -> Any:
        """Its answer of this kind, or the error that came instead."""
        if self.reply is None:
            raise QueueError("not answered yet")
        return self.reply.wanted(wanted)

    @property
    def resent(self) -> bool:
        """An earlier sending may have been heard although its answer was not."""
        return self.sent > 1


# -- connection --------------------------------------------------------------------------------------------------------

BACKOFF = Backoff(first=0.05, limit=2.0, jitter=0.5)
"""Seconds between two attempts to reach the server."""
FAILOVER_BACKOFF = replace(BACKOFF, limit=1.0)
"""The same with several addresses: the node that takes over is found within five seconds."""
QUIET_SECONDS = 3.0
"""With another address to go to: how long a server may be silent before it is asked whether it is there, and how long
it may take to say so. A node that is frozen, or whose cable is cut, is left after twice that."""
MOST_ADDRESSES = 16
SILENT_PARTS = 4
"""With ``Terms.silence``: a quarter of it may pass before the server is pinged, a quarter before the ping is answered,
and the rest is for connecting again."""
PROBE_SECONDS = 3.0
"""How long the test whether a port speaks TLS may take."""


class Courier:
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
        """The highest of a pair: a node with a lower one was cut off, and does not know yet."""
        self.welcome = messages.Welcome("", "", "", 0)
        self._addresses = list(terms.addresses)
        """Those given, and those that a standby named."""

    def own(self, retries: int) -> "Courier":
        """Another one to the same server, with a connection of its own."""
        return Courier(self._wires, replace(self.terms, retries=retries), self._chance)

    @property
    def quiet(self) -> float:
        """How long a server may be silent before it is asked whether it is there, and then say nothing."""
        if len(self._addresses) > 1:
            return min(self.terms.timeout, QUIET_SECONDS)
        silence = self.terms.silence
        return self.terms.timeout if silence is None else min(self.terms.timeout, silence / SILENT_PARTS)

    @property
    def _is_watchful(self) -> bool:
        """A silent server is pinged, and left."""
        return len(self._addresses) > 1 or self.terms.silence is not None

    def attention(self, seconds: float) -> float:
        """How long one who listens for what comes unasked does so before it asks; ``seconds`` where there is nowhere
        else to go."""
        return min(self.quiet, seconds) if self._is_watchful else seconds

    async def sleep(self, seconds: float) -> None:
        await self._wires.sleep(seconds)

    def around(self, seconds: float) -> float:
        """So long, more or less by half as chance has it."""
        return seconds * (0.5 + self._chance())

    async def see_through(self, errand: Errand, seconds: float) -> Errand:
        """One request to its answer. Nearly always there is a connection and it holds, so that comes first and by the
        shortest way."""
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
        """The connection in use; a new one if that is gone."""
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
        """The next request is on another connection; ``onward``: to the next address."""
        line, self._line = self._line, None
        self._next = (self._next + onward) % len(self._addresses)
        if line is not None:
            await line.close()

    async def pause(self, tries: int, why: Exception) -> None:
        """Before the next try; ``Unreachable`` when there have been enough."""
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
        """Another node of the pair does the work, or this one says nothing: on to the one it names, or to the next."""
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
        """How long to wait before the next try."""
        backoff = BACKOFF if len(self._addresses) == 1 else FAILOVER_BACKOFF
        return backoff.delay(tries, self._chance())

    def _names(self) -> str:
        return ", ".join(map(str, self.terms.addresses))

    async def _connect(self) -> Line:
        """Each address in turn, beginning with the one that worked last; then all of them again after a pause."""
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
        """The error if the two sides disagree on TLS, which no retry can mend; else None. A TLS server closes a
        connection in clear text without an answer; one handshake then tells why."""
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
        """Whether the server says anything to a client at this address, be it a refusal. With TLS 1.3 a server refuses
        a certificate after the handshake, and may close without an alert."""
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
        """``seconds`` for each step: the connection, and the server's answer to HELLO."""
        line = await self._wires.dial(address, seconds, self.terms.timeout)
        try:
            slot = await line.ask(Kind.HELLO, messages.Hello(self.terms.name, address.token))
            self.welcome = (await line.answer(slot, seconds)).wanted(Kind.WELCOME)
        except BaseException as error:
            await line.close()
            cause = error.__cause__
            if isinstance(error, Lost) and isinstance(cause, QueueError) and not isinstance(cause, Unavailable):
                raise cause from None  # it did answer: not to be understood is not to be unreachable
            raise
        self._term = max(self._term, self.welcome.term)
        is_standby = self.welcome.role == "STANDBY" or self.welcome.term < self._term
        if is_standby and len(self._addresses) > 1:
            await line.close()
            raise Lost(f"{self.welcome.node} is a standby")
        line.greeted(self.welcome)
        return line


class Pipeline:
    """Errands in order, several on their way at once; each ends up with its answer, or the pipeline is unreachable."""

    def __init__(self, courier: Courier, window: int, patience: float | None = None, *, glances: bool = False) -> None:
        """``glances``: answers that have come are heard before something is sent, also where nobody waits for them."""
        self._courier = courier
        self._window = window
        self._seconds = courier.terms.timeout if patience is None else patience
        self._glances = glances
        self._out: deque[Errand] = deque()

    @property
    def is_under_way(self) -> bool:
        return bool(self._out)

    async def put(self, errand: Errand) -> None:
        """Send it; if the window is full, only when the oldest one was answered, and never past one that has to be sent
        again."""
        line = await self._line()
        self.collect()
        while len(self._out) >= self._window or self._is_turned_away():
            await self.settle_first()
            line = await self._courier.line()
        self._out.append(errand)
        try:
            await self._send_all(line)
        except Lost:
            pass  # whoever waits for its answer sends it again
        except BaseException:
            self.give_up(errand)
            raise

    def give_up(self, errand: Errand) -> None:
        """Nobody waits for it any more."""
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
        """Those answered so far are done with, without waiting."""
        while self._out and (slot := self._out[0].slot) is not None and slot.reply is not None:
            if slot.is_turned_away:
                return
            self._out.popleft().reply = slot.reply

    def _is_turned_away(self) -> bool:
        """The oldest one; as long as it is, those behind it wait."""
        slot = self._out[0].slot if self._out else None
        return slot is not None and slot.is_turned_away

    async def resume(self, line: Line) -> None:
        """Send what is unanswered on this connection, if it was sent on another."""
        await self._send_all(line)

    async def settle_first(self) -> None:
        """Wait for the answer to the oldest one."""
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
                first.slot = None  # its answer is nobody's now; with the same ids it can be asked again
                raise
        self._out.popleft()

    async def _send_all(self, line: Line) -> None:
        """The newest; after a loss also all before it that are unanswered, so that their order stays."""
        for errand in self._out:
            if errand.line is not line or errand.slot is None:
                await errand.send(line)


def _why(error: Exception) -> str:
    if type(error) in (ConnectionRefusedError, FileNotFoundError, PermissionError):
        return os.strerror(error.errno)  # type: ignore[attr-defined]
    return str(error) or type(error).__name__
