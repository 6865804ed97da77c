"""Publisher: opens the topic log when it is first needed, and is the entry of all protocols to topics.

It owns the parts of topic delivery and its own state (``core.topics.PUBLISHER``), which no other module changes. A log
that was used before is opened at startup. If the log cannot be opened or written, queues still work: the state of the
publisher is ERROR, and it tries again every 2 s. Loop thread only."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from yirangmq.core.active_guard import ActiveGuard, AlwaysActive, check
from yirangmq.core.errors import BadInput, QueueError, Replaced, StoreError, StoreFull, Unavailable, WrongState
from yirangmq.core.topics import (
    Cursor,
    Cursors,
    KnownPositions,
    Log,
    NewRecord,
    PublisherState,
    PublisherVerb,
    Start,
    SubscriberState,
    SubscriberVerb,
    check_subscriber,
    publisher_after,
)
from yirangmq.fsio.background import LoopExecutor
from yirangmq.topics.cursors import (
    CursorLags,
    SubscriptionParameters,
    check_epoch,
    positions_of,
    resumed,
    start_sequence,
)
from yirangmq.topics.ports import Loop, TopicSettings

if TYPE_CHECKING:  # the parts are loaded when the log is opened
    from yirangmq.topics.cursors import CursorCommitter
    from yirangmq.topics.live import CommitListener, Done, MoveListener, Subscriber, TopicFeed
    from yirangmq.topics.ports import Dialect, SubscriberConnection
    from yirangmq.topics.subscribers import (
        Hold,
        LagListener,
        SubscriberLifecycle,
        TopicMaintenance,
        UnsubscribedCallback,
    )

REOPEN_SECONDS = 1.0
"""Minimum time in seconds between two attempts to open the log on demand. Each attempt blocks the caller."""
RETRY_SECONDS = 2.0
"""Delay in seconds before the publisher itself tries again to open the log."""
DoneCallback = Callable[[QueueError | None], None]
StateListener = Callable[[PublisherState | None, PublisherState, str], None]


class LogOpeners(NamedTuple):
    """Functions that open the log and the cursors. ``is_there`` is true if the log has been used before."""

    log: Callable[[KnownPositions], Log]
    cursors: Callable[[], Cursors]
    is_there: Callable[[], bool]


class OpenedCursors:
    """The cursors, opened when they are first needed, and closed by ``undo`` if opening the log fails."""

    def __init__(self, open_cursors: Callable[[], Cursors], undo: ExitStack) -> None:
        self._open_cursors = open_cursors
        self._undo = undo
        self._cursors: Cursors | None = None

    def get(self) -> Cursors:
        if self._cursors is None:
            self._cursors = self._open_cursors()
            self._undo.callback(self._cursors.close)
        return self._cursors


class TopicDeliveryParts(NamedTuple):
    """Parts of topic delivery while the log is open."""

    feed: "TopicFeed"
    lifecycle: "SubscriberLifecycle"
    cursor_committer: "CursorCommitter"
    maintenance: "TopicMaintenance"


class Publisher:
    """Entry to topics: publish, subscribe, confirm. Opens and closes the log. Loop thread only."""

    def __init__(
        self, openers: LogOpeners, loop: Loop, settings: TopicSettings, executor: LoopExecutor | None = None
    ) -> None:
        self._openers = openers
        self._loop = loop
        self.settings = settings
        self.state: PublisherState | None = None
        self.reason = ""
        """Reason for the state ERROR."""
        self.executor = executor or LoopExecutor(loop.call)
        self._count_executor = executor or LoopExecutor(loop.call)
        """Separate from ``executor``, so that commits of cursors do not wait for a count of records."""
        self._cursor_lags = CursorLags(self._count_executor)
        self.after_commit: list[Callable[[], None]] = []
        self.listeners: list[CommitListener] = []
        """Called after each commit, on the loop's thread, so they must be fast."""
        self.commit_duration_listeners: list[Callable[[float], None]] = []
        """Called after each commit with its duration in seconds."""
        self.state_listeners: list[StateListener] = []
        self.move_listeners: list[MoveListener] = []
        self.lag_listeners: list[LagListener] = []
        """Called once with a subscriber above the lag limit, and with its lag in records."""
        self.holds: list[Hold] = []
        """Retention holds besides the cursors of durable subscribers, for example of bridges."""
        self.known_positions: list[KnownPositions] = []
        """Positions of durable readers other than subscribers, such as bridges. They show if the log lost its end."""
        self.loss_listeners: list[Callable[[str], None]] = []
        """Called with the reason if opening the log began a new epoch, because records at its end are lost."""
        self._numbers = count(1)
        self._open: TopicDeliveryParts | None = None
        self._refusal: QueueError | None = None
        self._reopen_at = 0.0
        self._is_stopped = False
        self._will_retry = False
        self._subscribing: set[Subscriber] = set()
        self.guard: ActiveGuard = AlwaysActive()
        """Active guard: whether this node may publish and deliver records now."""

    # -- life cycle -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the log if it has been used before. A failure sets the state ERROR and is not raised."""
        self._move(PublisherVerb.START)
        if self._openers.is_there():
            try:
                self.ensure_open()
            except QueueError:
                return

    def mark_listening(self) -> None:
        if self.state is PublisherState.STARTING:
            self._move(PublisherVerb.LISTEN)

    def mark_online(self) -> None:
        if self.state is PublisherState.LISTENING:
            self._move(PublisherVerb.SERVE)

    def fail(self, error: QueueError) -> None:
        if self.state not in (None, PublisherState.ERROR):
            self._move(PublisherVerb.FAIL, str(error))
        self.reason = str(error)

    def _move(self, verb: PublisherVerb, why: str = "") -> None:
        after = publisher_after(self.state, verb)
        if after is None:
            raise WrongState(f"{verb} does not apply to a publisher that is {self.state}")
        before, self.state, self.reason = self.state, after, why
        for listener in self.state_listeners:
            listener(before, after, why)

    def ensure_open(self) -> TopicDeliveryParts:
        """Return the parts of topic delivery; open the log if it is not open. Raises the error if that fails."""
        if self._is_stopped:
            raise Unavailable("the server is stopping")
        if self._open is None:
            if self._refusal is not None and self._loop.seconds() < self._reopen_at:
                raise self._refusal.with_traceback(None)
            try:
                self._open = self._made()
            except QueueError as error:
                self._refusal, self._reopen_at = error, self._loop.seconds() + REOPEN_SECONDS
                self.fail(error)
                self._plan_retry()
                raise
            self._refusal = None
            self._leave_error_state()
        return self._open

    def _plan_retry(self) -> None:
        """Schedule an attempt to open the log, so that health recovers after a disk error without a publish."""
        if not self._will_retry:
            self._will_retry = True
            self._loop.later(RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        self._will_retry = False
        if not self._is_stopped and self._open is None and self.state is PublisherState.ERROR:
            with suppress(QueueError):  # already reported, and the next attempt is scheduled
                self.ensure_open()

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def _made(self) -> TopicDeliveryParts:
        from yirangmq.topics.cursors import CursorCommitter
        from yirangmq.topics.live import TopicFeed
        from yirangmq.topics.subscribers import SubscriberLifecycle, TopicMaintenance

        with ExitStack() as undo:
            cursors = OpenedCursors(self._openers.cursors, undo)
            log = self._openers.log(partial(self._positions, cursors))
            undo.callback(log.close)
            if log.loss:  # reported now: the next opening finds nothing lost
                for listener in self.loss_listeners:
                    listener(log.loss)
            cursor_committer = CursorCommitter(cursors.get(), self.executor)
            undo.pop_all()
        feed = TopicFeed(log, self._loop, self.settings)
        feed.after_commit, feed.listeners, feed.commit_duration_listeners = (
            self.after_commit,
            self.listeners,
            self.commit_duration_listeners,
        )
        feed.on_append_result = self._on_append_result
        lifecycle = SubscriberLifecycle(feed)
        maintenance = TopicMaintenance(feed, lifecycle, cursor_committer, self.executor, self.holds)
        maintenance.lag_listeners = self.lag_listeners
        return TopicDeliveryParts(feed, lifecycle, cursor_committer, maintenance)

    def _positions(self, cursors: "OpenedCursors", epoch: str, since_ns: int) -> dict[str, int]:
        """Return what each durable reader of this epoch has confirmed (``core.topics.KnownPositions``)."""
        found = positions_of(cursors.get().all(), epoch)
        for known in self.known_positions:
            found.update(known(epoch, since_ns))
        return found

    def _leave_error_state(self) -> None:
        """Leave the state ERROR."""
        if self.state is PublisherState.ERROR:
            self._move(PublisherVerb.START)
            self._move(PublisherVerb.LISTEN)
            self._move(PublisherVerb.SERVE)

    def _on_append_result(self, error: StoreError | None) -> None:
        if error is None:
            if self.state is PublisherState.ERROR:
                self._leave_error_state()
            return
        is_again = self.state is PublisherState.ERROR
        self.fail(error)
        is_unusable = self._open is not None and not self._open.feed.log.is_usable
        if is_unusable or (is_again and not isinstance(error, StoreFull)):
            self._loop.soon(self._reopen)

    def _reopen(self) -> None:
        """Close the log, disconnect all subscribers, and schedule an attempt to open it again.

        The log accepts no append until then."""
        self._close_parts(Unavailable(f"the feed is reopened: {self.reason}"))
        self._plan_retry()

    def _close_parts(self, why: QueueError) -> None:
        parts, self._open = self._open, None
        if parts is None:
            return
        with ExitStack() as rest:  # close the log in any case: its lock would prevent opening it again
            rest.callback(parts.feed.log.close)
            rest.callback(parts.cursor_committer.close)
            rest.callback(parts.lifecycle.close)
            parts.maintenance.stop()
            for subscriber in list(parts.lifecycle.subscribers.values()):
                parts.lifecycle.dismiss(subscriber, why)

    def tune(self, settings: TopicSettings) -> None:
        """Apply other settings until the server stops."""
        self.settings = settings
        if self._open is not None:
            self._open.feed.settings = settings
            self._open.feed.tail.resize(settings.buffer_bytes)
            self._open.lifecycle.resize(settings.workers)

    def dismiss(self, why: QueueError) -> None:
        """Disconnect all subscribers with this error. The log stays open."""
        if self._open is not None:
            for subscriber in list(self._open.lifecycle.subscribers.values()):
                self._open.lifecycle.dismiss(subscriber, why)

    def stop(self) -> None:
        """Accept no new publishes; pending ones are answered. Catch-ups end at the next frame."""
        if self._open is not None:
            self._open.maintenance.stop()
            self._open.feed.stop()
            self._open.lifecycle.stop()

    @property
    def is_idle(self) -> bool:
        parts = self._open
        return parts is None or (parts.feed.is_idle and parts.lifecycle.is_idle)

    def close(self) -> None:
        """Close all parts. The publisher cannot be opened again."""
        self._is_stopped = True
        self.executor.stop()
        self._count_executor.stop()
        self._close_parts(Unavailable("the server is stopping"))

    # -- publishing -----------------------------------------------------------------------------------------------

    def publish(self, records: Sequence[NewRecord], done: "Done") -> None:
        """Publish records. ``done(stored, error)`` is called when they are on disk, or refused."""
        check(self.guard)
        self.ensure_open().feed.publish(records, done)

    # -- subscribing ------------------------------------------------------------------------------------------------

    def connect(self, connection: "SubscriberConnection", dialect: "Dialect") -> "Subscriber":
        """Create a subscriber for a connection. Call ``remove`` when the connection is lost."""
        from yirangmq.topics.live import Subscriber

        return Subscriber(next(self._numbers), connection, dialect, self._moved)

    def _moved(self, subscriber: "Subscriber", before: SubscriberState, after: SubscriberState) -> None:
        for listener in self.move_listeners:
            listener(subscriber, before, after)

    def subscribe(
        self, subscriber: "Subscriber", parameters: SubscriptionParameters, request: int, on_done: DoneCallback
    ) -> None:
        """Start a subscription.

        ``on_done(None)`` is called after the reply to the subscriber is sent, ``on_done(error)`` if it is refused."""
        check(self.guard)
        parts = self.ensure_open()
        if subscriber.state is not SubscriberState.CONNECTED or subscriber in self._subscribing:
            raise WrongState("this connection follows a feed already; open another one, or unsubscribe")
        log = parts.feed.log
        check_epoch(log, parameters.epoch, "your position")
        cursor = (
            parts.cursor_committer.get(check_subscriber(parameters.name))
            if parameters.name and parameters.resume
            else None
        )
        subscriber.name, subscriber.filter = parameters.name, parameters.filter
        subscriber.progress_seconds = parameters.progress_seconds
        start = partial(self._start_subscription, parts, subscriber, request, on_done, is_resumed=cursor is not None)
        if cursor is not None:
            next = resumed(log, cursor)
        elif parameters.start is Start.TIME:
            self._subscribing.add(subscriber)
            self.executor.run(
                partial(start_sequence, log, parameters),
                partial(self._on_start_found, parts, subscriber, start, on_done),
            )
            return
        else:
            next = start_sequence(log, parameters)
        self._on_start_found(parts, subscriber, start, on_done, next, None)

    def _on_start_found(
        self,
        parts: TopicDeliveryParts,
        subscriber: "Subscriber",
        start: Callable[[int, QueueError | None], None],
        on_done: DoneCallback,
        next: int,
        error: QueueError | None,
    ) -> None:
        """Continue with a known start. The cursor of a durable subscriber is written before the reply is sent."""
        if error is not None or not subscriber.name:
            start(next, error)
            return
        try:
            parts.lifecycle.check_kept(next)
        except QueueError as retired:
            start(next, retired)
            return
        self._subscribing.add(subscriber)
        cursor = self._cursor(parts, subscriber, next - 1)
        parts.cursor_committer.put(cursor, lambda problem: start(next, problem))

    def _start_subscription(
        self,
        parts: TopicDeliveryParts,
        subscriber: "Subscriber",
        request: int,
        on_done: DoneCallback,
        next: int,
        error: QueueError | None,
        *,
        is_resumed: bool,
    ) -> None:
        self._subscribing.discard(subscriber)
        if subscriber.state is not SubscriberState.CONNECTED or parts is not self._open:
            return  # the subscriber has left, or the log was closed
        try:
            if error is not None:
                raise error
            self._replace_namesake(parts, subscriber)
            subscriber.confirmed = next - 1
            parts.lifecycle.start(subscriber, next, request, resumed=is_resumed)
        except QueueError as problem:
            on_done(problem)
            return
        parts.maintenance.start()
        on_done(None)

    def _replace_namesake(self, parts: TopicDeliveryParts, subscriber: "Subscriber") -> None:
        """Disconnect other subscribers of the same durable name: the latest one keeps the name."""
        for other in list(parts.lifecycle.subscribers.values()):
            if other is not subscriber and subscriber.name and other.name == subscriber.name:
                why = Replaced(f"{subscriber.name!r} follows over another connection now")
                parts.lifecycle.dismiss(other, why)

    def recover(self, subscriber: "Subscriber", after: int, epoch: str, request: int) -> None:
        """Answer a recovery request. ``after``: the last sequence that it has, or ``live.FROM_FIRST``."""
        parts = self.ensure_open()
        check_epoch(parts.feed.log, epoch, "your position")
        parts.lifecycle.recover(subscriber, after, request)

    def cursor_lags(self, cursors: Sequence[Cursor]) -> dict[str, int]:
        """Return the lag of durable subscribers that are not connected, by name."""
        return self._cursor_lags.of(cursors, self.ensure_open().feed.log, self.settings.masked)

    def when_lags_counted(self, cursors: Sequence[Cursor], act: Callable[[], None]) -> None:
        """Call ``act`` when the records after these cursors are counted."""
        self.cursor_lags(cursors)
        self._cursor_lags.when_counted(act)

    def confirm(
        self, subscriber: "Subscriber", sequence: int, on_done: Callable[[int, QueueError | None], None]
    ) -> None:
        """Advance the cursor of a durable subscriber; it never moves back.

        ``on_done`` is called with the position when it is on disk."""
        check(self.guard)
        parts = self.ensure_open()
        if not subscriber.name or not subscriber.is_following:
            raise WrongState("only a durable subscriber confirms: subscribe with a name")
        if not 0 <= sequence <= parts.feed.log.last:
            raise BadInput(f"must be from 0 to {parts.feed.log.last}, not {sequence}", field="sequence")
        subscriber.confirmed = reached = max(subscriber.confirmed, sequence)
        parts.cursor_committer.put(self._cursor(parts, subscriber, reached), lambda error: on_done(reached, error))

    def _cursor(self, parts: TopicDeliveryParts, subscriber: "Subscriber", sequence: int) -> Cursor:
        return Cursor(subscriber.name, parts.feed.log.epoch, sequence, subscriber.filter.text, self._loop.now_ns())

    def unsubscribe(self, subscriber: "Subscriber", on_unsubscribed: "UnsubscribedCallback") -> bool:
        """End a subscription. ``on_unsubscribed`` is called when the last record is sent. Return False if there is
        none."""
        if not subscriber.is_following or self._open is None:
            return False
        self._open.lifecycle.unsubscribe(subscriber, on_unsubscribed)
        return True

    def remove(self, subscriber: "Subscriber") -> None:
        """Remove a subscriber whose connection is lost."""
        self._subscribing.discard(subscriber)
        if self._open is not None:
            self._open.lifecycle.remove(subscriber)
        elif subscriber.state is not SubscriberState.OFFLINE:
            subscriber.move(SubscriberVerb.LEAVE)
