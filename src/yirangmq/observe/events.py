"""Event stream: a buffer of recent events for its followers, and events as documents and log lines.

The buffer numbers every event, but keeps events only while a client follows: one that waits, or that polled within the
last 60 s. A follower passes the number of the last event it has seen. The result has the later events, and the number
of events that the buffer has already dropped (it keeps 2,000). Used from one thread at a time."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from yirangmq.core.events import (
    ClientRefused,
    DeliveriesEnded,
    Event,
    GroupCommitted,
    LeasesExpired,
    LeasesSettled,
    MessagesDied,
    MessagesDropped,
    MessagesLeased,
    MessagesParked,
    MessagesPublished,
    MessagesRedriven,
    MessagesRefused,
    QueueChanged,
    QueueEvent,
    TopicStateChanged,
    TraceStep,
)
from yirangmq.core.ports import Clock
from yirangmq.format.envelope import iso
from yirangmq.observe.logs import log, values

# -- documents and log lines -------------------------------------------------------------------------------------------

VERBS = {"ack": "acked", "nack": "nacked", "release": "released", "extend": "extended"}
STEPS = {"policy": "policy set", "pause": "paused", "resume": "resumed", "delete": "deleted"}
STEERED = {"policy": "policy_set", "pause": "queue_paused", "resume": "queue_resumed", "delete": "queue_deleted"}
"""Log event by what an operator did."""
NAMES = (
    "published", "leased", *VERBS.values(), "lapsed", "died", "dropped", "redriven", "parked", "refused",
    *STEPS.values(), "moved", "client refused",
)  # fmt: skip
"""All event names."""
UNPUBLISHED_EVENTS = (GroupCommitted, TraceStep, DeliveriesEnded)
LOG_LEVELS: dict[type, int] = {
    MessagesDied: logging.INFO,
    LeasesExpired: logging.INFO,
    MessagesRedriven: logging.INFO,
    MessagesParked: logging.INFO,
    QueueChanged: logging.INFO,
    MessagesDropped: logging.DEBUG,
    MessagesRefused: logging.DEBUG,
}
"""Log level by event type. The normal work of producers and consumers is counted but not logged."""


def describe(event: QueueEvent, at_ms: int) -> dict[str, Any]:
    """Return an event as ``{"at", "event", "queue", "count", …}``. Durations are in seconds, as in all protocols."""
    name, more = _DETAILS[type(event)](event)
    about: dict[str, Any] = {"at": iso(at_ms), "event": name, "queue": event.queue}
    if not isinstance(event, QueueChanged | TopicStateChanged):
        about["count"] = event.count
    return about | more


_DETAILS: dict[type, Callable[[Any], tuple[str, dict[str, Any]]]] = {
    MessagesPublished: lambda event: ("published", {"bytes": event.bytes}),
    MessagesLeased: lambda event: ("leased", {"meanWaitSec": _mean(event.waited_ms)}),
    LeasesSettled: lambda event: (
        VERBS[event.verb],
        ({"reason": event.reason} if event.reason else {})
        | ({"meanProcessingSec": _mean(event.worked_ms)} if event.worked_ms else {}),
    ),
    LeasesExpired: lambda event: ("lapsed", {}),
    MessagesDied: lambda event: ("died", {"reason": event.reason}),
    MessagesDropped: lambda event: ("dropped", {"why": event.why}),
    MessagesRedriven: lambda event: ("redriven", {}),
    MessagesParked: lambda event: ("parked", {}),
    MessagesRefused: lambda event: ("refused", {"code": event.code}),
    QueueChanged: lambda event: (STEPS[event.what], {}),
    ClientRefused: lambda event: (
        "client refused",
        {"door": event.door, "address": event.address, "program": event.who or None, "reason": event.why},
    ),
    TopicStateChanged: lambda event: (
        "moved",
        {"who": event.who, "before": event.before, "after": event.after} | ({"why": event.why} if event.why else {}),
    ),
}


def _mean(spans_ms: Sequence[int]) -> float:
    return round(max(0.0, sum(spans_ms) / len(spans_ms) / 1000), 6) if spans_ms else 0.0


def log_events(events: Sequence[Event]) -> None:
    """Log the events that have a log level."""
    for event in events:
        level = LOG_LEVELS.get(type(event))
        if level is not None and log.isEnabledFor(level):
            _log_event(event)


def _log_event(event: Event) -> None:
    match event:
        case MessagesDied():
            about = values(queue=event.queue, count=event.count, reason=event.reason)
            log.info("messages_dead_lettered", extra=about)
        case LeasesExpired():
            log.info("leases_expired", extra=values(queue=event.queue, count=event.count))
        case MessagesRedriven():
            log.info("messages_redriven", extra=values(queue=event.queue, count=event.count))
        case MessagesParked():
            log.info("messages_parked", extra=values(queue=event.queue, count=event.count))
        case QueueChanged():
            log.info(STEERED[event.what], extra=values(queue=event.queue))
        case MessagesDropped():
            log.debug("messages_dropped", extra=values(queue=event.queue, count=event.count, why=event.why))
        case MessagesRefused():
            log.debug("publish_rejected", extra=values(queue=event.queue, count=event.count, code=event.code))


# -- the buffer --------------------------------------------------------------------------------------------------------

MAX_EVENTS = 2_000
"""Maximum number of buffered events. A follower further behind gets the number of missed events."""
FOLLOWER_TIMEOUT_MS = 60_000
"""A client that polled within this time, in ms, counts as a follower."""
EventDocument = dict[str, Any]


class EventStream:
    """Buffer of recent events. Pass the events of each commit to ``on_events``. Used from one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._polled_at: int | None = None
        """Time of the last poll, in ms; None if no client follows."""
        self._last = 0
        self._events: deque[tuple[int, EventDocument]] = deque(maxlen=MAX_EVENTS)
        self._waiting: list[Callable[[], None]] = []

    def on_events(self, events: Sequence[Event]) -> None:
        if self._polled_at is None:
            for event in events:
                if not isinstance(event, UNPUBLISHED_EVENTS):
                    self._last += 1
            return
        published = [event for event in events if not isinstance(event, UNPUBLISHED_EVENTS)]
        now = self._clock.now_ms()
        if now - self._polled_at > FOLLOWER_TIMEOUT_MS and not self._waiting:
            self._last += len(published)
            self._polled_at = None
            self._events.clear()
            return
        ahead = self._clock.ahead_ms()
        for event in published:
            self._last += 1
            self._events.append((self._last, describe(event, now + ahead)))
        if published:
            waiting, self._waiting = self._waiting, []
            for wake in waiting:
                wake()

    def after(self, seen: int | None, queue: str | None) -> EventDocument:
        """Return the events after number ``seen`` (None: from now on) of all queues or of one.

        The result's ``last`` is the argument of the next call."""
        if seen is None or seen > self._last:  # a larger number is from before a restart of the server
            seen = self._last
        missed, steps = self.steps(seen)
        events = [part for _, part in steps if queue in (None, part["queue"])]
        return {"last": self._last, "missed": missed, "events": events}

    def steps(self, seen: int) -> tuple[int, list[tuple[int, EventDocument]]]:
        """Return the number of dropped events after ``seen``, and the later events with their numbers."""
        self._polled_at = self._clock.now_ms()
        first = self._events[0][0] if self._events else self._last + 1
        return max(0, first - seen - 1), list(islice(self._events, max(0, seen + 1 - first), None))

    def follow(self) -> int:
        """Register a follower from now on. Return the number of the latest event."""
        self._polled_at = self._clock.now_ms()
        return self._last

    @property
    def last(self) -> int:
        """Number of the latest event."""
        return self._last

    @property
    def is_followed(self) -> bool:
        """True if a client waits for the next event."""
        return bool(self._waiting)

    def wait(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once, at the next event."""
        self._polled_at = self._clock.now_ms()
        self._waiting.append(wake)

    def cancel_wait(self, wake: Callable[[], None]) -> None:
        if wake in self._waiting:
            self._waiting.remove(wake)
