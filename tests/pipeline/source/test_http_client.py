"""Frames as a server sends them, over a real connection, cut anywhere."""

import random
import socket
import threading
from http.client import HTTPException, HTTPResponse

import pytest

from yirangmq.core.topics import NewRecord
from yirangmq.pipeline.source import http_client
from yirangmq.pipeline.source.errors import SourceError
from yirangmq.pipeline.source.frames import FrameColumns
from yirangmq.wire.records import encode_batch


def received(data: bytes, chance: random.Random, length: int | None = None) -> list[bytes]:
    """The payloads of what came, each run read before the next is asked for."""
    here, there = socket.socketpair()

    def send() -> None:
        with there:
            there.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (length or len(data)))
            begin = 0
            while begin < len(data):
                end = begin + chance.randrange(1, 100_000)
                there.sendall(data[begin:end])
                begin = end

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with here, HTTPResponse(here) as response:
            response.begin()
            return [body for run in http_client.runs_of(response) for body in FrameColumns(run).payloads().to_pylist()]
    finally:
        sender.join()


def made(bodies: list[bytes]) -> bytes:
    return encode_batch([NewRecord("t", body) for body in bodies], 1, 1, {}, synced=True).data


@pytest.mark.parametrize("largest", [50, 3000, 200_000])
def test_http_frames_cut_anywhere_give_every_record_once(largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are longer than what is read at once."""
    monkeypatch.setattr(http_client, "BATCH_BYTES", 4096)
    chance = random.Random(largest)
    bodies = [chance.randbytes(chance.randrange(largest)) for _ in range(60)]
    assert received(made(bodies), chance) == bodies


def test_http_frames_that_end_too_early_name_the_record() -> None:
    bodies = [b"x" * 700] * 20
    data = made(bodies)
    with pytest.raises(HTTPException, match="middle of record 20"):
        received(data[:-1], random.Random(1), len(data) - 1)


def test_http_frames_that_are_no_record_are_refused() -> None:
    with pytest.raises(SourceError, match="an invalid record"):
        received(made([b"x"]) + b"\xff" * 5000, random.Random(1))
