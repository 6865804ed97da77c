"""Monitoring methods ``metrics``, ``rates``, ``trends`` and ``watch``, and the sampler of trends.

They change nothing. Only ``metrics`` and the sampler read the store, in slices (``admin.queue_lists``), so that other
requests are served in between. ``watch`` is a long poll for events. A busy store does not stop ``metrics``: the page
then has the server's own metrics only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from yirangmq.admin.queue_lists import ROWS_PER_SLICE, Slices, in_slices
from yirangmq.admin.registry import Calls, Done, Given, Values, reading
from yirangmq.broker import queries
from yirangmq.broker.event_buffer import Happenings
from yirangmq.broker.group_commit import Desk
from yirangmq.core import validation
from yirangmq.core.errors import QueueError, StoreBusy
from yirangmq.core.ports import Clock
from yirangmq.observe.events import NOTEWORTHY, Feed, log_events
from yirangmq.observe.metrics import MOST_QUEUES, Metrics, Trends
from yirangmq.observe.metrics import MOST_SAMPLED as SAMPLED

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import Reading

LINES_PER_SLICE = 2000
"""Of the metrics page, at about 1 µs each, before others go first."""
LONGEST_WATCH = 30.0
"""Seconds a ``watch`` may wait for something to happen; whoever follows asks again."""


def _nothing() -> "Mapping[str, Reading]":
    return {}


@dataclass(slots=True)
class Observing:
    """``server``: samples of the server's own metrics, by name, taken when they are asked for."""

    clock: Clock
    server: Callable[[], Mapping[str, "Reading"]] = _nothing
    most_queues: int = MOST_QUEUES
    """Queues that have metrics of their own."""
    is_sampling: bool = False
    metrics: Metrics = field(init=False)
    feed: Feed = field(init=False)
    trends: Trends = field(default_factory=Trends)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.clock, self.most_queues)
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
        """About once a second: a sample for the trends, when it is time for one. It is taken in slices."""
        now = self.clock.now_ms()
        if self.is_sampling or not self.trends.is_due(now):
            return

        def taken(found: Any, error: QueueError | None) -> None:
            self.is_sampling = False
            if error is None:  # a store in trouble: whoever uses it is told
                self.trends.add(*found)

        self.is_sampling = True
        in_slices(desk, self._sample(now), taken)

    def _sample(self, now: int) -> Slices:
        rows, everything = yield from self._chosen(now, SAMPLED)
        return rows, now, everything

    def _chosen(self, now: int, most: int) -> Slices:
        """Rows of the queues with numbers of their own, filled up with others in the order of their names; and what all
        queues are together."""
        known: list[str] = yield lambda transaction: [one for one in self.metrics.queues if transaction.has_queue(one)]
        self.metrics.forget(self.metrics.queues.keys() - set(known))
        first: list[str] = yield lambda transaction: transaction.queues(limit=most)
        names = sorted(dict.fromkeys([*known[:most], *first][:most]))
        if len(first) < most:  # these are all
            names = first
        rows: list[dict[str, Any]] = []
        for begin in range(0, len(names), ROWS_PER_SLICE):
            some = names[begin : begin + ROWS_PER_SLICE]
            rows += yield partial(queries.rows, wanted=some, now=now)
        everything = yield queries.together
        return [row for row in rows if row["exists"]], everything

    def _metrics(self, desk: Desk, given: Given, done: Done) -> None:
        """The page that Prometheus reads, as text."""
        reading(given, lambda values: None)
        try:
            desk.read(lambda transaction: None)
        except StoreBusy:  # the server's own metrics are told all the same
            from yirangmq.observe.prometheus import page

            done(page(self.metrics, None, self.server()), None)
            return
        in_slices(desk, self._page(), done)

    def _page(self) -> Slices:
        rows, everything = yield from self._chosen(self.clock.now_ms(), self.most_queues)
        from yirangmq.observe.prometheus import parts  # loaded for the first who asks

        lines: list[str] = []
        for some in parts(self.metrics, rows, self.server(), everything):
            lines += some
            if len(lines) % LINES_PER_SLICE < len(some):
                yield None
        return "\n".join(lines) + "\n"

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
        after = validation.check_count(after, "after", least=0, most=2**63)
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
