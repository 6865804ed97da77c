"""Leases are kept while the work goes on, however long; lost ones are noticed; all with as few commits as can be."""

import threading

import pytest

from tests.support.consumer import Blocking, Watched, running
from tests.support.wait import PATIENCE, until
from yirangmq.broker.queues import Queues
from yirangmq.consumer.consumer import Consumer
from yirangmq.consumer.delivery import HandlerDelivery
from yirangmq.consumer.settler import ConsumerSummary
from yirangmq.core.errors import StoreError
from yirangmq.core.states import State
from yirangmq.testing import FailingStore, ManualClock, open_for_test

LEASE = 0.15
"""Seconds; the pulse beats twenty times a second, and the broker's time moves only when the test says so."""
LEASE_MS = 150


@pytest.fixture(autouse=True)
def short_leases(queues: Queues) -> None:
    for queue in ("mail", "news"):
        queues.set_policy(queue, {"visibilityTimeoutSec": LEASE})


def test_lease_extension_keeps_a_handler_of_ten_lease_times_from_running_twice(
    queues: Queues, clock: ManualClock
) -> None:
    watched, slow = Watched(queues), Blocking()
    queues.publish("mail", "long work")
    consumer = Consumer(watched)
    consumer.handler("mail")(slow)
    with running(consumer) as run:
        slow.wait_begun()
        for _ in range(20):
            seen = watched.calls["extend"]
            clock.advance(LEASE_MS // 2)
            # Two more: one may have been under way while the time was moved.
            until(lambda seen=seen: watched.calls["extend"] >= seen + 2, what="an extension")
            queues.sweep()
            assert queues.counts("mail").leased == 1
        slow.go.set()
        until(lambda: queues.counts("mail").done == 1)
    assert len(slow.begun) == 1
    assert run.summary == ConsumerSummary(done=1)


def test_lease_extension_of_all_running_messages_is_one_commit(clock: ManualClock) -> None:
    from yirangmq.stores.memory import MemoryStore

    store = FailingStore(MemoryStore())
    queues = open_for_test(store=store, clock=clock)
    queues.set_policy("mail", {"visibilityTimeoutSec": LEASE})
    queues.publish_many("mail", list(range(8)))
    watched, slow = Watched(queues), Blocking()
    consumer = Consumer(watched, concurrency=8)
    consumer.handler("mail")(slow)
    with running(consumer):
        slow.wait_begun(8)
        calls, commits, beats = watched.calls["extend"], store.commits, watched.calls["beat"]
        until(lambda: watched.calls["extend"] >= calls + 6, what="extensions")
        made = watched.calls["extend"] - calls
        assert store.commits - commits <= made + 1, "a lease that finds no room asks for nothing, a beat stores nothing"
        assert watched.calls["beat"] - beats < made, "beats are seconds apart, these are much closer"
        assert set(watched.sizes["extend"]) == {8}
        slow.go.set()


def test_lease_extension_covers_prefetched_messages_not_started(queues: Queues, clock: ManualClock) -> None:
    watched, slow = Watched(queues), Blocking()
    queues.publish_many("mail", [1, 2, 3])
    consumer = Consumer(watched)
    consumer.handler("mail", prefetch=2)(slow)
    with running(consumer):
        slow.wait_begun()
        until(lambda: queues.counts("mail").leased == 3)
        for _ in range(4):
            seen = watched.calls["extend"]
            clock.advance(LEASE_MS // 2)
            until(lambda seen=seen: watched.calls["extend"] >= seen + 2)
            queues.sweep()
            assert queues.counts("mail").leased == 3
        slow.go.set()
        until(lambda: queues.counts("mail").done == 3)
    assert [delivery.attempt for delivery in slow.begun] == [1, 1, 1]


def test_lease_extension_of_each_queue_follows_its_own_visibility_timeout(queues: Queues) -> None:
    queues.set_policy("news", {"visibilityTimeoutSec": 3600})
    watched, slow = Watched(queues), Blocking()
    queues.publish("mail", 1)
    queues.publish("news", 2)
    consumer = Consumer(watched)
    consumer.handler("mail")(slow)
    consumer.handler("news")(slow)
    with running(consumer):
        slow.wait_begun(2)
        until(lambda: watched.calls["extend"] >= 5)
        assert set(watched.sizes["extend"]) == {1}, "an hour's lease needs nothing for twenty minutes"
        slow.go.set()


def test_lease_loss_is_visible_to_the_handler_and_its_result_is_dropped(queues: Queues, clock: ManualClock) -> None:
    slow = Blocking()
    queues.publish("mail", "x")
    consumer = Consumer(queues)
    consumer.handler("mail")(slow)
    with running(consumer) as run:
        slow.wait_begun()
        [delivery] = slow.begun
        assert not delivery.lost
        consumer.pause()
        clock.advance(LEASE_MS + 1)
        until(lambda: delivery.lost, what="the loss")
        [other] = queues.lease("mail")
        assert other.attempt == 2
        slow.go.set()
        until(lambda: any(one["lost"] == 1 for one in queues.consumer_list()))
        assert queues.show("mail", delivery.id).message.state is State.LEASED
        queues.ack(other.lease_id)
    assert run.summary == ConsumerSummary(lost=1)


def test_lease_expiry_before_the_result_drops_the_result(queues: Queues, clock: ManualClock) -> None:
    queues.set_policy("mail", {"visibilityTimeoutSec": 3600})
    consumer = Consumer(queues)

    @consumer.handler("mail")
    def late(delivery: HandlerDelivery) -> None:
        clock.advance(3_600_001)

    id = queues.publish("mail", "x").id
    assert consumer.run(limit=1) == ConsumerSummary(lost=1)
    queues.sweep()
    assert queues.show("mail", id).message.state is State.READY


def test_lease_extension_that_fails_is_retried_before_the_lease_ends(queues: Queues) -> None:
    watched, slow = Watched(queues), Blocking()

    def refuse_twice(verb: str, number: int) -> None:
        if verb == "extend" and number <= 2:
            raise StoreError("the disk is away, says the test")

    watched.before = refuse_twice
    queues.publish("mail", "x")
    consumer = Consumer(watched)
    consumer.handler("mail")(slow)
    with running(consumer) as run:
        slow.wait_begun()
        until(lambda: watched.calls["extend"] >= 4)
        slow.go.set()
    assert run.summary == ConsumerSummary(done=1)


def test_ack_batch_contains_all_messages_that_ended_while_the_previous_ack_was_committed(queues: Queues) -> None:
    watched, slow = Watched(queues), Blocking()
    others_ended, under_way = threading.Event(), threading.Event()

    def hold_up_the_first(verb: str, number: int) -> None:
        if (verb, number) == ("ack", 1):
            under_way.set()
            assert others_ended.wait(PATIENCE)

    watched.before = hold_up_the_first

    def handle(delivery: HandlerDelivery) -> None:
        if delivery.value() != 0:
            slow(delivery)

    queues.publish_many("mail", list(range(8)))
    consumer = Consumer(watched, concurrency=8)
    consumer.handler("mail")(handle)
    with running(consumer) as run:
        slow.wait_begun(7)
        assert under_way.wait(PATIENCE)
        slow.go.set()
        until(lambda: watched.sizes["lease"].count(8) == 2, what="room for eight again")
        others_ended.set()
        until(lambda: queues.counts("mail").done == 8)
    assert watched.sizes["ack"] == [1, 7]
    assert run.summary == ConsumerSummary(done=8)


def test_ack_that_fails_is_retried_while_its_lease_is_valid(queues: Queues) -> None:
    watched = Watched(queues)

    def refuse_twice(verb: str, number: int) -> None:
        if verb in ("ack", "nack") and number <= 2:
            raise StoreError("the disk is away, says the test")

    watched.before = refuse_twice
    queues.set_policy("mail", {"visibilityTimeoutSec": 3600})
    queues.publish("mail", "x")
    consumer = Consumer(watched)
    consumer.handler("mail")(lambda delivery: None)
    assert consumer.run(until_empty=True) == ConsumerSummary(done=1)
    assert watched.calls["ack"] == 3


def test_ack_that_keeps_failing_is_given_up_and_counted_as_lost(queues: Queues) -> None:
    watched = Watched(queues)

    def refuse(verb: str, number: int) -> None:
        if verb == "ack":
            raise StoreError("the disk is away, says the test")

    watched.before = refuse
    queues.publish("mail", "x")
    consumer = Consumer(watched)
    consumer.handler("mail")(lambda delivery: consumer.stop())
    assert consumer.run() == ConsumerSummary(lost=1)
    assert queues.counts("mail").leased == 1
