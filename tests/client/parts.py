"""What tests of the client play with: the asyncio face run from plain tests, and a line that breaks on demand."""

import asyncio
import contextlib
import inspect
import socket
import threading
from collections.abc import Callable
from typing import Any

from tests.support.wait import PATIENCE
from yirangmq.client.connect import connect, connect_async
from yirangmq.wire.frames import FrameKind, FrameReader, encode

SOON = PATIENCE / 2
"""Longer than anything here takes, shorter than it waits for what nobody sends."""
SILENCE = 2.0
"""Seconds without anything after which there is no more, also where everything is slow."""


class InLoop:
    """The asyncio face, its coroutines run in a loop of their own, so that one scenario serves both faces."""

    def __init__(self, address: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._client = self._run(_connected(address, options))
        except BaseException:
            self._end()
            raise

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._client, verb)
        if inspect.isasyncgenfunction(found):
            return lambda *given, **named: iter(self._run(_all(found(*given, **named))))
        if inspect.iscoroutinefunction(found):
            return lambda *given, **named: self._run(found(*given, **named))
        return found

    def __enter__(self) -> "InLoop":
        return self

    def __exit__(self, *reason: object) -> None:
        try:
            self._run(self._client.close())
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()


async def _connected(address: str, options: dict[str, Any]) -> Any:
    return await connect_async(address, **options)


async def _all(steps: Any) -> list[Any]:
    return [one async for one in steps]


class ToTheirEnd:
    """Something of a store or of either face of a client, its coroutines run to their end."""

    def __init__(self, queues: Any, made: Any) -> None:
        self._it = made
        self._run: Callable[[Any], Any] = queues._run if isinstance(queues, InLoop) else lambda value: value

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self._run(getattr(self._it, name)(*given))


class BadLine:
    """Stands between clients and a server, and passes everything on, but for what it was told.

    ``lose_answer(kind)``: the next request of that kind reaches the server, is answered, and the connection breaks
    before the client hears of it. ``lose_request(kind)``: it breaks before the server hears of it."""

    def __init__(self, server: str) -> None:
        self._server = server.removeprefix("unix:")
        self._listener = socket.create_server(("localhost", 0))
        self._lose_answers: list[FrameKind] = []
        self._lose_requests: list[FrameKind] = []
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self.requests: list[FrameKind] = []
        self.losses = 0
        self._start(self._accept)

    @property
    def address(self) -> str:
        return f"tcp://localhost:{self._listener.getsockname()[1]}"

    def lose_answer(self, *kinds: FrameKind) -> None:
        self._lose_answers += kinds

    def lose_request(self, *kinds: FrameKind) -> None:
        self._lose_requests += kinds

    def close(self) -> None:
        self._listener.close()
        for one in list(self._open):
            _shut(one)
        for thread in self._threads:
            thread.join(PATIENCE)

    def _start(self, work: Callable[..., None], *given: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=given, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        self._listener.settimeout(0.1)
        while self._listener.fileno() >= 0:
            with contextlib.suppress(OSError):
                client = self._listener.accept()[0]
                client.settimeout(None)
                server = socket.socket(socket.AF_UNIX)
                self._open |= {client, server}
                try:
                    server.connect(self._server)
                except OSError:
                    _shut(client, server)
                    continue
                lost: set[int] = set()
                self._start(self._forward, client, server, lost)
                self._start(self._backward, client, server, lost)

    def _forward(self, client: socket.socket, server: socket.socket, lost: set[int]) -> None:
        for kind, request, body in _frames(client):
            self.requests.append(FrameKind(kind))
            if kind in self._lose_requests:
                self._lose_requests.remove(FrameKind(kind))
                self.losses += 1
                break
            if kind in self._lose_answers:
                self._lose_answers.remove(FrameKind(kind))
                lost.add(request)
            with contextlib.suppress(OSError):
                server.sendall(encode(kind, request, body))
        _shut(client, server)

    def _backward(self, client: socket.socket, server: socket.socket, lost: set[int]) -> None:
        for kind, request, body in _frames(server):
            if request in lost:
                self.losses += 1
                break
            with contextlib.suppress(OSError):
                client.sendall(encode(kind, request, body))
        _shut(client, server)


def _frames(source: socket.socket) -> Any:
    reader = FrameReader(1 << 28)
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            yield from reader.feed(data)


def _shut(*ends: socket.socket) -> None:
    for one in ends:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


Connect = Callable[..., Any]


FACES: dict[str, Connect] = {"blocking": connect, "asyncio": InLoop}
