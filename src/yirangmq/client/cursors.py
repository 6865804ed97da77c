"""Cursors of topic subscriptions: kept by the server under a name, in a file, or not at all.

Storing a position does not hold up records. While records are processed, the position is stored at most once in
``CURSOR_SECONDS``. It is sent to the server earlier if ``CURSOR_RECORDS`` sequences are unconfirmed and the
confirmation before it is answered. The cursor file is replaced as a whole and synced, so a power cut leaves the old or
the new one."""

import time
from pathlib import Path
from typing import NamedTuple, Protocol

from yirangmq.client.session import ConnectionLost, Slot
from yirangmq.client.transport import Transport
from yirangmq.core.errors import BadInput, QueueError, StoreDamaged, StoreError, Unavailable
from yirangmq.format.json_codec import dumps, loads
from yirangmq.fsio.atomic_file import replace_file
from yirangmq.fsio.permissions import OWNER
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind

# -- cursor file -------------------------------------------------------------------------------------------------------


class CursorPosition(NamedTuple):
    """Position: everything up to ``sequence`` of this epoch is processed."""

    epoch: str
    sequence: int


class CursorFile:
    """File that holds one cursor as JSON. It is replaced atomically."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()

    def read(self) -> CursorPosition | None:
        """Return the position, or None if the file has never been written."""
        try:
            document = loads(self._path.read_bytes())
            epoch, sequence = document["epoch"], document["sequence"]
            if not isinstance(epoch, str) or isinstance(sequence, bool) or not isinstance(sequence, int):
                raise BadInput("must be an epoch and a sequence")
            return CursorPosition(epoch, sequence)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error.strerror or error}") from None
        except (BadInput, KeyError, TypeError) as error:
            raise StoreDamaged(f"{self._path} holds no cursor: {error}") from None

    def write(self, position: CursorPosition) -> None:
        """Write the position. It is durable when this returns."""
        try:
            replace_file(self._path, dumps(position._asdict()) + b"\n", OWNER)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error.strerror or error}") from None


# -- cursor storage ----------------------------------------------------------------------------------------------------

CURSOR_SECONDS = 0.2
"""Interval in seconds at which the position of a subscription is stored while it advances. A killed program gets the
records of about this time again, so it is short; each store is a disk write, so it is not shorter."""
CURSOR_RECORDS = 500
"""Number of unconfirmed sequences from which the position is sent before ``CURSOR_SECONDS`` have passed: the lag of a
fast subscriber stays below the default of ``topic_lag_limit``."""


class CursorKeeper(Protocol):
    """Port for storing a cursor. ``sequence``: everything up to it is processed."""

    needs_connection: bool
    """True if storing the cursor requires a connection."""

    def due_in(self, sequence: int) -> float | None:
        """Return the seconds until ``store`` is due, or None if nothing is to be stored."""

    async def store(self, transport: Transport | None, epoch: str, sequence: int) -> None:
        """Store the cursor soon, without waiting. Raises ``ConnectionLost``, also if the loss is found only now."""

    async def flush(self, transport: Transport | None, epoch: str, sequence: int, seconds: float) -> None:
        """Store the cursor now, durably."""

    def reset(self, *, is_new_epoch: bool = False) -> None:
        """Note that the connection is lost, so no confirmation is in flight. ``is_new_epoch``: the epoch changed."""


class NoCursorKeeper:
    """Cursor that is not stored: a new subscription starts where its options say."""

    needs_connection = False

    def due_in(self, sequence: int) -> float | None:
        return None

    async def store(self, transport: Transport | None, epoch: str, sequence: int) -> None:
        """No-op."""

    async def flush(self, transport: Transport | None, epoch: str, sequence: int, seconds: float) -> None:
        """No-op."""

    def reset(self, *, is_new_epoch: bool = False) -> None:
        """No-op."""


class ServerCursorKeeper:
    """Cursor that the server stores under the subscriber's name."""

    needs_connection = True

    def __init__(self, clock: "MonotonicSeconds | None" = None) -> None:
        self._seconds = clock or time.monotonic
        self._slot: Slot | None = None
        """The latest confirmation in flight. Its reply covers the earlier ones, so they are abandoned."""
        self._requested = 0
        self._requested_at = -CURSOR_SECONDS
        self.confirmed = 0
        """Sequence that is durable on the server."""

    def due_in(self, sequence: int) -> float | None:
        if sequence <= self._requested:
            return None
        is_answered = self._slot is None or self._slot.has_data
        if is_answered and sequence - self._requested >= CURSOR_RECORDS:
            return 0.0
        return max(0.0, self._requested_at + CURSOR_SECONDS - self._seconds())

    async def store(self, transport: Transport | None, epoch: str, sequence: int) -> None:
        if transport is not None and sequence > self._requested:
            await self._request(transport, sequence)
            await transport.exchange()

    async def flush(self, transport: Transport | None, epoch: str, sequence: int, seconds: float) -> None:
        if transport is None:
            return
        if sequence > self._requested:
            await self._request(transport, sequence)
        if self._slot is not None:
            await transport.answer(self._slot, seconds)
            self._take_reply()

    async def _request(self, transport: Transport, sequence: int) -> None:
        """Send a confirmation, also if the one before it is not answered: its reply follows the records that the
        client has not read yet."""
        if self._slot is not None and self._slot.reply is None:
            transport.abandon(self._slot)
            self._slot = None
        self._take_reply()
        self._slot = await transport.request(FrameKind.CONFIRM, messages.Confirm(sequence))
        self._requested, self._requested_at = sequence, self._seconds()

    def _take_reply(self) -> None:
        slot, self._slot = self._slot, None
        if slot is None or slot.reply is None:
            return
        try:
            self.confirmed = max(self.confirmed, slot.reply.wanted(FrameKind.CONFIRMED).sequence)
        except QueueError as error:
            self._requested = self.confirmed
            if isinstance(error, Unavailable):  # another connection, perhaps to another server, can confirm it
                raise ConnectionLost(str(error)) from error
            raise

    def reset(self, *, is_new_epoch: bool = False) -> None:
        self._slot = None
        if is_new_epoch:
            self.confirmed = 0
        self._requested, self._requested_at = self.confirmed, -CURSOR_SECONDS


class FileCursorKeeper:
    """Cursor in a local file. It does not depend on a connection."""

    needs_connection = False

    def __init__(self, file: CursorFile, clock: "MonotonicSeconds | None" = None) -> None:
        self._file = file
        self._seconds = clock or time.monotonic
        self._written = CursorPosition("", 0)
        self._at = -CURSOR_SECONDS

    def due_in(self, sequence: int) -> float | None:
        if sequence == self._written.sequence:
            return None
        return max(0.0, self._at + CURSOR_SECONDS - self._seconds())

    async def store(self, transport: Transport | None, epoch: str, sequence: int) -> None:
        if self._seconds() - self._at >= CURSOR_SECONDS:
            self._write(CursorPosition(epoch, sequence))

    async def flush(self, transport: Transport | None, epoch: str, sequence: int, seconds: float) -> None:
        self._write(CursorPosition(epoch, sequence))

    def _write(self, position: CursorPosition) -> None:
        if position != self._written and position.epoch:
            self._file.write(position)
            self._written, self._at = position, self._seconds()

    def reset(self, *, is_new_epoch: bool = False) -> None:
        if is_new_epoch:
            self._written = CursorPosition("", 0)


class MonotonicSeconds(Protocol):
    def __call__(self) -> float: ...
