"""Messages that come one by one, each sent at once, without waiting for the answer to the one before. Written once, as
coroutines; ``client.faces`` blocks on them. It outlives its connections: what is unanswered is sent again, with the
same ids and in the same order."""

from collections import deque
from collections.abc import Callable
from types import TracebackType

from yirangmq.client import sending
from yirangmq.client.courier import Courier, Pipeline
from yirangmq.client.errand import Errand
from yirangmq.core.errors import BadInput, QueueError
from yirangmq.core.ports import Ids, Stored
from yirangmq.wire import calls
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
        self._ids = ids
        self._queue = queue
        self._told = told
        self._left = left
        self._pipeline = Pipeline(courier, window)
        self._out: deque[tuple[Errand, calls.Publish, int]] = deque()
        self._bytes = 0
        self._turn = courier.turn()
        self._problem: QueueError | None = None
        self._is_closed = False

    async def send(self, message: object) -> str:
        """Any JSON value, bytes, or a ``NewMessage``; its id. It is on disk when ``settle`` returned. A refusal is
        raised by one of the next calls, at the latest by ``settle`` or on leaving the ``with``."""
        made = sending.outgoing(self._queue, message, self._ids.new(1)[0])
        body = calls.Publish(self._queue, [made])
        size = len(made.payload)
        errand = Errand(Kind.PUBLISH, body)
        async with self._turn:
            if self._is_closed:
                raise BadInput("this sender was closed", field="sender")
            while self._out and self._bytes + size > MOST_BYTES:
                await self._pipeline.settle_first()
                self._collect()
            await self._pipeline.put(errand)
            self._out.append((errand, body, size))
            self._bytes += size
            self._raise_problem()
        return made.id

    async def settle(self) -> None:
        """Wait until everything sent so far is on disk."""
        async with self._turn:
            await self._pipeline.finish()
            self._raise_problem()

    async def close(self) -> None:
        """The same; then nothing more can be sent."""
        self._is_closed = True
        self._left(self)
        await self.settle()

    def _raise_problem(self) -> None:
        self._collect()
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _collect(self) -> None:
        """Look through the answers that have come so far."""
        self._pipeline.collect()
        while self._out and self._out[0][0].reply is not None:
            errand, body, size = self._out.popleft()
            self._bytes -= size
            try:
                [receipt] = sending.receipts(body.messages, errand.value(Kind.STORED), errand.resent)
            except QueueError as error:
                error.add_note(f"message {body.messages[0].id}")
                self._problem = self._problem or error
            else:
                if self._told is not None:
                    self._told(receipt)

    async def __aenter__(self) -> "AsyncSender":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
