"""Events in words, and the feed of them for those who follow."""

import logging
from typing import Any

import pytest

from yirangmq.core.events import (
    ClientRefused,
    Event,
    GroupCommitted,
    LeasesExpired,
    LeasesSettled,
    MessagesDied,
    MessagesDropped,
    MessagesLeased,
    MessagesParked,
    MessagesPublished,
    MessagesRedriven,
    MessagesRefused,
    QueueChanged,
    QueueEvent,
    TopicStateChanged,
    TraceStep,
)
from yirangmq.observe.events import FOLLOWER_TIMEOUT_MS, MAX_EVENTS, NAMES, EventStream, describe, log_events
from yirangmq.testing import START_MS, ManualClock

EVENTS: list[tuple[QueueEvent, dict[str, Any]]] = [
    (MessagesPublished("mail", 2, 30), {"event": "published", "count": 2, "bytes": 30}),
    (MessagesLeased("mail", 2, [1_000, 2_000]), {"event": "leased", "count": 2, "meanWaitSec": 1.5}),
    (LeasesSettled("mail", "ack", 2, [10, 20]), {"event": "acked", "count": 2, "meanProcessingSec": 0.015}),
    (
        LeasesSettled("mail", "nack", 1, [10], "TIMEOUT"),
        {"event": "nacked", "count": 1, "reason": "TIMEOUT", "meanProcessingSec": 0.01},
    ),
    (LeasesSettled("mail", "release", 1, [10]), {"event": "released", "count": 1, "meanProcessingSec": 0.01}),
    (LeasesSettled("mail", "extend", 3), {"event": "extended", "count": 3}),
    (LeasesExpired("mail", 1), {"event": "lapsed", "count": 1}),
    (MessagesDied("mail", "POISON", 1), {"event": "died", "count": 1, "reason": "POISON"}),
    (MessagesDropped("mail", "quota", 4), {"event": "dropped", "count": 4, "why": "quota"}),
    (MessagesRedriven("mail", 5), {"event": "redriven", "count": 5}),
    (MessagesParked("mail", 6), {"event": "parked", "count": 6}),
    (MessagesRefused("mail", "quota_exceeded", 7), {"event": "refused", "count": 7, "code": "quota_exceeded"}),
    (QueueChanged("mail", "policy"), {"event": "policy set"}),
    (QueueChanged("mail", "pause"), {"event": "paused"}),
    (QueueChanged("mail", "resume"), {"event": "resumed"}),
    (QueueChanged("mail", "delete"), {"event": "deleted"}),
]
UNTOLD: list[Event] = [GroupCommitted(1, 1, 0, 0), TraceStep("mail", "m-1", "{}", "publish", 0, 0, 0)]


@pytest.mark.parametrize(("event", "words"), EVENTS, ids=[str(words["event"]) for _, words in EVENTS])
def test_event_description_has_its_time_queue_name_and_values(event: QueueEvent, words: dict[str, Any]) -> None:
    assert describe(event, START_MS) == {"at": "2026-01-13T09:21:00.000+00:00", "queue": "mail", **words}


def test_event_names_are_all_listed() -> None:
    others = TopicStateChanged("publisher", "starting", "online"), ClientRefused("stomp", "10.0.0.9", "", "unknown")
    assert {describe(event, 0)["event"] for event in (*(event for event, _ in EVENTS), *others)} == set(NAMES)


def test_events_worth_a_line_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="yirangmq")
    log_events([*[event for event, _ in EVENTS], *UNTOLD])
    logged = [(record.message, getattr(record, "values", {})) for record in caplog.records]
    assert [name for name, _ in logged] == [
        *("leases_expired", "messages_dead_lettered", "messages_redriven", "messages_parked"),
        *("policy_set", "queue_paused", "queue_resumed", "queue_deleted"),
    ]
    assert logged[1][1] == {"queue": "mail", "count": 1, "reason": "POISON"}


# -- the feed ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def feed(clock: ManualClock) -> EventStream:
    return EventStream(clock)


def told(part: dict[str, Any]) -> list[tuple[str, str]]:
    return [(event["event"], event["queue"]) for event in part["events"]]


def test_event_stream_follower_gets_the_events_after_its_last_number(feed: EventStream) -> None:
    feed.on_events([MessagesPublished("early", 1, 1)])
    first = feed.after(None, None)
    assert told(first) == []
    feed.on_events([MessagesPublished("mail", 1, 1), *UNTOLD, LeasesExpired("post", 1)])
    second = feed.after(first["last"], None)
    assert told(second) == [("published", "mail"), ("lapsed", "post")]
    assert told(feed.after(second["last"], None)) == []
    assert told(feed.after(first["last"], "post")) == [("lapsed", "post")]


def test_event_stream_reports_to_a_slow_follower_how_many_events_it_missed(feed: EventStream) -> None:
    first = feed.after(None, None)
    for _ in range(MAX_EVENTS + 5):
        feed.on_events([LeasesExpired("mail", 1)])
    part = feed.after(first["last"], None)
    assert (part["missed"], len(part["events"])) == (5, MAX_EVENTS)
    assert feed.after(part["last"], None)["missed"] == 0


def test_event_stream_without_followers_keeps_nothing(feed: EventStream, clock: ManualClock) -> None:
    first = feed.after(None, None)
    clock.advance(FOLLOWER_TIMEOUT_MS + 1)
    feed.on_events([LeasesExpired("mail", 1)])
    part = feed.after(first["last"], None)
    assert (part["missed"], part["events"]) == (1, [])
    feed.on_events([LeasesExpired("mail", 1)])
    assert told(feed.after(part["last"], None)) == [("lapsed", "mail")]


def test_event_stream_follower_with_numbers_of_an_earlier_server_starts_anew(feed: EventStream) -> None:
    feed.on_events([LeasesExpired("mail", 1)])
    assert feed.after(4_711, None) == {"last": 1, "missed": 0, "events": []}


def test_event_stream_wakes_a_waiting_follower_once(feed: EventStream) -> None:
    woken: list[str] = []
    feed.after(None, None)
    feed.wait(lambda: woken.append("first"))
    leaving = lambda: woken.append("second")  # noqa: E731
    feed.wait(leaving)
    feed.cancel_wait(leaving)
    feed.on_events([GroupCommitted(1, 1, 0, 0)])
    assert woken == []
    feed.on_events([LeasesExpired("mail", 1)])
    feed.on_events([LeasesExpired("mail", 1)])
    assert woken == ["first"]
