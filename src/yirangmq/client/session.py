"""Session of one connection, sans-IO: request numbers, frames out, answers in; inbox of a topic subscription.

Bytes go in and out; a transport moves them. A request that is no longer awaited is forgotten; messages that a forgotten
lease brings are released as soon as they come. A frame that cannot be read ends the connection with ``Lost``.

The inbox holds records and the frames about them in order of arrival. The session fills it, and a subscription
empties it, perhaps in another thread. Above ``PLENTY`` bytes no more should be read."""

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
"""Kinds that say something about the records around them."""
PLENTY = 4 << 20
"""Bytes that wait to be taken, past which no more should be read."""

Part = list[TopicRecord] | Any
"""Records in a row, or what was said between them."""


class Feed:
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
        """So many bytes were read; what they brought can be taken now. False: nothing, and nobody need look."""
        if not self._parts:
            return self.is_over
        parts, self._parts, self._row = self._parts, [], None
        self.size += size
        self.inbox.append((parts, size))
        return True

    # -- emptied by the subscription -----------------------------------------------------------------------------------

    def take(self) -> list[Part]:
        """All that came with one read; nothing if there is none."""
        try:
            parts, size = self.inbox.popleft()
        except IndexError:
            return []
        self.size -= size
        return parts

    def clear(self) -> None:
        """What came over a connection that is gone."""
        self.inbox.clear()
        self._parts, self._row, self.size = [], None, 0


# -- session -----------------------------------------------------------------------------------------------------------

LARGEST_ANSWER = 2 * MAX_BODY
"""Bytes of one frame from the server: any single message fits, a stream of rubbish does not fill the memory."""
LAST_NUMBER = 2**32 - 1


class Lost(Exception):
    """This connection is of no use any more; what it left unanswered may be asked again on another one."""

    is_unsent = False
    """Nothing of the request left us, so that nobody can have heard it."""


class Reply(NamedTuple):
    """What a frame said."""

    kind: int
    value: Any

    def wanted(self, kind: Kind) -> Any:
        """Its value if it is of this kind, or the error that came in its place."""
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
    """One request on its way. ``reply`` is there once it has come; ``wake`` belongs to the face."""

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
        """Nothing was done, and asking later or elsewhere may help."""
        reply = self.reply
        return reply is not None and reply.kind == Kind.ERROR and isinstance(reply.error(), Unavailable)


class Stream:
    """What was pushed to one subscription and not taken yet. It outlives its connections; ``wake`` is the face's."""

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
    """One connection's worth of questions and answers."""

    def __init__(self) -> None:
        self._intake = Intake(LARGEST_ANSWER)
        self._out = bytearray()
        self._slots: dict[int, Slot] = {}
        self._streams: dict[int, Stream] = {}
        self._orphans: set[int] = set()
        self._number = 0
        self.room = self._intake.room
        """Where bytes from the server are to be put, before ``receive`` is told how many."""
        self.max_frame = LARGEST_ANSWER
        """The largest body the server takes; it says so in its welcome."""
        self.trouble: Exception | None = None
        """Why nothing more will come, once that is so."""
        self.feed: Feed | None = None
        """Where records of topics go, on a connection that follows a feed."""

    @property
    def is_single(self) -> bool:
        """Only one answer is waited for, and nothing else."""
        return len(self._slots) == 1 and not self._streams

    # -- requests ------------------------------------------------------------------------------------------------------

    def ask(self, kind: Kind, body: msgspec.Struct) -> tuple[Slot, bytearray]:
        """A request and its bytes, which are good until the next one is made."""
        slot = Slot(kind, self._next_number())
        data = self._frame(kind, slot.number, body)
        self._slots[slot.number] = slot
        return slot, data

    def subscribe(self, stream: Stream, body: messages.Subscribe) -> tuple[int, bytearray]:
        """The number of the subscription, and its bytes."""
        number = self._next_number()
        data = self._frame(Kind.SUBSCRIBE, number, body)
        self._streams[number] = stream
        return number, data

    def forget(self, slot: Slot) -> None:
        """Nobody waits for it any more. Messages it would have brought go back as soon as they come."""
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

    # -- answers -------------------------------------------------------------------------------------------------------

    def receive(self, count: int) -> tuple[list[News], bytes]:
        """So many bytes came from the server: who has news now, and bytes to send in return. ``Lost`` if they make no
        sense, or say that there will be no more."""
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
        """Nothing more will come: everybody who waits. (Who asks why finds the first reason given.)"""
        if self.trouble is None:
            self.trouble = trouble
        others: tuple[News, ...] = () if self.feed is None else (self.feed,)
        return [*self._slots.values(), *self._streams.values(), *others]

    def cancelled(self, number: int) -> Stream | None:
        """The server pushes nothing more for this subscription."""
        return self._streams.pop(number, None)

    def _give_back(self, number: int, reply: Reply) -> bytes:
        self._orphans.discard(number)
        leases = [one.lease for one in reply.value.messages] if reply.kind == Kind.DELIVER else []
        return messages.frame(Kind.RELEASE, self._next_number(), messages.Settle(leases)) if leases else b""


def _pushed(stream: Stream, reply: Reply) -> Stream:
    if reply.kind == Kind.ERROR:
        error = reply.error()
        if isinstance(error, NotActive):
            raise error  # of no use as a whole: the work is done elsewhere
        stream.error, stream.is_over = error, True
    else:
        stream.inbox.append(reply.wanted(Kind.DELIVER))
    return stream
