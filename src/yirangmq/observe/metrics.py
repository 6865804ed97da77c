"""Metrics: histograms, counters and rates of queues and commits.

Counters and histograms run since the server's start, rates over the last 60 s. They are fed with the events of each
commit and used from one thread at a time; time is passed in. ``observe.prometheus`` prints them,
``observe.trends`` keeps samples for charts. All of it is in memory and lost with the process."""

import os
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from yirangmq.core.events import (
    Event,
    GroupCommitted,
    LeasesExpired,
    LeasesSettled,
    MessagesDied,
    MessagesDropped,
    MessagesLeased,
    MessagesPublished,
    MessagesRefused,
    QueueChanged,
)
from yirangmq.core.ports import Clock

# -- histograms and rates ----------------------------------------------------------------------------------------------

WINDOW = 60
"""Window of the rates, in seconds."""


class Histogram:
    """Histogram: number of values up to each bound, and their sum."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Sequence[int]) -> int:
        """Add a batch of values and return their sum. Usually all of them are in one bucket.

        A clock that was set back gives negative times; they count as 0."""
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

    def quantile(self, share: float) -> float | None:
        """Return the lowest bound that at least ``share`` of the values do not exceed.

        Return None if there are no values or the quantile is above the last bound."""
        counts = self.counts
        wanted = share * counts[-1]
        return next(
            (bound for bound, count in zip(self.bounds, counts, strict=False) if count and count >= wanted), None
        )

    @property
    def counts(self) -> list[int]:
        """Cumulative counts: values up to each bound, then all values."""
        return list(accumulate(self._counts))


class MinuteWindow:
    """Sums by name over the last minute, in buckets of one second."""

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
        """Return the sums of the current second and the 59 before it."""
        first = now_ms // 1000 - WINDOW + 1
        while self._seconds and self._seconds[0][0] < first:
            self._seconds.popleft()
        found: dict[str, int] = {}
        for _, sums in self._seconds:
            for name, value in sums.items():
                found[name] = found.get(name, 0) + value
        return found


def window_seconds(now_ms: int, since_ms: int) -> float:
    """Return the seconds covered by ``sums``: the current second and the 59 before it, less shortly after the start."""
    reach = WINDOW - 1 + now_ms % 1000 / 1000
    return max(1.0, min(reach, (now_ms - since_ms) / 1000))


# -- metrics of queues and commits -------------------------------------------------------------------------------------

SPANS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 3_600_000)
"""Bounds in ms, from a call on the same machine to an hour of work."""
MAX_QUEUES = 1000
"""Default maximum of queues with separate metrics."""
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Bounds in seconds, from a disk with a protected write cache to a failing one."""


class QueueMetrics:
    """Counters and histograms of one queue since the start."""

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
        self.minute = MinuteWindow()

    @property
    def is_used(self) -> bool:
        """True if anything was counted."""
        happened = (self.settled, self.nacked, self.died, self.dropped, self.refused)
        return bool(self.published_bytes or self.leased or self.lapsed or any(happened))


class Metrics:
    """Metrics of queues and commits. Pass the events of each commit to ``on_events``. Used from one thread at a time.

    At most ``most`` queues have separate numbers: the first ones with an event. All others are counted together in
    ``other``. A queue takes about 3 KB."""

    def __init__(self, clock: Clock, most: int = MAX_QUEUES) -> None:
        self._clock = clock
        self.most = most
        self.other = QueueMetrics()
        self._since = clock.now_ms()
        self.queues: dict[str, QueueMetrics] = {}
        self.commit_requests = Histogram(SIZES)
        self.commit_messages = Histogram(SIZES)
        self.work_seconds = Histogram(SECONDS)
        self.sync_seconds = Histogram(SECONDS)

    def on_events(self, events: Sequence[Event]) -> None:
        now = self._clock.now_ms()
        for event in events:
            if isinstance(event, GroupCommitted):
                if not event.messages:  # a commit without changes is not synced
                    continue
                for histogram, value in (  # inlined ``Histogram.observe``: four calls less at each commit
                    (self.commit_requests, event.requests),
                    (self.commit_messages, event.messages),
                    (self.work_seconds, event.work_seconds),
                    (self.sync_seconds, event.sync_seconds),
                ):
                    histogram._counts[bisect_left(histogram.bounds, value)] += 1
                    histogram.total += value
            elif isinstance(event, QueueChanged) and event.what == "delete":
                self.queues.pop(event.queue, None)
            else:
                act = _ACTS.get(type(event))
                if act is not None:
                    act(self.queues.get(event.queue) or self._new(event.queue), event, now)

    def _new(self, queue: str) -> QueueMetrics:
        if len(self.queues) >= self.most:
            return self.other
        numbers = self.queues[queue] = QueueMetrics()
        return numbers

    def commit_totals(self) -> tuple[float, int]:
        """Return the seconds of all commits with changes since the start, and their number."""
        return self.work_seconds.total + self.sync_seconds.total, self.work_seconds.counts[-1]

    def forget(self, queues: Iterable[str]) -> None:
        """Remove the numbers of deleted queues."""
        for gone in queues:
            self.queues.pop(gone, None)

    # -- rates ----------------------------------------------------------------------------------------------------

    def rates(self) -> dict[str, dict[str, Any]]:
        """Return the rates per second of all queues, over the last minute or since the start if that is shorter.

        A mean over no messages is None."""
        now = self._clock.now_ms()
        seconds = window_seconds(now, self._since)
        return {queue: _rates(numbers.minute.sums(now), seconds) for queue, numbers in sorted(self.queues.items())}

    def rates_of(self, queue: str) -> dict[str, Any] | None:
        """Return the rates of one queue; None if it had no event or has no separate numbers."""
        numbers, now = self.queues.get(queue), self._clock.now_ms()
        return None if numbers is None else _rates(numbers.minute.sums(now), window_seconds(now, self._since))


def no_rates() -> dict[str, Any]:
    """Return the rates of a queue without events."""
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


def _published(numbers: QueueMetrics, event: MessagesPublished, now: int) -> None:
    numbers.published_bytes += event.bytes
    numbers.minute.add(now, published=event.count)


def _leased(numbers: QueueMetrics, event: MessagesLeased, now: int) -> None:
    numbers.leased += event.count
    numbers.minute.add(now, leased=event.count, waited_ms=numbers.waited.observe_all(event.waited_ms))


def _settled(numbers: QueueMetrics, event: LeasesSettled, now: int) -> None:
    numbers.settled[event.verb] += event.count
    if event.verb == "ack":
        numbers.minute.add(now, acked=event.count, worked_ms=numbers.worked.observe_all(event.worked_ms))
    elif event.verb == "nack":
        numbers.nacked[event.reason] += event.count
        numbers.minute.add(now, failed=event.count)


def _lapsed(numbers: QueueMetrics, event: LeasesExpired, now: int) -> None:
    numbers.lapsed += event.count
    numbers.minute.add(now, failed=event.count)


def _died(numbers: QueueMetrics, event: MessagesDied, now: int) -> None:
    numbers.died[event.reason] += event.count
    numbers.minute.add(now, died=event.count)


def _dropped(numbers: QueueMetrics, event: MessagesDropped, now: int) -> None:
    numbers.dropped[event.why] += event.count


def _refused(numbers: QueueMetrics, event: MessagesRefused, now: int) -> None:
    numbers.refused[event.code] += event.count


_ACTS: dict[type, Callable[[QueueMetrics, Any, int], None]] = {
    MessagesPublished: _published,
    MessagesLeased: _leased,
    LeasesSettled: _settled,
    LeasesExpired: _lapsed,
    MessagesDied: _died,
    MessagesDropped: _dropped,
    MessagesRefused: _refused,
}


# -- this process ------------------------------------------------------------------------------------------------------

STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes; None if the system does not report it."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
