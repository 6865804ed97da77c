"""Cursors of topic subscriptions: kept by the server under a name, in a file, or not at all.

Confirming does not hold up records. One confirmation is in flight at a time, and the next one covers everything done
meanwhile. The cursor file is replaced as a whole and synced, so a power cut leaves the old or the new one. While
records come it is written once in ``FILE_SECONDS``."""

import time
from pathlib import Path
from typing import NamedTuple, Protocol

from yirangmq.client.session import Slot
from yirangmq.client.transport import Transport
from yirangmq.core.errors import BadInput, StoreDamaged, StoreError
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

FILE_SECONDS = 0.2
"""Minimum interval between two writes of the cursor file, in seconds, while records arrive."""


class CursorKeeper(Protocol):
    """Port for storing a cursor. ``sequence``: everything up to it is processed."""

    needs_connection: bool
    """True if storing the cursor requires a connection."""

    async def store(self, transport: Transport, epoch: str, sequence: int) -> None:
        """Store the cursor soon, without waiting."""

    async def flush(self, transport: Transport | None, epoch: str, sequence: int, seconds: float) -> None:
        """Store the cursor now, durably."""

    def reset(self, *, is_new_epoch: bool = False) -> None:
        """Note that the connection is lost, so no confirmation is in flight. ``is_new_epoch``: the epoch changed."""


class NoCursorKeeper:
    """Cursor that is not stored: a new subscription starts where its options say."""

    needs_connection = False

    async def store(self, transport: Transport, epoch: str, sequence: int) -> None:
        """No-op."""

    async def flush(self, transport: Transport | None, epoch: str, sequence: int, seconds: float) -> None:
        """No-op."""

    def reset(self, *, is_new_epoch: bool = False) -> None:
        """No-op."""


class ServerCursorKeeper:
    """Cursor that the server stores under the subscriber's name."""

    needs_connection = True

    def __init__(self) -> None:
        self._slot: Slot | None = None
        self._requested = 0
        self.confirmed = 0
        """Sequence that is durable on the server."""

    async def store(self, transport: Transport, epoch: str, sequence: int) -> None:
        slot = self._slot
        if slot is not None:
            if slot.reply is None:
                return
            self._slot = None
            self.confirmed = slot.reply.wanted(FrameKind.CONFIRMED).sequence
        if sequence > self._requested:
            self._requested = sequence
            self._slot = await transport.request(FrameKind.CONFIRM, messages.Confirm(sequence))

    async def flush(self, transport: Transport | None, epoch: str, sequence: int, seconds: float) -> None:
        while transport is not None and (self._slot is not None or sequence > self._requested):
            if self._slot is not None:
                await transport.answer(self._slot, seconds)
            await self.store(transport, epoch, sequence)

    def reset(self, *, is_new_epoch: bool = False) -> None:
        self._slot = None
        if is_new_epoch:
            self.confirmed = 0
        self._requested = self.confirmed


class FileCursorKeeper:
    """Cursor in a local file. It does not depend on a connection."""

    needs_connection = False

    def __init__(self, file: CursorFile, clock: "MonotonicSeconds | None" = None) -> None:
        self._file = file
        self._seconds = clock or time.monotonic
        self._written = CursorPosition("", 0)
        self._at = -FILE_SECONDS

    async def store(self, transport: Transport, epoch: str, sequence: int) -> None:
        if self._seconds() - self._at >= FILE_SECONDS:
            self._write(CursorPosition(epoch, sequence))

    async def flush(self, transport: Transport | None, epoch: str, sequence: int, seconds: float) -> None:
        self._write(CursorPosition(epoch, sequence))

    def _write(self, position: CursorPosition) -> None:
        if position != self._written and position.epoch:
            self._file.write(position)
            self._written, self._at = position, self._seconds()

    def reset(self, *, is_new_epoch: bool = False) -> None:
        """No-op."""


class MonotonicSeconds(Protocol):
    def __call__(self) -> float: ...
