"""Server-Sent Events: streams of queue events and of topic records, with resume.

The id of an event is the epoch and a number, and ``Last-Event-ID`` resumes after it. That number is the only state
that the server keeps for a reader. Events within ``PAUSE_SECONDS`` are sent together. A reader whose filter matches few
events gets an id from time to time, so that it can resume from there.

- Queue events come from the event buffer in memory. A reader that is slow or late gets the events that are still
  buffered, and a ``gap`` event with the number of lost events.
- Topic records come from the log, however long the reader was disconnected. Pages are read in the background thread
  when the reader can receive them. If retention has deleted the next record, the stream ends with an ``error``
  event."""

from collections.abc import Callable, Collection
from contextlib import closing
from functools import partial
from typing import Any

from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.core.errors import BadInput, QueueError, Retired
from yirangmq.core.topic_filter import Filter, make_filter
from yirangmq.core.topics import MAX_SEQUENCE, Log, Record
from yirangmq.format.json_codec import dumps
from yirangmq.observe.events import MAX_EVENTS, NAMES, EventStream
from yirangmq.protocols.http.types import BodyWriter, Response
from yirangmq.protocols.http.v1.endpoint import Endpoint, EndpointCall, Field, text
from yirangmq.protocols.http.v1.log import check_start, log_of, topics_of
from yirangmq.protocols.http.v1.rendering import on_one_line, shown_record
from yirangmq.protocols.http.v1.topics import FROM_SEQUENCE, FROM_TIME, TOPICS, start_of
from yirangmq.topics.adapters import FOLLOW_SPAN, PageLimits, RecordPage, page_after
from yirangmq.topics.cursors import check_epoch
from yirangmq.topics.live import LiveCommit
from yirangmq.topics.publisher import Publisher

# -- events of queues --------------------------------------------------------------------------------------------------

STREAM = "text/event-stream"
HEADERS = (("content-type", STREAM), ("cache-control", "no-store"), ("x-accel-buffering", "no"))
PAUSE_SECONDS = 0.05
"""Minimum time between two writes to one reader, in seconds. Events of that time are sent together, which bounds the
cost of streams on a busy server."""
RETRY_MS = 2_000
"""Delay after which a browser reconnects, in ms."""
ID_EVERY_EVENTS = MAX_EVENTS // 4
"""Skipped events after which a reader gets an id, so that it can resume from there."""


class QueueEventStreams:
    """Endpoints of queue events, and their open streams. Loop thread only.

    ``epoch`` distinguishes the event numbers of this server run from those of earlier runs."""

    def __init__(self, feed: EventStream, epoch: str) -> None:
        self._feed = feed
        self._epoch = epoch
        self._streams: set[QueueEventStream] = set()

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def follow(self, call: EndpointCall) -> None:
        query = call.query()
        kinds = _kinds(query.get("kind"))
        given = call.request.headers.get("last-event-id") or query.get("after")
        last = self._feed.follow()
        seen = self._number(given) if given else last
        stream = QueueEventStream(
            self._feed, call.context.committer, self._epoch, call.path.get("queue"), kinds, self._streams
        )
        stream.seen = seen
        if not call.may_see_all():
            stream.may_see = call.may_see()
        call.exchange.answer(Response(200, b"", HEADERS, stream))

    def _number(self, given: str) -> int | None:
        """Return the event number of an id, or None if the id is of another epoch or invalid.

        After None, the number of missed events is unknown."""
        epoch, _, number = given.partition("-")
        if epoch != self._epoch or not (number.isascii() and number.isdigit() and len(number) < 20):
            return None
        return int(number) if int(number) <= self._feed.last else None

    def stop(self) -> None:
        """End all streams with ``end_with_bye``: the server stops, and readers reconnect to the next one."""
        for one in list(self._streams):
            one.end_with_bye()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/events", "Stream events of all queues", self.follow, "events", "look",
                     ANSWER, query=QUERY, headers=(RESUME,), media=STREAM, is_filtered=True),
            Endpoint("GET", "/v1/queues/{queue}/events", "Stream events of a queue", self.follow, "events", "look",
                     ANSWER, query=QUERY, headers=(RESUME,), media=STREAM),
        )  # fmt: skip


class QueueEventStream:
    """Stream of queue events to one reader (``protocols.http.types.Stream``).

    ``seen`` is the number of the last event that the reader has or does not need; None if it is unknown."""

    def __init__(
        self,
        feed: EventStream,
        committer: GroupCommitter,
        epoch: str,
        queue: str | None,
        kinds: Collection[str],
        streams: set["QueueEventStream"],
    ) -> None:
        self._feed = feed
        self._committer = committer
        self._epoch = epoch
        self._queue = queue
        self._kinds = kinds
        self._streams = streams
        self._writer: BodyWriter | None = None
        self._timer: Any = None
        self._is_write_paused = False
        self._sent_number = 0
        """Number of the latest id that was sent."""
        self.seen: int | None = 0
        self.may_see: Callable[[str], bool] | None = None
        """Predicate of the queues that the reader may see; None: all queues, and events without a queue."""

    # -- protocols.http.types.Stream -----------------------------------------------------------------------------------

    def start(self, writer: BodyWriter) -> None:
        self._writer = writer
        self._streams.add(self)
        pieces = [b"retry: %d\n\n" % RETRY_MS]
        if self.seen is None:
            self.seen = self._feed.last
            pieces.append(self._gap(None))
        pieces.append(self._piece(self.seen, {"last": self._feed.last}, "hello"))
        self._write(pieces)

    def drained(self) -> None:
        self._is_write_paused = False
        if self._timer is None:
            self._send_new()

    def disconnected(self) -> None:
        self._writer = None
        self._streams.discard(self)
        self._feed.cancel_wait(self._wake)
        if self._timer is not None:
            self._timer.cancel()

    # -- delivery ------------------------------------------------------------------------------------------------------

    def end_with_bye(self) -> None:
        writer = self._writer
        self.disconnected()
        if writer is not None:
            writer.write(self._piece(None, {}, "bye"))
            writer.end()

    def _wake(self) -> None:
        if self._timer is None and not self._is_write_paused:
            self._send_new()

    def _send_new(self) -> None:
        """Send all new events in one write, pause ``PAUSE_SECONDS``, and repeat until there are none."""
        if self._writer is None or self.seen is None:
            return
        missed, steps = self._feed.steps(self.seen)
        self.seen = self._feed.last
        pieces = [self._gap(missed)] if missed else []
        pieces += [self._piece(number, part) for number, part in steps if self._wants(part)]
        if not pieces and self.seen - self._sent_number >= ID_EVERY_EVENTS:
            pieces = [b"id: %s\n\n" % self._id(self.seen)]
            self._sent_number = self.seen
        if pieces:
            self._write(pieces)
        else:
            self._feed.wait(self._wake)

    def _wants(self, part: dict[str, Any]) -> bool:
        if self.may_see is not None and not self.may_see(part["queue"]):
            return False
        return self._queue in (None, part["queue"]) and (not self._kinds or part["event"] in self._kinds)

    def _write(self, pieces: list[bytes]) -> None:
        assert self._writer is not None
        self._timer = self._committer.later(PAUSE_SECONDS, self._after_pause)
        self._is_write_paused = not self._writer.write(b"".join(pieces))

    def _after_pause(self) -> None:
        self._timer = None
        if not self._is_write_paused:
            self._send_new()

    def _gap(self, missed: int | None) -> bytes:
        """Return a ``gap`` event with the number of events that are no longer buffered; null if it is unknown."""
        return self._piece(None, {"missed": missed}, "gap")

    def _piece(self, number: int | None, about: dict[str, Any], name: str = "") -> bytes:
        head = b"event: %s\n" % name.encode() if name else b""
        if number is not None:
            self._sent_number = number
            head += b"id: %s\n" % self._id(number)
        return b"%sdata: %s\n\n" % (head, dumps(about))

    def _id(self, number: int) -> bytes:
        return f"{self._epoch}-{number}".encode()


def _kinds(given: str | None) -> frozenset[str]:
    kinds = frozenset(name.strip() for name in given.split(",")) if given else frozenset()
    for name in sorted(kinds - set(NAMES)):
        raise BadInput(f"{name[:60]!r} is not one of {', '.join(NAMES)}", field="kind")
    return kinds


QUERY = (
    Field("kind", text(1_000), f"only these, separated by commas: {', '.join(NAMES)}"),
    Field("after", text(100), "like Last-Event-ID, for clients that cannot set this header"),
)
RESUME = Field("Last-Event-ID", text(100), "id of the last event that was read; the stream continues after it")
ANSWER = {"type": "string", "description": "events, described in docs/http.md"}


# -- records of topics -------------------------------------------------------------------------------------------------

PAGE_BYTES = 256 * 1024
PAGE_LIMITS = PageLimits(records=1000, size=PAGE_BYTES, span=FOLLOW_SPAN)
ID_EVERY_SEQUENCES = 1000
"""Skipped sequences after which a reader gets an id, so that it can resume from there."""


class TopicEventStreams:
    """Endpoints of topic records as events, and their open streams. Loop thread only."""

    def __init__(self) -> None:
        self._streams: set[TopicEventStream] = set()
        self._is_listening = False

    def follow(self, call: EndpointCall) -> None:
        query = call.query()
        filter = _filter(call.path.get("topic"), query.get("topics"))
        log = log_of(call)
        given = call.request.headers.get("last-event-id") or query.get("after")
        self._listen(topics_of(call))
        if given:
            self._start_stream(call, log, filter, _number(given, log) + 1)
            return
        start_values = start_of(query)
        if "at_ns" in start_values:
            topics_of(call).executor.run(
                partial(_sequence_at, log, start_values["at_ns"]),
                call.done_callback(partial(self._start_stream, call, log, filter)),
            )
        else:
            self._start_stream(call, log, filter, start_values.get("start", log.last + 1))

    def _start_stream(self, call: EndpointCall, log: Log, filter: Filter, start: int) -> None:
        stream = TopicEventStream(call, log, filter, check_start(log, start) - 1, self._streams)
        call.exchange.answer(Response(200, b"", HEADERS, stream))

    def _listen(self, topics: Publisher) -> None:
        if not self._is_listening:
            self._is_listening = True
            topics.listeners.append(self._wake)

    def _wake(self, live: LiveCommit) -> None:
        for one in list(self._streams):
            one.wake()

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def stop(self) -> None:
        """End all streams with ``end_with_bye``: the server stops, and readers reconnect to the next one."""
        for one in list(self._streams):
            one.end_with_bye()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        refusals = ("not_found", "retired", "wrong_epoch", "store_error", "store_damaged")
        return (
            Endpoint("GET", "/v1/topics/events", "Stream records of all topics or some, as they are published",
                     self.follow,
                     "topics", "follow", ANSWER, query=(TOPICS, *TOPIC_QUERY), headers=(RESUME,), refusals=refusals,
                     media=STREAM),
            Endpoint("GET", "/v1/topics/{topic}/events", "Stream records of a topic, as they are published",
                     self.follow,
                     "topics", "follow", ANSWER, query=TOPIC_QUERY, headers=(RESUME,), refusals=refusals, media=STREAM,
                     name="getTopicsEventsOfOne"),
        )  # fmt: skip


class TopicEventStream:
    """Stream of topic records to one reader (``protocols.http.types.Stream``).

    The reader has all records up to the sequence ``seen``, or its filter does not match them."""

    def __init__(
        self, call: EndpointCall, log: Log, filter: Filter, seen: int, streams: set["TopicEventStream"]
    ) -> None:
        self._topics = topics_of(call)
        self._committer = call.context.committer
        self._log = log
        self._filter = filter
        self._streams = streams
        self._writer: BodyWriter | None = None
        self._is_reading = self._is_write_paused = False
        self._timer: Any = None
        self._sent_number = seen
        self.seen = seen

    # -- protocols.http.types.Stream -----------------------------------------------------------------------------------

    def start(self, writer: BodyWriter) -> None:
        self._writer = writer
        self._streams.add(self)
        about = {"epoch": self._log.epoch, "next": self.seen + 1, "last": self._log.last}
        hello = b"retry: %d\n\nevent: hello\nid: %s\ndata: %s\n\n"
        self._is_write_paused = not writer.write(hello % (RETRY_MS, _id(self._log, self.seen), dumps(about)))
        self.wake()

    def drained(self) -> None:
        self._is_write_paused = False
        self.wake()

    def disconnected(self) -> None:
        self._writer = None
        self._streams.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    # -- delivery ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Start reading the next page if there are new records and the reader can receive them."""
        is_busy = self._is_reading or self._is_write_paused or self._timer is not None
        if self._writer is None or is_busy or self._log.last <= self.seen:
            return
        self._is_reading = True
        self._topics.executor.run(partial(_page, self._log, self._filter, self.seen), self._read)

    def _read(self, page: RecordPage | None, error: QueueError | None) -> None:
        self._is_reading = False
        writer = self._writer
        if writer is None:
            return
        if page is None:
            self._end_with_error(writer, error)
            return
        self.seen = page.last
        data = page.rendered
        if not data and self.seen - self._sent_number >= ID_EVERY_SEQUENCES:
            data = b"id: %s\n\n" % _id(self._log, self.seen)
        if data:
            self._sent_number = self.seen
            self._is_write_paused = not writer.write(data)
        if len(data) < PAGE_BYTES and self.seen >= self._log.last:
            self._timer = self._committer.later(PAUSE_SECONDS, self._after_pause)
        else:
            self.wake()

    def _after_pause(self) -> None:
        self._timer = None
        self.wake()

    def _end_with_error(self, writer: BodyWriter, error: QueueError | None) -> None:
        """End the stream with an ``error`` event, because the next record cannot be sent.

        Without it the reader would conclude that no records were published."""
        about: dict[str, Any] = {"code": "internal_error" if error is None else error.code, "message": str(error)}
        if isinstance(error, Retired):
            about |= {"asked": error.asked, "first": error.first}
        self.disconnected()
        writer.write(b"event: error\ndata: %s\n\n" % dumps(about))
        writer.end()

    def end_with_bye(self) -> None:
        writer = self._writer
        self.disconnected()
        if writer is not None:
            writer.write(b"event: bye\ndata: {}\n\n")
            writer.end()


def _page(log: Log, filter: Filter, seen: int) -> RecordPage:
    """Read the next page as events. Blocks on the disk."""
    epoch = log.epoch.encode()

    def event(record: Record) -> bytes:
        return b"id: %s-%d\ndata: %s\n\n" % (epoch, record.sequence, on_one_line(shown_record(record)))

    return page_after(log, filter, seen, PAGE_LIMITS, event)


def _sequence_at(log: Log, at_ns: int) -> int:
    with closing(log.reader()) as reader:
        return max(reader.sequence_at(at_ns), reader.first)


def _id(log: Log, sequence: int) -> bytes:
    return f"{log.epoch}-{sequence}".encode()


def _number(given: str, log: Log) -> int:
    """Return the sequence of an event id. Raise ``WrongEpoch`` for an id of another epoch."""
    epoch, _, number = given.rpartition("-")
    if not (number.isascii() and number.isdecimal() and len(number) <= 20 and int(number) <= MAX_SEQUENCE):
        raise BadInput(f"{given[:60]!r} is not the id of an event of this stream", field="Last-Event-ID")
    check_epoch(log, epoch, "the last event that you have")
    if int(number) > log.last:
        raise BadInput(f"is past the end of the log, which is {log.last}", field="Last-Event-ID")
    return int(number)


def _filter(topic: str | None, given: str | None) -> Filter:
    if topic is not None:
        return make_filter([topic])
    return make_filter([one.strip() for one in given.split(",")] if given else [])


TOPIC_QUERY = (
    FROM_SEQUENCE,
    FROM_TIME,
    Field("after", text(100), "like Last-Event-ID, for clients that cannot set this header"),
)
