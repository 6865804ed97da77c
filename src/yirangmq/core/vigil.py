"""Whether to stay awake for what is expected soon, instead of sleeping until it comes.

To be put to sleep and woken again costs a program tens of millionths of a second, and its processor more: as much as
much of what it waits for. So who is usually answered at once looks out for the answer that long, and sleeps after
that. Pure: time is handed in; who looks out, and how, is the caller's."""

WEIGHT = 0.25
"""Of the latest among those before it."""


class Vigil:
    """What one kind of wait usually takes; what takes more than ``longest`` seconds is not stayed awake for. At first
    nothing is known, and nobody stays awake."""

    __slots__ = ("_longest", "_most", "usual")

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._most = 2 * longest
        """However long it took once, it counts as this: after a pause, some quick ones are enough to stay awake."""
        self.usual = self._most

    @property
    def seconds(self) -> float:
        """How long to stay awake at most; 0: not at all."""
        return min(2 * self.usual, self._longest) if self.usual <= self._longest else 0.0

    def took(self, seconds: float) -> None:
        """It came after so long."""
        self.usual += (min(seconds, self._most) - self.usual) * WEIGHT
