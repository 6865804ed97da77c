"""Sending side of one connection: one write per loop iteration, and detaching the socket for a catch-up worker.

A catch-up worker writes to the socket directly, through a duplicate of its descriptor, with ``sendfile`` where
possible. The socket is detached for it only when the transport's buffer is empty, and attached again at the end of a
frame. So bytes of the loop and of the worker never mix. Bytes that the loop sends meanwhile are deferred in a queue;
the worker writes them between frames. Over TLS the worker passes its bytes to the loop, one part at a time.

If more than ``client_memory`` bytes are unsent, the client is disconnected. Loop thread only, except for flushing the
deferred bytes. The last class adapts a native connection to topic delivery (``topics.ports.Line``)."""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from yirangmq.core.errors import QueueError
from yirangmq.topics.ports import CatchupOutput, DetachedCallback
from yirangmq.topics.publisher import Publisher

# -- sender ------------------------------------------------------------------------------------------------------------

RELAY_PART_BYTES = 256 * 1024
"""Maximum size in bytes of a part that is passed to the loop, or read from a file, if ``sendfile`` is not possible."""
NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""Errors of ``sendfile`` that mean it is not supported for these descriptors."""


class SendBuffer:
    """Send buffer of one connection, and detaching of its socket. Loop thread only, except ``deferred``.

    While the socket is detached (``is_detached``), the loop writes nothing to the transport."""

    def __init__(
        self, write_buffer: int, client_memory: int, dirty: Callable[[], None], disconnect: Callable[[str], None]
    ) -> None:
        """``write_buffer``: high-water mark of the transport, in bytes. ``client_memory``: upper bound of unsent bytes.
        ``dirty``: called when there are bytes to flush. ``disconnect``: called with the reason to close the connection
        of a client that does not read."""
        self._write_buffer = write_buffer
        self._client_memory = client_memory
        self._dirty = dirty
        self._disconnect = disconnect
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes | bytearray] = []
        self._out_size = 0
        self._is_paused = False
        self._take: DetachedCallback | None = None
        self._wake: Callable[[], None] = _nothing
        self._relay: TlsRelay | None = None
        self._is_detached = False
        self._deferred: deque[bytes | bytearray] = deque()
        self._deferred_size = 0
        self._deferred_taken = 0

    def start(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._set_limits()

    def close(self) -> None:
        """Release the transport: the connection is lost."""
        self._transport = None
        self._take = None
        self.drop()

    def drop(self) -> None:
        """Discard unsent bytes."""
        self._out, self._out_size = [], 0
        self._deferred.clear()

    @property
    def unsent_bytes(self) -> int:
        """Number of unsent bytes, here and in the transport."""
        held = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._out_size + self._deferred_size - self._deferred_taken + held

    @property
    def is_detached(self) -> bool:
        return self._is_detached

    # -- sending --------------------------------------------------------------------------------------------------

    def send(self, data: bytes | bytearray) -> None:
        if self._transport is None:
            return
        if self._is_detached:
            self._deferred.append(data)
            self._deferred_size += len(data)
            is_much = self._deferred_size - self._deferred_taken > self._client_memory
        else:
            self._out.append(data)
            self._out_size += len(data)
            is_much = self._out_size > self._client_memory
        if is_much:
            self._disconnect("slow")
        else:
            self._dirty()

    def has_capacity(self, size: int, most: int) -> bool:
        transport = self._transport
        if transport is None or self._is_detached or transport.is_closing():
            return False
        return self._out_size + transport.get_write_buffer_size() + size <= most

    def flush(self) -> None:
        transport = self._transport
        data, self._out, self._out_size = self._out, [], 0
        if not data or transport is None or transport.is_closing():
            return
        transport.write(b"".join(data) if len(data) > 1 else data[0])
        if transport.get_write_buffer_size() > self._client_memory:
            self._disconnect("slow")
        elif self._take is not None:
            self._detach_if_empty()  # if the write completed immediately, resume_writing is not called

    def paused(self) -> None:
        self._is_paused = True

    def resumed(self) -> None:
        self._is_paused = False
        if self._relay is not None:
            self._relay.ready()
        self._detach_if_empty()

    # -- lending the socket --------------------------------------------------------------------------------------------

    def detach(self, take: DetachedCallback, wake: Callable[[], None]) -> None:
        """Detach the socket: call ``take`` with an outlet once the send buffers are empty.

        ``take`` is never called if the connection is lost before. ``wake`` is called when an outlet without a
        descriptor can take more bytes."""
        self.flush()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._take, self._wake = take, wake
        if not self._uses_tls:
            transport.set_write_buffer_limits(high=0)  # resume_writing is called when the buffer is empty
        self._detach_if_empty()

    @property
    def _uses_tls(self) -> bool:
        """True if the connection uses TLS, so that plain bytes must not be written to the socket."""
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    def _detach_if_empty(self) -> None:
        transport = self._transport
        if self._take is None or transport is None or transport.is_closing() or self._out or self._is_paused:
            return
        if transport.get_write_buffer_size() and not self._uses_tls:
            return
        take, self._take = self._take, None
        try:
            output = self._make_output(transport)
        except OSError:
            self._disconnect("descriptors")
            return
        self._is_detached = True
        take(output)

    def _make_output(self, transport: asyncio.Transport) -> CatchupOutput:
        if self._uses_tls:
            loop = asyncio.get_running_loop()
            self._relay = TlsRelay(loop.call_soon_threadsafe, self._write_part, self._wake)
            return self._relay
        return SocketOutput(transport.get_extra_info("socket").fileno())

    def _write_part(self, data: bytes) -> None:
        """Write a part from the relay to the transport. Loop thread only."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(data)
            if not self._is_paused and self._relay is not None:
                self._relay.ready()

    def deferred(self) -> bytes:
        """Remove and return the deferred bytes: those sent while the socket is detached.

        May be called on any thread, by the holder of the outlet."""
        parts = []
        with suppress(IndexError):
            while True:
                parts.append(self._deferred.popleft())
        data = b"".join(parts)
        self._deferred_taken += len(data)
        return data

    def attach(self) -> None:
        """Attach the socket again, and send the deferred bytes."""
        self._is_detached = False
        self._relay = None
        if self._transport is None or self._transport.is_closing():
            return
        self._set_limits()
        left = self.deferred()
        if left:
            self.send(left)

    def _set_limits(self) -> None:
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=self._write_buffer, low=self._write_buffer // 4)


class SocketOutput:
    """Outlet that writes to a duplicate of a socket's descriptor.

    The duplicate stays valid when the transport closes its descriptor, so its number cannot be reused meanwhile."""

    def __init__(self, socket: int) -> None:
        self._fd = os.dup(socket)
        self._can_sendfile = True

    def fileno(self) -> int:
        return self._fd

    def send(self, data: memoryview) -> int:
        return os.write(self._fd, data)

    def send_file(self, file: int, offset: int, count: int) -> int:
        if self._can_sendfile:
            try:
                return os.sendfile(self._fd, file, offset, count)
            except OSError as error:
                if error.errno not in NO_SENDFILE:
                    raise
                self._can_sendfile = False
        data = os.pread(file, min(count, RELAY_PART_BYTES), offset)
        return os.write(self._fd, data) if data else 0

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class TlsRelay:
    """Outlet for TLS: passes bytes from a worker thread to the loop, at most one part in flight."""

    def __init__(self, call: Callable[..., Any], write_part: Callable[[bytes], None], wake: Callable[[], None]) -> None:
        self._call = call
        self._write_part = write_part
        self._wake = wake
        self._is_ready = True

    def fileno(self) -> int:
        return -1

    def send(self, data: memoryview) -> int:
        if not self._is_ready:
            raise BlockingIOError
        self._is_ready = False
        part = bytes(data[:RELAY_PART_BYTES])
        try:
            self._call(partial(self._write_part, part))
        except RuntimeError:  # the loop is closed
            raise ConnectionResetError from None
        return len(part)

    def send_file(self, file: int, offset: int, count: int) -> int:
        if not self._is_ready:
            raise BlockingIOError
        data = os.pread(file, min(count, RELAY_PART_BYTES), offset)
        return self.send(memoryview(data)) if data else 0

    def ready(self) -> None:
        """Accept the next part: the transport can take more bytes. Loop thread only."""
        self._is_ready = True
        self._wake()

    def close(self) -> None:
        """No resource to close."""


def _nothing() -> None:
    """Do nothing; the ``wake`` callback until ``detach`` sets one."""


# -- native connection as a feed sees it -------------------------------------------------------------------------------


class DeliverySession(Protocol):
    """The part of a connection that ``NativeDeliveryConnection`` needs."""

    peer: str

    def refuse(self, error: QueueError) -> None: ...

    def cut(self, reason: str) -> None: ...


class NativeDeliveryConnection:
    """Native connection as topic delivery sees it; implements ``topics.ports.Line``."""

    def __init__(self, sender: SendBuffer, client: DeliverySession, topics: Publisher | None) -> None:
        self._sender = sender
        self._client = client
        self._topics = topics
        self.send = sender.send
        self.deferred = sender.deferred
        self.attach = sender.attach

    @property
    def peer(self) -> str:
        return self._client.peer

    def has_capacity(self, size: int) -> bool:
        return self._topics is not None and self._sender.has_capacity(size, self._topics.settings.buffer_bytes)

    def detach(self, take: DetachedCallback, wake: Callable[[], None]) -> None:
        self._sender.detach(take, wake)

    def fail(self, error: QueueError) -> None:
        self._client.refuse(error)

    def cut(self, reason: str) -> None:
        self._client.cut(reason)
