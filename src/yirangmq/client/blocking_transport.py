"""Blocking transport: a connection shared by any number of threads, without a reader thread.

A thread that waits for a reply while no other thread reads becomes the reader, and delivers the replies of the other
threads. One lock guards received data, another the writes. No thread holds the first while it waits for the network.
While the send buffer is full, the sender reads, because a server that waits for its client to read does not read
itself.

A single request that is usually answered within ``AWAKE_SECONDS`` is polled for (adaptive spin) before the thread
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

from yirangmq.client.address import Address
from yirangmq.client.session import Conversation, Feed, Lost, News, Reply, Slot, Stream
from yirangmq.client.transport import prepare
from yirangmq.clock import give_way, processors
from yirangmq.core.adaptive_spin import Vigil
from yirangmq.wire import messages
from yirangmq.wire.frames import Kind

if TYPE_CHECKING:
    from yirangmq.client.tls import Tls

SEALED = 256 * 1024
ROOM_SECONDS = 0.05
"""Wait for free space in the send buffer, in seconds, before the sender checks again for data to read."""
PLAIN_SECONDS = 5.0
"""Receive timeout of the socket, in seconds. A wait longer than this reads directly, without a ``poll`` before it:
one system call instead of two."""
LAST_READ = 1.0
"""Time in seconds that ``close`` waits for the reading thread to leave the socket."""
AWAKE_SECONDS = 0.0005
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


class BlockingLine:
    """``client.transport.Line`` on a socket, shared by any number of threads.

    ``_heard`` guards received data, ``_sending`` guards writes. No thread holds ``_heard`` while it waits for the
    network."""

    def __init__(self, channel: socket.socket, timeout: float, tls: "Tls | None", stay_awake: bool) -> None:
        self.process = os.getpid()
        self._channel = channel
        channel.settimeout(None)
        longest = struct.pack("@ll", *divmod(round(PLAIN_SECONDS * 1_000_000), 1_000_000))  # C's timeval
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, longest)
        self._file = channel.fileno()
        self._timeout = timeout
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)
        self._tls = tls
        self._sealed = bytearray(0 if tls is None else SEALED)
        self._talk = Conversation()
        self._sending = threading.Lock()
        self._heard = threading.Lock()
        self._news = threading.Condition(self._heard)
        self._reading = False
        self._waiting = 0
        self._owed = b""
        self._vigil = Vigil(AWAKE_SECONDS) if stay_awake else None

    @property
    def is_alive(self) -> bool:
        return self._talk.trouble is None

    def greeted(self, welcome: messages.Welcome) -> None:
        self._talk.max_frame = welcome.max_frame

    # -- sending -------------------------------------------------------------------------------------------------------

    async def ask(self, kind: Kind, body: msgspec.Struct) -> Slot:
        with self._sending:
            slot, data = self._talk.ask(kind, body)
            self._send(data)
        return slot

    async def subscribe(self, stream: Stream, body: messages.Subscribe) -> int:
        with self._sending:
            number, data = self._talk.subscribe(stream, body)
            self._send(data)
        return number

    def cancelled(self, number: int) -> None:
        self._talk.cancelled(number)

    def follow(self, feed: Feed) -> None:
        self._talk.feed = feed

    def taken(self) -> None:
        """No-op: a thread reads only while it waits."""

    def _send(self, data: bytes | bytearray) -> None:
        """Send whole frames. An interruption in the middle of a frame ends the connection, because the byte stream
        is broken."""
        sent = -1
        try:
            if self._tls is not None:
                data = self._tls.seal(data)
            sent = self._write(data)
            if sent < len(data):
                self._send_rest(memoryview(data)[sent:])
        except OSError as error:
            lost = self._lost(error)
            lost.is_unsent = sent < 0
            raise lost from None
        except BaseException:
            self._lost(InterruptedError("interrupted while sending"))
            raise

    def _write(self, data: bytes | bytearray | memoryview) -> int:
        try:
            return self._channel.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _send_rest(self, left: memoryview) -> None:
        """Send the rest, and read while the send buffer is full: a server that waits for this client to read does
        not read itself."""
        until = time.monotonic() + self._timeout
        room = select.poll()
        room.register(self._file, select.POLLOUT)
        while left:
            seconds = until - time.monotonic()
            if seconds <= 0 or self._talk.trouble is not None:
                raise TimeoutError(f"no room to send for {self._timeout:g} seconds")
            with self._heard:
                if not self._reading:
                    self._read(0)
            if room.poll(min(seconds, ROOM_SECONDS) * 1000):
                left = left[self._write(left) :]

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def answer(self, slot: Slot, seconds: float) -> Reply:
        try:
            self._await(slot, seconds)
        except BaseException:
            self._talk.forget(slot)
            raise
        if slot.reply is None:
            raise self._lost(TimeoutError(f"no answer within {seconds:g} seconds"))
        return slot.reply

    def forget(self, slot: Slot) -> None:
        self._talk.forget(slot)

    def glance(self) -> None:
        with self._heard:
            if not self._reading and self._talk.trouble is None:
                self._read(0)
        if self._owed:
            self._pay()

    async def listen(self, one: News, seconds: float) -> bool:
        return self._await(one, seconds)

    def _await(self, one: News, seconds: float) -> bool:
        """Wait until ``one`` has data. Return False after ``seconds``. The thread reads for all threads if no other
        one reads."""
        vigil = self._vigil if self._talk.is_single else None
        began = time.monotonic()
        until = began + seconds
        awake_until = min(until, began + vigil.seconds) if vigil is not None else 0.0
        with self._heard:
            while not one.has_news:
                if self._talk.trouble is not None:
                    raise self._lost(self._talk.trouble)
                left = until - time.monotonic()
                if left <= 0:
                    return False
                if self._reading:
                    self._waiting += 1
                    self._news.wait(left)
                    self._waiting -= 1
                else:
                    self._read(left, awake_until)
        if vigil is not None:
            vigil.took(time.monotonic() - began)
        if self._owed:
            self._pay()
        return True

    def _read(self, seconds: float, awake_until: float = 0.0) -> None:
        """Read once. The caller holds ``_heard``; it is released while the thread waits for the network."""
        self._reading = True
        self._heard.release()
        size, trouble = -1, None
        try:
            if awake_until and self._vigil is not None:
                size = self._look_out(self._vigil, awake_until)
            if size >= 0:
                pass
            elif seconds > PLAIN_SECONDS:
                size = self._channel.recv_into(self._sealed or self._talk.room())
            elif self._poll.poll(ceil(seconds * 1000)):
                size = self._channel.recv_into(self._sealed or self._talk.room(), 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError as error:
            trouble = error
        except BaseException as error:  # raised by a signal handler; bytes already received may be lost
            trouble = InterruptedError(f"{type(error).__name__} while reading")
            self._lost(trouble)
            raise
        finally:
            self._heard.acquire()
            self._reading = False
            if self._waiting:
                self._news.notify_all()
        if size > 0:
            self._receive(size)
        elif size == 0 or trouble is not None:
            self._talk.end(trouble or ConnectionError("the server closed the connection"))

    def _look_out(self, vigil: Vigil, until: float) -> int:
        """Poll the socket until the time ``until`` (adaptive spin). Return the number of bytes received, or -1."""
        receive, room = self._channel.recv_into, self._sealed or self._talk.room()
        now = time.monotonic()
        while now < until:
            try:
                return receive(room, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                give_way()
            before, now = now, time.monotonic()
            if now - before > vigil.slow:
                vigil.was_late()
        return -1

    def _receive(self, size: int) -> None:
        try:
            if self._tls is None:
                self._owed += self._talk.receive(size)[1]
                return
            left = memoryview(self._tls.open(memoryview(self._sealed)[:size]))
            while left:
                room = self._talk.room()[: len(left)]
                room[:] = left[: len(room)]
                left = left[len(room) :]
                self._owed += self._talk.receive(len(room))[1]
        except (Lost, OSError) as error:
            self._talk.end(error)

    def _pay(self) -> None:
        """Flush replies queued by the frame reader. The caller must not hold ``_heard``."""
        with self._sending:
            owed, self._owed = self._owed, b""
            if owed:
                self._send(owed)

    # -- closing ----------------------------------------------------------------------------------------------------

    def _lost(self, trouble: Exception) -> Lost:
        """Mark the connection as lost; the first reason given is kept. The shutdown wakes threads that read or
        write. The file descriptor is closed when no thread uses it any more."""
        self._talk.end(trouble)
        why = self._talk.trouble or trouble
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        lost = Lost(str(why))
        lost.__cause__ = why
        return lost

    async def close(self) -> None:
        if self.process != os.getpid():
            self._channel.close()  # the parent keeps its own copy of the connection
            return
        if self.is_alive:
            with contextlib.suppress(Lost):
                await self.ask(Kind.BYE, messages.Empty())
        self._lost(ConnectionError("closed by this client"))
        with self._news:
            self._news.notify_all()
            self._waiting += 1
            self._news.wait_for(lambda: not self._reading, LAST_READ)
            self._waiting -= 1
        with self._sending:
            self._channel.close()


class BlockingWires:
    """``client.transport.Wires`` for threads.

    ``stay_awake``: a thread that waits for a single reply that usually arrives soon polls for it before it blocks
    (adaptive spin). This needs a second processor, for the server."""

    def __init__(self, stay_awake: bool = True) -> None:
        self._stay_awake = stay_awake and processors() > 1

    def turn(self) -> "Turn":
        return Turn()

    async def dial(self, address: Address, seconds: float, patience: float) -> BlockingLine:
        channel = _connected(address, seconds)
        try:
            if not address.tls:
                return BlockingLine(channel, patience, None, self._stay_awake)
            from yirangmq.client.tls import Tls

            tls = Tls(address)
            tls.shake_hands(channel)
            return BlockingLine(channel, patience, tls, self._stay_awake)
        except BaseException:
            channel.close()
            raise

    async def speaks_tls(self, address: Address, seconds: float) -> bool:
        from yirangmq.client.tls import unverified_context

        try:
            with (
                socket.create_connection((address.host, address.port), seconds) as channel,
                unverified_context().wrap_socket(channel, server_hostname=address.host),
            ):
                return True
        except (OSError, ValueError):
            return False

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (here a coroutine blocks on purpose)


class Turn:
    """A thread lock with the interface of an asyncio lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def _connected(address: Address, seconds: float) -> socket.socket:
    if address.scheme == "tcp":
        channel = socket.create_connection((address.host, address.port), seconds)
        prepare(channel)
        return channel
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.settimeout(seconds)
        channel.connect(address.path)
        prepare(channel)
        return channel
    except BaseException:
        channel.close()
        raise
