"""Event stream: a buffer of recent events for their followers, and events as documents and log lines.

The buffer numbers every event, but keeps events only while a client follows: one that waits, or that asked within the
last 60 s. A follower passes the number of the last event it has seen. The answer has the later events and how many of
them the buffer no longer holds (it holds 2,000). Used from one thread at a time."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from yirangmq.core.events import (
    ClientRefused,
    Committed,
    DeliveriesEnded,
    Died,
    Dropped,
    Event,
    FeedMoved,
    Lapsed,
    Leased,
    OfQueue,
    Parked,
    Published,
    Redriven,
    Refused,
    Settled,
    Steered,
    Traced,
)
from yirangmq.core.ports import Clock
from yirangmq.format.envelope import iso
from yirangmq.observe.logs import log, values

# -- documents and log lines -------------------------------------------------------------------------------------------

VERBS = {"ack": "acked", "nack": "nacked", "release": "released", "extend": "extended"}
STEPS = {"policy": "policy set", "pause": "paused", "resume": "resumed", "delete": "deleted"}
NAMES = (
    "published", "leased", *VERBS.values(), "lapsed", "died", "dropped", "redriven", "parked", "refused",
    *STEPS.values(), "moved", "client refused",
)  # fmt: skip
"""Every name that an event may have."""
UNTOLD = (Committed, Traced, DeliveriesEnded)
NOTEWORTHY: dict[type, int] = {
    Died: logging.INFO,
    Lapsed: logging.INFO,
    Redriven: logging.INFO,
    Parked: logging.INFO,
    Steered: logging.INFO,
    Dropped: logging.DEBUG,
    Refused: logging.DEBUG,
}
"""What a producer or a consumer does in the course of its work is counted, not logged."""


def describe(event: OfQueue, at_ms: int) -> dict[str, Any]:
    """``{"at", "event", "queue", "count", …}``; times in seconds, as everywhere outside."""
    name, more = _DETAILS[type(event)](event)
    about: dict[str, Any] = {"at": iso(at_ms), "event": name, "queue": event.queue}
    if not isinstance(event, Steered | FeedMoved):
        about["count"] = event.count
    return about | more


_DETAILS: dict[type, Callable[[Any], tuple[str, dict[str, Any]]]] = {
    Published: lambda event: ("published", {"bytes": event.bytes}),
    Leased: lambda event: ("leased", {"meanWaitSec": _mean(event.waited_ms)}),
    Settled: lambda event: (
        VERBS[event.verb],
        ({"reason": event.reason} if event.reason else {})
        | ({"meanProcessingSec": _mean(event.worked_ms)} if event.worked_ms else {}),
    ),
    Lapsed: lambda event: ("lapsed", {}),
    Died: lambda event: ("died", {"reason": event.reason}),
    Dropped: lambda event: ("dropped", {"why": event.why}),
    Redriven: lambda event: ("redriven", {}),
    Parked: lambda event: ("parked", {}),
    Refused: lambda event: ("refused", {"code": event.code}),
    Steered: lambda event: (STEPS[event.what], {}),
    ClientRefused: lambda event: (
        "client refused",
        {"door": event.door, "address": event.address, "program": event.who or None, "reason": event.why},
    ),
    FeedMoved: lambda event: (
        "moved",
        {"who": event.who, "before": event.before, "after": event.after} | ({"why": event.why} if event.why else {}),
    ),
}


def _mean(spans_ms: Sequence[int]) -> float:
    return round(max(0.0, sum(spans_ms) / len(spans_ms) / 1000), 6) if spans_ms else 0.0


def log_events(events: Sequence[Event]) -> None:
    """A log line for each event worth one."""
    for event in events:
        level = NOTEWORTHY.get(type(event))
        if level is not None and not isinstance(event, UNTOLD) and log.isEnabledFor(level):
            about = describe(event, 0)
            name = about.pop("event")
            del about["at"]
            log.log(level, name, extra=values(**about))


# -- the buffer --------------------------------------------------------------------------------------------------------

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
