"""A receive buffer for a side that reads much: the network writes into it, frames are looked at where they lie, and
nothing is copied but what is made of them. ``FrameReader`` keeps less for a side with many peers.

Sans-IO: ``room`` is where to write, ``filled`` says how much was written."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, cast

from yirangmq.wire.frames import HEAD, check_head

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
