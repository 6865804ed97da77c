"""Purge of a backlog, on an opened store and by both faces of a client: waiting messages go, and no others."""

from typing import Any

import pytest

from tests.support.queues import state
from yirangmq import NewMessage
from yirangmq.broker.message_moves import MAX_PER_COMMIT
from yirangmq.core.errors import BadFilter, BadInput, NotFound
from yirangmq.core.message import Counts
from yirangmq.core.ports import MoveResult


@pytest.fixture
def filled(everyones: Any) -> Any:
    """``mail`` has a leased and a dead message, ``r-1`` and ``r-2`` ready, ``d`` delayed, ``h`` held behind ``g``."""
    everyones.set_policy("mail", {"maxBytes": 1000})
    for id, reason in (("leased", ""), ("dead", "REJECTED")):
        everyones.publish("mail", NewMessage(payload=1, id=id))
        [delivery] = everyones.lease("mail")
        if reason:
            everyones.nack(delivery.lease_id, reason)
    waiting = [NewMessage(payload={"n": n}, id=f"r-{n}") for n in (1, 2)]
    waiting += [NewMessage(payload=1, id="d", delay=60), NewMessage(payload=1, id="g", group="x")]
    everyones.publish_many("mail", [*waiting, NewMessage(payload=1, id="h", group="x")])
    return everyones


def test_purge_drops_the_backlog_and_leaves_everything_else(filled: Any) -> None:
    before = filled.counts("mail")
    assert (before.ready, before.delayed, before.held, before.leased, before.dead) == (3, 1, 1, 1, 1)
    tried = filled.purge("mail", all=True, dry_run=True)
    assert tried == MoveResult(5, ["r-1", "r-2", "d", "g", "h"])
    assert filled.counts("mail") == before
    assert filled.purge("mail", all=True) == tried
    after = filled.counts("mail")
    assert (after.ready, after.delayed, after.held, after.leased, after.dead, after.dropped) == (0, 0, 0, 1, 1, 5)
    assert filled.policy("mail")["maxBytes"] == 1000
    assert filled.purge("mail", all=True) == MoveResult(0, [])


def test_purge_selects_by_filter_state_and_limit(filled: Any) -> None:
    assert filled.purge("mail", "payload.n=2") == MoveResult(1, ["r-2"])
    assert filled.purge("mail", "publishedAt<1h ago") == MoveResult(0, [])
    assert filled.purge("mail", all=True, state="delayed") == MoveResult(1, ["d"])
    assert filled.purge("mail", "publishedAt>1h ago", limit=1, state="ready") == MoveResult(1, ["r-1"])
    assert state(filled, "g") == "ready"
    assert filled.purge("mail", all=True, state="ready", limit=1) == MoveResult(1, ["g"])
    assert state(filled, "h") == "ready", "the next of the group follows"


@pytest.mark.parametrize(
    ("given", "error", "field"),
    [
        ({}, BadInput, "filter"),
        ({"filter": " "}, BadInput, "filter"),
        ({"all": True, "filter": "attempt=0"}, BadInput, "all"),
        ({"all": True, "state": "leased"}, BadInput, "state"),
        ({"all": True, "limit": 0}, BadInput, "limit"),
        ({"filter": "nonsense=1"}, BadFilter, "filter"),
        ({"queue": "nowhere", "all": True}, NotFound, "queue"),
    ],
)
def test_purge_without_a_selection_is_refused_and_drops_nothing(
    filled: Any, given: dict[str, Any], error: type[BadInput], field: str
) -> None:
    before = filled.counts("mail")
    for dry_run in (True, False):
        with pytest.raises(error) as caught:
            filled.purge(**{"queue": "mail", **given}, dry_run=dry_run)
        assert caught.value.field == field
    assert filled.counts("mail") == before


def test_purge_of_a_large_backlog_takes_several_commits(everyones: Any) -> None:
    count = 2 * MAX_PER_COMMIT + 1
    everyones.publish_many("mail", [b"x"] * count)
    moved = everyones.purge("mail", all=True)
    assert (moved.count, len(moved.ids)) == (count, 10)
    assert everyones.counts("mail") == Counts(published=count, dropped=count)
