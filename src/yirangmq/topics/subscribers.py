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
from yirangmq.core.topics import Cursor, SubscriberState, SubscriberVerb, TrimResult
from yirangmq.fsio.background import LoopExecutor
from yirangmq.topics.catchup import Catchup, CatchupPool, CatchupWorker
from yirangmq.topics.cursors import CursorCommitter, SentMarks, retention_floor
from yirangmq.topics.live import FROM_FIRST, Backlog, LiveCommit, Subscriber, TopicFeed
from yirangmq.topics.ports import CatchupOutput, CatchupRange, CatchupResult, Subscribed

UnsubscribedCallback = Callable[[], None]
MAX_WAITING_REQUESTS = 64
"""Upper bound of recovery requests of one subscriber that wait for their answer."""


# -- life cycle --------------------------------------------------------------------------------------------------------


class SubscriberLifecycle:
    """Life cycle of all subscribers of the topic log. Loop thread only.

    A subscriber is online, and gets each commit directly, or a catch-up worker holds its connection."""

    def __init__(self, feed: TopicFeed) -> None:
        self._feed = feed
        self._loop = feed.loop
        self._pool: CatchupPool | None = None
        self._runs: dict[Catchup, tuple[Subscriber, CatchupWorker]] = {}
        self._detaching: dict[Subscriber, CatchupWorker] = {}
        """Workers of subscribers whose connections are being detached; they must not be stopped."""
        self._unsubscribing: dict[Subscriber, UnsubscribedCallback] = {}
        self._tail_users: set[Subscriber] = set()
        self._is_stopping = False
        self.subscribers: dict[int, Subscriber] = {}
        feed.on_lagging = self.lag

    @property
    def pool(self) -> CatchupPool:
        """Return the pool of catch-up workers. It is created when it is first needed."""
        if self._pool is None:
            settings = self._feed.settings
            self._pool = CatchupPool(
                settings.workers, self._on_catchup_ended, self._loop.call, settings.pacing, self._feed.rate_limiter
            )
        return self._pool

    @property
    def workers(self) -> list[CatchupWorker]:
        return [] if self._pool is None else self._pool.workers

    def resize(self, workers: int) -> None:
        """Set the number of catch-up workers. Running catch-ups continue."""
        if self._pool is not None:
            self._pool.resize(workers)
            self._stop_surplus_workers()

    def _stop_surplus_workers(self) -> None:
        if self._pool is not None:
            self._pool.stop_surplus({*self._detaching.values(), *(worker for _, worker in self._runs.values())})

    # -- subscribe, lag, leave ------------------------------------------------------------------------------------

    def start(self, subscriber: Subscriber, next: int, request: int, *, resumed: bool) -> None:
        """Start a subscription at sequence ``next``. Records that exist already are sent by a catch-up."""
        log = self._feed.log
        self.check_kept(next)
        self.subscribers[subscriber.number] = subscriber
        gaps = [gap for gap in log.gaps() if gap.last >= next]
        about = Subscribed(log.epoch, next, log.first, log.last, gaps, resumed)
        subscriber.connection.send(subscriber.dialect.subscribed(request, about))
        subscriber.cursor, subscriber.sent, subscriber.initial_last = next - 1, 0, log.last
        subscriber.progress_sent_at = self._loop.seconds()
        is_counted = bool(subscriber.name) and not subscriber.filter.is_all
        subscriber.sent_marks = SentMarks(next - 1, subscriber.total) if is_counted else None
        subscriber.move(SubscriberVerb.SUBSCRIBE)
        if next <= log.last:
            self._recover(subscriber, self._range(subscriber, next - 1, (request,)))
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
        """Answer a recovery request: send the matching records after this sequence again, with a catch-up.

        ``after`` is ``FROM_FIRST`` for all that is kept. A subscriber has one recovery at a time. One that it did not
        ask for is broken off. A request waits for the end of one that it asked for; the requests that wait together
        are answered by one recovery, from the lowest sequence."""
        if not subscriber.is_following:
            raise WrongState(f"a subscriber that is {subscriber.state} cannot request a recovery")
        last, waiting = self._feed.log.last, subscriber.waiting_requests
        if after != FROM_FIRST:
            if not 0 <= after <= last:
                raise BadInput(f"must be from 0 to {last}, not {after}", field="after")
            self.check_kept(after + 1)
        if len(waiting) == MAX_WAITING_REQUESTS and request not in waiting:
            raise WrongState(f"{MAX_WAITING_REQUESTS} recovery requests wait for an answer already")
        waiting[request] = min(after, waiting.get(request, after))
        if subscriber.state is SubscriberState.ONLINE:
            self._feed.remove(subscriber)
            self._recover(subscriber, self._requested_range(subscriber))
        elif subscriber.run is not None:
            subscriber.run.give_way()

    def lag(self, subscriber: Subscriber, records: int) -> None:
        """Move a subscriber whose send buffer is full from live to catch-up: it reads the rest from the log.

        ``records``: matching records of the commit that did not fit."""
        self._feed.remove(subscriber)
        subscriber.move(SubscriberVerb.LAG)
        self._detach(subscriber, None)
        self._set_backlog(subscriber, records)

    def lag_of(self, subscriber: Subscriber) -> int:
        """Return the lag: the matching records that a durable subscriber has not confirmed, or that another one has
        not been sent yet.

        With a filter the records that are sent and not confirmed are estimated from ``SentMarks``."""
        if not subscriber.name:
            return self.unsent_of(subscriber)
        unconfirmed = max(0, self._feed.log.last - subscriber.confirmed)
        if subscriber.sent_marks is None:
            return unconfirmed
        subscriber.mark_sent()
        subscriber.sent_marks.confirm(subscriber.confirmed)
        sent = subscriber.sent_marks.after(subscriber.confirmed)
        return min(unconfirmed, self.unsent_of(subscriber) + sent)

    def unsent_of(self, subscriber: Subscriber) -> int:
        """Return the number of records that a subscriber has not been sent yet.

        With a filter those that match it are counted as they are published. The records of a recovery that it asked
        for are added when the recovery begins, because only then they are counted."""
        if subscriber.backlog is not None:
            return subscriber.backlog.count(subscriber.run)
        return max(0, self._feed.log.last - subscriber.reached)

    def unsubscribe(self, subscriber: Subscriber, on_unsubscribed: UnsubscribedCallback) -> None:
        """End a subscription. ``on_unsubscribed`` is called when the last record is sent."""
        if subscriber in self._unsubscribing:
            raise WrongState("it is being unsubscribed already")
        if subscriber.run is not None:
            self._unsubscribing[subscriber] = on_unsubscribed
            subscriber.run.cancel()
            return
        self._feed.remove(subscriber)
        self._forget(subscriber, SubscriberVerb.UNSUBSCRIBE)
        on_unsubscribed()

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a subscriber whose connection is lost."""
        if subscriber.state is SubscriberState.OFFLINE:
            return
        self._unsubscribing.pop(subscriber, None)
        self._feed.remove(subscriber)
        run, subscriber.run = subscriber.run, None
        if run is not None:
            run.abandon()
            self._runs[run][1].wake()
        self._forget(subscriber, SubscriberVerb.LEAVE)

    def dismiss(self, subscriber: Subscriber, why: QueueError) -> None:
        """Disconnect a subscriber with an error.

        The error is not sent while a worker holds the connection, because it may be inside a frame."""
        was_detached = subscriber.run is not None
        self.remove(subscriber)
        if was_detached:
            subscriber.connection.cut(why.code)
        else:
            subscriber.connection.fail(why)

    def _forget(self, subscriber: Subscriber, verb: SubscriberVerb) -> None:
        self.subscribers.pop(subscriber.number, None)
        if verb is SubscriberVerb.UNSUBSCRIBE:
            for request in subscriber.waiting_requests:
                self._refuse(subscriber, request, WrongState("the subscriber has unsubscribed"))
        subscriber.waiting_requests.clear()
        subscriber.is_detaching = False
        self._detaching.pop(subscriber, None)
        self._drop_backlog(subscriber)
        self._release_tail(subscriber)
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

    def _recover(self, subscriber: Subscriber, task: CatchupRange) -> None:
        """Start a catch-up over this range."""
        subscriber.move(SubscriberVerb.RECOVER)
        subscriber.mark_sent()
        subscriber.cursor = task.after
        subscriber.mark_sent()
        self._detach(subscriber, task)
        self._set_backlog(subscriber, None)

    def _set_backlog(self, subscriber: Subscriber, owed: int | None) -> None:
        """Count the backlog of a subscriber with a filter from now on. ``owed``: its matching records up to now."""
        if not subscriber.filter.is_all:
            counter = self._feed.watch(subscriber.filter)
            self._drop_backlog(subscriber)
            subscriber.backlog = Backlog(counter, counter.matched, owed)

    def _drop_backlog(self, subscriber: Subscriber) -> None:
        if subscriber.backlog is not None:
            subscriber.backlog = None
            self._feed.unwatch(subscriber.filter)

    def _range(self, subscriber: Subscriber, after: int, requests: tuple[int, ...] = ()) -> CatchupRange:
        """Return the range of a catch-up after this sequence up to the current last one."""
        dialect = subscriber.dialect
        is_counted = bool(requests) or dialect.needs_count
        return CatchupRange(subscriber.filter, dialect, after, self._feed.log.last, requests, is_counted)

    def _requested_range(self, subscriber: Subscriber) -> CatchupRange:
        """Return the range that answers all waiting requests, or the rest of the records if none is left.

        A request is refused if its records were retired while it waited. The answer to a request for all that is kept
        is announced from no sequence after the subscription: a recovery that was not asked for may begin there, and the
        start is all that distinguishes them in a protocol without request numbers."""
        first = self._feed.log.first
        waiting, found = subscriber.waiting_requests, {}
        for request, asked in waiting.items():
            after = first - 1 if asked == FROM_FIRST else asked
            try:
                self.check_kept(after + 1)
            except Retired as error:
                self._refuse(subscriber, request, error)
            else:
                found[request] = after
        task = self._range(subscriber, min(found.values(), default=subscriber.cursor), tuple(found))
        if FROM_FIRST in waiting.values():
            task = task._replace(announced_start=min(task.after + 1, max(1, subscriber.initial_last)))
        waiting.clear()
        return task

    def _refuse(self, subscriber: Subscriber, request: int, error: QueueError) -> None:
        subscriber.connection.send(subscriber.dialect.refused(request, error))

    def _detach(self, subscriber: Subscriber, task: CatchupRange | None) -> None:
        """Detach the connection for a worker, as soon as its send buffer is empty.

        ``task`` is None for a subscriber that lags: its range is computed when the connection is detached."""
        self._detaching[subscriber] = worker = self.pool.choose()
        subscriber.is_detaching, subscriber.detach_requested_at = True, self._loop.seconds()
        if subscriber not in self._tail_users:
            self._tail_users.add(subscriber)
            self._feed.tail.hold()
        subscriber.connection.detach(partial(self._start_catchup, subscriber, worker, task), worker.wake)

    def _start_catchup(
        self, subscriber: Subscriber, worker: CatchupWorker, task: CatchupRange | None, output: CatchupOutput
    ) -> None:
        if not subscriber.is_detaching or self._is_stopping:  # the subscriber has left, or the server stops
            output.close()
            subscriber.connection.attach()
            return
        subscriber.is_detaching = False
        self._detaching.pop(subscriber, None)
        if task is None:
            subscriber.move(SubscriberVerb.RECOVER)
            task = self._requested_range(subscriber)
            subscriber.mark_sent()
            subscriber.cursor = task.after
            subscriber.mark_sent()
            if task.requests:
                self._set_backlog(subscriber, None)
        subscriber.recoveries += 1
        subscriber.run = run = Catchup(
            task,
            self._feed.log.reader(),
            output,
            deferred=subscriber.connection.deferred,
            can_take_over=self._feed.can_take_over,
            completed=lambda run: self._loop.call(partial(self._completed, subscriber, run)),
            times=lambda: (self._loop.seconds(), self._loop.now_ns()),
        )
        if subscriber.waiting_requests:
            run.give_way()
        self._runs[run] = subscriber, worker
        worker.add(run)

    def _completed(self, subscriber: Subscriber, run: Catchup) -> None:
        if subscriber.run is run:
            subscriber.move(SubscriberVerb.COMPLETE)

    def _on_catchup_ended(self, run: Catchup, outcome: CatchupResult) -> None:
        """Continue on the loop after a worker has released a run."""
        subscriber, worker = self._runs.pop(run)
        self._finish_catchup(subscriber, worker, run, outcome)
        self._stop_surplus_workers()

    def _finish_catchup(
        self, subscriber: Subscriber, worker: CatchupWorker, run: Catchup, outcome: CatchupResult
    ) -> None:
        if subscriber.run is not run:
            run.close()
            return
        if outcome in (CatchupResult.GONE, CatchupResult.STALLED):
            self._end_run(subscriber, run)
            subscriber.connection.cut("stalled" if outcome is CatchupResult.STALLED else "")
            return
        subscriber.cursor = run.cursor
        is_over = run.error is not None or run.is_cancelled
        missing = None if is_over else self._feed.missing(run.cursor)
        if missing is None and not is_over and not subscriber.waiting_requests:
            self._runs[run] = subscriber, worker  # it fell behind again before the loop ran this
            worker.add(run)
            return
        subscriber.sent = run.sent
        subscriber.total += run.sent
        self._end_run(subscriber, run)
        subscriber.connection.attach()
        if subscriber.waiting_requests and not is_over:
            self._recover(subscriber, self._requested_range(subscriber))
        else:
            self._resume_live(subscriber, run.error, missing)

    def _end_run(self, subscriber: Subscriber, run: Catchup) -> None:
        run.close()
        subscriber.run = None
        self._drop_backlog(subscriber)
        self._release_tail(subscriber)

    def _release_tail(self, subscriber: Subscriber) -> None:
        if subscriber in self._tail_users:
            self._tail_users.discard(subscriber)
            self._feed.tail.release()

    def _resume_live(self, subscriber: Subscriber, error: QueueError | None, missing: list[LiveCommit] | None) -> None:
        """Make a subscriber live again after its catch-up, or end its subscription."""
        on_unsubscribed = self._unsubscribing.pop(subscriber, None)
        if error is not None:
            subscriber.connection.fail(error)
        elif on_unsubscribed is not None:
            self._forget(subscriber, SubscriberVerb.UNSUBSCRIBE)
            on_unsubscribed()
        elif missing is not None:
            try:
                self._feed.take_over(subscriber, missing)
            except QueueError as problem:
                subscriber.connection.fail(problem)
                return
            subscriber.move(SubscriberVerb.ARRIVE)


# -- periodic work -----------------------------------------------------------------------------------------------------

TICK_SECONDS = 0.25
"""Interval of the periodic checks, and so the shortest interval of progress messages, in seconds."""
SECOND_NS = 1_000_000_000
LagListener = Callable[[Subscriber, int], None]
Hold = Callable[[str, int], int | None]
"""Retention hold: (epoch, oldest time in ns at which the cursor of an absent reader may have been written) → the first
sequence to keep, or None if no record is needed."""


class TopicMaintenance:
    """Periodic work of topic delivery: progress messages, lag alarms, retention. Loop thread only."""

    def __init__(
        self,
        feed: TopicFeed,
        lifecycle: SubscriberLifecycle,
        cursor_committer: CursorCommitter,
        executor: LoopExecutor,
        holds: Sequence[Hold] = (),
    ) -> None:
        self._feed = feed
        self._lifecycle = lifecycle
        self._cursor_committer = cursor_committer
        self._executor = executor
        self._holds = holds
        self._is_stopped = False
        self._is_ticking = False
        self.alarms: set[int] = set()
        """Numbers of the subscribers above the lag limit."""
        self.trim_listeners: list[Callable[[TrimResult], None]] = []
        self.lag_listeners: list[LagListener] = []
        self._plan_retention()

    def start(self) -> None:
        """Schedule the next tick, if none is scheduled. Called when a subscription starts, and by each tick."""
        if not self._is_ticking and not self._is_stopped:
            self._is_ticking = True
            self._feed.loop.later(TICK_SECONDS, self._tick)

    def stop(self) -> None:
        self._is_stopped = True

    # -- subscribers ----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._is_ticking = False
        if self._is_stopped or not self._lifecycle.subscribers:
            self.alarms.clear()
            return
        now = self._feed.loop.seconds()
        for subscriber in list(self._lifecycle.subscribers.values()):
            self._check_subscriber(subscriber, now)
        self._check_lag()
        for action in self._feed.after_commit:
            action()
        self.start()

    def _check_subscriber(self, subscriber: Subscriber, now: float) -> None:
        if subscriber.is_detaching and now - subscriber.detach_requested_at > self._feed.settings.pacing.stall_seconds:
            subscriber.connection.cut("stalled")
        due = subscriber.progress_seconds and now - subscriber.progress_sent_at >= subscriber.progress_seconds
        if not due or subscriber.state is not SubscriberState.ONLINE:
            return
        last = self._feed.log.last
        words = subscriber.dialect.progress(subscriber.cursor, subscriber.sent, last, self._feed.loop.now_ns())
        if words and subscriber.connection.has_capacity(len(words)):
            subscriber.connection.send(words)
            subscriber.progress_sent_at = now

    def _check_lag(self) -> None:
        limit = self._feed.settings.lag_limit
        late = {number: lag for number, lag in self.lags().items() if limit and lag > limit}
        for number in late.keys() - self.alarms:
            for listener in self.lag_listeners:
                listener(self._lifecycle.subscribers[number], late[number])
        self.alarms = set(late)

    def lags(self) -> dict[int, int]:
        """Return the lag of each subscriber, by subscriber number."""
        lifecycle = self._lifecycle
        return {number: lifecycle.lag_of(subscriber) for number, subscriber in lifecycle.subscribers.items()}

    # -- retention ------------------------------------------------------------------------------------------------

    def _plan_retention(self) -> None:
        self._feed.loop.later(self._feed.settings.retention_seconds, self._run_retention)

    def _run_retention(self) -> None:
        if not self._is_stopped:
            self.retain(lambda trimmed, error: self._plan_retention())

    def retain(self, done: Callable[[TrimResult | None, QueueError | None], None]) -> None:
        """Trim the log: delete the records that exceed the retention settings and that no reader needs."""
        settings = self._feed.settings
        now, span = self._feed.loop.now_ns(), round(settings.cursor_seconds * SECOND_NS)
        connected = self._connected()
        for cursor in self._cursor_committer.all():
            if cursor.name in connected and now - cursor.at_ns > span // 4:
                # Connected, but with nothing to confirm. The next run repeats a write that failed.
                self._cursor_committer.put(cursor._replace(at_ns=now), lambda error: None)
        epoch = self._feed.log.epoch
        found = [retention_floor(self._cursor_committer.all(), epoch, now - span, connected)]
        found += [hold(epoch, now - span) for hold in self._holds]
        floor = min((one for one in found if one is not None), default=None)
        self._executor.run(partial(self._feed.log.retain, settings.retention, floor), partial(self._retained, done))

    def _retained(self, done: Callable[[Any, QueueError | None], None], trimmed: Any, error: QueueError | None) -> None:
        if error is None and trimmed.segments:
            for listener in self.trim_listeners:
                listener(trimmed)
        done(trimmed, error)

    def _connected(self) -> frozenset[str]:
        return frozenset(one.name for one in self._lifecycle.subscribers.values() if one.name)

    def cursors(self) -> Sequence[Cursor]:
        return self._cursor_committer.all()
