"""Blocking transport: a connection shared by any number of threads, without a reader thread.

A thread that waits for a reply while no other thread reads becomes the reader, and delivers the replies of the other
threads. One lock guards received data, another the writes. No thread holds the first while it waits for the network.
While the send buffer is full, the sender reads, because a server that waits for its client to read does not read
itself.

A single request that is usually answered within ``MAX_SPIN_SECONDS`` is polled for (adaptive spin) before the thread
blocks, if there is another processor for the server."""

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Coroutine
from math import ceil
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from yirangmq.client.address import ServerAddress
from yirangmq.client.session import ClientSession, ConnectionLost, DataSource, QueueInbox, Reply, Slot, TopicInbox
from yirangmq.client.transport import set_socket_options
from yirangmq.clock import processors, yield_processor
from yirangmq.core.adaptive_spin import AdaptiveSpin
from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind

if TYPE_CHECKING:
    from yirangmq.client.tls import TlsEngine

TLS_BUFFER_BYTES = 256 * 1024
SEND_POLL_SECONDS = 0.05
"""Wait for free space in the send buffer, in seconds, before the sender checks again for data to read."""
SOCKET_TIMEOUT_SECONDS = 5.0
"""Receive timeout of the socket, in seconds. A wait longer than this reads directly, without a ``poll`` before it:
one system call instead of two."""
CLOSE_WAIT_SECONDS = 1.0
"""Time in seconds that ``close`` waits for the reading thread to leave the socket."""
MAX_SPIN_SECONDS = 0.0005
"""Upper bound of the spin, in seconds: about one disk write and two network trips. Only replies that usually arrive
within it are polled for."""
Answer = TypeVar("Answer")


def run(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a coroutine to its end. Each of its waits must block the thread instead of suspending."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: Answer = stop.value
        return value
    coroutine.close()
    raise RuntimeError("a blocking client waited as a coroutine")


class BlockingTransport:
    """``client.transport.Line`` on a socket, shared by any number of threads.

    ``_receive_lock`` guards received data, ``_send_lock`` guards writes. No thread holds ``_receive_lock`` while it
    waits for the network."""

    def __init__(self, sock: socket.socket, timeout: float, tls: "TlsEngine | None", stay_awake: bool) -> None:
        self.process = os.getpid()
        self._socket = sock
        sock.settimeout(None)
        longest = struct.pack("@ll", *divmod(round(SOCKET_TIMEOUT_SECONDS * 1_000_000), 1_000_000))  # C's timeval
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, longest)
        self._file = sock.fileno()
        self._timeout = timeout
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)
        self._tls = tls
        self._tls_buffer = bytearray(0 if tls is None else TLS_BUFFER_BYTES)
        self._session = ClientSession()
        self._send_lock = threading.Lock()
        self._receive_lock = threading.Lock()
        self._data_arrived = threading.Condition(self._receive_lock)
        self._reading = False
        self._waiting = 0
        self._deferred = b""
        self._spin = AdaptiveSpin(MAX_SPIN_SECONDS) if stay_awake else None

    @property
    def is_alive(self) -> bool:
        return self._session.failure is None

    def apply_welcome(self, welcome: messages.Welcome) -> None:
        self._session.max_frame = welcome.max_frame

    # -- sending -------------------------------------------------------------------------------------------------------

    async def request(self, kind: FrameKind, body: msgspec.Struct) -> Slot:
        with self._send_lock:
            slot, data = self._session.request(kind, body)
            self._send(data)
        return slot

    async def subscribe(self, queue_inbox: QueueInbox, body: messages.Subscribe) -> int:
        with self._send_lock:
            number, data = self._session.subscribe(queue_inbox, body)
            self._send(data)
        return number

    def remove_subscription(self, number: int) -> None:
        self._session.remove_subscription(number)

    def set_topic_inbox(self, topic_inbox: TopicInbox) -> None:
        self._session.topic_inbox = topic_inbox

    def notify_taken(self) -> None:
        """No-op: a thread reads only while it waits."""

    def _send(self, data: bytes | bytearray) -> None:
        """Send whole frames. An interruption in the middle of a frame ends the connection, because the byte stream
        is broken."""
        sent = -1
        try:
            if self._tls is not None:
                data = self._tls.encrypt(data)
            sent = self._write(data)
            if sent < len(data):
                self._send_rest(memoryview(data)[sent:])
        except OSError as error:
            lost = self._mark_lost(error)
            lost.is_unsent = sent < 0
            raise lost from None
        except BaseException:
            self._mark_lost(InterruptedError("interrupted while sending"))
            raise

    def _write(self, data: bytes | bytearray | memoryview) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _send_rest(self, left: memoryview) -> None:
        """Send the rest, and read while the send buffer is full: a server that waits for this client to read does
        not read itself."""
        until = time.monotonic() + self._timeout
        free_space = select.poll()
        free_space.register(self._file, select.POLLOUT)
        while left:
            seconds = until - time.monotonic()
            if seconds <= 0 or self._session.failure is not None:
                raise TimeoutError(f"no data could be sent for {self._timeout:g} seconds")
            with self._receive_lock:
                if not self._reading:
                    self._read(0)
            if free_space.poll(min(seconds, SEND_POLL_SECONDS) * 1000):
                left = left[self._write(left) :]

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def answer(self, slot: Slot, seconds: float) -> Reply:
        try:
            self._await(slot, seconds)
        except BaseException:
            self._session.abandon(slot)
            raise
        if slot.reply is None:
            raise self._mark_lost(TimeoutError(f"no answer within {seconds:g} seconds"))
        return slot.reply

    def abandon(self, slot: Slot) -> None:
        self._session.abandon(slot)

    def process_received(self) -> None:
        with self._receive_lock:
            if not self._reading and self._session.failure is None:
                self._read(0)
        if self._deferred:
            self._flush_deferred()

    async def exchange(self) -> None:
        topic_inbox = self._session.topic_inbox
        if topic_inbox is None or not topic_inbox.is_full:
            self.process_received()
        if self._session.failure is not None:
            raise self._mark_lost(self._session.failure)

    async def wait_for_data(self, one: DataSource, seconds: float) -> bool:
        return self._await(one, seconds)

    def _await(self, one: DataSource, seconds: float) -> bool:
        """Wait until ``one`` has data. Return False after ``seconds``. The thread reads for all threads if no other
        one reads."""
        spin = self._spin if self._session.is_single else None
        began = time.monotonic()
        until = began + seconds
        spin_until = min(until, began + spin.seconds) if spin is not None else 0.0
        with self._receive_lock:
            while not one.has_data:
                if self._session.failure is not None:
                    raise self._mark_lost(self._session.failure)
                left = until - time.monotonic()
                if left <= 0:
                    return False
                if self._reading:
                    self._waiting += 1
                    self._data_arrived.wait(left)
                    self._waiting -= 1
                else:
                    self._read(left, spin_until)
        if spin is not None:
            spin.add_wait(time.monotonic() - began)
        if self._deferred:
            self._flush_deferred()
        return True

    def _read(self, seconds: float, spin_until: float = 0.0) -> None:
        """Read once. The caller holds ``_receive_lock``; it is released while the thread waits for the network."""
        self._reading = True
        self._receive_lock.release()
        size, failure = -1, None
        try:
            if spin_until and self._spin is not None:
                size = self._spin_read(self._spin, spin_until)
            if size >= 0:
                pass
            elif seconds > SOCKET_TIMEOUT_SECONDS:
                size = self._socket.recv_into(self._tls_buffer or self._session.free_space())
            elif self._poll.poll(ceil(seconds * 1000)):
                size = self._socket.recv_into(self._tls_buffer or self._session.free_space(), 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError as error:
            failure = error
        except BaseException as error:  # raised by a signal handler; bytes already received may be lost
            failure = InterruptedError(f"{type(error).__name__} while reading")
            self._mark_lost(failure)
            raise
        finally:
            self._receive_lock.acquire()
            self._reading = False
            if self._waiting:
                self._data_arrived.notify_all()
        if size > 0:
            self._receive(size)
        elif size == 0 or failure is not None:
            self._session.fail(failure or ConnectionError("the server closed the connection"))

    def _spin_read(self, spin: AdaptiveSpin, until: float) -> int:
        """Poll the socket until the time ``until`` (adaptive spin). Return the number of bytes received, or -1."""
        receive, free_space = self._socket.recv_into, self._tls_buffer or self._session.free_space()
        now = time.monotonic()
        while now < until:
            try:
                return receive(free_space, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                yield_processor()
            before, now = now, time.monotonic()
            if now - before > spin.preemption_seconds:
                spin.note_preemption()
        return -1

    def _receive(self, size: int) -> None:
        try:
            if self._tls is None:
                self._deferred += self._session.receive(size)[1]
                return
            left = memoryview(self._tls.decrypt(memoryview(self._tls_buffer)[:size]))
            while left:
                free_space = self._session.free_space()[: len(left)]
                free_space[:] = left[: len(free_space)]
                left = left[len(free_space) :]
                self._deferred += self._session.receive(len(free_space))[1]
        except (ConnectionLost, OSError) as error:
            self._session.fail(error)
        except BaseException as error:  # raised by a signal handler; a part of the bytes may be processed
            self._mark_lost(InterruptedError(f"{type(error).__name__} while reading"))
            raise

    def _flush_deferred(self) -> None:
        """Flush replies queued by the frame reader. The caller must not hold ``_receive_lock``."""
        with self._send_lock:
            deferred, self._deferred = self._deferred, b""
            if deferred:
                self._send(deferred)

    # -- closing ----------------------------------------------------------------------------------------------------

    def _mark_lost(self, failure: Exception) -> ConnectionLost:
        """Mark the connection as lost; the first reason given is kept. The shutdown wakes threads that read or
        write. The file descriptor is closed when no thread uses it any more."""
        self._session.fail(failure)
        why = self._session.failure or failure
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        lost = ConnectionLost(str(why))
        lost.__cause__ = why
        return lost

    async def close(self) -> None:
        if self.process != os.getpid():
            self._socket.close()  # the parent keeps its own copy of the connection
            return
        if self.is_alive:
            with contextlib.suppress(ConnectionLost):
                await self.request(FrameKind.BYE, messages.Empty())
        self._mark_lost(ConnectionError("closed by this client"))
        with self._data_arrived:
            self._data_arrived.notify_all()
            self._waiting += 1
            self._data_arrived.wait_for(lambda: not self._reading, CLOSE_WAIT_SECONDS)
            self._waiting -= 1
        with self._send_lock:
            self._socket.close()


class BlockingTransportFactory:
    """``client.transport.TransportFactory`` for threads.

    ``stay_awake``: a thread that waits for a single reply that usually arrives soon polls for it before it blocks
    (adaptive spin). This needs a second processor, for the server."""

    def __init__(self, stay_awake: bool = True) -> None:
        self._stay_awake = stay_awake and processors() > 1

    def lock(self) -> "ThreadLock":
        return ThreadLock()

    async def dial(self, address: ServerAddress, seconds: float, send_timeout: float) -> BlockingTransport:
        sock = _open_socket(address, seconds)
        try:
            if not address.tls:
                return BlockingTransport(sock, send_timeout, None, self._stay_awake)
            from yirangmq.client.tls import TlsEngine

            tls = TlsEngine(address)
            tls.handshake(sock)
            return BlockingTransport(sock, send_timeout, tls, self._stay_awake)
        except BaseException:
            sock.close()
            raise

    async def speaks_tls(self, address: ServerAddress, seconds: float) -> bool:
        from yirangmq.client.tls import unverified_context

        try:
            with (
                socket.create_connection((address.host, address.port), seconds) as sock,
                unverified_context().wrap_socket(sock, server_hostname=address.host),
            ):
                return True
        except (OSError, ValueError):
            return False

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (here a coroutine blocks on purpose)


class ThreadLock:
    """A thread lock with the interface of an asyncio lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def _open_socket(address: ServerAddress, seconds: float) -> socket.socket:
    if address.scheme == "tcp":
        sock = socket.create_connection((address.host, address.port), seconds)
        set_socket_options(sock)
        return sock
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.connect(address.path)
        set_socket_options(sock)
        return sock
    except BaseException:
        sock.close()
        raise
