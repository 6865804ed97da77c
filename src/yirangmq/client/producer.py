"""Producing messages: building PUBLISH frames, a pipelined sender, and batches of frames.

Messages are checked here by the rules of the server before they are sent. Each gets its id here, so sending it a
second time cannot store it twice.

The sender publishes one message at a time without waiting for the reply to the one before. It outlives its
connections: unanswered messages are sent again with the same ids, in the same order. A batch keeps several frames in
flight, collects their receipts in order, and stops at the first refusal. Coroutines; building frames is sans-IO."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Generic, TypeVar

import msgspec

from yirangmq.client.connection import PendingRequest, Pipeline, ReconnectingConnection
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, QueueError, Unreachable
from yirangmq.core.message import Envelope
from yirangmq.core.ports import AddResult, Ids, new_add_result
from yirangmq.format.envelope import NewMessage, build, read
from yirangmq.format.json_codec import dumps
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind
from yirangmq.wire.messages import OutgoingMessageBody

# -- frames ------------------------------------------------------------------------------------------------------------

FRAME_MESSAGES = 128
FRAME_BYTES = 256 * 1024
"""Limits of one frame: it is full when it reaches either. Larger frames arrive later and are not cheaper."""
MESSAGE_BYTES = 200
"""Upper bound of a message's size in a frame besides payload and header, in bytes."""


def outgoing(queue: str, message: object, id: str) -> OutgoingMessageBody:
    """Convert any JSON value, bytes, or a ``NewMessage`` into a message of a PUBLISH frame."""
    if type(message) is bytes:
        return OutgoingMessageBody(message, False, "", id)
    if isinstance(message, NewMessage):
        return _from_envelope(build(queue, message, id, 0))
    if isinstance(message, bytes | bytearray | memoryview):
        return OutgoingMessageBody(bytes(message), False, "", id)
    try:
        return OutgoingMessageBody(dumps(message), True, "", id)
    except BadInput as error:
        raise BadInput(str(error), field="payload") from None


def all_outgoing(queue: str, messages: Iterable[object], ids: Ids) -> Iterator[OutgoingMessageBody]:
    """Convert messages and assign an id to each. The iterable is read in batches of one frame."""
    source = iter(messages)
    while batch := list(islice(source, FRAME_MESSAGES)):
        for message, id in zip(batch, ids.new(len(batch)), strict=True):
            yield outgoing(queue, message, id)


def needs_validation(messages: Iterable[object]) -> bool:
    """Return True if a message in this list may be invalid. Bytes are always valid, and an iterator cannot be read
    twice."""
    return isinstance(messages, list | tuple) and not all(type(message) is bytes for message in messages)


def outgoing_text(
    queue: str, text: bytes, id: str, delay: float | None, ttl: float | None, read_as: str | None
) -> OutgoingMessageBody:
    """Convert a JSON document: an envelope as it is, any other document wrapped as a payload."""
    return _from_envelope(read(queue, text, id, 0, delay=delay, ttl=ttl, read_as=read_as))


def _from_envelope(made: Envelope) -> OutgoingMessageBody:
    """The envelope was built for time 0, so its instants are durations. The server adds its own clock."""
    return OutgoingMessageBody(made.payload, made.is_json, made.header, made.id, made.available_at, made.expires_at)


def in_frames(queue: str, made: Iterable[OutgoingMessageBody], max_frame: int) -> Iterator[messages.Publish]:
    """Divide messages into PUBLISH frames.

    The message that fills a frame still belongs to it, regardless of its size, so a small batch with one large
    message is a single frame. A frame exceeds ``max_frame`` only if one message alone does."""
    batch: list[OutgoingMessageBody] = []
    size = 0
    for one in made:
        weight = len(one.payload) + 4 * len(one.header) + MESSAGE_BYTES
        if batch and (size >= FRAME_BYTES or len(batch) == FRAME_MESSAGES or size + weight > max_frame - MESSAGE_BYTES):
            yield messages.Publish(queue, batch)
            batch, size = [], 0
        batch.append(one)
        size += weight
    if batch:
        yield messages.Publish(queue, batch)


def receipts(sent: Sequence[OutgoingMessageBody], stored: messages.PublishReply, resent: bool) -> list[AddResult]:
    """Return the receipt of each message of a frame.

    If the frame was ``resent``, a message that an earlier send stored is not reported as a duplicate. The server
    does not send message numbers, so ``seq`` is 0."""
    made = [new_add_result((0, id, False, "")) for id in stored.ids]
    for n in stored.duplicates:
        if not (resent and stored.ids[n] == sent[n].id):
            made[n] = made[n]._replace(duplicate=True)
    for n, complaint in stored.refused.items():
        made[n] = made[n]._replace(refused=complaint)
    return made


# -- sender ------------------------------------------------------------------------------------------------------------

MAX_UNANSWERED_BYTES = 8 * 1024 * 1024
"""Upper bound of unanswered payloads, in bytes. A single larger message is sent alone."""


class AsyncClientSender:
    """Pipelined sender: ``async with client.sender(queue) as sender``. Leaving the block waits until every message
    is durable."""

    def __init__(
        self,
        connection: ReconnectingConnection,
        ids: Ids,
        queue: str,
        window: int,
        on_stored: Callable[[AddResult], object] | None,
        on_close: Callable[["AsyncClientSender"], None],
    ) -> None:
        validation.check_callback(on_stored)
        self._ids = ids
        self._queue = queue
        self._on_stored = on_stored
        self._on_close = on_close
        self._process = os.getpid()
        self._pipeline = Pipeline(connection, window, processes_received=True)
        self._out: deque[tuple[PendingRequest, messages.Publish, int]] = deque()
        self._bytes = 0
        self._lock = connection.lock()
        self._receipts: deque[AddResult] = deque()
        """Receipts not yet passed to the callback."""
        self._is_in_callback = False
        self._refused: dict[str, QueueError] = {}
        self._is_closed = False

    async def send(self, message: object) -> str:
        """Send one message: any JSON value, bytes, or a ``NewMessage``. Return its id.

        The message is durable when ``settle`` has returned. If earlier messages were refused, that error is raised
        instead, with their ids in its ``refused``. This message is not sent then."""
        made = outgoing(self._queue, message, self._ids.new(1)[0])
        body, size = messages.Publish(self._queue, [made]), len(made.payload) + len(made.header)
        request = PendingRequest(FrameKind.PUBLISH, body)
        async with self._lock:
            if self._is_closed or self._process != os.getpid():
                raise BadInput("closed, or created by another process; create another one", field="sender")
            self._raise_refused()
            while self._pipeline.has_unanswered and self._bytes + size > MAX_UNANSWERED_BYTES:
                await self._pipeline.settle_first()
                self._collect()
            await self._pipeline.put(request)
            self._out.append((request, body, size))
            self._bytes += size
            await self._ensure_sent(request)
            self._collect()
        self._run_callback()
        return made.id

    async def _ensure_sent(self, request: PendingRequest) -> None:
        """Resend on the next connection if the connection was lost during the send."""
        try:
            while request.slot is None and request.reply is None:
                await self._pipeline.settle_first()
        except BaseException:
            self._pipeline.abandon(request)
            if self._out and self._out[-1][0] is request:
                self._bytes -= self._out.pop()[2]
            raise

    async def settle(self) -> None:
        """Wait until every message sent so far is durable. Raises the first refusal, with all refusals in its
        ``refused``."""
        async with self._lock:
            await self._pipeline.finish()
            self._collect()
        self._run_callback()
        self._raise_refused()

    async def close(self) -> None:
        """Settle, then refuse further messages."""
        self._is_closed = True
        self._on_close(self)
        if self._process == os.getpid():
            await self.settle()

    def _raise_refused(self) -> None:
        self._collect()
        refused, self._refused = self._refused, {}
        for problem in refused.values():
            problem.refused = refused
            raise problem

    def _collect(self) -> None:
        """Process the replies that have arrived."""
        self._pipeline.collect()
        while self._out and self._out[0][0].reply is not None:
            request, body, size = self._out.popleft()
            self._bytes -= size
            try:
                self._receipts += receipts(body.messages, request.value(FrameKind.STORED), request.resent)
            except QueueError as error:
                self._refused[body.messages[0].id] = error
        if self._on_stored is None:
            self._receipts.clear()

    def _run_callback(self) -> None:
        """Pass receipts to the callback, without holding the lock: the callback may send messages."""
        if self._on_stored is None or self._is_in_callback:
            return
        self._is_in_callback = True
        try:
            while self._receipts:
                self._on_stored(self._receipts.popleft())
        finally:
            self._is_in_callback = False

    async def __aenter__(self) -> "AsyncClientSender":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the sender. An error inside the block is kept, and refusals are not raised over it. An interrupt
        does not wait."""
        if error is None:
            await self.close()
        elif isinstance(error, Exception):
            with suppress(QueueError):
                await self.close()
        else:
            self._is_closed = True
            self._on_close(self)


# -- batches of frames -------------------------------------------------------------------------------------------------

MAX_FRAMES_IN_FLIGHT = 8
"""Upper bound of unanswered frames: enough to keep the server busy, few to send again."""


Body = TypeVar("Body", bound=msgspec.Struct)
Receipt = TypeVar("Receipt")


class FrameBatch(Generic[Body, Receipt]):
    """Batch of frames of one kind, with several in flight.

    ``read`` returns a frame's receipts from its reply; ``count`` returns how many receipts the frame would have."""

    def __init__(
        self,
        connection: ReconnectingConnection,
        kind: FrameKind,
        read: Callable[[Body, PendingRequest], list[Receipt]],
        count: Callable[[Body], int],
    ) -> None:
        self._kind = kind
        self._read = read
        self._count = count
        self._pipeline = Pipeline(connection, MAX_FRAMES_IN_FLIGHT)
        self._out: deque[tuple[PendingRequest, Body]] = deque()
        self._receipts: list[Receipt | None] = []
        self._problem: QueueError | None = None

    async def send(self, frames: Iterable[Body]) -> list[Receipt]:
        """Send all frames and return their receipts. Stop at the first error and raise it, with the receipts so far."""
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
        request = PendingRequest(self._kind, body)
        self._out.append((request, body))
        await self._pipeline.put(request)
        self._collect()

    async def _finish(self) -> None:
        try:
            await self._pipeline.finish()
        except Unreachable as error:
            self._problem = self._problem or error

    def _collect(self, *, everything: bool = False) -> None:
        """Collect the receipts of the answered frames. With ``everything``, unanswered frames get None for each
        receipt."""
        while self._out and (everything or self._out[0][0].reply is not None):
            request, body = self._out.popleft()
            if request.reply is None:
                self._receipts += [None] * self._count(body)
                continue
            try:
                self._receipts += self._read(body, request)
            except QueueError as error:
                self._problem = self._problem or error
                self._receipts += [None] * self._count(body)
