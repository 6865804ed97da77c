"""Adaptive spin: how long to busy-wait for an expected event before blocking.

A sleep/wake cycle costs tens of µs, about as long as many of the waits. The caller therefore spins for up to twice the
usual wait, a moving average, and at most ``longest``; if the wait is usually longer, it blocks at once.

After another process has kept the processor for too long, the caller blocks for the next 16 waits, then 32, up to
1,024. Measurements: docs/decisions/0018-staying-awake.md. Pure: the caller measures time and does the spinning."""

WEIGHT = 0.25
"""Of the latest among those before it."""
SHORT_REST, LONG_REST = 16, 1024
"""Waits slept through after somebody else wanted the processor, who keeps it for much longer than it takes to be woken:
few at first, twice as many each time it happens again, and one less for each wait stayed awake for."""


class Vigil:
    """What one kind of wait usually takes; what takes more than ``longest`` seconds is not stayed awake for. At first
    nothing is known, and nobody stays awake."""

    __slots__ = ("_longest", "_most", "_next_rest", "_rest", "slow", "usual")

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._most = 2 * longest
        """However long it took once, it counts as this: after a pause, some quick ones are enough to stay awake."""
        self.usual = self._most
        self._rest, self._next_rest = 0, SHORT_REST
        self.slow = longest / 2
        """Who gave way to others for so long is back too late."""

    @property
    def seconds(self) -> float:
        """How long to stay awake at most; 0: not at all."""
        return min(2 * self.usual, self._longest) if self.usual <= self._longest and not self._rest else 0.0

    def was_late(self) -> None:
        """Others have had the processor for ``slow`` seconds, or more."""
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, LONG_REST)

    def took(self, seconds: float) -> None:
        """It came after so long."""
        if self._rest:
            self._rest -= 1
        elif self._next_rest > SHORT_REST and self.usual <= self._longest:
            self._next_rest -= 1
        self.usual += (min(seconds, self._most) - self.usual) * WEIGHT
