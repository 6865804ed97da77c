"""kill -9, a hundred times a store, on producers and consumers: what was confirmed is there, nothing comes twice."""

import random
import time
from collections import Counter

import pytest

import yirangmq
from tests.support.worker_processes import Crew, Fact, consume, crew, produce
from yirangmq.broker.queues import Queues
from yirangmq.clock import SystemClock
from yirangmq.core.states import State
from yirangmq.crashtest.workload import LIVE_STATES, Snapshot, take_snapshot, wrong_counts
from yirangmq.stores.open import open_store
from yirangmq.testing import CountingIds, ManualClock

pytestmark = pytest.mark.process
KILLS = 100
LONGEST_LIFE = 0.025
"""Seconds a worker lives on after its first word: some tens of commits."""
STILLBORN = 0.15
"""The part of them that is killed before it has said anything: while opening the store, or waiting for its turn."""
FIRST_WORD = 10
"""Seconds a worker has for it; one that has nothing to do says nothing, and is killed all the same."""
LATER_MS = 7_200_000


def killed_in_turn(team: Crew, url: str, chance: random.Random) -> list[Fact]:
    """One producer and one consumer at work together, each killed at a moment of its own."""
    workers = [team.start(work, url, chance.getrandbits(32)) for work in (produce, consume)]
    chance.shuffle(workers)
    facts: list[Fact] = []
    for worker in workers:
        if chance.random() > STILLBORN:
            worker.hears.poll(FIRST_WORD)
        time.sleep(chance.uniform(0, LONGEST_LIFE))  # the moment of the kill is the point of the test
        facts += worker.kill()
    return facts


def test_kill_of_a_hundred_producers_and_consumers_loses_and_repeats_nothing(url: str) -> None:
    chance = random.Random(20260113)
    with yirangmq.open(url) as queues:
        queues.set_policy("work", {"retry": {"limit": 1_000}})
    facts: list[Fact] = []
    with crew() as team:
        for _ in range(KILLS // 2):
            facts += killed_in_turn(team, url, chance)
    heard: dict[str, Counter[str]] = {}
    for what, which in facts:
        heard.setdefault(what, Counter())[which] += 1
    assert min(len(heard[what]) for what in ("published", "acked", "giving back")) > 0, "they did work"
    look_over(url, heard)


def look_over(url: str, heard: dict[str, Counter[str]]) -> None:
    published, acked, leased = set(heard["published"]), set(heard["acked"]), heard["leased"]
    store = open_store(url)
    try:
        found = take_snapshot(store)
        states = {id: card.state for (_, id), card in found.entries.items()}
        assert found.twice == ()
        assert wrong_counts(found) == []
        assert list(store.check(repair=False)) == []
        assert published - states.keys() == set(), "confirmed and gone"
        assert {id for id in acked if states[id] is not State.DONE} == set(), "acked and not done"
        assert max(heard["token"].values()) == 1, "one lease id given out twice"
        doubled = {id for id, times in leased.items() if times > 1 + heard["giving back"][id]}
        assert doubled == set(), "leased again while a lease was live"
        drain(Queues(store, ManualClock(SystemClock().now_ms() + LATER_MS), CountingIds(), "last"), found, acked)
    finally:
        store.close()


def drain(queues: Queues, found: Snapshot, acked: set[str]) -> None:
    """Hours later every lease has lapsed: all that is owed comes, and nothing that was acked."""
    queues.sweep()
    rest: list[str] = []
    while batch := queues.lease("work", 1000):
        rest += [delivery.id for delivery in batch]
        queues.ack([delivery.lease_id for delivery in batch])
    assert len(rest) == len(set(rest))
    assert set(rest) & acked == set()
    assert set(rest) == {id for (_, id), card in found.entries.items() if card.state in LIVE_STATES}
