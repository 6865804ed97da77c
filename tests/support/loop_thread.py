"""A server of this process on a loop and a thread of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.wait import PATIENCE, STALL_SECONDS
from yirangmq.observe.event_loop import LoopWatchdog


class OnThread:
    """``main`` is given what to call when it is up, and what to wait for. What goes wrong on the loop meanwhile is a
    failure of the test that stops it, and so is a loop that was blocked for longer than ``stall_seconds``."""

    def __init__(
        self,
        main: Callable[[Callable[[], None], asyncio.Event], Awaitable[None]],
        *,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._main = main
        self._stall_seconds = stall_seconds
        self.longest_stall = 0.0
        self._faults: list[dict[str, Any]] = []
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(up)), daemon=True)
        self._thread.start()
        assert up.wait(PATIENCE), self._faults

    def stop(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive()
            self._thread = None
            stalled, self.longest_stall = self.longest_stall, 0.0
            assert stalled < self._stall_seconds, f"the event loop was blocked for {stalled:.1f} s; see the log"
        assert self._faults == []

    def do(self, act: Callable[[], Any]) -> None:
        """Something on the server's own thread, soon."""
        self._loop.call_soon_threadsafe(act)

    async def _run(self, up: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda loop, context: self._faults.append(context))
        self._over = asyncio.Event()
        watchdog = self.watchdog = LoopWatchdog(self._loop, is_always_on=True)
        watchdog.note_activity()
        try:
            await self._main(up.set, self._over)
        finally:
            watchdog.stop()
            self.longest_stall = max(self.longest_stall, watchdog.longest)
