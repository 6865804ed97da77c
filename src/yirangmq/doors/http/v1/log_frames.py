"""Record frames of a range as one long body: read aside in large pieces, one ahead of what the client takes.

Knows: a log's reader, the stream of an answer. Does not know: sockets, who asked. The loop never waits for the disk,
and no more than two pieces of a client are in memory."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from yirangmq.core.errors import QueueError, StoreDamaged
from yirangmq.core.topics import Log, Piece
from yirangmq.doors.http.exchange import Outlet
from yirangmq.fsio.background import Aside, Call, Done
from yirangmq.observe.logs import log as journal
from yirangmq.observe.logs import values

READ_BYTES = 1 << 20
PIECE_BYTES = 16 << 20
"""Between two looks at which file comes next."""
THREADS = 4


class Readers:
    """The threads that read for all clients."""

    def __init__(self, call: Call) -> None:
        self._aside = Aside(call, partial(ThreadPoolExecutor, THREADS, "frames"))
        self.run = self._aside.run

    def stop(self) -> None:
        self._aside.stop()


class Frames:
    """``exchange.Stream``. Used from the loop's thread; one read of it is under way at a time."""

    def __init__(self, log: Log, start: int, stop: int, readers: Readers) -> None:
        self._reader = log.reader()
        self._readers = readers
        self._start = start
        self._stop = stop
        self._pieces: Iterator[Piece] | None = None
        self._piece: Piece | None = None
        self._at = 0
        self._outlet: Outlet | None = None
        self._ahead: bytes | None = None
        """What is read and not written yet; b"": the end."""
        self._error: QueueError | None = None
        self._is_reading = False
        self._is_clogged = False
        self._is_gone = False

    def open(self, done: Done) -> None:
        """``done`` when the first piece is there, or why there is none."""

        def told(data: bytes | None, error: QueueError | None) -> None:
            self._is_reading = False
            self._ahead, self._error = data, error
            if error is not None or self._is_gone:
                self._close()
            done(None, error)

        self._is_reading = True
        self._readers.run(self._read, told)

    # -- exchange.Stream ----------------------------------------------------------------------------------------------

    def start(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._go_on()

    def drained(self) -> None:
        self._is_clogged = False
        self._go_on()

    def gone(self) -> None:
        self._is_gone = True
        self._outlet = None
        if not self._is_reading:
            self._close()

    # -- on the loop's thread -----------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Write what is there, read the next meanwhile."""
        outlet, data = self._outlet, self._ahead
        if outlet is None or self._is_clogged or (data is None and self._error is None):
            return
        if data is None:
            self._fail(outlet)
        elif not data:
            self._outlet = None
            self._close()
            outlet.end()
        else:
            self._ahead = None
            self._ask()
            self._is_clogged = not outlet.write(data)

    def _ask(self) -> None:
        self._is_reading = True
        self._readers.run(self._read, self._told)

    def _told(self, data: bytes | None, error: QueueError | None) -> None:
        self._is_reading = False
        self._ahead, self._error = data, error
        if self._is_gone:
            self._close()
        else:
            self._go_on()

    def _fail(self, outlet: Outlet) -> None:
        journal.warning("records could not be read", extra=values(error=str(self._error)))
        self._outlet = None
        self._close()
        outlet.fail()

    def _close(self) -> None:
        pieces, self._pieces = self._pieces, None
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
        self._reader.close()

    # -- aside --------------------------------------------------------------------------------------------------------

    def _read(self) -> bytes:
        """The next bytes; none at the end."""
        if self._pieces is None:
            self._pieces = iter(self._reader.pieces(self._start, self._stop, size=PIECE_BYTES))
        piece = self._piece
        while piece is None or self._at >= piece.length:
            piece = self._piece = next(self._pieces, None)
            self._at = 0
            if piece is None:
                return b""
        data = os.pread(piece.file, min(READ_BYTES, piece.length - self._at), piece.offset + self._at)
        if not data:
            raise StoreDamaged(f"the log ends in the middle of records {piece.first} to {piece.last}")
        self._at += len(data)
        return data
