"""The roster of consumers, in memory and in a folder: who is at work, and what an operator wishes of them."""

from pathlib import Path
from typing import Any

import pytest

from yirangmq.core.consumer_registry import (
    FORGET_AFTER_MS,
    MAX_CONSUMERS,
    SILENT_AFTER_MS,
    WISHES,
    ConsumerRegistry,
    MemoryConsumerRegistry,
)
from yirangmq.core.errors import BadInput, NotFound
from yirangmq.stores.consumer_registry import REFRESH_MS, ConsumerRegistryFolder
from yirangmq.testing import ManualClock


def said(id: str = "worker-1", **changes: Any) -> dict[str, Any]:
    return {
        "consumerId": id,
        "host": "box",
        "pid": 7,
        "queues": ["mail"],
        "startedAt": 1,
        "state": "running",
        **changes,
    }


@pytest.fixture(params=["memory", "folder"])
def roster(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> ConsumerRegistry:
    return (
        MemoryConsumerRegistry(clock)
        if request.param == "memory"
        else ConsumerRegistryFolder(tmp_path / "queue.db.consumers", clock)
    )


def states(roster: ConsumerRegistry) -> dict[str, str]:
    return {card["consumerId"]: card["state"] for card in roster.entries()}


def test_consumer_registry_lists_reports_by_consumer_id(roster: ConsumerRegistry, clock: ManualClock) -> None:
    assert roster.entries() == []
    roster.report(said("b", inWork=2, done=5, failed=1, lost=3, stuck=4))
    roster.report(said("a"))
    assert [card["consumerId"] for card in roster.entries()] == ["a", "b"]
    assert roster.entries()[1] == {
        "consumerId": "b",
        "state": "running",
        "queues": ["mail"],
        "inWork": 2,
        "done": 5,
        "failed": 1,
        "lost": 3,
        "stuck": 4,
        "host": "box",
        "pid": 7,
        "startedAt": 1,
        "seenAt": clock.now_ms(),
        "silentSec": 0,
        "wish": None,
    }


@pytest.mark.parametrize("wish", list(WISHES))
def test_consumer_registry_keeps_a_request_until_the_consumer_has_followed_it(
    roster: ConsumerRegistry, wish: str
) -> None:
    before = "paused" if wish == "resume" else "running"
    assert roster.report(said(state=before)) == ""
    assert roster.wish("worker-1", wish)["wish"] == wish
    assert roster.entries()[0]["wish"] == wish
    assert roster.report(said(state=before)) == wish
    assert roster.report(said(state=before)) == wish
    assert roster.report(said(state=WISHES[wish].value)) == ""
    assert roster.report(said(state=before)) == "", "it is fulfilled once, and then forgotten"
    assert roster.entries()[0]["wish"] is None


def test_consumer_registry_replaces_a_request_by_the_latest(roster: ConsumerRegistry) -> None:
    roster.report(said())
    roster.wish("worker-1", "pause")
    roster.wish("worker-1", "drain")
    assert roster.report(said()) == "drain"


@pytest.mark.parametrize("other", [{"pid": 8}, {"startedAt": 2}, {"host": "crate"}])
def test_consumer_registry_request_does_not_apply_to_a_new_process_of_the_same_name(
    roster: ConsumerRegistry, other: dict[str, Any]
) -> None:
    roster.report(said())
    roster.wish("worker-1", "drain")
    assert roster.report(said(**other)) == ""
    assert roster.report(said()) == ""


def test_consumer_registry_removes_a_consumer_that_stops(roster: ConsumerRegistry, tmp_path: Path) -> None:
    roster.report(said("a"))
    roster.report(said("b"))
    roster.wish("a", "pause")
    assert roster.report(said("a", state="stopped")) == ""
    assert list(states(roster)) == ["b"]
    roster.report(said("b", state="stopped"))
    assert roster.entries() == []
    assert list(tmp_path.iterdir()) == []


def test_consumer_registry_shows_a_silent_consumer_and_forgets_it_after_an_hour(
    roster: ConsumerRegistry, clock: ManualClock
) -> None:
    roster.report(said("a"))
    clock.advance(SILENT_AFTER_MS)
    assert states(roster) == {"a": "running"}
    clock.advance(1)
    assert states(roster) == {"a": "silent"}
    assert roster.entries()[0]["silentSec"] == (SILENT_AFTER_MS + 1) / 1000
    roster.report(said("a"))
    assert states(roster) == {"a": "running"}
    clock.advance(FORGET_AFTER_MS)
    assert states(roster) == {"a": "silent"}
    clock.advance(1)
    assert states(roster) == {}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"consumerId": "../x"}, "consumerId"),
        ({"consumerId": None}, "consumerId"),
        ({"state": "asleep"}, "state"),
        ({"inWork": -1}, "inWork"),
        ({"pid": "7"}, "pid"),
        ({"queues": "mail"}, "queues"),
        ({"queues": ["a/b"]}, "queues"),
        ({"host": 5}, "host"),
    ],
)
def test_consumer_registry_refuses_an_invalid_report_with_its_field(
    roster: ConsumerRegistry, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadInput) as caught:
        roster.report({**said(), **changes})
    assert caught.value.field == field
    assert roster.entries() == []


def test_consumer_registry_ignores_unknown_members_of_a_newer_consumer(roster: ConsumerRegistry) -> None:
    roster.report(said(mood="good"))
    assert list(states(roster)) == ["worker-1"]


def test_consumer_registry_refuses_unknown_requests_and_unknown_consumers(roster: ConsumerRegistry) -> None:
    roster.report(said())
    with pytest.raises(BadInput) as caught:
        roster.wish("worker-1", "dance")
    assert caught.value.field == "wish"
    with pytest.raises(NotFound):
        roster.wish("worker-2", "pause")
    with pytest.raises(BadInput):
        roster.wish("../worker-1", "pause")


def test_consumer_registry_in_memory_is_bounded_and_drops_the_longest_silent(clock: ManualClock) -> None:
    roster = MemoryConsumerRegistry(clock)
    for number in range(MAX_CONSUMERS + 1):
        roster.report(said(f"c{number:06}"))
    found = states(roster)
    assert len(found) == MAX_CONSUMERS
    assert "c000000" not in found


def test_consumer_registry_folder_passes_the_request_of_another_process_to_the_consumer(
    tmp_path: Path, clock: ManualClock
) -> None:
    mine, theirs = (ConsumerRegistryFolder(tmp_path / "q.consumers", clock) for _ in range(2))
    mine.report(said())
    theirs.wish("worker-1", "pause")
    assert mine.report(said()) == "pause"
    assert mine.report(said(state="paused")) == ""
    assert theirs.entries()[0]["state"] == "paused"


def test_consumer_registry_folder_rewrites_an_unchanged_report_only_after_the_refresh_time(
    tmp_path: Path, clock: ManualClock
) -> None:
    folder = tmp_path / "q.consumers"
    mine, theirs = ConsumerRegistryFolder(folder, clock), ConsumerRegistryFolder(folder, clock)
    mine.report(said())
    first = clock.now_ms()
    clock.advance(REFRESH_MS - 1)
    mine.report(said())
    assert theirs.entries()[0]["seenAt"] == first
    mine.report(said(done=1))
    assert theirs.entries()[0]["seenAt"] == clock.now_ms()
    clock.advance(REFRESH_MS)
    mine.report(said(done=1))
    assert theirs.entries()[0]["seenAt"] == clock.now_ms()


def test_consumer_registry_folder_ignores_unreadable_files(tmp_path: Path, clock: ManualClock) -> None:
    folder = tmp_path / "q.consumers"
    roster = ConsumerRegistryFolder(folder, clock)
    roster.report(said())
    (folder / "broken.json").write_text("{")
    (folder / "other.json").write_text("[]")
    (folder / "worker-1.wish").write_text('{"wish": "dance"}')
    assert list(states(roster)) == ["worker-1"]
    assert roster.report(said()) == ""
