"""STOMP producers and consumers under load, on blocking sockets: what was confirmed, what was delivered, and when.

A producer sends one message at a time and sends it again, at the next address, until a node confirms it; a node stores
the same ``_AMQ_DUPL_ID`` once. A consumer acknowledges each message. Both leave a node that does not answer in time."""

import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from typing import NamedTuple

from yirangmq.wire.stomp import V12, StompFrame, StompReader, encode

ANSWER_SECONDS = 3.0
"""A node that has not answered for so long is left."""
PAUSE_SECONDS = 0.05
BODY_BYTES = 2000


class Place(NamedTuple):
    """Where a program finds the nodes, and how it shows who it is."""

    ports: tuple[int, ...]
    passcode: str = ""
    source: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None


class StompLine:
    """One connection. ``read`` raises ``OSError`` when the node does not answer in time or has closed."""

    def __init__(self, place: Place, port: int) -> None:
        self._reader = StompReader()
        self._frames: list[StompFrame] = []
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS, (place.source, 0))
        try:
            if place.tls is not None:
                self._socket = place.tls.wrap_socket(self._socket, server_hostname="localhost")
            headers = {"accept-version": V12, "passcode": place.passcode, "heart-beat": "0,1000"}
            self.write("CONNECT", headers)
            if self.read(ANSWER_SECONDS).command != "CONNECTED":
                raise ConnectionError("refused")
        except BaseException:
            self._socket.close()
            raise

    def write(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        self._socket.sendall(encode(V12, command, headers, body))

    def read(self, seconds: float) -> StompFrame:
        end = time.monotonic() + seconds
        while not self._frames:
            self._socket.settimeout(max(0.01, end - time.monotonic()))
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("closed")
            self._frames += self._reader.feed(data)
        return self._frames.pop(0)

    def messages(self, over: threading.Event) -> Iterator[StompFrame]:
        """Frames until it is over; heart-beats show that the node lives."""
        self._socket.settimeout(ANSWER_SECONDS)
        while not over.is_set():
            while self._frames:
                yield self._frames.pop(0)
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("closed")
            self._frames += self._reader.feed(data)

    def close(self) -> None:
        self._socket.close()


@dataclass
class Load:
    """Producers and consumers of one queue. ``delays``: (end, seconds) of each confirmed send."""

    destination: str
    sent: dict[bytes, bytes] = field(default_factory=dict)
    """By id, each body that was confirmed."""
    delays: list[tuple[float, float]] = field(default_factory=list)
    got: Counter[bytes] = field(default_factory=Counter)
    """How often each body was delivered."""
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _producing: list[threading.Thread] = field(default_factory=list)
    _consuming: list[threading.Thread] = field(default_factory=list)
    _producers_over: threading.Event = field(default_factory=threading.Event)
    _pending_of: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)

    def start(self, producer: Place, consumer: Place, producers: int = 4, consumers: int = 2) -> "Load":
        self.produce(producer, producers)
        self.consume(consumer, consumers)
        return self

    def produce(self, place: Place, count: int) -> None:
        self._producing += self._threads(count, place, self._produce, self._producers_over)

    def consume(self, place: Place, count: int) -> None:
        self._consuming += self._threads(count, place, self._consume, self._is_over)

    def _threads(
        self, count: int, place: Place, work: Callable[[StompLine], None], over: threading.Event
    ) -> list[threading.Thread]:
        made = [threading.Thread(target=self._keep, args=(place, work, over)) for _ in range(count)]
        for thread in made:
            thread.start()
        return made

    def stop_producing(self) -> None:
        self._producers_over.set()
        for thread in self._producing:
            thread.join()

    def stop(self) -> None:
        self.stop_producing()
        self._is_over.set()
        for thread in self._consuming:
            thread.join()

    @property
    def missing(self) -> int:
        with self._guard:
            return sum(1 for body in self.sent.values() if not self.got[body])

    @property
    def longest_gap(self) -> float:
        """Seconds between two confirmations, of all producers together."""
        ends = sorted(end for end, _ in self.delays)
        return max((after - before for before, after in pairwise(ends)), default=0.0)

    def _keep(self, place: Place, work: Callable[[StompLine], None], over: threading.Event) -> None:
        """Work at one node after the other, until it is over."""
        for port in cycle(place.ports):
            if over.is_set():
                return
            line = None
            try:
                line = StompLine(place, port)
                work(line)
            except OSError:
                over.wait(PAUSE_SECONDS)
            finally:
                if line is not None:
                    line.close()

    def _produce(self, line: StompLine) -> None:
        pending = self._pending()
        while pending or not self._producers_over.is_set():
            id, body = pending.pop() if pending else (os.urandom(8).hex().encode(), os.urandom(BODY_BYTES))
            begun = time.monotonic()
            try:
                headers = {"destination": self.destination, "receipt": "r", "_AMQ_DUPL_ID": id.decode()}
                line.write("SEND", headers, body)
                answer = line.read(ANSWER_SECONDS)
            except OSError:
                pending.append((id, body))
                raise
            if answer.command != "RECEIPT":
                pending.append((id, body))
                raise ConnectionError(answer.headers.get("message", ""))
            end = time.monotonic()
            with self._guard:
                self.sent[id] = body
                self.delays.append((end, end - begun))

    def _pending(self) -> list[tuple[bytes, bytes]]:
        """What this thread has sent and not seen confirmed."""
        return self._pending_of.setdefault(threading.get_ident(), [])

    def _consume(self, line: StompLine) -> None:
        line.write(
            "SUBSCRIBE", {"destination": self.destination, "id": "1", "ack": "client-individual", "receipt": "s"}
        )
        for frame in line.messages(self._is_over):
            if frame.command == "MESSAGE":
                with self._guard:
                    self.got[frame.body] += 1
                line.write("ACK", {"id": frame.headers["ack"]})
            elif frame.command == "ERROR":
                raise ConnectionError(frame.headers.get("message", ""))


def percentile(delays: Sequence[float], share: float) -> float:
    ordered = sorted(delays)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
