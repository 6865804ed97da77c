"""Clients that do not read, or send a byte now and then: the server's memory stays within its bound. What they do to
the latency of others is printed, not judged: that depends on the machine."""

import json
import os
import signal
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.support.server_process import daemon, until
from tests.support.wait import PATIENCE
from tests.support.worker_processes import crew
from yirangmq.client.connect import connect
from yirangmq.client.sync_client import Client
from yirangmq.wire import messages
from yirangmq.wire.frames import HEAD, VERSION, FrameKind

pytestmark = pytest.mark.process
MIB = 1024 * 1024
PAYLOAD = b"x" * 2000
FLOOD = 10_000
BOUND = 24 * MIB
"""For three stopped readers and twenty slow writers: more than they may cost, far less than what waits for them."""


def stop_reading(path: str, pipe: Connection) -> None:
    """Ask for everything, then stop for good."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    line.sendall(messages.frame(FrameKind.SUBSCRIBE, 1, messages.Subscribe("flood", FLOOD, 600_000)))
    os.kill(os.getpid(), signal.SIGSTOP)


@contextmanager
def stopped_readers(path: str, count: int) -> Iterator[None]:
    with crew() as team:
        for _ in range(count):
            team.start(stop_reading, path)
        yield


@contextmanager
def slow_writers(path: str, count: int) -> Iterator[list[socket.socket]]:
    """Each has said that a frame of a mebibyte comes."""
    lines = [socket.socket(socket.AF_UNIX) for _ in range(count)]
    try:
        for line in lines:
            line.connect(path)
            line.sendall(HEAD.pack(MIB, VERSION, FrameKind.PUBLISH, 0, 1))
        yield lines
    finally:
        for line in lines:
            line.close()


def latencies(client: Client, rounds: int) -> list[float]:
    """Of publish, lease and ack, one after the other."""
    found: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        client.publish("mail", PAYLOAD)
        [delivery] = client.lease("mail", wait=PATIENCE)
        client.ack(delivery.lease_id)
        found.append((time.perf_counter() - began) * 1000)
    return found


def flood(client: Client) -> None:
    for _ in range(0, FLOOD, 1000):
        client.publish_many("flood", [PAYLOAD] * 1000)


def test_backpressure_bounds_the_memory_for_clients_that_do_not_read_or_write_slowly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with daemon(tmp_path) as server, connect(server.address) as client:
        path = server.address.removeprefix("unix:")
        alone = latencies(client, 200)
        flood(client)
        before = server.resident_bytes()
        with stopped_readers(path, 3), slow_writers(path, 20) as lines:
            until(lambda: sum(bool(one["clogged"]) for one in client.call("connections")) == 3)
            beside: list[float] = []
            for _ in range(20):
                for line in lines:
                    line.send(b"\x92")
                beside += latencies(client, 10)
            flood(client)
            grown = server.resident_bytes() - before
            held = [one["bytesHeld"] for one in client.call("connections")]
        until(lambda: len(client.call("connections")) == 1)
        assert client.call("health")["status"] == "ok"
    ratio = statistics.median(beside) / statistics.median(alone)
    figures = {
        "grownMiB": round(grown / MIB, 1),
        "mostHeldMiB": round(max(held) / MIB, 2),
        "medianMs": round(statistics.median(alone), 3),
        "medianMsBeside": round(statistics.median(beside), 3),
        "ratio": round(ratio, 2),
    }
    with capsys.disabled():
        print(f"\nhostile clients: {json.dumps(figures)}")
    assert grown < BOUND
    assert max(held) < 4 * MIB
