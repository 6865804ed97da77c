"""Session of one connection, sans-IO: request numbers, outgoing frames, replies; inbox of a topic subscription.

A transport moves the bytes. A request that is no longer awaited is abandoned. Messages that an abandoned lease
request brings are released as soon as they arrive. An unreadable frame ends the connection with ``ConnectionLost``.

The inbox holds records and the frames about them in order of arrival. The session fills it, and a subscription empties
it, perhaps in another thread. Backpressure: above ``HIGH_WATER_MARK`` bytes the transport should stop reading."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from yirangmq.client.values import TopicRecord, new_topic_record
from yirangmq.core.errors import BadInput, NotActive, QueueError, TooLarge, Unavailable
from yirangmq.core.policy import MAX_BODY
from yirangmq.wire import messages
from yirangmq.wire.frames import HEAD, MAX_IDLE_BUFFER, FrameKind, ReceiveBuffer
from yirangmq.wire.records import KIND, read_body

# -- inbox of a topic subscription -------------------------------------------------------------------------------------

RECORD = KIND
RECORD_CONTROL_KINDS = frozenset(
    {FrameKind.TOPIC_SUBSCRIBED, FrameKind.RECOVERY_RESPONSE, FrameKind.RECOVERY_COMPLETE, FrameKind.PROGRESS}
)
"""Kinds of frames that describe the records before or after them."""
HIGH_WATER_MARK = 4 << 20
"""High-water mark of the inbox, in bytes. Above it the transport should stop reading."""

Part = list[TopicRecord] | Any
"""Consecutive records, or one frame about them."""


class TopicInbox:
    """Inbox of a topic subscription: records and frames about them, one entry per read.

    The session adds entries; the subscription takes them, perhaps in another thread. ``wake`` belongs to the
    transport."""

    __slots__ = ("_parts", "_row", "entries", "is_over", "size", "wake")

    def __init__(self) -> None:
        self.entries: deque[tuple[list[Part], int]] = deque()
        self.wake: Any = None
        self.is_over = False
        self.size = 0
        self._parts: list[Part] = []
        self._row: list[TopicRecord] | None = None

    @property
    def has_data(self) -> bool:
        return bool(self.entries) or self.is_over

    @property
    def is_full(self) -> bool:
        return self.size > HIGH_WATER_MARK and not self.is_over

    # -- filled by the session -----------------------------------------------------------------------------------------

    def add_record(self, body: memoryview) -> None:
        if self.is_over:
            return
        record = read_body(body, new_topic_record)
        if self._row is None:
            self._row = []
            self._parts.append(self._row)
        self._row.append(record)

    def add(self, control_frame: Any) -> None:
        if self.is_over:
            return
        self._row = None
        self._parts.append(control_frame)

    def put(self, size: int) -> bool:
        """Publish the parts of one read of ``size`` bytes to the subscription. Return False if a waiter need not
        wake."""
        if not self._parts:
            return self.is_over
        parts, self._parts, self._row = self._parts, [], None
        self.size += size
        self.entries.append((parts, size))
        return True

    # -- emptied by the subscription -----------------------------------------------------------------------------------

    def take(self) -> list[Part]:
        """Return all parts of one read; an empty list if there is none."""
        try:
            parts, size = self.entries.popleft()
        except IndexError:
            return []
        self.size -= size
        return parts

    def clear(self) -> None:
        """Discard the data of a lost connection."""
        self.entries.clear()
        self._parts, self._row, self.size = [], None, 0


# -- session -----------------------------------------------------------------------------------------------------------

MAX_REPLY_BYTES = 2 * MAX_BODY
"""Upper bound of a frame from the server, in bytes. Any single message fits; a corrupt stream cannot fill the
memory."""
MAX_REQUEST_NUMBER = 2**32 - 1


class ConnectionLost(Exception):
    """The connection is lost. Unanswered requests may be sent again on another connection."""

    is_unsent = False
    """True if no byte of the request was sent, so that the server cannot have received it."""


class Reply(NamedTuple):
    """Kind and value of a reply frame."""

    kind: int
    value: Any

    def wanted(self, kind: FrameKind) -> Any:
        """Return the value if the reply is of this kind. Raise the error that the server sent instead."""
        if self.kind == kind:
            return self.value
        if self.kind == FrameKind.ERROR:
            raise self.error()
        raise QueueError(f"the server answered with a frame of kind {self.kind} where {kind.name} belongs")

    def error(self) -> QueueError:
        failed: messages.ErrorBody = self.value
        return messages.error_of(failed.code, failed.text, failed.field)


new_reply = cast("Callable[[tuple[int, Any]], Reply]", partial(tuple.__new__, Reply))


class Slot:
    """One request in flight. ``reply`` is set when it has arrived; ``wake`` belongs to the transport."""

    __slots__ = ("kind", "number", "reply", "wake")

    def __init__(self, kind: FrameKind, number: int) -> None:
        self.kind = kind
        self.number = number
        self.reply: Reply | None = None
        self.wake: Any = None

    @property
    def has_data(self) -> bool:
        return self.reply is not None

    @property
    def is_retryable(self) -> bool:
        """True if the server refused the request without executing it, so that a retry, perhaps elsewhere, may
        succeed."""
        reply = self.reply
        return reply is not None and reply.kind == FrameKind.ERROR and isinstance(reply.error(), Unavailable)


class QueueInbox:
    """Inbox of a queue subscription: frames that were pushed and not taken yet. It outlives its connections;
    ``wake`` belongs to the transport."""

    __slots__ = ("entries", "error", "is_over", "wake")

    def __init__(self) -> None:
        self.entries: deque[messages.Deliver] = deque()
        self.error: QueueError | None = None
        self.is_over = False
        self.wake: Any = None

    @property
    def has_data(self) -> bool:
        return bool(self.entries) or self.is_over


DataSource = Slot | QueueInbox | TopicInbox


class ClientSession:
    """Sans-IO session of one connection: requests in flight, subscriptions, and the frame decoder."""

    def __init__(self) -> None:
        self._intake = ReceiveBuffer(MAX_REPLY_BYTES)
        self._out = bytearray()
        self._slots: dict[int, Slot] = {}
        self._queue_inboxes: dict[int, QueueInbox] = {}
        self._orphans: set[int] = set()
        self._number = 0
        self.free_space = self._intake.free_space
        """Returns the buffer for bytes from the server; ``receive`` then takes their number."""
        self.max_frame = MAX_REPLY_BYTES
        """Upper bound of a frame's body that the server accepts, in bytes, as given in its WELCOME frame."""
        self.failure: Exception | None = None
        """The reason of the loss, or None while the connection is usable."""
        self.topic_inbox: TopicInbox | None = None
        """Destination of topic records, on a connection with a topic subscription."""

    @property
    def is_single(self) -> bool:
        """True if exactly one request is in flight and there is no subscription."""
        return len(self._slots) == 1 and not self._queue_inboxes

    # -- requests ------------------------------------------------------------------------------------------------------

    def request(self, kind: FrameKind, body: msgspec.Struct) -> tuple[Slot, bytearray]:
        """Return a new request and its bytes. The bytes are valid until the next frame is built."""
        slot = Slot(kind, self._next_number())
        data = self._frame(kind, slot.number, body)
        self._slots[slot.number] = slot
        return slot, data

    def subscribe(self, queue_inbox: QueueInbox, body: messages.Subscribe) -> tuple[int, bytearray]:
        """Return the number of a new queue subscription and its bytes, valid until the next frame is built."""
        number = self._next_number()
        data = self._frame(FrameKind.SUBSCRIBE, number, body)
        self._queue_inboxes[number] = queue_inbox
        return number, data

    def abandon(self, slot: Slot) -> None:
        """Abandon a request. Messages that its reply brings are released as soon as they arrive."""
        if self._slots.pop(slot.number, None) is not None and slot.kind is FrameKind.LEASE:
            self._orphans.add(slot.number)

    def _next_number(self) -> int:
        number = self._number
        while True:
            number = number % MAX_REQUEST_NUMBER + 1
            if number not in self._slots and number not in self._queue_inboxes and number not in self._orphans:
                self._number = number
                return number

    def _frame(self, kind: FrameKind, number: int, body: msgspec.Struct) -> bytearray:
        if len(self._out) > MAX_IDLE_BUFFER:
            self._out = bytearray()
        try:
            messages.write_frame(self._out, kind, number, body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadInput(f"cannot be sent: {error}", field="values") from None
        size = len(self._out) - HEAD.size
        if size > self.max_frame:
            raise TooLarge(f"a frame of {size} bytes, the server takes {self.max_frame}", field="payload")
        return self._out

    # -- replies -------------------------------------------------------------------------------------------------------

    def receive(self, count: int) -> tuple[list[DataSource], bytes]:
        """Process ``count`` received bytes. Return the objects that have new data, and bytes to send to the server.

        Raises ``ConnectionLost`` if the bytes are malformed or the server ends the connection."""
        updated: list[DataSource] = []
        replies = b""
        topic_inbox = self.topic_inbox
        try:
            for kind, number, body in self._intake.filled(count):
                if kind == RECORD and topic_inbox is not None:
                    topic_inbox.add_record(body)
                    continue
                reply = new_reply((kind, messages.read(kind, body)))
                if topic_inbox is not None and kind in RECORD_CONTROL_KINDS:
                    topic_inbox.add(reply.value)
                slot = self._slots.pop(number, None)
                if slot is not None:
                    slot.reply = reply
                    updated.append(slot)
                elif number in self._queue_inboxes:
                    updated.append(_add_pushed(self._queue_inboxes[number], reply))
                elif number in self._orphans:
                    replies += self._release_orphaned(number, reply)
                elif kind == FrameKind.ERROR:
                    raise reply.error()
                elif kind == FrameKind.BYE:
                    raise Unavailable("the server is stopping")
        except QueueError as error:
            self.fail(error)
            raise ConnectionLost(str(error)) from error
        finally:
            if topic_inbox is not None and topic_inbox.put(count):
                updated.append(topic_inbox)
        return updated, replies

    def fail(self, failure: Exception) -> list[DataSource]:
        """Mark the connection as lost and return every object that a caller may wait for. The first reason given is
        kept."""
        if self.failure is None:
            self.failure = failure
        others: tuple[DataSource, ...] = () if self.topic_inbox is None else (self.topic_inbox,)
        return [*self._slots.values(), *self._queue_inboxes.values(), *others]

    def remove_subscription(self, number: int) -> QueueInbox | None:
        """Remove a subscription for which the server pushes nothing more."""
        return self._queue_inboxes.pop(number, None)

    def _release_orphaned(self, number: int, reply: Reply) -> bytes:
        self._orphans.discard(number)
        leases = [one.lease for one in reply.value.messages] if reply.kind == FrameKind.DELIVER else []
        return messages.frame(FrameKind.RELEASE, self._next_number(), messages.Settle(leases)) if leases else b""


def _add_pushed(queue_inbox: QueueInbox, reply: Reply) -> QueueInbox:
    if reply.kind == FrameKind.ERROR:
        error = reply.error()
        if isinstance(error, NotActive):
            raise error  # the whole connection is useless: another node is active
        queue_inbox.error, queue_inbox.is_over = error, True
    else:
        queue_inbox.entries.append(reply.wanted(FrameKind.DELIVER))
    return queue_inbox
