"""Events in words, and the feed of them for those who follow."""

import logging
from typing import Any

import pytest

from yirangmq.core.events import (
    ClientRefused,
    Committed,
    Died,
    Dropped,
    Event,
    FeedMoved,
    Lapsed,
    Leased,
    OfQueue,
    Parked,
    Published,
    Redriven,
    Refused,
    Settled,
    Steered,
    Traced,
)
from yirangmq.observe.events import FOLLOWED_MS, KEPT, NAMES, Feed, describe, log_events
from yirangmq.testing import START_MS, ManualClock

EVENTS: list[tuple[OfQueue, dict[str, Any]]] = [
    (Published("mail", 2, 30), {"event": "published", "count": 2, "bytes": 30}),
    (Leased("mail", 2, [1_000, 2_000]), {"event": "leased", "count": 2, "meanWaitSec": 1.5}),
    (Settled("mail", "ack", 2, [10, 20]), {"event": "acked", "count": 2, "meanProcessingSec": 0.015}),
    (
        Settled("mail", "nack", 1, [10], "TIMEOUT"),
        {"event": "nacked", "count": 1, "reason": "TIMEOUT", "meanProcessingSec": 0.01},
    ),
    (Settled("mail", "release", 1, [10]), {"event": "released", "count": 1, "meanProcessingSec": 0.01}),
    (Settled("mail", "extend", 3), {"event": "extended", "count": 3}),
    (Lapsed("mail", 1), {"event": "lapsed", "count": 1}),
    (Died("mail", "POISON", 1), {"event": "died", "count": 1, "reason": "POISON"}),
    (Dropped("mail", "quota", 4), {"event": "dropped", "count": 4, "why": "quota"}),
    (Redriven("mail", 5), {"event": "redriven", "count": 5}),
    (Parked("mail", 6), {"event": "parked", "count": 6}),
    (Refused("mail", "quota_exceeded", 7), {"event": "refused", "count": 7, "code": "quota_exceeded"}),
    (Steered("mail", "policy"), {"event": "policy set"}),
    (Steered("mail", "pause"), {"event": "paused"}),
    (Steered("mail", "resume"), {"event": "resumed"}),
    (Steered("mail", "delete"), {"event": "deleted"}),
]
UNTOLD: list[Event] = [Committed(1, 1, 0, 0), Traced("mail", "m-1", "{}", "publish", 0, 0, 0)]


@pytest.mark.parametrize(("event", "words"), EVENTS, ids=[str(words["event"]) for _, words in EVENTS])
def test_each_event_in_words(event: OfQueue, words: dict[str, Any]) -> None:
    assert describe(event, START_MS) == {"at": "2026-01-13T09:21:00.000+00:00", "queue": "mail", **words}


def test_the_names_of_all_events_are_listed() -> None:
    others = FeedMoved("publisher", "starting", "online"), ClientRefused("stomp", "10.0.0.9", "", "unknown")
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
def feed(clock: ManualClock) -> Feed:
    return Feed(clock)


def told(part: dict[str, Any]) -> list[tuple[str, str]]:
    return [(event["event"], event["queue"]) for event in part["events"]]


def test_who_follows_hears_what_comes_after(feed: Feed) -> None:
    feed.hear([Published("early", 1, 1)])
    first = feed.after(None, None)
    assert told(first) == []
    feed.hear([Published("mail", 1, 1), *UNTOLD, Lapsed("post", 1)])
    second = feed.after(first["last"], None)
    assert told(second) == [("published", "mail"), ("lapsed", "post")]
    assert told(feed.after(second["last"], None)) == []
    assert told(feed.after(first["last"], "post")) == [("lapsed", "post")]


def test_who_is_too_slow_is_told_how_much_was_missed(feed: Feed) -> None:
    first = feed.after(None, None)
    for _ in range(KEPT + 5):
        feed.hear([Lapsed("mail", 1)])
    part = feed.after(first["last"], None)
    assert (part["missed"], len(part["events"])) == (5, KEPT)
    assert feed.after(part["last"], None)["missed"] == 0


def test_while_nobody_follows_nothing_is_kept(feed: Feed, clock: ManualClock) -> None:
    first = feed.after(None, None)
    clock.advance(FOLLOWED_MS + 1)
    feed.hear([Lapsed("mail", 1)])
    part = feed.after(first["last"], None)
    assert (part["missed"], part["events"]) == (1, [])
    feed.hear([Lapsed("mail", 1)])
    assert told(feed.after(part["last"], None)) == [("lapsed", "mail")]


def test_numbers_of_an_earlier_server_begin_anew(feed: Feed) -> None:
    feed.hear([Lapsed("mail", 1)])
    assert feed.after(4_711, None) == {"last": 1, "missed": 0, "events": []}


def test_who_waits_is_woken_once(feed: Feed) -> None:
    woken: list[str] = []
    feed.after(None, None)
    feed.wait(lambda: woken.append("first"))
    leaving = lambda: woken.append("second")  # noqa: E731
    feed.wait(leaving)
    feed.leave(leaving)
    feed.hear([Committed(1, 1, 0, 0)])
    assert woken == []
    feed.hear([Lapsed("mail", 1)])
    feed.hear([Lapsed("mail", 1)])
    assert woken == ["first"]
