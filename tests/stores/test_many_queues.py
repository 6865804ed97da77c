"""What a commit and a health check cost does not depend on how many queues there are: work is counted, not timed."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from yirangmq.admin.health import QUEUES_PER_CHECK, ServerHealth
from yirangmq.broker import expiry_sweeper, operations, settle
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.broker.settle import Leases
from yirangmq.core.policy import Defaults
from yirangmq.core.ports import Store, Transaction
from yirangmq.format.envelope import NewMessage, build
from yirangmq.stores.files import metadata
from yirangmq.stores.files.store import FilesStore
from yirangmq.stores.sqlite.server_store import open_served_store
from yirangmq.testing import CountingIds, ManualClock

FEW, MANY = 1000, 3000
FEW_FOLDERS, MANY_FOLDERS, IN_TURN = 40, 160, 20
"""Both more than any look at all queues takes in one turn, and a whole number of such turns."""


class Work:
    """A store with so many queues, each with a ready and a done message, and the verbs of a server on it."""

    def __init__(self, store: Store, queues: int) -> None:
        self.store, self.clock, self.ids = store, ManualClock(), CountingIds()
        self.context = TransactionContext(self.clock, self.ids, Defaults(max_queues=10**6))
        self.desk = GroupCommitter(store, self.context, self.clock, lambda call: call(), lambda seconds, call: None)
        self.health = ServerHealth(self.clock, None)
        self.queues = queues
        for begin in range(0, queues, 200):
            with store.transaction() as transaction:
                for number in range(begin, min(queues, begin + 200)):
                    self.publish(transaction, f"queue-{number:05}")
                    self.publish(transaction, f"queue-{number:05}")
                    [one] = operations.lease(self.context, transaction, f"queue-{number:05}", 1, None, "me")
                    settle.ack(self.context, transaction, Leases([one.lease_id]), None)
        self.commit(lambda transaction: expiry_sweeper.sweep(self.context, transaction))
        self.commit(self.health.store_facts)

    def publish(self, transaction: Transaction, queue: str) -> None:
        [id] = self.ids.new(1)
        operations.publish(
            self.context, transaction, queue, [build(queue, NewMessage(payload=1), id, self.clock.now_ms())]
        )

    def commit(self, work: Callable[[Transaction], Any]) -> Any:
        answers: list[Any] = []
        self.desk.submit(work, lambda value, error: answers.append(error or value))
        [answer] = answers
        if isinstance(answer, Exception):
            raise answer
        return answer

    def game(self) -> None:
        """A message of every kind of step, in queues at both ends, and a minute of time between them."""
        for queue in ("queue-00000", f"queue-{self.queues - 1:05}"):
            self.commit(partial(self.publish, queue=queue))
            [lease] = self.commit(
                partial(operations.lease, self.context, queue=queue, limit=1, span=None, consumer_id="me")
            )
            acked = self.commit(partial(settle.ack, self.context, leases=Leases([lease.lease_id]), consumer=None))
            assert acked == [None]
            self.clock.advance(2_000)
            self.commit(partial(expiry_sweeper.sweep, self.context))
            self.commit(self.health.store_facts)


@pytest.fixture(params=["sqlite", "files"])
def works(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Work, Work]]:
    monkeypatch.setattr(metadata, "QUEUES_PER_TURN", IN_TURN)
    stores: list[Store]
    if request.param == "sqlite":
        stores = [open_served_store(tmp_path / f"{n}.db", durability="os", seconds=None) for n in range(2)]
        counts = FEW, MANY
    else:
        stores = [FilesStore(tmp_path / f"{n}", durability="os") for n in range(2)]
        counts = FEW_FOLDERS, MANY_FOLDERS
    yield Work(stores[0], counts[0]), Work(stores[1], counts[1])
    for store in stores:
        store.close()


def calls_of(work: Callable[[], None]) -> int:
    """Calls of functions, ours and the system's, and how much they were given to go through."""
    counted = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


def test_commit_and_health_check_cost_does_not_depend_on_the_number_of_queues(works: tuple[Work, Work]) -> None:
    for work in works:
        work.game()  # what is remembered from now on is remembered
    few, many = (calls_of(work.game) for work in works)
    assert many <= few * 1.02


def test_health_finds_backlogs_of_many_queues_in_turn_and_keeps_reporting_them(tmp_path: Path) -> None:
    store = open_served_store(tmp_path / "queue.db", durability="os", seconds=None)
    work = Work(store, 2 * QUEUES_PER_CHECK + 10)
    last = f"queue-{work.queues - 1:05}"
    for _ in range(5):
        work.commit(partial(work.publish, queue=last))
    health = ServerHealth(work.clock, None, backlog_limit=5)
    found = [work.commit(health.store_facts).backlogs for _ in range(6)]
    assert [(last, 6)] in found[:3]
    assert found[2:] == [[(last, 6)]] * 4
    work.commit(lambda transaction: transaction.delete_queue(last))
    assert work.commit(health.store_facts).backlogs == []
    store.close()
