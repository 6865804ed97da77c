"""Events to numbers: counters and histograms since the start, rates over the last minute, queue by queue.

Knows: events, the clock. Does not know: stores, text. ``observe.prometheus`` prints them."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from yirangmq.core.events import (
    Committed,
    Died,
    Dropped,
    Event,
    Lapsed,
    Leased,
    Published,
    Refused,
    Settled,
    Steered,
)
from yirangmq.core.ports import Clock
from yirangmq.observe.numbers import Histogram, Minute, window_seconds

SPANS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 3_600_000)
"""From a call on the same machine to an hour of work."""
MOST_QUEUES = 1000
"""Queues with numbers of their own, where nothing else is said."""
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""From a disk with a protected cache to one that is in trouble."""


class QueueNumbers:
    """What happened in one queue since the start."""

    def __init__(self) -> None:
        self.published_bytes = 0
        self.leased = 0
        self.lapsed = 0
        self.settled: Counter[str] = Counter()
        self.nacked: Counter[str] = Counter()
        self.died: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.waited = Histogram(SPANS_MS)
        self.worked = Histogram(SPANS_MS)
        self.minute = Minute()

    @property
    def is_used(self) -> bool:
        """Something was counted."""
        happened = (self.settled, self.nacked, self.died, self.dropped, self.refused)
        return bool(self.published_bytes or self.leased or self.lapsed or any(happened))


class Metrics:
    """``hear`` is given the events of each commit. Used from one thread at a time.

    At most ``most`` queues have numbers of their own, those in which something happened first; what happens in others
    is counted in ``other``. About 3 KB a queue."""

    def __init__(self, clock: Clock, most: int = MOST_QUEUES) -> None:
        self._clock = clock
        self.most = most
        self.other = QueueNumbers()
        self._since = clock.now_ms()
        self.queues: dict[str, QueueNumbers] = {}
        self.commit_requests = Histogram(SIZES)
        self.commit_messages = Histogram(SIZES)
        self.work_seconds = Histogram(SECONDS)
        self.sync_seconds = Histogram(SECONDS)

    def hear(self, events: Sequence[Event]) -> None:
        now = self._clock.now_ms()
        for event in events:
            if isinstance(event, Committed):
                self._committed(event)
            elif isinstance(event, Steered) and event.what == "delete":
                self.queues.pop(event.queue, None)
            else:
                act = _ACTS.get(type(event))
                if act is not None:
                    act(self.queues.get(event.queue) or self._new(event.queue), event, now)

    def _new(self, queue: str) -> QueueNumbers:
        if len(self.queues) >= self.most:
            return self.other
        numbers = self.queues[queue] = QueueNumbers()
        return numbers

    def _committed(self, event: Committed) -> None:
        if event.messages:  # what changed nothing was not synced either
            self.commit_requests.observe(event.requests)
            self.commit_messages.observe(event.messages)
            self.work_seconds.observe(event.work_seconds)
            self.sync_seconds.observe(event.sync_seconds)

    def forget(self, queues: Iterable[str]) -> None:
        """These do not exist any more."""
        for gone in queues:
            self.queues.pop(gone, None)

    # -- rates ----------------------------------------------------------------------------------------------------

    def rates(self) -> dict[str, dict[str, Any]]:
        """Per second over the last minute, or since the start if that was later; a mean of nothing is None."""
        now = self._clock.now_ms()
        seconds = window_seconds(now, self._since)
        return {queue: _rates(numbers.minute.sums(now), seconds) for queue, numbers in sorted(self.queues.items())}

    def rates_of(self, queue: str) -> dict[str, Any] | None:
        """The same of one queue; None: nothing happened in it, or it has no numbers of its own."""
        numbers, now = self.queues.get(queue), self._clock.now_ms()
        return None if numbers is None else _rates(numbers.minute.sums(now), window_seconds(now, self._since))


def no_rates() -> dict[str, Any]:
    """Of a queue in which nothing happened."""
    return _rates({}, 1.0)


def _rates(sums: dict[str, int], seconds: float) -> dict[str, Any]:
    acked, failed, leased = sums.get("acked", 0), sums.get("failed", 0), sums.get("leased", 0)
    return {
        "publishedPerSec": round(sums.get("published", 0) / seconds, 3),
        "leasedPerSec": round(leased / seconds, 3),
        "ackedPerSec": round(acked / seconds, 3),
        "failedPerSec": round(failed / seconds, 3),
        "diedPerSec": round(sums.get("died", 0) / seconds, 3),
        "failureRate": round(failed / (acked + failed), 6) if acked + failed else None,
        "meanProcessingSec": round(sums.get("worked_ms", 0) / acked / 1000, 6) if acked else None,
        "meanWaitSec": round(sums.get("waited_ms", 0) / leased / 1000, 6) if leased else None,
    }


# -- each kind of event -----------------------------------------------------------------------------------------------


def _published(numbers: QueueNumbers, event: Published, now: int) -> None:
    numbers.published_bytes += event.bytes
    numbers.minute.add(now, published=event.count)


def _leased(numbers: QueueNumbers, event: Leased, now: int) -> None:
    numbers.leased += event.count
    numbers.minute.add(now, leased=event.count, waited_ms=numbers.waited.observe_all(event.waited_ms))


def _settled(numbers: QueueNumbers, event: Settled, now: int) -> None:
    numbers.settled[event.verb] += event.count
    if event.verb == "ack":
        numbers.minute.add(now, acked=event.count, worked_ms=numbers.worked.observe_all(event.worked_ms))
    elif event.verb == "nack":
        numbers.nacked[event.reason] += event.count
        numbers.minute.add(now, failed=event.count)


def _lapsed(numbers: QueueNumbers, event: Lapsed, now: int) -> None:
    numbers.lapsed += event.count
    numbers.minute.add(now, failed=event.count)


def _died(numbers: QueueNumbers, event: Died, now: int) -> None:
    numbers.died[event.reason] += event.count
    numbers.minute.add(now, died=event.count)


def _dropped(numbers: QueueNumbers, event: Dropped, now: int) -> None:
    numbers.dropped[event.why] += event.count


def _refused(numbers: QueueNumbers, event: Refused, now: int) -> None:
    numbers.refused[event.code] += event.count


_ACTS: dict[type, Callable[[QueueNumbers, Any, int], None]] = {
    Published: _published,
    Leased: _leased,
    Settled: _settled,
    Lapsed: _lapsed,
    Died: _died,
    Dropped: _dropped,
    Refused: _refused,
}
