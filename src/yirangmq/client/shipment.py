"""Many messages or records on their way: frames out, receipts in, in order. Stops at the first refusal."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from yirangmq.client.courier import Courier, Pipeline
from yirangmq.client.errand import Errand
from yirangmq.core.errors import QueueError, Unreachable
from yirangmq.wire.frames import Kind

FRAMES_ON_THEIR_WAY = 8
"""Frames that may be unanswered: enough to keep the server busy, little to send again."""


Body = TypeVar("Body", bound=msgspec.Struct)
Receipt = TypeVar("Receipt")


class Shipment(Generic[Body, Receipt]):
    """Frames of one kind. ``read``: the receipts of one, of its answer; ``count``: how many there would be."""

    def __init__(
        self,
        courier: Courier,
        kind: Kind,
        read: Callable[[Body, Errand], list[Receipt]],
        count: Callable[[Body], int],
    ) -> None:
        self._kind = kind
        self._read = read
        self._count = count
        self._pipeline = Pipeline(courier, FRAMES_ON_THEIR_WAY)
        self._out: deque[tuple[Errand, Body]] = deque()
        self._receipts: list[Receipt | None] = []
        self._problem: QueueError | None = None

    async def send(self, frames: Iterable[Body]) -> list[Receipt]:
        """All of them, or the first problem, which carries the receipts of what was sent."""
        try:
            for body in frames:
                await self._put(body)
                if self._problem is not None:
                    break
        except QueueError as error:
            self._problem = self._problem or error
        if not isinstance(self._problem, Unreachable):
            await self._finish()
        self._collect(everything=True)
        if self._problem is not None:
            self._problem.receipts = self._receipts
            raise self._problem
        return [one for one in self._receipts if one is not None]

    async def _put(self, body: Body) -> None:
        errand = Errand(self._kind, body)
        self._out.append((errand, body))
        await self._pipeline.put(errand)
        self._collect()

    async def _finish(self) -> None:
        try:
            await self._pipeline.finish()
        except Unreachable as error:
            self._problem = self._problem or error

    def _collect(self, *, everything: bool = False) -> None:
        """Receipts of the frames answered so far; at the end also that there are none for the others."""
        while self._out and (everything or self._out[0][0].reply is not None):
            errand, body = self._out.popleft()
            if errand.reply is None:
                self._receipts += [None] * self._count(body)
                continue
            try:
                self._receipts += self._read(body, errand)
            except QueueError as error:
                self._problem = self._problem or error
                self._receipts += [None] * self._count(body)
