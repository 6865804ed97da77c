"""A feed without threads and sockets: a loop that turns when told, workers that take a turn when told, and connections
that are pipes of a few bytes. Everything else is real: the log, the feed, the runs."""

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.clock import START_NS
from tests.support.loops import InlineExecutor
from yirangmq.core.errors import QueueError
from yirangmq.core.topic_filter import ALL, Filter
from yirangmq.core.topics import NewRecord, Record, Start
from yirangmq.fsio.background import LoopExecutor
from yirangmq.fsio.disk import Disk
from yirangmq.protocols.feed import FeedDialect
from yirangmq.protocols.native.topics import NATIVE
from yirangmq.stores.cursors import open_cursors
from yirangmq.stores.log.log import LogSettings, SegmentLog
from yirangmq.topics.cursors import SubscriptionParameters
from yirangmq.topics.live import PublishResult
from yirangmq.topics.ports import CatchupPacing, DetachedCallback, Dialect, Loop, TopicSettings
from yirangmq.topics.publisher import LogOpeners, Publisher
from yirangmq.wire import messages, records
from yirangmq.wire.feed import (
    FeedDecoder,
    FeedMessage,
    FeedRecoveryComplete,
    FeedRecoveryResponse,
    FeedSubscribeOk,
    FeedTopicMessage,
)
from yirangmq.wire.frames import FrameKind, FrameReader

SMALL = LogSettings(segment_bytes=4096, durability="os", ahead=False)


class Turning:
    """``soon``, ``later`` and ``call`` of a loop that the test turns."""

    def __init__(self) -> None:
        self.now = 100.0
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def loop(self) -> Loop:
        return Loop(self._soon.append, self._later, self._soon.append, lambda: self.now, self.now_ns)

    def now_ns(self) -> int:
        return START_NS + round(self.now * 1_000_000_000)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append((self.now + seconds, call))

    def step(self) -> bool:
        """The next thing to do; False: there is none."""
        if self._soon:
            self._soon.popleft()()
            return True
        return False

    def run_once(self) -> None:
        while self.step():
            pass

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self._timers if timer[0] <= self.now]
        self._timers = [timer for timer in self._timers if timer[0] > self.now]
        for _, call in due:
            call()
        self.run_once()


class Pipe:
    """A connection: ``waiting`` bytes in the server, up to ``capacity`` in the system, the rest read by the client."""

    def __init__(self, capacity: int, most: int, lost: Callable[["Pipe"], None]) -> None:
        self.peer = "pipe"
        self.capacity = capacity
        self.most = most
        self.waiting = bytearray()
        self.inside = bytearray()
        self.heard = bytearray()
        self.is_open = True
        self.is_lent = False
        self.error: QueueError | None = None
        self.cuts: list[str] = []
        self.peak = 0
        self.read_bytes = 0
        self._owed: list[bytes] = []
        self._take: DetachedCallback | None = None
        self._wake: Callable[[], None] = lambda: None
        self._lost = lost

    # -- Line

    def send(self, data: bytes) -> None:
        if self.is_lent:
            self._owed.append(data)
        else:
            self.waiting += data
            self.peak = max(self.peak, len(self.waiting))
            self._flow()

    def has_capacity(self, size: int) -> bool:
        return self.is_open and not self.is_lent and len(self.waiting) + size <= self.most

    def detach(self, take: DetachedCallback, wake: Callable[[], None]) -> None:
        self._take, self._wake = take, wake
        self._flow()

    def deferred(self) -> bytes:
        deferred, self._owed = self._owed, []
        return b"".join(deferred)

    def attach(self) -> None:
        self.is_lent = False
        self.send(self.deferred())

    def fail(self, error: QueueError) -> None:
        self.error = error
        self.close()

    def cut(self, reason: str) -> None:
        self.cuts.append(reason)
        self.close()

    # -- Outlet

    def fileno(self) -> int:
        return -1

    def send_some(self, data: memoryview) -> int:
        if not self.is_open:
            raise BrokenPipeError
        room = self.capacity - len(self.inside)
        if room <= 0:
            raise BlockingIOError
        self.inside += data[:room]
        return min(room, len(data))

    # -- the client's end

    def read(self, count: int) -> None:
        self.heard += self.inside[:count]
        self.read_bytes += len(self.inside[:count])
        del self.inside[:count]
        self._flow()
        self._wake()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._take = None
            self._lost(self)

    def _flow(self) -> None:
        room = max(0, self.capacity - len(self.inside))
        self.inside += self.waiting[:room]
        del self.waiting[:room]
        if self._take is not None and not self.waiting and self.is_open:
            take, self._take = self._take, None
            self.is_lent = True
            take(PipeOutlet(self))


class PipeOutlet:
    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def fileno(self) -> int:
        return -1

    def send(self, data: memoryview) -> int:
        return self._pipe.send_some(data)

    def send_file(self, file: int, offset: int, count: int) -> int:
        return self._pipe.send_some(memoryview(os.pread(file, count, offset)))

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Answer:
    """One recovery as its subscriber sees it, with the requests that it answers: 0 for none, and for all of a protocol
    without request numbers. Or the subscription itself, without requests."""

    requests: list[int]
    start: int
    end: int
    sequences: list[int] = field(default_factory=list)
    is_complete: bool = False


class AnswerChecker:
    """Checker of a subscriber that asks once for each thing it wants, and trusts the answer.

    It drops what arrives between its request and the response that covers it, and believes that everything from there
    on is sent once and in order. Without request numbers it finds that response by the rule of ``docs/feed.md``: the
    first one after the request whose start is low enough. One that is not complete when the next one begins is
    replaced by it."""

    def __init__(self) -> None:
        self.found: list[Answer] = []
        self._asked: list[tuple[int, int | None, int]] = []

    def ask(self, request: int, after: int | None) -> None:
        """Note a request. ``after``: the sequence that it names; None: it asks for all that is kept."""
        self._asked.append((request, after, len(self.found)))

    @property
    def may_ask_for_all(self) -> bool:
        """True if every request without a number has its answer; ``docs/feed.md`` demands this before RECR 0."""
        answers = [self._trusted(after, place) for request, after, place in self._asked if request == 0]
        return None not in answers

    def refuse(self, request: int, after: int | None = None) -> None:
        """Note a refusal. ``after``: which of the requests with that number is refused."""
        self._asked = [one for one in self._asked if one[0] != request or after not in (None, one[1])]

    def begin(self, request: int | None, start: int, end: int) -> None:
        latest = self.found[-1] if self.found else None
        is_one = latest is not None and not latest.is_complete and not latest.sequences
        if latest is not None and is_one and latest.requests and request and (latest.start, latest.end) == (start, end):
            latest.requests.append(request)  # one recovery answers both
            return
        self.found.append(Answer([] if request is None else [request], start, end))

    def record(self, sequence: int) -> None:
        self.found[-1].sequences.append(sequence)

    def complete(self, request: int) -> None:
        assert request in self.found[-1].requests
        self.found[-1].is_complete = True

    def faults(self, wanted: Callable[[int, int], list[int]], last: int | None = None, *, first: int = 1) -> list[str]:
        """Return what is missing or too much.

        ``wanted(first, last)``: the sequences that the subscriber is to have of these. ``last``: the last sequence of
        the log if nothing more is on its way, so that every request is answered. ``first``: the first one that is
        kept."""
        faults = []
        for place, one in enumerate(self.found):
            reached = max([one.start - 1, *one.sequences])
            if one.is_complete:
                reached = max(reached, one.end)
            if one is self.found[-1] and last is not None:
                reached = last
            if one.sequences != wanted(self._first_sent(one, first), reached):
                faults.append(f"after RECS {one.start} came {one.sequences}, not {wanted(one.start, reached)}")
            if place and one.requests == [0] and not self._may_answer(place):
                before = self.found[place - 1]
                if wanted(max([before.start - 1, *before.sequences]) + 1, one.start - 1):
                    faults.append(f"the recovery from {one.start}, which was not asked for, skips records")
        for request, after, place in self._asked if last is not None else ():
            answers = [one for one in self.found[place:] if request in one.requests]
            answer = self._trusted(after, place) if request == 0 else answers[0] if answers else None
            if answer is None or not answer.is_complete or (request and len(answers) > 1):
                faults.append(f"the request {request} for what follows {after} is not answered once")
            elif wanted(first if after is None else max(first, after + 1), answer.start - 1):
                faults.append(f"the answer from {answer.start} does not cover what follows {after}")
        return faults

    def _trusted(self, after: int | None, place: int) -> Answer | None:
        """Return what a subscriber without request numbers takes for the answer."""
        if not self.found:
            return None
        bound = max(1, self.found[0].end) if after is None else after + 1
        for number, one in enumerate(self.found[place:], place):
            if one.requests and one.start <= bound:
                return next((later for later in self.found[number:] if later.is_complete), None)
        return None

    def _first_sent(self, one: Answer, first: int) -> int:
        """Return where the records of a recovery begin. One of all that is kept may be announced from a sequence of
        before the subscription of which nothing is kept any more."""
        is_before = 0 in one.requests and one.start <= max(1, self.found[0].end) and one.start < first
        return max(one.start, min([first, *one.sequences])) if is_before else one.start

    def _may_answer(self, place: int) -> bool:
        return any(request == 0 and asked_at <= place for request, _, asked_at in self._asked)


class Client:
    """Somebody at the other end of a pipe, who keeps count."""

    def __init__(self, stage: "PublisherHarness", capacity: int, dialect: Dialect = NATIVE) -> None:
        self._stage = stage
        self.pipe = Pipe(capacity, stage.settings.buffer_bytes, self._lost)
        self.subscriber = stage.publisher.connect(self.pipe, dialect)
        self.records: list[Record] = []
        self.said: list[tuple[FrameKind, Any]] = []
        self.since = 0
        """Records since the latest word that begins a count anew."""
        self.begun: list[int] = []
        """How many records had come before each RECOVERY_RESPONSE."""
        self.answers = AnswerChecker()
        self.error: QueueError | None = None
        self._frames = FrameReader()
        self._public_frames = FeedDecoder(1 << 24) if isinstance(dialect, FeedDialect) else None
        self._topics = dialect.topics if isinstance(dialect, FeedDialect) else ()

    def _lost(self, pipe: Pipe) -> None:
        self._stage.publisher.remove(self.subscriber)

    def follow(self, filter: Filter = ALL, start: Start = Start.BEGINNING, **more: Any) -> None:
        ask = SubscriptionParameters(filter, start=start, progress_seconds=0.0)._replace(**more)
        self._stage.publisher.subscribe(self.subscriber, ask, 1, self._told)

    def _told(self, error: QueueError | None) -> None:
        self.error = error

    def read(self, count: int) -> None:
        self.pipe.read(count)
        data, self.pipe.heard = bytes(self.pipe.heard), bytearray()
        if self._public_frames is not None:
            for message in self._public_frames.feed(data):
                self._hear_public(message)
            return
        for kind, request, body in self._frames.feed(data):
            if kind == records.KIND:
                self._take(records.read_body(body))
            else:
                self._hear(FrameKind(kind), messages.read(kind, body), request)

    def _take(self, record: Record) -> None:
        self.records.append(record)
        self.answers.record(record.sequence)
        self.since += 1

    def _hear_public(self, message: FeedMessage) -> None:
        if isinstance(message, FeedTopicMessage):
            bit, sequence, topic_sequence, at_ns, payload = message
            topic = self._topics[bit.bit_length() - 1]
            self._take(Record(sequence, topic_sequence, at_ns, topic, None, {}, payload))
        elif isinstance(message, FeedSubscribeOk):
            self.answers.begin(None, message.current_seq + 1, message.current_seq)
        elif isinstance(message, FeedRecoveryResponse) and message.result == 0:
            self.since = 0
            self.answers.begin(0, message.start_seq, message.end_seq)
        elif isinstance(message, FeedRecoveryResponse):
            self.answers.refuse(0, message.start_seq - 1)
        elif isinstance(message, FeedRecoveryComplete):
            assert message.total_sent == self.since
            self.answers.complete(0)

    def _hear(self, kind: FrameKind, value: Any, request: int) -> None:
        if kind in (FrameKind.TOPIC_SUBSCRIBED, FrameKind.RECOVERY_RESPONSE):
            self.since = 0
        if kind is FrameKind.TOPIC_SUBSCRIBED:
            self.answers.begin(None, value.next, value.next - 1)
        if kind is FrameKind.RECOVERY_RESPONSE:
            self.begun.append(len(self.records))
            self.answers.begin(request, value.start, value.end)
        if kind is FrameKind.RECOVERY_COMPLETE:
            self.answers.complete(request)
        if kind is FrameKind.ERROR:
            self.answers.refuse(request)
        if kind in (FrameKind.RECOVERY_COMPLETE, FrameKind.PROGRESS):
            assert value.sent == self.since, (kind, value, self.since)
        self.said.append((kind, value))

    @property
    def sequences(self) -> list[int]:
        return [record.sequence for record in self.records]


class PublisherHarness:
    def __init__(
        self,
        folder: Path,
        settings: TopicSettings,
        log: LogSettings = SMALL,
        disk: Disk | None = None,
        on_loss: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings
        self.turning = Turning()
        self.trace: list[tuple[int, str]] = []
        self.states: list[str] = []
        loop = self.turning.loop()
        self.publisher = Publisher(
            LogOpeners(
                lambda known: SegmentLog(folder, log, now_ns=self.turning.now_ns, disk=disk, known=known),
                lambda: open_cursors(f"file:{folder}/cursors"),
                folder.exists,
            ),
            loop,
            settings,
            LoopExecutor(loop.call, InlineExecutor),
        )
        self.publisher.state_listeners.append(lambda before, after, why: self.states.append(str(after)))
        self.publisher.move_listeners.append(lambda one, before, after: self.trace.append((one.number, str(after))))
        if on_loss is not None:
            self.publisher.loss_listeners.append(on_loss)
        self.publisher.start()
        self.publisher.mark_listening()
        self.publisher.mark_online()
        self.stored: list[PublishResult | None] = []
        self.errors: list[QueueError] = []

    def client(self, capacity: int = 1 << 20, dialect: Dialect = NATIVE) -> Client:
        return Client(self, capacity, dialect)

    def publish(self, *new: NewRecord) -> None:
        """Asked for; done when the loop turns."""
        self.publisher.publish(new, self._published)

    def fill(self, count: int, size: int = 50, topic: str = "a") -> None:
        """So many commits of one record each."""
        for _ in range(count):
            self.publish(NewRecord(topic, b"x" * size))
            self.turning.run_once()

    def _published(self, stored: PublishResult | None, error: QueueError | None) -> None:
        self.stored.append(stored)
        if error is not None:
            self.errors.append(error)

    def work(self, worker: int = 0) -> None:
        """One turn of one worker."""
        workers = self.publisher.ensure_open().lifecycle.workers
        if workers:
            workers[worker % len(workers)].run_once(0)

    def settle(self, *clients: Client) -> None:
        """Until nothing is left to do, with clients that read everything."""
        for _ in range(10_000):
            before = self._figures(clients)
            self.turning.run_once()
            for number in range(self.settings.workers):
                self.work(number)
            for client in clients:
                client.read(1 << 20)
            if before == self._figures(clients):
                return
        raise AssertionError("it never ends")

    def _figures(self, clients: tuple[Client, ...]) -> list[Any]:
        return [len(self.stored), *((client.subscriber.state, client.pipe.read_bytes) for client in clients)]

    def close(self) -> None:
        self.turning.run_once()
        self.publisher.close()


def small(**more: Any) -> TopicSettings:
    """Buffers of a few records, workers that send a few bytes a turn."""
    return TopicSettings(
        buffer_bytes=1500,
        commit_bytes=1000,
        pacing=CatchupPacing(budget=700, threaded=False, live_rate_limit=0),
        **more,
    )


MakePublisherHarness = Callable[..., PublisherHarness]
