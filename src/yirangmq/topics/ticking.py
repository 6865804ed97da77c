"""What a feed does by the clock: tell subscribers how far it is, notice those who stand still or fall behind, trim the
log. Nothing ticks while nobody follows and nothing is kept.

Knows: the parts of a feed. Does not know: how they work."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from yirangmq.core.errors import QueueError
from yirangmq.core.topics import ClientState, Cursor, Trimmed
from yirangmq.fsio.background import Aside
from yirangmq.topics.feed import Feed
from yirangmq.topics.follows import Follows
from yirangmq.topics.ledger import Ledger, floor_of
from yirangmq.topics.subscriber import Subscriber

TICK_SECONDS = 0.25
"""The smallest distance between two words of progress."""
SECOND_NS = 1_000_000_000
LagHeard = Callable[[Subscriber, int], None]
Hold = Callable[[str, int], int | None]
"""(epoch, the oldest moment in nanoseconds at which one who is away may have been heard of) → the first sequence that
somebody needs; None: nobody needs any."""


class Ticking:
    def __init__(self, feed: Feed, follows: Follows, ledger: Ledger, aside: Aside, holds: Sequence[Hold] = ()) -> None:
        self._feed = feed
        self._follows = follows
        self._ledger = ledger
        self._aside = aside
        self._holds = holds
        self._is_over = False
        self._is_ticking = False
        self.alarms: set[int] = set()
        """Numbers of subscribers that are too far behind."""
        self.trimmed_heard: list[Callable[[Trimmed], None]] = []
        self.lag_heard: list[LagHeard] = []
        self._plan_retention()

    def begin(self) -> None:
        """Somebody follows."""
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
        """By number of the subscriber: how many records lie between it and the end of the log."""
        last = self._feed.log.last
        return {number: last - subscriber.reached for number, subscriber in self._follows.subscribers.items()}

    # -- retention ------------------------------------------------------------------------------------------------

    def _plan_retention(self) -> None:
        self._feed.loop.later(self._feed.settings.retention_seconds, self._retain_in_time)

    def _retain_in_time(self) -> None:
        if not self._is_over:
            self.retain(lambda trimmed, error: self._plan_retention())

    def retain(self, done: Callable[[Trimmed | None, QueueError | None], None]) -> None:
        """Give up what the settings do not want kept, and nobody needs."""
        settings = self._feed.settings
        now, span = self._feed.loop.now_ns(), round(settings.cursor_seconds * SECOND_NS)
        connected = self._connected()
        for cursor in self._ledger.all():
            if cursor.name in connected and now - cursor.at_ns > span // 4:
                self._ledger.put(cursor._replace(at_ns=now), _ignore)  # it has nothing to confirm, but it is there
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
    """It is put again the next time."""
