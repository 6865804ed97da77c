"""Adaptive spin: how long to busy-wait for an expected event before blocking.

A sleep/wake cycle costs tens of µs, about as long as many of the waits. The caller therefore spins for up to twice the
usual wait, a moving average, and at most ``longest``; if the wait is usually longer, it blocks without spinning.

After another process has kept the processor for too long, the caller blocks for the next 16 waits, then 32, up to
1,024. Measurements: docs/decisions/0018-adaptive-spin.md. Pure: the caller measures time and does the spinning."""

WEIGHT = 0.25
"""Weight of the latest wait in the moving average."""
SHORT_REST, LONG_REST = 16, 1024
"""Waits that block without spinning after another process took the processor: it keeps it for much longer than a
wake-up takes. The number starts at 16, doubles each time this happens again up to 1,024, and falls by one for each wait
that was spun for."""


class Vigil:
    """Adaptive spin for one kind of wait: a moving average of its duration.

    A wait that usually takes more than ``longest`` seconds is not spun for. At first the average is above ``longest``,
    so the caller blocks."""

    __slots__ = ("_longest", "_most", "_next_rest", "_rest", "slow", "usual")

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._most = 2 * longest
        """Upper bound of one sample, in seconds: after a pause, a few short waits are enough to spin again."""
        self.usual = self._most
        self._rest, self._next_rest = 0, SHORT_REST
        self.slow = longest / 2
        """Seconds without the processor after which ``was_late`` is to be called."""

    @property
    def seconds(self) -> float:
        """Longest spin before blocking, in seconds; 0: block immediately."""
        return min(2 * self.usual, self._longest) if self.usual <= self._longest and not self._rest else 0.0

    def was_late(self) -> None:
        """Note that another process has had the processor for ``slow`` seconds or more."""
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, LONG_REST)

    def took(self, seconds: float) -> None:
        """Add a wait of this duration to the average."""
        if self._rest:
            self._rest -= 1
        elif self._next_rest > SHORT_REST and self.usual <= self._longest:
            self._next_rest -= 1
        self.usual += (min(seconds, self._most) - self.usual) * WEIGHT
