"""Event loops of tests: run to their end, connections closed after it; an executor that needs no threads."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any

import uvloop

from tests.support.wait import PATIENCE

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


class InlineExecutor(Executor):
    """Runs each task in the call that submits it."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(work(*given, **named))
        return future
