"""Counting: how long things took, and how many there were in the last minute. The time is handed in."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

WINDOW = 60
"""Seconds over which rates are taken."""


class Histogram:
    """How many values were at most each bound, and their sum."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Sequence[int]) -> int:
        """A batch, more often than not all of one bucket; its sum. (A clock that was set back makes negative times:
        they count as none.)"""
        low, high = min(values), max(values)
        if low < 0:
            values = [max(0, value) for value in values]
        first, last = bisect_left(self.bounds, low), bisect_left(self.bounds, high)
        if first == last:
            self._counts[first] += len(values)
        else:
            for value in values:
                self._counts[bisect_left(self.bounds, value)] += 1
        total = sum(values)
        self.total += total
        return total

    def at_most(self, share: float) -> float | None:
        """The bound that so large a share of the values did not pass; None: there are none, or they passed them all."""
        counts = self.counts
        wanted = share * counts[-1]
        return next(
            (bound for bound, count in zip(self.bounds, counts, strict=False) if count and count >= wanted), None
        )

    @property
    def counts(self) -> list[int]:
        """Of values up to each bound, and of all."""
        return list(accumulate(self._counts))


class Minute:
    """Sums by name over the last minute, second by second."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, dict[str, int]]] = deque(maxlen=WINDOW)

    def add(self, now_ms: int, **sums: int) -> None:
        second = now_ms // 1000
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, {}))
        latest = self._seconds[-1][1]
        for name, value in sums.items():
            latest[name] = latest.get(name, 0) + value

    def sums(self, now_ms: int) -> dict[str, int]:
        """Of the running second and the 59 before it."""
        first = now_ms // 1000 - WINDOW + 1
        while self._seconds and self._seconds[0][0] < first:
            self._seconds.popleft()
        found: dict[str, int] = {}
        for _, sums in self._seconds:
            for name, value in sums.items():
                found[name] = found.get(name, 0) + value
        return found


def window_seconds(now_ms: int, since_ms: int) -> float:
    """How long ``sums`` reach back: the running second and the 59 before it, or less if counting began later."""
    reach = WINDOW - 1 + now_ms % 1000 / 1000
    return max(1.0, min(reach, (now_ms - since_ms) / 1000))
