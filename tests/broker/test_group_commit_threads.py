"""Many callers, one commit: what is shared, what is not, and who is woken."""

import linecache
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import pytest

from tests.support.queues import take, taken
from tests.support.stores import Place
from tests.support.wait import until
from yirangmq.broker import group_commit_threads as lane_module
from yirangmq.broker.group_commit_threads import ThreadedGroupCommitter
from yirangmq.broker.queues import Queues
from yirangmq.core.errors import BadInput, QueueError, StoreError, StoreFull
from yirangmq.core.message import Counts
from yirangmq.core.ports import CheckProgress, Finding, Store, Transaction, no_progress
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import FailingStore, ManualClock, open_for_test


class Gate:
    """A store whose first transaction for writing waits until it is opened, so that callers gather behind it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._first = True
        self.entered = threading.Event()
        self.opened = threading.Event()

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Transaction]:
        return self._gated() if write and self._first else self._store.transaction(write=write)

    @contextmanager
    def _gated(self) -> Iterator[Transaction]:
        self._first = False
        with self._store.transaction() as transaction:
            self.entered.set()
            self.opened.wait()
            yield transaction

    def wait(self, timeout: float) -> None:
        self._store.wait(timeout)

    def check(self, *, repair: bool, progress: CheckProgress = no_progress) -> Iterator[Finding]:
        return self._store.check(repair=repair, progress=progress)

    def durability(self) -> str:
        return self._store.durability()

    def close(self) -> None:
        self._store.close()


class Crowd:
    """Callers on their own threads: the first holds the lane, the others gather behind it, then all go at once."""

    def __init__(self, store: Store) -> None:
        self.counter = FailingStore(store)
        self.gate = Gate(self.counter)
        self.lane = ThreadedGroupCommitter(self.gate)
        self.answers: dict[int, object] = {}
        self._threads: list[threading.Thread] = []

    def call(self, number: int, work: Callable[[Transaction], object]) -> None:
        self._start(number, work)
        if number == 0:
            self.gate.entered.wait()
        else:
            until(lambda: len(self.lane._waiting) == number)

    def call_behind(self, work: Callable[[Transaction], object]) -> None:
        """A caller behind one that may leave the line at any time, so that their number says nothing."""

        def own(transaction: Transaction) -> object:
            return work(transaction)

        self._start(1, own)
        until(lambda: any(job.work is own for job, _ in [*self.lane._waiting]))

    def _start(self, number: int, work: Callable[[Transaction], object]) -> None:
        def run() -> None:
            try:
                self.answers[number] = self.lane.run(work)
            except QueueError as error:
                self.answers[number] = error

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()

    def go(self) -> dict[int, object]:
        self.gate.opened.set()
        for thread in self._threads:
            thread.join()
        return self.answers


def place_in_line(transaction: Transaction) -> int:
    return transaction.places(1)


def test_group_commit_shares_the_next_commit_among_callers_that_wait_during_a_commit(place: Place) -> None:
    crowd = Crowd(place.open())
    for number in range(8):
        crowd.call(number, place_in_line)
    answers = crowd.go()
    assert crowd.counter.commits == 2
    assert [answers[number] for number in range(8)] == list(range(1, 9))


def test_group_commit_of_a_refused_caller_leaves_the_others_unharmed(place: Place) -> None:
    def refuse(transaction: Transaction) -> int:
        raise BadInput("no", field="it")

    crowd = Crowd(place.open())
    for number in range(5):
        crowd.call(number, refuse if number == 2 else place_in_line)
    answers = crowd.go()
    assert crowd.counter.commits == 2
    assert isinstance(answers.pop(2), BadInput)
    assert sorted(answers) == [0, 1, 3, 4]
    assert all(isinstance(answer, int) for answer in answers.values())


def test_group_commit_that_fails_is_tried_again_for_each_caller_alone(place: Place) -> None:
    crowd = Crowd(place.open())
    for number in range(5):
        crowd.call(number, place_in_line)
    crowd.counter.fail_at(1)  # the shared one
    crowd.counter.fail_at(3)  # and of those tried alone the second
    answers = crowd.go()
    assert [type(answers[number]) for number in range(5)] == [int, int, StoreFull, int, int]
    assert crowd.counter.commits == 4


def test_group_commit_raises_an_unexpected_error_only_in_its_own_caller(place: Place) -> None:
    def stumble(transaction: Transaction) -> int:
        transaction.places(100)
        raise ZeroDivisionError

    crowd = Crowd(place.open())
    crowd.call(0, place_in_line)
    crowd.call(1, place_in_line)

    def outer() -> None:
        with pytest.raises(ZeroDivisionError):
            crowd.lane.run(stumble)

    thread = threading.Thread(target=outer)
    thread.start()
    until(lambda: len(crowd.lane._waiting) == 2)
    crowd.call(3, place_in_line)
    answers = crowd.go()
    thread.join()
    assert answers == {0: 1, 1: 2, 3: 3}


def test_full_store_refuses_publish_and_ack_and_works_again_when_there_is_space(
    place: Place, clock: ManualClock
) -> None:
    store = FailingStore(place.open())
    queues = open_for_test(store=store, clock=clock)
    queues.publish("mail", 1)
    for commit in (True, False):
        store.fail_at(1, commit=commit)
        with pytest.raises(StoreFull):
            queues.publish("mail", 2)
    assert queues.counts("mail") == Counts(ready=1, published=1, bytes=1)
    delivery = take(queues)
    store.fail_at(1)
    with pytest.raises(StoreFull):
        queues.ack(delivery.lease_id)
    queues.ack(delivery.lease_id)
    queues.publish("mail", 3)
    assert queues.counts("mail") == Counts(ready=1, done=1, published=2, acked=1, bytes=1)


def test_group_commit_that_is_interrupted_confirms_nothing_to_any_caller(place: Place) -> None:
    crowd = Crowd(place.open())
    crowd.call(0, place_in_line)

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            crowd.lane.run(place_in_line)

    leader = threading.Thread(target=interrupted)
    leader.start()
    until(lambda: len(crowd.lane._waiting) == 1)
    for number in (2, 3):
        crowd.call(number, place_in_line)
    crowd.counter.fail_at(1, KeyboardInterrupt())
    answers = crowd.go()
    leader.join()
    assert answers[0] == 1
    assert [type(answers[number]) for number in (2, 3)] == [StoreError, StoreError]
    assert crowd.lane.run(place_in_line) == 2


def test_group_commit_caller_interrupted_while_waiting_leaves_the_committer_free(place: Place) -> None:
    """Ctrl-C in the main thread, which waits behind another one's commit."""
    crowd = Crowd(place.open())
    crowd.call(0, place_in_line)
    main = threading.main_thread().ident
    assert main is not None

    def stop() -> None:
        until(lambda: len(crowd.lane._waiting) == 1)
        signal.pthread_kill(main, signal.SIGINT)

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(KeyboardInterrupt):
        crowd.lane.run(place_in_line)
    stopper.join()
    assert crowd.go() == {0: 1}
    assert crowd.lane.run(place_in_line) == 2


class Stopped(threading.Thread):
    """Runs work through a lane, with a Ctrl-C at the n-th of its calls and lines in there."""

    def __init__(self, lane: ThreadedGroupCommitter, place: int) -> None:
        super().__init__(daemon=True)
        self._lane = lane
        self._left = place

    @property
    def was_hit(self) -> bool:
        return self._left <= 0

    def run(self) -> None:
        sys.settrace(self._trace)
        try:
            self._lane.run(place_in_line)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != lane_module.__file__:
            return None
        if event in ("call", "line") and not (event == "line" and self._is_between(frame)):
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self._trace

    def _is_between(self, frame: FrameType) -> bool:
        """Python handles no signal where a block begins, nor before a ``with`` that ends has released its lock."""
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return line in ("try:", "finally:") or (line.startswith("with ") and self._lane._guard.locked())


@pytest.mark.parametrize("is_first", [False, True])
def test_group_commit_caller_interrupted_at_any_line_leaves_the_committer_free(is_first: bool) -> None:
    """It leads at once; or it waits, leads next, commits for the caller behind it, and hands over."""
    for place in range(1, 200):
        crowd = Crowd(MemoryStore())
        stopped = Stopped(crowd.lane, place)
        if is_first:
            crowd.gate.opened.set()
            stopped.start()
        else:
            crowd.call(0, place_in_line)
            stopped.start()
            until(lambda crowd=crowd, stopped=stopped: crowd.lane._waiting or not stopped.is_alive())
            crowd.call_behind(place_in_line)
        answers = crowd.go()
        stopped.join()
        last = crowd.lane.run(place_in_line)
        assert (crowd.lane._leader, len(crowd.lane._waiting)) == (None, 0), place
        assert len(answers) == (0 if is_first else 2), place
        assert all(type(answer) in (int, StoreError) for answer in answers.values()), place
        assert all(last > answer for answer in answers.values() if isinstance(answer, int)), place
        if not stopped.was_hit:
            return
    pytest.fail("it never came to an end")


def test_group_commit_on_many_threads_loses_and_duplicates_no_message(queues: Queues) -> None:
    got: list[str] = []
    guard = threading.Lock()
    total = 6 * 50

    def produce(name: int) -> None:
        for n in range(50):
            queues.publish("mail", f"{name}-{n}")

    def consume() -> None:
        while True:
            with guard:
                if len(got) == total:
                    return
            deliveries = queues.lease("mail", 7, wait=0.05)
            queues.ack([delivery.lease_id for delivery in deliveries])
            with guard:
                got.extend(delivery.value() for delivery in deliveries)

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(6)]
    threads += [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(f"{name}-{n}" for name in range(6) for n in range(50))
    assert queues.counts("mail") == Counts(done=total, published=total, acked=total)


# -- waiting ----------------------------------------------------------------------------------------------------------

FOREVER = 3600.0
"""A wait that no test outlives: whoever waits so long is woken, or the test fails by its time limit."""


class Waiting:
    """A consumer on its own thread, waiting for one message."""

    def __init__(self, queues: Queues, queue: str = "mail") -> None:
        self.got: list[str] = []
        self._thread = threading.Thread(target=self._wait, args=(queues, queue))
        self._thread.start()

    def _wait(self, queues: Queues, queue: str) -> None:
        self.got = [delivery.id for delivery in queues.lease(queue, wait=FOREVER)]

    def woken(self) -> list[str]:
        self._thread.join()
        return self.got


def test_waiting_consumer_is_woken_by_a_publish_from_another_thread(queues: Queues) -> None:
    waiting = Waiting(queues)
    queues.publish("mail", 1)
    assert waiting.woken() == ["m-1"]


def test_waiting_consumer_is_woken_by_a_publish_through_another_opening_of_the_store(
    place: Place, queues: Queues, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a door: when it asks again, as nobody tells the servers of these tests of others on their store."""
    monkeypatch.setattr("yirangmq.client.async_client.MAX_POLL_SECONDS", 0.2)
    waiting = Waiting(queues)
    open_for_test(store=place.open(), clock=clock).publish("mail", 1)
    assert waiting.woken() == ["m-1"]


def test_waiting_consumers_get_one_message_each(queues: Queues) -> None:
    crowd = [Waiting(queues) for _ in range(4)]
    queues.publish_many("mail", range(2))
    queues.publish_many("mail", range(2))
    assert sorted(id for waiting in crowd for id in waiting.woken()) == ["m-1", "m-2", "m-3", "m-4"]


def test_waiting_consumer_ignores_a_message_of_another_queue(queues: Queues) -> None:
    waiting = Waiting(queues)
    queues.publish("post", 1)
    queues.publish("mail", 2)
    assert waiting.woken() == ["m-2"]
    assert taken(queues, queue="post") == ["m-1"]


def test_waiting_consumer_is_woken_by_a_nack_of_another_consumer(queues: Queues) -> None:
    queues.publish("mail", 1)
    lease = take(queues).lease_id
    waiting = Waiting(queues)
    queues.nack(lease, delay=0)
    assert waiting.woken() == ["m-1"]


def test_lease_of_an_empty_queue_without_waiting_returns_nothing_at_once(queues: Queues) -> None:
    assert queues.lease("mail", wait=0) == []
    assert queues.lease("mail", wait=0.001) == []
