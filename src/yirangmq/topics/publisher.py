"""Publisher: opens the topic log when it is first needed, and is the entry of all protocols to topics.

It owns the parts of topic delivery and its own state (``core.topics.PUBLISHER``), which no other module changes. A log
that was used before is opened at startup. A log that cannot be opened or written leaves queues as they are: the state
is ERROR, and the publisher tries again every 2 s. Loop thread only."""

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
"""A log that could not be opened is not tried again before: everybody who asks would wait for it."""
RETRY_SECONDS = 2.0
"""Between attempts to open a log that could not be opened, where nobody asks for it."""
Told = Callable[[QueueError | None], None]
StateHeard = Callable[[PublisherState | None, PublisherState, str], None]


class Opening(NamedTuple):
    """Where the log and the cursors come from. ``is_there``: the log has been used before."""

    log: Callable[[], Log]
    cursors: Callable[[], Cursors]
    is_there: Callable[[], bool]


class Open(NamedTuple):
    """The parts of a feed that is open."""

    feed: "Feed"
    follows: "Follows"
    ledger: "Ledger"
    ticking: "Ticking"


class Publisher:
    def __init__(self, opening: Opening, loop: Loop, settings: Settings, aside: Aside | None = None) -> None:
        self._opening = opening
        self._loop = loop
        self.settings = settings
        self.state: PublisherState | None = None
        self.reason = ""
        """Why it is in ERROR."""
        self.aside = aside or Aside(loop.call)
        self.after_turn: list[Callable[[], None]] = []
        self.hearers: list[Hear] = []
        """Called after each commit, on the loop's thread: be brief."""
        self.took: list[Callable[[float], None]] = []
        """Told how many seconds each commit took."""
        self.state_heard: list[StateHeard] = []
        self.moved_heard: list[Moved] = []
        self.lag_heard: list[LagHeard] = []
        """Told of a subscriber that is too far behind, once, and by how much."""
        self.holds: list[Hold] = []
        """Who else needs records to be kept, besides durable subscribers."""
        self._numbers = count(1)
        self._open: Open | None = None
        self._refusal: QueueError | None = None
        self._again_at = 0.0
        self._is_stopped = False
        self._will_retry = False
        self._subscribing: set[Subscriber] = set()
        self.duty: Duty = Always()
        """Whether records are taken in and sent out now."""

    # -- its own life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Opens the log if it has been used before; a log that cannot be opened keeps nobody from the queues."""
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
        """The parts; opens the log if nobody has. Raises what keeps it from that."""
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
        """A log that was used before is opened by itself when the disk works again: health must not wait for somebody
        to publish."""
        if not self._will_retry:
            self._will_retry = True
            self._loop.later(RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        self._will_retry = False
        if not self._is_stopped and self._open is None and self.state is PublisherState.ERROR:
            with suppress(QueueError):  # told already, and planned again
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
        """What was wrong is right again."""
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
        """The log takes no more until it is opened again; whoever follows it comes again."""
        self._shut(Unavailable(f"the feed is opened anew: {self.reason}"))
        self._plan_retry()

    def _shut(self, why: QueueError) -> None:
        parts, self._open = self._open, None
        if parts is None:
            return
        with ExitStack() as rest:  # whatever fails, the log is closed: its lock would keep it from being opened again
            rest.callback(parts.feed.log.close)
            rest.callback(parts.ledger.close)
            rest.callback(parts.follows.close)
            parts.ticking.stop()
            for subscriber in list(parts.follows.subscribers.values()):
                parts.follows.dismiss(subscriber, why)

    def tune(self, settings: Settings) -> None:
        """Other numbers from now on, until it is stopped."""
        self.settings = settings
        if self._open is not None:
            self._open.feed.settings = settings
            self._open.feed.tail.resize(settings.buffer_bytes)
            self._open.follows.resize(settings.workers)

    def dismiss(self, why: QueueError) -> None:
        """Everybody who follows is told why, and closed; the log stays as it is."""
        if self._open is not None:
            for subscriber in list(self._open.follows.subscribers.values()):
                self._open.follows.dismiss(subscriber, why)

    def stop(self) -> None:
        """Takes nothing more; answers what was asked."""
        if self._open is not None:
            self._open.ticking.stop()
            self._open.feed.stop()
            self._open.follows.stop()

    @property
    def is_idle(self) -> bool:
        parts = self._open
        return parts is None or (parts.feed.is_idle and parts.follows.is_idle)

    def close(self) -> None:
        """Everything it opened; after this it cannot be opened again."""
        self._is_stopped = True
        self.aside.stop()
        self._shut(Unavailable("the server is stopping"))

    # -- publishing -----------------------------------------------------------------------------------------------

    def publish(self, records: Sequence[NewRecord], done: "Done") -> None:
        """``done(stored, error)`` when they are on disk, or refused."""
        check(self.duty)
        self.opened().feed.publish(records, done)

    # -- following --------------------------------------------------------------------------------------------------

    def connect(self, line: "Line", dialect: "Dialect") -> "Subscriber":
        """One who may subscribe; ``leave`` when its connection is gone."""
        from yirangmq.topics.live import Subscriber

        return Subscriber(next(self._numbers), line, dialect, self._moved)

    def _moved(self, subscriber: "Subscriber", before: ClientState, after: ClientState) -> None:
        for heard in self.moved_heard:
            heard(subscriber, before, after)

    def subscribe(self, subscriber: "Subscriber", ask: Ask, request: int, told: Told) -> None:
        """``told(None)`` when it follows, after it was told so itself; ``told(error)``: it does not."""
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
        """Where it begins is known: a durable one is written down before it is told so."""
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
            return  # it is gone, or the feed is
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
        """A name is in one place: the latest."""
        for other in list(parts.follows.subscribers.values()):
            if other is not subscriber and subscriber.name and other.name == subscriber.name:
                why = Replaced(f"{subscriber.name!r} follows over another connection now")
                parts.follows.dismiss(other, why)

    def recover(self, subscriber: "Subscriber", after: int, epoch: str, request: int) -> None:
        parts = self.opened()
        check_epoch(parts.feed.log, epoch, "what you know")
        parts.follows.recover(subscriber, after, request)

    def confirm(self, subscriber: "Subscriber", sequence: int, told: Callable[[int, QueueError | None], None]) -> None:
        """The cursor moves, never back; ``told`` with where it is once that is on disk."""
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
        """``over`` when the last record is sent; False: it follows nothing."""
        if not subscriber.is_following or self._open is None:
            return False
        self._open.follows.unsubscribe(subscriber, over)
        return True

    def leave(self, subscriber: "Subscriber") -> None:
        """Its connection is gone."""
        self._subscribing.discard(subscriber)
        if self._open is not None:
            self._open.follows.leave(subscriber)
        elif subscriber.state is not ClientState.OFFLINE:
            subscriber.move(ClientVerb.LEAVE)
