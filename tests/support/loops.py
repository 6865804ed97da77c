"""Event loops of tests: run to their end, connections closed after it; one whose turns the test takes; an executor
without threads."""

import asyncio
import queue
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any

import uvloop

from tests.support.wait import PATIENCE
from yirangmq.core.errors import QueueError
from yirangmq.protocols.listen import TlsServer, sockets_of

Run = Callable[[Awaitable[None]], None]
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
WRITERS: list[asyncio.StreamWriter] = []
"""Of those connected in the running test, to be closed after it."""


def run_loop(main: Awaitable[None], make_loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
    async def whole() -> None:
        try:
            await main
        finally:
            for writer in WRITERS:
                writer.close()
                with suppress(OSError, ssl.SSLError):
                    await asyncio.wait_for(writer.wait_closed(), PATIENCE)
            WRITERS.clear()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(whole())


async def close_servers(*servers: asyncio.AbstractServer) -> None:
    """Every connection that was accepted is known to its protocol when this returns. (asyncio drops one that it accepts
    in the turn in which its server closes, and leaves the socket open: here none is accepted in the turns before.)"""
    for server in servers:
        for listening in sockets_of(server):
            asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(3):  # a task is begun, makes a transport, and that tells the protocol
        await asyncio.sleep(0)
    for server in servers:
        server.close()
    for server in servers:
        if isinstance(server, TlsServer):
            await server.wait_closed()


class InlineExecutor(Executor):
    """Runs each task in the call that submits it."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(work(*given, **named))
        return future


class ManualLoop:
    """Calls from other threads wait until the test takes a turn. ``told``: what ``done`` was given."""

    def __init__(self) -> None:
        self._calls: queue.Queue[Callable[[], None]] = queue.Queue()
        self.told: list[tuple[Any, str]] = []
        self.is_closed = False

    def call(self, action: Callable[[], None]) -> None:
        if self.is_closed:
            raise RuntimeError("Event loop is closed")
        self._calls.put(action)

    def turn(self) -> None:
        self._calls.get(timeout=PATIENCE)()

    def done(self, value: Any, error: QueueError | None) -> None:
        self.told.append((value, "" if error is None else f"{error.code}: {error}"))
