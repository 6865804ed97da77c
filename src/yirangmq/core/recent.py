"""How much of something there was lately: events that a rule looks back on. The time is handed in. Pure."""

from collections import deque


class Recent:
    """Numbers of the last ``window`` milliseconds. Those of one moment in a slot share it, so that it stays small."""

    SLOTS = 60

    def __init__(self, window: int) -> None:
        self._window = window
        self._slot = max(1, window // self.SLOTS)
        self._kept: deque[tuple[int, float, int]] = deque()

    def add(self, now: int, number: float = 1, times: int = 1) -> None:
        slot = now // self._slot
        if self._kept and self._kept[-1][0] == slot:
            _, before, count = self._kept.pop()
            number, times = before + number, count + times
        self._kept.append((slot, number, times))
        self._forget(now)

    def total(self, now: int) -> float:
        self._forget(now)
        return sum(number for _, number, _ in self._kept)

    def mean(self, now: int) -> float | None:
        """None: there was nothing."""
        self._forget(now)
        times = sum(times for _, _, times in self._kept)
        return self.total(now) / times if times else None

    def _forget(self, now: int) -> None:
        first = (now - self._window) // self._slot
        while self._kept and self._kept[0][0] < first:
            self._kept.popleft()


class Growth:
    """By how much counters rose lately. One that is new to us counts from what it is, one that fell from there."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._known: dict[str, float] = {}
        self._risen: dict[str, Recent] = {}

    def see(self, now: int, name: str, value: float, *, since: float | None = None) -> None:
        """``since``: what it was before it was first seen; None: as it is now."""
        before = self._known.get(name, value if since is None else since)
        self._known[name] = value
        if value > before:
            self._risen.setdefault(name, Recent(self._window)).add(now, value - before)

    def of(self, now: int, name: str) -> int:
        found = self._risen.get(name)
        return round(found.total(now)) if found is not None else 0

    def all(self, now: int) -> dict[str, int]:
        """Those that rose."""
        return {name: count for name in sorted(self._risen) if (count := self.of(now, name))}
