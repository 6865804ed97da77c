"""Named methods that tell what goes on: ``metrics``, ``rates``, ``trends``, ``watch``. They change nothing, wait for no
commit."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from yirangmq.broker import overview
from yirangmq.broker.desk import Desk
from yirangmq.broker.happenings import Happenings
from yirangmq.core import names
from yirangmq.core.errors import QueueError, StoreBusy
from yirangmq.core.ports import Clock
from yirangmq.doors.calls import Calls
from yirangmq.doors.paged import Done, Given
from yirangmq.doors.values import Values, reading
from yirangmq.observe.feed import Feed
from yirangmq.observe.metrics import Metrics
from yirangmq.observe.telling import NOTEWORTHY, log_events
from yirangmq.observe.trends import Trends

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import Told

LONGEST_WATCH = 30.0
"""Seconds a ``watch`` may wait for something to happen; whoever follows asks again."""


def _nothing() -> "Mapping[str, Told]":
    return {}


@dataclass(slots=True)
class Observing:
    """``server``: samples of the server's own metrics, by name, taken when they are asked for."""

    clock: Clock
    server: Callable[[], Mapping[str, "Told"]] = _nothing
    metrics: Metrics = field(init=False)
    feed: Feed = field(init=False)
    trends: Trends = field(default_factory=Trends)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.clock)
        self.feed = Feed(self.clock)

    def begin(self, happened: Happenings, calls: Calls) -> None:
        """From here on it hears what happens, and can be asked."""
        happened.listen(self.metrics.hear)
        happened.listen(self.feed.hear)
        happened.listen(log_events, NOTEWORTHY)
        calls.add_entry("metrics", self._metrics)
        calls.add_entry("rates", self._rates)
        calls.add_entry("trends", self._trends)
        calls.add_entry("watch", self._watch)

    def look(self, desk: Desk) -> None:
        """About once a second: a sample for the trends, when it is time for one."""
        now = self.clock.now_ms()
        if self.trends.is_due(now):
            with suppress(QueueError):  # a store in trouble: whoever uses it is told
                self.trends.add(desk.read(lambda transaction: overview.rows(transaction, None, now)), now)

    def _metrics(self, desk: Desk, given: Given, done: Done) -> None:
        """The page that Prometheus reads, as text."""
        reading(given, lambda values: None)
        rows = None
        with suppress(StoreBusy):  # the server's own metrics are told all the same
            rows = desk.read(lambda transaction: overview.rows(transaction, None, self.clock.now_ms()))
        from yirangmq.observe.prometheus import page  # loaded for the first who asks

        done(page(self.metrics, rows, self.server()), None)

    def _rates(self, desk: Desk, given: Given, done: Done) -> None:
        """Queue by queue, over the last minute."""
        reading(given, lambda values: None)
        done(self.metrics.rates(), None)

    def _trends(self, desk: Desk, given: Given, done: Done) -> None:
        """How the numbers of each queue, or of one, went during the last minutes."""
        done(self.trends.document(reading(given, lambda values: values.some_queue())), None)

    def _watch(self, desk: Desk, given: Given, done: Done) -> None:
        """What happened after ``after`` (null: from now on), in ``queue`` or in all; waits up to ``wait`` seconds."""
        after, queue, seconds = reading(given, _read_watch)
        Watch(self.feed, desk, after, queue, done).begin(seconds)


def _read_watch(values: Values) -> tuple[int | None, str | None, float]:
    after = values.take("after", None)
    if after is not None:
        after = names.check_count(after, "after", least=0, most=2**63)
    return after, values.some_queue(), values.number("wait", 0, least=0, most=LONGEST_WATCH)


class Watch:
    """One who asked and waits until there is something to tell, or the time is over."""

    def __init__(self, feed: Feed, desk: Desk, after: int | None, queue: str | None, done: Done) -> None:
        self._feed = feed
        self._desk = desk
        self._after = after
        self._queue = queue
        self._done = done
        self._alarm: Any = None
        self._is_over = False

    def begin(self, seconds: float) -> None:
        part = self._feed.after(self._after, self._queue)
        if part["events"] or part["missed"] or not seconds:
            self._end(part)
            return
        if self._after is None:
            self._after = part["last"]
        self._alarm = self._desk.later(seconds, self._give_up)
        self._feed.wait(self._wake)

    def _wake(self) -> None:
        part = self._feed.after(self._after, self._queue)
        if part["events"] or part["missed"]:
            self._end(part)
        else:
            self._feed.wait(self._wake)

    def _give_up(self) -> None:
        self._feed.leave(self._wake)
        self._end(self._feed.after(self._after, self._queue))

    def _end(self, part: dict[str, Any]) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._done(part, None)
