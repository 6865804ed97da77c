"""Following topics over HTTP: Server-Sent Events, each a record, its id the epoch and the sequence. Whoever comes back
with ``Last-Event-ID`` goes on after it, however long it was away: what it missed is in the log.

Nothing is kept for a reader but a sequence. Records are read aside, a page at a time, when the reader can take them and
there are some. Knows: the log, the form of the stream. Does not know: sockets."""

from contextlib import closing
from functools import partial
from typing import Any

from yirangmq.core.errors import BadInput, QueueError, Retired
from yirangmq.core.topic_filter import Filter, make_filter
from yirangmq.core.topics import MOST_SEQUENCE, Log, Record
from yirangmq.doors.http.exchange import Outlet, Response
from yirangmq.doors.http.v1.endpoint import Ask, Endpoint
from yirangmq.doors.http.v1.events import ANSWER, HEADERS, PAUSE_SECONDS, RESUME, RETRY_MS, STREAM
from yirangmq.doors.http.v1.fields import Field, text
from yirangmq.doors.http.v1.log import check_start, log_of, topics_of
from yirangmq.doors.http.v1.record_shapes import on_one_line, shown_record
from yirangmq.doors.http.v1.topics import FROM_SEQUENCE, FROM_TIME, TOPICS, place_of
from yirangmq.format.json_codec import dumps
from yirangmq.topics.adapters import FOLLOW_SPAN, PageLimits, RecordPage, page_after
from yirangmq.topics.cursors import check_epoch
from yirangmq.topics.live import Live
from yirangmq.topics.publisher import Publisher

PAGE_BYTES = 256 * 1024
PAGE_LIMITS = PageLimits(records=1000, size=PAGE_BYTES, span=FOLLOW_SPAN)
MARK_EVERY_SEQUENCES = 1000
"""Sequences passed over after which a reader is told where it stands, so that it can resume from there."""


class TopicEvents:
    """All who follow over HTTP."""

    def __init__(self) -> None:
        self._following: set[TopicFollowing] = set()
        self._is_hearing = False

    def follow(self, ask: Ask) -> None:
        query = ask.query()
        filter = _filter(ask.path.get("topic"), query.get("topics"))
        log = log_of(ask)
        given = ask.request.headers.get("last-event-id") or query.get("after")
        self._hear(topics_of(ask))
        if given:
            self._begin(ask, log, filter, _number(given, log) + 1)
            return
        place = place_of(query)
        if "at_ns" in place:
            topics_of(ask).aside.run(
                partial(_sequence_at, log, place["at_ns"]), ask.told(partial(self._begin, ask, log, filter))
            )
        else:
            self._begin(ask, log, filter, place.get("start", log.last + 1))

    def _begin(self, ask: Ask, log: Log, filter: Filter, start: int) -> None:
        follower = TopicFollowing(ask, log, filter, check_start(log, start) - 1, self._following)
        ask.exchange.answer(Response(200, b"", HEADERS, follower))

    def _hear(self, topics: Publisher) -> None:
        if not self._is_hearing:
            self._is_hearing = True
            topics.hearers.append(self._wake)

    def _wake(self, live: Live) -> None:
        for one in list(self._following):
            one.wake()

    @property
    def following(self) -> int:
        return len(self._following)

    def stop(self) -> None:
        """The server is going: readers are told, and come back to the next one."""
        for one in list(self._following):
            one.bye()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        refusals = ("not_found", "retired", "wrong_epoch", "store_error", "store_damaged")
        return (
            Endpoint("GET", "/v1/topics/events", "Records of all topics or some, as they are published", self.follow,
                     "topics", "follow", ANSWER, query=(TOPICS, *TOPIC_QUERY), headers=(RESUME,), refusals=refusals,
                     media=STREAM),
            Endpoint("GET", "/v1/topics/{topic}/events", "Records of one topic, as they are published", self.follow,
                     "topics", "follow", ANSWER, query=TOPIC_QUERY, headers=(RESUME,), refusals=refusals, media=STREAM,
                     name="getTopicsEventsOfOne"),
        )  # fmt: skip


class TopicFollowing:
    """``exchange.Stream``: one reader. ``seen``: everything up to there it has, or does not want."""

    def __init__(self, ask: Ask, log: Log, filter: Filter, seen: int, among: set["TopicFollowing"]) -> None:
        self._topics = topics_of(ask)
        self._desk = ask.house.desk
        self._log = log
        self._filter = filter
        self._among = among
        self._outlet: Outlet | None = None
        self._is_reading = self._is_clogged = False
        self._alarm: Any = None
        self._told = seen
        self.seen = seen

    # -- exchange.Stream ----------------------------------------------------------------------------------------------

    def start(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._among.add(self)
        about = {"epoch": self._log.epoch, "next": self.seen + 1, "last": self._log.last}
        hello = b"retry: %d\n\nevent: hello\nid: %s\ndata: %s\n\n"
        self._is_clogged = not outlet.write(hello % (RETRY_MS, _id(self._log, self.seen), dumps(about)))
        self.wake()

    def drained(self) -> None:
        self._is_clogged = False
        self.wake()

    def gone(self) -> None:
        self._outlet = None
        self._among.discard(self)
        if self._alarm is not None:
            self._alarm.cancel()

    # -- ours ---------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to read, and room for it."""
        is_busy = self._is_reading or self._is_clogged or self._alarm is not None
        if self._outlet is None or is_busy or self._log.last <= self.seen:
            return
        self._is_reading = True
        self._topics.aside.run(partial(_page, self._log, self._filter, self.seen), self._read)

    def _read(self, page: RecordPage | None, error: QueueError | None) -> None:
        self._is_reading = False
        outlet = self._outlet
        if outlet is None:
            return
        if page is None:
            self._end(outlet, error)
            return
        self.seen = page.last
        data = page.rendered
        if not data and self.seen - self._told >= MARK_EVERY_SEQUENCES:
            data = b"id: %s\n\n" % _id(self._log, self.seen)
        if data:
            self._told = self.seen
            self._is_clogged = not outlet.write(data)
        if len(data) < PAGE_BYTES and self.seen >= self._log.last:
            self._alarm = self._desk.later(PAUSE_SECONDS, self._rested)
        else:
            self.wake()

    def _rested(self) -> None:
        self._alarm = None
        self.wake()

    def _end(self, outlet: Outlet, error: QueueError | None) -> None:
        """What comes next cannot be sent: said, so that nobody thinks that nothing was published."""
        about: dict[str, Any] = {"code": "internal_error" if error is None else error.code, "message": str(error)}
        if isinstance(error, Retired):
            about |= {"asked": error.asked, "first": error.first}
        self.gone()
        outlet.write(b"event: error\ndata: %s\n\n" % dumps(about))
        outlet.end()

    def bye(self) -> None:
        outlet = self._outlet
        self.gone()
        if outlet is not None:
            outlet.write(b"event: bye\ndata: {}\n\n")
            outlet.end()


def _page(log: Log, filter: Filter, seen: int) -> RecordPage:
    """The next page as events; blocks on the disk."""
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
    """The sequence of an id of ours. One of another epoch is of another feed."""
    epoch, _, number = given.rpartition("-")
    if not (number.isascii() and number.isdecimal() and len(number) <= 20 and int(number) <= MOST_SEQUENCE):
        raise BadInput(f"{given[:60]!r} is no id of an event of this stream", field="Last-Event-ID")
    check_epoch(log, epoch, "the last event that you know")
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
    Field("after", text(100), "for readers that cannot set Last-Event-ID"),
)
