"""Monitoring methods ``metrics``, ``rates``, ``trends`` and ``watch``, and the sampler of trends.

They change nothing. Only ``metrics`` and the sampler read the store, in slices (``admin.queue_lists``), so that other
requests are served in between. ``watch`` is a long poll for events. ``metrics`` also answers while the store is busy:
the page then has only the server's own metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from yirangmq.admin.queue_lists import ROWS_PER_SLICE, Slices, run_slices
from yirangmq.admin.registry import Done, Given, MethodArguments, MethodRegistry, read_arguments
from yirangmq.broker import queries
from yirangmq.broker.event_buffer import EventBuffer
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.core import validation
from yirangmq.core.errors import QueueError, StoreBusy
from yirangmq.core.ports import Clock
from yirangmq.observe.events import LOG_LEVELS, EventStream, log_events
from yirangmq.observe.metrics import MAX_QUEUES, Metrics
from yirangmq.observe.trends import DEFAULT_RANGE, Trends
from yirangmq.observe.trends import MOST_SAMPLED as SAMPLED

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import MetricValue

LINES_PER_SLICE = 2000
"""Lines of the metrics page per slice, at about 1 µs per line; other requests run between two slices."""
MAX_WATCH_SECONDS = 30.0
"""Upper bound of the wait of one ``watch`` call, in seconds; a follower calls again."""


def _nothing() -> "Mapping[str, MetricValue]":
    return {}


@dataclass(slots=True)
class ServerMonitor:
    """Monitoring of the server: metrics, event stream, trends, and their named methods.

    ``server`` takes samples of the server's own metrics, by name, at each read. Loop thread only."""

    clock: Clock
    server: Callable[[], Mapping[str, "MetricValue"]] = _nothing
    most_queues: int = MAX_QUEUES
    """Upper bound of queues with metrics by queue."""
    is_sampling: bool = False
    metrics: Metrics = field(init=False)
    feed: EventStream = field(init=False)
    trends: Trends = field(default_factory=Trends)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.clock, self.most_queues)
        self.feed = EventStream(self.clock)

    def register(self, event_buffer: EventBuffer, methods: MethodRegistry) -> None:
        """Register the event listeners and add the methods to the call table."""
        event_buffer.add_listener(self.metrics.on_events)
        event_buffer.add_listener(self.feed.on_events)
        event_buffer.add_listener(log_events, LOG_LEVELS)
        methods.add_entry("metrics", self._metrics)
        methods.add_entry("rates", self._rates)
        methods.add_entry("trends", self._trends)
        methods.add_entry("watch", self._watch)

    def tick(self, committer: GroupCommitter) -> None:
        """Start a sample of the trends in slices if one is due. Called about once a second."""
        now = self.clock.now_ms()
        if self.is_sampling or not self.trends.is_due(now):
            return

        def taken(found: Any, error: QueueError | None) -> None:
            self.is_sampling = False  # an error of the store is reported to the requests that use it

        self.is_sampling = True
        run_slices(committer, self._sample(now), taken)

    def _sample(self, now: int) -> Slices:
        rows, everything = yield from self._chosen(now, SAMPLED)
        for add in self.trends.steps(rows, now, everything):
            add()
            yield None

    def _chosen(self, now: int, most: int) -> Slices:
        """Return rows of at most ``most`` queues, and the totals of all queues.

        Queues with counters come first; the rest is filled with other queues in the order of their names. The
        counters of queues that no longer exist are deleted."""
        known: list[str] = yield lambda transaction: [one for one in self.metrics.queues if transaction.has_queue(one)]
        self.metrics.forget(self.metrics.queues.keys() - set(known))
        first: list[str] = yield lambda transaction: transaction.queues(limit=most)
        names = sorted(dict.fromkeys([*known[:most], *first][:most]))
        if len(first) < most:  # the store has no further queues
            names = first
        rows: list[dict[str, Any]] = []
        for offset in range(0, len(names), ROWS_PER_SLICE):
            some = names[offset : offset + ROWS_PER_SLICE]
            rows += yield partial(queries.rows, wanted=some, now=now)
        everything = yield queries.queue_totals
        return [row for row in rows if row["exists"]], everything

    def _metrics(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Return the metrics page in the Prometheus text format."""
        read_arguments(given, lambda values: None)
        try:
            committer.read(lambda transaction: None)
        except StoreBusy:  # the page has only the server's own metrics
            from yirangmq.observe.prometheus import page

            done(page(self.metrics, None, self.server()), None)
            return
        run_slices(committer, self._page(), done)

    def _page(self) -> Slices:
        rows, everything = yield from self._chosen(self.clock.now_ms(), self.most_queues)
        from yirangmq.observe.prometheus import parts  # imported at the first read of the page

        lines: list[str] = []
        for some in parts(self.metrics, rows, self.server(), everything):
            lines += some
            if len(lines) % LINES_PER_SLICE < len(some):
                yield None
        return "\n".join(lines) + "\n"

    def _rates(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Return the rates of each queue over the last 60 s."""
        read_arguments(given, lambda values: None)
        done(self.metrics.rates(), None)

    def _trends(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Return the samples of a range, for all queues or one, or only the sums of all queues."""
        queue, range, only_totals = read_arguments(given, _read_trends)
        done(self.trends.document(queue, range, only_totals=only_totals), None)

    def _watch(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Return the events after number ``after`` (null: from now on), of ``queue`` or of all queues.

        If there are none, wait up to ``wait`` seconds for the first."""
        after, queue, seconds = read_arguments(given, _read_watch)
        EventLongPoll(self.feed, committer, after, queue, done).register(seconds)


def _read_trends(values: MethodArguments) -> tuple[str | None, str, bool]:
    return values.optional_queue(), values.text("range", DEFAULT_RANGE), values.flag("only_totals", False)


def _read_watch(values: MethodArguments) -> tuple[int | None, str | None, float]:
    after = values.take("after", None)
    if after is not None:
        after = validation.check_count(after, "after", least=0, most=2**63)
    return after, values.optional_queue(), values.number("wait", 0, least=0, most=MAX_WATCH_SECONDS)


class EventLongPoll:
    """Long poll for events: a ``watch`` call that waits for an event or its timeout."""

    def __init__(
        self, feed: EventStream, committer: GroupCommitter, after: int | None, queue: str | None, done: Done
    ) -> None:
        self._feed = feed
        self._committer = committer
        self._after = after
        self._queue = queue
        self._done = done
        self._alarm: Any = None
        self._is_finished = False

    def register(self, seconds: float) -> None:
        part = self._feed.after(self._after, self._queue)
        if part["events"] or part["missed"] or not seconds:
            self._finish(part)
            return
        if self._after is None:
            self._after = part["last"]
        self._alarm = self._committer.later(seconds, self._on_timeout)
        self._feed.wait(self._on_event)

    def _on_event(self) -> None:
        part = self._feed.after(self._after, self._queue)
        if part["events"] or part["missed"]:
            self._finish(part)
        else:
            self._feed.wait(self._on_event)

    def _on_timeout(self) -> None:
        self._feed.cancel_wait(self._on_event)
        self._finish(self._feed.after(self._after, self._queue))

    def _finish(self, part: dict[str, Any]) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._done(part, None)
