"""A test's own loop on real sockets: run to its end, and whoever was connected is closed after it."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tests.patience import PATIENCE

WRITERS: list[asyncio.StreamWriter] = []
"""Of those connected in the running test, to be closed after it."""


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn until it is."""
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110  (the condition is the door's, which tells nobody)
            await asyncio.sleep(0.001)


def run(main: Awaitable[None], make_loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
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
