"""Clients that mean no good, many at once, against a server in a process of its own: others are served all the time,
the bad ones are sent away, and memory stays within its bound. And ten thousand good ones, who only wait."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import wait
from tests.support.http import Answer, Answers, request
from tests.support.limits import file_limit
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[3]
MIB = 1024 * 1024
MANY = 10_000


class Client:
    """One connection, one request after another, as plainly as can be."""

    def __init__(self, port: int) -> None:
        self.line = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._answers = Answers()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.line.close()

    def ask(self, data: bytes) -> Answer:
        self.line.sendall(data)
        return self.hear()

    def hear(self) -> Answer:
        while not self._answers.complete:
            data = self.line.recv(65536)
            assert data, "the server closed"
            self._answers.feed(data)
        return self._answers.complete.pop(0)

    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask(request("GET", "/self")).body)
        return found

    def until(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        about: dict[str, Any] = {}

        def is_seen() -> bool:
            about.update(self.about())
            return is_so(about)

        wait.until(is_seen)
        return about


@contextmanager
def server(loop: str, **limits: float) -> Iterator[int]:
    command = [sys.executable, "-m", "tests.protocols.http.stage_server", json.dumps(limits), loop]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
        assert process.poll() is None, "it crashed"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# -- what they do ---------------------------------------------------------------------------------------------------

SLOW_BODY = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n"
TRICKS = [
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /%2e%2e%2f%2e%2e%2fetc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /echo%00 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /%ff%fe HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET //echo HTTP/1.1\r\nHost: \xff\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nmore than two bytes",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551617\r\n\r\n",
]  # fmt: skip


def slow(port: int, start: bytes, stop: threading.Event) -> None:
    """Many connections that send a byte now and then."""
    lines = [socket.create_connection(("127.0.0.1", port), PATIENCE) for _ in range(100)]
    for line in lines:
        line.sendall(start)
    while not stop.wait(0.1):
        for line in lines:
            with suppress(OSError):
                line.send(b"x", socket.MSG_DONTWAIT)
    for line in lines:
        line.close()


def huge(port: int, stop: threading.Event) -> None:
    """Heads without end."""
    while not stop.is_set():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE) as line:
            line.sendall(b"GET /echo HTTP/1.1\r\n")
            for number in range(1000):
                line.sendall(b"X-%d: " % number + b"y" * 10_000 + b"\r\n")


def unread(port: int, stop: threading.Event) -> None:
    """They ask for much and read nothing."""
    with ExitStack() as stack:
        for _ in range(20):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            line.sendall(request("GET", "/floods") * 4)
        stop.wait()


def noise(port: int, stop: threading.Event) -> None:
    """Bytes by chance, tricks, and requests that break off."""
    dice = random.Random(7)
    while not stop.is_set():
        data = dice.choice([dice.randbytes(200), dice.choice(TRICKS), request("POST", "/echo", b"x" * 500)[:-9]])
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE) as line:
            line.sendall(data)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_hostile_clients_neither_crash_the_server_nor_starve_others(loop: str) -> None:
    limits = {"head_seconds": 0.6, "body_seconds": 0.6, "write_seconds": 0.6, "linger_seconds": 0.3}
    with server(loop, **limits, write_buffer=256 * 1024) as port, Client(port) as good:
        before = good.about()["resident"]
        stop = threading.Event()
        bad = [
            threading.Thread(target=act, args=(port, *more, stop), daemon=True)
            for act, *more in ((slow, b"GET /echo"), (slow, SLOW_BODY), (huge,), (unread,), (noise,))
        ]
        for thread in bad:
            thread.start()
        served, most = 0, 0
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            assert good.ask(request("POST", "/echo", b"hello")).body == b"hello"
            served += 1
            if served % 50 == 0:
                most = max(most, good.about()["resident"])
        cut = good.until(lambda about: about["closed"].get("slow request", 0) >= 200)["closed"]
        good.until(lambda about: about["closed"].get("slow reader", 0) >= 20)
        stop.set()
        for thread in bad:
            thread.join(PATIENCE)
        good.until(lambda about: about["connections"] == 1 and about["held"] == 0)
        print(
            f"{loop}: served {served} beside them, sent away {cut}, memory up to {(most - before) / MIB:.1f} MiB more"
        )
        assert most - before < 64 * MIB


# -- ten thousand that wait -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["asyncio"])
def test_waiting_requests_ten_thousand_at_once_use_under_24_kib_each(loop: str) -> None:
    with file_limit(MANY + 200) as allowed, server(loop, connections=MANY + 10) as port, ExitStack() as stack:
        count = min(MANY, allowed - 200)
        if count < MANY:
            print(f"the system allows {allowed} open files, so only {count} wait")
        good = stack.enter_context(Client(port))
        before = good.about()["resident"]
        lines = []
        for _ in range(count):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            line.sendall(request("GET", "/wait"))
            lines.append(line)
        about = good.until(lambda about: about["waiting"] == count)
        each = (about["resident"] - before) / count
        print(f"{loop}: {count} waiting requests, {each / 1024:.1f} KiB each")
        assert each < 24 * 1024
        lines[0].close()
        good.until(lambda about: about["left"] == 1)
        assert good.ask(request("POST", "/echo", b"hello")).body == b"hello"
        assert good.ask(request("POST", "/release")).status == 204
        for line in lines[1:]:
            assert b"at last" in line.recv(65536)
