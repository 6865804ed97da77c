"""Topic methods, topics in status, health and metrics, and pages of records.

Lists, status and metrics do not open a topic log that has not been used yet. Work that may wait for the disk runs on a
background thread. A page of records ends at its limit, at ``PAGE_BYTES`` of payload, or after ``MAX_SCANNED_RECORDS``
scanned records, because cursor commits wait for the same thread."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from yirangmq.admin.registry import Done, Given, MethodArguments, MethodRegistry, read_arguments
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound, QueueError
from yirangmq.core.events import Event, TopicStateChanged
from yirangmq.core.health import HealthReason, health_reason
from yirangmq.core.ports import Clock
from yirangmq.core.topic_filter import Filter, make_filter
from yirangmq.core.topics import (
    MAX_SEQUENCE,
    Cursor,
    Log,
    PublisherState,
    SubscriberState,
    TopicState,
    check_subscriber,
)
from yirangmq.format.envelope import iso
from yirangmq.format.topic_record import cursor_document
from yirangmq.observe.metrics import SECONDS, Histogram, MinuteWindow, window_seconds
from yirangmq.topics.adapters import PageLimits, read_page
from yirangmq.topics.ports import TopicSettings
from yirangmq.topics.publisher import Publisher

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import MetricValue, Samples
    from yirangmq.topics.live import LiveCommit, Subscriber


# -- pages of records --------------------------------------------------------------------------------------------------

PAGE_BYTES = 1 << 20
"""Upper bound of payload bytes per page of records; a single larger record is a page too."""
MAX_SCANNED_RECORDS = 20_000
"""Upper bound of records scanned for one page, because other work, such as commits of confirmed cursors, waits for the
same thread."""


def read_page_arguments(values: MethodArguments) -> tuple[int | None, int | None, Filter, int]:
    start, at_ns, topics = _number(values, "start"), _number(values, "at_ns"), values.take("topics", [])
    if not isinstance(topics, list):
        raise BadInput("must be a list of names and patterns", field="topics")
    return start, at_ns, make_filter(topics), values.limit(100)


def _number(values: MethodArguments, field: str) -> int | None:
    given = values.take(field, None)
    return None if given is None else validation.check_count(given, field, least=0, most=MAX_SEQUENCE)


def page(log: Log, start: int | None, at_ns: int | None, filter: Filter, limit: int) -> dict[str, Any]:
    """Read a page of records. Runs on the background thread; blocks on the disk."""
    with closing(log.reader()) as reader:
        if start is None:
            start = reader.first if at_ns is None else max(reader.sequence_at(at_ns), reader.first)
        found = read_page(reader, filter, start, PageLimits(limit, PAGE_BYTES, MAX_SCANNED_RECORDS))
        about = {"epoch": reader.epoch, "first": reader.first, "last": reader.last, "next": found.last + 1}
    rows = [
        [one.sequence, one.topic_sequence, one.at_ns, one.topic, one.key, dict(one.headers), one.payload]
        for one in found.records
    ]
    return {**about, "records": rows}


# -- methods, status and metrics ---------------------------------------------------------------------------------------

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
MAX_WORKERS = 64
MIN_BUFFER = 4096
EventSink = Callable[[Sequence[Event]], None]


class TopicMethods:
    """Named methods of topics, and topics in status, health and metrics.

    ``topics`` is None if the server has no topics. Loop thread only, except for work that ``Publisher.executor``
    runs."""

    def __init__(self, topics: Publisher | None, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._since = clock.now_ms()
        self._rates: dict[str, MinuteWindow] = {}
        self._latest: dict[str, TopicState] = {}
        self._commits = Histogram(SECONDS)

    def register(self, methods: MethodRegistry, on_events: EventSink) -> None:
        """Add the methods to the call table and register for publisher and subscriber events.

        ``on_events`` gets an event for every change of state."""
        for name, entry in {
            "topics": self._list,
            "topic_read": self._read,
            "topic_subscribers": self._list_subscribers,
            "topic_cursors": self._list_cursors,
            "topic_cursor_drop": self._drop_cursor,
            "topic_trim": self._trim,
            "topic_tune": self._tune,
        }.items():
            methods.add_entry(name, entry)
        if self._topics is not None:
            self._topics.listeners.append(self._count_commit)
            self._topics.commit_duration_listeners.append(self._commits.observe)
            self._topics.state_listeners.append(
                lambda before, after, why: on_events(
                    [TopicStateChanged("publisher", str(before or ""), str(after), why)]
                )
            )
            self._topics.move_listeners.append(
                lambda one, before, after: on_events(
                    [TopicStateChanged(_subscriber_name(one), str(before), str(after))]
                )
            )

    def _count_commit(self, live: "LiveCommit") -> None:
        now = self._clock.now_ms()
        for topic, count in Counter(live.topics).items():
            self._rates.setdefault(topic, MinuteWindow()).add(now, published=count)

    def _require_topics(self) -> Publisher:
        if self._topics is None:
            raise BadInput("this server has no topics", field="method")
        return self._topics

    # -- methods that look ----------------------------------------------------------------------------------------

    def _list(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Return every topic with its numbers, and the facts of the topic log."""
        read_arguments(given, lambda values: None)
        topics = self._require_topics()
        if not topics.is_open:
            done({**(self.facts() or {}), "topics": []}, None)
            return
        log = topics.ensure_open().feed.log
        topics.executor.run(
            log.topics, lambda found, error: done(None, error) if error else done(self._rows(log, found), None)
        )

    def _rows(self, log: Log, found: dict[str, TopicState]) -> dict[str, Any]:
        self._latest = dict(found)
        now = self._clock.now_ms()
        seconds = window_seconds(now, self._since)
        rows = [
            {
                "topic": topic,
                "topicSequence": state.topic_sequence,
                "sequence": state.sequence,
                "at": _iso_ns(state.at_ns),
                "records": state.records,
                "bytes": state.size,
                "publishedPerSec": round(self._published(topic, now) / seconds, 3),
            }
            for topic, state in sorted(found.items())
        ]
        return {**(self.facts() or {}), "gaps": [list(gap) for gap in log.gaps()], "topics": rows}

    def _published(self, topic: str, now: int) -> int:
        minute = self._rates.get(topic)
        return minute.sums(now).get("published", 0) if minute is not None else 0

    def _read(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Return a page of records of all topics or some, starting at a sequence or a time."""
        start, at_ns, filter, limit = read_arguments(given, read_page_arguments)
        topics = self._require_topics()
        log = topics.ensure_open().feed.log
        topics.executor.run(partial(page, log, start, at_ns, filter, limit), done)

    def _list_subscribers(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Return all connected subscribers, and the durable subscribers that are not connected."""
        read_arguments(given, lambda values: None)
        if self._topics is None or not self._topics.is_open:
            done([], None)
        else:
            self._topics.when_lags_counted(self._disconnected(), lambda: done(self.subscribers(), None))

    def _list_cursors(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        read_arguments(given, lambda values: None)
        topics = self._require_topics()
        if not topics.is_open:
            done([], None)
            return
        cursors = topics.ensure_open().cursor_committer.all()

        def reply() -> None:
            try:
                lags = topics.cursor_lags(cursors)
            except QueueError as error:  # the log was closed meanwhile
                done(None, error)
                return
            done([cursor_document(cursor, lags[cursor.name]) for cursor in cursors], None)

        topics.when_lags_counted(cursors, reply)

    # -- methods that change --------------------------------------------------------------------------------------

    def _drop_cursor(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Delete the cursor of a durable subscriber, which must not be connected. It no longer delays retention.

        A dry run checks the same and changes nothing."""
        name, dry_run = read_arguments(
            given, lambda values: (check_subscriber(values.take("name", None)), values.flag("dry_run", False))
        )
        parts = self._require_topics().ensure_open()
        if any(one.name == name for one in parts.lifecycle.subscribers.values()):
            raise BadInput(f"{name!r} is connected", field="name")
        if parts.cursor_committer.get(name) is None:
            raise NotFound(f"there is no durable subscriber {name!r}", field="name")
        if dry_run:
            done(True, None)
            return
        parts.cursor_committer.drop(name, done)

    def _trim(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Delete the whole segments before a sequence, even if a durable subscriber still needs their records."""
        before, dry_run = read_arguments(
            given,
            lambda values: (
                values.whole("before", 0, least=1, most=MAX_SEQUENCE),
                values.flag("dry_run", False),
            ),
        )
        topics = self._require_topics()
        log = topics.ensure_open().feed.log
        topics.executor.run(
            partial(log.trim, before, dry_run=dry_run),
            lambda trimmed, error: done(None, error) if error else done(dict(trimmed._asdict()), None),
        )

    def _tune(self, committer: GroupCommitter, given: Given, done: Done) -> None:
        """Change settings of the running server until it stops. Return the settings in force."""
        now = TopicSettings() if self._topics is None else self._topics.settings
        changed = read_arguments(
            given,
            lambda values: replace(
                now,
                workers=values.whole("recovery_workers", now.workers, least=1, most=MAX_WORKERS),
                buffer_bytes=values.whole(
                    "buffer_bytes", now.buffer_bytes, least=MIN_BUFFER, most=now.max_buffer_bytes
                ),
                lag_limit=values.whole("lag_limit", now.lag_limit, least=0, most=MAX_SEQUENCE),
            ),
        )
        self._require_topics().tune(changed)
        about = {"recovery_workers": changed.workers, "buffer_bytes": changed.buffer_bytes}
        done({**about, "lag_limit": changed.lag_limit}, None)

    # -- for status, health and metrics ---------------------------------------------------------------------------

    def facts(self) -> dict[str, Any] | None:
        if self._topics is None:
            return None
        about: dict[str, Any] = {"state": str(self._topics.state or ""), "reason": self._topics.reason}
        about["publisher"] = self._topics.settings.publisher_id
        if self._topics.is_open:
            parts = self._topics.ensure_open()
            log = parts.feed.log
            about |= {"epoch": log.epoch, "first": log.first, "last": log.last}
            about["subscribers"] = len(parts.lifecycle.subscribers)
            about["recovering"] = [worker.runs for worker in parts.lifecycle.workers]
            about["commitSec"] = {name: self._commits.quantile(share) for name, share in SHARES.items()}
        return about

    def reasons(self) -> list[HealthReason]:
        """Return the health reasons of topics: an error of the topic log, or subscribers that lag."""
        topics = self._topics
        if topics is None:
            return []
        found = []
        if topics.state is PublisherState.ERROR:
            found.append(health_reason("topics", f"topics: {topics.reason}"))
        if topics.is_open:
            parts = topics.ensure_open()
            lags = parts.maintenance.lags()
            for number in sorted(parts.maintenance.alarms & lags.keys()):
                name = _subscriber_name(parts.lifecycle.subscribers[number])
                found.append(health_reason("lag", f"subscriber {name} is {lags[number]} records behind"))
        return found

    def _disconnected(self) -> list[Cursor]:
        """Return the cursors of durable subscribers that are not connected. The topic log is open."""
        parts = self._require_topics().ensure_open()
        connected = {one.name for one in parts.lifecycle.subscribers.values() if one.name}
        return [cursor for cursor in parts.cursor_committer.all() if cursor.name not in connected]

    def subscribers(self) -> list[dict[str, Any]]:
        if self._topics is None or not self._topics.is_open:
            return []
        parts = self._topics.ensure_open()
        rows = [_subscriber_row(one, parts.lifecycle.lag_of(one)) for one in parts.lifecycle.subscribers.values()]
        disconnected = self._disconnected()
        lags = self._topics.cursor_lags(disconnected)
        return rows + [
            {**cursor_document(one, lags[one.name]), "state": str(SubscriberState.OFFLINE)} for one in disconnected
        ]

    def samples(self) -> "dict[str, MetricValue]":
        """Return the metrics by name; {} while the topic log is not open. The topics are read from the log."""
        topics = self._topics
        if topics is None or not topics.is_open:
            return {}
        parts = topics.ensure_open()
        self._latest = dict(parts.feed.log.topics())
        rows = self.subscribers()
        feed = parts.feed
        return {
            "yirangmq_topic_last_sequence": _by_topic(self._latest, lambda state: state.topic_sequence),
            "yirangmq_topic_bytes": _by_topic(self._latest, lambda state: state.size),
            "yirangmq_feed_last_sequence": [({}, feed.log.last)],
            "yirangmq_feed_published_total": [({}, feed.published)],
            "yirangmq_feed_published_bytes_total": [({}, feed.published_bytes)],
            "yirangmq_feed_commits_total": [({}, feed.commits)],
            "yirangmq_feed_commit_seconds": self._commits,
            "yirangmq_feed_online": [({}, float(topics.state is PublisherState.ONLINE))],
            "yirangmq_feed_recovering": [({}, sum(worker.runs for worker in parts.lifecycle.workers))],
            "yirangmq_subscribers": [
                ({"state": state}, count) for state, count in sorted(Counter(row["state"] for row in rows).items())
            ],
            "yirangmq_subscriber_lag": [({"subscriber": row["subscriber"]}, row["lag"]) for row in rows],
            "yirangmq_subscriber_late": [({}, len(parts.maintenance.alarms))],
        }


def _by_topic(found: dict[str, TopicState], number: Callable[[TopicState], int]) -> "Samples":
    return [({"topic": topic}, number(state)) for topic, state in sorted(found.items())]


def _subscriber_name(subscriber: "Subscriber") -> str:
    """Return the name of a durable subscriber, or the number of another one."""
    return subscriber.name or str(subscriber.number)


def _subscriber_row(subscriber: "Subscriber", lag: int) -> dict[str, Any]:
    sequence = subscriber.reached
    return {
        "subscriber": _subscriber_name(subscriber),
        "name": subscriber.name,
        "state": str(subscriber.state),
        "filter": subscriber.filter.text,
        "sequence": sequence,
        "confirmed": subscriber.confirmed if subscriber.name else None,
        "lag": lag,
        "sent": subscriber.total_sent,
        "recoveries": subscriber.recoveries,
        "peer": subscriber.connection.peer,
    }


def _iso_ns(nanoseconds: int) -> str:
    return iso(nanoseconds // 1_000_000)
