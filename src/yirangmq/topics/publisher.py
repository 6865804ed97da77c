"""Publisher: opens the topic log when it is first needed, and is the entry of all protocols to topics.

It owns the parts of topic delivery and its own state (``core.topics.PUBLISHER``), which no other module changes. A log
that was used before is opened at startup. If the log cannot be opened or written, queues still work: the state of the
publisher is ERROR, and it tries again every 2 s. Loop thread only."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from yirangmq.core.active_guard import Always, Duty, check
from yirangmq.core.errors import BadInput, QueueError, Replaced, StoreError, StoreFull, Unavailable, WrongState
from yirangmq.core.topics import (
    ClientState,
    ClientVerb,
    Cursor,
    Cursors,
    Log,
    NewRecord,
    PublisherState,
    PublisherVerb,
    Start,
    check_subscriber,
    publisher_after,
)
from yirangmq.fsio.background import Aside
from yirangmq.topics.cursors import Ask, begins_at, check_epoch, resumed
from yirangmq.topics.ports import Loop, Settings

if TYPE_CHECKING:  # the parts are loaded when the log is opened
    from yirangmq.topics.cursors import Ledger
    from yirangmq.topics.live import Done, Feed, Hear, Moved, Subscriber
    from yirangmq.topics.ports import Dialect, Line
    from yirangmq.topics.subscribers import Follows, Hold, LagHeard, Over, Ticking

AGAIN_SECONDS = 1.0
"""Minimum time in seconds between two attempts to open the log on demand. Each attempt blocks the caller."""
RETRY_SECONDS = 2.0
"""Delay in seconds before the publisher itself tries again to open the log."""
Told = Callable[[QueueError | None], None]
StateHeard = Callable[[PublisherState | None, PublisherState, str], None]


class Opening(NamedTuple):
    """Functions that open the log and the cursors. ``is_there`` is true if the log has been used before."""

    log: Callable[[], Log]
    cursors: Callable[[], Cursors]
    is_there: Callable[[], bool]


class Open(NamedTuple):
    """Parts of topic delivery while the log is open."""

    feed: "Feed"
    follows: "Follows"
    ledger: "Ledger"
    ticking: "Ticking"


class Publisher:
    """Entry to topics: publish, subscribe, confirm. Opens and closes the log. Loop thread only."""

    def __init__(self, opening: Opening, loop: Loop, settings: Settings, aside: Aside | None = None) -> None:
        self._opening = opening
        self._loop = loop
        self.settings = settings
        self.state: PublisherState | None = None
        self.reason = ""
        """Reason for the state ERROR."""
        self.aside = aside or Aside(loop.call)
        self.after_turn: list[Callable[[], None]] = []
        self.hearers: list[Hear] = []
        """Called after each commit, on the loop's thread, so they must be fast."""
        self.took: list[Callable[[float], None]] = []
        """Called after each commit with its duration in seconds."""
        self.state_heard: list[StateHeard] = []
        self.moved_heard: list[Moved] = []
        self.lag_heard: list[LagHeard] = []
        """Called once with a subscriber above the lag limit, and with its lag in records."""
        self.holds: list[Hold] = []
        """Retention holds besides the cursors of durable subscribers, for example of bridges."""
        self._numbers = count(1)
        self._open: Open | None = None
        self._refusal: QueueError | None = None
        self._again_at = 0.0
        self._is_stopped = False
        self._will_retry = False
        self._subscribing: set[Subscriber] = set()
        self.duty: Duty = Always()
        """Active guard: whether this node may publish and deliver records now."""

    # -- life cycle -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the log if it has been used before. A failure sets the state ERROR and is not raised."""
        self._move(PublisherVerb.START)
        if self._opening.is_there():
            try:
                self.opened()
            except QueueError:
                return

    def listening(self) -> None:
        if self.state is PublisherState.STARTING:
            self._move(PublisherVerb.LISTEN)

    def online(self) -> None:
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
        for heard in self.state_heard:
            heard(before, after, why)

    def opened(self) -> Open:
        """Return the parts of topic delivery; open the log if it is not open. Raises the error if that fails."""
        if self._is_stopped:
            raise Unavailable("the server is stopping")
        if self._open is None:
            if self._refusal is not None and self._loop.seconds() < self._again_at:
                raise self._refusal.with_traceback(None)
            try:
                self._open = self._made()
            except QueueError as error:
                self._refusal, self._again_at = error, self._loop.seconds() + AGAIN_SECONDS
                self.fail(error)
                self._plan_retry()
                raise
            self._refusal = None
            self._recovered()
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
                self.opened()

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def _made(self) -> Open:
        from yirangmq.topics.cursors import Ledger
        from yirangmq.topics.live import Feed
        from yirangmq.topics.subscribers import Follows, Ticking

        log = self._opening.log()
        try:
            ledger = Ledger(self._opening.cursors(), self.aside)
        except BaseException:
            log.close()
            raise
        feed = Feed(log, self._loop, self.settings)
        feed.after_turn, feed.hearers, feed.took = self.after_turn, self.hearers, self.took
        feed.troubled = self._troubled
        follows = Follows(feed)
        ticking = Ticking(feed, follows, ledger, self.aside, self.holds)
        ticking.lag_heard = self.lag_heard
        return Open(feed, follows, ledger, ticking)

    def _recovered(self) -> None:
        """Leave the state ERROR."""
        if self.state is PublisherState.ERROR:
            self._move(PublisherVerb.START)
            self._move(PublisherVerb.LISTEN)
            self._move(PublisherVerb.SERVE)

    def _troubled(self, error: StoreError | None) -> None:
        if error is None:
            if self.state is PublisherState.ERROR:
                self._recovered()
            return
        is_again = self.state is PublisherState.ERROR
        self.fail(error)
        is_unusable = self._open is not None and not self._open.feed.log.is_usable
        if is_unusable or (is_again and not isinstance(error, StoreFull)):
            self._loop.soon(self._reopen)

    def _reopen(self) -> None:
        """Close the log, disconnect all subscribers, and schedule an attempt to open it again.

        The log accepts no append until then."""
        self._shut(Unavailable(f"the feed is opened anew: {self.reason}"))
        self._plan_retry()

    def _shut(self, why: QueueError) -> None:
        parts, self._open = self._open, None
        if parts is None:
            return
        with ExitStack() as rest:  # close the log in any case: its lock would prevent opening it again
            rest.callback(parts.feed.log.close)
            rest.callback(parts.ledger.close)
            rest.callback(parts.follows.close)
            parts.ticking.stop()
            for subscriber in list(parts.follows.subscribers.values()):
                parts.follows.dismiss(subscriber, why)

    def tune(self, settings: Settings) -> None:
        """Apply other settings until the server stops."""
        self.settings = settings
        if self._open is not None:
            self._open.feed.settings = settings
            self._open.feed.tail.resize(settings.buffer_bytes)
            self._open.follows.resize(settings.workers)

    def dismiss(self, why: QueueError) -> None:
        """Disconnect all subscribers with this error. The log stays open."""
        if self._open is not None:
            for subscriber in list(self._open.follows.subscribers.values()):
                self._open.follows.dismiss(subscriber, why)

    def stop(self) -> None:
        """Accept no new publishes; pending ones are answered. Catch-ups end at the next frame."""
        if self._open is not None:
            self._open.ticking.stop()
            self._open.feed.stop()
            self._open.follows.stop()

    @property
    def is_idle(self) -> bool:
        parts = self._open
        return parts is None or (parts.feed.is_idle and parts.follows.is_idle)

    def close(self) -> None:
        """Close all parts. The publisher cannot be opened again."""
        self._is_stopped = True
        self.aside.stop()
        self._shut(Unavailable("the server is stopping"))

    # -- publishing -----------------------------------------------------------------------------------------------

    def publish(self, records: Sequence[NewRecord], done: "Done") -> None:
        """Publish records. ``done(stored, error)`` is called when they are on disk, or refused."""
        check(self.duty)
        self.opened().feed.publish(records, done)

    # -- subscribing ------------------------------------------------------------------------------------------------

    def connect(self, line: "Line", dialect: "Dialect") -> "Subscriber":
        """Create a subscriber for a connection. Call ``leave`` when the connection is lost."""
        from yirangmq.topics.live import Subscriber

        return Subscriber(next(self._numbers), line, dialect, self._moved)

    def _moved(self, subscriber: "Subscriber", before: ClientState, after: ClientState) -> None:
        for heard in self.moved_heard:
            heard(subscriber, before, after)

    def subscribe(self, subscriber: "Subscriber", ask: Ask, request: int, told: Told) -> None:
        """Start a subscription.

        ``told(None)`` is called after the reply to the subscriber is sent, ``told(error)`` if it is refused."""
        check(self.duty)
        parts = self.opened()
        if subscriber.state is not ClientState.CONNECTED or subscriber in self._subscribing:
            raise WrongState("this connection follows a feed already; open another one, or unsubscribe")
        log = parts.feed.log
        check_epoch(log, ask.epoch, "what you know")
        cursor = parts.ledger.get(check_subscriber(ask.name)) if ask.name and ask.resume else None
        subscriber.name, subscriber.filter = ask.name, ask.filter
        subscriber.progress_seconds = ask.progress_seconds
        begin = partial(self._begin, parts, subscriber, request, told, is_resumed=cursor is not None)
        if cursor is not None:
            next = resumed(log, cursor)
        elif ask.start is Start.TIME:
            self._subscribing.add(subscriber)
            self.aside.run(partial(begins_at, log, ask), partial(self._found, parts, subscriber, begin, told))
            return
        else:
            next = begins_at(log, ask)
        self._found(parts, subscriber, begin, told, next, None)

    def _found(
        self,
        parts: Open,
        subscriber: "Subscriber",
        begin: Callable[[int, QueueError | None], None],
        told: Told,
        next: int,
        error: QueueError | None,
    ) -> None:
        """Continue with a known start. The cursor of a durable subscriber is written before the reply is sent."""
        if error is not None or not subscriber.name:
            begin(next, error)
            return
        try:
            parts.follows.check_kept(next)
        except QueueError as retired:
            begin(next, retired)
            return
        self._subscribing.add(subscriber)
        cursor = self._cursor(parts, subscriber, next - 1)
        parts.ledger.put(cursor, lambda problem: begin(next, problem))

    def _begin(
        self,
        parts: Open,
        subscriber: "Subscriber",
        request: int,
        told: Told,
        next: int,
        error: QueueError | None,
        *,
        is_resumed: bool,
    ) -> None:
        self._subscribing.discard(subscriber)
        if subscriber.state is not ClientState.CONNECTED or parts is not self._open:
            return  # the subscriber has left, or the log was closed
        try:
            if error is not None:
                raise error
            self._take_place(parts, subscriber)
            subscriber.confirmed = next - 1
            parts.follows.begin(subscriber, next, request, resumed=is_resumed)
        except QueueError as problem:
            told(problem)
            return
        parts.ticking.begin()
        told(None)

    def _take_place(self, parts: Open, subscriber: "Subscriber") -> None:
        """Disconnect other subscribers of the same durable name: the latest one keeps the name."""
        for other in list(parts.follows.subscribers.values()):
            if other is not subscriber and subscriber.name and other.name == subscriber.name:
                why = Replaced(f"{subscriber.name!r} follows over another connection now")
                parts.follows.dismiss(other, why)

    def recover(self, subscriber: "Subscriber", after: int, epoch: str, request: int) -> None:
        parts = self.opened()
        check_epoch(parts.feed.log, epoch, "what you know")
        parts.follows.recover(subscriber, after, request)

    def confirm(self, subscriber: "Subscriber", sequence: int, told: Callable[[int, QueueError | None], None]) -> None:
        """Advance the cursor of a durable subscriber; it never moves back.

        ``told`` is called with the position when it is on disk."""
        check(self.duty)
        parts = self.opened()
        if not subscriber.name or not subscriber.is_following:
            raise WrongState("only a durable subscriber confirms: subscribe with a name")
        if not 0 <= sequence <= parts.feed.log.last:
            raise BadInput(f"must be from 0 to {parts.feed.log.last}, not {sequence}", field="sequence")
        subscriber.confirmed = reached = max(subscriber.confirmed, sequence)
        parts.ledger.put(self._cursor(parts, subscriber, reached), lambda error: told(reached, error))

    def _cursor(self, parts: Open, subscriber: "Subscriber", sequence: int) -> Cursor:
        return Cursor(subscriber.name, parts.feed.log.epoch, sequence, subscriber.filter.text, self._loop.now_ns())

    def unsubscribe(self, subscriber: "Subscriber", over: "Over") -> bool:
        """End a subscription. ``over`` is called when the last record is sent. Return False if there is none."""
        if not subscriber.is_following or self._open is None:
            return False
        self._open.follows.unsubscribe(subscriber, over)
        return True

    def leave(self, subscriber: "Subscriber") -> None:
        """Remove a subscriber whose connection is lost."""
        self._subscribing.discard(subscriber)
        if self._open is not None:
            self._open.follows.leave(subscriber)
        elif subscriber.state is not ClientState.OFFLINE:
            subscriber.move(ClientVerb.LEAVE)
