"""Publishers that cost next to nothing: requests are encoded once, so many are under way at a time, and answers are
counted. For our feed and for a Redis stream.

Knows: both wires, as far as this needs. Does not know: what is measured."""

import socket
import time
from collections.abc import Iterator
from typing import Any

from yirangmq.wire import messages
from yirangmq.wire.frames import FrameKind, FrameReader

TOPIC = "trades.krx"
WINDOW = 32
"""Requests under way."""


def dial(path: str) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    line.settimeout(60)
    return line


def following(start: str, at: int = 0) -> bytes:
    return messages.frame(FrameKind.TOPIC_SUBSCRIBE, 1, messages.TopicSubscribe([], start=start, at=at, progress_ms=0))


def publishing(payload: bytes, batch: int) -> bytes:
    return messages.frame(
        FrameKind.TOPIC_PUBLISH, 7, messages.TopicPublish([messages.RecordBody(TOPIC, payload)] * batch)
    )


class OurLine:
    """Publishes batches of the same record."""

    def __init__(self, path: str, payload: bytes, batch: int) -> None:
        self._line = dial(path)
        self._frame = publishing(payload, batch)
        self._frames = FrameReader(1 << 20)

    def send(self) -> None:
        self._line.sendall(self._frame)

    def send_frame(self, frame: bytes) -> None:
        self._line.sendall(frame)

    def answers(self) -> int:
        """How many came with one read; an error is raised."""
        found = 0
        for kind, _, body in self._frames.feed(self._line.recv(1 << 16)):
            if kind != FrameKind.TOPIC_STORED:
                raise RuntimeError(f"refused: {messages.read(kind, body)}")
            found += 1
        return found

    def close(self) -> None:
        self._line.close()


class RedisLine:
    """XADD in a pipeline; ``*`` for the id, or ids of one length, so that the size of what is read is known."""

    def __init__(self, path: str, payload: bytes, batch: int, stream: str = "s") -> None:
        self._line = dial(path)
        self._payload, self._batch, self._stream = payload, batch, stream.encode()
        self._plain = self._command(b"*") * batch
        self._numbered: Iterator[int] | None = None
        self._lines = 0

    def number(self, first: int) -> None:
        """From here on with these ids."""
        self._numbered = iter(range(first, 1 << 60))

    def _command(self, id: bytes) -> bytes:
        parts = (b"XADD", self._stream, id, b"b", self._payload)
        return b"*5\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)

    def send(self) -> None:
        if self._numbered is None:
            self._line.sendall(self._plain)
        else:
            self._line.sendall(b"".join(self._command(b"%d-1" % next(self._numbered)) for _ in range(self._batch)))

    def answers(self) -> int:
        """Whole batches; each answer is two lines."""
        data = self._line.recv(1 << 16)
        if b"-ERR" in data:
            raise RuntimeError(data.decode(errors="replace"))
        self._lines += data.count(b"\n")
        batches, self._lines = divmod(self._lines, 2 * self._batch)
        return batches

    def ask(self, command: bytes) -> None:
        self._line.sendall(command)

    def read_exactly(self, size: int, buffer: memoryview) -> None:
        got = 0
        while got < size:
            count = self._line.recv_into(buffer[: size - got])
            if not count:
                raise RuntimeError("Redis has closed")
            got += count

    def close(self) -> None:
        self._line.close()


def pump(line: Any, requests: int, window: int = WINDOW) -> float:
    """All of them, so many at a time; seconds until the last answer."""
    begin = time.monotonic()
    sent = answered = 0
    while answered < requests:
        while sent < requests and sent - answered < window:
            line.send()
            sent += 1
        answered += line.answers()
    return time.monotonic() - begin
