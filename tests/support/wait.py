"""How long tests wait for what must come: one number for all. Only a failure ever waits so long, so it is generous;
``YIRANGMQ_TEST_PATIENCE`` makes it longer, for a machine that is slower still or has much else to do."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE = int(os.environ.get("YIRANGMQ_TEST_PATIENCE", "120"))
"""Seconds."""

STALL_SECONDS = PATIENCE / 12
"""A loop that is blocked for longer fails the test: it waits for a lock, or for another process. As generous, because a
disk that others use may take seconds to sync."""


def until(is_so: Any, seconds: float = PATIENCE, *, what: str = "") -> None:
    """Look again and again: another thread or process tells nobody what it is about to do."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"it did not come to be: {what or is_so}"
        time.sleep(0.005)


async def soon(is_so: Callable[[], Any], seconds: float = PATIENCE, *, what: str = "") -> None:
    """The same on a loop, which turns meanwhile."""
    end = time.monotonic() + seconds
    while True:
        found = is_so()
        if await found if isinstance(found, Awaitable) else found:
            return
        assert time.monotonic() < end, f"it did not come to be: {what or is_so}"
        await asyncio.sleep(0.001)
