"""Stopping, pausing, ending: what is in work is finished, what is not is given back at once, nothing is lost."""

import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import yirangmq
from tests.support.consumer import Blocking, Watched, running
from tests.support.wait import PATIENCE, until
from yirangmq.broker.queues import Queues
from yirangmq.consumer.consumer import Consumer
from yirangmq.consumer.delivery import HandlerDelivery
from yirangmq.consumer.settler import ConsumerSummary
from yirangmq.consumer.worker_pool import PauseGate
from yirangmq.core.consumer_registry import ConsumerState
from yirangmq.core.errors import BadInput, StoreError
from yirangmq.core.message import Counts, Reason
from yirangmq.core.states import State


def state_of(queues: Queues, queue: str = "mail") -> Counts:
    return queues.counts(queue)


def test_drain_finishes_running_handlers_and_releases_messages_not_started(queues: Queues) -> None:
    slow = Blocking()
    queues.publish_many("mail", list(range(10)))
    consumer = Consumer(queues)
    consumer.handler("mail", prefetch=5)(slow)
    with running(consumer) as run:
        slow.wait_begun()
        until(lambda: state_of(queues).leased == 6)
        consumer.stop()
        until(lambda: state_of(queues).ready == 9, what="those not begun back in line")
        assert run.is_alive
        assert queues.consumer_list()[0]["state"] in ("running", "draining")
        slow.go.set()
        assert run.ended() == ConsumerSummary(done=1, released=5)
    assert queues.consumer_list() == []
    assert (state_of(queues).leased, state_of(queues).done) == (0, 1)
    assert {queues.lease("mail")[0].attempt for _ in range(9)} == {1}, "being held and given back is no attempt"


def test_drain_under_load_loses_and_repeats_no_message(tmp_path: Path) -> None:
    with yirangmq.open(f"sqlite:{tmp_path / 'q.db'}") as queues:
        sent = {stored.id for stored in queues.publish_many("mail", list(range(400)))}
        handled: list[str] = []
        rounds = 0
        while len(handled) < 400 and rounds < 50:
            stop_at = min(400, len(handled) + 37)
            consumer = Consumer(queues, concurrency=4)
            stopped = partial(_note_and_stop, handled=handled, stop_at=stop_at, consumer=consumer)
            consumer.handler("mail", prefetch=20)(stopped)
            consumer.run()
            rounds += 1
            counts = queues.counts("mail")
            assert (counts.leased, counts.ready + counts.done) == (0, 400)
        assert Counter(handled) == Counter(sent)
        assert rounds > 3


def _note_and_stop(delivery: HandlerDelivery, handled: list[str], stop_at: int, consumer: Consumer) -> None:
    handled.append(delivery.id)
    if len(handled) >= stop_at:
        consumer.stop()


def test_drain_timeout_nacks_messages_of_handlers_that_have_not_ended(queues: Queues) -> None:
    slow = Blocking()
    id = queues.publish("mail", "x").id
    consumer = Consumer(queues, drain_seconds=0.05)
    consumer.handler("mail")(slow)
    with running(consumer) as run:
        slow.wait_begun()
        consumer.stop()
        assert run.ended() == ConsumerSummary(failed=1)
    look = queues.show("mail", id)
    assert (look.message.state, look.message.reason) == (State.DELAYED, Reason.TIMEOUT)
    slow.go.set()


def test_drain_requested_before_the_run_leaves_nothing_leased(queues: Queues) -> None:
    queues.publish("mail", "x")
    consumer = Consumer(queues)
    consumer.handler("mail")(lambda delivery: None)
    consumer.stop()
    consumer.run()
    assert queues.counts("mail").leased == 0


def test_consumer_run_can_be_repeated(queues: Queues) -> None:
    consumer = Consumer(queues)
    consumer.handler("mail")(lambda delivery: None)
    for _ in range(2):
        queues.publish("mail", "x")
        assert consumer.run(until_empty=True) == ConsumerSummary(done=1)


def test_consumer_run_is_refused_while_another_run_is_active(queues: Queues) -> None:
    consumer = Consumer(queues)
    consumer.handler("mail")(lambda delivery: None)
    with running(consumer):
        until(queues.consumer_list)
        with pytest.raises(BadInput, match="already"):
            consumer.run()


@pytest.mark.parametrize("by", ["operator", "program"])
def test_pause_stops_leasing_and_resume_continues(queues: Queues, by: str) -> None:
    done: list[object] = []
    watched = Watched(queues)
    consumer = Consumer(watched, name="worker-1")
    consumer.handler("mail")(lambda delivery: done.append(delivery.value()))

    def wish(verb: str) -> None:
        if by == "operator":
            queues.consumer_wish("worker-1", verb)
        elif verb == "pause":
            consumer.pause()
        else:
            consumer.resume()

    def state() -> str:
        return next((str(one["state"]) for one in queues.consumer_list()), "")

    with running(consumer):
        queues.publish("mail", 1)
        until(lambda: done == [1])
        wish("pause")
        until(lambda: state() == "paused")
        # One lease may still be under way for half a second; whatever it gets goes back.
        queues.publish("mail", 2)
        beats, leases = watched.calls["beat"], watched.calls["lease"]
        until(lambda: watched.calls["beat"] > beats)
        assert watched.calls["lease"] <= leases + 1
        assert (done, queues.counts("mail").ready, queues.counts("mail").leased) == ([1], 1, 0)
        wish("resume")
        until(lambda: done == [1, 2])


def test_pause_releases_messages_not_started_and_lets_running_handlers_end(queues: Queues) -> None:
    slow = Blocking()
    queues.publish_many("mail", [1, 2, 3])
    consumer = Consumer(queues)
    consumer.handler("mail", prefetch=2)(slow)
    with running(consumer):
        slow.wait_begun()
        until(lambda: queues.counts("mail").leased == 3)
        consumer.pause()
        until(lambda: queues.counts("mail").ready == 2)
        slow.go.set()
        until(lambda: queues.counts("mail").done == 1)
        assert queues.counts("mail").ready == 2


def test_drain_requested_by_an_operator_ends_with_nothing_leased(queues: Queues) -> None:
    queues.publish_many("mail", list(range(50)))
    slow = Blocking()
    consumer = Consumer(queues, concurrency=2, name="worker-1")
    consumer.handler("mail", prefetch=10)(slow)
    with running(consumer) as run:
        slow.wait_begun(2)
        until(queues.consumer_list)
        queues.consumer_wish("worker-1", "drain")
        until(lambda: any(one["state"] == "draining" for one in queues.consumer_list()))
        slow.go.set()
        run.ended()
    assert queues.counts("mail").leased == 0
    assert queues.counts("mail").ready + queues.counts("mail").done == 50
    assert queues.consumer_list() == []


def test_drain_is_not_undone_by_resume_or_pause(queues: Queues) -> None:
    slow = Blocking()
    queues.publish("mail", 1)
    consumer = Consumer(queues)
    consumer.handler("mail")(slow)
    with running(consumer) as run:
        slow.wait_begun()
        consumer.stop()
        until(lambda: any(one["state"] == "draining" for one in queues.consumer_list()))
        consumer.resume()
        consumer.pause()
        slow.go.set()
        run.ended()


def test_drain_state_of_the_gate_is_not_reopened_by_later_requests() -> None:
    gate = PauseGate()
    assert [gate.apply_request(wish) for wish in ("resume", "pause", "pause", "resume")] == [False, True, False, True]
    assert gate.apply_request("drain")
    assert [gate.apply_request(wish) for wish in ("resume", "pause", "drain")] == [False, False, False]
    assert (gate.state, gate.is_closed, gate.wait_open()) == (ConsumerState.DRAINING, True, False)
    assert gate.set_state(ConsumerState.STOPPED)
    assert not gate.set_state(ConsumerState.RUNNING)


def test_consumer_registry_missing_on_the_server_does_not_stop_the_consumer(queues: Queues) -> None:
    watched = Watched(queues)

    def refuse(verb: str, number: int) -> None:
        if verb == "beat":
            raise BadInput("'consumer_beat' is not a known method", field="method")

    watched.before = refuse
    queues.publish("mail", 1)
    consumer = Consumer(watched)
    consumer.handler("mail")(lambda delivery: None)
    assert consumer.run(until_empty=True) == ConsumerSummary(done=1)


def test_retry_of_a_failed_lease_request_continues_fetching(queues: Queues) -> None:
    watched = Watched(queues)

    def refuse_twice(verb: str, number: int) -> None:
        if verb == "lease" and number <= 2:
            raise StoreError("the disk is away, says the test")

    watched.before = refuse_twice
    queues.publish("mail", 1)
    consumer = Consumer(watched)
    consumer.handler("mail")(lambda delivery: None)
    assert consumer.run(until_empty=True) == ConsumerSummary(done=1)


def test_permanent_error_of_a_lease_request_ends_the_run_after_running_handlers_finish(queues: Queues) -> None:
    watched = Watched(queues)
    slow = Blocking()

    def refuse(verb: str, number: int) -> None:
        if verb == "lease" and number > 1:
            slow.wait_begun()
            slow.go.set()
            raise BadInput("no more of this", field="queue")

    watched.before = refuse
    queues.publish("mail", 1)
    consumer = Consumer(watched, concurrency=2)
    consumer.handler("mail")(slow)
    with pytest.raises(BadInput, match="no more of this"):
        consumer.run()
    assert queues.counts("mail").done == 1, "what was in work is finished first"


# -- how much ---------------------------------------------------------------------------------------------------------


def test_worker_pool_of_eight_threads_handles_a_thousand_messages_once_each(tmp_path: Path) -> None:
    with yirangmq.open(f"sqlite:{tmp_path / 'q.db'}") as queues:
        sent = [stored.id for stored in queues.publish_many("mail", list(range(1000)))]
        handled: list[str] = []
        threads: set[str] = set()
        consumer = Consumer(queues, concurrency=8)

        @consumer.handler("mail")
        def handle(delivery: HandlerDelivery) -> None:
            handled.append(delivery.id)
            threads.add(threading.current_thread().name)

        assert consumer.run(until_empty=True) == ConsumerSummary(done=1000)
        assert sorted(handled) == sorted(sent)
        assert len(threads) == 8
        assert queues.counts("mail").done == 1000


def test_worker_pool_runs_no_more_handlers_at_a_time_than_the_concurrency_of_each_queue(queues: Queues) -> None:
    slow = Blocking()
    queues.publish_many("mail", list(range(10)))
    queues.publish_many("news", list(range(10)))
    consumer = Consumer(queues, concurrency=3)
    consumer.handler("mail")(slow)
    consumer.handler("news", concurrency=1)(slow)
    with running(consumer):
        slow.wait_begun(4)
        assert (queues.counts("mail").leased, queues.counts("news").leased) == (3, 1)
        slow.go.set()
        until(lambda: queues.counts("mail").done + queues.counts("news").done == 20)
        assert Counter(delivery.queue for delivery in slow.begun) == {"mail": 10, "news": 10}


def test_until_empty_waits_for_messages_that_handlers_publish_to_other_queues(queues: Queues) -> None:
    consumer = Consumer(queues)
    consumer.handler("a")(lambda delivery: queues.publish("b", delivery.value()))
    consumer.handler("b")(lambda delivery: queues.publish("c", delivery.value()))
    consumer.handler("c")(lambda delivery: None)
    queues.publish_many("a", [1, 2, 3])
    assert consumer.run(until_empty=True) == ConsumerSummary(done=9)


def test_until_empty_waits_for_every_queue(queues: Queues) -> None:
    looked, open_b = threading.Event(), threading.Event()

    class Slow(Watched):
        """Nobody can take from b for a while."""

        def lease(self, queue: str, *given: Any, **named: Any) -> Any:
            if queue == "b":
                assert open_b.wait(PATIENCE)
            elif self.calls["lease"] > 5:
                looked.set()
            return super().lease(queue, *given, **named)

    queues.publish("b", 1)
    consumer = Consumer(Slow(queues))
    consumer.handler("a")(lambda delivery: None)
    consumer.handler("b")(lambda delivery: None)
    with running(consumer, until_empty=True) as run:
        assert looked.wait(PATIENCE)
        assert run.is_alive
        open_b.set()
        assert run.ended() == ConsumerSummary(done=1)


def test_limit_of_the_run_is_exact_with_prefetch_and_concurrency(queues: Queues) -> None:
    queues.publish_many("mail", list(range(20)))
    consumer = Consumer(queues, concurrency=4)
    consumer.handler("mail", prefetch=4)(lambda delivery: None)
    assert consumer.run(limit=7) == ConsumerSummary(done=7)
    assert queues.counts("mail").ready == 13


def test_consumer_opens_the_store_of_an_address_and_closes_it(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'q.db'}"
    with yirangmq.open(url) as queues:
        queues.publish("mail", 1)
    consumer = Consumer(url)
    consumer.handler("mail")(lambda delivery: None)
    assert consumer.run(until_empty=True) == ConsumerSummary(done=1)
    with yirangmq.open(url) as queues:
        assert queues.counts("mail").done == 1
