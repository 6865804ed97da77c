"""The sending side of a connection, with a transport that takes what it is told to."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from yirangmq.protocols.stream_sender import SendBuffer, SocketOutput
from yirangmq.topics.ports import CatchupOutput


class Transport:
    """Takes ``room`` bytes at once, and holds the rest until it has more."""

    def __init__(self, raw: socket.socket, tls: object = None) -> None:
        self._extra = {"socket": raw, "ssl_object": tls}
        self.sender: SendBuffer | None = None
        self.room = 1 << 30
        self.out = bytearray()
        self.held = bytearray()
        self.is_lost = False
        self._high = 1 << 16
        self._is_paused = False

    def get_extra_info(self, name: str) -> Any:
        return self._extra[name]

    def is_closing(self) -> bool:
        return self.is_lost

    def get_write_buffer_size(self) -> int:
        return len(self.held)

    def set_write_buffer_limits(self, high: int, low: int = 0) -> None:
        self._high = high
        self._look()

    def write(self, data: bytes) -> None:
        self.held += data
        self._flow()
        self._look()

    def more_room(self, count: int) -> None:
        self.room += count
        self._flow()
        if self._is_paused and not self.held and self.sender is not None:
            self._is_paused = False
            self.sender.resumed()

    def _flow(self) -> None:
        count = min(self.room, len(self.held))
        self.out += self.held[:count]
        del self.held[:count]
        self.room -= count

    def _look(self) -> None:
        if not self._is_paused and len(self.held) > self._high and self.sender is not None:
            self._is_paused = True
            self.sender.paused()


class Side:
    def __init__(self, raw: socket.socket) -> None:
        self.reasons: list[str] = []
        self.dirty = 0
        self.outlets: list[CatchupOutput] = []
        self.sender = SendBuffer(1000, 5000, self._mark, self.reasons.append)
        self.transport = Transport(raw)
        self.transport.sender = self.sender
        self.sender.start(cast("Any", self.transport))

    def _mark(self) -> None:
        self.dirty += 1

    def detach(self) -> None:
        self.sender.detach(self.outlets.append, lambda: None)


@pytest.fixture
def side() -> Iterator[Side]:
    here, there = socket.socketpair()
    made = Side(here)
    yield made
    for outlet in made.outlets:
        outlet.close()
    here.close()
    there.close()


def test_stream_sender_flushes_pending_data_in_order_with_one_write(side: Side) -> None:
    side.sender.send(b"one ")
    side.sender.send(b"two")
    assert side.transport.out == b""
    side.sender.flush()
    assert side.transport.out == b"one two"
    assert side.dirty == 2


def test_stream_sender_lends_the_socket_at_once_when_all_data_is_written(side: Side) -> None:
    side.sender.send(b"before")
    side.detach()
    assert side.transport.out == b"before"
    assert len(side.outlets) == 1
    assert side.sender.is_detached


def test_stream_sender_lends_the_socket_only_after_the_last_byte_is_written(side: Side) -> None:
    side.transport.room = 3
    side.sender.send(b"before")
    side.detach()
    assert side.outlets == []
    side.transport.more_room(2)
    assert side.outlets == []
    side.transport.more_room(1)
    assert len(side.outlets) == 1


def test_stream_sender_writes_a_response_added_before_the_socket_is_lent(side: Side) -> None:
    """Even if it is written after the transport is empty, and goes out at once."""
    side.transport.room = 3
    side.sender.send(b"before")
    side.detach()
    side.sender.send(b" answer")
    side.transport.more_room(100)
    assert side.outlets == []
    side.sender.flush()
    assert side.transport.out == b"before answer"
    assert len(side.outlets) == 1


def test_stream_sender_holds_responses_while_the_socket_is_lent(side: Side) -> None:
    side.detach()
    side.sender.send(b"one ")
    side.sender.send(b"two ")
    side.sender.flush()
    assert side.transport.out == b""
    assert not side.sender.has_capacity(1, 100)
    assert side.sender.unsent_bytes == 8
    assert side.sender.deferred() == b"one two "
    assert side.sender.unsent_bytes == 0
    side.sender.send(b"three")
    side.outlets[0].close()
    side.sender.attach()
    side.sender.flush()
    assert side.transport.out == b"three"
    assert side.sender.has_capacity(1, 100)


def test_stream_sender_closes_a_slow_client_while_the_socket_is_lent(side: Side) -> None:
    side.detach()
    for _ in range(6):
        side.sender.send(b"x" * 1000)
    assert side.reasons == ["slow"]


def test_stream_sender_does_not_lend_a_lost_connection(side: Side) -> None:
    side.transport.room = 0
    side.sender.send(b"before")
    side.detach()
    side.transport.is_lost = True
    side.sender.close()
    side.transport.more_room(100)
    side.detach()
    assert side.outlets == []
    side.sender.send(b"nobody hears this")
    assert side.sender.unsent_bytes == 0


def test_socket_outlet_has_its_own_file_descriptor() -> None:
    here, there = socket.socketpair()
    with here, there:
        outlet = SocketOutput(here.fileno())
        assert outlet.fileno() != here.fileno()
        here.close()
        assert outlet.send(memoryview(b"still there")) == 11
        assert there.recv(100) == b"still there"
        outlet.close()
        outlet.close()
        assert outlet.fileno() == -1
        with pytest.raises(OSError, match="Bad file descriptor"):
            outlet.send(memoryview(b"x"))
        assert there.recv(100) == b""


def test_socket_outlet_sends_a_file_by_read_and_write_without_sendfile(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    (tmp_path / "file").write_bytes(b"0123456789")
    with here, there, (tmp_path / "file").open("rb") as file:
        outlet = SocketOutput(here.fileno())
        for can in (True, False):
            outlet._can_sendfile = can
            assert outlet.send_file(file.fileno(), 2, 5) == 5
            assert outlet.send_file(file.fileno(), 10, 5) == 0
            assert there.recv(100) == b"23456"
        outlet.close()
