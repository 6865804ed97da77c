"""The client's side of one connection, sans-IO: numbers for requests, frames out, answers to whoever asked.

Knows: the wire. Does not know: sockets, threads, asyncio, time. Bytes in, bytes out; a face moves them."""

from collections import deque
from typing import Any

import msgspec

from yirangmq.core.errors import BadInput, QueueError, TooLarge, Unavailable
from yirangmq.core.policy import MAX_BODY
from yirangmq.wire import calls
from yirangmq.wire.frames import HEAD, Frame, FrameReader, Kind

LARGEST_ANSWER = 2 * MAX_BODY
"""Bytes of one frame from the server: any single message fits, a stream of rubbish does not fill the memory."""
LAST_NUMBER = 2**32 - 1


class Lost(Exception):
    """This connection is of no use any more; what it left unanswered may be asked again on another one."""


class Slot:
    """One request on its way. ``frame`` is its answer once there is one; ``wake`` belongs to the face."""

    __slots__ = ("frame", "kind", "number", "wake")

    def __init__(self, kind: Kind, number: int) -> None:
        self.kind = kind
        self.number = number
        self.frame: Frame | None = None
        self.wake: Any = None

    @property
    def has_news(self) -> bool:
        return self.frame is not None


class Stream:
    """What was pushed to one subscription and not taken yet. It outlives its connections; ``wake`` is the face's."""

    __slots__ = ("error", "inbox", "is_over", "wake")

    def __init__(self) -> None:
        self.inbox: deque[Frame] = deque()
        self.error: QueueError | None = None
        self.is_over = False
        self.wake: Any = None

    @property
    def has_news(self) -> bool:
        return bool(self.inbox) or self.is_over


News = Slot | Stream


class Conversation:
    """One connection's worth of questions and answers."""

    def __init__(self) -> None:
        self._reader = FrameReader(LARGEST_ANSWER)
        self._slots: dict[int, Slot] = {}
        self._streams: dict[int, Stream] = {}
        self._orphans: set[int] = set()
        self._number = 0
        self.max_frame = LAST_NUMBER
        """The largest body the server takes; it says so in its welcome."""
        self.trouble: Exception | None = None
        """Why nothing more will come, once that is so."""

    # -- out --------------------------------------------------------------------------------------------------------

    def ask(self, kind: Kind, body: msgspec.Struct) -> tuple[Slot, bytes]:
        slot = Slot(kind, self._next_number())
        data = self._frame(kind, slot.number, body)
        self._slots[slot.number] = slot
        return slot, data

    def subscribe(self, stream: Stream, body: calls.Subscribe) -> tuple[int, bytes]:
        """The number of the subscription, and its frame."""
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

    def _frame(self, kind: Kind, number: int, body: msgspec.Struct) -> bytes:
        try:
            data = calls.frame(kind, number, body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadInput(f"cannot be sent: {error}", field="values") from None
        if len(data) - HEAD.size > self.max_frame:
            raise TooLarge(f"a frame of {len(data)} bytes, the server takes {self.max_frame}", field="payload")
        return data

    # -- in ---------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes | memoryview) -> tuple[list[News], bytes]:
        """Bytes from the server: who has news now, and bytes to send in return. ``Lost`` if they make no sense."""
        news: list[News] = []
        back = b""
        try:
            for frame in self._reader.feed(data):
                number = frame.request
                slot = self._slots.pop(number, None)
                if slot is not None:
                    slot.frame = frame
                    news.append(slot)
                elif number in self._streams:
                    news.append(self._push(self._streams[number], frame))
                elif number in self._orphans:
                    back += self._give_back(frame)
                elif frame.kind == Kind.ERROR:
                    raise answer_error(frame)
                elif frame.kind == Kind.BYE:
                    raise Unavailable("the server is stopping")
        except QueueError as error:
            self.end(error)
            raise Lost(str(error)) from error
        return news, back

    def end(self, trouble: Exception) -> list[News]:
        """Nothing more will come: everybody who waits. (Who asks why finds the first reason given.)"""
        if self.trouble is None:
            self.trouble = trouble
        return [*self._slots.values(), *self._streams.values()]

    def _push(self, stream: Stream, frame: Frame) -> Stream:
        if frame.kind == Kind.ERROR:
            stream.error, stream.is_over = answer_error(frame), True
        else:
            stream.inbox.append(frame)
        return stream

    def cancelled(self, number: int) -> Stream | None:
        """The server pushes nothing more for this subscription."""
        return self._streams.pop(number, None)

    def _give_back(self, frame: Frame) -> bytes:
        self._orphans.discard(frame.request)
        if frame.kind != Kind.DELIVER:
            return b""
        leases = [one.lease for one in calls.read(frame.kind, frame.body).messages]
        return calls.frame(Kind.RELEASE, self._next_number(), calls.Settle(leases)) if leases else b""


def answer_error(frame: Frame) -> QueueError:
    failed: calls.Failed = calls.read(frame.kind, frame.body)
    return calls.error_of(failed.code, failed.text, failed.field)


def answer(frame: Frame, wanted: Kind) -> Any:
    """The value of an answer of the kind wanted, or the error that came in its place."""
    if frame.kind == wanted:
        return calls.read(frame.kind, frame.body)
    if frame.kind == Kind.ERROR:
        raise answer_error(frame)
    raise QueueError(f"the server answered with a frame of kind {frame.kind} where {wanted.name} belongs")
