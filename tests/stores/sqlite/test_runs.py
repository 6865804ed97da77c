"""Messages kept as one row are what they would be in rows of their own: a memory store, told the same, agrees."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import apsw
import pytest

from tests.support.queues import answer_or_code, codes_of
from tests.support.store_contract import picture
from yirangmq import NewMessage, QueueError
from yirangmq.broker.queues import Queues
from yirangmq.core.ports import Store
from yirangmq.stores.memory import MemoryStore
from yirangmq.stores.sqlite.runs import spans
from yirangmq.stores.sqlite.store import SqliteStore
from yirangmq.testing import CountingIds, ManualClock, open_for_test

QUEUES = ("mail", "post")
POLICY = {"archive": {"maxMessages": 9}, "retry": {"limit": 1}, "tombstoneSec": 20, "visibilityTimeoutSec": 30}


class Twins:
    """Two stores, told the same at the same moments."""

    def __init__(self, path: Path, seed: int) -> None:
        self.stores: list[Store] = [SqliteStore(path, durability="os"), MemoryStore()]
        self.clock = ManualClock()
        self.queues = [open_for_test(store=store, clock=self.clock, ids=CountingIds()) for store in self.stores]
        self._chance = Random(seed)
        self._held: list[str] = []
        for queue in QUEUES:
            for queues in self.queues:
                queues.set_policy(queue, POLICY)

    def both(self, ask: Callable[[Queues], object]) -> object:
        ours, theirs = (answer_or_code(queues, ask) for queues in self.queues)
        assert ours == theirs
        return ours

    def agree(self) -> None:
        assert picture(self.stores[0]) == picture(self.stores[1])
        assert list(self.stores[0].check(repair=False)) == []

    def step(self) -> None:
        act = self._chance.choice([self.publish, self.publish, self.lease, self.lease, *[self.settle] * 4, self.time])
        act()

    def publish(self) -> None:
        queue, count = self._chance.choice(QUEUES), self._chance.randint(1, 9)
        ttl = self._chance.choice([None, None, None, 25])
        priority = self._chance.choice([None, None, 3])
        new = [NewMessage(payload=n, ttl=ttl, priority=priority) for n in range(count)]
        self.both(lambda queues: queues.publish_many(queue, new))

    def lease(self) -> None:
        queue, count = self._chance.choice(QUEUES), self._chance.randint(1, 12)
        got = self.both(lambda queues: [delivery.lease_id for delivery in queues.lease(queue, count)])
        assert isinstance(got, list)
        self._held += got

    def settle(self) -> None:
        """Some of what is held, in one go: neighbours or not."""
        if not self._held:
            return
        begin = self._chance.randrange(len(self._held))
        some = self._held[begin : begin + self._chance.randint(1, 12)]
        if self._chance.random() < 0.3:
            some = self._chance.sample(self._held, min(len(self._held), 5))
        verb = self._chance.choice(["ack", "ack", "ack", "nack", "extend", "release"])
        if verb != "extend":
            self._held = [lease for lease in self._held if lease not in some]
        self.both(lambda queues: codes_of(_settle(queues, verb, some)))

    def time(self) -> None:
        self.clock.advance(self._chance.choice([1, 1_000, 9_000, 31_000]))
        self.both(lambda queues: queues.sweep())


def _settle(queues: Queues, verb: str, leases: list[str]) -> list[QueueError | None]:
    if verb == "nack":
        return queues.nack_many(leases, "HANDLER_ERROR", "no")
    if verb == "ack":
        return queues.ack_many(leases)
    return queues.extend_many(leases, 40) if verb == "extend" else queues.release_many(leases)


@pytest.mark.parametrize("seed", range(12))
def test_runs_behave_like_messages_in_rows_of_their_own(tmp_path: Path, seed: int) -> None:
    twins = Twins(tmp_path / "queue.db", seed)
    for _ in range(60):
        twins.step()
        twins.agree()
    for queues in twins.queues:
        queues.close()


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[Queues]:
    with open_for_test(f"sqlite:{tmp_path / 'queue.db'}") as made:
        yield made


def _rows(tmp_path: Path, table: str) -> list[tuple[int, int]]:
    db = apsw.Connection(str(tmp_path / "queue.db"))
    found = [(row[0], row[1]) for row in db.execute(f"SELECT first, last FROM {table} ORDER BY first")]
    assert not [row for single in ("ready", "life") for row in db.execute(f"SELECT * FROM {single}")]
    db.close()
    return found


def test_runs_hold_messages_published_in_sequence_as_one_row(queues: Queues, tmp_path: Path) -> None:
    for n in range(5):
        queues.publish_many("mail", [n] * 3)
    assert _rows(tmp_path, "fresh") == [(1, 15)]


def test_runs_hold_messages_leased_and_settled_together_as_one_row(queues: Queues, tmp_path: Path) -> None:
    queues.publish_many("mail", range(9))
    taken = [delivery.lease_id for delivery in queues.lease("mail", 6)]
    assert _rows(tmp_path, "fresh") == [(7, 9)]
    assert _rows(tmp_path, "batch") == [(1, 6)]
    queues.ack(taken[2:4])
    assert _rows(tmp_path, "batch") == [(1, 2), (3, 4), (5, 6)]


def test_history_that_is_trimmed_keeps_the_ids_for_dedup(queues: Queues, tmp_path: Path) -> None:
    queues.set_policy("mail", {"archive": {"maxMessages": 2}})
    queues.publish_many("mail", range(6))
    queues.ack([delivery.lease_id for delivery in queues.lease("mail", 6)])
    queues.sweep()
    assert _rows(tmp_path, "batch") == [(1, 4), (5, 6)]
    assert [queues.show("mail", f"m-{n}").envelope is None for n in range(1, 7)] == [True] * 4 + [False] * 2
    assert queues.publish("mail", NewMessage(payload=1, id="m-1")).duplicate


def test_spans_join_consecutive_numbers() -> None:
    assert spans([]) == []
    assert spans([5]) == [(5, 5)]
    assert spans([3, 1, 2]) == [(1, 3)]
    assert spans([9, 1, 4, 3, 5]) == [(1, 1), (3, 5), (9, 9)]
