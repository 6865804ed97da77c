"""Whether to stay awake for what is expected soon, instead of sleeping until it comes.

To be put to sleep and woken again costs a program tens of millionths of a second, and its processor more: as much as
much of what it waits for. So who is usually answered at once looks out for the answer that long, and sleeps after
that. Pure: time is handed in; who looks out, and how, is the caller's."""

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
