"""One place changes the state of messages: ``broker.changes``."""

import ast
from collections.abc import Sequence
from pathlib import Path

import yirangmq.broker
from yirangmq.broker.changes import apply_changes
from yirangmq.broker.context import TransactionContext
from yirangmq.broker.queues import Queues
from yirangmq.core import transitions
from yirangmq.core.ports import Change, Transaction
from yirangmq.format.envelope import NewMessage
from yirangmq.stores.memory import MemoryStore
from yirangmq.testing import CountingIds, ManualClock

BROKER = Path(yirangmq.broker.__file__).parent
SWAPS = {"swap", "swap_run"}


def calls_of(source: str) -> set[str]:
    """Names of the methods that this source calls."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {call.attr for call in calls if isinstance(call, ast.Attribute)}


def test_changes_of_message_state_are_swapped_by_one_module_only() -> None:
    found = {path.name for path in BROKER.rglob("*.py") if SWAPS & calls_of(path.read_text())}
    assert found == {"changes.py"}
    assert "swap" in calls_of("def f(transaction, changes):\n    transaction.swap(changes)")


def test_changes_of_two_queues_are_recorded_once_and_free_the_next_of_each_group() -> None:
    clock, ids = ManualClock(), CountingIds()
    context = TransactionContext(clock, ids)
    recorded: list[int] = []

    def record(changes: Sequence[Change], now: int) -> None:
        recorded.append(len(changes))

    with Queues(MemoryStore(), clock, ids, "me", context=context) as queues:
        for queue in ("a", "b"):
            queues.publish_many(queue, [NewMessage(payload=n, group="g") for n in range(2)])
        leased = [queues.lease(queue)[0].message for queue in ("a", "b")]
        assert [queues.counts(queue).held for queue in ("a", "b")] == [1, 1]

        def work(transaction: Transaction) -> None:
            now = clock.now_ms()
            changes = [Change(row, transitions.ack(row, transaction.policy(row.queue), now)) for row in leased]
            apply_changes(context, transaction, changes, now, record)
            apply_changes(context, transaction, [], now, record)

        context.wake_queues.clear()
        queues.run(work)
        assert recorded == [2]
        assert context.wake_queues == {"a", "b"}
        assert [(queues.counts(queue).ready, queues.counts(queue).held) for queue in ("a", "b")] == [(1, 0), (1, 0)]
