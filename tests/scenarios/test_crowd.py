"""Eight producers and eight consumers, all processes of their own, on one store: each message comes exactly once and
nobody ever hears that the store is busy. ``make soak-store`` makes it a full minute (YIRANGMQ_SOAK_SECONDS=60)."""

import os
import random
import time
import traceback
from collections import Counter
from multiprocessing.connection import Connection

import pytest

import yirangmq
from tests.support.wait import PATIENCE
from tests.support.worker_processes import LONG, crew
from yirangmq.core.states import State
from yirangmq.crashtest.workload import take_snapshot, wrong_counts
from yirangmq.stores.open import open_store

pytestmark = pytest.mark.process
SECONDS = float(os.environ.get("YIRANGMQ_SOAK_SECONDS", "3"))
EACH = 8
LEAST = 5
"""Batches of each producer, however long its start took."""


def produce_until(url: str, pipe: Connection, seed: int, end: float) -> None:
    chance = random.Random(seed)
    try:
        with yirangmq.open(url) as queues:
            made = 0
            while made < LEAST or time.time() < end:
                made += 1
                payloads = [chance.randbytes(chance.choice((10, 200, 2000))) for _ in range(chance.choice((1, 1, 5)))]
                for receipt in queues.publish_many("work", payloads):
                    pipe.send(("published", receipt.id))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))


def consume_until_empty(url: str, pipe: Connection, seed: int, end: float) -> None:
    chance = random.Random(seed)
    try:
        with yirangmq.open(url) as queues:
            while time.time() < end + 2 * PATIENCE:
                batch = queues.lease("work", chance.choice((1, 5, 20)), lease_seconds=LONG, wait=0.2)
                for delivery in batch:
                    pipe.send(("leased", delivery.id))
                    pipe.send(("token", delivery.lease_id))
                for delivery, error in zip(batch, queues.ack_many([d.lease_id for d in batch]), strict=True):
                    pipe.send(("acked", delivery.id) if error is None else ("error", str(error)))
                if not batch and time.time() > end and queues.counts("work").ready == 0:
                    return
    except BaseException:
        pipe.send(("error", traceback.format_exc()))


@pytest.mark.timeout(SECONDS + 3 * PATIENCE)
def test_concurrent_processes_on_one_store_lose_nothing_repeat_nothing_and_are_never_refused_as_busy(url: str) -> None:
    end = time.time() + SECONDS
    with crew() as team:
        workers = [
            team.start(work, url, seed, end) for seed in range(EACH) for work in (produce_until, consume_until_empty)
        ]
        facts = team.hear_all(workers)
    errors = [text for what, text in facts if what == "error"]
    assert errors == []
    published, leased, acked, tokens = (
        Counter(which for what, which in facts if what == wanted)
        for wanted in ("published", "leased", "acked", "token")
    )
    assert len(published) >= EACH * LEAST  # a machine with other things to do is slow, not wrong
    assert set(published.values()) | set(leased.values()) | set(acked.values()) | set(tokens.values()) == {1}
    assert published == leased == acked
    store = open_store(url)
    try:
        found = take_snapshot(store)
        assert {card.state for card in found.entries.values()} == {State.DONE}
        assert len(found.entries) == len(published)
        assert wrong_counts(found) == []
        assert list(store.check(repair=False)) == []
    finally:
        store.close()
