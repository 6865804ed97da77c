"""One request, from being sent to its answer. Does not know: when to try again, or where (``client.courier``)."""

import time
from typing import Any

import msgspec

from yirangmq.client.core import Lost, Reply, Slot
from yirangmq.client.wires import Line
from yirangmq.core.errors import QueueError, Unavailable
from yirangmq.wire import messages
from yirangmq.wire.frames import Kind


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
