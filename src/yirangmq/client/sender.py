"""Messages that come one by one, each sent at once, without waiting for the answer to the one before. Written once, as
coroutines; ``client.faces`` blocks on them. It outlives its connections: what is unanswered is sent again, with the
same ids and in the same order."""

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from yirangmq.client import sending
from yirangmq.client.courier import Courier, Pipeline
from yirangmq.client.errand import Errand
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.ports import Ids, Stored
from yirangmq.wire import messages
from yirangmq.wire.frames import Kind

MOST_BYTES = 8 * 1024 * 1024
"""Of payloads on their way, but for a single message that is larger."""


class AsyncSender:
    """``async with client.sender(queue) as sender``; leaving waits until everything is on disk."""

    def __init__(
        self,
        courier: Courier,
        ids: Ids,
        queue: str,
        window: int,
        told: Callable[[Stored], object] | None,
        left: Callable[["AsyncSender"], None],
    ) -> None:
        validation.check_told(told)
        self._ids = ids
        self._queue = queue
        self._told = told
        self._left = left
        self._process = os.getpid()
        self._pipeline = Pipeline(courier, window, glances=True)
        self._out: deque[tuple[Errand, messages.Publish, int]] = deque()
        self._bytes = 0
        self._turn = courier.turn()
        self._receipts: deque[Stored] = deque()
        """Not told yet."""
        self._is_telling = False
        self._refused: dict[str, QueueError] = {}
        self._is_closed = False

    async def send(self, message: object) -> str:
        """Any JSON value, bytes, or a ``NewMessage``; its id. It is on disk when ``settle`` returned. If messages sent
        before were refused, that is raised instead, with their ids in the error's ``refused``, and this one is not
        sent."""
        made = sending.outgoing(self._queue, message, self._ids.new(1)[0])
        body, size = messages.Publish(self._queue, [made]), len(made.payload) + len(made.header)
        errand = Errand(Kind.PUBLISH, body)
        async with self._turn:
            if self._is_closed or self._process != os.getpid():
                raise BadInput("closed, or made by another process; make another one", field="sender")
            self._raise_refused()
            while self._pipeline.is_under_way and self._bytes + size > MOST_BYTES:
                await self._pipeline.settle_first()
                self._collect()
            await self._pipeline.put(errand)
            self._out.append((errand, body, size))
            self._bytes += size
            await self._see_off(errand)
            self._collect()
        self._tell()
        return made.id

    async def _see_off(self, errand: Errand) -> None:
        """The connection may have been lost at this moment: it leaves on the next one."""
        try:
            while errand.slot is None and errand.reply is None:
                await self._pipeline.settle_first()
        except BaseException:
            self._pipeline.give_up(errand)
            if self._out and self._out[-1][0] is errand:
                self._bytes -= self._out.pop()[2]
            raise

    async def settle(self) -> None:
        """Wait until everything sent so far is on disk. Raises the first refusal of those that are not, with all of
        them in its ``refused``."""
        async with self._turn:
            await self._pipeline.finish()
            self._collect()
        self._tell()
        self._raise_refused()

    async def close(self) -> None:
        """The same; then nothing more can be sent."""
        self._is_closed = True
        self._left(self)
        if self._process == os.getpid():
            await self.settle()

    def _raise_refused(self) -> None:
        self._collect()
        refused, self._refused = self._refused, {}
        for problem in refused.values():
            problem.refused = refused
            raise problem

    def _collect(self) -> None:
        """Look through the answers that have come so far."""
        self._pipeline.collect()
        while self._out and self._out[0][0].reply is not None:
            errand, body, size = self._out.popleft()
            self._bytes -= size
            try:
                self._receipts += sending.receipts(body.messages, errand.value(Kind.STORED), errand.resent)
            except QueueError as error:
                self._refused[body.messages[0].id] = error
        if self._told is None:
            self._receipts.clear()

    def _tell(self) -> None:
        """Nobody else waits for it, and whoever is told may send."""
        if self._told is None or self._is_telling:
            return
        self._is_telling = True
        try:
            while self._receipts:
                self._told(self._receipts.popleft())
        finally:
            self._is_telling = False

    async def __aenter__(self) -> "AsyncSender":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What went wrong inside stays what went wrong; somebody who interrupts does not wait."""
        if error is None:
            await self.close()
        elif isinstance(error, Exception):
            with suppress(QueueError):
                await self.close()
        else:
            self._is_closed = True
            self._left(self)
