"""Frame codec of the native protocol, with a frame reader for servers and a receive buffer for clients.

``docs/wire.md`` draws the layout; tests/golden pins it:

    0        4         5      6       8          12
    | length | version | kind | flags | request  | body …
      u32      u8        u8     u16     u32        length bytes

Big-endian. The requester chooses the number ``request``, and the reply repeats it; a pushed delivery carries the number
of its subscription. A frame that is too large is refused by its header alone. Sans-IO.

``FrameReader`` keeps no more memory than unfinished frames need, for a side with many peers. ``Intake`` is for a side
that receives much: the socket writes into one reused buffer, and the frames are views of it, without a copy. In both,
``room`` is where to write and ``filled`` says how many bytes were written."""

import struct
from collections.abc import Callable, Generator, Iterator
from enum import IntEnum
from functools import partial
from typing import NamedTuple, cast

from yirangmq.core.errors import BadInput, TooLarge

VERSION = 1
HEAD = struct.Struct(">IBBHI")
MAX_FRAME = 16 * 1024 * 1024
"""Sixteen of the largest default messages; a batch of more goes in several frames."""
LARGE = 64 * 1024
"""Bytes from which on the rest of a frame is read to where it belongs."""
ROOM_TIMES = 4
"""So many times as much as has come is kept for a frame at most."""


class Kind(IntEnum):
    HELLO = 1
    WELCOME = 2
    PUBLISH = 3
    STORED = 4
    LEASE = 5
    DELIVER = 6
    ACK = 7
    NACK = 8
    EXTEND = 9
    SETTLED = 10
    SUBSCRIBE = 11
    CANCEL = 12
    CALL = 13
    RESULT = 14
    ERROR = 15
    PING = 16
    PONG = 17
    BYE = 18
    RELEASE = 19
    # 20 is a record of a topic, in a layout of its own: wire/records.py. 21 and 22 lie in its log only.
    TOPIC_PUBLISH = 23
    TOPIC_STORED = 24
    TOPIC_SUBSCRIBE = 25
    TOPIC_SUBSCRIBED = 26
    RECOVERY_REQUEST = 27
    RECOVERY_RESPONSE = 28
    RECOVERY_COMPLETE = 29
    CONFIRM = 30
    CONFIRMED = 31
    UNSUBSCRIBE = 32
    PROGRESS = 33


class Frame(NamedTuple):
    kind: int
    request: int
    body: bytes | memoryview


new_frame = cast("Callable[[tuple[int, int, memoryview]], Frame]", partial(tuple.__new__, Frame))


def encode(kind: int, request: int, body: bytes) -> bytes:
    return HEAD.pack(len(body), VERSION, kind, 0, request) + body


NOTHING = memoryview(b"")


# -- frame reader ------------------------------------------------------------------------------------------------------


class FrameReader:
    """Feed it any split of the bytes, take whole frames out. A frame too large is refused by its head alone.

    Bodies lie in what was fed: who feeds memory that is used again has made of a body what it wants before that. Of a
    large frame that comes in pieces, the rest may be put where it belongs: ``room``, then ``filled``."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        self._buffer = bytearray()
        self._need = HEAD.size
        self._end = 0
        """How much of ``_buffer`` has come, if it is one large frame in the making; else 0, and all of it has."""

    @property
    def held(self) -> int:
        """Bytes of an unfinished frame kept in memory, and for what is to come of it."""
        return len(self._buffer)

    def room(self) -> memoryview | None:
        """Where the next bytes are to be put; None: anywhere, and then they are fed."""
        return memoryview(self._buffer)[self._end :] if self._end else None

    def filled(self, count: int) -> Generator[Frame, None, None]:
        """So many bytes were put into ``room``."""
        self._end += count
        return self._whole(self._given_up() if self._end == len(self._buffer) else NOTHING)

    def feed(self, data: bytes | bytearray | memoryview) -> Generator[Frame, None, None]:
        """Whole frames of what has come so far; who stops early goes on with ``feed(b"")``. After an error the stream
        is beyond repair: close it."""
        if self._end:
            return self._fill(memoryview(data))
        if self._buffer:
            self._buffer += data
            is_whole = len(self._buffer) >= self._need
            if not is_whole:
                self._make_room()  # a large frame in small pieces is looked at when it is whole, not at each piece
            return self._whole(self._given_up() if is_whole else NOTHING)
        return self._whole(memoryview(data))

    def _whole(self, data: memoryview) -> Generator[Frame, None, None]:
        at, end = 0, len(data)
        if end:
            self._need = HEAD.size
        try:
            while end - at >= HEAD.size:
                length, version, kind, flags, request = HEAD.unpack_from(data, at)
                check_head(length, version, flags, self.max_frame)
                if end - at < HEAD.size + length:
                    self._need = HEAD.size + length
                    break
                begin = at + HEAD.size
                at = begin + length
                yield new_frame((kind, request, data[begin:at]))
        finally:
            if at < end:
                self._buffer += data[at:]
                self._make_room()

    def _given_up(self) -> memoryview:
        """What was held; it is not used again."""
        data, self._buffer, self._end = memoryview(self._buffer), bytearray(), 0
        return data

    def _make_room(self) -> None:
        """For the rest of a large frame, once so much of it has come that nobody can make us keep much with little."""
        have = len(self._buffer)
        if LARGE <= self._need <= ROOM_TIMES * have and have < self._need:
            self._end = have
            self._buffer += bytes(self._need - have)

    def _fill(self, data: memoryview) -> Generator[Frame, None, None]:
        """What belongs into the room came another way, and perhaps more."""
        count = min(len(data), len(self._buffer) - self._end)
        self._buffer[self._end : self._end + count] = data[:count]
        if count == len(data):
            return self.filled(count)
        self._buffer += data[count:]
        return self._whole(self._given_up())


def check_head(length: int, version: int, flags: int, most: int) -> None:
    if version != VERSION:
        text = f"frame version {version}, this side speaks {VERSION}: another protocol, or another release"
        raise BadInput(text, field="version")
    if flags:
        raise BadInput(f"flags {flags:#06x} are not known in version {VERSION}", field="flags")
    if length > most:
        raise TooLarge(f"a frame of {length} bytes, at most {most}", field="length")


# -- receive buffer ----------------------------------------------------------------------------------------------------

PIECE = 256 * 1024
"""What there is always room for: as much as a socket hands over at once."""
LARGEST_KEPT = 4 * PIECE
"""A buffer that grew past this for one large frame is given up after it."""


class Seen(NamedTuple):
    """A frame in the buffer; ``body`` is good until the next one is asked for."""

    kind: int
    request: int
    body: memoryview


new_seen = cast("Callable[[tuple[int, int, memoryview]], Seen]", partial(tuple.__new__, Seen))


class Intake:
    def __init__(self, max_frame: int) -> None:
        self._max = max_frame
        self._view = memoryview(bytearray(2 * PIECE))
        self._begin = self._end = 0
        self._need = HEAD.size

    def room(self) -> memoryview:
        """Where the next bytes go."""
        free = len(self._view) - self._end
        if free < PIECE or (len(self._view) > LARGEST_KEPT and self._begin == self._end):
            self._make_room()
        return self._view[self._end :]

    def _make_room(self) -> None:
        """What is unfinished moves to the front, of a larger buffer if the frame it belongs to needs one."""
        held = self._view[self._begin : self._end]
        size = max(2 * PIECE, self._need + PIECE)
        if len(self._view) < size or len(self._view) > LARGEST_KEPT >= size:
            self._view = memoryview(bytearray(size))
        self._view[: len(held)] = held
        self._begin, self._end = 0, len(held)

    def filled(self, count: int) -> Iterator[Seen]:
        """Frames that are whole now. After an error the stream is beyond repair: close it."""
        self._end += count
        while self._end - self._begin >= self._need:
            length, version, kind, flags, request = HEAD.unpack_from(self._view, self._begin)
            check_head(length, version, flags, self._max)
            self._need = HEAD.size + length
            if self._end - self._begin < self._need:
                return
            begin = self._begin + HEAD.size
            self._begin += self._need
            self._need = HEAD.size
            yield new_seen((kind, request, self._view[begin : begin + length]))
        if self._begin == self._end:
            self._begin = self._end = 0
