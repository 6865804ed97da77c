"""A desk that is off duty: what looks is answered, what works is refused, and nothing in the store changes."""

from collections.abc import Callable
from typing import Any

import pytest

from yirangmq.broker import operations
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.credit_window import PendingLeaseRequest
from yirangmq.broker.group_commit import GroupCommitter
from yirangmq.core.errors import HookFailed, NotActive, QueueError
from yirangmq.format.envelope import plain
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import CountingIds, ManualClock


class Duty:
    def __init__(self) -> None:
        self.is_on = self.accepts_new = True

    def refusal(self) -> NotActive:
        return NotActive("this node, b, is standby in term 2; the active node is a at tcp://10.0.0.1:7411, http://a:80")


class Bench:
    """A desk whose turns and alarms happen when the test says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.soon: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []
        self.context = TransactionContext(self.clock, CountingIds())
        self.desk = GroupCommitter(
            MemoryStore(),
            self.context,
            self.clock,
            self.soon.append,
            lambda seconds, act: self.later.append(act),
        )
        self.desk.guard = self.guard = Duty()

    def turn(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def ask(self, work: Callable[[Any], Any]) -> Any:
        told: list[Any] = []
        self.desk.submit(work, lambda value, error: told.append(error or value))
        self.turn()
        [answer] = told
        if isinstance(answer, QueueError):
            raise answer
        return answer

    def publish(self, id: str) -> None:
        envelope = plain("work", id, b"x", self.clock.now_ms())
        self.ask(lambda transaction: operations.publish(self.context, transaction, "work", [envelope]))

    def ready(self) -> int:
        found: int = self.ask(lambda transaction: transaction.counts("work").ready)
        return found


def test_standby_answers_reads_and_rejects_changes() -> None:
    bench = Bench()
    bench.publish("1")
    bench.guard.is_on = False
    for work in (
        lambda: bench.publish("2"),
        lambda: bench.ask(lambda transaction: operations.lease(bench.context, transaction, "work", 1, None, "me")),
        lambda: bench.ask(lambda transaction: operations.lease(bench.context, transaction, "empty", 1, None, "me")),
        lambda: bench.ask(lambda transaction: transaction.set_policy("work", "{}")),
        lambda: bench.ask(lambda transaction: transaction.set_note("a", "b")),
        lambda: bench.ask(lambda transaction: transaction.delete_queue("work")),
        lambda: bench.desk.add_waiter(PendingLeaseRequest("work", "me", None, 1, lambda got: True)),
    ):
        with pytest.raises(NotActive):
            work()
    assert bench.ready() == 1


def test_standby_runs_no_hooks() -> None:
    bench = Bench()
    hooks = '{"processor": {"hooks": [{"hook": "no.such:hook"}]}}'
    bench.ask(lambda transaction: transaction.set_policy("work", hooks))
    with pytest.raises(HookFailed):
        bench.publish("1")
    bench.guard.is_on = False
    with pytest.raises(NotActive):
        bench.publish("2")
    assert bench.desk.is_idle


def test_standby_leaves_expired_leases_unchanged_and_catches_up_once_active() -> None:
    bench = Bench()
    bench.publish("1")
    bench.ask(lambda transaction: operations.lease(bench.context, transaction, "work", 1, 1000, "me"))
    bench.guard.is_on = False
    bench.clock.advance(5000)
    for alarm in bench.later:
        alarm()
    bench.turn()
    assert bench.ready() == 0
    bench.guard.is_on = True
    bench.desk.on_role_change()
    bench.turn()
    assert bench.ask(lambda transaction: transaction.counts("work").leased) == 0


def test_active_guard_does_not_confirm_a_commit_that_ends_after_the_active_role_was_lost() -> None:
    bench = Bench()

    def frozen_meanwhile(transaction: Any) -> None:
        transaction.set_note("a", "b")
        bench.guard.is_on = False

    with pytest.raises(NotActive):
        bench.ask(frozen_meanwhile)


def test_standby_rejection_text_can_be_parsed_for_the_active_node_and_its_addresses() -> None:
    error = Duty().refusal()
    assert (error.active, error.addresses) == ("a", ["tcp://10.0.0.1:7411", "http://a:80"])
    assert NotActive("this node, b, is standby in term 2; no active node is known").active == ""
    assert NotActive("this node, b, is standby in term 2; the active node is a").active == "a"
