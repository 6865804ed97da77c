"""Subscriber life cycle, and periodic work: subscribe, lag, catch-up, leave; progress, lag alarms, retention.

The connection of a subscriber that is behind is detached for a catch-up worker, once its send buffer is empty. It is
attached again when the catch-up is near the end of the log. Loop thread only, so that every target is consistent with
publishing.

Progress messages and lag alarms are checked every 0.25 s while there are subscribers. Retention trims the log at
intervals, but keeps every record that a durable subscriber or a bridge still needs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from yirangmq.core.errors import BadInput, QueueError, Retired, WrongState
from yirangmq.core.topics import ClientState, ClientVerb, Cursor, Trimmed
from yirangmq.fsio.background import Aside
from yirangmq.topics.catchup import Outcome, Recovery, Run, Task, Worker
from yirangmq.topics.cursors import Ledger, floor_of
from yirangmq.topics.live import Feed, Live, Subscriber
from yirangmq.topics.ports import Outlet, Subscribed

Over = Callable[[], None]


# -- life cycle --------------------------------------------------------------------------------------------------------


class Follows:
    """Life cycle of all subscribers of the topic log. Loop thread only.

    A subscriber is online, and gets each commit directly, or a catch-up worker holds its connection."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._loop = feed.loop
        self._pool: Recovery | None = None
        self._runs: dict[Run, tuple[Subscriber, Worker]] = {}
        self._endings: dict[Subscriber, Over] = {}
        self._holders: set[Subscriber] = set()
        self._is_stopping = False
        self.subscribers: dict[int, Subscriber] = {}
        feed.lagging = self.lag

    @property
    def pool(self) -> Recovery:
        """Return the pool of catch-up workers. It is created when it is first needed."""
        if self._pool is None:
            settings = self._feed.settings
            self._pool = Recovery(settings.workers, self._ended, self._loop.call, settings.pace, self._feed.courtesy)
        return self._pool

    @property
    def workers(self) -> list[Worker]:
        return [] if self._pool is None else self._pool.workers

    def resize(self, workers: int) -> None:
        """Set the number of catch-up workers. Running catch-ups continue."""
        if self._pool is not None:
            self._pool.resize(workers)
            self._rest()

    def _rest(self) -> None:
        if self._pool is not None:
            self._pool.rest({worker for _, worker in self._runs.values()})

    # -- subscribe, lag, leave ------------------------------------------------------------------------------------

    def begin(self, subscriber: Subscriber, next: int, request: int, *, resumed: bool) -> None:
        """Start a subscription at sequence ``next``. Records that exist already are sent by a catch-up."""
        log = self._feed.log
        self.check_kept(next)
        self.subscribers[subscriber.number] = subscriber
        gaps = [gap for gap in log.gaps() if gap.last >= next]
        about = Subscribed(log.epoch, next, log.first, log.last, gaps, resumed)
        subscriber.line.send(subscriber.dialect.subscribed(request, about))
        subscriber.cursor, subscriber.sent = next - 1, 0
        subscriber.told_at = self._loop.seconds()
        subscriber.move(ClientVerb.SUBSCRIBE)
        if next <= log.last:
            self._recover(subscriber, request)
        else:
            self._feed.join(subscriber)

    def check_kept(self, sequence: int) -> None:
        first = self._feed.log.first
        if sequence < first:
            raise Retired(
                f"sequence {sequence} is no longer kept; the log begins at {first}",
                field="start",
                asked=sequence,
                first=first,
            )

    def recover(self, subscriber: Subscriber, after: int, request: int) -> None:
        """Send the matching records after this sequence again, with a catch-up."""
        last = self._feed.log.last
        if subscriber.state is not ClientState.ONLINE:
            raise WrongState(f"a subscriber that is {subscriber.state} cannot ask for a recovery")
        if not 0 <= after <= last:
            raise BadInput(f"must be from 0 to {last}, not {after}", field="after")
        self.check_kept(after + 1)
        self._feed.leave(subscriber)
        subscriber.cursor = after
        self._recover(subscriber, request)

    def lag(self, subscriber: Subscriber) -> None:
        """Move a subscriber whose send buffer is full from live to catch-up: it reads the rest from the log."""
        self._feed.leave(subscriber)
        subscriber.move(ClientVerb.LAG)
        self._lend(subscriber, None)

    def unsubscribe(self, subscriber: Subscriber, over: Over) -> None:
        """End a subscription. ``over`` is called when the last record is sent."""
        if subscriber in self._endings:
            raise WrongState("it is being unsubscribed already")
        if subscriber.run is not None:
            self._endings[subscriber] = over
            subscriber.run.cancel()
            return
        self._feed.leave(subscriber)
        self._forget(subscriber, ClientVerb.UNSUBSCRIBE)
        over()

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a subscriber whose connection is lost."""
        if subscriber.state is ClientState.OFFLINE:
            return
        self._endings.pop(subscriber, None)
        self._feed.leave(subscriber)
        run, subscriber.run = subscriber.run, None
        if run is not None:
            run.abandon()
            self._runs[run][1].wake()
        self._forget(subscriber, ClientVerb.LEAVE)

    def dismiss(self, subscriber: Subscriber, why: QueueError) -> None:
        """Disconnect a subscriber with an error.

        The error is not sent while a worker holds the connection, because it may be inside a frame."""
        is_lent = subscriber.run is not None
        self.leave(subscriber)
        if is_lent:
            subscriber.line.cut(why.code)
        else:
            subscriber.line.fail(why)

    def _forget(self, subscriber: Subscriber, verb: ClientVerb) -> None:
        self.subscribers.pop(subscriber.number, None)
        subscriber.is_lending = False
        self._let_go(subscriber)
        subscriber.move(verb)

    def stop(self) -> None:
        """End all catch-ups at the start of the next frame. No subscriber becomes live again."""
        self._is_stopping = True
        for run in self._runs:
            run.cancel()

    @property
    def is_idle(self) -> bool:
        return not self._runs

    def close(self) -> None:
        if self._pool is not None:
            self._pool.stop()

    # -- recovery ---------------------------------------------------------------------------------------------------

    def _recover(self, subscriber: Subscriber, request: int) -> None:
        """Start a catch-up from the subscriber's cursor to the current last sequence."""
        subscriber.move(ClientVerb.RECOVER)
        target = self._feed.log.last
        self._lend(subscriber, Task(subscriber.filter, subscriber.dialect, subscriber.cursor, target, request))

    def _lend(self, subscriber: Subscriber, task: Task | None) -> None:
        """Detach the connection for a worker, as soon as its send buffer is empty.

        ``task`` is None for a subscriber that lags: its range is computed when the connection is detached."""
        worker = self.pool.choose()
        subscriber.is_lending, subscriber.waits_since = True, self._loop.seconds()
        if subscriber not in self._holders:
            self._holders.add(subscriber)
            self._feed.tail.hold()
        subscriber.line.lend(partial(self._take, subscriber, worker, task), worker.wake)

    def _take(self, subscriber: Subscriber, worker: Worker, task: Task | None, outlet: Outlet) -> None:
        if not subscriber.is_lending or self._is_stopping:  # the subscriber has left, or the server stops
            outlet.close()
            subscriber.line.give_back()
            return
        subscriber.is_lending = False
        if task is None:
            subscriber.move(ClientVerb.RECOVER)
            target = self._feed.log.last
            dialect = subscriber.dialect
            task = Task(subscriber.filter, dialect, subscriber.cursor, target, is_counted=dialect.needs_count)
        subscriber.recoveries += 1
        subscriber.run = run = Run(
            task,
            self._feed.log.reader(),
            outlet,
            owed=subscriber.line.owed,
            is_near=self._feed.is_near,
            completed=lambda run: self._loop.call(partial(self._completed, subscriber, run)),
            times=lambda: (self._loop.seconds(), self._loop.now_ns()),
        )
        self._runs[run] = subscriber, worker
        worker.add(run)

    def _completed(self, subscriber: Subscriber, run: Run) -> None:
        if subscriber.run is run:
            subscriber.move(ClientVerb.COMPLETE)

    def _ended(self, run: Run, outcome: Outcome) -> None:
        """Continue on the loop after a worker has released a run."""
        subscriber, worker = self._runs.pop(run)
        self._take_back(subscriber, worker, run, outcome)
        self._rest()

    def _take_back(self, subscriber: Subscriber, worker: Worker, run: Run, outcome: Outcome) -> None:
        if subscriber.run is not run:
            run.close()
            return
        if outcome in (Outcome.GONE, Outcome.STALLED):
            self._end_run(subscriber, run)
            subscriber.line.cut("stalled" if outcome is Outcome.STALLED else "")
            return
        subscriber.cursor = run.cursor
        missing = None if run.error or run.is_cancelled else self._feed.missing(run.cursor)
        if missing is None and not run.error and not run.is_cancelled:
            self._runs[run] = subscriber, worker  # it fell behind again before the loop ran this
            worker.add(run)
            return
        subscriber.sent = run.sent
        subscriber.total += run.sent
        self._end_run(subscriber, run)
        subscriber.line.give_back()
        self._return(subscriber, run.error, missing)

    def _end_run(self, subscriber: Subscriber, run: Run) -> None:
        run.close()
        subscriber.run = None
        self._let_go(subscriber)

    def _let_go(self, subscriber: Subscriber) -> None:
        if subscriber in self._holders:
            self._holders.discard(subscriber)
            self._feed.tail.let_go()

    def _return(self, subscriber: Subscriber, error: QueueError | None, missing: list[Live] | None) -> None:
        """Make a subscriber live again after its catch-up, or end its subscription."""
        over = self._endings.pop(subscriber, None)
        if error is not None:
            subscriber.line.fail(error)
        elif over is not None:
            self._forget(subscriber, ClientVerb.UNSUBSCRIBE)
            over()
        elif missing is not None:
            try:
                self._feed.take_over(subscriber, missing)
            except QueueError as problem:
                subscriber.line.fail(problem)
                return
            subscriber.move(ClientVerb.ARRIVE)


# -- periodic work -----------------------------------------------------------------------------------------------------

TICK_SECONDS = 0.25
"""Interval of the periodic checks, and so the shortest interval of progress messages, in seconds."""
SECOND_NS = 1_000_000_000
LagHeard = Callable[[Subscriber, int], None]
Hold = Callable[[str, int], int | None]
"""Retention hold: (epoch, oldest time in ns at which the cursor of an absent reader may have been written) → the first
sequence to keep, or None if no record is needed."""


class Ticking:
    """Periodic work of topic delivery: progress messages, lag alarms, retention. Loop thread only."""

    def __init__(self, feed: Feed, follows: Follows, ledger: Ledger, aside: Aside, holds: Sequence[Hold] = ()) -> None:
        self._feed = feed
        self._follows = follows
        self._ledger = ledger
        self._aside = aside
        self._holds = holds
        self._is_over = False
        self._is_ticking = False
        self.alarms: set[int] = set()
        """Numbers of the subscribers above the lag limit."""
        self.trimmed_heard: list[Callable[[Trimmed], None]] = []
        self.lag_heard: list[LagHeard] = []
        self._plan_retention()

    def begin(self) -> None:
        """Schedule the next tick, if none is scheduled. Called when a subscription starts, and by each tick."""
        if not self._is_ticking and not self._is_over:
            self._is_ticking = True
            self._feed.loop.later(TICK_SECONDS, self._tick)

    def stop(self) -> None:
        self._is_over = True

    # -- subscribers ----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._is_ticking = False
        if self._is_over or not self._follows.subscribers:
            self.alarms.clear()
            return
        now = self._feed.loop.seconds()
        for subscriber in list(self._follows.subscribers.values()):
            self._look_at(subscriber, now)
        self._look_for_lag()
        for action in self._feed.after_turn:
            action()
        self.begin()

    def _look_at(self, subscriber: Subscriber, now: float) -> None:
        if subscriber.is_lending and now - subscriber.waits_since > self._feed.settings.pace.stall_seconds:
            subscriber.line.cut("stalled")
        due = subscriber.progress_seconds and now - subscriber.told_at >= subscriber.progress_seconds
        if not due or subscriber.state is not ClientState.ONLINE:
            return
        last = self._feed.log.last
        words = subscriber.dialect.progress(subscriber.cursor, subscriber.sent, last, self._feed.loop.now_ns())
        if words and subscriber.line.has_room(len(words)):
            subscriber.line.send(words)
            subscriber.told_at = now

    def _look_for_lag(self) -> None:
        limit = self._feed.settings.lag_limit
        late = {number: lag for number, lag in self.lags().items() if limit and lag > limit}
        for number in late.keys() - self.alarms:
            for heard in self.lag_heard:
                heard(self._follows.subscribers[number], late[number])
        self.alarms = set(late)

    def lags(self) -> dict[int, int]:
        """Return the number of records between each subscriber and the end of the log, by subscriber number."""
        last = self._feed.log.last
        return {number: last - subscriber.reached for number, subscriber in self._follows.subscribers.items()}

    # -- retention ------------------------------------------------------------------------------------------------

    def _plan_retention(self) -> None:
        self._feed.loop.later(self._feed.settings.retention_seconds, self._retain_in_time)

    def _retain_in_time(self) -> None:
        if not self._is_over:
            self.retain(lambda trimmed, error: self._plan_retention())

    def retain(self, done: Callable[[Trimmed | None, QueueError | None], None]) -> None:
        """Trim the log: delete the records that exceed the retention settings and that no reader needs."""
        settings = self._feed.settings
        now, span = self._feed.loop.now_ns(), round(settings.cursor_seconds * SECOND_NS)
        connected = self._connected()
        for cursor in self._ledger.all():
            if cursor.name in connected and now - cursor.at_ns > span // 4:
                self._ledger.put(cursor._replace(at_ns=now), _ignore)  # connected, but with nothing to confirm
        epoch = self._feed.log.epoch
        found = [floor_of(self._ledger.all(), epoch, now - span, connected)]
        found += [hold(epoch, now - span) for hold in self._holds]
        floor = min((one for one in found if one is not None), default=None)
        self._aside.run(partial(self._feed.log.retain, settings.retention, floor), partial(self._retained, done))

    def _retained(self, done: Callable[[Any, QueueError | None], None], trimmed: Any, error: QueueError | None) -> None:
        if error is None and trimmed.segments:
            for heard in self.trimmed_heard:
                heard(trimmed)
        done(trimmed, error)

    def _connected(self) -> frozenset[str]:
        return frozenset(one.name for one in self._follows.subscribers.values() if one.name)

    def cursors(self) -> Sequence[Cursor]:
        return self._ledger.all()


def _ignore(error: QueueError | None) -> None:
    """Ignore the error: the next run of retention writes the cursor again."""
