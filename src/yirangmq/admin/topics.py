"""Topic methods, topics in status, health and metrics, and pages of records.

Lists, status and metrics do not open a topic log that has not been used yet. Work that may wait for the disk runs on a
background thread. A page of records ends at its limit, at ``PAGE_BYTES`` of payload, or after ``PAGE_LOOK`` scanned
records, because cursor commits wait for the same thread."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from yirangmq.admin.registry import Calls, Done, Given, Values, reading
from yirangmq.broker.group_commit import Desk
from yirangmq.core import validation
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.core.events import Event, FeedMoved
from yirangmq.core.health import HealthReason, health_reason
from yirangmq.core.ports import Clock
from yirangmq.core.topic_filter import Filter, make_filter
from yirangmq.core.topics import MOST_SEQUENCE, ClientState, Log, PublisherState, TopicState, check_subscriber
from yirangmq.format.envelope import iso
from yirangmq.format.topic_record import cursor_document
from yirangmq.observe.metrics import SECONDS, Histogram, Minute, window_seconds
from yirangmq.topics.adapters import PageLimits, read_page
from yirangmq.topics.ports import Settings
from yirangmq.topics.publisher import Publisher

if TYPE_CHECKING:
    from yirangmq.observe.prometheus import Reading, Samples
    from yirangmq.topics.live import Live, Subscriber


# -- pages of records --------------------------------------------------------------------------------------------------

PAGE_BYTES = 1 << 20
"""Upper bound of payload bytes per page of records; a single larger record is a page too."""
PAGE_LOOK = 20_000
"""Upper bound of records scanned for one page, because other work, such as commits of confirmed cursors, waits for the
same thread."""


def read_wanted(values: Values) -> tuple[int | None, int | None, Filter, int]:
    start, at_ns, topics = _number(values, "start"), _number(values, "at_ns"), values.take("topics", [])
    if not isinstance(topics, list):
        raise BadInput("must be a list of names and patterns", field="topics")
    return start, at_ns, make_filter(topics), values.limit(100)


def _number(values: Values, field: str) -> int | None:
    given = values.take(field, None)
    return None if given is None else validation.check_count(given, field, least=0, most=MOST_SEQUENCE)


def page(log: Log, start: int | None, at_ns: int | None, filter: Filter, limit: int) -> dict[str, Any]:
    """Read a page of records. Runs on the background thread; blocks on the disk."""
    with closing(log.reader()) as reader:
        if start is None:
            start = reader.first if at_ns is None else max(reader.sequence_at(at_ns), reader.first)
        found = read_page(reader, filter, start, PageLimits(limit, PAGE_BYTES, PAGE_LOOK))
        about = {"epoch": reader.epoch, "first": reader.first, "last": reader.last, "next": found.last + 1}
    rows = [
        [one.sequence, one.topic_sequence, one.at_ns, one.topic, one.key, dict(one.headers), one.payload]
        for one in found.records
    ]
    return {**about, "records": rows}


# -- methods, status and metrics ---------------------------------------------------------------------------------------

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
MOST_WORKERS = 64
LEAST_BUFFER = 4096
Tell = Callable[[Sequence[Event]], None]


class TopicCalls:
    """Named methods of topics, and topics in status, health and metrics.

    ``topics`` is None if the server has no topics. Loop thread only, except for work that ``Publisher.aside`` runs."""

    def __init__(self, topics: Publisher | None, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._since = clock.now_ms()
        self._rates: dict[str, Minute] = {}
        self._latest: dict[str, TopicState] = {}
        self._commits = Histogram(SECONDS)

    def begin(self, calls: Calls, tell: Tell) -> None:
        """Add the methods to the call table and register for publisher and subscriber events.

        ``tell`` gets an event for every change of state."""
        for name, entry in {
            "topics": self._list,
            "topic_read": self._read,
            "topic_subscribers": self._list_subscribers,
            "topic_cursors": self._list_cursors,
            "topic_cursor_drop": self._drop_cursor,
            "topic_trim": self._trim,
            "topic_tune": self._tune,
        }.items():
            calls.add_entry(name, entry)
        if self._topics is not None:
            self._topics.hearers.append(self._count)
            self._topics.took.append(self._commits.observe)
            self._topics.state_heard.append(
                lambda before, after, why: tell([FeedMoved("publisher", str(before or ""), str(after), why)])
            )
            self._topics.moved_heard.append(
                lambda one, before, after: tell([FeedMoved(_called(one), str(before), str(after))])
            )

    def _count(self, live: "Live") -> None:
        now = self._clock.now_ms()
        for topic, count in Counter(live.topics).items():
            self._rates.setdefault(topic, Minute()).add(now, published=count)

    def _there(self) -> Publisher:
        if self._topics is None:
            raise BadInput("this server has no topics", field="method")
        return self._topics

    # -- methods that look ----------------------------------------------------------------------------------------

    def _list(self, desk: Desk, given: Given, done: Done) -> None:
        """Return every topic with its numbers, and the facts of the topic log."""
        reading(given, lambda values: None)
        topics = self._there()
        if not topics.is_open:
            done({**(self.facts() or {}), "topics": []}, None)
            return
        log = topics.opened().feed.log
        topics.aside.run(
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

    def _read(self, desk: Desk, given: Given, done: Done) -> None:
        """Return a page of records of all topics or some, starting at a sequence or a time."""
        start, at_ns, filter, limit = reading(given, read_wanted)
        topics = self._there()
        log = topics.opened().feed.log
        topics.aside.run(partial(page, log, start, at_ns, filter, limit), done)

    def _list_subscribers(self, desk: Desk, given: Given, done: Done) -> None:
        """Return all connected subscribers, and the durable subscribers that are not connected."""
        reading(given, lambda values: None)
        done(self.subscribers(), None)

    def _list_cursors(self, desk: Desk, given: Given, done: Done) -> None:
        reading(given, lambda values: None)
        topics = self._there()
        if not topics.is_open:
            done([], None)
            return
        parts = topics.opened()
        last = parts.feed.log.last
        done([cursor_document(cursor, last, parts.feed.log.epoch) for cursor in parts.ledger.all()], None)

    # -- methods that change --------------------------------------------------------------------------------------

    def _drop_cursor(self, desk: Desk, given: Given, done: Done) -> None:
        """Delete the cursor of a durable subscriber, which must not be connected. It no longer delays retention."""
        name = reading(given, lambda values: check_subscriber(values.take("name", None)))
        parts = self._there().opened()
        if any(one.name == name for one in parts.follows.subscribers.values()):
            raise BadInput(f"{name!r} is connected", field="name")
        if parts.ledger.get(name) is None:
            raise NotFound(f"there is no durable subscriber {name!r}")
        parts.ledger.drop(name, done)

    def _trim(self, desk: Desk, given: Given, done: Done) -> None:
        """Delete the whole segments before a sequence, even if a durable subscriber still needs their records."""
        before, dry_run = reading(
            given,
            lambda values: (
                values.whole("before", 0, least=1, most=MOST_SEQUENCE),
                values.flag("dry_run", False),
            ),
        )
        topics = self._there()
        log = topics.opened().feed.log
        topics.aside.run(
            partial(log.trim, before, dry_run=dry_run),
            lambda trimmed, error: done(None, error) if error else done(dict(trimmed._asdict()), None),
        )

    def _tune(self, desk: Desk, given: Given, done: Done) -> None:
        """Change settings of the running server until it stops. Return the settings in force."""
        now = Settings() if self._topics is None else self._topics.settings
        changed = reading(
            given,
            lambda values: replace(
                now,
                workers=values.whole("recovery_workers", now.workers, least=1, most=MOST_WORKERS),
                buffer_bytes=values.whole(
                    "buffer_bytes", now.buffer_bytes, least=LEAST_BUFFER, most=now.most_buffer_bytes
                ),
                lag_limit=values.whole("lag_limit", now.lag_limit, least=0, most=MOST_SEQUENCE),
            ),
        )
        self._there().tune(changed)
        about = {"recovery_workers": changed.workers, "buffer_bytes": changed.buffer_bytes}
        done({**about, "lag_limit": changed.lag_limit}, None)

    # -- for status, health and metrics ---------------------------------------------------------------------------

    def facts(self) -> dict[str, Any] | None:
        if self._topics is None:
            return None
        about: dict[str, Any] = {"state": str(self._topics.state or ""), "reason": self._topics.reason}
        about["publisher"] = self._topics.settings.publisher_id
        if self._topics.is_open:
            parts = self._topics.opened()
            log = parts.feed.log
            about |= {"epoch": log.epoch, "first": log.first, "last": log.last}
            about["subscribers"] = len(parts.follows.subscribers)
            about["recovering"] = [worker.runs for worker in parts.follows.workers]
            about["commitSec"] = {name: self._commits.at_most(share) for name, share in SHARES.items()}
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
            parts = topics.opened()
            lags = parts.ticking.lags()
            for number in sorted(parts.ticking.alarms & lags.keys()):
                name = _called(parts.follows.subscribers[number])
                found.append(health_reason("lag", f"subscriber {name} is {lags[number]} records behind"))
        return found

    def subscribers(self) -> list[dict[str, Any]]:
        if self._topics is None or not self._topics.is_open:
            return []
        parts = self._topics.opened()
        log = parts.feed.log
        rows = [_subscriber_row(one, log.last) for one in parts.follows.subscribers.values()]
        there = {one.name for one in parts.follows.subscribers.values() if one.name}
        away = [cursor for cursor in parts.ledger.all() if cursor.name not in there]
        return rows + [{**cursor_document(one, log.last, log.epoch), "state": str(ClientState.OFFLINE)} for one in away]

    def samples(self) -> "dict[str, Reading]":
        """Return the metrics by name; {} while the topic log is not open. The topics are read from the log."""
        topics = self._topics
        if topics is None or not topics.is_open:
            return {}
        parts = topics.opened()
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
            "yirangmq_feed_recovering": [({}, sum(worker.runs for worker in parts.follows.workers))],
            "yirangmq_subscribers": [
                ({"state": state}, count) for state, count in sorted(Counter(row["state"] for row in rows).items())
            ],
            "yirangmq_subscriber_lag": [({"subscriber": row["subscriber"]}, row["lag"]) for row in rows],
            "yirangmq_subscriber_late": [({}, len(parts.ticking.alarms))],
        }


def _by_topic(found: dict[str, TopicState], number: Callable[[TopicState], int]) -> "Samples":
    return [({"topic": topic}, number(state)) for topic, state in sorted(found.items())]


def _called(subscriber: "Subscriber") -> str:
    """Return the name of a durable subscriber, or the number of another one."""
    return subscriber.name or str(subscriber.number)


def _subscriber_row(subscriber: "Subscriber", last: int) -> dict[str, Any]:
    sequence = subscriber.reached
    sent = subscriber.total + (subscriber.run.sent if subscriber.run is not None else 0)
    return {
        "subscriber": _called(subscriber),
        "name": subscriber.name,
        "state": str(subscriber.state),
        "filter": subscriber.filter.text,
        "sequence": sequence,
        "confirmed": subscriber.confirmed if subscriber.name else None,
        "lag": max(0, last - sequence),
        "sent": sent,
        "recoveries": subscriber.recoveries,
        "peer": subscriber.line.peer,
    }


def _iso_ns(nanoseconds: int) -> str:
    return iso(nanoseconds // 1_000_000)
