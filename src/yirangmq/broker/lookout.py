"""Keeps a server's loop from falling asleep for the moment in which whoever was just answered usually asks again.

Knows: when answers left and when work came (``core.adaptive_spin`` knows what to make of it). Does not know: the desk,
asyncio. Whoever runs it hands in ``soon``, which calls back in the next turn of the loop, and ``give_way``, which lets
others have the processor first."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from yirangmq.core.adaptive_spin import Vigil

LONGEST = 0.00015
"""Seconds in which a client that has its answer asks again; others are not stayed awake for."""


class Lookout:
    """Used from one thread, the loop's."""

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], Any],
        give_way: Callable[[], None],
        seconds: Callable[[], float] = perf_counter,
    ) -> None:
        self._soon = soon
        self._give_way = give_way
        self._seconds = seconds
        self._vigil = Vigil(LONGEST)
        self._since = 0.0
        """When answers left that nothing was asked after yet; 0: work came since."""
        self._until = 0.0
        self._is_out = False

    def asked(self) -> None:
        """Work has come."""
        if self._since:
            self._vigil.took(self._seconds() - self._since)
            self._since = 0.0

    def answered(self) -> None:
        """Answers have left."""
        self._since = self._seconds()
        awake = self._vigil.seconds
        self._until = self._since + awake
        if awake and not self._is_out:
            self._is_out = True
            self._soon(self._look)

    def _look(self) -> None:
        """The loop looks at its sockets before it comes here again."""
        if self._since and (now := self._seconds()) < self._until:
            self._give_way()
            if self._seconds() - now > self._vigil.slow:
                self._vigil.was_late()
            self._soon(self._look)
        else:
            self._is_out = False
