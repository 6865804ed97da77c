"""Frame codec of the native protocol, with a frame reader for servers and a receive buffer for clients.

``docs/wire.md`` draws the layout; tests/golden pins it:

    0        4         5      6       8          12
    | length | version | kind | flags | request  | body …
      u32      u8        u8     u16     u32        length bytes

Big-endian. The requester chooses the number ``request``, and the reply repeats it; a pushed delivery carries the number
of its subscription. A frame that is too large is refused by its header alone. Sans-IO.

``FrameReader`` keeps no more memory than unfinished frames need, for a side with many peers. ``ReceiveBuffer`` is for a
side with few connections that receives much: the socket writes into one reused buffer, and the frames are views of it,
without a copy. In both, ``free_space`` returns the memory to write into, and ``filled`` takes the number of bytes
written."""

import struct
from collections.abc import Callable, Generator, Iterator
from enum import IntEnum
from functools import partial
from typing import NamedTuple, cast

from yirangmq.core.errors import BadInput, TooLarge

VERSION = 1
HEAD = struct.Struct(">IBBHI")
MAX_FRAME = 16 * 1024 * 1024
"""Maximum frame body in bytes: sixteen messages of the largest default size. A larger batch is split into several
frames."""
LARGE = 64 * 1024
"""Frame size in bytes from which on the rest of a frame is read directly into its final buffer."""
RESERVE_DIVISOR = 4
"""Upper bound of the memory reserved for a frame, as a multiple of the bytes already received: a peer cannot make the
reader reserve much memory by sending little."""


class FrameKind(IntEnum):
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
    # 20 is a topic record, with the layout of wire/records.py. 21 and 22 occur in log segments only.
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


EMPTY_VIEW = memoryview(b"")


# -- frame reader ------------------------------------------------------------------------------------------------------


class FrameReader:
    """Frame reader: accepts any split of the bytes and yields whole frames. A frame that is too large is refused by
    its header alone.

    Bodies are views of the fed memory: a caller that reuses this memory must decode a body before. The rest of a
    large frame may be read directly into place: write to ``free_space``, then call ``filled``."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        self._buffer = bytearray()
        self._need = HEAD.size
        self._end = 0
        """Bytes received in ``_buffer`` while it is reserved for one large frame. 0: nothing is reserved, and all of
        ``_buffer`` was received."""

    @property
    def held(self) -> int:
        """Bytes of memory for an unfinished frame, including the reserved part."""
        return len(self._buffer)

    def free_space(self) -> memoryview | None:
        """Return the memory for the next bytes. None: nothing is reserved, so pass the bytes to ``feed``."""
        return memoryview(self._buffer)[self._end :] if self._end else None

    def filled(self, count: int) -> Generator[Frame, None, None]:
        """Process ``count`` bytes that were written into ``free_space``; yield the frame if it is complete."""
        self._end += count
        return self._whole(self._detach_buffer() if self._end == len(self._buffer) else EMPTY_VIEW)

    def feed(self, data: bytes | bytearray | memoryview) -> Generator[Frame, None, None]:
        """Yield the whole frames received so far. A caller that stops early resumes with ``feed(b"")``.

        After an error the stream cannot be resynchronized: close it."""
        if self._end:
            return self._fill(memoryview(data))
        if self._buffer:
            self._buffer += data
            is_whole = len(self._buffer) >= self._need
            if not is_whole:
                self._reserve()  # a large frame in small pieces is parsed when it is complete, not at each piece
            return self._whole(self._detach_buffer() if is_whole else EMPTY_VIEW)
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
                self._reserve()

    def _detach_buffer(self) -> memoryview:
        """Detach the buffer and return it; the reader does not use it again."""
        data, self._buffer, self._end = memoryview(self._buffer), bytearray(), 0
        return data

    def _reserve(self) -> None:
        """Reserve memory for the rest of a large frame, once at least 1/``RESERVE_DIVISOR`` of it was received."""
        have = len(self._buffer)
        if LARGE <= self._need <= RESERVE_DIVISOR * have and have < self._need:
            self._end = have
            self._buffer += bytes(self._need - have)

    def _fill(self, data: memoryview) -> Generator[Frame, None, None]:
        """Copy fed bytes into the reserved memory, and process the bytes after it."""
        count = min(len(data), len(self._buffer) - self._end)
        self._buffer[self._end : self._end + count] = data[:count]
        if count == len(data):
            return self.filled(count)
        self._buffer += data[count:]
        return self._whole(self._detach_buffer())


def check_head(length: int, version: int, flags: int, most: int) -> None:
    if version != VERSION:
        text = f"frame version {version}, this side has {VERSION}: another protocol, or another version"
        raise BadInput(text, field="version")
    if flags:
        raise BadInput(f"flags {flags:#06x} are not known in version {VERSION}", field="flags")
    if length > most:
        raise TooLarge(f"a frame of {length} bytes, at most {most}", field="length")


# -- receive buffer ----------------------------------------------------------------------------------------------------

MIN_READ_BYTES = 256 * 1024
"""Minimum free space in bytes that ``free_space`` returns: the maximum that a socket returns in one read."""
MAX_IDLE_BUFFER = 4 * MIN_READ_BYTES
"""Maximum size in bytes of an idle buffer: one that grew past it for a large frame is replaced after that frame."""


class FrameView(NamedTuple):
    """A frame in the receive buffer. ``body`` is a view that is valid only until the next frame is requested."""

    kind: int
    request: int
    body: memoryview


new_frame_view = cast("Callable[[tuple[int, int, memoryview]], FrameView]", partial(tuple.__new__, FrameView))


class ReceiveBuffer:
    """Receive buffer of one connection. The socket writes into ``free_space``; ``filled`` yields frames as views."""

    def __init__(self, max_frame: int) -> None:
        self._max = max_frame
        self._view = memoryview(bytearray(2 * MIN_READ_BYTES))
        self._begin = self._end = 0
        self._need = HEAD.size

    def free_space(self) -> memoryview:
        """Return the memory for the next bytes, at least ``MIN_READ_BYTES``. It invalidates the frames yielded
        before."""
        free = len(self._view) - self._end
        if free < MIN_READ_BYTES or (len(self._view) > MAX_IDLE_BUFFER and self._begin == self._end):
            self._reserve()
        return self._view[self._end :]

    def _reserve(self) -> None:
        """Move the unfinished frame to the front of the buffer; replace the buffer if its size does not fit."""
        held = self._view[self._begin : self._end]
        size = max(2 * MIN_READ_BYTES, self._need + MIN_READ_BYTES)
        if len(self._view) < size or len(self._view) > MAX_IDLE_BUFFER >= size:
            self._view = memoryview(bytearray(size))
        self._view[: len(held)] = held
        self._begin, self._end = 0, len(held)

    def filled(self, count: int) -> Iterator[FrameView]:
        """Process ``count`` written bytes; yield the whole frames. After an error close the stream: it cannot be
        resynchronized."""
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
            yield new_frame_view((kind, request, self._view[begin : begin + length]))
        if self._begin == self._end:
            self._begin = self._end = 0
