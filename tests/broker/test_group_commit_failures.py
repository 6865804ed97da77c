"""Group commit after a failure: whatever fails in one turn of the desk, the next request is answered."""

from collections.abc import Callable
from typing import Any

import pytest

from yirangmq.broker import operations
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.credit_window import PendingLeaseRequest
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.core.errors import QueueError, StoreBusy, StoreError, StoreFull, Unavailable
from yirangmq.format.envelope import plain
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import CountingIds, FailingStore, ManualClock

STORE_ERRORS = [StoreError("disk I/O error"), StoreFull("no space"), OSError(5, "EIO")]


class Bench:
    """A desk whose turns and timers run when the test says so. ``reported``: what its event loop was given."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FailingStore(MemoryStore())
        self.soon: list[Callable[[], None]] = []
        self.timers: list[Callable[[], None]] = []
        self.reported: list[Exception] = []
        self.context = TransactionContext(self.clock, CountingIds())
        self.desk = GroupCommitter(
            self.store,
            self.context,
            self.clock,
            self.soon.append,
            lambda seconds, call: self.timers.append(call),
        )

    def turn(self) -> None:
        while self.soon:
            try:
                self.soon.pop(0)()
            except Exception as error:
                self.reported.append(error)

    def ring(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            timer()
        self.turn()

    def publish(self, queue: str = "work") -> list[Any]:
        """What the publisher is told; nothing where it hangs."""
        told: list[Any] = []
        envelope = plain(queue, f"m-{self.store.transactions}", b"x", self.clock.now_ms())
        self.desk.submit(
            lambda transaction: operations.publish(self.context, transaction, queue, [envelope]),
            lambda value, error: told.append(error or "stored"),
        )
        self.turn()
        return ["stored" if one == "stored" else type(one) for one in told]

    def add_waiter(self, take: Callable[[Any], bool]) -> PendingLeaseRequest:
        waiting = PendingLeaseRequest("work", "me", None, 10, take)
        self.desk.add_waiter(waiting)
        self.turn()
        return waiting


def fail(*_: object) -> Any:
    raise ZeroDivisionError("a planted fault")


@pytest.mark.parametrize("commit", [False, True], ids=["at the start", "at the commit"])
@pytest.mark.parametrize("error", STORE_ERRORS, ids=lambda error: type(error).__name__)
def test_group_commit_failure_is_reported_once_and_the_next_commit_works(error: Exception, commit: bool) -> None:
    bench = Bench()
    bench.store.fail_at(1, error, commit=commit)
    [refused] = bench.publish()
    assert issubclass(refused, QueueError)
    assert bench.publish() == ["stored"]
    assert bench.desk.is_idle


@pytest.mark.parametrize("commit", [False, True], ids=["at the start", "at the commit"])
def test_group_commit_on_a_busy_store_is_repeated_by_a_timer(commit: bool) -> None:
    bench = Bench()
    bench.store.fail_at(1, StoreBusy("locked"), commit=commit)
    assert bench.publish() == []
    assert bench.store.commits == 0
    bench.ring()
    assert bench.publish() == ["stored"]
    assert bench.desk.is_idle
    with bench.store.transaction() as transaction:
        assert transaction.counts("work").ready == 2


def test_group_commit_failures_in_a_row_schedule_a_single_retry() -> None:
    bench = Bench()
    for _ in range(5):
        bench.store.fail_at(1, commit=False)
        assert bench.publish() == [StoreFull]
    assert len(bench.timers) == 1
    bench.store.fail_at(1, commit=False)
    bench.ring()
    assert len(bench.timers) == 1


@pytest.mark.parametrize("hooks", ["before_commit", "on_taken", "after_commit"])
def test_group_commit_hook_that_fails_stops_neither_other_hooks_nor_the_next_commit(hooks: str) -> None:
    bench = Bench()
    called: list[int] = []
    getattr(bench.desk, hooks).extend([fail, lambda: called.append(1)])
    assert bench.publish() == ["stored"]
    assert bench.publish() == ["stored"]
    assert called == [1, 1]
    assert [type(error) for error in bench.reported] == [ZeroDivisionError] * 2


def test_group_commit_continues_after_an_event_listener_fails() -> None:
    bench = Bench()
    bench.context.event_buffer.add_listener(fail)
    assert bench.publish() == ["stored"]
    for _ in range(1001):  # more than one commit takes: the rest needs another turn
        bench.desk.submit(lambda transaction: None, lambda value, error: None)
    bench.turn()
    assert bench.desk.is_idle


def test_group_commit_consumer_that_fails_to_take_loses_no_message_and_starves_no_other_consumer() -> None:
    bench = Bench()
    bench.add_waiter(fail)
    got: list[Any] = []

    def take(deliveries: Any) -> bool:
        got.extend(deliveries)
        return True

    bench.add_waiter(take)
    envelopes = [plain("work", f"m-{number}", b"x", bench.clock.now_ms()) for number in range(12)]
    bench.desk.submit(
        lambda transaction: operations.publish(bench.context, transaction, "work", envelopes),
        lambda value, error: None,
    )
    bench.turn()
    assert len(got) == 2
    ready = bench.desk.read(lambda transaction: transaction.counts("work").ready)
    assert ready == 10, "what was leased for the consumer that failed is ready again"
    assert bench.desk.is_idle


def test_group_commit_long_job_whose_thread_cannot_start_is_rejected_and_the_next_request_works() -> None:
    bench = Bench()
    told: list[Any] = []

    def no_thread(work: Callable[[], Any], done: Any) -> None:
        raise RuntimeError("can't start new thread")

    bench.desk.submit_long(lambda transaction: None, lambda value, error: told.append(type(error)), no_thread)
    bench.turn()
    assert told == [Unavailable]
    assert bench.publish() == ["stored"]
    assert bench.desk.is_idle
