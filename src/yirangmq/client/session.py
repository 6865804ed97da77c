"""Session of one connection, sans-IO: request numbers, outgoing frames, replies; inbox of a topic subscription.

A transport moves the bytes. A request that is no longer awaited is abandoned. Messages that an abandoned lease
request brings are released as soon as they arrive. An unreadable frame ends the connection with ``Lost``.

The inbox holds records and the frames about them in order of arrival. The session fills it, and a subscription
empties it, perhaps in another thread. Backpressure: above ``PLENTY`` bytes the transport should stop reading."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from yirangmq.client.values import TopicRecord, new_topic_record
from yirangmq.core.errors import BadInput, NotActive, QueueError, TooLarge, Unavailable
from yirangmq.core.policy import MAX_BODY
from yirangmq.wire import messages
from yirangmq.wire.frames import HEAD, LARGEST_KEPT, Intake, Kind
from yirangmq.wire.records import KIND, read_body

# -- inbox of a topic subscription -------------------------------------------------------------------------------------

RECORD = KIND
SAID = frozenset({Kind.TOPIC_SUBSCRIBED, Kind.RECOVERY_RESPONSE, Kind.RECOVERY_COMPLETE, Kind.PROGRESS})
"""Kinds of frames that describe the records before or after them."""
PLENTY = 4 << 20
"""High-water mark of the inbox, in bytes. Above it the transport should stop reading."""

Part = list[TopicRecord] | Any
"""Consecutive records, or one frame about them."""


class Feed:
    """Inbox of a topic subscription: records and frames about them, one entry per read.

    The session adds entries; the subscription takes them, perhaps in another thread. ``wake`` belongs to the
    transport."""

    __slots__ = ("_parts", "_row", "inbox", "is_over", "size", "wake")

    def __init__(self) -> None:
        self.inbox: deque[tuple[list[Part], int]] = deque()
        self.wake: Any = None
        self.is_over = False
        self.size = 0
        self._parts: list[Part] = []
        self._row: list[TopicRecord] | None = None

    @property
    def has_news(self) -> bool:
        return bool(self.inbox) or self.is_over

    @property
    def is_full(self) -> bool:
        return self.size > PLENTY

    # -- filled by the session -----------------------------------------------------------------------------------------

    def add_record(self, body: memoryview) -> None:
        if self.is_over:
            return
        record = read_body(body, new_topic_record)
        if self._row is None:
            self._row = []
            self._parts.append(self._row)
        self._row.append(record)

    def add(self, said: Any) -> None:
        if self.is_over:
            return
        self._row = None
        self._parts.append(said)

    def put(self, size: int) -> bool:
        """Publish the parts of one read of ``size`` bytes to the subscription. Return False if a waiter need not
        wake."""
        if not self._parts:
            return self.is_over
        parts, self._parts, self._row = self._parts, [], None
        self.size += size
        self.inbox.append((parts, size))
        return True

    # -- emptied by the subscription -----------------------------------------------------------------------------------

    def take(self) -> list[Part]:
        """Return all parts of one read; an empty list if there is none."""
        try:
            parts, size = self.inbox.popleft()
        except IndexError:
            return []
        self.size -= size
        return parts

    def clear(self) -> None:
        """Discard the data of a lost connection."""
        self.inbox.clear()
        self._parts, self._row, self.size = [], None, 0


# -- session -----------------------------------------------------------------------------------------------------------

LARGEST_ANSWER = 2 * MAX_BODY
"""Upper bound of a frame from the server, in bytes. Any single message fits; a corrupt stream cannot fill the
memory."""
LAST_NUMBER = 2**32 - 1


class Lost(Exception):
    """The connection is lost. Unanswered requests may be sent again on another connection."""

    is_unsent = False
    """True if no byte of the request was sent, so that the server cannot have received it."""


class Reply(NamedTuple):
    """Kind and value of a reply frame."""

    kind: int
    value: Any

    def wanted(self, kind: Kind) -> Any:
        """Return the value if the reply is of this kind. Raise the error that the server sent instead."""
        if self.kind == kind:
            return self.value
        if self.kind == Kind.ERROR:
            raise self.error()
        raise QueueError(f"the server answered with a frame of kind {self.kind} where {kind.name} belongs")

    def error(self) -> QueueError:
        failed: messages.Failed = self.value
        return messages.error_of(failed.code, failed.text, failed.field)


new_reply = cast("Callable[[tuple[int, Any]], Reply]", partial(tuple.__new__, Reply))


class Slot:
    """One request in flight. ``reply`` is set when it has arrived; ``wake`` belongs to the transport."""

    __slots__ = ("kind", "number", "reply", "wake")

    def __init__(self, kind: Kind, number: int) -> None:
        self.kind = kind
        self.number = number
        self.reply: Reply | None = None
        self.wake: Any = None

    @property
    def has_news(self) -> bool:
        return self.reply is not None

    @property
    def is_turned_away(self) -> bool:
        """True if the server refused the request without executing it, so that a retry, perhaps elsewhere, may
        succeed."""
        reply = self.reply
        return reply is not None and reply.kind == Kind.ERROR and isinstance(reply.error(), Unavailable)


class Stream:
    """Inbox of a queue subscription: frames that were pushed and not taken yet. It outlives its connections;
    ``wake`` belongs to the transport."""

    __slots__ = ("error", "inbox", "is_over", "wake")

    def __init__(self) -> None:
        self.inbox: deque[messages.Deliver] = deque()
        self.error: QueueError | None = None
        self.is_over = False
        self.wake: Any = None

    @property
    def has_news(self) -> bool:
        return bool(self.inbox) or self.is_over


News = Slot | Stream | Feed


class Conversation:
    """Sans-IO session of one connection: requests in flight, subscriptions, and the frame decoder."""

    def __init__(self) -> None:
        self._intake = Intake(LARGEST_ANSWER)
        self._out = bytearray()
        self._slots: dict[int, Slot] = {}
        self._streams: dict[int, Stream] = {}
        self._orphans: set[int] = set()
        self._number = 0
        self.room = self._intake.room
        """Returns the buffer for bytes from the server; ``receive`` then takes their number."""
        self.max_frame = LARGEST_ANSWER
        """Upper bound of a frame's body that the server accepts, in bytes, as given in its WELCOME frame."""
        self.trouble: Exception | None = None
        """The reason of the loss, or None while the connection is usable."""
        self.feed: Feed | None = None
        """Destination of topic records, on a connection with a topic subscription."""

    @property
    def is_single(self) -> bool:
        """True if exactly one request is in flight and there is no subscription."""
        return len(self._slots) == 1 and not self._streams

    # -- requests ------------------------------------------------------------------------------------------------------

    def ask(self, kind: Kind, body: msgspec.Struct) -> tuple[Slot, bytearray]:
        """Return a new request and its bytes. The bytes are valid until the next frame is built."""
        slot = Slot(kind, self._next_number())
        data = self._frame(kind, slot.number, body)
        self._slots[slot.number] = slot
        return slot, data

    def subscribe(self, stream: Stream, body: messages.Subscribe) -> tuple[int, bytearray]:
        """Return the number of a new queue subscription and its bytes, valid until the next frame is built."""
        number = self._next_number()
        data = self._frame(Kind.SUBSCRIBE, number, body)
        self._streams[number] = stream
        return number, data

    def forget(self, slot: Slot) -> None:
        """Abandon a request. Messages that its reply brings are released as soon as they arrive."""
        if self._slots.pop(slot.number, None) is not None and slot.kind is Kind.LEASE:
            self._orphans.add(slot.number)

    def _next_number(self) -> int:
        number = self._number
        while True:
            number = number % LAST_NUMBER + 1
            if number not in self._slots and number not in self._streams and number not in self._orphans:
                self._number = number
                return number

    def _frame(self, kind: Kind, number: int, body: msgspec.Struct) -> bytearray:
        if len(self._out) > LARGEST_KEPT:
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

    def receive(self, count: int) -> tuple[list[News], bytes]:
        """Process ``count`` received bytes. Return the objects that have new data, and bytes to send to the server.

        Raises ``Lost`` if the bytes are malformed or the server ends the connection."""
        news: list[News] = []
        back = b""
        feed = self.feed
        try:
            for kind, number, body in self._intake.filled(count):
                if kind == RECORD and feed is not None:
                    feed.add_record(body)
                    continue
                reply = new_reply((kind, messages.read(kind, body)))
                if feed is not None and kind in SAID:
                    feed.add(reply.value)
                slot = self._slots.pop(number, None)
                if slot is not None:
                    slot.reply = reply
                    news.append(slot)
                elif number in self._streams:
                    news.append(_pushed(self._streams[number], reply))
                elif number in self._orphans:
                    back += self._give_back(number, reply)
                elif kind == Kind.ERROR:
                    raise reply.error()
                elif kind == Kind.BYE:
                    raise Unavailable("the server is stopping")
        except QueueError as error:
            self.end(error)
            raise Lost(str(error)) from error
        finally:
            if feed is not None and feed.put(count):
                news.append(feed)
        return news, back

    def end(self, trouble: Exception) -> list[News]:
        """Mark the connection as lost and return every object that a caller may wait for. The first reason given is
        kept."""
        if self.trouble is None:
            self.trouble = trouble
        others: tuple[News, ...] = () if self.feed is None else (self.feed,)
        return [*self._slots.values(), *self._streams.values(), *others]

    def cancelled(self, number: int) -> Stream | None:
        """Remove a subscription for which the server pushes nothing more."""
        return self._streams.pop(number, None)

    def _give_back(self, number: int, reply: Reply) -> bytes:
        self._orphans.discard(number)
        leases = [one.lease for one in reply.value.messages] if reply.kind == Kind.DELIVER else []
        return messages.frame(Kind.RELEASE, self._next_number(), messages.Settle(leases)) if leases else b""


def _pushed(stream: Stream, reply: Reply) -> Stream:
    if reply.kind == Kind.ERROR:
        error = reply.error()
        if isinstance(error, NotActive):
            raise error  # the whole connection is useless: another node is active
        stream.error, stream.is_over = error, True
    else:
        stream.inbox.append(reply.wanted(Kind.DELIVER))
    return stream
