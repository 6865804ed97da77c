"""History steps back while live records pass: all recoveries together take no more than so many bytes a second then,
or whoever catches up would take the processors, and the network, from those who are up to date.

Knows: when a live record last passed, how much was sent since; the time it is given. Does not know: clients."""

import threading
from collections.abc import Callable

LIVE_SECONDS = 0.25
"""So long after a live record others are expected."""
STEP = 256 * 1024
"""Bytes sent to one client at a time meanwhile: whoever waits behind it waits for no more."""


class Courtesy:
    """``live`` from the loop's thread, the rest from any. ``rate``: bytes a second; 0: no limit."""

    def __init__(self, rate: int, seconds: Callable[[], float]) -> None:
        self.rate = rate
        self._seconds = seconds
        self._lock = threading.Lock()
        self._live_until = 0.0
        self._free_at = 0.0

    def live(self) -> None:
        """A record goes out to somebody who is up to date."""
        if self.rate:
            self._live_until = self._seconds() + LIVE_SECONDS

    @property
    def is_asked(self) -> bool:
        return self._seconds() < self._live_until

    def wait(self) -> float:
        """Seconds until anybody may send on."""
        now = self._seconds()
        return max(0.0, self._free_at - now) if now < self._live_until else 0.0

    def sent(self, size: int) -> None:
        """So much went out."""
        if size and self.rate and self.is_asked:
            with self._lock:
                self._free_at = max(self._free_at, self._seconds()) + size / self.rate
