"""The latest events, for those who follow what happens. While nobody follows, nothing is kept.

Each event has a number; whoever asks says the last one seen. Knows: events, the clock. Does not know: sockets."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from yirangmq.core.events import Event
from yirangmq.core.ports import Clock
from yirangmq.observe.telling import UNTOLD, describe

KEPT = 2_000
"""Events a follower may be behind; past that it is told how many it missed."""
FOLLOWED_MS = 60_000
"""Somebody who asked within this time is still there."""
Part = dict[str, Any]


class Feed:
    """``hear`` is given the events of each commit. Used from one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked_at: int | None = None
        """When somebody last asked; None: too long ago to be kept in mind."""
        self._last = 0
        self._kept: deque[tuple[int, Part]] = deque(maxlen=KEPT)
        self._waiting: list[Callable[[], None]] = []

    def hear(self, events: Sequence[Event]) -> None:
        told = [event for event in events if not isinstance(event, UNTOLD)]
        if self._asked_at is None:
            self._last += len(told)
            return
        now = self._clock.now_ms()
        if now - self._asked_at > FOLLOWED_MS and not self._waiting:
            self._last += len(told)
            self._asked_at = None
            self._kept.clear()
            return
        ahead = self._clock.ahead_ms()
        for event in told:
            self._last += 1
            self._kept.append((self._last, describe(event, now + ahead)))
        if told:
            waiting, self._waiting = self._waiting, []
            for wake in waiting:
                wake()

    def after(self, seen: int | None, queue: str | None) -> Part:
        """What happened since ``seen`` (None: from now on), in all queues or in one; ``last`` is for the next call."""
        if seen is None or seen > self._last:  # the second: numbers of an earlier server
            seen = self._last
        missed, steps = self.steps(seen)
        events = [part for _, part in steps if queue in (None, part["queue"])]
        return {"last": self._last, "missed": missed, "events": events}

    def steps(self, seen: int) -> tuple[int, list[tuple[int, Part]]]:
        """Events after number ``seen``, each with its own; and how many of them are no longer known."""
        self._asked_at = self._clock.now_ms()
        first = self._kept[0][0] if self._kept else self._last + 1
        return max(0, first - seen - 1), list(islice(self._kept, max(0, seen + 1 - first), None))

    def begin(self) -> int:
        """For somebody who follows from now on: the number of the latest event."""
        self._asked_at = self._clock.now_ms()
        return self._last

    @property
    def last(self) -> int:
        """The number of the latest event."""
        return self._last

    @property
    def is_followed(self) -> bool:
        """Somebody waits for what happens next."""
        return bool(self._waiting)

    def wait(self, wake: Callable[[], None]) -> None:
        """``wake`` is called once, when something happens."""
        self._asked_at = self._clock.now_ms()
        self._waiting.append(wake)

    def leave(self, wake: Callable[[], None]) -> None:
        if wake in self._waiting:
            self._waiting.remove(wake)
