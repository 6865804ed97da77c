"""Publish path: group commit of records, fan-out to online subscribers, subscribers, and the tail buffer.

All publishes of one loop iteration are one append with one fsync, up to ``commit_bytes``. Then every publisher gets its
reply, and after that the stored frames go to every online subscriber. Each commit is filtered and encoded once per
filter and dialect.

A subscriber has a filter, a connection and a cursor into the log, never a copy of the records that wait for it. The
tail buffer keeps the latest commits while a catch-up runs, so that the loop can take over from a worker without reading
the log.

Loop thread only. No other thread appends, so a position read here is consistent with publishing. ``topics.subscribers``
decides which subscribers are online."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from yirangmq.core.errors import BadInput, QueueError, StoreError, Unavailable, WrongState
from yirangmq.core.topic_filter import Filter
from yirangmq.core.topics import AppendResult, Log, NewRecord, SubscriberState, SubscriberVerb, subscriber_after
from yirangmq.topics.catchup import CatchupRateLimiter
from yirangmq.topics.cursors import SentMarks
from yirangmq.topics.ports import MAX_PER_PUBLISH, Dialect, EncodedRecords, Loop, SubscriberConnection, TopicSettings
from yirangmq.wire.records import read_head

if TYPE_CHECKING:
    from yirangmq.topics.catchup import Catchup


# -- subscribers -------------------------------------------------------------------------------------------------------

MoveListener = Callable[["Subscriber", SubscriberState, SubscriberState], None]
FROM_FIRST = -1
"""Start of a recovery at the first record that is kept when the recovery begins."""


@dataclass(eq=False, slots=True)
class Subscriber:
    """Subscriber: filter, connection, state, and cursor into the log. ``number`` is never reused.

    ``on_moved`` is called after each change of ``state``. Loop thread only."""

    number: int
    connection: SubscriberConnection
    dialect: Dialect
    on_moved: MoveListener
    name: str = ""
    filter: Filter = field(default_factory=Filter)
    state: SubscriberState = SubscriberState.CONNECTED
    initial_last: int = 0
    """Last sequence of the log when it subscribed."""
    cursor: int = 0
    """All matching records up to this sequence are sent."""
    sent: int = 0
    """Records sent since it subscribed, or since its latest catch-up started."""
    total: int = 0
    """Records sent since it connected."""
    confirmed: int = 0
    recoveries: int = 0
    run: "Catchup | None" = None
    waiting_requests: dict[int, int] = field(default_factory=dict)
    """Recovery requests that wait for the end of a running recovery: request number → the sequence after which it asks,
    or ``FROM_FIRST``."""
    backlog: "Backlog | None" = None
    """Records that it has not been sent yet, while it is behind with a filter."""
    sent_marks: SentMarks | None = None
    """Records that it was sent, for the lag of a durable subscriber with a filter."""
    progress_sent_at: float = 0.0
    """Time of the latest progress message, in monotonic seconds."""
    progress_seconds: float = 1.0
    """Requested interval of progress messages, in seconds; 0 is none."""
    is_detaching: bool = False
    """True from the request to detach its connection until a worker holds it. ``detach_requested_at``: time of the
    request."""
    detach_requested_at: float = 0.0

    def move(self, verb: SubscriberVerb) -> SubscriberState:
        after = subscriber_after(self.state, verb)
        if after is None:
            raise WrongState(f"{verb} does not apply to a subscriber that is {self.state}")
        before, self.state = self.state, after
        if after is not before:
            self.on_moved(self, before, after)
        return after

    @property
    def is_following(self) -> bool:
        return self.state not in (SubscriberState.CONNECTED, SubscriberState.OFFLINE)

    @property
    def reached(self) -> int:
        """Return the sequence up to which all matching records are sent, also during a catch-up."""
        return self.cursor if self.run is None else self.run.cursor

    @property
    def total_sent(self) -> int:
        """Return the records sent since it connected, also during a catch-up."""
        return self.total if self.run is None else self.total + self.run.sent

    def mark_sent(self) -> None:
        if self.sent_marks is not None:
            self.sent_marks.add(self.reached, self.total_sent)

    def count(self, records: int) -> None:
        self.sent += records
        self.total += records


# -- filtering and the tail buffer -------------------------------------------------------------------------------------

MAX_CACHED_TOPICS = 10_000
"""Upper bound of topics whose match is cached per filter. The cache is cleared above it."""


class LiveCommit(NamedTuple):
    """Commit to fan out: its frames, and the topic of each record."""

    appended: AppendResult
    topics: Sequence[str]


class FanOutEncoder:
    """Filter of the fan-out, with two caches.

    Each filter is evaluated once per topic. Each commit is filtered and encoded once per filter and dialect."""

    def __init__(self) -> None:
        self._known: dict[Filter, dict[str, bool]] = {}
        self._made: dict[tuple[Dialect, Filter], EncodedRecords] = {}
        self._live: LiveCommit | None = None

    def encode(self, live: LiveCommit, filter: Filter, dialect: Dialect) -> EncodedRecords:
        """Return the matching records of a commit, encoded. All subscribers with this filter share the bytes."""
        if self._live is not live:
            self._live = live
            self._made.clear()
        batch = self._made.get((dialect, filter))
        if batch is None:
            batch = self._pick(live, filter)
            if not dialect.sends_stored and batch.records:
                batch = EncodedRecords(dialect.records(batch), batch.records)
            self._made[dialect, filter] = batch
        return batch

    def forget(self, filter: Filter) -> None:
        """Drop the cache of a filter that no subscriber uses any more."""
        self._known.pop(filter, None)

    def matches(self, live: LiveCommit, filter: Filter) -> int:
        """Return the number of matching records of a commit, without encoding them."""
        return len(self._wanted(filter, live.topics))

    def release_commit(self) -> None:
        """Release the memory of the latest commit."""
        self._live = None
        self._made.clear()

    def _pick(self, live: LiveCommit, filter: Filter) -> EncodedRecords:
        (_, _, _, data, offsets), topics = live
        if filter.is_all:
            return EncodedRecords(data, len(offsets))
        wanted = self._wanted(filter, topics)
        if len(wanted) == len(offsets):
            return EncodedRecords(data, len(offsets))
        ends = [*offsets[1:], len(data)]
        view = memoryview(data)
        return EncodedRecords(b"".join([view[offsets[n] : ends[n]] for n in wanted]), len(wanted))

    def _wanted(self, filter: Filter, topics: Sequence[str]) -> list[int]:
        known = self._known.setdefault(filter, {})
        if len(known) > MAX_CACHED_TOPICS:
            known.clear()
        for topic in set(topics) - known.keys():
            known[topic] = filter.wants(topic)
        return [n for n, topic in enumerate(topics) if known[topic]]


@dataclass(slots=True)
class MatchCounter:
    """Number of published records that match a filter, counted while ``users`` subscribers with it are behind."""

    matched: int = 0
    users: int = 0


@dataclass(slots=True)
class Backlog:
    """Backlog of a subscriber with a filter: matching records from its position up to a sequence, and those since.

    ``owed``: records up to that sequence; None until the recovery has counted them. ``since``: what ``counter`` had
    counted at that sequence."""

    counter: MatchCounter
    since: int
    owed: int | None

    def count(self, run: "Catchup | None") -> int:
        """Return the records that are not sent yet. What is not counted yet is left out."""
        owed = self.owed if self.owed is not None or run is None else run.announced
        return max(0, (owed or 0) + self.counter.matched - self.since - (0 if run is None else run.sent))


class TailBuffer:
    """Tail buffer: the latest commits, up to ``most_bytes``. It is empty while no catch-up runs."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: deque[LiveCommit] = deque()
        self._size = 0
        self._users = 0
        self.first = 0
        """First sequence in the buffer; 0 if it is empty. Worker threads read it too."""

    def resize(self, most_bytes: int) -> None:
        self._most = most_bytes

    def hold(self) -> None:
        """Add a user: a catch-up starts."""
        self._users += 1

    def release(self) -> None:
        """Remove a user. The last one clears the buffer."""
        self._users -= 1
        if not self._users:
            self._kept.clear()
            self._size = self.first = 0

    def add(self, live: LiveCommit) -> None:
        if not self._users:
            return
        self._kept.append(live)
        self._size += len(live.appended.data)
        while self._size > self._most and self._kept:
            self._size -= len(self._kept.popleft().appended.data)
        self.first = self._kept[0].appended.first if self._kept else 0

    def since(self, sequence: int) -> list[LiveCommit] | None:
        """Return all commits after this sequence.

        Return None if the buffer no longer holds all of them, or if the sequence is inside a commit."""
        found = [live for live in self._kept if live.appended.last > sequence]
        return found if found and found[0].appended.first == sequence + 1 else None


# -- publishing and fan-out --------------------------------------------------------------------------------------------

CommitListener = Callable[[LiveCommit], None]
_topic, _payload = (itemgetter(NewRecord._fields.index(name)) for name in ("topic", "payload"))


class PublishResult(NamedTuple):
    """Result of a publish that is on disk. ``topics``: sequence of its last record in each of its topics."""

    epoch: str
    first: int
    last: int
    at_ns: int
    topics: dict[str, int]


Done = Callable[[PublishResult | None, QueueError | None], None]


class PendingPublish(NamedTuple):
    """Publish that waits for the next commit. ``size``: bytes of its payloads."""

    records: Sequence[NewRecord]
    size: int
    done: Done


class TopicFeed:
    """Publish path of the topic log: group commit of records, and fan-out to online subscribers. Loop thread only.

    ``on_lagging`` is called with a subscriber whose send buffer is full, and with the number of records of the commit
    that did not fit. ``on_append_result`` is called after each append: with the error if the log refused it, or with
    None."""

    def __init__(self, log: Log, loop: Loop, settings: TopicSettings) -> None:
        self.log = log
        self.loop = loop
        self.settings = settings
        self.tail = TailBuffer(settings.buffer_bytes)
        self.after_commit: list[Callable[[], None]] = []
        self.listeners: list[CommitListener] = []
        self.commit_duration_listeners: list[Callable[[float], None]] = []
        self.on_lagging: Callable[[Subscriber, int], None] = lambda subscriber, records: None
        self.on_append_result: Callable[[StoreError | None], None] = _ignore
        self.published = 0
        self.published_bytes = 0
        self.commits = 0
        self.rate_limiter = CatchupRateLimiter(settings.pacing.live_rate_limit, loop.seconds)
        self._encoder = FanOutEncoder()
        self._online: dict[tuple[Dialect, Filter], dict[Subscriber, None]] = {}
        self._counters: dict[Filter, MatchCounter] = {}
        """Counters of the filters of subscribers that are behind."""
        self._waiting: deque[PendingPublish] = deque()
        self._is_scheduled = False
        self._is_stopped = False

    # -- publishing -----------------------------------------------------------------------------------------------

    def publish(self, records: Sequence[NewRecord], done: Done) -> None:
        """Add records to the next commit. ``done(stored, error)`` is called when it is on disk, or refused."""
        if not 0 < len(records) <= MAX_PER_PUBLISH:
            raise BadInput(f"from 1 to {MAX_PER_PUBLISH} at once, not {len(records)}", field="records")
        if self._is_stopped:
            raise Unavailable("the server is stopping")
        self._waiting.append(PendingPublish(records, sum(map(len, map(_payload, records))), done))
        self._schedule()

    @property
    def is_idle(self) -> bool:
        """True if every publish is answered."""
        return not self._waiting and not self._is_scheduled

    def stop(self) -> None:
        self._is_stopped = True

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.soon(self._run_commit)

    def _run_commit(self) -> None:
        self._is_scheduled = False
        if self._waiting:
            self._commit(self._take_batch())
        for action in self.after_commit:
            action()
        if self._waiting:
            self._schedule()

    def _take_batch(self) -> list[PendingPublish]:
        """Remove and return the publishes of one commit: at least one, and up to ``commit_bytes``."""
        taken = [self._waiting.popleft()]
        size = taken[0].size
        while self._waiting and size + self._waiting[0].size <= self.settings.commit_bytes:
            taken.append(self._waiting.popleft())
            size += taken[-1].size
        return taken

    def _commit(self, publishes: list[PendingPublish]) -> None:
        records = publishes[0].records
        if len(publishes) > 1:
            records = [record for publish in publishes for record in publish.records]
        begun = self.loop.seconds()
        try:
            appended = self.log.append(records)
        except BadInput as error:
            if len(publishes) == 1:
                self._answer(publishes[0].done, None, error)
            for publish in publishes if len(publishes) > 1 else ():
                self._commit([publish])  # so that only the invalid publish fails
        except QueueError as error:
            for publish in publishes:
                self._answer(publish.done, None, error)
            if isinstance(error, StoreError):
                self.on_append_result(error)
        else:
            for listener in self.commit_duration_listeners:
                listener(self.loop.seconds() - begun)
            self._confirm(publishes, appended)
            if self._online:
                self.rate_limiter.live()
            self._fan_out(LiveCommit(appended, [*map(_topic, records)]))
            self.on_append_result(None)

    def _confirm(self, publishes: list[PendingPublish], appended: AppendResult) -> None:
        self.commits += 1
        self.published += len(appended.offsets)
        self.published_bytes += len(appended.data)
        at = 0
        for publish in publishes:
            self._answer(publish.done, self._stored(publish, appended, at), None)
            at += len(publish.records)

    def _stored(self, publish: PendingPublish, appended: AppendResult, at: int) -> PublishResult:
        latest = dict(zip(map(_topic, publish.records), count(at)))
        topics: dict[str, int] = {}
        for topic, place in latest.items():
            head = read_head(appended.data, appended.offsets[place])
            topics[topic] = 0 if head is None else head.topic_sequence
        first = appended.first + at
        return PublishResult(self.log.epoch, first, first + len(publish.records) - 1, appended.at_ns, topics)

    def _answer(self, done: Done, stored: PublishResult | None, error: QueueError | None) -> None:
        """Call ``done``. Its exception is raised in the event loop later, so that the other publishes are answered."""
        try:
            done(stored, error)
        except Exception as fault:
            self.loop.soon(partial(_throw, fault))

    # -- live -----------------------------------------------------------------------------------------------------

    def join(self, subscriber: Subscriber) -> None:
        """Add an online subscriber. It must have everything up to the end of the log."""
        self._online.setdefault((subscriber.dialect, subscriber.filter), {})[subscriber] = None

    def remove(self, subscriber: Subscriber) -> None:
        key = subscriber.dialect, subscriber.filter
        group = self._online.get(key, {})
        group.pop(subscriber, None)
        if not group and key in self._online:
            del self._online[key]
            self._forget_unused(subscriber.filter)

    def _forget_unused(self, filter: Filter) -> None:
        if filter not in self._counters and not any(filter == other for _, other in self._online):
            self._encoder.forget(filter)

    def watch(self, filter: Filter) -> MatchCounter:
        """Start counting the published records that match a filter. Call ``unwatch`` once for each call."""
        counter = self._counters.setdefault(filter, MatchCounter())
        counter.users += 1
        return counter

    def unwatch(self, filter: Filter) -> None:
        counter = self._counters[filter]
        counter.users -= 1
        if not counter.users:
            del self._counters[filter]
            self._forget_unused(filter)

    @property
    def online(self) -> list[Subscriber]:
        return [subscriber for group in self._online.values() for subscriber in group]

    def _fan_out(self, live: LiveCommit) -> None:
        self.tail.add(live)
        for filter, counter in self._counters.items():
            counter.matched += self._encoder.matches(live, filter)
        for (dialect, filter), group in list(self._online.items()):
            try:
                batch = self._encoder.encode(live, filter, dialect)
            except QueueError as error:  # this dialect cannot encode a record
                for subscriber in list(group):
                    subscriber.connection.fail(error)
                continue
            size = len(batch.data)
            for subscriber in list(group):
                if size and not subscriber.connection.has_capacity(size):
                    self.on_lagging(subscriber, batch.records)
                    continue
                if size:
                    subscriber.connection.send(batch.data)
                    subscriber.count(batch.records)
                subscriber.cursor = live.appended.last
        self._encoder.release_commit()
        for listener in self.listeners:
            listener(live)

    # -- taking over from a worker ----------------------------------------------------------------------------------

    def can_take_over(self, sequence: int) -> bool:
        """True if the loop can take over after this sequence without reading the log. Called by worker threads."""
        last = self.log.last
        first = self.tail.first
        return sequence >= last or 0 < first <= sequence + 1

    def missing(self, sequence: int) -> list[LiveCommit] | None:
        """Return the commits after this sequence, or None if they must be read from the log."""
        return [] if sequence >= self.log.last else self.tail.since(sequence)

    def take_over(self, subscriber: Subscriber, missing: list[LiveCommit]) -> None:
        """Send the missing commits to a subscriber, and add it to the online ones."""
        for live in missing:
            batch = self._encoder.encode(live, subscriber.filter, subscriber.dialect)
            if batch.data:
                subscriber.connection.send(batch.data)
                subscriber.count(batch.records)
            subscriber.cursor = live.appended.last
        self._encoder.release_commit()
        self.join(subscriber)


def _throw(error: Exception) -> NoReturn:
    raise error


def _ignore(value: object) -> None:
    """Do nothing: the callback until another one is set."""
