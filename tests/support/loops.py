"""A test's own loop on real sockets: run to its end, and whoever was connected is closed after it."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tests.support.wait import PATIENCE

WRITERS: list[asyncio.StreamWriter] = []
"""Of those connected in the running test, to be closed after it."""


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
