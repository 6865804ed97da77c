"""Signs of life in both directions: what was agreed on, when one is due, when the other side is given up.

Knows: intervals, and how often it is called. Does not know: clocks, frames, sockets."""

from collections.abc import Callable
from typing import Any

from yirangmq.core.errors import BadInput

LEAST_MS = 500
"""What we promise to send, and ask for, at most so often."""
MOST_MS = 86_400_000
PATIENCE = 2
"""Intervals without a sound after which a client is gone: packets may be late."""


def read(text: str | None) -> tuple[int, int]:
    """What a client can send, and what it wants, in milliseconds; 0 is not at all."""
    if text is None:
        return 0, 0
    sends, comma, wants = text.partition(",")
    numbers = [one.strip() for one in (sends, wants)]
    if not comma or not all(one.isascii() and one.isdecimal() and len(one) <= 12 for one in numbers):
        raise BadInput(
            f"must be two numbers of milliseconds, such as 10000,10000, not {text[:40]!r}", field="heart-beat"
        )
    return min(int(numbers[0]), MOST_MS), min(int(numbers[1]), MOST_MS)


def shown(asked: tuple[int, int]) -> str:
    """What we can send, and want: only of a client that speaks of it."""
    sends, wants = asked
    return f"{LEAST_MS if wants else 0},{LEAST_MS if sends else 0}"


class Beats:
    """``has_sent`` and ``has_heard`` are set by whoever sends and hears. ``later`` calls back after some seconds.
    ``lost`` says whether the client was given up; if not, it is listened for on."""

    def __init__(
        self,
        asked: tuple[int, int],
        later: Callable[[float, Callable[[], None]], Any],
        beat: Callable[[], None],
        lost: Callable[[int], bool],
    ) -> None:
        sends, wants = asked
        self.hears_ms = max(sends, LEAST_MS) if sends else 0
        self.sends_ms = max(wants, LEAST_MS) if wants else 0
        self.has_sent = self.has_heard = True
        self._silent = 0
        self._later = later
        self._beat = beat
        self._lost = lost
        self._is_over = False
        self._plan()

    def _plan(self) -> None:
        if self.sends_ms:
            self._later(self.sends_ms / 2000, self._send)
        if self.hears_ms:
            self._later(self.hears_ms / 1000, self._listen)

    def _send(self) -> None:
        """Twice in each interval, so that never a whole one passes."""
        if self._is_over:
            return
        if not self.has_sent:
            self._beat()
        self.has_sent = False
        self._later(self.sends_ms / 2000, self._send)

    def _listen(self) -> None:
        if self._is_over:
            return
        self._silent = 0 if self.has_heard else self._silent + 1
        self.has_heard = False
        if self._silent < PATIENCE or not self._lost(self.hears_ms * PATIENCE):
            self._later(self.hears_ms / 1000, self._listen)

    def stop(self) -> None:
        self._is_over = True
