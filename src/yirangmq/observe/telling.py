"""Events in words: one document for programs, one line for people, a log line for those worth it."""

import logging
from collections.abc import Callable, Sequence
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
from yirangmq.format.envelope import iso
from yirangmq.observe.logs import log, values

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
