"""The tools for tests, which are also our users'."""

import pytest

from yirangmq.broker.queues import Queues
from yirangmq.core.errors import StoreError, StoreFull, StoreReadOnly
from yirangmq.core.message import Counts
from yirangmq.core.ports import Clock, Ids, Store
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import CountingIds, FailingStore, ManualClock, open_for_test


def test_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(5)
    assert (clock.now_ms(), clock.now_ms()) == (5, 5)
    clock.advance(10)
    assert clock.now_ms() == 15
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


def test_counting_ids_are_numbered_in_order() -> None:
    ids = CountingIds("x", chance=0.25)
    assert [ids.new(2), ids.new(0), ids.new(1)] == [["x-1", "x-2"], [], ["x-3"]]
    assert ids.fraction() == 0.25


def test_manual_clock_counting_ids_and_failing_store_fit_the_ports() -> None:
    clock: Clock = ManualClock()
    ids: Ids = CountingIds()
    store: Store = FailingStore(MemoryStore())
    with Queues(store, clock, ids) as queues:
        assert queues.publish("mail", 1).id == "m-1"


def test_open_for_test_gives_queues_that_are_ready_to_use() -> None:
    with open_for_test() as queues:
        queues.publish("mail", "hello")
        assert [delivery.value() for delivery in queues.lease("mail")] == ["hello"]
        assert queues.consumer == "tester"


def test_failing_store_fails_at_the_given_transactions_and_at_no_other_time() -> None:
    store = FailingStore(MemoryStore())
    queues = open_for_test(store=store)
    store.fail_at(2)
    store.fail_at(3, StoreReadOnly("no"), commit=False)
    queues.publish("mail", 1)
    with pytest.raises(StoreFull):
        queues.publish("mail", 2)
    with pytest.raises(StoreReadOnly):
        queues.publish("mail", 3)
    queues.publish("mail", 4)
    assert queues.counts("mail") == Counts(ready=2, published=2, bytes=2)
    assert (store.transactions, store.commits) == (4, 2)


def test_failing_store_neither_counts_nor_fails_reads() -> None:
    store = FailingStore(MemoryStore())
    queues = open_for_test(store=store)
    store.fail_at(1)
    assert queues.counts("mail") == Counts()
    assert store.transactions == 0
    assert queues.durability() == "none"


def test_memory_store_check_finds_and_repairs_a_wrong_counter() -> None:
    store = MemoryStore()
    queues = open_for_test(store=store)
    queues.publish("mail", 1)
    store.state.counts["mail"] = Counts(ready=7, published=1)
    [finding] = queues.check()
    assert (finding.kind, finding.where, finding.is_repaired) == ("counter", "mail", False)
    [finding] = queues.check(repair=True)
    assert finding.is_repaired
    assert list(queues.check()) == []
    assert queues.counts("mail") == Counts(ready=1, published=1, bytes=1)


def test_memory_store_refuses_a_change_that_does_not_match_its_state() -> None:
    """It is stricter than a store on disk has to be, so that a mistake of ours shows in the tests."""
    store = MemoryStore()
    queues = open_for_test(store=store)
    queues.publish("mail", 1)
    with store.transaction(write=False) as transaction:
        [(card, _)] = transaction.heads("mail", 1)
    with pytest.raises(StoreError), store.transaction(write=False) as transaction:
        transaction.forget([card])
    with pytest.raises(StoreError), store.transaction() as transaction:
        transaction.swap([(card._replace(attempt=9), card, None)])  # type: ignore[list-item]
    assert queues.counts("mail") == Counts(ready=1, published=1, bytes=1)
