"""Whether the loop that does a leader's work still turns. Knows: how to ask it, how long it may stay silent. Does not
know: what it does, what follows.

The lease is kept alive in a thread of its own, which goes on when the work hangs; a leader that does nothing and
cannot be replaced is worse than none."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

PARTS = 4
"""It is asked when this part of the time has passed."""
Ask = Callable[[Callable[[], object]], object]
"""Has a function called in the loop that is asked, from another thread."""


class Pulse:
    """To be used in the loop that asks."""

    def __init__(self, ask: Ask, seconds: float) -> None:
        self._ask = ask
        self.seconds = seconds

    async def stops(self) -> None:
        """Until it has been silent for too long."""
        while True:
            if not await self._turned():
                return
            await asyncio.sleep(self.seconds / PARTS)

    async def turns(self) -> None:
        """Until it answers."""
        while not await self._turned():
            pass

    async def _turned(self) -> bool:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        with suppress(RuntimeError):  # it has ended
            self._ask(lambda: loop.call_soon_threadsafe(heard.set))
        try:
            async with asyncio.timeout(self.seconds):
                await heard.wait()
        except TimeoutError:
            return False
        return True
